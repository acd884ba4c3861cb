# tablecast: `make help` lists what can be done. Every target makes its own environment in .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz test-spark test-speed test-wheel dist fixture check bench bench-server bench-spark bench-live bench-edge bench-all compare-load soak edge-sim edge-kill docs console pictures crash crash-server crash-spark live-race live-storm java mosquitto lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tablecast needs Python 3.11 or newer; set PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@echo "making the environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

java:
	@tools/ensure-java

mosquitto:
	@tools/ensure-mosquitto

demo: $(READY) ## the main job end to end; on a terminal the server stays up, with its console to look at
	@tools/ensure-java 2>/dev/null || true
	@$(BIN)/tablecast demo $(ARGS)

test: $(READY) java mosquitto ## run the tests (but for the longest with Spark: make test-spark)
	@tools/ensure-chromium || true
	@$(BIN)/python -m pytest -n 4 -q -m "not long and not speed" $(ARGS)

fuzz: $(READY) java mosquitto ## new examples for every property test, for 10 minutes or FOR=seconds
	@end=$$((SECONDS + $(or $(FOR),600))); while [ $$SECONDS -lt $$end ]; do seed=$$RANDOM$$RANDOM; \
	  $(BIN)/python -m pytest -n 2 -q -m "hypothesis and not long and not speed" --hypothesis-profile=fuzz --hypothesis-seed=$$seed $(ARGS) || exit; done

test-spark: $(READY) java ## all tests with Spark, also those that kill programs and clusters
	@$(BIN)/python -m pytest -q tests/spark $(ARGS)

test-speed: $(READY) ## the tests that judge speed, one by one: for a quiet machine
	@$(BIN)/python -m pytest -q -m speed $(ARGS)

test-wheel: $(READY) ## build the wheel, install it into a fresh environment (needs a package index), and use it; make demo from a clone
	@$(BIN)/python -m pytest -q tests/packaging $(ARGS)

dist: $(READY) ## build wheel and sdist into dist/: the same bytes for the same commit
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build

fixture: $(READY) ## a database of this version, for the upgrade tests of later ones: run it when a version is released
	@$(BIN)/python tests/upgrade/make_fixture.py \
	  tests/upgrade/fixtures/v$$($(BIN)/python -c 'import tablecast; print(tablecast.__version__)').tar.xz

check: $(READY) ## style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check src tests bench examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: $(READY) ## measure side by side with peers and limits, print ratios
	@$(BIN)/python -m bench $(ARGS)

bench-server: $(READY) ## the server beside PostgreSQL, NATS and Redis (Debian: postgresql, redis-server)
	@$(BIN)/python -m bench.server $(ARGS)

bench-spark: $(READY) java ## reading, loading and streaming with Spark beside Parquet and the limits of its API
	@$(BIN)/python -m bench.spark $(ARGS)

bench-live: $(READY) ## live queries beside the same sockets without a database
	@$(BIN)/python -m bench.live $(ARGS)

bench-edge: $(READY) mosquitto ## replication over MQTT beside paho in a bare loop; the bytes of comparing
	@$(BIN)/python -m bench.edge $(ARGS)

bench-all: $(READY) ## all of these, one report: docs/benchmarks.md, the README's tables, build/bench.html (a look: ARGS=--quick)
	@for peer in peers java mosquitto; do tools/ensure-$$peer || true; done
	@$(BIN)/python -m bench.all $(ARGS)

compare-load: $(READY) java ## 5 M rows loaded on Spark and inserted with SQL: the same messages, byte for byte, all of them, once
	@$(BIN)/python tests/spark/compare_load.py $(ARGS)

soak: $(READY) java mosquitto ## half of maximum load for 30 minutes with every kind of reader: docs/soak.md
	@$(BIN)/python -m bench.soak $(ARGS)

edge-sim: $(READY) ## three nodes with broken links, crashes and skewed clocks, in virtual time: 3,000 seeds
	@$(BIN)/python tests/edge/sim_loop.py $(ARGS)

edge-kill: $(READY) mosquitto ## the same for real: three processes and a broker, killed and cut off, 50 seeds
	@$(BIN)/python tests/edge/struggle.py $(ARGS)

crash: $(READY) ## kill the database 1,000 times and check it each time
	@$(BIN)/python tests/crash/loop.py --kills 1000

crash-server: $(READY) ## the same over HTTP: 24 publishers and 4 consumers, the server killed 50 times
	@$(BIN)/python tests/crash/server_loop.py --kills 50

crash-spark: $(READY) java ## a stream on Spark: driver, executors and server killed 20 times
	@$(BIN)/python tests/spark/kill_loop.py --kills 20

live-race: $(READY) ## 500 races of live queries with writers, every second over sockets: every client ends with the rows of its SELECT
	@$(BIN)/python tests/integration/live_race.py --runs 500

live-storm: $(READY) ## storms of 5,000 live connections, well-behaved and not: nothing is left, others are unharmed
	@$(BIN)/python tests/integration/live_storm.py --cycles 5000

docs: $(READY) ## make the docs a site in build/site, and check every link, command and code block
	@$(BIN)/python tools/commands_page.py
	@$(BIN)/python tools/websocket_page.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@$(BIN)/python -m pytest -q tests/docs

console: export PATH := $(CURDIR)/$(BIN):$(PATH)
console: $(READY) ## build the console anew into the package
	@cd console && npm ci --silent && npm run --silent build

pictures: $(READY) ## take the pictures of the console that the docs show
	@tools/ensure-chromium
	@$(BIN)/python tests/browser/pictures.py

lock: $(READY) ## resolve the dependencies again (needs `pip install uv` in .venv)
	@$(BIN)/python -m uv pip compile -q pyproject.toml --all-extras --universal --python-version 3.11 \
	  --generate-hashes --no-header -o requirements.lock

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
