# `make demo`, `make test`, `make test-exhaustive` and `make docs` need only Python >= 3.11 and make; each
# makes .venv from constraints.txt first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# pip compiles nothing: of torch, transformers and the others most modules are never imported, and those that
# are get compiled then, once.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test fast-tests test-exhaustive lint docs results dist clean

demo: $(VENV)/.ready-cli
	$(BIN)/nadaraya demo

# mypy, which takes a minute of one core, beside the tests.
test: $(VENV)/.ready-test
	$(MAKE) --no-print-directory --jobs=2 fast-tests lint

fast-tests: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# What `make test` leaves out: whole grids, compilations ahead of time, the site, scripts run as commands.
test-exhaustive: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready-docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# Wheel and sdist in dist/; the version is that of src/nadaraya/__init__.py.
dist: $(VENV)/.ready-test
	$(BIN)/python -m build

# Tables and drawings of experiments/results and tables of the pages on results, from the JSON.
STUDIES := banks=banks related=related related=related-3000 beyond=beyond controls=controls gka=gka-characters gka=gka-bytepairs seconds=seconds passes=passes passes-10000=passes-10000 context-1024=context-1024 parts=parts
FIGURES := kernel-bank-losses=papers bump-control=wrapped bump-null=shuffled
results: $(VENV)/.ready-test
	for each in $(STUDIES); do $(BIN)/nadaraya study experiments/studies/$${each%=*}.yaml --summarise \
		--out experiments/results/studies/$${each#*=} || exit; done
	for each in $(FIGURES); do $(BIN)/nadaraya reproduce $${each%=*} --scale cpu --summarise \
		--out experiments/results/$${each#*=} || exit; done
	$(BIN)/nadaraya search dickens --summarise --out experiments/results/search
	for name in bump_heights controls inside findings related; do $(BIN)/python experiments/$$name.py || exit; done
	$(BIN)/python experiments/pruning.py --summarise --out experiments/results/pruning
	$(BIN)/python experiments/write_pages.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nadaraya needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# One stamp an extra: editing pyproject.toml or constraints.txt installs anew.
$(VENV)/.ready-%: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .ruff_cache .mypy_cache
