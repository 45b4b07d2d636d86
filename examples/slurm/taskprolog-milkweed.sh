#!/bin/bash
# A TaskProlog for Slurm. It gives the mount points of prolog-milkweed.sh to the tasks of the
# job: MILKWEED_DATASET is that of the first dataset, and MILKWEED_DATASET_IMAGENET that of
# imagenet. The first task of a node also gets the messages of the prolog.
#
# slurmstepd runs it as the user of the job before each task, and interprets its output.
# If it fails, Slurm cancels the task.
[[ ${SLURM_JOB_ID:-} =~ ^[0-9]+$ ]] || exit 0
file=/run/milkweed-slurm/task/$SLURM_JOB_ID
[ -r "$file" ] || exit 0
while IFS= read -r line; do
	[[ $line == print* && ${SLURM_LOCALID:-0} != 0 ]] || printf '%s\n' "$line"
done <"$file"
exit 0
