#!/usr/bin/env python3
"""Read an ImageFolder dataset of JPEG files with a PyTorch DataLoader, as a training job does.

    imagefolder.py make OUT N    writes N images of 500x375 pixels, about 110 KB each, in 10 classes
    imagefolder.py epoch DATA    reads DATA once, in random order, and prints the time in seconds
    imagefolder.py train DATA    the same with an accelerator; prints its utilisation
    imagefolder.py plan MOUNT    the same; hands the order over to the mount

An epoch decodes each image, crops and scales it to 224x224, and makes batches of 32, with 2
workers. The time begins when the workers have started, and ends with the last batch. The
accelerator sleeps for STEP seconds a batch. Its utilisation is the share of the time after the
first second in which it does not wait for a batch.
"""
import collections
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/pytorch"))

import milkweed

BATCH, WORKERS, STEP = 32, 2, 0.12


def make(out, number):
    import numpy
    from PIL import Image

    rng = numpy.random.default_rng(1)
    for i in range(number):
        folder = out / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (94, 125, 3), numpy.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        image.save(folder / f"{i:05}.jpg", quality=92)


def batches(data, plan=False):
    """Returns an iterator over the batches of an epoch. Its workers have started."""
    import torch    # takes seconds, which make() does not need
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    torch.manual_seed(1)
    torch.set_num_threads(1)
    crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    images = ImageFolder(data, crop)
    sampler = RandomSampler(images)
    if plan:
        paths = [path for path, _ in images.samples]
        sampler = milkweed.planned(sampler, paths, data, lead=WORKERS * 2 * BATCH)
    return iter(DataLoader(images, BATCH, sampler=sampler, num_workers=WORKERS))


def epoch(data):
    loader = batches(data)
    start = time.monotonic()
    collections.deque(loader, 0)
    print(time.monotonic() - start)


def train(data, plan=False):
    loader = batches(data, plan)
    start = time.monotonic() + 1
    waited = 0.0
    while True:
        before = max(time.monotonic(), start)
        batch = next(loader, None)
        now = time.monotonic()
        if batch is None:
            break
        waited += max(0.0, now - before)
        time.sleep(STEP)
    print(1 - waited / (now - start))


if __name__ == "__main__":
    command, data = sys.argv[1:3]
    if command == "make":
        make(Path(data), int(sys.argv[3]))
    elif command == "epoch":
        epoch(data)
    else:
        train(data, command == "plan")
