# pfedfda with Flower, for machines without accelerators:
#
#   docker build -t pfedfda .
#   docker run --rm -v "$PWD/runs:/work/runs" pfedfda pfedfda compare --demo
FROM python:3.11-slim

# Here the wheels of torch for processors are; they are preferred to those for CUDA, which have the
# same version and some gigabytes more.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# No usage statistics, no search for updates, and nothing is installed when a run starts.
ENV FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/pfedfda
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip install --no-cache-dir \
    --extra-index-url "$TORCH_INDEX" -c constraints.txt '.[flower]'

RUN useradd --create-home --uid 1000 federation \
    && install --directory --owner federation /work
USER federation
WORKDIR /work
CMD ["pfedfda", "--help"]
