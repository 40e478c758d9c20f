# `make demo` and `make test` set up everything they need in .venv, with Python 3.11, 3.12 or 3.13.
PYTHON ?= python3.11
VENV := .venv
PEERS := .venv-peers
TPU := .venv-tpu
BEAM := .venv-beam
DOCS := .venv-docs
READERS := .venv-readers
NEWEST := .venv-newest
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
RUN := env TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python

.PHONY: help setup demo test test-all test-lab fuzz test-slow test-peers test-readers test-newest test-tpu test-beam test-notebooks notebooks tpu-check lint bench walk wheel docs clean

help:
	@echo "A target installs what it needs into .venv or into the environment in parentheses."
	@echo "make demo           train, score, export and serve a small translation model (3 to 6 minutes)"
	@echo "make test           run linters and the most important tests of each package (6 minutes on 2 cores)"
	@echo "make test-all       run \`make test\` and the thorough tests (about 20 minutes)"
	@echo "make test-lab       run the tests of experiments.lab: benchmarks, local errors, the TPU check"
	@echo "make test-slow      run only the slow tests"
	@echo "make fuzz           test with random invalid settings, flags, folders and requests (1 hour, or MINUTES=N)"
	@echo "make test-peers     compare models with Hugging Face's in PyTorch (.venv-peers)"
	@echo "make test-readers   read exports in CTranslate2, lm-evaluation-harness and MTEB (.venv-readers)"
	@echo "make test-newest    test the wheel with the newest Python and the newest packages (.venv-newest)"
	@echo "make bench          run all benchmarks in short form against other libraries (15 minutes; .venv-peers)"
	@echo "make tpu-check      compile the train steps of the base and large recipes for a TPU (hours; .venv-tpu);"
	@echo "                    if interrupted, the same command resumes"
	@echo "make test-tpu       run the tests of the TPU check with the TPU compiler (.venv-tpu)"
	@echo "make test-beam      test the preparation of corpora as Apache Beam pipelines (.venv-beam)"
	@echo "make notebooks      convert the examples to notebooks in notebooks/ (.venv-docs)"
	@echo "make test-notebooks run the notebooks at tiny size (.venv-docs)"
	@echo "make walk           run every command of the docs on real data for a few updates (1 hour; DATA=DIR)"
	@echo "make docs           build the documentation site in site/ with MkDocs (.venv-docs)"
	@echo "make wheel          build the Python package in dist/"
	@echo "make clean          remove all environments, runs/, notebooks/, site/, build/ and dist/"

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: no $(PYTHON) on the path: install Python 3.11 or give make PYTHON=/path/to/3.11, 3.12 or 3.13" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned environment into $(VENV): a few minutes, about 4 GB"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(RUN) -m macaron_tf demo

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# A test is thorough or it is not, so that each is run once: tests/conftest.py marks them.
PYTEST := $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP) lint
	@$(PYTEST) --ignore tests/lab -m "not thorough and not slow"

test-all: test
	@$(PYTEST) --ignore tests/lab -m "thorough and not slow"

test-lab: $(STAMP)
	@$(PYTEST) tests/lab

# Other cases than those of `make test`; stops at a finding, whose case becomes one of `@example`.
SEED ?= 1
MINUTES ?= 60
fuzz: $(STAMP)
	@$(RUN) -m tests.fuzz --seed $(SEED) --minutes $(MINUTES)

test-slow: $(STAMP)
	@$(RUN) -m pytest -m slow

# The peers' packages lie in a folder of their own, so that the pinned environment stays as it is.
$(PEERS)/installed: $(STAMP) experiments/lab/benchmarks/requirements.txt
	$(BIN)/python -m venv $(PEERS)
	echo "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" > $$(ls -d $(PEERS)/lib/python*/site-packages)/main.pth
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r experiments/lab/benchmarks/requirements.txt
	@touch $@

bench: $(PEERS)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(PEERS)/bin/python -m experiments.lab.benchmarks

PEER_TESTS := tests/interop tests/layers/test_attention.py tests/engines/test_onnx.py \
  $(addprefix tests/experiments/test_,hugging_face.py text_to_text.py) \
  $(addprefix tests/lab/test_benchmark_,harness.py serving.py train_step.py)

