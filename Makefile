# make demo   train a small transformer on this machine, across processes
# make test   the default test suite
# make check  format, lint, types, import rules, lengths
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$p; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS :=

.PHONY: demo test check clean

demo: $(VENV)/installed
	@$(BIN)/dcnr-app demo $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q $(ARGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_lengths.py

# Three ways to an environment with pip: venv; venv without ensurepip, filled by the system's pip; virtualenv.
$(VENV)/ready:
	@if [ -z "$(PYTHON)" ]; then \
		echo "dcnr-app needs Python 3.11 or newer; none was found on the PATH."; \
		echo "  try: sudo apt-get install python3 python3-venv     (Debian, Ubuntu)"; \
		echo "       brew install python@3.12                      (macOS)"; exit 1; fi
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	|| { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) >/dev/null 2>&1 \
		&& $(PYTHON) -m pip --python $(BIN)/python install -q pip >/dev/null 2>&1; } \
	|| { rm -rf $(VENV); $(PYTHON) -m virtualenv -q $(VENV) >/dev/null 2>&1; } \
	|| { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment: its venv or ensurepip module is missing."; \
		echo "  try: sudo apt-get install python3-venv     then run make again"; exit 1; }
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/ready
	@echo "installing dcnr-app into $(VENV) …" >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/ready
	@echo "installing dcnr-app and its test tools into $(VENV) …" >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build dist
