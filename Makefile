# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore -c constraints.txt

# Tests start this program some hundred times: what Python compiles of it is kept, whatever the shell says.
test test-core test-all: export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-core test-all check types docs dist clean

$(VENV)/core: setup.cfg setup.py rooms.py constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("KVFerry needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing KVFerry, pandas, pyarrow, matplotlib and what else it needs into $(VENV): half a minute to three ..."
	@$(PIP) -e '.[report]'
	@touch $@

$(VENV)/dev: $(VENV)/core
	@echo "installing what tests, checks and pages need ..."
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/torch: $(VENV)/dev
	@echo "installing torch and transformers for real runs: a gigabyte or more ..."
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[torch]'
	@touch $@

demo: $(VENV)/core
	@echo "kvferry compare quickstart --output out/demo"
	@$(BIN)/kvferry compare quickstart --output out/demo
	@$(BIN)/kvferry report out/demo --output out/demo/report.html

test: $(VENV)/torch
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not long"

test-core: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not long and not torch"

test-all: $(VENV)/torch
	$(BIN)/python -m pytest -n auto --dist worksteal --hypothesis-profile=thorough

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory types
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# build/typing is the house as it is imported; rooms.py says why.
types: $(VENV)/dev
	@$(BIN)/python rooms.py
	cd build/typing && $(abspath $(BIN))/lint-imports --no-logo --config ../../pyproject.toml
	$(BIN)/mypy -p kvferry

# A wheel and a source archive in dist/; the wheel is installed into an environment of its own and run.
dist: $(VENV)/dev
	@rm -rf dist build/dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@$(PYTHON) -m venv build/dist
	@build/dist/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd build/dist && bin/kvferry run quickstart --output out >/dev/null
	@ls dist

docs: $(VENV)/dev
	$(BIN)/python studies/advice_cases.py docs/advice.md --picture docs/pictures/advice-map.png
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "the documentation is in build/site/index.html; its search wants a server: $(PYTHON) -m http.server -b 127.0.0.1 -d build/site"

clean:
	rm -rf $(VENV) build dist out
