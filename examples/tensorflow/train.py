#!/usr/bin/env python3
"""Train a small network on TFRecord files with tf.data and Keras.

    train.py DATA           reads DATA/*.tfrecord, which tfrecord.py writes
"""
import argparse
import os

import tensorflow as tf

SIDE, CLASSES = 32, 10


def parse(record):
    example = tf.io.parse_single_example(record, {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_png(example["image"], channels=1)
    return tf.ensure_shape(tf.cast(image, tf.float32) / 255, [SIDE, SIDE, 1]), example["label"]


def dataset(folder, batch, seed):
    files = tf.data.Dataset.list_files(os.path.join(folder, "*.tfrecord"), shuffle=True, seed=seed)
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
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(args.seed)
    model = network()
    model.compile(optimizer="adam", metrics=["accuracy"],
                  loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(dataset(args.data, args.batch, args.seed), epochs=args.epochs, verbose=2)


if __name__ == "__main__":
    main()
