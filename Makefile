# Five targets; each uses the virtual environment in .venv and makes it where it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test lint docs bench

install: .venv/installed  ## a virtual environment with everything for development

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,docs]'
	touch $@

test: install  ## the first tier of tests
	$(BIN)/python -m pytest -n 2

lint: install  ## linters, types, the order of rooms
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install  ## the site, in docs/_build
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

bench: install  ## speed of the packet engine
	$(BIN)/python benchmarks/packet_speed.py
