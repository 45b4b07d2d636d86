#!/bin/bash
# fuzz.sh FUZZTIME PACKAGE TARGET runs a fuzz target. It passes if Go's coordinator reports the end
# of FUZZTIME as a failure, which it does now and then before Go 1.27 (go.dev/issue/75804). A
# failing input is always reported as one.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The targets with servers reach other code in each run, so that the search for a smaller input,
# by default a minute, would take all of the time.
${GO:-go} test -run '^$' -fuzz "^$3\$" -fuzztime "$1" -fuzzminimizetime 100x "$2" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# In that case the failure has one line.
if [ "$status" = 1 ] && [ "$(grep -A 2 -- '^--- FAIL' "$log" | sed 1d)" = $'    context deadline exceeded\nFAIL' ]; then
	echo "$3: the time was up (go.dev/issue/75804)"
	exit 0
fi

# Print the input: the machine may not be kept.
input=$(sed -n 's/^ *Failing input written to //p' "$log")
[ -z "$input" ] || cut -c -1000 "$2/$input"
exit "$status"
