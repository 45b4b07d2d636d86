#!/bin/bash
# soak.sh makes long runs of the checks, and then repeats the tests of the packages that start daemons or many
# goroutines $ROUNDS times, while the processors and the disk are busy. It goes on after a failure. build/soak
# has the output of each step; the last lines name those that have failed. `make soak` installs what it needs.
# PARTS selects steps: make soak PARTS='repeat race' ROUNDS=3
set -uo pipefail
cd "$(dirname "$0")/.."
export MILKWEED_TEST_ALL=true RERUNS=0
all='cpu race torture pfs fuzz bench repeat'
parts=${PARTS:-$all}
for part in $parts; do
	[[ " $all " == *" $part "* ]] || { echo "soak.sh: no part is called $part; there are $all" >&2; exit 2; }
done
failed=() steps=0 busy=
trap '[ -z "$busy" ] || kill $busy' EXIT
trap exit INT TERM HUP
mkdir -p build/soak

# step PART NAME COMMAND... runs a step of a part.
step() {
	local part=$1 log=build/soak/$2.log
	[[ " $parts " == *" $part "* ]] || return 0
	shift 2
	echo "$(date +%T) $*"
	steps=$((steps + 1))
	"$@" >"$log" 2>&1 || { failed+=("$* (see $log)"); echo "FAILED, see $log"; }
}

# load keeps the processors and the disk busy until its process ends.
load() {
	local scratch
	scratch=$(mktemp -d)
	trap 'kill $(jobs -p); wait; rm -rf "$scratch"' EXIT
	trap exit TERM
	for i in 1 2 3 4 5 6 7 8; do
		sha256sum /dev/zero &
		while :; do dd if=/dev/urandom of="$scratch/$i" bs=1M count=16 conv=fsync status=none; done &
	done
	wait
}

# loaded COMMAND... runs a command on the busy machine.
loaded() {
	local status=0
	load &
	busy=$!
	"$@" || status=$?
	kill $busy
	wait $busy
	busy=
	return $status
}

# The daemons that these tests start have the environment, too.
step cpu cpu env GOMAXPROCS=1 .ci/gotest.sh ./... -p 1 -timeout 1h
step race race env MILKWEED_TEST_RACE=1 .ci/gotest.sh ./... -race -p 1 -timeout 2h
for source in ext4 xfs btrfs; do
	step torture "torture-$source" make torture RACE=1 FS=$source DURATION="${DURATION:-1h}"
done
step torture torture-bucket make torture RACE=1 TORTUREFLAGS=-bucket DURATION="${DURATION:-1h}"
step pfs pfs make check-pfs
step fuzz fuzz make fuzz FUZZTIME="${FUZZTIME:-10m}"
step bench bench make bench
for ((round = 1; round <= ${ROUNDS:-5}; round++)); do
	for package in fs placement cmd/milkweed cmd/internal/peertest; do
		step repeat "${package//\//-}-$round" loaded .ci/gotest.sh "./$package" -timeout 1h
	done
done

[ ${#failed[@]} = 0 ] || printf 'failed: %s\n' "${failed[@]}"
echo "$((steps - ${#failed[@]})) passed, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ]
