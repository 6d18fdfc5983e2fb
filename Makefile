# `make help` lists the targets. Needed: Python 3.11 or later and make; everything else comes from package registries.

BIN := .venv/bin
BENCH := .venv-bench/bin/python -m bench
# The first Python that runs, is new enough and can make virtual environments; or name one: make setup PYTHON=/path/to/python
PYTHON = $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$name -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

SEEDS = 5000
CHAOS_SEEDS = 1

.PHONY: help setup demo test simulate chaos bench lint docs lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST)

setup: .venv/installed  ## .venv with everything, versions and hashes from requirements/dev.txt

demo: setup  ## two services, their outboxes, one illegal message: the whole story on a real Kafka and Postgres
	$(BIN)/outboxd demo

test: setup  ## the whole suite in two processes, on servers that they start themselves
	$(BIN)/pytest --numprocesses=2 --dist=loadfile

simulate: setup  ## whole pipelines under seeded faults: SEEDS=5000 (or FIRST:LAST); one with its schedule: SEED=17 STORY=relay
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(STORY),--story $(STORY))

chaos: setup  ## everything is killed, frozen and cut off for minutes, on real servers: CHAOS_SEEDS=1,2
	$(BIN)/pytest tests/chaos --verbose --chaos=long --chaos-seeds=$(CHAOS_SEEDS)

bench: .venv-bench/installed  ## rates, latency and CPU beside the peers, in some minutes; FULL=1 (about half an hour) writes docs/performance.md too
	$(BENCH) relay $(if $(FULL),--output bench/results/relay.json,--short)
	$(BENCH) consumer $(if $(FULL),--output bench/results/consumer.json,--short)
	$(if $(FULL),$(BENCH) table bench/results/*.json --write docs/performance.md)

lint: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## the generated pages, and the documentation as a site in site/
	$(BIN)/outboxd schema --output configs/schema.json
	$(BIN)/outboxd schema --page --output docs/configuration.md
	$(BIN)/python -m helm.reference
	$(BIN)/pip install --quiet --require-hashes -r requirements/docs.txt
	$(BIN)/mkdocs build --quiet

lock: setup  ## the newest allowed versions into requirements/, and Kafka's jars into their list
	$(LOCK) --output-file requirements/runtime.txt
	$(subst pyproject.toml,requirements/build.in,$(LOCK)) --output-file requirements/build.txt
	$(LOCK) --extra dev --extra test --output-file requirements/dev.txt
	$(LOCK) --extra docs --output-file requirements/docs.txt
	$(LOCK) --extra dev --extra bench --output-file requirements/bench.txt
	$(BIN)/python -m outboxd.dev.resolve_jars
	$(BIN)/python -m bench.connect_jars

clean:  ## remove the environment and everything built; servers' data in .outboxd stays
	rm -rf .venv .venv-bench build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# The stamp makes repeated calls instant. Built without isolation: the build tools are locked with the rest.
.venv/installed: requirements/dev.txt pyproject.toml examples/shop/pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later with venv and ensurepip found." \
		"Install one (on Debian: apt install python3-venv) or name it: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e examples/shop
	touch $@

# What is measured, and its peers, in an environment of their own: no test tool beside it, and no peer beside the tests.
.venv-bench/installed: requirements/bench.txt pyproject.toml
	@.venv-bench/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
