# The few commands that people need; `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# the tests start hundreds of Python processes: compiled anew in each, our own modules alone take longer than their work
unexport PYTHONDONTWRITEBYTECODE

# The longest are begun first, so that none is left alone at the end.
TESTS := tests/faults tests/spark tests/integration tests/property tests/unit
WORKERS := 3
SPREAD := --dist loadfile --no-loadscope-reorder

.PHONY: help setup unit test containers fmt lint docs demo requirements clean

help: ## List these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

setup: .venv/.installed ## Make .venv with everything in it, from hashed requirements

# What is imported is compiled then: most of 5,000 files never is. Debug information takes the C compiler a third longer;
# CFLAGS stand in place of Python's own, so those come first: without -O3 all is four times as slow. Our own package is
# compiled beside the installation of the others: neither can use two processors.
.venv/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; make setup PYTHON=python3.12 names another")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	CFLAGS="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("CFLAGS"))') $$CFLAGS -g0" $(PIP) --no-deps --editable . & compiled=$$!; \
	trap "kill $$compiled" INT TERM; \
	$(PIP) --no-compile --require-hashes -r requirements.txt; installed=$$?; \
	wait $$compiled && exit $$installed
	@touch $@

test: setup ## Run all tests but those in containers; the first run fetches Kafka, OpenSearch and Spark's connectors
	$(BIN)/pytest -n $(WORKERS) $(SPREAD) --durations=25 $(TESTS)

containers: setup ## Run the tests in containers, and some of the others over them; builds all images from packages, needs root or an engine
	docker/local-images >/dev/null && trap 'docker/local-images --stop' EXIT && $(BIN)/pytest -n 2 $(SPREAD) \
		--servers containers --durations=15 tests/spark/test_end_to_end.py tests/containers \
		tests/integration/test_security.py tests/integration/test_http_security.py

unit: setup ## Run the tests that need no servers
	$(BIN)/pytest -q tests/unit

fmt: setup ## Format, sort imports and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/generate.py
	$(BIN)/lint-imports

docs: setup ## Write the reference pages from the code and build the site in build/site
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --strict --config-file mkdocs.yml

demo: setup ## Everything on this machine, with a demo shop
	$(BIN)/tailrace dev up

requirements: setup ## Write requirements.txt, the images' and jars.lock from pyproject.toml and jar_sets.py (needs uv)
	uv pip compile --quiet --universal --generate-hashes --all-extras --no-header --no-annotate pyproject.toml --output-file requirements.txt
	uv pip compile --quiet --universal --generate-hashes --extra registry --extra traces --no-header --no-annotate pyproject.toml --output-file docker/requirements.txt
	uv pip compile --quiet --universal --generate-hashes --extra registry --extra traces --extra views --no-header --no-annotate pyproject.toml --output-file docker/requirements-spark.txt
	$(BIN)/python -m tailrace.cdc.launch.jar_lock

clean: ## Delete what was made here: the venv and caches (not the demo: tailrace dev down --purge)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
