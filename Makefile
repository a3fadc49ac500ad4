# Each target makes the environment (.venv) itself when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# pip's own wheel folders, if it has any, are given to uv too, which does not read pip's settings
LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)

.PHONY: demo test lint bench clean

demo: $(STAMP)  ## answer questions about a drawn scene from 64 of 576 visual tokens
	$(BIN)/vlprune demo

test: lint  ## lint, types and tests
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## time selection and the pruned model on this machine
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/pocket.py

clean:
	rm -rf .venv

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -e ".[dev]"
	touch $(STAMP)
