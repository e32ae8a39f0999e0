# `make` prints what there is. Everything runs in .venv, which `make setup` makes from requirements.lock.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo serve code-review check format reference test test-failed test-cluster test-redis test-fast kills redis-kills bench lock clean

help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv with everything in it, and .venv/bin/codeq

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codeQ needs Python 3.11 or newer; run: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: setup ## See the whole product at work, with kills, and have it audited, also on Spark; a minute or two
	$(BIN)/codeq demo

serve: setup ## Keep a server running on ./data, on loopback; Ctrl-C stops it
	$(BIN)/codeq serve --dev --data ./data

code-review: setup ## Run examples/code_review with samples, on a Redis of its own (QUEUE=codeq: on codeQ); Ctrl-C stops it
	$(BIN)/python -m examples.code_review all $(QUEUE)

check: setup ## Format, lint, types, imports, style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/tidy

format: setup ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: setup ## Write docs/reference from the code
	$(BIN)/codeq reference --all docs/reference

test: setup ## All tests but those of test-cluster
	$(BIN)/pytest -n 3 -rfEs -m "not cluster"

test-failed: setup ## Those tests again, one after the other, that failed last time
	$(BIN)/pytest --last-failed --last-failed-no-failures none

test-cluster: setup ## The tests with clusters of their own, Spark's and Redis's, and long kills; 13 minutes
	$(BIN)/pytest -m cluster

test-redis: setup ## The tests of server, SDK, worker and command line on servers that store tasks in Redis
	CODEQ_TEST_STORE=redis $(BIN)/pytest -n 2 -m "not cluster" tests/server tests/sdk tests/worker tests/cli

test-fast: setup ## The tests to run while working, in under a minute
	$(BIN)/pytest -n 2 -m "not slow and not spark"

kills: setup ## Kill server, driver and executors 30 times under load, with the lake in a folder and on S3, and compare it with the log
	$(BIN)/python -m tests.system.pipeline_kills --kills 30
	$(BIN)/python -m tests.system.pipeline_kills --kills 30 --store s3

redis-kills: setup ## Kill servers for two minutes, Redis 20 times, and 10 primaries behind a partition, and audit
	$(BIN)/python -m tests.system.redis_kills servers --seconds 120
	$(BIN)/python -m tests.system.redis_kills redis --kills 20
	$(BIN)/python -m tests.system.redis_kills failover --rounds 10

bench: setup ## Measure the engine against raw RocksDB, HTTP against the engine, what a program sees, the priority queue, and Redis against RocksDB
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/http.py
	$(BIN)/python benchmarks/sdk.py
	$(BIN)/python benchmarks/priority.py
	$(BIN)/python benchmarks/redis.py

lock: setup ## Choose the newest versions and write requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-header \
		--no-emit-index-url --no-annotate pyproject.toml -o requirements.lock

clean: ## Remove what was built and measured
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results
