# make demo    demonstrates Milkweed on this machine in under a minute
# make test    runs what every commit must pass, in five minutes; it needs Go, and fuse3 for the mounts
# make check   runs everything, in parts such as check-race; as root on Debian 12 it first installs what that needs
# make soak    runs for a night: tests repeated on a busy machine, long torture, fuzzing, benchmarks
#
# TESTFLAGS has flags of go test: make test TESTFLAGS='-run TestSplice'.

GO        ?= go
FUZZTIME  ?= 10s
BENCH     ?= .
BENCHTIME ?= 5x
SEED      ?= 0
DURATION  ?= 1h
FS        ?= ext4
BIN       := build/milkweed
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# The packages whose tests are parts of make check; check-tests has the others.
parts      := programs peers stores pages kubernetes release
programs   := ./cmd/milkweed ./cmd/torture ./cmd/internal/lab/torture
peers      := ./cmd/internal/peertest ./cmd/internal/scale
stores     := ./drivers/blob/...
pages      := ./cmd/internal/lab/docrun ./cmd/internal/page
kubernetes := ./cmd/milkweed-k8s ./cmd/internal/lab/kubetest/...
release    := ./cmd/release

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
	.ci/gotest.sh './cmd/milkweed ./placement ./fs ./...' -short -p 3 -timeout 10m $(TESTFLAGS)

# The race detector, for the packages that make no FUSE mount.
.PHONY: test-race
test-race:
	.ci/gotest.sh './placement/... ./metadata/... ./tiers/... ./drivers/...' -short -race -timeout 20m $(TESTFLAGS)

CHECKS := check-tests $(parts:%=check-%) check-race check-killed check-cpu check-pfs check-torture check-fuzz check-bench

.PHONY: check $(CHECKS)
check:
	$(MAKE) --keep-going lint $(CHECKS) demo

# all has the tests of packages, also the long ones. None may skip because something is missing.
all = MILKWEED_TEST_ALL=true RERUNS=0 .ci/gotest.sh '$(1)' -timeout 20m $(2) $(TESTFLAGS)
list = $(patsubst github.com/milkweedfs/milkweed/%,./%,$(shell $(GO) list $(1)))
without = $(filter-out $(call list,$(1)),$(call list,./...))

check-tests: deps
	$(call all,$(call without,$(foreach part,$(parts),$($(part)))),-p 3)

$(parts:%=check-%): check-%: deps
	$(call all,$($*))

# All packages but whole programs, in whose tests the race detector takes most of the time and finds little.
check-race: deps
	$(call all,$(call without,$(programs) $(peers) $(pages) $(kubernetes) $(release) ./cmd/internal/lab/...),-race)

check-killed: deps
	$(call all,./cmd/milkweed,-race -run '^TestKilled')

# Scheduling on one processor and on two.
comma := ,
check-cpu: deps
	$(call all,./fs ./placement,-cpu=1$(comma)2 -p 1)

# A distributed file system, MooseFS, as the source.
check-pfs: deps
	.ci/moosefs.sh up build/moosefs
	export MILKWEED_TEST_PFS=$(CURDIR)/build/moosefs/mnt; $(call all,./cmd/milkweed,-run '^TestPFS'); \
	status=$$?; .ci/moosefs.sh down build/moosefs; exit $$status

TORTURES := check-torture-ext4 check-torture-xfs check-torture-bucket
.PHONY: $(TORTURES)
check-torture: $(TORTURES)

check-torture-ext4 check-torture-xfs: check-torture-%: deps
	$(MAKE) torture RACE=1 DURATION=1m FS=$*

check-torture-bucket: deps
	$(MAKE) torture RACE=1 DURATION=1m TORTUREFLAGS=-bucket

check-fuzz: deps
	MILKWEED_TEST_ALL=true $(MAKE) fuzz FUZZTIME=3s

# One iteration at a small size shows that each benchmark runs; it gives no useful times.
check-bench: deps
	MILKWEED_TEST_ALL=true $(MAKE) bench BENCHTIME=1x TESTFLAGS='-short -vet=off'

.PHONY: soak
soak: deps
	.ci/deps.sh btrfs-progs
	.ci/soak.sh

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
	@status=0; for package in $(call list,./...); do \
		targets=$$($(GO) test -list '^Fuzz' $$package) || status=1; \
		for target in $$(echo "$$targets" | grep '^Fuzz'); do \
			GO='$(GO)' .ci/fuzz.sh $(FUZZTIME) $$package $$target || status=1; \
		done; \
	done; exit $$status

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
