# Everything lives in .venv; each target needs only Python (3.11 or newer) with pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: install demo test test-all lint bench docs build system clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@echo "Installing fedfi, torch and what they need into $(VENV): with torch's CUDA builds, which pip takes by default on"
	@echo "Linux, about 6 GB and some minutes; about 2 GB if your pip is configured for CPU-only torch (see README.md)."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable '.[dev,docs,report,plots,text,flower,he,dp,ot,tensorboard,mlflow]'
	touch $(STAMP)

demo: install
	@echo "Training twenty clients for 60 rounds: about half a minute on two cores."
	rm -rf runs/demo
	$(BIN)/fedfi run examples/digits.toml --out runs/demo

test: install
	@echo "Running the fast tests: a few minutes on two idle cores."
	$(BIN)/python -m pytest

test-all: install
	$(BIN)/python -m pytest -m 'not system'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install $(BENCH)/.installed
	$(BIN)/python -m benchmarks

# What fedfi is compared with wants other versions of some packages, so it gets an environment of its own on top of
# $(VENV), whose torch it shares. Without it, those comparisons are reported as not run.
$(BENCH)/.installed: $(STAMP)
	$(BIN)/python -m venv $(BENCH)
	echo '*' > $(BENCH)/.gitignore
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(BENCH)/shared.pth
	mv $(BENCH)/shared.pth "$$($(BENCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	-$(BENCH)/bin/python -m pip --disable-pip-version-check --quiet install --no-warn-conflicts --editable '.[bench]' \
		&& touch $@

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

# Sdist and wheel in dist/; the wheel is made of the sdist, so what that lacks is missing at once.
build: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# Real processes and networks; those of Flower need the environment of the benchmarks, which has Flower.
# FEDFI_KILLS=20 make system kills twenty times instead of four.
system: install $(BENCH)/.installed
	$(BENCH)/bin/python -m pytest -m system

clean:
	rm -rf $(VENV) $(BENCH) site build dist
