# `make demo` and `make test` each set everything up by themselves: Python 3.11+, pip, make and a C++ compiler are enough.
PYTHON ?= python3
BIN := .venv/bin
FUZZ_EXAMPLES ?= 10000

.PHONY: demo test slow fuzz load check lint format docs identity clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,audio,grammar,serve,train]"
	$(BIN)/python -m compileall -q src  # as pip does for other packages; tests start many processes
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready
	$(BIN)/slipstream models pull smollm2-135m
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# What takes long and has shorter siblings in `make test`: more rules and drafters under Triton's interpreter, mostly.
slow: .venv/ready
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

# Random requests against an engine and a server of a tiny model, hours on two cores; `make fuzz FUZZ_EXAMPLES=500` for
# fewer. SLIPSTREAM_SCHEMATHESIS names schemathesis, where it is installed.
fuzz: .venv/ready
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/engines/native/test_hostile.py tests/serve/test_fuzz.py

# A live server under 64 streaming clients for five minutes, and a minute to warm up; see benchmarks/load.py.
load: .venv/ready
	$(BIN)/python benchmarks/load.py

check: .venv/ready lint test

lint: .venv/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_structure.py
	$(BIN)/python docs/make_cli.py --check
	$(BIN)/python docs/make_plans.py --check
	$(BIN)/python tools/check_docs.py

format: .venv/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The site, in site/; docs/cli.md is written again from --help, and parts of docs/plans.md from the plan's nodes.
docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_plans.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# 100 prompts, 128 tokens, greedy and coupled, alone and in a batch, with and without drafts: hours on two cores, resumable.
identity: .venv/ready
	$(BIN)/python benchmarks/identity.py --out benchmarks/results/identity.json

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis
