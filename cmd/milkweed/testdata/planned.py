#!/usr/bin/env python3
"""Read the files of a mount with a DataLoader that hands over its order.

    planned.py SOURCE MOUNT    compares each file with the source; fails if there is a warning
"""
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/pytorch"))

from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import milkweed


class Files(Dataset):
    def __init__(self, source, mount):
        self.source = source
        self.paths = sorted(path for path in mount.rglob("*") if path.is_file())
        self.names = [path.relative_to(mount) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return index, self.paths[index].read_bytes() == (self.source / self.names[index]).read_bytes()


source, mount = map(Path, sys.argv[1:])
files = Files(source, mount)
sampler = milkweed.planned(DistributedSampler(files, 1, 0), files.paths, mount, lead=2 * 2 * 8)
loader = DataLoader(files, batch_size=8, sampler=sampler, num_workers=2, collate_fn=list)
with warnings.catch_warnings(record=True) as caught:
    equal = [index for batch in loader for index, same in batch if same]
if sorted(equal) != list(range(len(files))):
    sys.exit(f"{len(equal)} of {len(files)} files are equal")
if caught:
    sys.exit(caught[0].message)
