#!/usr/bin/env python3
"""Read an ImageFolder dataset of JPEG files with a PyTorch DataLoader, as a training job does.

    imagefolder.py make OUT N    writes N images of 500x375 pixels, about 110 KB each, in 10 classes
    imagefolder.py epoch DATA    reads DATA once, in random order, and prints the time in seconds

An epoch decodes each image, crops and scales it to 224x224, and makes batches of 32, with 2
workers. The time begins when the workers have started, and ends with the last batch.
"""
import sys
import time
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def make(out, number):
    rng = numpy.random.default_rng(1)
    for i in range(number):
        folder = out / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (94, 125, 3), numpy.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        image.save(folder / f"{i:05}.jpg", quality=92)


def epoch(data):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    loader = DataLoader(ImageFolder(data, crop), batch_size=32, shuffle=True, num_workers=2)
    batches = iter(loader)
    start = time.monotonic()
    images = sum(len(labels) for _, labels in batches)
    seconds = time.monotonic() - start
    assert images == len(loader.dataset)
    print(seconds)


if __name__ == "__main__":
    {"make": lambda: make(Path(sys.argv[2]), int(sys.argv[3])), "epoch": lambda: epoch(sys.argv[2])}[sys.argv[1]]()
