# Every target sets up what it needs in .venv, once: `make demo` in a clean clone is enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-slow lint format docs lock clean

help:
	@echo "make demo     compare twelve methods on a federation of handwritten digits (a minute or two)"
	@echo "make test     run the tests"
	@echo "make test-slow  run the tests that take minutes: a federation of real processes"
	@echo "make lint     check style and types"
	@echo "make format   rewrite the code in the project's style"
	@echo "make docs     build the documentation as a site in site/"
	@echo "make lock     write requirements.lock and requirements-flower.lock, with hashes"
	@echo "make clean    remove .venv and the caches of the tools"

demo: .venv/core
	$(BIN)/pfedfda compare --demo

test: .venv/dev
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-slow: .venv/dev
	$(BIN)/pytest -m slow

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Material for MkDocs would speak of its successor.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

lock: .venv/dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/write_lock.py

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis

# PIP_CONSTRAINT holds in the build environment of the package too, where -c does not reach.
.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pfedfda needs Python 3.11 or newer; name one with: make PYTHON=python3.12 demo")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/core
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv/docs: .venv/core
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
