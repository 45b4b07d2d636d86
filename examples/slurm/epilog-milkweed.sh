#!/bin/bash
# An Epilog for Slurm. It unmounts the datasets that prolog-milkweed.sh has mounted, if no
# other job of the node uses them. The copies stay in the tiers, for the next job.
#
# slurmd runs it as root on each node after all processes of the job have ended, without a
# PATH. It may run any number of times. If it fails, Slurm drains the node: it fails only if a
# mount cannot be removed.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
shopt -s nullglob

keep=no         # yes: leave a dataset mounted when its last job has ended
timeout=15      # seconds for each of up to three attempts to unmount a dataset
run=/run/milkweed-slurm

job=${SLURM_JOB_ID:-}
[[ $job =~ ^[0-9]+$ ]] || { echo "milkweed: SLURM_JOB_ID is not set"; exit 1; }

# mounted POINT succeeds if a mount of Milkweed is there. It does not touch the mount, because
# the daemon may hang.
mounted() {
	local at rest
	while read -r _ _ _ _ at rest; do
		[[ $at == "$1" && " $rest " == *" - fuse.milkweed "* ]] && return
	done </proc/self/mountinfo
	return 1
}

# limited runs a command for a limited time, and without the lock.
limited() { timeout --kill-after=1 "$timeout" "$@" 9>&-; }

# unmount POINT unmounts a dataset. If processes that belong to no job use it, they lose it.
unmount() {
	limited milkweed umount "$1" && return
	limited milkweed umount --force "$1" && return
	limited umount --lazy "$1"
}

# detach NAME ends the use of a dataset by the job. The lock of the dataset must be held.
detach() {
	local state=$run/$1 point jobs
	rm -f "$state/jobs/$job"
	jobs=("$state/jobs/"*)
	if [ ${#jobs[@]} -gt 0 ] || { [ $keep = yes ] && mounted "$(<"$state/point")"; }; then
		return 0
	fi
	if [ -e "$state/point" ]; then
		point=$(<"$state/point")
		while mounted "$point"; do
			unmount "$point" || { echo "milkweed: $point cannot be unmounted"; return 1; }
		done
		[ ! -e "$state/made" ] || rmdir "$point"
	fi
	rm -r "$state"
}

status=0
for used in "$run"/*/jobs/"$job"; do
	name=${used#"$run/"}
	name=${name%%/*}
	exec 9>"$run/$name.lock"
	if flock --timeout "$timeout" 9; then
		detach "$name" || status=1
	else
		echo "milkweed: $name: another job mounts it or unmounts it"
		status=1
	fi
	exec 9>&-
done
rm -f "$run/task/$job"
exit $status
