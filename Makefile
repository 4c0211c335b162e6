# Conventional targets. Each sets up first; `make setup` alone is idempotent.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Half of the time a test waits, so there are two processes to a core. The tests of a file share its servers. Slow files
# come first by name.
PARALLEL := --numprocesses 4 --dist loadfile --no-loadscope-reorder
COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate --quiet
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# If an image sets it, each of the 200 processes of the tests compiles the whole tree: 0.5 s.
unexport PYTHONDONTWRITEBYTECODE

ENVIRONMENTS := $(basename $(notdir $(wildcard tests/integrations/environments/*.in)))
# The extras that an environment has: those of the line "# extras:" of its .in file.
EXTRAS_OF := sed -n 's/^\# extras: //p' tests/integrations/environments/$$name.in
# The Python that it needs if that is not the project's: "# python: 3.12". Without it the environment is left out.
PYTHON_OF := sed -n 's/^\# python: //p' tests/integrations/environments/$$name.in

.PHONY: all setup run test test-long test-integrations test-upstream test-snippets isolation schema screenshots typescript lint docs format lock clean help
all: lint test test-long

help:            ## list the targets
	@grep -E '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

setup: $(STAMP)  ## a virtual environment with the pinned dependencies

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing pinned dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $(STAMP)

run: setup       ## start the whole stack and ingest a conversation (ONCE=1 exits when done)
	@$(BIN)/aftermind demo $(if $(ONCE),--once)

test: setup      ## the test suite, on real servers (10 minutes on two cores)
	@$(BIN)/python -m pytest -m "not long" $(PARALLEL) $(ARGS)

test-long: setup ## tests with many processes or long waits: upgrades, backups, the wheel, stacks, rolling restarts (10 minutes)
	@$(BIN)/python -m pytest -m long $(PARALLEL) $(ARGS)

test-integrations: $(ENVIRONMENTS:%=.integrations/%/.installed)  ## tests of each integration with its framework, in environments of their own (10 minutes)
	@for name in $(ENVIRONMENTS); do echo "$$name:"; \
	  [ -x .integrations/$$name/bin/python ] || { echo "left out: no Python $$($(PYTHON_OF)) is installed"; continue; }; \
	  .integrations/$$name/bin/python -m pytest -q -o filterwarnings=default \
	    $$(for extra in $$name $$($(EXTRAS_OF)); do ls tests/integrations/test_$$(echo $$extra | tr - _).py 2>/dev/null; done) $(ARGS) || exit 1; done

ENVIRONMENT ?= $(SUITE)
test-upstream: .integrations/$(ENVIRONMENT)/.installed  ## a framework's own tests: SUITE=langgraph FROM=CHECKOUT of its repository
	@.integrations/$(ENVIRONMENT)/bin/python tests/integrations/upstream/run.py $(SUITE) $(FROM)
	@$(BIN)/python docs/generate.py

test-snippets: .integrations/$(SUITE)/.installed  ## the snippets of a framework's documentation: SUITE=upsonic FROM=FOLDER of its pages
	@PYTHONPATH=. $(BIN)/python tests/integrations/upstream/snippets.py $(SUITE) $(FROM)
	@$(BIN)/python docs/generate.py

# uv, and pip where uv cannot reach the index.
.integrations/%/.installed: tests/integrations/environments/%.txt | setup
	@name=$*; wanted=$$($(PYTHON_OF)); python=$(BIN)/python; \
	if [ -n "$$wanted" ]; then \
	  for python in python$$wanted $$HOME/.pyenv/versions/$$wanted*/bin/python none; do $$python -c "" 2>/dev/null && break; done; fi; \
	if [ $$python = none ]; then echo "Leaving $* out: no Python $$wanted is installed"; exit; fi; \
	echo "Installing $* into .integrations/$* ..."; \
	$(BIN)/uv venv --quiet --clear --seed --python $$python .integrations/$* && \
	{ $(BIN)/uv pip install --quiet --python .integrations/$*/bin/python --require-hashes --requirement $< \
	  || .integrations/$*/bin/python -m pip install --quiet --require-hashes --requirement $<; } && \
	{ $(BIN)/uv pip install --quiet --python .integrations/$*/bin/python --no-deps --editable . \
	  || .integrations/$*/bin/python -m pip install --quiet --no-deps --editable .; } && \
	touch $@

isolation: setup ## 10,000 random calls of two tenants over the whole public API (2 minutes)
	@ISOLATION_CALLS=10000 $(BIN)/python -m pytest --timeout 900 tests/fundamentals/test_two_tenants.py

schema: setup    ## Schemathesis over the HTTP API, 200 requests per operation (10 minutes)
	@SCHEMA_EXAMPLES=200 $(BIN)/python -m pytest --timeout 900 --numprocesses 2 tests/integration/web/test_schema.py

lint: setup      ## ruff, mypy strict, import contracts; reports long files, banned words and forwarding functions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@git ls-files '*.py' | xargs wc -l | awk '$$2 != "total" && $$1 > 300 {print "long file:", $$1, $$2}' | sort -k3nr
	@$(BIN)/python tools/banned_words.py
	@$(BIN)/python tools/forwarding.py --count

docs: setup      ## the documentation as a site in site/, strictly: a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: setup    ## format the code
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

typescript: setup  ## the types of the TypeScript client, from the OpenAPI document
	@$(BIN)/python tools/typescript_schema.py

screenshots: setup  ## every screen, light and dark, into docs/screens
	@SCREENSHOTS=$(CURDIR)/docs/screens $(BIN)/python -m pytest -q tests/browser/test_every_screen.py -k serious_fault

lock: setup      ## pin again what pyproject.toml asks for
	@$(COMPILE) --python-version 3.11 --extra dev --upgrade -o requirements.lock
	@sed -nE 's/^([A-Za-z0-9_.-]+==.*) .$$/\1/p' requirements.lock > .constraints
	@$(COMPILE) --python-version 3.11 --extra all --constraint .constraints -o requirements-image.lock
	@rm .constraints

lock-integrations: setup  ## pin again what each integration is tested with
	@for name in $(ENVIRONMENTS); do wanted=$$($(PYTHON_OF)); \
	  $(COMPILE) --python-version $${wanted:-3.11} tests/integrations/environments/$$name.in \
	  $$(for extra in $$($(EXTRAS_OF)); do echo --extra $$extra; done) \
	  --upgrade -o tests/integrations/environments/$$name.txt || exit 1; done

clean:           ## caches and the environment; data in .aftermind/ stays
	@rm -rf $(VENV) .integrations .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist build
