# pfedfda with Flower, for machines without accelerators:
#
#   docker build -t pfedfda --build-arg TORCH_INDEX=ADDRESS .
#   docker run --rm -v "$PWD/runs:/work/runs" pfedfda pfedfda compare --demo
FROM python:3.11-slim

# The address that PyTorch's installation page shows for CPU: the builds there are preferred to those
# for CUDA, which have the same version and some gigabytes more. Without it those are taken.
ARG TORCH_INDEX=

# No usage statistics, no search for updates, and nothing is installed when a run starts.
ENV FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/pfedfda
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip install --no-cache-dir \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt '.[flower]'

RUN useradd --create-home --uid 1000 federation \
    && install --directory --owner federation /work
USER federation
WORKDIR /work
CMD ["pfedfda", "--help"]
