#!/usr/bin/env python3
"""Read a tree through a mount in every way that programs read, and compare it with its source.

    readers.py METHOD[,METHOD...] SOURCE MOUNT     "all" is every method; --seed N varies orders and offsets
    readers.py make DIR [--seed N] [--small N] [--large N] [--large-mib N] [--special]
    readers.py list                                the methods, one a line, with what they do

One line for each method says how many files and bytes it compared. The first difference or error is printed
with its file and offset, and ends the program with status 1; so does a method that found no file to read.
"""
import argparse
import concurrent.futures
import contextlib
import errno
import itertools
import mmap
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
    """What MOUNT shows is not what SOURCE holds."""


# Methods that work on the bytes of any file. Each takes the path in the mount, the size at the source and a
# random.Random, and yields (offset, bytes) pieces, in any order, that together must be the whole file.

def read(path, size, rng):
    """open(path, "rb").read()"""
    with open(path, "rb") as file:
        yield 0, file.read()


def readinto(path, size, rng):
    """readinto one buffer of an odd size, without buffering"""
    buffer = bytearray(65537)
    with open(path, "rb", buffering=0) as file:
        at = 0
        while n := file.readinto(buffer):
            yield at, bytes(buffer[:n])
            at += n


def pread_random(path, size, rng):
    """pread of overlapping ranges in random order"""
    step = max(1, min(size // 64, MIB))
    # Each starts at most step early and is at least 2 steps long, so it covers its own step.
    ranges = [(max(0, at - rng.randrange(step)), rng.randrange(2 * step, 3 * step)) for at in range(0, size, step)]
    rng.shuffle(ranges)
    fd = os.open(path, os.O_RDONLY)
    try:
        for at, length in ranges:
            yield at, pread(fd, length, at)
        yield size, os.pread(fd, 4096, size)            # at the end and beyond it: nothing
        yield size, os.pread(fd, 4096, size + 12345)
    finally:
        os.close(fd)


def pread(fd, length, at):
    """Returns length bytes, or what there is until the end of the file."""
    out = b""
    while len(out) < length and (more := os.pread(fd, length - len(out), at + len(out))):
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
            for at in order:
                file.seek(at)
                yield at, file.read(step)
        file.seek(0)
        at = 0
        while line := file.readline(1 << 16):
            yield at, line
            at += len(line)


def seek_hole(path, size, rng):
    """only what SEEK_DATA and SEEK_HOLE call data; the rest are zeros, as cp and tar take it"""
    fd = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < size:
            data = data_from(fd, at, size)
            yield at, bytes(data - at)
            at = os.lseek(fd, data, os.SEEK_HOLE) if data < size else size
            if not data <= at <= size or at == data < size:
                raise Difference(f"data at {data} ends at {at}, in a file of {size} bytes")
            yield data, pread(fd, at - data, data)
    finally:
        os.close(fd)


def data_from(fd, at, size):
    """Returns where the next data is, size if there are none."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
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
    if size == 0:                       # mmap(2) refuses it for any file
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
        for at in pages:
            yield at, view[at:at + PAGE]


def odirect(path, size, rng):
    """O_DIRECT into an aligned buffer"""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 256 * 1024) as buffer:       # aligned to a page
            at = 0
            while n := os.preadv(fd, [buffer], at):
                yield at, buffer[:n]
                at += n
                if n % PAGE:                            # an offset that is not aligned may be refused
                    break
    finally:
        os.close(fd)


def sendfile_socket(path, size, rng):
    """sendfile(2) to a socket, as a web server does"""
    ours, theirs = socket.socketpair()
    with concurrent.futures.ThreadPoolExecutor(1) as pool, ours, theirs, open(path, "rb") as file:
        # The pool is left last: closing ours ends a sender that nobody listens to any more.
        sent = pool.submit(sendfile_all, theirs, file)
        at = 0
        while data := ours.recv(1 << 18):
            yield at, data
            at += len(data)
        sent.result()


def sendfile_all(sock, file):
    try:
        at = 0
        while n := os.sendfile(sock.fileno(), file.fileno(), at, MIB):
            at += n
    finally:
        sock.shutdown(socket.SHUT_WR)


def splice(path, size, rng):
    """splice(2) into a pipe"""
    out, into = os.pipe()
    try:
        with open(path, "rb") as file:
            at = 0
            while n := os.splice(file.fileno(), into, 65536, offset_src=at):
                while n:
                    data = os.read(out, n)
                    yield at, data
                    at, n = at + len(data), n - len(data)
    finally:
        os.close(out)
        os.close(into)


def copied(copy):
    """Makes a method of a function that copies one path to another."""
    def method(path, size, rng):
        with tempfile.TemporaryDirectory() as folder:
            target = os.path.join(folder, "copy")
            copy(path, target)
            with open(target, "rb") as file:
                yield 0, file.read()
    return method


def copy_range(path, target):
    """Uses copy_file_range(2); read and write where the kernel answers EXDEV, as cp does."""
    with open(path, "rb") as source, open(target, "wb") as out:
        try:
            while os.copy_file_range(source.fileno(), out.fileno(), MIB):
                pass
        except OSError:
            shutil.copyfileobj(source, out)


def cp(path, target):
    subprocess.run(["cp", "--preserve=timestamps", "--", path, target], check=True)
    if os.stat(path).st_mtime_ns != os.stat(target).st_mtime_ns:
        raise Difference("cp --preserve gave the copy another modification time")


def cat(path, size, rng):
    """cat in a process of its own"""
    yield 0, subprocess.run(["cat", "--", path], check=True, stdout=subprocess.PIPE).stdout


def fromfile(path, size, rng):
    """numpy.fromfile: fread of the C library"""
    import numpy
    yield 0, numpy.fromfile(path, numpy.uint8).tobytes()


def threads(path, size, rng):
    """8 threads, each with a descriptor and an order of its own, at the same time"""
    start = threading.Barrier(8)

    def one(seed):
        start.wait()
        whole = bytearray(size)
        for at, data in pread_random(path, size, random.Random(seed)):
            whole[at:at + len(data)] = data
        return whole

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for whole in pool.map(one, [rng.random() for _ in range(8)]):
            yield 0, whole


def fork(path, size, rng):
    """a descriptor opened before fork and read after it, by the child and by the parent"""
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
    "splice": splice, "copyfile": copied(shutil.copyfile), "copy_file_range": copied(copy_range), "cp": copied(cp),
    "cat": cat, "fromfile": fromfile, "threads": threads, "fork": fork,
}
BYTES["copyfile"].__doc__ = "shutil.copyfile: sendfile(2) to a file"
BYTES["copy_file_range"].__doc__ = "copy_file_range(2), or what cp does when the kernel answers EXDEV"
BYTES["cp"].__doc__ = "cp --preserve=timestamps"


# Methods that read a format through its library. Each takes the path at the source, the path in the mount and a
# random.Random, and yields (what, bytes from the mount, bytes from the source).

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
    """h5py: slices of every dataset in random order, then each whole"""
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
    """records of TFRecord files, with their checksums"""
    import tfrecord
    records = itertools.zip_longest(tfrecord.read_records(mount), tfrecord.read_records(source), fillvalue=b"")
    for number, (got, want) in enumerate(records):
        yield f"record {number}", got, want


def zip_read(source, mount, rng):
    """members of zip archives in random order: .npz and .pt are such"""
    with zipfile.ZipFile(source) as want, zipfile.ZipFile(mount) as got:
        names = want.namelist()
        rng.shuffle(names)
        for name in names:
            yield f"member {name}", got.read(name), want.read(name)


FORMATS = {
    "numpy": (numpy_load, (".npy", ".npz")),
    "numpy_mmap": (numpy_mmap, (".npy",)),
    "h5py": (hdf5, (".h5",)),
    "torch_load": (torch_load, (".pt",)),
    "tfrecord": (tfrecord_read, (".tfrecord",)),
    "zip": (zip_read, (".npz", ".pt")),
}


# Methods that take the whole tree.

def dataloader(source, mount, rng):
    """torch DataLoader: 2 epochs of random order with 2 forked, persistent workers"""
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
            with naming(names[index]):
                compare(data, contents(source, names[index]))
            count, total = count + 1, total + len(data)
    return count, total


def tree(source, mount, rng):
    """names, types, permissions, owners, sizes, times, links and extended attributes, and no byte of content"""
    count = total = 0
    for folder, folders, names in os.walk(source, onerror=raise_error):
        relative = os.path.relpath(folder, source)
        want, got = sorted(folders + names), sorted(os.listdir(os.path.join(mount, relative)))
        if want != got:
            raise Difference(f"{relative}: names differ: {sorted(set(want) ^ set(got))[:8]}")
        for name in [".", *want] if relative == "." else want:
            name = os.path.normpath(os.path.join(relative, name))
            want_one, got_one = (description(os.path.join(top, name)) for top in (source, mount))
            for key in want_one:
                if want_one[key] != got_one.get(key):
                    raise Difference(f"{name}: {key} is {got_one.get(key)}, at the source {want_one[key]}")
            count, total = count + 1, total + want_one.get("size", 0)
    return count, total


def raise_error(error):
    raise error


def description(path):
    info = os.lstat(path)
    out = {"type": stat.S_IFMT(info.st_mode), "permissions": oct(stat.S_IMODE(info.st_mode)),
           "owner": (info.st_uid, info.st_gid), "modification time": info.st_mtime_ns}
    if not stat.S_ISDIR(info.st_mode):      # of a directory they depend on the file system
        out.update(size=info.st_size, links=info.st_nlink)
    if stat.S_ISLNK(info.st_mode):
        out["target"] = os.readlink(path)
    if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
        out["attributes"] = {name: os.getxattr(path, name) for name in sorted(attributes(path))}
    return out


def attributes(path):
    try:
        return [name for name in os.listxattr(path) if name.startswith("user.")]
    except OSError:                         # a file system without them has none
        return []


TREES = {"tree": tree, "dataloader": dataloader}


# Comparing.

def files(top, suffixes=("",)):
    """Returns the names of the files below top that can be read, links to files included."""
    names = [os.path.relpath(os.path.join(folder, name), top)
             for folder, _, found in os.walk(top, onerror=raise_error) for name in found]
    return sorted(name for name in names if name.endswith(suffixes) and os.path.isfile(os.path.join(top, name)))


def contents(top, name):
    with open(os.path.join(top, name), "rb") as file:
        return file.read()


@contextlib.contextmanager
def naming(what):
    """Puts a name before whatever goes wrong in the block, and makes it a Difference."""
    try:
        yield
    except (Difference, OSError) as error:
        raise Difference(f"{what}: {error}") from error
    except Exception as error:              # a library that could not read what it got
        raise Difference(f"{what}: {type(error).__name__}: {error}") from error


def compare_piece(at, got, want):
    """Raises Difference unless got is what want has at offset at."""
    part = want[at:at + len(got)]
    if got != part:
        first = next((n for n, (a, b) in enumerate(zip(got, part)) if a != b), len(part))
        raise Difference(f"differs at offset {at + first}")


def compare(got, want):
    compare_piece(0, got, want)
    if len(got) < len(want):
        raise Difference(f"ends at offset {len(got)} instead of {len(want)}")


def by_bytes(method, source, mount, rng):
    names, total = files(source), 0
    for name in names:
        with naming(name):
            want = contents(source, name)
            missing = bytearray(b"\1") * len(want)
            for at, got in method(os.path.join(mount, name), len(want), rng):
                compare_piece(at, got, want)
                missing[at:at + len(got)] = bytes(len(got))
                total += len(got)
            if (at := missing.find(1)) >= 0:
                raise Difference(f"ends at offset {at} instead of {len(want)}")
    return len(names), total


def by_format(method, suffixes, source, mount, rng):
    names, total = files(source, suffixes), 0
    for name in names:
        with naming(name):
            for what, got, want in method(os.path.join(source, name), os.path.join(mount, name), rng):
                with naming(what):
                    compare(got, want)
                total += len(got)
    return len(names), total


def check(method, source, mount, seed):
    """Runs one method and prints its line; raises Difference."""
    rng, start = random.Random(f"{method} {seed}"), time.perf_counter()
    if method in BYTES:
        count, total = by_bytes(BYTES[method], source, mount, rng)
    elif method in FORMATS:
        count, total = by_format(*FORMATS[method], source, mount, rng)
    else:
        count, total = TREES[method](source, mount, rng)
    if count == 0:
        raise Difference(f"no file in {source} that it reads")
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
    """Files of 0.1 to 200 KB, as many small ones as large ones on a logarithmic scale, 100 in a folder."""
    for number in range(count):
        put(top / f"{number // 100:03}" / f"{number:05}.bin", rng.randbytes(int(100 * 2000 ** rng.random())))


def make_edges(top, rng):
    for size in EDGES:
        put(top / f"{size}-bytes", rng.randbytes(size))


def make_large(top, rng, count, mib):
    for number in range(count):
        put(top / f"{number}.bin", rng.randbytes(mib * MIB + number * 4097))


def make_formats(top, seed):
    import h5py
    import numpy
    import tfrecord
    import torch
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


def make_odd(top, rng):
    """Names and files that are legal and rare."""
    (top / "empty-folder").mkdir(parents=True, exist_ok=True)
    for name in (b"not-utf8-\xff\xfe\x80", b"n" * 255, "ünïcödé-名前".encode(), b" space ", b"new\nline",
                 b"quote'\"\\", b"-rf", b".hidden", b"...", b"*?[a]"):
        put(top / os.fsdecode(name), rng.randbytes(5000))
    put(top / os.fsdecode(b"folder-\xff") / "file", rng.randbytes(5000))
    put(top.joinpath(*["deep"] * 60, "file"), rng.randbytes(5000))
    for number in range(3):
        put(top / f"mode-{number}", rng.randbytes(5000))
        (top / f"mode-{number}").chmod([0o400, 0o755, 0o6444][number])
    sparse = top / "sparse"
    put(sparse, rng.randbytes(5000))
    with open(sparse, "r+b") as file:
        file.seek(8 * MIB + 12345)
        file.write(rng.randbytes(5000))
        file.truncate(16 * MIB)
    if not (top / "hard-link").exists():
        os.link(sparse, top / "hard-link")
    try:
        os.setxattr(top / "mode-0", "user.milkweed", b"a value")
    except OSError:
        pass                                # the file system has none: one thing fewer to compare


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


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def set_times(top, rng):
    """Gives everything a modification time between 2001 and 2017 that has nanoseconds, folders last."""
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
    parser.add_argument("--large-mib", type=int, default=40, metavar="N", help="size of a large file (default 40)")
    parser.add_argument("--special", action="store_true", help="also a FIFO and a socket")
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
    sys.stdout.reconfigure(errors="backslashreplace")   # names need not be UTF-8
    if words[:1] == ["make"]:
        return run_make(words[1:])
    if words[:1] == ["list"]:
        return run_list()
    return run_check(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
