"""Trials of Hugging Face datasets, and of libraries that read files of one format; see trial.py."""
import glob
import io
import os
import random
import tarfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import datasets
import duckdb
import h5py
import lmdb
import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import safetensors
import safetensors.numpy
import webdataset
import zarr
from PIL import Image

import trial

ROWS = 4000


def rows(part):
    """Returns a quarter of a table of 20 MB: random bytes, which no format compresses, and numbers."""
    rng = numpy.random.default_rng(part)
    return {"payload": [rng.bytes(5000) for _ in range(ROWS // 4)],
            "label": rng.integers(0, 10, ROWS // 4), "value": rng.random(ROWS // 4)}


def digest_rows(found):
    return trial.digest(part for row in found for part in (row["payload"], numpy.float64([row["label"], row["value"]])))


def make_arrow(data):
    columns = [rows(part) for part in range(4)]
    whole = {name: [one for column in columns for one in column[name]] for name in columns[0]}
    datasets.Dataset.from_dict(whole).save_to_disk(data, num_shards=4)


def read_arrow(data, epoch, scratch):
    found = datasets.load_from_disk(data).shuffle(seed=epoch, indices_cache_file_name=os.path.join(scratch, "indices"))
    return digest_rows(found)


def refused_arrow(data):
    loaded = datasets.load_from_disk(data)
    yield "map", lambda: loaded.map(lambda row: {"label": row["label"] + 1}, load_from_cache_file=False)
    yield "save_to_disk", lambda: loaded.save_to_disk(os.path.join(data, "new"))
    yield "load_from_disk", lambda: datasets.load_from_disk(os.path.join(data, "missing"))


def make_parquet(data):
    for part in range(4):
        pyarrow.parquet.write_table(pyarrow.table(rows(part)), os.path.join(data, f"part-{part}.parquet"), row_group_size=250)


def parquet_files(data):
    return sorted(glob.glob(os.path.join(data, "*.parquet")))


def read_parquet(data, epoch, scratch):
    """load_dataset converts to Arrow files in a cache, which is not beside the data."""
    found = datasets.load_dataset("parquet", data_files=parquet_files(data), split="train", cache_dir=scratch)
    return digest_rows(found.shuffle(seed=epoch))


def refused_parquet(data):
    yield "cache_dir", lambda: datasets.load_dataset(
        "parquet", data_files=parquet_files(data), split="train", cache_dir=os.path.join(data, "cache"))
    yield "write", lambda: pyarrow.parquet.write_table(pyarrow.table(rows(0)), os.path.join(data, "new.parquet"))
    yield "read", lambda: pyarrow.parquet.read_table(os.path.join(data, "missing.parquet"))


def read_streaming(data, epoch, scratch):
    found = datasets.load_dataset("parquet", data_files=parquet_files(data), split="train", streaming=True, cache_dir=scratch)
    batches = found.shuffle(seed=epoch, buffer_size=500).iter(100)
    return trial.digest(part for batch in batches for part in (*batch["payload"], numpy.array(batch["label"]), numpy.array(batch["value"])))


def make_images(data):
    for number in range(200):
        folder = os.path.join(data, f"class{number % 4}")
        os.makedirs(folder, exist_ok=True)
        noise = numpy.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=numpy.uint8)
        Image.fromarray(noise).save(os.path.join(folder, f"{number:04}.jpg"), quality=90)


def read_images(data, epoch, scratch):
    found = datasets.load_dataset("imagefolder", data_dir=data, split="train", cache_dir=scratch).shuffle(seed=epoch)
    return trial.digest(part for row in found for part in (row["image"].tobytes(), bytes([row["label"]])))


def read_pyarrow(data, epoch, scratch):
    """The files mapped into memory, and two columns of some rows."""
    files = parquet_files(data)
    random.Random(epoch).shuffle(files)
    mapped = [pyarrow.parquet.read_table(file, memory_map=True).column("payload").to_pylist() for file in files]
    some = pyarrow.dataset.dataset(files).to_table(columns=["label", "value"], filter=pyarrow.dataset.field("label") == epoch)
    return [trial.digest(one for column in mapped for one in column), trial.digest([some["value"].to_numpy()])]


def read_duckdb(data, epoch, scratch):
    with duckdb.connect(config={"temp_directory": scratch, "threads": 1}) as db:
        query = f"SELECT label, count(*), sum(value), md5(string_agg(md5(payload), '' ORDER BY value)) FROM '{data}/*.parquet' GROUP BY label ORDER BY label"
        return [[str(one) for one in row] for row in db.execute(query).fetchall()]


def refused_duckdb(data):
    yield "copy", lambda: duckdb.sql(f"COPY (SELECT 1) TO '{data}/new.parquet'")
    yield "open missing", lambda: duckdb.sql(f"SELECT * FROM '{data}/missing.parquet'").fetchall()


def make_safetensors(data):
    for part in range(3):
        rng = numpy.random.default_rng(part)
        safetensors.numpy.save_file({f"layer{n}": rng.random((256, 512), dtype=numpy.float32) for n in range(8)},
                                    os.path.join(data, f"model-{part}.safetensors"))


def read_safetensors(data, epoch, scratch):
    found = []
    for file in sorted(glob.glob(os.path.join(data, "*.safetensors"))):
        with safetensors.safe_open(file, "np") as tensors:
            names = sorted(tensors.keys())
            random.Random(epoch).shuffle(names)
            found += [trial.digest([tensors.get_tensor(name)]) for name in names]
    return found


def refused_safetensors(data):
    new = os.path.join(data, "new.safetensors")
    yield "save_file", lambda: safetensors.numpy.save_file({"a": numpy.zeros(3)}, new)
    yield "safe_open", lambda: safetensors.safe_open(new, "np")


def make_h5py(data):
    with h5py.File(os.path.join(data, "images.h5"), "w") as file:
        noise = numpy.random.default_rng(0).integers(0, 256, (1000, 128, 128), dtype=numpy.uint8)
        file.create_dataset("images", data=noise, chunks=(1, 128, 128))
        file["labels"] = numpy.arange(1000) % 10


def read_h5py(data, epoch, scratch):
    """Random rows. The library locks the file, as it does by default."""
    with h5py.File(os.path.join(data, "images.h5"), "r") as file:
        order = numpy.random.default_rng(epoch).permutation(1000)
        return trial.digest(part for n in order for part in (file["images"][n], file["labels"][n:n + 1]))


def refused_h5py(data):
    yield "r+", lambda: h5py.File(os.path.join(data, "images.h5"), "r+")
    yield "w", lambda: h5py.File(os.path.join(data, "new.h5"), "w")
    yield "open missing", lambda: h5py.File(os.path.join(data, "missing.h5"), "r")


def make_zarr(data):
    noise = numpy.random.default_rng(0).integers(0, 256, (512, 512, 64), dtype=numpy.uint8)
    zarr.create_array(data, data=noise, chunks=(32, 32, 64), compressors=None, overwrite=True)


def read_zarr(data, epoch, scratch):
    """A file for each chunk, in folders of their own."""
    array = zarr.open_array(data, mode="r")
    order = [(x, y) for x in range(0, 512, 32) for y in range(0, 512, 32)]
    random.Random(epoch).shuffle(order)
    return trial.digest(numpy.ascontiguousarray(array[x:x + 32, y:y + 32]) for x, y in order)


def refused_zarr(data):
    def write():
        zarr.open_array(data, mode="r+")[0, 0, 0] = 1
    yield "write", write


def make_lmdb(data):
    with lmdb.open(data, map_size=1 << 26) as db, db.begin(write=True) as transaction:
        for number in range(ROWS):
            transaction.put(f"{number:06}".encode(), numpy.random.default_rng(number).bytes(2000))
    os.remove(os.path.join(data, "lock.mdb"))   # the next writer makes it again


def read_lmdb(data, epoch, scratch):
    keys = [f"{number:06}".encode() for number in range(ROWS)]
    random.Random(epoch).shuffle(keys)
    with lmdb.open(data, readonly=True, lock=False, readahead=False) as db, db.begin() as transaction:
        return trial.digest(transaction.get(key) for key in keys)


def refused_lmdb(data):
    yield "open", lambda: lmdb.open(data)
    yield "lock", lambda: lmdb.open(data, readonly=True)
    yield "open missing", lambda: lmdb.open(os.path.join(data, "missing"), readonly=True, lock=False)


def make_webdataset(data):
    for shard in range(6):
        with tarfile.open(os.path.join(data, f"shard-{shard:03}.tar"), "w") as tar:
            for number in range(100):
                payload = numpy.random.default_rng(shard * 100 + number).bytes(20000)
                for suffix, content in ("bin", payload), ("cls", str(number % 10).encode()):
                    member = tarfile.TarInfo(f"{shard}-{number:04}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def read_webdataset(data, epoch, scratch):
    shards = sorted(glob.glob(os.path.join(data, "*.tar")))
    random.Random(epoch).shuffle(shards)
    samples = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).shuffle(200, rng=random.Random(epoch))
    return trial.digest(part for sample in samples for part in (sample["bin"], sample["cls"]))


trial.Trial("arrow", make_arrow, read_arrow, refused_arrow)
trial.Trial("parquet", make_parquet, read_parquet, refused_parquet)
trial.Trial("streaming", make_parquet, read_streaming)
trial.Trial("images", make_images, read_images)
trial.Trial("pyarrow", make_parquet, read_pyarrow)
trial.Trial("duckdb", make_parquet, read_duckdb, refused_duckdb)
trial.Trial("safetensors", make_safetensors, read_safetensors, refused_safetensors)
trial.Trial("h5py", make_h5py, read_h5py, refused_h5py)
trial.Trial("zarr", make_zarr, read_zarr, refused_zarr)
trial.Trial("lmdb", make_lmdb, read_lmdb, refused_lmdb)
trial.Trial("webdataset", make_webdataset, read_webdataset)

if __name__ == "__main__":
    trial.serve()
