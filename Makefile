# `make demo` and `make test` set up everything they need in .venv, with Python 3.11, 3.12 or 3.13.
PYTHON ?= python3.11
VENV := .venv
NEWEST := .venv-newest
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := -m pip --disable-pip-version-check
RUN := env TF_CPP_MIN_LOG_LEVEL=3
# A test is thorough or it is not, so that each is run once: tests/conftest.py marks them.
PYTEST := $(RUN) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test test-all test-lab fuzz test-slow test-peers test-newest test-tpu test-notebooks notebooks tpu-check lint bench walk release wheel docs clean

help:  ## print this list
	@echo "A target installs what it needs into .venv or into the environment in parentheses."
	@awk -F ':.*## ' '/^[a-z-]+:.*##/ {printf "make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## install the pinned environment

# Mode "compat" puts this folder on Python's path. With setuptools' default, a script beside the clone
# would import the clone's folder `macaron_tf`, which has no __init__.py, in place of the package.
$(STAMP): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: no $(PYTHON) on the path: install Python 3.11 or give make PYTHON=/path/to/3.11, 3.12 or 3.13" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned environment into $(VENV): a few minutes, about 4 GB"
	$(BIN)/python $(PIP) install --quiet -r requirements.txt
	$(BIN)/python $(PIP) install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

demo: $(STAMP)  ## train, score and export a small translation model (3 to 6 minutes after the installation)
	$(RUN) $(BIN)/macaron train demo runs/demo
	-$(RUN) $(BIN)/macaron average runs/demo
	$(RUN) $(BIN)/macaron evaluate runs/demo --split test
	echo "The light was not found." | $(RUN) $(BIN)/macaron predict runs/demo
	$(RUN) $(BIN)/macaron export runs/demo runs/demo/served

# The project's own folders: a file of yours beside them, such as my_block.py, is not checked.
SOURCES := docs experiments export macaron_tf setup.py tests
lint: $(STAMP)  ## check style, types and contracts of imports
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: $(STAMP) lint  ## run linters and the most important tests of each package (7 minutes on 2 slow cores)
	@$(PYTEST) --ignore tests/lab -m "not thorough and not slow"

test-all: test  ## run `make test` and the thorough tests (15 minutes)
	@$(PYTEST) --ignore tests/lab -m "thorough and not slow"

test-lab: $(STAMP)  ## run the tests of experiments.lab
	@$(PYTEST) tests/lab

test-slow: $(STAMP)  ## run only the slow tests
	@$(RUN) $(BIN)/python -m pytest -m slow

# Other cases than those of `make test`; stops at a finding, whose case becomes one of `@example`.
SEED ?= 1
MINUTES ?= 60
fuzz: $(STAMP)  ## test with random invalid settings, flags and folders (1 hour, or MINUTES=N)
	@timeout $(MINUTES)m sh -c 'for seed in $$(seq $(SEED) $$(($(SEED) + 9999))); do echo seed $$seed; $(RUN) MACARON_TF_FUZZ=long \
	  $(BIN)/python -m pytest -x tests/fuzz --hypothesis-seed=$$seed || exit 1; done'; test $$? = 124

DATA ?= ../shared/data/tfds
walk: $(STAMP)  ## run every command of the docs on real data for a few updates (1 hour; DATA=DIR)
	@$(RUN) $(BIN)/python -m tests.walk $(DATA) runs/walk

# An environment beside .venv, to which main.pth adds this checkout and the pinned packages. One for all cannot be
# resolved: Apache Beam asks for pyarrow below 26 and protobuf below 7, but other packages need protobuf 7, with which Beam runs.
.venv-%/installed: requirements/%.txt $(STAMP)
	$(BIN)/python -m venv .venv-$*
	printf '%s\n' "$$(pwd)" "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" > $$(ls -d .venv-$*/lib/python*/site-packages)/main.pth
	.venv-$*/bin/python $(PIP) install --quiet -r $<
	.venv-$*/bin/python $(PIP) uninstall --quiet --yes protobuf 2>/dev/null
	@touch $@

PEER_TESTS := tests/hub $(addprefix tests/,layers/test_attention.py engines/test_onnx.py data/corpus/test_engines.py \
  models/test_tcn.py text/test_words.py training/test_optimizer.py experiments/test_hugging_face.py experiments/test_buckets.py) \
  tests/lab/test_benchmark_train_step.py
test-peers: .venv-peers/installed  ## compare with other libraries, which also read our folders; test Beam (.venv-peers)
	$(RUN) .venv-peers/bin/python -m pytest $(PEER_TESTS)

