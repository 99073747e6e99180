# Two commands do everything on a fresh machine (Python 3.11+, make): `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-build-isolation
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
PROTO  := src/loomlog/wire/loomlog.proto

# Workers of the test run, for two cores: many tests wait for servers. Spark's run beside them, in one
# worker: each has a Java of its own, which needs a while to become quick.
JOBS ?= 4
SPARK_JOBS ?= 1
SEED ?= 1
RUNS ?= 500
MINUTES ?= 0
ARGS ?=
# What needs PySpark, and all other tests.
SPARKS := tests/spark tests/unit/spark tests/cluster/test_gaps.py
MOST := tests/cluster tests/bench tests/sim tests/conformance tests/unit tests/fuzz $(SPARKS:%=--ignore=%)

# Tests start hundreds of servers: what those import is compiled once, not each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv java etcd promtool chromium screenshots demo test most spark-tests long kills lint types sim soak attack pythons fuzz bench bench-peers proto reference clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 13

venv: $(STAMP)  ## .venv with what bench needs; does nothing when it is up to date

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) hatchling editables
	$(PIP) -e '.[dev,etcd,console]'
	@touch $@

# PySpark is large: only the demo and the tests need it. It is installed while other tests run, so
# nothing that they use may be installed again: these are what the extras [spark] and [delta] add.
$(SPARK): $(STAMP)
	$(PIP) pyspark deltalake
	@touch $@

demo: $(SPARK)  ## a cluster of three nodes on this machine: append, read back, look, a pipeline, stop
	@$(MAKE) --no-print-directory java >/dev/null 2>&1 || true  # without Java, all but the pipeline
	@$(BIN)/python examples/demo.py

# Tests wait now and then, and installing does: other parts use the processors meanwhile.
test:  ## lint, types, all tests
	@$(MAKE) --no-print-directory -j 2 lint chromium
	@$(MAKE) --no-print-directory etcd promtool java
	@$(MAKE) --no-print-directory -j 3 most types spark-tests

spark-tests: $(SPARK)
	$(BIN)/python -m pytest -q -n $(SPARK_JOBS) --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) $(SPARKS)

# All that need no PySpark. Each worker begins elsewhere in the list, so that there is always one
# that computes (sim) beside those that wait (cluster), and takes from the others when it is done.
# On a fresh checkout, one process compiles everything first: each worker would, all at once.
most: $(STAMP)
	@test -d tests/rigs/__pycache__ || $(BIN)/python -m pytest -q --collect-only $(MOST) >/dev/null || true
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not long" $(ARGS) $(MOST)

long: etcd  ## the other tests that take long: a bad network, many more seeds of simulations
	$(BIN)/python -m pytest -q -n $(JOBS) -m long $(ARGS) tests/cluster tests/bench tests/sim tests/conformance tests/unit

kills: java $(SPARK)  ## Spark pipelines under 22 kills, sites that freeze, its bench: about six minutes
	$(BIN)/python -m pytest -q -m long $(ARGS) tests/spark

java: $(STAMP)  ## the JDK that Spark needs: found, or installed if this is root on Debian or Ubuntu
	@$(BIN)/python -W ignore -m loomlog.spark.java 2>/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			&& apt-get -qq update && apt-get -qq install -y openjdk-17-jre-headless; } \
		|| $(BIN)/python -W ignore -m loomlog.spark.java

etcd: $(STAMP)  ## the etcd that tests use: found, or installed if this is root on Debian or Ubuntu
	@$(BIN)/python -W ignore -m loomlog.testing.etcd 2>/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			&& apt-get -qq update && apt-get -qq install -y etcd-server; } \
		|| $(BIN)/python -W ignore -m loomlog.testing.etcd

# Only the program, from Debian's package: installing that would start a server.
promtool: $(STAMP)  ## the checker of alerts and metrics: found, or fetched if this is Debian or Ubuntu
	@test -x $(BIN)/promtool || command -v promtool >/dev/null \
		|| { command -v apt-get >/dev/null && cd "$$(mktemp -d)" \
			&& { test "$$(id -u)" != 0 || apt-get -qq update; } \
			&& apt-get -qq download prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb . \
			&& mv usr/bin/promtool $(CURDIR)/$(BIN)/ && rm -rf "$$PWD"; } \
		|| echo "promtool cannot be installed here: what it checks is skipped"

chromium: $(STAMP)  ## the browser that tests of the console use: found, or installed if this is root on Debian or Ubuntu
	@command -v chromium >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			&& apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
		|| echo "no Chromium: tests of the console in a browser are skipped"

screenshots: chromium  ## pictures of the console for README.md, from a cluster of its own: docs/images
	PYTHONPATH=tests/rigs $(BIN)/python tests/bench/console_screenshots.py docs/images

lint: $(STAMP)  ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SPARK)  ## mypy --strict
	$(BIN)/mypy

sim: $(STAMP)  ## simulate RUNS clusters with faults, from SEED on: make sim SEED=7 RUNS=100
	PYTHONPATH=tests/rigs $(BIN)/python tests/sim/run_seeds.py --seed $(SEED) --runs $(RUNS) $(ARGS)

soak: SEED = $(shell date +%s)
soak: $(STAMP)  ## the same for MINUTES, or until Ctrl-C; seeds nobody ran before: make soak MINUTES=60
	PYTHONPATH=tests/rigs $(BIN)/python tests/sim/run_seeds.py --jobs $(JOBS) --minutes $(MINUTES) --seed $(SEED) $(ARGS)

attack: MINUTES = 5
attack: SEED = $(shell date +%s)
attack: etcd  ## kills, stops, disk faults, lost disks, clock jumps, damaged frames: make attack MINUTES=60
	$(BIN)/python tests/cluster/chaos/attack.py --minutes $(MINUTES) --seed $(SEED) $(ARGS)

pythons: $(STAMP)  ## a part of the tests with every Python that is found and supported
	$(BIN)/python tests/rigs/other_pythons.py build

fuzz: MINUTES = 1
fuzz: SEED = $(shell date +%s)
fuzz: $(STAMP)  ## senseless input to every decoder, to servers, to the HTTP API: make fuzz MINUTES=60; ARGS=--live, --console
	PYTHONPATH=tests/rigs $(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES) --seed $(SEED) --keep $(ARGS)

bench: $(STAMP)  ## measure a private cluster on this machine: make bench ARGS="--seconds 2"
	$(BIN)/loom bench --up 3 $(ARGS)

reference: $(STAMP)  ## write docs/configuration.md
	PYTHONPATH=tests/rigs $(BIN)/python tests/rigs/configuration_page.py

bench-peers: $(STAMP)  ## the same loads on loomlog, NATS JetStream and Redis: make bench-peers ARGS="--rounds 5"
	$(PIP) -e '.[peers]'
	$(BIN)/python tests/bench/measure_peers.py --to build/peers $(ARGS)

proto: $(STAMP)  ## generate Python from the wire contract
	$(BIN)/python -m grpc_tools.protoc -I$(dir $(PROTO)) \
		--python_out=$(dir $(PROTO)) --pyi_out=$(dir $(PROTO)) $(PROTO)

clean:  ## remove the venv and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
