"""A job of PyTorch with partial local shuffling: job.py MOUNT SOURCE Q RANKS RANK [NODES]

Each line of the standard input is the number of an epoch. The job reads its samples of the epoch with
a DataLoader, compares their content with SOURCE, and prints their indices as JSON.
"""
import json
import os
import sys

import torch

import milkweed

MOUNT, SOURCE, Q, RANKS, RANK = sys.argv[1:6]


class Files(torch.utils.data.Dataset):
    def __init__(self):
        self.names = sorted(
            os.path.relpath(os.path.join(folder, name), SOURCE) for folder, _, names in os.walk(SOURCE) for name in names)
        self.samples = [(os.path.join(MOUNT, name), 0) for name in self.names]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        with open(self.samples[index][0], "rb") as got, open(os.path.join(SOURCE, self.names[index]), "rb") as want:
            if got.read() != want.read():
                raise ValueError(f"{self.names[index]} has other content")
        return index


def main():
    torch.set_num_threads(1)
    dataset = Files()
    nodes = os.getxattr(MOUNT, "user.milkweed.node").split(b"/")[1]
    sampler = milkweed.LocalShuffle(dataset.samples, MOUNT, q=float(Q), seed=1, local_rank=int(RANK), local_ranks=int(RANKS), nodes=int(nodes))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=1)
    print("ready", flush=True)
    for line in sys.stdin:
        sampler.set_epoch(int(line))
        print(json.dumps([index for batch in loader for index in batch.tolist()]), flush=True)


main()
