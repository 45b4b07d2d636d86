"""A job of PyTorch on one of several nodes.

Each line of the standard input is the number of an epoch. The job reads its samples of the epoch with
a DataLoader, compares their content with the source, and prints a line of JSON: the indices of the
samples, and the utilisation of an accelerator whose compute time is emulated by a sleep.
"""
import argparse
import json
import os
import sys
import time

import torch

import milkweed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("mount")
parser.add_argument("source")
parser.add_argument("--q", type=float, help="partial local shuffling with this fraction; without it, global shuffling")
parser.add_argument("--nodes", type=int, required=True)
parser.add_argument("--node", type=int, required=True)
parser.add_argument("--ranks", type=int, default=1, help="on each node")
parser.add_argument("--rank", type=int, default=0, help="of this process on its node")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--compute", type=float, default=0, help="seconds of a step")
options = parser.parse_args()


class Files(torch.utils.data.Dataset):
    def __init__(self):
        self.names = sorted(
            os.path.relpath(os.path.join(folder, name), options.source)
            for folder, _, names in os.walk(options.source) for name in names)
        self.samples = [(os.path.join(options.mount, name), 0) for name in self.names]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        with open(self.samples[index][0], "rb") as got, open(os.path.join(options.source, self.names[index]), "rb") as want:
            if got.read() != want.read():
                raise ValueError(f"{self.names[index]} has other content")
        return index


def main():
    torch.set_num_threads(1)
    dataset = Files()
    if options.q is None:
        sampler = torch.utils.data.DistributedSampler(
            dataset, options.nodes * options.ranks, options.node * options.ranks + options.rank, seed=1)
    else:
        sampler = milkweed.LocalShuffle(
            dataset.samples, options.mount, q=options.q, seed=1,
            local_rank=options.rank, local_ranks=options.ranks, nodes=options.nodes)
    loader = torch.utils.data.DataLoader(dataset, options.batch, sampler=sampler, num_workers=1, prefetch_factor=4)
    print("ready", flush=True)
    for line in sys.stdin:
        sampler.set_epoch(int(line))
        indices, steps = [], 0
        for batch in loader:
            indices += batch.tolist()
            if steps == 0:
                began = time.monotonic()    # the first step does not count, as in MLPerf Storage
            time.sleep(options.compute)
            steps += 1
        elapsed = time.monotonic() - began
        print(json.dumps({"samples": indices, "utilisation": steps * options.compute / elapsed if elapsed else 0}), flush=True)


main()
