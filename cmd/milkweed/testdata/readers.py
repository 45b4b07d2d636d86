#!/usr/bin/env python3
"""Read a tree through a mount with various methods, and compare it with the source.

    readers.py METHOD[,METHOD...] SOURCE MOUNT [--seed N]    "all" runs all methods
    readers.py make DIR [--seed N] [--small N] [--large N] [--large-mib N] [--special]
    readers.py list                                          lists the methods

The seed varies orders and offsets. Each method prints a line with the number of files and bytes
that it compared. The program prints the first difference or error with its file and offset, and
exits with status 1. A method that finds no file to read is an error.
"""
import argparse
import concurrent.futures
import contextlib
import errno
import itertools
import mmap
import multiprocessing
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "tensorflow"))  # tfrecord.py

MIB = 1 << 20
PAGE = mmap.PAGESIZE


class Difference(Exception):
    """The mount differs from the source."""


# Methods that read the bytes of any file. Each takes the path in the mount, the size of the file in
# the source and a random.Random. It yields (offset, bytes) in any order, which together must cover
# the whole file.

def read(path, size, rng):
    """open(path, "rb").read()"""
    with open(path, "rb") as file:
        yield 0, file.read()


def readinto(path, size, rng):
    """readinto a buffer of an odd size, without buffering"""
    buffer = bytearray(65537)
    with open(path, "rb", buffering=0) as file:
        offset = 0
        while n := file.readinto(buffer):
            yield offset, bytes(buffer[:n])
            offset += n


