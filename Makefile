# Two commands do everything: `make demo` and `make test`. Each makes the virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
CHECK_STAMP := $(VENV)/docs-check/.installed

.PHONY: release-check package-check docs-check demo check test worlds faults integration contract-oldest histories transfers kill-points image bench docs lint types format clean

# pip installs dependency groups from 25.1 on.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	touch $(DOCS_STAMP)

demo: $(STAMP)  ## the main job, stock client and this SDK side by side on the dev broker
	$(BIN)/pulsar-encore demo $(DEMO_ARGS)

# Often a process waits: for the C++ client, a disk or another process.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)

# Tests named `stock` wait for the C++ client in real time; `make test` runs them.
check: $(STAMP)  ## the suites in virtual time: core, wire, letters and consumer, in under a minute
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --ignore-glob='*/test_stock_*.py' \
	    tests/core tests/wire tests/letters tests/consumer $(PYTEST_ARGS)

test: $(STAMP)  ## the fast suite, on all cores: no Java, no Docker
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

worlds: $(STAMP)  ## small worlds, so many events deeper than `make test` walks them
	WORLDS_DEEPER=$(or $(DEEPER),2) $(BIN)/python -m pytest tests/worlds tests/worker/test_worker_core_worlds.py --timeout 0 $(PYTEST_ARGS)

CASES ?= 1-1000
faults: $(STAMP)  ## connections that break, wait and lie: CASES on the dev broker, FAULTS_ARGS="--broker real"
	$(BIN)/python -m tests.harness.faults --cases $(CASES) $(FAULTS_ARGS)

SUITES ?= integration
integration: $(STAMP)  ## the contract suite and friends against a real Pulsar, one for each core
	$(BIN)/python -m pytest --numprocesses auto -o faulthandler_timeout=1200 $(SUITES) $(PYTEST_ARGS)

# The oldest release of pulsar-client that pyproject.toml accepts. The virtual environment has the
# newest one, so `make integration` tests that.
OLDEST := $(shell sed -n 's/.*"pulsar-client>=\([0-9.]*\),.*/\1/p' pyproject.toml)
contract-oldest: $(STAMP)  ## the contract suite of the stock transport, on the oldest pulsar-client
	@if $(BIN)/python -m pip show pulsar-client | grep -Eq '^Version: $(OLDEST)(\.0)*$$'; then \
	    echo "pulsar-client $(OLDEST) is the newest release too: make integration tests it"; \
	else \
	    $(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/oldest \
	        'pulsar-client==$(OLDEST)' && \
	    PYTHONPATH=$(abspath $(VENV))/oldest timeout 900 $(BIN)/python -m pytest \
	        --numprocesses auto integration/contract -k stock $(PYTEST_ARGS); \
	fi

image:  ## our image of Pulsar, for where no registry is reachable (as root, on Debian)
	$(PYTHON) docker/pulsar_image.py

SEEDS ?= 1-500
TRANSPORTS ?= stock native
histories: $(STAMP)  ## random workloads on a real Pulsar, each checked: make histories SEEDS=1-500
	$(foreach transport,$(TRANSPORTS),$(BIN)/python -m tests.harness.histories --seeds $(SEEDS) \
	    --transport $(transport) $(HISTORIES_ARGS) &&) true

transfers: $(STAMP)  ## random histories with transactions, on the development broker: make transfers SEEDS=1-500
	$(BIN)/python -m tests.harness.transfers --seeds $(SEEDS) $(TRANSFERS_ARGS)

# PACKAGE_ARGS="--python /path/to/python3.14" tries one Python, "--cases none state" some cases.
package-check: $(STAMP)  ## a wheel and an sdist, in clean environments of each Python that is found
	$(BIN)/python -m tests.harness.package_check $(PACKAGE_ARGS)

kill-points: $(STAMP)  ## a child killed at each call on the files of a directory (needs strace)
	$(BIN)/python -m tests.harness.kill_points $(KILL_POINTS_ARGS)

# Checks that take too long for each change: an hour or more in all, on a real Pulsar.
release-check: $(STAMP)  ## everything that is slower than .ci/run, before a release
	$(MAKE) package-check PACKAGE_ARGS=--wheels
	$(MAKE) docs-check
	$(MAKE) demo
	$(MAKE) worlds
	$(MAKE) faults CASES=1-1000 FAULTS_ARGS="--broker real"
	$(MAKE) histories SEEDS=1-500
	$(MAKE) transfers SEEDS=1-500
	ENCORE_KILLS=6 $(MAKE) integration SUITES=integration/spark
	$(BIN)/python -m integration.spark.versions 4.0.1 4.1.1
	$(MAKE) bench BENCH_ARGS=--strict

# QUICK=1 takes three minutes; ONLY="throughput latency" runs some; URL= is a broker of your own.
bench: $(STAMP)  ## ratios in one run, as a report in bench-results/; anyone can repeat them
	$(BIN)/python -m integration.benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) \
	    $(if $(URL),--url $(URL)) $(BENCH_ARGS)

# With --fresh-env: pages that did not change give their warnings again.
docs: $(DOCS_STAMP)  ## the documentation, into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --nitpicky --quiet --builder html \
	    --doctree-dir docs/_build/doctrees docs docs/_build/html

# The packages are outside of docs/, where Sphinx and the linters would read their pages.
$(CHECK_STAMP): docs/check/package.json docs/check/package-lock.json
	@command -v npm >/dev/null || { echo "make docs-check needs Node.js 18 or later with npm" \
	    "(on Debian: apt-get install nodejs npm)" >&2; exit 1; }
	mkdir -p $(@D)
	cp docs/check/package.json docs/check/package-lock.json $(@D)
	npm ci --prefix $(@D) --no-audit --no-fund
	touch $@

docs-check: $(CHECK_STAMP) docs  ## each page in headless Chromium, at two widths: layout, search, accessibility
	NODE_PATH=$(abspath $(VENV)/docs-check/node_modules) node docs/check/site_check.cjs docs/_build/html $(CHECK_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.prose

types: $(STAMP)  ## this code, what a user sees of it, and a user's program
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" pyright --verifytypes pulsar_encore --ignoreexternal
	PATH="$(abspath $(BIN)):$$PATH" pyright tests/type_checkers/programs/service.py \
	    tests/type_checkers/programs/typed_messages.py examples/*worker*.py examples/recipe_*.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache docs/_build
