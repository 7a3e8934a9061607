# The one front door: continuous integration runs these same commands (.ci/run).
# Each target first makes .venv from pyproject.toml and constraints.txt, if it is missing or older than they are.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/python -m pytest
# What `make demo` saves to: a directory (file), or a bucket of a server of its own (s3).
STORE ?= file
SLOW := (slow or service) and not gpu
# Processes that share the tests, file by file in the order of collection: `make test WORKERS=8` on a larger machine.
WORKERS ?= 2
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What of tests/ counts further in a proof, or says how long something took: a directory, or a file (relay/test_kills.py), a page.
PARTS ?= buckets crash drill flows formats oracle pipeline producers protocol relay replica restore

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Nothing here may call home, and a server that a later target starts inherits it.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1

.PHONY: help demo test test-slow proof bench oracle catalogue lint format clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## Run the whole pipeline on a small replica that is really killed, and refuse its damaged copies (STORE=s3: in a bucket).
	$(BIN)/lastgood demo --store $(STORE)

test: $(STAMP) ## The fast tests.
	$(PYTEST) -m "not slow and not gpu and not service" $(SHARED)

# The longest slow test runs 16 ranks on 2 cores, hence the larger limit a test.
test-slow: $(STAMP) ## The slow tests and those that need Debian programs.
	$(PYTEST) -m "$(SLOW)" --timeout=1500 --durations=15 $(SHARED)

# The page is written even when a test fails: a proof that did not hold is worth reading too.
proof: $(STAMP) ## The slow tests that count, at full counts (hours); what they print is kept in docs/proof/ (PARTS="crash drill").
	mkdir -p docs/proof; failed=; at="$$(git describe --always --dirty --exclude='*')"; \
	for part in $(PARTS); do \
	  { printf '# Proof: tests/%s\n\nWhat `make proof PARTS=%s` printed on %s at commit %s, on %s cores with %s.\n\n```text\n' \
	      "$$part" "$$part" "$$(date -u +%F)" "$$at" "$$(nproc)" "$$($(BIN)/python -V)"; \
	    status=0; \
	    LASTGOOD_PROOF=1 $(PYTEST) "tests/$$part" -m "$(SLOW)" --timeout=14400 --no-header --color=no --tb=short -v || status=$$?; \
	    printf '```\n'; exit $$status; } | tee "docs/proof/$$(basename "$${part//\//-}" .py).md" || failed="$$failed $$part"; \
	done; \
	test -z "$$failed" || { echo "make: did not hold:$$failed" >&2; exit 1; }

bench: $(STAMP) ## Measure against peers, in pairs, and print the table of ratios.
	$(BIN)/python -m benchmarks

# It takes a quarter of an hour. Names of specimens measure those alone: make oracle ONLY="deepspeed_3 torch_dcp".
oracle: $(STAMP) ## Damage real checkpoints and write down what their own loaders do: formats/oracle.json, docs/oracle.md.
	$(BIN)/python -m tests.oracle $(ONLY)

# LASTGOOD_CORPUS names a directory with checkpoints that the frameworks wrote already; else they write them first.
catalogue: $(STAMP) ## Count what each entry of the damage catalogue raises, and false alarms: docs/catalogue.md; fails with a miss.
	$(BIN)/python -m tests.catalogue

lint: $(STAMP) ## Style, types and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Rewrite what ruff can put right by itself.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## Remove the environment and everything that tools left behind.
	rm -rf .venv .bench build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Touched last, so that an interrupted installation is begun again.
$(STAMP): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'make: Python 3.11 or newer is needed, found: $(or $(PYTHON),none)' >&2; \
	  echo 'hint: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	touch $@
