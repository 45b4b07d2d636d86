#!/bin/bash
# node.sh runs on each node of the step. It mounts the dataset, trains, unmounts and
# removes the copies, also if the step gets SIGTERM. Its arguments are passed to milkweed
# mount.
set -euo pipefail

# Some sites do not create a scratch folder for each job.
scratch=
if [ -z "${SLURM_TMPDIR:-}" ]; then
	scratch=/tmp/$USER-$SLURM_JOB_ID
	export SLURM_TMPDIR=$scratch
fi
data=$SLURM_TMPDIR/imagenet
mkdir -p "$data"

finish() {
	local code=$?
	trap '' TERM                # nothing below is interrupted by another one
	milkweed status || true     # prints the use of each tier to the output of the job
	milkweed umount "$data" || fusermount3 -u -z "$data" || true
	rm -rf "/dev/shm/milkweed-$SLURM_JOB_ID" "/tmp/milkweed-$SLURM_JOB_ID-"*.key
	[ -z "$scratch" ] || rm -rf --one-file-system "$scratch"
	# The first task that fails ends the step: leave the other nodes time to finish, too.
	[ $code = 0 ] || sleep 5
}
trap finish EXIT
# A step that is to end gets SIGTERM, if it is not killed at once; see README.md.
trap 'exit 143' TERM

milkweed mount -c hpc-node.toml "$@"     # returns when the mount is ready

# Each torchrun has these options: names with dashes came with PyTorch 2.0. That of Debian 12
# (PyTorch 1.13, Python 3.11) fails with the defaults of --redirects and --tee. With these values,
# the output of local rank 9 goes to a file, too. Without --log_dir, files of it stay in /tmp.
torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:-1}" \
	--rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:29500" \
	--redirects=9:1 --tee=9:1 --log_dir="$SLURM_TMPDIR/torchrun" \
	train.py "$data"
