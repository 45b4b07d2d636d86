# make demo    demonstrates Milkweed on this machine in under a minute
# make test    runs what every commit runs, in five minutes; it needs Go, and fuse3 for the mounts
# make check   runs everything, as CI does; on Debian 12, as root, it first installs what that needs
# make soak    runs for a night: tests repeated on a busy machine, long torture, fuzzing, benchmarks
#
# ARGS has flags and parts: make check ARGS='race oneproc', make soak ARGS='-resume -for 1h'.

GO        ?= go
FUZZTIME  ?= 10s
BENCH     ?= .
BENCHTIME ?= 5x
SEED      ?= 0
DURATION  ?= 1h
FS        ?= ext4
BIN       := build/milkweed
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOTEST    := $(GO) test -timeout 30m -count=1 $(TESTFLAGS)
SUITE     := $(GO) run ./cmd/internal/lab/suite

# The program has no debugging information (-s -w), which would add half of its size.
# Stack traces and profiles have names and lines without it.
.PHONY: build
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.release=$(VERSION)' -o $(BIN) ./cmd/milkweed

.PHONY: demo
demo: build
	$(BIN) demo

.PHONY: test
test:
	@command -v fusermount3 >/dev/null && find /dev/fuse -perm -666 | grep -q . || GO='$(GO)' .ci/deps.sh fuse3 || true
	$(SUITE) test $(ARGS)

.PHONY: check
check:
	$(SUITE) check $(ARGS)

.PHONY: soak
soak:
	$(SUITE) soak $(ARGS)

# Runs the tests that need a distributed file system, on a MooseFS that it starts.
.PHONY: test-pfs
test-pfs: deps
	.ci/moosefs.sh up build/moosefs
	MILKWEED_TEST_PFS=$(CURDIR)/build/moosefs/mnt $(GOTEST) -run '^TestPFS' -v ./cmd/milkweed; \
	status=$$?; .ci/moosefs.sh down build/moosefs; exit $$status

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
# seed. docs/reliability.md explains the output and how to replay a run. With RACE=1, the daemons have
# the race detector.
.PHONY: torture
torture: deps
	$(GO) build -o build/torture ./cmd/torture
	$(GO) build $(if $(RACE),-race) -o build/torture-milkweed ./cmd/milkweed
	build/torture -program build/torture-milkweed -seed $(SEED) -duration $(DURATION) -fs $(FS) $(TORTUREFLAGS)

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
