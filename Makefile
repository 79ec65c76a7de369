# make demo: train a small transformer on this machine.   make test: the default test suite.
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3 python; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean python
demo: $(VENV)/.installed
	$(BIN)/dcnr-app demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check dcnr_app tests benchmarks tools
	$(BIN)/ruff check dcnr_app tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_lengths.py

python:
	@if [ -z "$(PYTHON)" ]; then echo "dcnr-app needs Python 3.11 or newer and found none."; echo "  try: sudo apt-get install python3   (macOS: brew install python@3.12)"; exit 1; fi

$(VENV)/bin/python: | python
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); $(PYTHON) -m virtualenv -q $(VENV) 2>/dev/null; } || { rm -rf $(VENV); \
	echo "$(PYTHON) cannot make a virtual environment: venv or ensurepip is missing."; \
	echo "  try: sudo apt-get install python3-venv   (or: $(PYTHON) -m pip install --user virtualenv)"; exit 1; }

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
