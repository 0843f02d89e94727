# Everything lives in .venv; each target needs only Python (3.11 or newer) with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed

.PHONY: install demo test test-all lint bench docs system clean

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable '.[dev,docs,report,text]'
	touch $(STAMP)

demo: install
	rm -rf runs/demo
	$(BIN)/fedfi run examples/digits.toml --out runs/demo
	@echo "Report: runs/demo/report.html"

test: install
	$(BIN)/python -m pytest

test-all: install
	$(BIN)/python -m pytest -m 'not system'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(PIP) install --editable '.[bench]'
	$(BIN)/python -m benchmarks

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

system: install
	$(BIN)/python -m pytest -m system

clean:
	rm -rf $(VENV) site build dist
