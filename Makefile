# Every target sets up what it needs in .venv, which depends on pyproject.toml alone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
IMAGES ?=
WORKERS ?= 2
SECONDS ?= 600
SEED ?=

.PHONY: install demo test lint types soak bench clean

install: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,proctitle]'
	touch $@

$(VENV)/.installed-ml: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $@

demo: $(VENV)/.installed-ml
	$(BIN)/python examples/pictures/demo.py $(if $(IMAGES),--images "$(IMAGES)")

test: $(VENV)/.installed-ml
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) tests
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Random faults for a while, then the ledger; SEED repeats a run.
soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/.installed
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/latency.py
	$(BIN)/python bench/recovery.py
	$(BIN)/python bench/fairness.py

clean:
	rm -rf $(VENV) .demo .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache
