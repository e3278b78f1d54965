# Set-up included: every target makes .venv and installs what it needs, the first time.
# PYTHON=... picks the interpreter (3.11 or newer), VENV=... the folder. RABBITMQ=3.10, 4.0, 4.3 ...
# picks the RabbitMQ that tests and measurements start.

export PYTHON ?=
export VENV ?= .venv
URL ?= embedded://
SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help demo pipeline test check bench bench-spark soak fuzz mutation docs clean

help: ## Print this
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 15

demo: ## Run examples/flights.py; URL=amqp://... for a broker other than the built-in one
	@scripts/venv
	@echo "==> examples/flights.py on $(URL)"
	@"$(VENV)/bin/python" examples/flights.py --url "$(URL)"

pipeline: ## Flights through Spark, the broker and its event log: does it add up? Picture in build/
	@scripts/venv spark
	@"$(VENV)/bin/python" -m spark.pipeline flights --plot build/pipeline/flights.png

test: ## Run every test, on Debian's RabbitMQ and on the newest, where they are or can be installed
	@scripts/venv test
	@scripts/install-servers
	@scripts/test

check: ## Format, lint, types, architecture, unit and document tests: before a commit
	@scripts/check

bench: ## Measure all that the documents show; SECTIONS="clients cpu" for some of it
	@scripts/venv test
	@scripts/install-servers
	@"$(VENV)/bin/python" -m bench $(SECTIONS)

bench-spark: ## Measure what Spark and the event log cost, as ratios; JSON in build/
	@scripts/venv spark
	@"$(VENV)/bin/python" -m bench.spark

soak: ## Kills and faults of every kind under load: is anything lost? SECONDS=600 SEEDS=... ONLY=...
	@scripts/soak "$(SECONDS)" $(ONLY)

fuzz: ## Random input for all that reads from outside; what failed is kept in .fuzz/. SECONDS=600
	@scripts/fuzz "$(SECONDS)"

mutation: ## Small faults put into the code, one by one: does a test fail? MUTANTS="broker_client.pool*"
	@scripts/mutation $(MUTANTS)

docs: ## The documents as a site, in build/site; strict, and nothing in it is loaded from elsewhere
	@scripts/venv test
	@NO_MKDOCS_2_WARNING=1 "$(VENV)/bin/python" -m mkdocs build --quiet

clean: ## Remove .venv, caches and builds
	rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
