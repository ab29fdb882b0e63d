# One command each; `make help` lists them. What they install is in .ci/setup.
PYTHON = .venv/bin/python
TEST = cron web metrics postgresql test
CODE = taskserver worker.py client.py passenger_wsgi.py tests bench examples packaging .ci/lock.py
# More arguments, for example: make test ARGS="-k claim -x"
ARGS =
# Most of a test's time is waiting: for processes, leases, servers. With ARGS="-n 0" all run in one process.
PARALLEL = -n 5 --dist loadgroup
# Of another interpreter; and without bytecode each process of the tests would compile every file again.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONOPTIMIZE PYTHONDONTWRITEBYTECODE VIRTUAL_ENV
.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile) docs
help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
venv: ## make .venv with what taskserver needs at run time
	@.ci/setup venv
venv-test:
	@.ci/setup venv $(TEST)
packages: venv
	@.ci/setup packages
demo: venv ## run the demonstration: SQLite, no server, nothing to configure
	@$(PYTHON) examples/demo/run.py $(ARGS)
bundle: ## write a folder and a zip to upload, which need only python3: dist/; more with ARGS="--web --metrics --postgresql"
	@.ci/setup venv cron $(patsubst --%,%,$(filter --web --metrics --postgresql,$(ARGS)))
	@$(PYTHON) packaging/bundle.py $(ARGS)
release: ## write what is published of a tag vX.Y.Z, and try each: sdist, wheel, bundles, hashes: dist/
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
	@.ci/setup galera
	@$(PYTHON) -m pytest -m "not long" $(PARALLEL) $(ARGS) || [ $$? = 5 ]
	@$(PYTHON) -m pytest -m long $(ARGS)
	@for each in mysql postgresql; do $(PYTHON) -m pytest -m "not long" --on $$each $(PARALLEL) $(ARGS) tests/worker tests/cli || exit; done
test-servers: venv-test ## run the store's tests on every other MySQL, MariaDB and PostgreSQL that can be had here
	@$(PYTHON) -m tests.contract.other_servers $(ARGS)
soak: packages venv-test ## work for hours under cron, with faults, on each database; ARGS="--hours 2"
	@[ -e /usr/lib/*/faketime/libfaketime.so.1 ] || .ci/setup debian faketime
	@$(PYTHON) -m tests.faults.soak $(ARGS)
chaos: packages venv-test ## kill, freeze and cut off workers, database and network for some minutes
	@$(PYTHON) -m tests.faults.chaos $(ARGS)
test-galera: packages venv-test ## kill, freeze and part the nodes of a Galera cluster for some minutes
	@.ci/setup galera
	@$(PYTHON) -m tests.faults.galera $(ARGS)
lint: ## check style, formatting and types
	@.ci/setup venv $(TEST) dev
	@$(PYTHON) -m ruff check $(CODE)
	@$(PYTHON) -m ruff format --check $(CODE)
	@$(PYTHON) -m mypy --strict $(CODE)
format: ## format the code and repair what ruff can
	@.ci/setup venv $(TEST) dev
	@$(PYTHON) -m ruff check --fix $(CODE)
	@$(PYTHON) -m ruff format $(CODE)
bench: packages ## measure, on a private MariaDB with durable settings
	@.ci/setup venv $(TEST)
	@$(PYTHON) -m bench $(ARGS)
bench-peers: packages ## measure beside other queues, for over an hour; into docs/benchmarks.md; a try: ARGS="--quick --only huey"
	@.ci/setup venv $(TEST)
	@$(PYTHON) -m bench.peers $(ARGS)
bench-growth: packages ## measure with 10,000 to 10,000,000 rows, for some hours, and go on if interrupted; into docs/benchmarks.md; a try: ARGS=--quick
	@.ci/setup venv $(TEST)
	@$(PYTHON) -m bench.growth $(ARGS)
docs: ## make a site of the documents, with search: dist/site
	@.ci/setup venv $(TEST) docs
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
schema: venv ## write schema.sql and schema.postgresql.sql from taskserver/stores/schema.py
	@$(PYTHON) -c "from taskserver.stores.schema import script; print(end=script('mysql'))" >schema.sql
	@$(PYTHON) -c "from taskserver.stores.schema import script; print(end=script('postgresql'))" >schema.postgresql.sql
update: ## renew requirements.lock: the newest packages that pyproject.toml allows, with their hashes
	@.ci/setup venv update
	@$(PYTHON) .ci/lock.py
clean: ## remove .venv, servers and caches; settings and var/ stay
	@rm -rf .venv .servers .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
