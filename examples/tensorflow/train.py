#!/usr/bin/env python3
"""Train a small network on TFRecord files with tf.data and Keras.

    train.py DATA           reads DATA/*.tfrecord, which tfrecord.py writes
"""
import argparse
import glob
import itertools
import os
import random

import tensorflow as tf

SIDE, CLASSES = 32, 10


def parse(record):
    example = tf.io.parse_single_example(record, {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_png(example["image"], channels=1)
    return tf.ensure_shape(tf.cast(image, tf.float32) / 255, [SIDE, SIDE, 1]), example["label"]


def planned_files(mount, pattern, seed):
    """Returns a dataset of file names like list_files, which tells a mount the order of each epoch."""
    import milkweed     # ../pytorch/milkweed.py, copied to this folder

    names, shuffler, epochs = sorted(glob.glob(pattern)), random.Random(seed), itertools.count()

    def order():    # is called at the beginning of each epoch
        shuffler.shuffle(names)
        milkweed.plan(names, mount, epoch=next(epochs), lead=4)
        yield from list(names)

    return tf.data.Dataset.from_generator(order, output_signature=tf.TensorSpec((), tf.string))


def dataset(folder, batch, seed, plan):
    pattern = os.path.join(folder, "*.tfrecord")
    if plan:
        files = planned_files(folder, pattern, seed)
    else:
        files = tf.data.Dataset.list_files(pattern, shuffle=True, seed=seed)
    return (files
            .interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
            .shuffle(2048, seed=seed)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(batch)
            .prefetch(tf.data.AUTOTUNE))


def network():
    return tf.keras.Sequential([
        tf.keras.Input((SIDE, SIDE, 1)),
        tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu"), tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"), tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(), tf.keras.layers.Dense(CLASSES),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="folder with *.tfrecord")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="images per step (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan", action="store_true", help="DATA is a Milkweed mount: hand over the order of the files")
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(args.seed)
    model = network()
    model.compile(optimizer="adam", metrics=["accuracy"],
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(dataset(args.data, args.batch, args.seed, args.plan), epochs=args.epochs, verbose=2)


if __name__ == "__main__":
    main()
