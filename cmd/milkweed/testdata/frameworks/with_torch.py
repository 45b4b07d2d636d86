"""Trials of PyTorch and of MosaicML streaming; see trial.py."""
import os

import numpy
import streaming
import torch
import torchvision
from PIL import Image

import trial

SIDE, CLASSES = 64, 4


def picture(number):
    """Returns a noisy picture of a class, and the class."""
    rng, label = numpy.random.default_rng(number), number % CLASSES
    pixels = rng.integers(0, 192, (SIDE, SIDE, 3), dtype=numpy.uint8)
    pixels[label * 16:label * 16 + 16] += 60
    return pixels, label


def make_images(data):
    for number in range(800):
        pixels, label = picture(number)
        folder = os.path.join(data, f"class{label}")
        os.makedirs(folder, exist_ok=True)
        Image.fromarray(pixels).save(os.path.join(folder, f"{number:04}.jpg"), quality=95)


def train(batches):
    """Trains a linear model, and returns the losses and a digest of the weights."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model, losses = torch.nn.Linear(SIDE * SIDE * 3, CLASSES), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for pictures, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(pictures.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return {"losses": losses, "weights": trial.digest(p.detach().numpy() for p in model.parameters())}


def read_images(data, epoch, scratch):
    """A DataLoader with two worker processes reads a folder of images in a random order."""
    dataset = torchvision.datasets.ImageFolder(data, torchvision.transforms.ToTensor())
    order = torch.Generator().manual_seed(epoch)
    return train(torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, generator=order, num_workers=2))


def make_checkpoint(data):
    torch.save({f"layer{n}": torch.from_numpy(numpy.random.default_rng(n).random((512, 1024), dtype=numpy.float32))
                for n in range(8)}, os.path.join(data, "model.pt"))


def read_checkpoint(data, epoch, scratch):
    """torch.load, with the file mapped into memory in the second epoch."""
    found = torch.load(os.path.join(data, "model.pt"), mmap=epoch > 0, weights_only=True)
    return {name: trial.digest([value.numpy()]) for name, value in found.items()}


def refused_checkpoint(data):
    yield "save", lambda: torch.save({}, os.path.join(data, "new.pt"))
    yield "load", lambda: torch.load(os.path.join(data, "missing.pt"))


def make_streaming(data):
    columns = {"pixels": "bytes", "label": "int"}
    with streaming.MDSWriter(out=data, columns=columns, size_limit=1 << 21) as out:
        for number in range(1600):
            pixels, label = picture(number)
            out.write({"pixels": pixels.tobytes(), "label": label})


def digest_samples(dataset):
    return trial.digest(part for row in dataset for part in (row["pixels"], numpy.int64([row["label"]])))


def read_streaming(data, epoch, scratch):
    """The mount is the remote folder, and the library copies it to a local one."""
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(remote=data, local=scratch + "/local", shuffle=True, shuffle_seed=epoch, batch_size=64)
    return digest_samples(dataset)


def read_streaming_local(data, epoch, scratch):
    """The mount is the local folder: nothing is copied by the library."""
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=data, shuffle=True, shuffle_seed=epoch, batch_size=64)
    return digest_samples(dataset)


trial.Trial("images", make_images, read_images)
trial.Trial("checkpoint", make_checkpoint, read_checkpoint, refused_checkpoint)
trial.Trial("mosaicml remote", make_streaming, read_streaming)
trial.Trial("mosaicml local", make_streaming, read_streaming_local)

if __name__ == "__main__":
    trial.serve()
