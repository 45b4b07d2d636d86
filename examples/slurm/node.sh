#!/bin/bash
# node.sh: what one node does in the step. It mounts the dataset, trains, and
# takes everything away again, also when the job is cancelled or out of time.
set -euo pipefail

# Not every site gives a job a scratch folder of its own.
own=
if [ -z "${SLURM_TMPDIR:-}" ]; then
	own=/tmp/$USER-$SLURM_JOB_ID
	export SLURM_TMPDIR=$own
fi
data=$SLURM_TMPDIR/imagenet
mkdir -p "$data"

finish() {
	milkweed status || true     # into the job's output: what each tier held and served
	milkweed umount "$data" || fusermount3 -u -z "$data" || true
	rm -rf "/dev/shm/milkweed-$SLURM_JOB_ID"
	[ -z "$own" ] || rm -rf --one-file-system "$own"
}
trap finish EXIT
trap 'exit 143' TERM                # Slurm signals every process of the step, then waits 30 s (KillWait)

milkweed mount -c hpc-node.toml     # returns when the mount is ready

torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
	--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:29500" \
	train.py "$data"
