# One command each; `make help` lists them. What they install is in .ci/setup.

SHELL := /bin/sh
PYTHON = .venv/bin/python
# What is checked: of these, whatever is there.
CODE = $(wildcard taskserver worker.py client.py passenger_wsgi.py tests bench examples packaging .ci/requirements.py .ci/install.py .ci/lock.py)
# Writes the tables of the kind of database that follows.
SCHEMA = $(PYTHON) -c "import sys; from taskserver.stores.schema import script; sys.stdout.write(script(sys.argv[1]))"
# More arguments, for example: make test ARGS="-k claim -x"
ARGS =
# Most of a test's time is waiting: for processes, leases, servers. With ARGS="-n 0" all run in one process.
PARALLEL = -n 5 --dist loadgroup

# Another interpreter's settings must not leak into the virtual environment. Without bytecode each process of the tests
# would prepare every test file anew.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONOPTIMIZE PYTHONDONTWRITEBYTECODE VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help venv venv-test venv-dev venv-bench update packages demo bundle release test test-unit test-sqlite test-long test-servers chaos lint format bench screenshots clean

help: ## list the commands
	@sed -n 's/^\([a-z.-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

venv: ## create .venv with what taskserver needs at run time
	@.ci/setup venv

venv-test:
	@.ci/setup venv cron web metrics postgresql test

venv-dev:
	@.ci/setup venv cron web metrics postgresql test dev

venv-bench:
	@.ci/setup venv cron web metrics postgresql test bench

packages:
	@.ci/setup packages

demo: venv ## run the demonstration: SQLite, no server, nothing to configure
	@$(PYTHON) examples/demo/run.py $(ARGS)

bundle: ## write a folder and a zip to upload, which need nothing but python3: dist/; more with ARGS="--web --metrics --postgresql"
	@.ci/setup venv cron $(patsubst --%,%,$(filter --web --metrics --postgresql,$(ARGS)))
	@$(PYTHON) packaging/bundle.py $(ARGS)

release: ## write what is published of a tag vX.Y.Z: sdist, wheel, bundles, hashes, each tried in an empty environment: dist/
	@.ci/setup venv cron web release
	@$(PYTHON) packaging/release.py

test: packages venv-test ## run the tests on SQLite, a private MariaDB and a private PostgreSQL
	@$(PYTHON) -m pytest -m "not long" $(PARALLEL) $(ARGS)

test-unit: venv-test ## run the tests that need no database, in seconds
	@$(PYTHON) -m pytest $(ARGS) tests/unit

test-sqlite: venv-test ## run the tests that need no server, in a few minutes
	@$(PYTHON) -m pytest -m "not long and not server" $(PARALLEL) $(ARGS)

# Code 5: ARGS="-k …" chose none of them.
test-long: packages venv-test ## run all the tests, the long ones too, and those of the worker and the commands on the servers
	@$(PYTHON) -m pytest -m "not long" $(PARALLEL) $(ARGS) || [ $$? = 5 ]
	@$(PYTHON) -m pytest -m long $(ARGS)
	@for each in mysql postgresql; do $(PYTHON) -m pytest -m "not long" --on $$each $(PARALLEL) $(ARGS) tests/worker tests/cli || exit; done

test-servers: venv-test ## run the store's tests on every other MySQL, MariaDB and PostgreSQL that can be had here
	@$(PYTHON) -m tests.contract.other_servers $(ARGS)

lint: venv-dev ## check style, formatting and types
	@$(PYTHON) -m ruff check $(CODE)
	@$(PYTHON) -m ruff format --check $(CODE)
	@$(PYTHON) -m mypy --strict $(CODE)

format: venv-dev ## format the code and repair what ruff can
	@$(PYTHON) -m ruff check --fix $(CODE)
	@$(PYTHON) -m ruff format $(CODE)

chaos: packages venv-test ## kill, freeze and cut off workers, database and network for some minutes
	@$(PYTHON) -m tests.faults.chaos $(ARGS)

bench: venv-bench packages ## measure, on a private MariaDB with durable settings
	@$(PYTHON) -m bench $(ARGS)

update: ## renew requirements.lock: the newest packages that pyproject.toml allows, with their hashes
	@.ci/setup venv update
	@$(PYTHON) .ci/lock.py

screenshots: packages venv-test ## take pictures of the status page, in the widths and colours that people use
	@$(PYTHON) -m tests.web.screenshots $(ARGS)

# The two files at the top, from the schema; tests/unit/test_structure.py compares them.
schema.sql: KIND = mysql
schema.postgresql.sql: KIND = postgresql
schema.sql schema.postgresql.sql: taskserver/stores/schema.py taskserver/stores/tables.py
	@$(SCHEMA) $(KIND) >$@.new && mv $@.new $@

clean: ## remove .venv, servers and caches; settings and var/ stay
	@rm -rf .venv .servers .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