test-peers: $(PEERS)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(PEERS)/bin/python -m pytest $(PEER_TESTS)

# Programs that read what we export in Hugging Face's form; they see the peers' packages.
$(READERS)/installed: $(PEERS)/installed experiments/lab/benchmarks/requirements-readers.txt
	$(BIN)/python -m venv $(READERS)
	printf '%s\n' "$$(pwd)/$$(ls -d $(PEERS)/lib/python*/site-packages)" \
	  "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" \
	  > $$(ls -d $(READERS)/lib/python*/site-packages)/main.pth
	$(READERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r experiments/lab/benchmarks/requirements-readers.txt
	@touch $@

test-readers: $(READERS)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(READERS)/bin/python -m pytest tests/interop/test_readers.py

# An empty environment of the newest Python here that the library takes: what the wheel does without
# its extras, then a short set of tests with the newest packages that the registry has.
NEWEST_PYTHON = $(shell for version in 3.13 3.12 3.11; do \
  for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python; do \
    $$python -c "" 2>/dev/null && echo $$python && exit; done; done)
NEWEST_TESTS := tests/kernels tests/layers tests/interop/test_vocabularies.py \
  $(addprefix tests/training/test_,fit_model.py jax_engine.py)
test-newest: wheel
	@python="$(NEWEST_PYTHON)"; wheel=$$(ls -t dist/*.whl | head -1); pip="-m pip --disable-pip-version-check"; \
	if [ -z "$$python" ]; then echo "test-newest: skipped, there is no Python 3.11 to 3.13"; exit; fi; \
	if ! $$python $$pip download --quiet --no-deps --dest $(NEWEST) annotated-types 2>/dev/null; then \
	  echo "test-newest: skipped, pip reaches no package registry"; exit; fi; \
	set -ex; \
	$$python -m venv --clear $(NEWEST); \
	$(NEWEST)/bin/python $$pip install --quiet "$$wheel[serving]"; \
	env TF_CPP_MIN_LOG_LEVEL=3 $(NEWEST)/bin/python tests/wheel_journey.py $(NEWEST)/journey; \
	$(NEWEST)/bin/python $$pip install --quiet "$$wheel[train,jax,interop,vocabularies]" pytest pytest-xdist; \
	env TF_CPP_MIN_LOG_LEVEL=3 $(NEWEST)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(NEWEST_TESTS)

# As the peers': what compiles for a TPU, beside the pinned environment.
$(TPU)/installed: $(STAMP) experiments/lab/tpu_check/requirements.txt
	$(BIN)/python -m venv $(TPU)
	echo "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" > $$(ls -d $(TPU)/lib/python*/site-packages)/main.pth
	$(TPU)/bin/python -m pip install --quiet --disable-pip-version-check -r experiments/lab/tpu_check/requirements.txt
	@touch $@

TPU_RECIPES := bert_base bert_rab_base swish_rnn_base macaron_bert_base macaron_bert_released \
  bert_devlin_128 bert_devlin_512 bert_large bert_rab_large swish_rnn_large \
  roberta_base roberta_8k_base roberta_8k_large span_bert_base albert_base modern_bert_base \
  electra_small electra_base xlm_xnli gmlp_base amlp_base xlnet_base xlnet_large \
  transformer_xl_base t5_base bart_base iwslt14_macaron_small wmt14_macaron_base wmt14_macaron_big

TPU_SLIDES := roberta_tiny albert_tiny span_bert_tiny xlm_tiny electra_tiny gmlp_tiny amlp_tiny \
  gpt_tiny gpt2_tiny transformer_xl_tiny xlnet_tiny t5_tiny bart_tiny \
  $(addprefix tcn_,adding copy_memory jsb nottingham ptb_words ptb_characters mnist) \
  elmo_tiny elmo_original gpt_base gpt2_base

# The JAX engine, on a mesh of four cores.
TPU_MESH := bert_base swish_rnn_base gpt2_base wmt14_macaron_base

# A recipe that does not pass is in the table, and the others follow. Each has a process of its own:
# TensorFlow keeps what it has traced, a gigabyte a recipe.
CHECK := env TF_CPP_MIN_LOG_LEVEL=3 $(TPU)/bin/python -m experiments.lab.tpu_check
RESULTS := experiments/results/tpu_check

tpu-check: $(TPU)/installed
	-echo $(TPU_RECIPES) | xargs -n 1 $(CHECK) --topology v4:2x2x1 --topology v5e:2x2 \
	  --compilations 1 --resume --json $(RESULTS).json --markdown $(RESULTS).md
	-echo $(TPU_SLIDES) | xargs -n 1 $(CHECK) --topology v5e:2x2 \
	  --compilations 1 --resume --json $(RESULTS)_slides.json --markdown $(RESULTS)_slides.md
	-echo $(TPU_MESH) | xargs -n 1 $(CHECK) --topology v5e:2x2 --engine jax --mesh data=2,model=2 \
	  --compilations 1 --resume --json $(RESULTS)_mesh.json --markdown $(RESULTS)_mesh.md
	$(CHECK) --slices --markdown $(RESULTS)_slices.md

test-tpu: $(TPU)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(TPU)/bin/python -m pytest tests/lab/test_tpu_check.py

# As the peers'. Beam's own choice of protobuf is older than generated code of the pinned packages.
$(BEAM)/installed: $(STAMP) experiments/pretrain/requirements-beam.txt
	$(BIN)/python -m venv $(BEAM)
	echo "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" > $$(ls -d $(BEAM)/lib/python*/site-packages)/main.pth
	$(BEAM)/bin/python -m pip install --quiet --disable-pip-version-check -r experiments/pretrain/requirements-beam.txt
	$(BEAM)/bin/python -m pip uninstall --quiet --yes protobuf
	@touch $@

test-beam: $(BEAM)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(BEAM)/bin/python -m pytest tests/data/corpus/test_engines.py

# Tools of pages and notebooks, which see the checkout and the pinned environment.
$(DOCS)/installed: $(STAMP) docs/requirements.txt
	$(BIN)/python -m venv $(DOCS)
	printf '%s\n' "$$(pwd)" "$$(pwd)/$$(ls -d $(VENV)/lib/python*/site-packages)" \
	  > $$(ls -d $(DOCS)/lib/python*/site-packages)/main.pth
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# Strict: a broken link or a name that cannot be documented ends the build. No network is used.
docs: $(DOCS)/installed
	@env TF_CPP_MIN_LOG_LEVEL=3 NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet
	@echo "site/index.html; with its search: python3 -m http.server --directory site"

notebooks: $(DOCS)/installed
	@mkdir -p notebooks
	@for script in experiments/examples/[a-z]*.py; do \
	  $(DOCS)/bin/python -m jupytext --quiet --set-kernel python3 --to ipynb $$script \
	    --output notebooks/$$(basename $$script .py).ipynb || exit 1; done

test-notebooks: $(DOCS)/installed
	env TF_CPP_MIN_LOG_LEVEL=3 $(DOCS)/bin/python -m pytest -m slow tests/experiments/test_examples.py

DATA ?= ../shared/data/tfds
walk: $(STAMP)
	@$(RUN) -m tests.walk $(DATA) runs/walk

# Needs no environment: where $(PYTHON), or .venv, has setuptools 77 the wheel is built with it, and
# nothing is downloaded; elsewhere pip fetches setuptools for the build alone (1 MB).
HAS_BUILDER := import sys, setuptools; sys.exit(int(setuptools.__version__.split(".")[0]) < 77)
wheel:
	@rm -rf build  # modules that are gone would be packed from build/
	@for python in $(PYTHON) $(BIN)/python; do \
	  $$python -c '$(HAS_BUILDER)' 2>/dev/null && how=--no-build-isolation && break; \
	  python=$(PYTHON); done; \
	$$python -m pip wheel --quiet --disable-pip-version-check --no-deps $$how --wheel-dir dist .

clean:
	rm -rf $(VENV) $(PEERS) $(TPU) $(BEAM) $(DOCS) $(READERS) $(NEWEST) runs notebooks site build dist