BENCH := $(RUN) .venv-peers/bin/python -m experiments.lab.benchmarks
bench: .venv-peers/installed  ## run all benchmarks in short form against other libraries (15 minutes; .venv-peers)
	-$(BENCH).train_step --rounds 5 --out runs/bench/blocks
	-$(BENCH).train_step --against peers --rounds 3 --steps 2 --out runs/bench/train_step
	-$(BENCH).input_pipeline --rounds 5 --out runs/bench/input_pipeline
	-$(BENCH).decoding --rounds 3 --out runs/bench/decoding
	-$(BENCH).decoding --model gpt2 --size mini --source-length 256 --batch-sizes 1 8 --rounds 3 --out runs/bench/prompts
	-$(BENCH).serving --rounds 3 --out runs/bench/serving

test-tpu: .venv-tpu/installed  ## run the tests of the TPU check with the TPU compiler (.venv-tpu)
	$(RUN) .venv-tpu/bin/python -m pytest tests/lab/test_tpu_check.py

tpu-check: .venv-tpu/installed  ## compile the train step of each recipe for a TPU (hours; .venv-tpu)
	$(RUN) .venv-tpu/bin/python -m experiments.lab.tpu_check --topology v4:2x2x1 --topology v5e:2x2

# Strict: a broken link or a name that cannot be documented ends the build. No network is used.
docs: .venv-docs/installed  ## build the documentation site in site/ with MkDocs (.venv-docs)
	@$(RUN) NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet
	@echo "site/index.html; with its search: python3 -m http.server --directory site"

notebooks: .venv-docs/installed  ## convert the examples to notebooks in notebooks/ (.venv-docs)
	@mkdir -p notebooks
	@for script in experiments/examples/[a-z]*.py; do \
	  .venv-docs/bin/python -m jupytext --quiet --set-kernel python3 --to ipynb $$script \
	    --output notebooks/$$(basename $$script .py).ipynb || exit 1; done

test-notebooks: .venv-docs/installed  ## run the notebooks at tiny size (.venv-docs)
	$(RUN) .venv-docs/bin/python -m pytest -m slow tests/experiments/test_examples.py

# An empty environment of the newest Python here that the library takes: what the wheel does without
# its extras, then a short set of tests with the newest packages that the registry has.
NEWEST_PYTHON = $(shell for version in 3.13 3.12 3.11; do \
  for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python; do \
    $$python -c "" 2>/dev/null && echo $$python && exit; done; done)
NEWEST_TESTS := tests/kernels $(addprefix tests/,layers/test_contracts.py layers/test_attention.py \
  hub/test_vocabularies.py training/test_fit_model.py training/test_jax_engine.py)
test-newest: $(STAMP)  ## test the wheel with the newest Python and the newest packages (.venv-newest)
	@if [ -z "$(NEWEST_PYTHON)" ]; then echo "test-newest: skipped, there is no Python 3.11 to 3.13"; exit; fi; \
	if ! $(NEWEST_PYTHON) $(PIP) download --quiet --no-deps --dest $(NEWEST) annotated-types 2>/dev/null; then \
	  echo "test-newest: skipped, pip reaches no package registry"; exit; fi; \
	set -ex; \
	$(MAKE) release; \
	$(NEWEST)/bin/python $(PIP) install --quiet "$$(ls dist/*.whl)[train,jax,interop,vocabularies]" pytest pytest-xdist; \
	$(RUN) $(NEWEST)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(NEWEST_TESTS)

release: $(STAMP)  ## build sources and wheel in dist/, and try the wheel in an empty environment (.venv-newest)
	@rm -rf build dist
	@$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
	@$(BIN)/python $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	@set -ex; \
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST); \
	$(NEWEST)/bin/python $(PIP) install --quiet "$$(ls dist/*.whl)[serving]"; \
	$(RUN) $(NEWEST)/bin/python tests/wheel_journey.py $(NEWEST)/journey

# Builds with the setuptools of $(PYTHON) or .venv if it is 77 or newer; elsewhere pip fetches one for the build (1 MB).
HAS_BUILDER := import sys, setuptools; sys.exit(int(setuptools.__version__.split(".")[0]) < 77)
wheel:  ## build the Python package in dist/
	@rm -rf build  # modules that are gone would be packed from build/
	@for python in $(PYTHON) $(BIN)/python; do \
	  $$python -c '$(HAS_BUILDER)' 2>/dev/null && how=--no-build-isolation && break; \
	  python=$(PYTHON); done; \
	$$python $(PIP) wheel --quiet --no-deps $$how --wheel-dir dist .

clean:  ## remove all environments, runs/, notebooks/, site/, build/ and dist/
	rm -rf $(VENV) .venv-peers .venv-tpu .venv-docs $(NEWEST) runs notebooks site build dist
