#!/bin/bash
# gotest.sh PACKAGES [FLAG...] runs the tests of the packages, which blanks separate, with these flags of
# go test. A failed test is repeated alone, at most twice, or as often as $RERUNS says. If it passes then, so
# does the run, and the last lines name the test as flaky, with its first message. Nothing is repeated after a
# panic or a data race, or if more than five tests have failed.
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
gotestsum=$(cd "$repo" && go tool -n gotestsum) || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/programs"
chmod 755 "$work" # other users run the programs
export MILKWEED_TEST_PROGRAMS=$work/programs                            # lab.ProgramsEnv
export GORACE='atexit_sleep_ms=20 clear_shadow_mmap_threshold=67108864' # lab.RaceOptions

packages=$1
shift
flags=(-vet=off -count=1 "$@") # make lint vets the code

# gotestsum [FLAG...] -- FLAG... prints a line for each package, and what has failed at the end.
gotestsum() { "$gotestsum" --no-color --format pkgname --format-icons text --hide-summary skipped "$@"; }

gotestsum --packages "$packages" --jsonfile "$work/events" --rerun-fails="${RERUNS:-2}" \
	--rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	--rerun-fails-report "$work/reruns" -- "${flags[@]}" | tee "$work/log"
status=${PIPESTATUS[0]}

# failed [-v] prints the packages in which a test has failed; with -v, those that have failed themselves.
failed() { grep '"Action":"fail"' "$work/events" | grep $1 '"Test":' | sed -E 's/.*"Package":"([^"]*)".*/\1/' | sort -u; }

flaky=()
if [ "$status" = 0 ] && grep -q '"Action":"fail"' "$work/events"; then
	# If a test ends its process, the tests after it do not run, and gotestsum repeats only that test.
	if [ "$(grep -c '"Action":"run"' "$work/events")" != "$(grep -cE '"Action":"(pass|fail|skip)".*"Test":' "$work/events")" ]; then
		echo "A test has ended its process: not all tests have run."
		exit 1
	fi
	# If TestMain fails after all tests have passed, gotestsum repeats the package without its tests.
	for package in $(comm -13 <(failed '') <(failed -v)); do
		message=$(grep '"Action":"output","Package":"'"$package"'","Output"' "$work/events" |
			sed -E 's/.*"Output":"//; s/\\n"}$//; /^(PASS|ok|FAIL)/d' | head -n 1)
		flaky+=("flaky: $package: $message")
		gotestsum --packages "$package" -- "${flags[@]}" || status=1
	done
fi

# The messages of drivertest.Skipf, up to the details.
grep -oE '"Output":"[^"]*left out: [^:\\]*' "$work/events" | sed 's/.*left out: //' | sort | uniq -c |
	sed -E 's/^ *([0-9]+) (.*)/left out (\1): \2/'
if [ "$status" = 0 ] && [ -e "$work/reruns" ]; then
	awk 'FNR == NR {
			if (/^=== FAIL: /) test = $3 "." $4
			else if (test && NF && !/^DONE/ && !(test in message)) {sub(/^ +/, ""); message[test] = $0}
			next
		}
		{
			line = "flaky: " $0
			sub(/:$/, "", $1)
			for (test in message) if (substr("/" $1, length($1) + 1 - length(test)) == "/" test) line = line ": " message[test]
			print line
		}' "$work/log" "$work/reruns"
	[ ${#flaky[@]} = 0 ] || printf '%s\n' "${flaky[@]}"
fi
exit "$status"
