#!/usr/bin/env python3
"""Train a small network on an ImageFolder dataset with torchvision and a DataLoader with workers.

    train.py DATA           reads DATA/train/<class>/*.png

On one machine, the same seed, number of workers and batch size give exactly the same losses.
"""
import argparse
import os
import sys
import time

# cuBLAS is deterministic only with a fixed workspace. It reads this variable when CUDA starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="folder with train/<class>/<image>")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="processes that read and decode images (default 2)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan", action="store_true", help="DATA is a Milkweed mount: hand over the order of the images")
    parser.add_argument("--losses", metavar="FILE", help="write the loss of each step to FILE as a hexadecimal float")
    parser.add_argument("--verbose", action="store_true", help="print the loss of each step")
    return parser.parse_args()


def make_deterministic(seed):
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)    # with several threads the order of sums varies, and with it the rounding


def dataset(folder):
    return ImageFolder(os.path.join(folder, "train"), transforms.Compose([
        transforms.Grayscale(),
        transforms.RandomCrop(32, padding=2),
        transforms.ToTensor(),
    ]))


def loader(images, args, device):
    workers = {"multiprocessing_context": "fork", "persistent_workers": True} if args.workers else {}
    generator = torch.Generator().manual_seed(args.seed)
    sampler = RandomSampler(images, generator=generator)    # that of shuffle=True
    if args.plan:
        import milkweed     # milkweed.py, beside this script
        sampler = milkweed.planned(sampler, [path for path, _ in images.samples], args.data,
                                   lead=2 * args.workers * args.batch)
    return DataLoader(images, batch_size=args.batch, sampler=sampler, num_workers=args.workers,
                      generator=generator, pin_memory=device.type == "cuda", **workers)


def network(classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 8 * 8, classes))


def steps(model, optimizer, batches, device):
    """Trains one epoch. Yields the loss, the number of correct predictions and the size of each batch."""
    for images, labels in batches:
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item(), (scores.argmax(1) == labels).sum().item(), len(labels)


def main():
    args = arguments()
    make_deterministic(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = dataset(args.data)
    batches = loader(images, args, device)
    model = network(len(images.classes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"{len(images)} images, {len(images.classes)} classes, on {device}", flush=True)

    losses = []
    for epoch in range(1, args.epochs + 1):
        start, total, hits, seen = time.perf_counter(), 0.0, 0, 0
        for loss, hit, size in steps(model, optimizer, batches, device):
            losses.append(loss)
            total, hits, seen = total + loss * size, hits + hit, seen + size
            if args.verbose:
                print(f"epoch {epoch} step {len(losses)} loss {loss!r}", flush=True)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {total / seen!r}, accuracy {hits / seen:.4f}, "
              f"{seconds:.2f} s, {seen / seconds:.0f} images/s", flush=True)

    if args.losses:
        with open(args.losses, "w") as out:
            out.writelines(loss.hex() + "\n" for loss in losses)


if __name__ == "__main__":
    sys.exit(main())
