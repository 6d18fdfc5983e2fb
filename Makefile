# `make help` lists the targets. Needed: Python 3.11 or later and make; everything else comes from package registries.

BIN := .venv/bin
# The first Python that runs, is new enough and can make virtual environments; or name one: make setup PYTHON=/path/to/python
PYTHON = $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$name -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

.PHONY: help setup demo test lint docs lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST)

setup: .venv/installed  ## .venv with everything, versions and hashes from requirements/dev.txt

demo: setup  ## two services, their outboxes, one illegal message: the whole story on a real Kafka and Postgres
	$(BIN)/outboxd demo

test: setup  ## the whole suite, on servers that it starts itself
	$(BIN)/pytest

lint: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## the generated pages, and the documentation as a site in site/
	$(BIN)/outboxd schema --output configs/schema.json
	$(BIN)/outboxd schema --page --output docs/configuration.md
	$(BIN)/pip install --quiet --require-hashes -r requirements/docs.txt
	$(BIN)/mkdocs build --quiet

lock: setup  ## the newest allowed versions into requirements/, and Kafka's jars into their list
	$(LOCK) --output-file requirements/runtime.txt
	$(LOCK) --extra dev --extra test --output-file requirements/dev.txt
	$(LOCK) --extra docs --output-file requirements/docs.txt
	$(BIN)/python -m outboxd.dev.resolve_jars

clean:  ## remove the environment and everything built; servers' data in .outboxd stays
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# The stamp makes repeated calls instant. Built without isolation: the build tools are locked with the rest.
.venv/installed: requirements/dev.txt pyproject.toml examples/shop/pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later with venv and ensurepip found." \
		"Install one (on Debian: apt install python3-venv) or name it: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e examples/shop
	touch $@