def pread_random(path, size, rng):
    """pread of overlapping ranges in random order"""
    step = max(1, min(size // 64, MIB))
    # Each range starts at most one step early and is at least 2 steps long, so it covers its step.
    ranges = [(max(0, offset - rng.randrange(step)), rng.randrange(2 * step, 3 * step)) for offset in range(0, size, step)]
    rng.shuffle(ranges)
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset, length in ranges:
            yield offset, pread(fd, length, offset)
        yield size, os.pread(fd, 4096, size)            # at the end of the file and beyond it: no bytes
        yield size, os.pread(fd, 4096, size + 12345)
    finally:
        os.close(fd)


def pread(fd, length, offset):
    """Returns length bytes, or fewer at the end of the file."""
    out = b""
    while len(out) < length and (more := os.pread(fd, length - len(out), offset + len(out))):
        out += more
    return out


def seek(path, size, rng):
    """backwards, strided and forwards, with fadvise, through a buffered file"""
    step = max(1, min(size // 16, 256 * 1024))
    starts = list(range(0, size, step))
    with open(path, "rb") as file:
        advice = rng.choice([os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_RANDOM, os.POSIX_FADV_WILLNEED])
        os.posix_fadvise(file.fileno(), 0, 0, advice)
        end = file.seek(0, os.SEEK_END)
        if end != size:
            raise Difference(f"the end is at {end}, not at {size}")
        for order in starts[::-1], starts[::3] + starts[1::3] + starts[2::3]:
            for offset in order:
                file.seek(offset)
                yield offset, file.read(step)
        file.seek(0)
        offset = 0
        while line := file.readline(1 << 16):
            yield offset, line
            offset += len(line)


def seek_hole(path, size, rng):
    """only the data that SEEK_DATA and SEEK_HOLE report, with zeros for holes, as cp and tar do"""
    fd = os.open(path, os.O_RDONLY)
    try:
        offset = 0
        while offset < size:
            data = data_from(fd, offset, size)
            yield offset, bytes(data - offset)
            offset = os.lseek(fd, data, os.SEEK_HOLE) if data < size else size
            if not data <= offset <= size or offset == data < size:
                raise Difference(f"data at {data} ends at {offset}, in a file of {size} bytes")
            yield data, pread(fd, offset - data, data)
    finally:
        os.close(fd)


def data_from(fd, offset, size):
    """Returns the offset of the next data, or size if there is none."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def map_shared(path, size, rng):
    """pages of a shared mapping in random order"""
    yield from mapped(path, size, rng, mmap.MAP_SHARED)


def map_private(path, size, rng):
    """pages of a private mapping in random order"""
    yield from mapped(path, size, rng, mmap.MAP_PRIVATE)


def mapped(path, size, rng, flags):
    if size == 0:                       # mmap(2) refuses an empty file
        yield from read(path, size, rng)
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        view = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
    finally:
        os.close(fd)                    # a mapping outlives its descriptor
    with view:
        if len(view) != size:
            raise Difference(f"the mapping has {len(view)} bytes, not {size}")
        pages = list(range(0, size, PAGE))
        rng.shuffle(pages)
        for offset in pages:
            yield offset, view[offset:offset + PAGE]


def odirect(path, size, rng):
    """O_DIRECT into an aligned buffer"""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 256 * 1024) as buffer:       # a mapping is aligned to a page
            offset = 0
            while n := os.preadv(fd, [buffer], offset):
                yield offset, buffer[:n]
                offset += n
                if n % PAGE:                            # an unaligned offset may be refused
                    break
    finally:
        os.close(fd)


def sendfile_socket(path, size, rng):
    """sendfile(2) to a socket, as a web server does"""
    ours, theirs = socket.socketpair()
    with concurrent.futures.ThreadPoolExecutor(1) as pool, ours, theirs, open(path, "rb") as file:
        # The sockets are closed before the pool waits for its thread, so that a sender whose peer has
        # stopped reading fails.
        sent = pool.submit(sendfile_all, theirs, file)
        offset = 0
        while data := ours.recv(1 << 18):
            yield offset, data
            offset += len(data)
        sent.result()


def sendfile_all(sock, file):
    try:
        offset = 0
        while n := os.sendfile(sock.fileno(), file.fileno(), offset, MIB):
            offset += n
    finally:
        sock.shutdown(socket.SHUT_WR)


def splice(path, size, rng):
    """splice(2) into a pipe"""
    out, into = os.pipe()
    try:
        with open(path, "rb") as file:
            offset = 0
            while n := os.splice(file.fileno(), into, 65536, offset_src=offset):
                while n:
                    data = os.read(out, n)
                    yield offset, data
                    offset, n = offset + len(data), n - len(data)
    finally:
        os.close(out)
        os.close(into)


def copy_method(copy):
    """Returns a method for a function that copies a path to another."""
    def method(path, size, rng):
        with tempfile.TemporaryDirectory() as folder:
            target = os.path.join(folder, "copy")
            copy(path, target)
            with open(target, "rb") as file:
                yield 0, file.read()
    return method


def copy_range(path, target):
    """Uses copy_file_range(2), or read and write if the kernel returns EXDEV, as cp does."""
    with open(path, "rb") as source, open(target, "wb") as out:
        try:
            while os.copy_file_range(source.fileno(), out.fileno(), MIB):
                pass
        except OSError:
            shutil.copyfileobj(source, out)


def cp(path, target):
    subprocess.run(["cp", "--preserve=timestamps", "--", path, target], check=True)
    if os.stat(path).st_mtime_ns != os.stat(target).st_mtime_ns:
        raise Difference("the copy of cp --preserve has another modification time")


def cat(path, size, rng):
    """cat in a separate process"""
    yield 0, subprocess.run(["cat", "--", path], check=True, stdout=subprocess.PIPE).stdout


def fromfile(path, size, rng):
    """numpy.fromfile, which uses fread of the C library"""
    import numpy
    yield 0, numpy.fromfile(path, numpy.uint8).tobytes()


def threads(path, size, rng):
    """8 threads at the same time, each with its own descriptor and order"""
    start = threading.Barrier(8)

    def one(seed):
        start.wait()
        whole = bytearray(size)
        for offset, data in pread_random(path, size, random.Random(seed)):
            whole[offset:offset + len(data)] = data
        return whole

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for whole in pool.map(one, [rng.random() for _ in range(8)]):
            yield 0, whole


def fork(path, size, rng):
    """a descriptor opened before fork and read by both the child and the parent"""
    fd = os.open(path, os.O_RDONLY)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(out)
            with open(into, "wb") as pipe:
                pipe.write(pread(fd, size + 1, 0))
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    try:
        with open(out, "rb") as pipe:
            yield 0, pipe.read()
        if os.waitpid(child, 0)[1] != 0:
            raise Difference("the child that read an inherited descriptor failed")
        yield 0, pread(fd, size + 1, 0)
    finally:
        os.close(fd)


BYTES = {
    "read": read, "readinto": readinto, "pread_random": pread_random, "seek": seek, "seek_hole": seek_hole,
    "mmap": map_shared, "mmap_private": map_private, "odirect": odirect, "sendfile": sendfile_socket,
    "splice": splice, "copyfile": copy_method(shutil.copyfile), "copy_file_range": copy_method(copy_range),
    "cp": copy_method(cp),
    "cat": cat, "fromfile": fromfile, "threads": threads, "fork": fork,
}
BYTES["copyfile"].__doc__ = "shutil.copyfile: sendfile(2) to a file"
BYTES["copy_file_range"].__doc__ = "copy_file_range(2), or read and write if the kernel returns EXDEV"
BYTES["cp"].__doc__ = "cp --preserve=timestamps"


# Methods that read a format through its library. Each takes the path in the source, the path in the
# mount and a random.Random. It yields (description, bytes from the mount, bytes from the source).

def numpy_load(source, mount, rng):
    """numpy.load of .npy and .npz"""
    import numpy
    want, got = numpy.load(source), numpy.load(mount)
    if isinstance(want, numpy.ndarray):
        yield "array", got.tobytes(), want.tobytes()
        return
    with want, got:
        yield "names", repr(got.files).encode(), repr(want.files).encode()
        for name in want.files:
            yield f"array {name}", got[name].tobytes(), want[name].tobytes()


def numpy_mmap(source, mount, rng):
    """numpy.load(mmap_mode="r"), rows in random order"""
    import numpy
    want, got = numpy.load(source), numpy.load(mount, mmap_mode="r")
    rows = list(range(len(want)))
    rng.shuffle(rows)
    for row in rows[:256]:
        yield f"row {row}", got[row].tobytes(), want[row].tobytes()
    yield "array", got.tobytes(), want.tobytes()


def hdf5(source, mount, rng):
    """h5py: random slices of each dataset, then the whole dataset"""
    import h5py
    with h5py.File(source, "r") as want, h5py.File(mount, "r") as got:
        names = []
        want.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            for _ in range(16):
                start = rng.randrange(want[name].shape[0])
                part = slice(start, start + rng.randrange(1, 64))
                yield f"{name}[{part.start}:{part.stop}]", got[name][part].tobytes(), want[name][part].tobytes()
            yield name, got[name][()].tobytes(), want[name][()].tobytes()


def torch_load(source, mount, rng):
    """torch.load of a dictionary of tensors"""
    import torch
    want, got = torch.load(source), torch.load(mount)
    yield "names", repr(list(got)).encode(), repr(list(want)).encode()
    for name in want:
        yield f"tensor {name}", got[name].numpy().tobytes(), want[name].numpy().tobytes()


def tfrecord_read(source, mount, rng):
    """records of TFRecord files, with checksums"""
    import tfrecord
    records = itertools.zip_longest(tfrecord.read_records(mount), tfrecord.read_records(source), fillvalue=b"")
    for number, (got, want) in enumerate(records):
        yield f"record {number}", got, want


def zip_read(source, mount, rng):
    """members of zip archives, such as .npz and .pt, in random order"""
    with zipfile.ZipFile(source) as want, zipfile.ZipFile(mount) as got:
        names = want.namelist()
        rng.shuffle(names)
        for name in names:
            yield f"member {name}", got.read(name), want.read(name)


def image(source, mount, rng):
    """pixels of PNG and JPEG images, by Pillow"""
    import numpy
    from PIL import Image
    with Image.open(source) as want, Image.open(mount) as got:
        yield "pixels", numpy.asarray(got).tobytes(), numpy.asarray(want).tobytes()


def indexed(source, mount, rng):
    """records of a binary file in random order, by files of their offsets and sizes, as DLIO reads them"""
    import numpy

    def records(path):
        data = path.removesuffix(".off.idx")
        offsets, sizes = numpy.fromfile(path, numpy.uint64), numpy.memmap(data + ".sz.idx", numpy.uint64, "r")
        with open(data, "rb") as file:
            for number in order[:len(offsets)]:
                file.seek(int(offsets[number]))
                yield file.read(int(sizes[number]))

    order = list(range(os.path.getsize(source) // 8))
    rng.shuffle(order)
    for number, got, want in zip(order, records(mount), records(source), strict=True):
        yield f"record {number}", got, want


FORMATS = {
    "numpy": (numpy_load, (".npy", ".npz")),
    "numpy_mmap": (numpy_mmap, (".npy",)),
    "h5py": (hdf5, (".h5",)),
    "torch_load": (torch_load, (".pt",)),
    "tfrecord": (tfrecord_read, (".tfrecord",)),
    "zip": (zip_read, (".npz", ".pt")),
    "image": (image, (".png", ".jpg")),
    "indexed": (indexed, (".off.idx",)),
}


# Methods that read the whole tree.

def dataloader(source, mount, rng):
    """torch DataLoader: 2 epochs in random order with 2 forked, persistent workers"""
    import torch
    from torch.utils.data import DataLoader
    names = files(source)

    class Raw(torch.utils.data.Dataset):
        def __len__(self):
            return len(names)

        def __getitem__(self, index):
            with open(os.path.join(mount, names[index]), "rb") as file:
                return index, file.read()

    loader = DataLoader(Raw(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork",
                        persistent_workers=True, collate_fn=list,
                        generator=torch.Generator().manual_seed(rng.randrange(1 << 32)))
    count = total = 0
    for _ in range(2):
        for index, data in itertools.chain.from_iterable(loader):
            with prefix_errors(names[index]):
                compare(data, read_file(source, names[index]))
            count, total = count + 1, total + len(data)
    return count, total


def spawn(source, mount, rng):
    """2 spawned processes, each with 4 threads that read files of all formats but that of torch"""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counts = pool.starmap(read_formats, [(source, mount, rng.random()) for _ in range(2)])
    return tuple(map(sum, zip(*counts)))


def read_formats(source, mount, seed):
    def one(name):
        return check_format(*FORMATS[name], source, mount, random.Random(f"{name} {seed}"))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return tuple(map(sum, zip(*pool.map(one, FORMATS.keys() - {"torch_load"}))))


def tree(source, mount, rng):
    """names, types, permissions, owners, sizes, times, link targets and extended attributes"""
    count = total = 0
    for folder, folders, names in os.walk(source, onerror=raise_error):
        relative = os.path.relpath(folder, source)
        want, got = sorted(folders + names), sorted(os.listdir(os.path.join(mount, relative)))
        if want != got:
            raise Difference(f"{relative}: names differ: {sorted(set(want) ^ set(got))[:8]}")
        for name in [".", *want] if relative == "." else want:
            name = os.path.normpath(os.path.join(relative, name))
            want_one, got_one = (describe(os.path.join(top, name)) for top in (source, mount))
            for key in want_one:
                if want_one[key] != got_one.get(key):
                    raise Difference(f"{name}: {key} is {got_one.get(key)}, at the source {want_one[key]}")
            count, total = count + 1, total + want_one.get("size", 0)
    return count, total


def raise_error(error):
    raise error


def describe(path):
    info = os.lstat(path)
    out = {"type": stat.S_IFMT(info.st_mode), "permissions": oct(stat.S_IMODE(info.st_mode)),
           "owner": (info.st_uid, info.st_gid), "modification time": info.st_mtime_ns}
    if not stat.S_ISDIR(info.st_mode):      # for a directory it depends on the file system
        out["size"] = info.st_size
    if stat.S_ISLNK(info.st_mode):
        out["target"] = os.readlink(path)
    if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
        out["attributes"] = {name: os.getxattr(path, name) for name in sorted(attributes(path))}
    return out


def attributes(path):
    try:
        return [name for name in os.listxattr(path) if name.startswith("user.")]
    except OSError:                         # a file system without extended attributes
        return []


TREES = {"tree": tree, "dataloader": dataloader, "spawn": spawn}


# Comparing.

def files(top, suffixes=("",)):
    """Returns the names of the regular files below top, and of links to such files."""
    names = [os.path.relpath(os.path.join(folder, name), top)
             for folder, _, found in os.walk(top, onerror=raise_error) for name in found]
    return sorted(name for name in names if name.endswith(suffixes) and os.path.isfile(os.path.join(top, name)))


def read_file(top, name):
    with open(os.path.join(top, name), "rb") as file:
        return file.read()


@contextlib.contextmanager
def prefix_errors(what):
    """Converts an error in the block to a Difference whose message begins with a name."""
    try:
        yield
    except (Difference, OSError) as error:
        raise Difference(f"{what}: {error}") from error
    except Exception as error:              # a library that could not read the data
        raise Difference(f"{what}: {type(error).__name__}: {error}") from error


def compare_piece(offset, got, want):
    """Raises Difference unless got equals the bytes of want at an offset."""
    part = want[offset:offset + len(got)]
    if got != part:
        first = next((n for n, (a, b) in enumerate(zip(got, part)) if a != b), len(part))
        raise Difference(f"differs at offset {offset + first}")


def compare(got, want):
    compare_piece(0, got, want)
    if len(got) < len(want):
        raise Difference(f"ends at offset {len(got)} instead of {len(want)}")


def check_bytes(method, source, mount, rng):
    names, total = files(source), 0
    for name in names:
        with prefix_errors(name):
            want = read_file(source, name)
            missing = bytearray(b"\1") * len(want)
            for offset, got in method(os.path.join(mount, name), len(want), rng):
                compare_piece(offset, got, want)
                missing[offset:offset + len(got)] = bytes(len(got))
                total += len(got)
            if (offset := missing.find(1)) >= 0:
                raise Difference(f"ends at offset {offset} instead of {len(want)}")
    return len(names), total


def check_format(method, suffixes, source, mount, rng):
    names, total = files(source, suffixes), 0
    for name in names:
        with prefix_errors(name):
            for what, got, want in method(os.path.join(source, name), os.path.join(mount, name), rng):
                with prefix_errors(what):
                    compare(got, want)
                total += len(got)
    return len(names), total


def check(method, source, mount, seed):
    """Runs one method and prints its line. Raises Difference."""
    rng, start = random.Random(f"{method} {seed}"), time.perf_counter()
    if method in BYTES:
        count, total = check_bytes(BYTES[method], source, mount, rng)
    elif method in FORMATS:
        count, total = check_format(*FORMATS[method], source, mount, rng)
    else:
        count, total = TREES[method](source, mount, rng)
    if count == 0:
        raise Difference(f"no file in {source} that the method reads")
    print(f"{method}: {count} files, {total} bytes, {time.perf_counter() - start:.2f} s", flush=True)


# The dataset.

EDGES = [0, 1, 2, PAGE - 1, PAGE, PAGE + 1, 128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1, MIB - 1, MIB, MIB + 1]


def make(top, seed, small, large, large_mib, special):
    rng = random.Random(seed)
    make_small(top / "small", rng, small)
    make_edges(top / "edges", rng)
    make_large(top / "large", rng, large, large_mib)
    make_formats(top / "formats", seed)
    make_odd(top / "odd", rng)
    make_links(top / "links", top)
    if special:
        make_special(top / "special")
    set_times(top, rng)


def make_small(top, rng, count):
    """Writes files of 0.1 to 200 KB, uniform on a logarithmic scale, 100 in a folder."""
    for number in range(count):
        write_file(top / f"{number // 100:03}" / f"{number:05}.bin", rng.randbytes(int(100 * 2000 ** rng.random())))


def make_edges(top, rng):
    for size in EDGES:
        write_file(top / f"{size}-bytes", rng.randbytes(size))


def make_large(top, rng, count, mib):
    for number in range(count):
        write_file(top / f"{number}.bin", rng.randbytes(mib * MIB + number * 4097))


def make_formats(top, seed):
    import h5py
    import numpy
    import tfrecord
    import torch
    from PIL import Image
    top.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(seed)
    array = rng.standard_normal((1000, 257), numpy.float32)
    numpy.save(top / "c-order.npy", array)
    numpy.save(top / "fortran-order.npy", numpy.asfortranarray(array))
    numpy.save(top / "big-endian.npy", array.astype(">f8"))
    numpy.savez(top / "stored.npz", images=array, labels=numpy.arange(1000))
    numpy.savez_compressed(top / "compressed.npz", images=array.astype(numpy.int8))
    with h5py.File(top / "data.h5", "w") as file:
        file["contiguous"] = array
        file.create_dataset("group/chunked", data=array, chunks=(64, 64))
        file.create_dataset("group/compressed", data=array.astype(numpy.int8), chunks=(100, 257), compression="gzip")
    torch.save({"weight": torch.from_numpy(array), "bias": torch.arange(257)}, top / "model.pt")
    with open(top / "data.tfrecord", "wb") as file:
        for label in range(300):
            image = rng.bytes(int(rng.integers(0, 20000)))
            tfrecord.write_record(file, tfrecord.encode_example({"image": image, "label": label}))
    for name in "grey.png", "grey.jpg":
        Image.fromarray(rng.integers(0, 256, (150, 200), numpy.uint8)).save(top / name)
    sizes = rng.integers(0, 5000, 100, numpy.uint64)
    write_file(top / "records", rng.bytes(int(sizes.sum())))
    (numpy.cumsum(sizes) - sizes).tofile(top / "records.off.idx")
    sizes.tofile(top / "records.sz.idx")


def make_odd(top, rng):
    """Writes files with unusual names and attributes."""
    (top / "empty-folder").mkdir(parents=True, exist_ok=True)
    for name in (b"not-utf8-\xff\xfe\x80", b"n" * 255, "ünïcödé-名前".encode(), b" space ", b"new\nline",
                 b"quote'\"\\", b"-rf", b".hidden", b"...", b"*?[a]"):
        write_file(top / os.fsdecode(name), rng.randbytes(5000))
    write_file(top / os.fsdecode(b"folder-\xff") / "file", rng.randbytes(5000))
    write_file(top.joinpath(*["deep"] * 60, "file"), rng.randbytes(5000))
    for number in range(3):
        write_file(top / f"mode-{number}", rng.randbytes(5000))
        (top / f"mode-{number}").chmod([0o400, 0o755, 0o6444][number])
    sparse = top / "sparse"
    write_file(sparse, rng.randbytes(5000))
    with open(sparse, "r+b") as file:
        file.seek(2 * MIB + 12345)
        file.write(rng.randbytes(5000))
        file.truncate(4 * MIB)
    if not (top / "hard-link").exists():
        os.link(sparse, top / "hard-link")
    try:
        os.setxattr(top / "mode-0", "user.milkweed", b"a value")
    except OSError:
        pass                                # the file system has no extended attributes


def make_links(top, dataset):
    top.mkdir(parents=True, exist_ok=True)
    for name, target in (("relative", "../edges/4097-bytes"), ("absolute", dataset.resolve() / "edges" / "4096-bytes"),
                         ("folder", "../formats"), ("dangling", "nowhere"), ("loop", "loop"), ("long", "x/" * 2000)):
        if not (top / name).is_symlink():
            (top / name).symlink_to(target)


def make_special(top):
    top.mkdir(parents=True, exist_ok=True)
    if not (top / "fifo").exists():
        os.mkfifo(top / "fifo")
        os.mknod(top / "socket", stat.S_IFSOCK | 0o644)


def write_file(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def set_times(top, rng):
    """Sets modification times between 2001 and 2017 with nanoseconds. Folders come last."""
    for folder, _, names in os.walk(top, topdown=False):
        for path in [os.path.join(folder, name) for name in sorted(names)] + [folder]:
            when = rng.randrange(10**18, 3 * 10**18 // 2)
            os.utime(path, ns=(when, when), follow_symlinks=False)


# The command line.

def run_make(words):
    parser = argparse.ArgumentParser(prog="readers.py make")
    parser.add_argument("top", metavar="DIR", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", type=int, default=500, metavar="N", help="files up to 200 KB (default 500)")
    parser.add_argument("--large", type=int, default=2, metavar="N", help="large files (default 2)")
    parser.add_argument("--large-mib", type=int, default=40, metavar="N", help="MiB of a large file (default 40)")
    parser.add_argument("--special", action="store_true", help="also create a FIFO and a socket")
    make(**vars(parser.parse_args(words)))


def run_list():
    for name, method in [*BYTES.items(), *((n, m) for n, (m, _) in FORMATS.items()), *TREES.items()]:
        print(f"{name:16} {method.__doc__}")


def run_check(words):
    known = [*BYTES, *FORMATS, *TREES]
    parser = argparse.ArgumentParser(prog="readers.py", usage=__doc__)
    parser.add_argument("methods", metavar="METHOD", type=lambda text: known if text == "all" else text.split(","))
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("mount", metavar="MOUNT")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    for method in args.methods:
        if method not in known:
            parser.error(f"no method {method}")
    for method in args.methods:
        try:
            check(method, args.source, args.mount, args.seed)
        except (Difference, OSError) as error:
            print(f"{method}: {error}")
            return 1
    return 0


def main(words):
    sys.stdout.reconfigure(errors="backslashreplace")   # names may not be UTF-8
    if words[:1] == ["make"]:
        return run_make(words[1:])
    if words[:1] == ["list"]:
        return run_list()
    return run_check(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
