# Every target does its own set-up: a fresh clone needs no other command first.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/ready
# As it was typed: make would otherwise expand what looks like a variable in it.
override MSG := $(value MSG)
override SQL := $(value SQL)
override QUEUE := $(value QUEUE)
export MSG SQL QUEUE
# What the jobs write, and what `make query` asks.
LOGS ?= .run/logs
SUBMIT = PATH="$(CURDIR)/.venv/bin:$$PATH" SPARK_CONF_DIR="$(CURDIR)/conf" \
	FANOUT_URL="$$($(PY) scripts/broker.py url)" exec spark-submit
SPOOL = --option spoolDir="$(CURDIR)/.run/spool"

.PHONY: help
help: ## Show this page
	@echo "RabbitMQ publish/subscribe for Apache Spark. Targets:"; echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-21s %s\n", $$1, $$2}'

$(READY): setup.cfg pyproject.toml conf/constraints.txt scripts/setup.sh
	@scripts/setup.sh $(PYTHON)

# Not with the rest: what only draws must not hide what the package itself needs.
CHARTS := .venv/charts
$(CHARTS): $(READY)
	@$(PY) -m pip install -q --disable-pip-version-check -c conf/constraints.txt matplotlib
	@touch $@

MUTMUT := .venv/mutmut
$(MUTMUT): $(READY)
	@$(PY) -m pip install -q --disable-pip-version-check -c conf/constraints.txt mutmut
	@touch $@

.PHONY: setup
setup: $(READY) ## Make .venv with the tested versions; check Java

.PHONY: broker
broker: $(READY) ## Start a RabbitMQ, or find the one that runs
	@$(PY) scripts/broker.py start

.PHONY: broker-stop
broker-stop: $(READY) ## Stop the RabbitMQ that `make broker` started
	@$(PY) scripts/broker.py stop

.PHONY: broker-status
broker-status: $(READY) ## Say where the broker is
	@$(PY) scripts/broker.py status

.PHONY: demo
demo: broker ## Two subscribers and 1,000 log records: to disk and to the screen at the same time
	@$(PY) scripts/demo.py

.PHONY: parquet
parquet: broker ## Subscribe, and write to Parquet in .run/logs
	@$(SUBMIT) jobs/logs_to_parquet.py --path "$(LOGS)" $(SPOOL) $(ARGS)

.PHONY: console
console: broker ## Subscribe, and show on the screen: make console ARGS="--severity warning"
	@$(SUBMIT) jobs/logs_to_console.py $(ARGS)

.PHONY: parallel
parallel: broker ## Both in one application, to .run/parallel/logs: make parallel ARGS="--subscribers 2"
	@$(SUBMIT) jobs/parallel_subscribers.py --path .run/parallel/logs $(SPOOL) $(ARGS)

.PHONY: rates
rates: broker ## Subscribe, and draw counts by severity and host in windows of time
	@$(SUBMIT) jobs/severity_rates.py $(ARGS)

.PHONY: alerts
alerts: broker ## Subscribe, and publish alerts of hosts with many errors to the exchange alerts
	@$(SUBMIT) jobs/alerts.py $(ARGS)

.PHONY: query
query: $(READY) ## Ask the Parquet output: make query SQL="SELECT severity, count(*) FROM logs GROUP BY 1"
	@test -n "$$SQL" || { echo 'make query needs SQL: make query SQL="SELECT * FROM logs LIMIT 20"' >&2; exit 1; }
	@$(PY) scripts/query.py "$(LOGS)" "$$SQL"

.PHONY: emit
emit: broker ## Publish one log message: make emit MSG="hello"
	@test -n "$$MSG" || { echo 'make emit needs a message: make emit MSG="hello"' >&2; exit 1; }
	@$(PY) scripts/emit_log.py -- "$$MSG"

.PHONY: bindings
bindings: broker ## Show the exchanges and who is subscribed
	@$(PY) scripts/bindings.py

.PHONY: unsubscribe
unsubscribe: broker ## Remove the queue of a named subscription: make unsubscribe QUEUE=audit
	@test -n "$$QUEUE" || { echo 'make unsubscribe needs a queue: make unsubscribe QUEUE=audit' >&2; exit 1; }
	@$(PY) scripts/unsubscribe.py $(ARGS) -- "$$QUEUE"

.PHONY: lint
lint: $(READY) ## Check style (ruff) and types (mypy)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

.PHONY: test
test: $(READY) ## Run all tests, with a broker of their own
	@$(PY) -m pytest

.PHONY: test-long
test-long: $(READY) ## Run the tests that take minutes: kills under load, every job's mistakes, the demo
	@$(PY) -m pytest -m long

.PHONY: faults
faults: $(READY) ## Inject faults for half an hour (MINUTES=30), and account for every message
	@$(PY) tests/faults/run.py --minutes $(or $(MINUTES),30) $(ARGS)

.PHONY: soak
soak: $(CHARTS) ## Three subscribers for an hour (MINUTES=60), a fault every minute; draws a picture
	@$(PY) tests/faults/soak.py --minutes $(or $(MINUTES),60) $(ARGS)

.PHONY: mutants
mutants: $(MUTMUT) ## Change spool, offsets and tap in 1,500 small ways: do the tests notice?
	@$(PY) -m mutmut run; $(PY) -m mutmut results

.PHONY: bench
bench: $(CHARTS) broker ## Measure all sides in one run, draw them: twenty minutes (ARGS=--quick: two)
	@$(PY) scripts/bench.py $(ARGS)

.PHONY: bench-emit
bench-emit: broker ## Measure publishing against a bare pika loop
	@$(PY) scripts/bench_emit.py

.PHONY: bench-receiver
bench-receiver: broker ## Measure receiving against a bare pika callback and a bare socket
	@$(PY) scripts/bench_receiver.py

.PHONY: bench-source
bench-source: broker ## Measure a trigger against Spark's own rate source, and an idle query
	@$(PY) scripts/bench_source.py

.PHONY: bench-sink
bench-sink: broker ## Measure writing from Spark, confirmed, against a bare pika loop without confirms
	@$(PY) scripts/bench_sink.py

.PHONY: bench-memory
bench-memory: broker ## Send ten million messages through a small spool, and watch the memory
	@$(PY) scripts/bench_memory.py

.PHONY: dist
dist: $(READY) ## Build the wheel, and a zip for spark-submit --py-files
	@rm -rf build dist
	@$(PY) -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@for wheel in dist/*.whl; do cp "$$wheel" "$${wheel%%-py3-*}.zip"; done # a wheel is a zip
	@ls dist/*

.PHONY: clean
clean: ## Stop the broker and remove everything that was made here
	@if [ -e .run ] && [ -e $(READY) ]; then $(PY) scripts/broker.py stop; fi
	@rm -rf .run .venv build dist mutants *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
