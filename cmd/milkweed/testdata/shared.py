#!/usr/bin/env python3
"""Read the share of one process of a distributed job with a DataLoader.

    shared.py SOURCE MOUNT REPLICAS RANK EPOCHS [--shuffle]

compares each file with the source, and prints the number of bytes that each epoch has read.
"""
import sys
from pathlib import Path

from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Files(Dataset):
    def __init__(self, source, mount):
        self.source = source
        self.paths = sorted(path for path in mount.rglob("*") if path.is_file())
        self.names = [path.relative_to(mount) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = self.paths[index].read_bytes()
        return len(data), data == (self.source / self.names[index]).read_bytes()


source, mount = map(Path, sys.argv[1:3])
replicas, rank, epochs = map(int, sys.argv[3:6])
files = Files(source, mount)
sampler = DistributedSampler(files, replicas, rank, shuffle="--shuffle" in sys.argv)
loader = DataLoader(files, batch_size=8, sampler=sampler, num_workers=2, collate_fn=list)
for epoch in range(epochs):
    read = [item for batch in loader for item in batch]
    if not all(same for _, same in read):
        sys.exit("a file differs from the source")
    print(sum(size for size, _ in read))
