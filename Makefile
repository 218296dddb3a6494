# What a person types. Each target does its own set-up: Postgres comes from the machine, or is
# fetched once where npm exists, or the error says what to install.

GO ?= go
# The race detector needs a C compiler; without one the tests run without it and say so.
RACE := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)

# How long each fuzz target runs.
FUZZ_TIME ?= 2m

.PHONY: demo test check bench soak fuzz build help pgbouncer

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

build: ## bin/jobledger
	$(GO) build -o bin/jobledger ./cmd/jobledger

demo: build ## the main job on real input: three workers, one killed, one frozen; under a minute
	./bin/jobledger demo

test: pgbouncer ## all tests against a real Postgres; about five minutes on two cores
ifeq ($(RACE),)
	@echo "note: no C compiler found (CC or gcc): the tests run without the race detector"
endif
	$(GO) test $(RACE) -timeout 20m ./...

# Debian's PgBouncer, for the tests behind a pooler. Without it, and without root, they are skipped and say so. The
# tests start their own: no service is left running.
pgbouncer:
	@PATH="$$PATH:/usr/sbin"; command -v pgbouncer >/dev/null && exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "note: no PgBouncer found: its tests are skipped (hint: apt-get install pgbouncer)"; exit 0; fi; \
	echo "installing PgBouncer for the tests"; export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	install="apt-get install -y -qq --no-install-recommends pgbouncer"; \
	$$install >/dev/null 2>&1 || { apt-get update -qq && $$install; } >/dev/null 2>&1 || \
		echo "note: PgBouncer cannot be installed: its tests are skipped (hint: apt-get install pgbouncer)"; \
	if [ -d /run/systemd/system ]; then systemctl disable --now pgbouncer >/dev/null 2>&1; fi; true

check: ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "error: not formatted (hint: gofmt -w .)"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

bench: ## rates of enqueue, claim and complete on this machine
	$(GO) test -run '^$$' -bench . -benchtime 3x ./ledger/...

soak: pgbouncer ## the long runs: 2,000 model sequences, 1,000 cut commits, 50 kills of Postgres and 200 of workers, fuzzing, and more; hours
	JOBLEDGER_MODEL_SEQUENCES=2000 $(GO) test -v -timeout 90m -run 'Model' ./ledger/...
	JOBLEDGER_CUTS=1000 $(GO) test -v -timeout 60m -run 'TestCase16_commit_unknown' ./ledger
	JOBLEDGER_OUTAGE_SECONDS=60 $(GO) test -v -timeout 30m -run 'TestCase35' ./ledger/worker
	JOBLEDGER_CHAOS_KILLS=50 $(GO) test -v -timeout 60m -run 'TestChaos$$' ./ledger/worker
	JOBLEDGER_SHUTDOWN_ROUNDS=20 $(GO) test -v -timeout 60m -run 'TestCase58' ./cmd/jobledger
	for isolation in 'repeatable read' serializable; do JOBLEDGER_TEST_ISOLATION=$$isolation \
		$(GO) test -timeout 30m -run 'Model|Table' -skip 'Mutants' ./ledger/modeltest || exit 1; done
	for pool in exec simple_protocol pgbouncer discard_all; do JOBLEDGER_TEST_POOL=$$pool \
		$(GO) test -timeout 30m -run 'Model|Table' -skip 'Mutants' ./ledger/modeltest || exit 1; done
	for pool in pgbouncer discard_all; do JOBLEDGER_TEST_POOL=$$pool \
		$(GO) test -timeout 30m -skip 'LockOrder|ExistsAtOnce|Chaos' ./ledger ./ledger/worker || exit 1; done
	JOBLEDGER_ALL_SESSIONS=1 $(GO) test -timeout 30m -run 'TestCase31' ./cmd/jobledger
	$(MAKE) fuzz

fuzz: ## each fuzz target for FUZZ_TIME (2m); what fails is kept under testdata/fuzz of its package
	$(GO) test -run '^$$' -fuzz '^FuzzCheckJSON$$' -fuzztime $(FUZZ_TIME) ./domain
	$(GO) test -run '^$$' -fuzz '^FuzzJSON$$' -fuzztime $(FUZZ_TIME) ./ledger/modeltest
	$(GO) test -run '^$$' -fuzz '^FuzzSameJSON$$' -fuzztime $(FUZZ_TIME) ./ledger/modeltest
	$(GO) test -run '^$$' -fuzz '^FuzzEnqueueLine$$' -fuzztime $(FUZZ_TIME) ./cmd/jobledger
	$(GO) test -run '^$$' -fuzz '^FuzzEnqueueFile$$' -fuzztime $(FUZZ_TIME) ./cmd/jobledger
	$(GO) test -run '^$$' -fuzz '^FuzzEnqueueFlags$$' -fuzztime $(FUZZ_TIME) ./cmd/jobledger
