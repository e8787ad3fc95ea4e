# make demo: set up, run the default workflow, write the report.  make test: set up, run all tests.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
REQUIREMENTS := requirements/lock.txt requirements/example-data.txt pyproject.toml

.PHONY: help setup demo test quick lint docs clean

help:
	@echo "make demo    set up, run the default workflow on all cores, write results/report.zip"
	@echo "make test    set up, run the whole test suite"
	@echo "make quick   the tests that take under three minutes"
	@echo "make lint    ruff, snakefmt and snakemake --lint"
	@echo "make docs    write the generated tables and the rule graph anew"
	@echo "make clean   remove results, logs and checkpoints (not the installation)"

setup: .venv/installed

.venv/installed: $(REQUIREMENTS)
	@case "$(CURDIR)" in *" "*) echo "popflow cannot be installed in '$(CURDIR)': Snakemake does not run from a path with a space. Move the repository to a folder without one." >&2; exit 1;; esac
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else f"popflow needs Python 3.11, and $(PYTHON) is {v[0]}.{v[1]}. Give another one: make PYTHON=python3.11 demo")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/example-data.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

demo: setup
	$(BIN)/python -m snakemake --cores all --rerun-incomplete
	$(BIN)/python -m snakemake --report results/report.zip
	@echo
	@echo "Done. Look at results/figures/, at results/*/evaluation.tsv, and at results/report.zip"
	@echo "(unzip it and open report.html). Your own data: README.md, 'Your data'."

test: setup
	$(BIN)/python -m pytest

quick: setup
	$(BIN)/python -m pytest -m "not slow"

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/python -m snakemake --lint

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf results logs checkpoints
