# Two commands do all the set-up on a machine with Python, venv and make:
#   make build FRAMEWORK=deepspeed     the main job
#   make test                          the tests
PYTHON ?= python3
FRAMEWORK ?= deepspeed
BUILD_FLAGS ?=
VENV ?= .venv
STAMP = $(VENV)/.installed
BIN = $(VENV)/bin

.PHONY: build test integration lint types bench clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	touch $@

build: $(STAMP)
	$(BIN)/envsmith build --framework '$(FRAMEWORK)' $(BUILD_FLAGS)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m 'not integration'

integration: $(STAMP)
	$(BIN)/python -m pytest -m integration

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python bench/solver.py

clean:
	rm -rf $(VENV) envsmith-build .mypy_cache .ruff_cache .pytest_cache .hypothesis
