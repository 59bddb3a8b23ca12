# Two commands do everything on a fresh machine: `make train` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNTIME := $(VENV)/.runtime
DOCS := $(VENV)/.docs
ELSEWHERE := $(VENV)/.elsewhere

.DEFAULT_GOAL := help
.PHONY: help setup train example test test-all lint format docs benchmark clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(RUNTIME) ## Create .venv with everything in it

PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# Not editable: the C core is compiled, and tests see what users get. Any change in it builds it anew (10 seconds).
$(RUNTIME): $(shell find runtime/native runtime/src runtime/CMakeLists.txt runtime/pyproject.toml -type f ! -name '*.pyc') \
		| $(BIN)/python
	@echo "Building lrnets-runtime ..."
	@$(PIP) --force-reinstall --no-deps ./runtime
	@touch $@

$(STAMP): pyproject.toml constraints.txt | $(RUNTIME)
	@echo "Installing lrnets and its tools into $(VENV) (a few minutes the first time) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

RUN := runs/mnist-ternary-quick/0

train: setup ## Train a ternary network for MNIST, from data to a packed file (three to six minutes)
	@$(BIN)/lrnets train mnist-ternary-quick --out $(RUN) $(if $(wildcard $(RUN)/recipe.yaml),--resume)
	@$(BIN)/lrnets export $(RUN)

example: setup ## Train a ternary network on scikit-learn's digits, with the library alone (20 seconds)
	@$(BIN)/python examples/digits.py

test: setup ## Run the tests (five to a dozen minutes on two cores)
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(MARKED)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -c runtime/pyproject.toml runtime/tests

# GPT-2 and ViT are transformers' own, 175 MB that come with the first `make test-all`; `make test` skips them.
$(ELSEWHERE): pyproject.toml | setup
	@$(PIP) --editable '.[dev,elsewhere]'
	@touch $@

test-all: MARKED := -m ''
test-all: $(ELSEWHERE) test ## Run them with the few that take longest, and transformers' models (some minutes more)

lint: setup ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy runtime/src

format: setup ## Put the code into the house style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# Its tools are no part of the set-up: they come with the first `make docs`.
$(DOCS): $(STAMP)
	@echo "Installing what builds the pages ..."
	@$(PIP) --editable '.[docs]'
	@touch $@

docs: setup $(DOCS) ## Build the pages of docs/ into site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html is there; to search as well: $(BIN)/python -m mkdocs serve"

benchmark: setup ## Measure a training step against float32 (keep the machine quiet)
	@$(BIN)/python benchmarks/train_step.py

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
