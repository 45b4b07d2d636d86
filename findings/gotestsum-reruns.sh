#!/bin/bash
# gotestsum 1.13.0 with --rerun-fails: a run succeeds although tests of it never ran, or although the check of a
# TestMain has failed.
#
# 1. A test ends its process in its first run, as log.Fatal does, or a fatal error of the runtime ("concurrent
#    map writes"), or the OOM killer. The tests after it do not run. gotestsum repeats only the test that was
#    running. If that passes, the exit code is 0: "DONE 2 runs, 2 tests, 1 failure". Only a panic and, with
#    --rerun-fails-abort-on-data-race, a data race are exceptions.
# 2. All tests pass, and TestMain then fails, as goleak.VerifyTestMain does for a goroutine that is left.
#    gotestsum repeats the package with -test.run=^$, without the tests that have left something. The exit
#    code is 0, the summary counts no failure, and --rerun-fails-report names nothing.
#
# Seen with Go 1.26.8 on Linux amd64, 2026-11-28. The script needs Go. It fails if the behaviour changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
GOBIN=$dir/bin go install gotest.tools/gotestsum@v1.13.0
mkdir "$dir/m" "$dir/m/exits" "$dir/m/leaves"
cd "$dir/m"
export DIR=$dir
printf 'module m\n\ngo 1.26\n' >go.mod
cat >exits/x_test.go <<'END'
package exits

import (
	"log"
	"os"
	"testing"
)

func TestFirst(t *testing.T) {
	if err := os.Mkdir(os.Getenv("DIR")+"/exits", 0o700); err == nil {
		log.Fatal("only in the first run")
	}
}

func TestSecond(t *testing.T) { t.Error("always fails") }
END
cat >leaves/x_test.go <<'END'
package leaves

import (
	"os"
	"testing"
)

var left bool

func TestMain(m *testing.M) {
	code := m.Run()
	if left {
		code = 1
	}
	os.Exit(code)
}

func TestThatLeavesSomething(t *testing.T) { left = true }
END
for package in exits leaves; do
	go test "./$package" >"$dir/plain" 2>&1 && { echo "$package: go test passes"; exit 1; }
	rm -rf "$dir/exits"
	"$dir/bin/gotestsum" --packages "./$package" --rerun-fails=2 --rerun-fails-abort-on-data-race \
		--rerun-fails-report "$dir/report" -- -count=1 >"$dir/$package.out" 2>&1 || { echo "$package: gotestsum fails"; cat "$dir/$package.out"; exit 1; }
	echo "$package: go test fails, and gotestsum exits with 0: $(grep '^DONE 2 runs' "$dir/$package.out")"
done
if grep -q TestSecond "$dir/exits.out"; then
	echo "TestSecond has run"
	exit 1
fi
grep -q '^DONE 2 runs, 2 tests, 1 failure' "$dir/exits.out"
grep -qE '^DONE 2 runs, 1 tests in' "$dir/leaves.out"
[ ! -s "$dir/report" ] # of the last package
