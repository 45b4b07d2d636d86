"""Trials of TensorFlow and Keras; see trial.py."""
import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy
import tensorflow as tf

import trial

SIDE, CLASSES = 64, 4


def image(number):
    """Returns a noisy picture of a class, and the class."""
    rng, label = numpy.random.default_rng(number), number % CLASSES
    picture = rng.integers(0, 192, (SIDE, SIDE, 3), dtype=numpy.uint8)
    picture[label * 16:label * 16 + 16] += 60
    return picture, label


def make_records(data):
    """48 files of 32 records, of uncompressed pictures: 19 MB."""
    for shard in range(48):
        with tf.io.TFRecordWriter(os.path.join(data, f"images-{shard:02}.tfrecord")) as file:
            for number in range(shard * 32, shard * 32 + 32):
                picture, label = image(number)
                file.write(tf.train.Example(features=tf.train.Features(feature={
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture.tobytes()])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                })).SerializeToString())


def parse(record):
    example = tf.io.parse_single_example(record, {
        "image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)})
    picture = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [SIDE, SIDE, 3])
    return tf.cast(picture, tf.float32), example["label"]


def records(data, epoch):
    return (tf.data.Dataset.list_files(os.path.join(data, "*.tfrecord"), shuffle=True, seed=epoch)
            .interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
            .shuffle(256, seed=epoch)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(64)
            .prefetch(tf.data.AUTOTUNE))


class Losses(tf.keras.callbacks.Callback):
    """Keeps the loss of each step, to the last bit."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]).hex())


def network():
    """Returns a network that is the same at each call."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([
        tf.keras.Input((SIDE, SIDE, 3)), tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.AveragePooling2D(4),
        tf.keras.layers.Conv2D(8, 3, activation="relu"), tf.keras.layers.Flatten(), tf.keras.layers.Dense(CLASSES)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(dataset):
    """Trains for an epoch, and returns the losses and a digest of the weights."""
    tf.keras.backend.clear_session()
    model, losses = network(), Losses()
    model.fit(dataset, verbose=0, callbacks=[losses])
    return {"losses": losses.losses, "weights": trial.digest(numpy.ascontiguousarray(w) for w in model.get_weights())}


def read_records(data, epoch, scratch):
    return train(records(data, epoch))


def refused_records(data):
    new, missing = os.path.join(data, "new"), os.path.join(data, "missing")
    first = os.path.join(data, "images-00.tfrecord")
    yield "writer", lambda: tf.io.TFRecordWriter(new)
    yield "save", lambda: network().save(os.path.join(data, "model.keras"))
    yield "checkpoint", lambda: tf.train.Checkpoint(v=tf.Variable(1)).write(new)
    yield "gfile remove", lambda: tf.io.gfile.remove(first)
    yield "gfile makedirs", lambda: tf.io.gfile.makedirs(new)
    yield "read_file", lambda: tf.io.read_file(missing)
    yield "dataset", lambda: list(tf.data.TFRecordDataset(missing))
    yield "cache", lambda: list(tf.data.Dataset.range(3).cache(new))
    yield "directory", lambda: tf.io.read_file(data)


def make_images(data):
    """400 JPEG files in folders of classes: 4 MB."""
    for number in range(400):
        picture, label = image(number)
        folder = os.path.join(data, f"class{label}")
        os.makedirs(folder, exist_ok=True)
        tf.io.write_file(os.path.join(folder, f"{number:04}.jpg"), tf.io.encode_jpeg(picture, quality=95))


def read_images(data, epoch, scratch):
    """Keras reads a folder of images."""
    return train(tf.keras.utils.image_dataset_from_directory(
        data, image_size=(SIDE, SIDE), batch_size=64, shuffle=True, seed=epoch, verbose=False))


def read_tf_data(data, epoch, scratch):
    """tf.data lists with glob, and reads whole files in an order of its own."""
    files = tf.data.Dataset.list_files(os.path.join(data, "*", "*.jpg"), shuffle=True, seed=epoch)
    whole = files.map(lambda name: tf.io.read_file(name), num_parallel_calls=4).batch(32)
    listed = sorted(os.path.relpath(os.path.join(folder, name), data)
                    for folder, _, names in tf.io.gfile.walk(data) for name in names)
    return {"bytes": trial.digest(one for batch in whole.as_numpy_iterator() for one in batch),
            "names": trial.digest(name.encode() for name in listed)}


def read_service(data, epoch, scratch):
    """Each worker of a tf.data service reads all records. Their order is not fixed."""
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    workers = [tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
    dataset = (tf.data.Dataset.list_files(os.path.join(data, "*.tfrecord"), shuffle=True, seed=epoch)
               .interleave(tf.data.TFRecordDataset, cycle_length=4)
               .apply(tf.data.experimental.service.distribute(
                   processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=dispatcher.target)))
    found = sorted(trial.digest([one]) for one in dataset.as_numpy_iterator())
    del workers
    return {"records": len(found), "bytes": trial.digest(one.encode() for one in found)}


@functools.cache
def workers():
    """Returns the strategy of the workers in $TF_CONFIG, of which this process is one."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def read_two_workers(data, epoch, scratch):
    """Each of two workers trains a linear model on its share of the files, and they add their gradients."""
    strategy, options = workers(), tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    batches = iter(strategy.experimental_distribute_dataset(records(data, epoch).with_options(options)))
    with strategy.scope():
        weights = tf.Variable(tf.zeros((SIDE * SIDE * 3, CLASSES)), aggregation=tf.VariableAggregation.SUM)

    def gradient_step(pictures, labels):
        flat = tf.reshape(pictures, (-1, SIDE * SIDE * 3)) / 255
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, flat @ weights))
        weights.assign_sub(0.001 * tape.gradient(loss, weights))
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(gradient_step, args=batch), axis=None)

    return [float(step(next(batches))).hex() for _ in range(24)]


trial.Trial("records", make_records, read_records, refused_records)
trial.Trial("images", make_images, read_images)
trial.Trial("tf.data", make_images, read_tf_data)
trial.Trial("tf.data service", make_records, read_service)
trial.Trial("two workers", make_records, read_two_workers)

if __name__ == "__main__":
    tf.keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    if "TF_CONFIG" in os.environ:
        workers()   # before any other operation
    trial.serve()
