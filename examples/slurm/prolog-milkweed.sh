#!/bin/bash
# A Prolog for Slurm. It mounts the datasets that a job requests with
#
#	#SBATCH --comment="milkweed=imagenet,coco"
#
# The dataset NAME has the configuration /etc/milkweed/NAME.toml. All jobs of a node share
# one mount of it, which needs allow_other: the permissions of the source then decide who
# may read a file. A configuration with peers.roster = "slurm" shares the tiers of the
# nodes of the job. /etc/milkweed/NAME.env may have lines VARIABLE=value, without quotes, for
# the daemon, such as AWS_SHARED_CREDENTIALS_FILE=/etc/milkweed/aws.
#
# slurmd runs it as root on each node, without a PATH. If it fails, Slurm drains the node
# and requeues the job. So it fails only if the node lacks milkweed or /dev/fuse. All other
# problems, such as a dataset that does not exist, are printed to the output of the job by
# taskprolog-milkweed.sh, and the job runs without the mount.
set -u -f       # -f: the comment is not a pattern
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
umask 022

timeout=20      # seconds that one mount may take
most=8          # datasets of one job
long=60         # seconds after which no further dataset is begun
etc=/etc/milkweed
run=/run/milkweed-slurm         # epilog-milkweed.sh and taskprolog-milkweed.sh use it, too

job=${SLURM_JOB_ID:-}
[[ $job =~ ^[0-9]+$ ]] || { echo "milkweed: SLURM_JOB_ID is not set"; exit 1; }

nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}        # Slurm 22.05 sets the latter only
lines=()        # for taskprolog-milkweed.sh

# say logs a message and prints it to the output of the job.
say() {
	echo "milkweed: job $job: $*"
	lines+=("print milkweed: ${SLURMD_NODENAME:-}: ${*//[^[:print:]]/ }")
}

# value KEY prints the value that a key has in the output of milkweed config show.
value() { awk -v key="$1" '$1 == key && NF == 3 { print $2 }' <<<"$config"; }

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

# clean NAME COMMAND... runs a command with the environment of the daemon of a dataset only. No
# value is an argument of a command, because all users can see those.
clean() {
	local name=$1 line vars=(HOME=/root "PATH=$PATH" XDG_STATE_HOME=/var/log
		"SLURM_JOB_NODELIST=$nodes" "SLURMD_NODENAME=${SLURMD_NODENAME:-}")
	shift
	if [ -e "$etc/$name.env" ]; then
		while IFS= read -r line; do
			[[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] && vars+=("$line")
		done <"$etc/$name.env"
	fi
	(
		unset $(compgen -e)
		export "${vars[@]}"
		limited "$@"
	)
}

# start NAME starts the daemon of a dataset. It must outlive this script: milkweed leaves the
# process group by itself, and systemd-run starts it outside of the control group of slurmd.
start() {
	local mount=(milkweed mount --supervise --clear-stale -c "$etc/$1.toml")
	if [ -d /run/systemd/system ]; then
		limited systemd-run --quiet --collect --unit="milkweed-slurm-$1-$job" --service-type=forking \
			--property=TimeoutStartSec="$timeout" --property=LimitNOFILE=1048576 \
			--property=EnvironmentFile=-"$etc/$1.env" --setenv=XDG_STATE_HOME=/var/log \
			--setenv=SLURM_JOB_NODELIST="$nodes" \
			--setenv=SLURMD_NODENAME="${SLURMD_NODENAME:-}" "${mount[@]}"
	else
		clean "$1" "${mount[@]}"
	fi
}

# attach NAME mounts a dataset for the job, unless it is mounted. The lock of the dataset must
# be held.
attach() {
	local name=$1 file=$etc/$1.toml state=$run/$1 config point roster= out
	config=$(clean "$name" milkweed config show -c "$file" 2>&1) ||
		{ say "$name: ${config%%$'\n'*}"; return; }
	point=$(value mount.point)
	[[ $point == /* ]] || { say "$name: mount.point is missing or contains a space"; return; }
	[ "$(value mount.allow_other)" = true ] || { say "$name: the configuration lacks allow_other"; return; }
	[ "$(value peers.roster)" != slurm ] || roster=$nodes

	if mounted "$point" && [ ! -e "$state/point" ]; then
		provide "$name" "$point"        # the site has mounted it in another way
		return
	fi
	mkdir -p "$state/jobs"
	>"$state/jobs/$job"                     # from now on, the epilog of this job cleans up
	if mounted "$point" && stale "$point" "$state" "$roster"; then
		limited milkweed umount "$point" >/dev/null 2>&1
	fi
	if ! mounted "$point"; then
		echo "$point" >"$state/point"
		echo "$roster" >"$state/roster"
		[ -e "$point" ] || { mkdir -p "$point" && >"$state/made"; }
		if ! out=$(start "$name" 2>&1); then
			say "$name is not mounted: ${out%%$'\n'*}"
			return
		fi
	fi
	[ "$(<"$state/roster")" = "$roster" ] ||
		say "$name was mounted for another job, with other peers"
	provide "$name" "$point"
}

# stale POINT STATE ROSTER succeeds if the mount has no live daemon, or if it has the peers of
# an earlier job and no other job uses it.
stale() {
	limited milkweed status --json "$1" >/dev/null 2>&1 || return 0
	[ "$(<"$2/roster")" != "$3" ] && [ -z "$(find "$2/jobs" -type f ! -name "$job")" ]
}

# provide NAME POINT gives the mount point to the job.
provide() {
	local variable=${1^^}
	lines+=("export MILKWEED_DATASET_${variable//-/_}=$2")
	[[ ${lines[*]} == *"export MILKWEED_DATASET="* ]] || lines+=("export MILKWEED_DATASET=$2")
}

names=()
for word in ${SLURM_JOB_COMMENT:-}; do
	[[ $word == milkweed=* ]] || continue
	IFS=, read -r -a more <<<"${word#milkweed=}"
	names+=("${more[@]}")
done
[ ${#names[@]} -gt 0 ] || exit 0

status=0
limited milkweed version >/dev/null 2>&1 || { say "milkweed is not installed"; status=1; }
[ -c /dev/fuse ] || { say "/dev/fuse is missing"; status=1; }
mkdir -p "$run/task" || exit 1
if [ ${#names[@]} -gt $most ]; then
	say "${#names[@]} datasets requested; the first $most are mounted"
	names=("${names[@]:0:most}")
fi
for name in "${names[@]}"; do
	[ $status = 0 ] || break
	# Only a name of these characters becomes a part of a path.
	if [[ ! $name =~ ^[A-Za-z0-9_-]{1,64}$ || ! -f $etc/$name.toml ]]; then
		say "there is no dataset ${name:0:64}"
		continue
	fi
	if [ $SECONDS -ge $long ]; then
		say "$name is not mounted: the other datasets took too long"
		continue
	fi
	exec 9>"$run/$name.lock"
	if flock --timeout "$timeout" 9; then
		attach "$name"
	else
		say "$name is not mounted: another job mounts it or unmounts it"
	fi
	exec 9>&-
done
printf '%s\n' "${lines[@]}" >"$run/task/$job"
exit $status
