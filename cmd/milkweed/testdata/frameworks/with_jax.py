"""Trials of JAX, and of the files that its programs use; see trial.py."""
import glob
import os

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy
import orbax.checkpoint as orbax
import tensorstore
from array_record.python.array_record_module import ArrayRecordWriter

import trial

SIDE, CLASSES = 32, 4


def record(number):
    """Returns a noisy picture of a class, after a byte with the class."""
    rng, label = numpy.random.default_rng(number), number % CLASSES
    picture = rng.integers(0, 192, (SIDE, SIDE, 3), dtype=numpy.uint8)
    picture[label * 8:label * 8 + 8] += 60
    return bytes([label]) + picture.tobytes()


def make_array_record(data):
    """16 files of 400 records: 20 MB."""
    for shard in range(16):
        writer = ArrayRecordWriter(os.path.join(data, f"images-{shard:02}.array_record"), "group_size:1")
        for number in range(shard * 400, shard * 400 + 400):
            writer.write(record(number))
        writer.close()


def shuffled(data, epoch):
    """grain reads the records in a random order, with two threads."""
    source = grain.ArrayRecordDataSource(sorted(glob.glob(os.path.join(data, "*.array_record"))))
    dataset = grain.MapDataset.source(source).shuffle(seed=epoch).batch(64, batch_fn=list)
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))


@jax.jit
def step(weights, pictures, labels):
    """Returns the loss of a linear model, and the weights after a step."""
    def loss(weights):
        return -jnp.mean(jax.nn.log_softmax(pictures @ weights)[jnp.arange(len(labels)), labels])
    value, gradient = jax.value_and_grad(loss)(weights)
    return value, weights - 0.01 * gradient


def read_array_record(data, epoch, scratch):
    weights, losses = jnp.zeros((SIDE * SIDE * 3, CLASSES)), []
    for batch in shuffled(data, epoch):
        raw = numpy.stack([numpy.frombuffer(one, numpy.uint8) for one in batch])
        value, weights = step(weights, raw[:, 1:].astype(numpy.float32) / 255, raw[:, 0].astype(numpy.int32))
        losses.append(float(value).hex())
    return {"losses": losses, "weights": trial.digest([numpy.array(weights)])}


def tree():
    return {f"layer{n}": numpy.random.default_rng(n).random((512, 1024), dtype=numpy.float32) for n in range(8)}


def make_orbax(data):
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.join(data, "step"), tree())


def read_orbax(data, epoch, scratch):
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(os.path.join(data, "step"), tree())
    return {name: trial.digest([numpy.array(value)]) for name, value in found.items()}


def refused_orbax(data):
    def save():
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(os.path.join(data, "new"), {"a": numpy.zeros(3)})
    yield "save", save


def spec(data):
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": data + "/array"}}


def make_tensorstore(data):
    noise = numpy.random.default_rng(0).integers(0, 256, (512, 512, 64), dtype=numpy.uint8)
    array = tensorstore.open(spec(data), create=True, dtype=tensorstore.uint8, shape=noise.shape,
                             chunk_layout=tensorstore.ChunkLayout(chunk_shape=[64, 64, 64])).result()
    array.write(noise).result()


def read_tensorstore(data, epoch, scratch):
    array = tensorstore.open(spec(data), read=True).result()
    order = [(x, y) for x in range(0, 512, 64) for y in range(0, 512, 64)]
    numpy.random.default_rng(epoch).shuffle(order)
    return trial.digest(numpy.ascontiguousarray(array[x:x + 64, y:y + 64].read().result()) for x, y in order)


trial.Trial("array_record", make_array_record, read_array_record)
trial.Trial("orbax", make_orbax, read_orbax, refused_orbax)
trial.Trial("tensorstore", make_tensorstore, read_tensorstore)

if __name__ == "__main__":
    trial.serve()
