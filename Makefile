# Every target works from a fresh clone: it makes .venv (or VENV=...) first, from requirements.lock, hashes checked.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Empty counts as unset: pytest keeps the modules that it rewrites, which take each worker nine seconds otherwise.
export PYTHONDONTWRITEBYTECODE :=
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter on the PATH that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# Three workers fill two cores, the smallest machine we support: a third of their time they wait for servers.
# Files stay on one worker with those that share its servers; the longest begin first (tests/order.py).
PYTEST_FLAGS ?= -n 4 --dist loadfile --no-loadscope-reorder --hypothesis-profile=whole

.PHONY: help setup test test-long test-all frameworks pages docs tidy demo sim chaos soak compose conformance contract bench bench-step lint schemas lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## Make .venv from the lock file (a second run does nothing)

$(STAMP): requirements.lock pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "setup: no Python 3.11 or newer on the PATH: install one, or run 'make setup PYTHON=/path/to/python3'" >&2; exit 2; }
	@echo "setup 1/3: virtual environment and installer ($$($(PYTHON) --version))"
	@[ -x $(BIN)/python ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/installer.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/installer.txt
	@echo "setup 2/3: packages from requirements.lock, hashes checked"
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes --compile-bytecode -r requirements.lock
	@echo "setup 3/3: refold itself, editable"
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --quiet -e .
	@$(BIN)/python -m compileall -q services
	@touch $@

# The tests of a room of services/refold, and the contract suites that it touches.
core := core golden/test_golden.py contract/test_cloudevents.py contract/test_asyncapi.py fuzz
engine := planner approval archive recovery runtime kafka security sim contract
sdk := sdk model examples incident
testing := sdk examples forks
contrib := contrib mcp files
client := cli evidence golden contract/test_telling.py contract/test_workers.py
console := gateway pages projections insights telemetry contract/tables
lab := forks evidence benchmarks
cli := cli golden docs
dev := embedded packaging compose

test: setup ## Run the test suite (ROOM=console: the tests of one room of services/refold)
	@[ -z "$(ROOM)" ] || [ -n "$($(ROOM))" ] || { echo "test: $(ROOM) is no room of services/refold" >&2; exit 2; }
	$(BIN)/pytest $(PYTEST_FLAGS) $(addprefix tests/,$($(ROOM)))

test-long: setup ## Run what make test leaves out: more of the tests on real servers
	$(BIN)/pytest $(PYTEST_FLAGS) -m long

# `python3.12` may be a shim that runs nothing, so each one is asked what it is; those of pyenv and uv need no PATH.
test-all: setup ## Run it on every Python from 3.11 to 3.13 that is here, each in .venvs/VERSION
	@for version in 3.11 3.12 3.13; do found=; \
		for python in python$$version ~/.pyenv/versions/$$version.*/bin/python ~/.local/share/uv/python/cpython-$$version.*/bin/python; do \
			"$$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2>/dev/null && { found="$$python"; break; }; \
		done; \
		if [ -z "$$found" ]; then echo "test-all: no Python $$version here"; continue; fi; \
		echo "test-all: Python $$version, $$found"; \
		$(MAKE) --no-print-directory $(or $(TARGET),test) VENV=.venvs/$$version PYTHON="$$found" || exit 1; \
	done

# Of the lock only pydantic-ai is moved, and what the newest of it needs; the index is asked, whatever a cache says.
NEWEST := .venvs/newest
frameworks: ## Run the tests of pydantic-ai on its newest release, in .venvs/newest (the lock has the oldest that will do)
	@$(MAKE) -s --no-print-directory setup VENV=$(NEWEST)
	@$(NEWEST)/bin/uv pip install --python $(NEWEST)/bin/python --no-build-isolation --quiet \
		--refresh-package pydantic-ai-slim --upgrade-package pydantic-ai-slim -e '.[pydantic-ai,pydantic-ai-mcp]' || \
		{ echo "frameworks: the newest pydantic-ai-slim cannot be had: is the network there?" >&2; exit 2; }
	@$(NEWEST)/bin/uv pip list --python $(NEWEST)/bin/python | grep -E '^pydantic-(ai-slim|graph) '
	$(NEWEST)/bin/pytest -n 3 --dist loadfile tests/contrib -k 'not (killed_try or its_square)'

pages: setup ## Test the pages in a browser, and write a picture of each to .ci/pages (PICTURE=1 renews those of the README)
	$(BIN)/pytest tests/pages -m 'pages or not pages'
	$(if $(PICTURE),for look in light dark; do cp .ci/pages/question-$$look.png docs/images/run-$$look.png; done)

docs: setup ## Build the site of the docs into build/site, links checked (OPEN=1 serves it at 127.0.0.1:8000)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/site/mkdocs.yml
	$(if $(OPEN),$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000)

tidy: setup ## Show what must hold of the code, and fail where it does not
	@$(BIN)/python -m tests.tidy.house

demo: setup ## Deploy in five steps, with processes killed on the way (STAY=1 keeps the page of the run open)
	$(BIN)/python -m examples.demo $(if $(STAY),--stay)

sim: setup ## Simulate the platform with a fault at every boundary, then at random; hunt planted bugs; replay random agents
	$(BIN)/python -m tests.simulator
	$(BIN)/python -m tests.sim.bugs
	$(BIN)/python -m tests.sdk.programs --programs 50000 --seed 1000000

chaos: setup ## Kill, stop and wipe real servers and services under load
	$(BIN)/pytest tests/chaos tests/incident tests/projections tests/insights -m campaign

soak: HOURS ?= 8
soak: setup ## Let the chaos campaign run for hours (HOURS=8)
	REFOLD_SOAK=$(HOURS) $(BIN)/pytest tests/chaos -m campaign --timeout 0

compose: setup ## Walk the compose file on Docker: a run, a decision, each container killed, another app, an extra
	$(BIN)/pytest tests/compose -m compose -n 0 -x -s --timeout 1800

conformance: setup ## Have the judges of MCP look at our client, in both eras (needs Node and the network)
	$(BIN)/python -m tests.mcp.conformance

contract: setup ## Start, fold and follow a run from Node, by Confluent's registry client (needs Node, and npm's registry)
	$(BIN)/python -m tests.contract.outside_node

bench: setup ## Measure (PEERS=1: beside its peers; AT="A B": the goals of speed at these checkouts; QUICK=1)
	$(BIN)/python -m benchmarks$(if $(AT),.table --at $(AT))$(if $(PEERS), --peers)$(if $(AT)$(PEERS), --markdown$(if $(QUICK), --quick))

bench-step: setup ## Count the instructions that a step costs planner, executor and relay, and fail where they are more
	$(BIN)/python -m benchmarks.step

lint: setup ## Style, types and the direction of imports
	$(BIN)/ruff check services tests
	$(BIN)/ruff format --check services tests
	$(BIN)/mypy
	$(BIN)/lint-imports

schemas: setup ## Append changed classes as new versions of Avro schemas (CHECK=1 only compares)
	$(BIN)/python -m refold.dev.schemas.export $(if $(CHECK),--check)

lock: setup ## Resolve pyproject.toml into requirements.lock (LOCK_FLAGS=--upgrade moves all)
	$(BIN)/uv pip compile pyproject.toml --all-extras --group contributing --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --output-file requirements.lock --quiet $(LOCK_FLAGS)

clean: ## Remove .venv and what tools left behind
	rm -rf .venv .venvs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .refold
	find services tests -name __pycache__ -type d -prune -exec rm -rf {} +
