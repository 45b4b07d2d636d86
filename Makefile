# make demo    demonstrates Milkweed on this machine in under a minute
# make test    runs all tests; on Debian 12, as root, it first installs their packages
#
# RACE=1 runs the tests with the race detector, as CI does.

GO        ?= go
FUZZTIME  ?= 10s
BENCH     ?= .
BENCHTIME ?= 5x
SEED      ?= 0
DURATION  ?= 1h
FS        ?= ext4
BIN       := build/milkweed
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOTEST    := $(GO) test -timeout 45m $(if $(RACE),-race) $(TESTFLAGS)

# The program has no debugging information (-s -w), which would add half of its size.
# Stack traces and profiles have names and lines without it.
.PHONY: build
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.release=$(VERSION)' -o $(BIN) ./cmd/milkweed

.PHONY: demo
demo: build
	$(BIN) demo

.PHONY: test
test: deps
	$(GOTEST) ./...
	cd examples/tensorflow && /usr/bin/python3 -B -m unittest
	cd examples/pytorch && /usr/bin/python3 -B -m unittest

.PHONY: race
race:
	$(MAKE) test RACE=1

# Runs the tests that need a distributed file system, on a MooseFS that it starts.
.PHONY: test-pfs
test-pfs: deps
	.ci/moosefs.sh up build/moosefs
	MILKWEED_TEST_PFS=$(CURDIR)/build/moosefs/mnt $(GOTEST) -count=1 -run 'TestPFS' -v ./cmd/milkweed; \
	status=$$?; .ci/moosefs.sh down build/moosefs; exit $$status

# Runs the tests that compare a mount with a local file system.
.PHONY: test-posix
test-posix: deps
	$(GOTEST) -count=1 -run '^TestPosix' ./cmd/milkweed

# Runs the tests of peers: daemons on nodes in network namespaces.
.PHONY: test-peers
test-peers: deps
	$(GOTEST) -count=1 -run '^TestCluster' ./cmd/internal/peertest

# Simulates jobs on up to 10,000 nodes, and rewrites the tables of docs/scale.md.
.PHONY: scale
scale:
	GOGC=50 $(GO) test -timeout 60m -count=1 -v -run '^TestTables$$' ./cmd/internal/scale -update

.PHONY: deps
deps:
	@GO='$(GO)' .ci/deps.sh

.PHONY: lint
lint:
	@test -z "$$(gofmt -l .)" || { echo 'not formatted:'; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck -checks all ./...
	$(GO) mod tidy -diff

# Runs each fuzz target for FUZZTIME.
.PHONY: fuzz
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			GO='$(GO)' .ci/fuzz.sh $(FUZZTIME) $$package $$target; \
		done; \
	done

# docs/performance.md describes these benchmarks and has results. See also
# `milkweed bench`, which compares Milkweed with other tools.
.PHONY: bench
bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -timeout 60m $(TESTFLAGS) ./fs ./metadata ./placement ./drivers/posix ./drivers/blob ./drivers/peer ./cmd/internal/peertest ./cmd/milkweed

# Reads a mount for DURATION while faults hit it, and compares every byte. SEED=0 chooses a
# seed. docs/reliability.md explains the output and how to replay a run.
.PHONY: torture
torture: build deps
	$(GO) build -trimpath -o build/torture ./cmd/torture
	build/torture -seed $(SEED) -duration $(DURATION) -fs $(FS) $(TORTUREFLAGS)

.PHONY: man
man: build
	$(BIN) man build/man

# Builds the packages, archives, bills of materials and checksums of a release.
.PHONY: release
release:
	GO='$(GO)' cmd/release/release.sh build/release

.PHONY: fmt
fmt:
	gofmt -w .

.PHONY: clean
clean:
	rm -rf build
	$(GO) clean -testcache -fuzzcache
