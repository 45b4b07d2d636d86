#!/usr/bin/env python3
"""Read a tree through a mount, as a training job does, and compare it with the source.

    epoch.py SOURCE MOUNT              reads each file once, in random order, with several readers
    epoch.py SOURCE MOUNT --pieces     each reader reads all files in random order: small files
                                       whole, and a third of each large file in odd pieces
    --readers N                        number of processes (default 4)
    --seed N                           varies the orders

The page cache of a file is dropped before the file is read, so that the mount serves the reads.
Each reader prints its first difference or error, and the exit status is then 1.
"""
import argparse
import os
import random
import sys

LARGE = 1 << 20


def names(top):
    """Returns the names of the files below top, sorted."""
    return sorted(os.path.relpath(os.path.join(folder, name), top)
                  for folder, _, found in os.walk(top) for name in found)


def whole(size, rng):
    """Returns the ranges of a sequential read of the whole file."""
    return [(offset, 1 << 18) for offset in range(0, size, 1 << 18)]


def pieces(size, rng):
    """Returns ranges of odd sizes, about a third of a large file, in random order."""
    if size < LARGE:
        return whole(size, rng)
    return [(rng.randrange(size), rng.randrange(1, 1 << 16)) for _ in range(size // 3 // (1 << 15))]


def compare(source, mount, ranges, rng):
    with open(source, "rb") as file:
        want = file.read()
    fd = os.open(mount, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if (size := os.fstat(fd).st_size) != len(want):
            sys.exit(f"{mount}: {size} bytes, at the source {len(want)}")
        for offset, length in ranges(size, rng):
            if os.pread(fd, length, offset) != want[offset:offset + length]:
                sys.exit(f"{mount}: wrong bytes at {offset}+{length}")
    finally:
        os.close(fd)


def reader(number, args):
    order = names(args.source)
    if args.pieces:
        random.Random(f"{args.seed} {number}").shuffle(order)
    else:
        random.Random(args.seed).shuffle(order)
        order = order[number::args.readers]
    rng = random.Random(f"{args.seed} {number}")
    for name in order:
        compare(os.path.join(args.source, name), os.path.join(args.mount, name), pieces if args.pieces else whole, rng)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("source")
    parser.add_argument("mount")
    parser.add_argument("--pieces", action="store_true")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    children = []
    for number in range(args.readers):
        child = os.fork()
        if child == 0:
            reader(number, args)
            return 0
        children.append(child)
    return int(any([os.waitpid(child, 0)[1] != 0 for child in children]))


if __name__ == "__main__":
    sys.exit(main())
