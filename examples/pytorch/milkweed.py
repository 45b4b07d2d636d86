"""Mount a dataset with Milkweed, and tell the mount which files the job is about to read.

Copy this file beside your script. It needs Python 3.8 and its standard library.

    with milkweed.mount("/lustre/imagenet") as path:
        train(path)

mounts the dataset, or uses a mount that is there. This needs the program milkweed in $PATH.

A mount that knows the order of the files fetches them in time. For PyTorch:

    sampler = milkweed.planned(sampler, [path for path, _ in dataset.samples], mount)

`sampler` is any Sampler, BatchSampler or DistributedSampler; the result goes to the DataLoader as
`sampler=` or `batch_sampler=`. For tf.data, and for any program that knows its order:

    milkweed.plan(paths, mount)

A plan is a hint. If the mount does not accept it, there is one warning, and the job goes on.

For partial local shuffling, where each node reads a share of the files and a fraction of the share
moves between two epochs:

    sampler = milkweed.LocalShuffle(dataset.samples, mount, q=0.3, seed=1)
    paths = milkweed.local_files(mount, epoch, paths, q=0.3, seed=1)

The rest of this description is about planned().

The order of the indices, and every random number, are the same with and without planned(). The
sampler is stepped only when the DataLoader requests an index. It therefore draws its random numbers
at the same moments, and its state_dict() belongs to the index that was yielded last. The indices
that follow are found out without a step of the sampler:

1. If the rest of the order is a list, a tuple or a range, it is read there. This is the case if
   __iter__ returns `iter(indices)`, or executes `yield from indices`. So do DistributedSampler,
   RandomSampler, WeightedRandomSampler, SequentialSampler and most samplers of other libraries.
2. SubsetRandomSampler, RandomSampler with replacement and torchdata's StatefulDistributedSampler
   have no such list. Their code is known to change nothing but their own attributes and their
   generator. A copy of the sampler, with a copy of the generator, is iterated instead. One case
   needs the default generator: RandomSampler with replacement and without a generator draws a seed
   from it in its first step. The copy does so immediately before, and then the state of the
   generator is restored.
3. For a BatchSampler, this applies to the sampler in it.
4. An index of any other sampler is handed over when the DataLoader requests it. That is `lead`
   files before the job needs it.

The beginning of the next epoch is handed over if the sampler is a DistributedSampler or a
StatefulDistributedSampler, whose order depends on set_epoch() and constants only. A copy of the
sampler, with the next number, is iterated. No next epoch is handed over after an epoch whose number
was not one more than that of the epoch before.

All requests to the mount are made by a thread. The job never waits for it, except at the beginning
of an epoch, for at most a second, so that DataLoader forks its workers while the thread has ended.
"""
import array
import atexit
import copy
import errno
import fcntl
import functools
import hashlib
import http.client
import itertools
import json
import math
import operator
import os
import pwd
import queue
import re
import secrets
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import types
import urllib.parse
import warnings
import weakref

__all__ = ["LocalShuffle", "Mount", "MountError", "local_files", "mount", "plan", "planned", "status"]

LEAD = 1024         # files that the loader requests before the job uses them, unless the job says
MAX_LEAD = 65536    # the most that the mount accepts
AHEAD = 32768       # entries that are handed over before the loader requests them
PART = 4096         # entries of one request to the mount
PENDING = 8192      # parts of an order that wait for the thread
TIMEOUT = 5         # seconds for each operation on the socket
LAST_TIMEOUT = 1    # the same at the end of the process; also of the thread of an epoch
LIST_TIMEOUT = 60   # the same for the list of an exchange, which may have millions of files

ATTRIBUTE = "user.milkweed.socket"  # of the mount point; its value is the path of the control socket
NODE = "user.milkweed.node"         # of the mount point; its value is INDEX/COUNT, among its peers
EMPTY = 0xFFFFFFFF                  # the content of an empty slot of an exchange


def planned(sampler, paths, mount, lead=LEAD):
    """Returns a sampler that yields what `sampler` yields, and hands the order over to a mount.

    paths[i] is the path of the file with the index i, below the mount point `mount` or relative to
    it. lead is how many files the loader requests before the job uses them: workers x
    prefetch_factor x batch size. A lead that is too large costs room in the mount. One that is too
    small costs time.

    The result has the attributes of `sampler`. It can be pickled and copied.
    """
    if type(sampler) in _classes("torch.utils.data.sampler.BatchSampler",
                                 "torchdata.stateful_dataloader.sampler.BatchSampler"):
        batches = copy.copy(sampler)
        batches.sampler = planned(sampler.sampler, paths, mount, lead)
        return batches
    return _Planned(sampler, paths, mount, lead)


def plan(paths, mount, stream="", epoch=0, lead=LEAD):
    """Hands over the order in which the job will read files. Returns whether the mount accepted it.

    The paths are below the mount point `mount` or relative to it. The list replaces the earlier one
    of the same stream and epoch. A stream is the order of one process. If several processes of a
    job read different files, each needs a name of its own, of at most 128 bytes. lead is that of
    planned(). The function waits for the mount, at most 5 seconds for each operation on the socket.
    """
    control = _Control(mount, stream, lead)
    try:
        remaining = iter(paths)
        for start in itertools.count(0, PART):
            part = list(itertools.islice(remaining, PART))
            if part or start == 0:
                control.send(epoch, start, part)
            if len(part) < PART:
                return True
    except Exception as problem:
        control.warn(problem)
    return False


class MountError(RuntimeError):
    """A dataset cannot be mounted. The text says why, and what to do."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code    # the exit code of `milkweed mount`; 126 or 127: the program cannot be started


class Mount:
    """The use of a mount by this process. It is a path, that of the mount point, and a context.

        with milkweed.mount("/lustre/imagenet") as path:
            train(path)

    Where a block does not fit, as in a notebook, keep the object. The use ends with unmount(), or with
    the process.
    """

    def __init__(self, path, descriptor=None, lock=None):
        self.path = path                # of the mount point
        self._descriptor = descriptor   # keeps the mount: of the lock file, with a shared lock, or of the root of the mount
        self._lock = lock               # the path of the lock file
        if descriptor is not None:
            atexit.register(self.unmount)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self.unmount()

    def __fspath__(self):
        return self.path

    def __str__(self):
        return self.path

    def __repr__(self):
        return f"milkweed.Mount({self.path!r})"

    def __reduce__(self):
        return Mount, (self.path,)      # what keeps the mount is of this process

    def unmount(self):
        """Ends the use. If mount() has made the mount, and nothing uses it any more, it is unmounted.

        While a file of it is open, or mapped, the mount stays; it ends within 10 seconds after that.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        atexit.unregister(self.unmount)
        os.close(descriptor)
        # Other uses have locks, and so have processes that were forked meanwhile.
        descriptor = self._lock and _locked(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if descriptor:
            try:
                _milkweed("umount", self.path, keep=descriptor)
            except MountError:
                pass    # the daemon unmounts later, as it does if the mount is in use
            finally:
                os.close(descriptor)


def mount(source, point=None, *, tiers=(), supervise=False, **options):
    """Mounts a dataset read-only, or uses a mount of it that is there. Returns a Mount.

    source is a directory, or the URL of a bucket. A mount of it that this user may read is used as it
    is: the one at `point`, or else one that this user, root, or the service of the package has made. If
    there is none, the dataset is mounted at `point`, or else in the directory $MILKWEED_MOUNTS, by
    default /tmp/milkweed-UID-mounts.

    tiers, supervise and options apply only to a mount that is made. A tier is NAME:PATH:QUOTA, the
    fastest first; without tiers, Milkweed chooses them. With supervise, the dataset is mounted again
    after a crash of the daemon. An option is one of `milkweed mount -o`, such as config="tiering.toml",
    mode="cached" or peers="slurm". With generation, a mount of another generation is not used.

    All processes of this user share a mount that mount() has made, such as the ranks of torchrun. It is
    unmounted when the last of them has left its block, has called unmount(), or has ended, also if it
    was killed. A process that was forked by one that uses the mount uses it, too. A program that it has
    started does not, and calls mount() itself.

    Raises MountError if the dataset cannot be mounted.
    """
    source = os.fsdecode(source)
    if "://" not in source:
        source = _canonical(source)
    if point:
        point = os.path.realpath(point)
    elif options.get("allow_other"):
        raise ValueError("milkweed: allow_other needs point=, as only this user may enter the directory of the default")
    words = ["--supervise"] if supervise else []
    for tier in [tiers] if isinstance(tiers, str) else tiers:
        words += ["--tier", tier]
    for name, value in options.items():
        if value is not None:
            words += _option(name, value)
    wanted = source, point or None, options.get("generation")
    return _join(*wanted) or _make(words, *wanted)


def status(mount):
    """Returns the fields of `milkweed status --json` of the mount with a mount point.

    The daemon answers root, the user who mounted, and users who may read the mount. A problem is an
    OSError.
    """
    return json.loads(_Control(mount, "", 0).request("GET", TIMEOUT, path="/v1/status"))


def _option(name, value):
    """Returns the words of `milkweed mount` for an option."""
    if isinstance(value, bool):
        value = str(value).lower()
    value = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if "," in value:    # separates the options of -o
        return [f"--{name.replace('_', '-')}={value}"]
    return ["-o", f"{name}={value}"]


def _canonical(path):
    """Returns a path without links above its last element, which may be a link to a generation."""
    folder, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def _mounted(source, point):
    """Yields the path and the device number of each mount of a source, at one point or at all."""
    with open("/proc/self/mountinfo", "rb") as table:
        lines = table.readlines()
    for line in lines:
        if b" - fuse.milkweed " not in line:
            continue
        fields = [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field))
                  for field in line.rstrip(b"\n").split(b" ")]
        device, root, path, name, options = fields[2], fields[3], fields[4], fields[-2], fields[-1]
        if root != "/" or point not in (None, path):
            continue
        if name != source and (os.path.basename(name) != os.path.basename(source) or _canonical(name) != source):
            continue
        if point or _is_trusted(options):
            yield path, os.makedev(*map(int, device.split(":")))


def _is_trusted(options):
    """Reports whether this user, root, or the service of the package has made a mount. Others may say anything of its content."""
    user = int(re.search(r"\buser_id=(\d+)", options)[1])
    try:
        return user in (0, os.geteuid()) or pwd.getpwuid(user).pw_name == "milkweed"
    except KeyError:
        return False


def _join(source, point, generation):
    """Returns a use of a mount that is there, or None."""
    for path, device in _mounted(source, point):
        try:
            root = _open(path, os.O_DIRECTORY)  # from now on, it cannot be unmounted
        except OSError:
            continue    # its daemon has died, or this user may not read it
        kept = None
        try:
            if os.fstat(root).st_dev != device:
                continue    # another mount hides it, or it has ended
            try:
                known = status(path)
            except OSError:
                known = {"while_locked": ""}    # in a container without the socket, for example
            if generation is not None and known.get("generation") != generation:
                continue
            if "while_locked" not in known:
                return Mount(path)
            kept = _locked(known["while_locked"], fcntl.LOCK_SH | fcntl.LOCK_NB)
            if kept is not None:
                return Mount(path, kept, known["while_locked"])
            kept = root     # the lock is not known, or not free, as while the daemon tries to unmount
            return Mount(path, root)
        finally:
            if kept != root:
                os.close(root)
    return None


def _make(words, source, point, generation):
    """Mounts a dataset, unless another process has just done so."""
    key = point or f"{source} {generation or ''}"
    readable = re.sub(r"[^\w.-]+", "_", source.split("?")[0].rstrip("/").rpartition("/")[2])[:32]
    base = os.path.join(_folder(), f"{readable}-{hashlib.sha256(os.fsencode(key)).hexdigest()[:8]}")
    path, lock = point or base, base + ".lock"
    mutex = _locked(base + ".mutex", fcntl.LOCK_EX, create=True)
    try:
        use = _join(source, point, generation)
        if use is not None:
            return use
        try:
            os.makedirs(path, 0o700)
        except OSError:
            pass    # it is a directory, or a mount whose daemon has died; if there is none, the program says so
        descriptor = _locked(lock, fcntl.LOCK_SH, create=True)  # waits while the dataset is being unmounted
        try:
            done = _milkweed("mount", "--while-locked", lock, "--clear-stale", *words, "--", source, path, keep=mutex)
            messages = [text.strip() for text in re.split("^milkweed: ", done.stderr, flags=re.M)[1:]
                        if not text.startswith("no configuration file")]
            if done.returncode != 0:
                use = _join(source, point, generation)      # a supervisor has mounted again
                if use is None:
                    raise MountError("\n".join(messages) or f"exit code {done.returncode}\n{done.stderr}", done.returncode)
                os.close(descriptor)
                return use
            for text in messages:
                warnings.warn("milkweed: " + text, RuntimeWarning, stacklevel=3)
            return Mount(path, descriptor, lock)
        except BaseException:
            os.close(descriptor)
            raise
    finally:
        os.close(mutex)


def _open(path, flags=0):
    """Returns a descriptor for reading, above those of the standard streams, which programs replace."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, 0o600)
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _locked(path, operation, create=False):
    """Returns a descriptor of a file with a lock, or None if there can be none. It waits without LOCK_NB."""
    descriptor = None
    try:
        descriptor = _open(path, os.O_CREAT if create else 0)
        fcntl.flock(descriptor, operation)
        return descriptor
    except BaseException as problem:
        if descriptor is not None:
            os.close(descriptor)
        if not isinstance(problem, OSError):
            raise
        if create:
            raise _no_folder(problem) from None
        return None


def _milkweed(*words, keep):
    """Runs the program, with a descriptor whose lock it keeps if this process is killed.

    A program that pip has installed is beside the interpreter, whose environment may not be active.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    try:
        return subprocess.run([shutil.which("milkweed", path=path) or "milkweed", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, pass_fds=[keep], encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise MountError("the program milkweed is not in $PATH\n  Install it, as the README of Milkweed says.", 127) from None
    except OSError as problem:
        raise MountError(f"milkweed cannot be started: {problem}", 126) from None


def _folder():
    """Returns a directory of this user alone, on this machine, for mount points and lock files."""
    given = os.environ.get("MILKWEED_MOUNTS")
    folder = os.path.realpath(given) if given else f"/tmp/milkweed-{os.geteuid()}-mounts"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        found = os.stat(folder, follow_symlinks=False)
    except OSError as problem:
        raise _no_folder(problem) from None
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise _no_folder(f"{folder} is not a directory that only this user may change")
    return os.path.realpath(folder)


def _no_folder(problem):
    return MountError(f"no place for mount points: {problem}\n  Set MILKWEED_MOUNTS to a directory of this user.", 4)


class _Proxy:
    """Has the attributes of another object. For isinstance() it also has its class."""

    __slots__ = ("_wrapped", "_state", "_keep", "__weakref__")

    def __init__(self, wrapped, state, keep=None):
        object.__setattr__(self, "_wrapped", wrapped)
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_keep", keep)     # until this object is garbage

    @property
    def __class__(self):
        return type(self._wrapped)

    def __getattr__(self, name):
        if name in _Proxy.__slots__ or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name, value):
        setattr(self._wrapped, name, value)


class _Planned(_Proxy):
    """The sampler that planned() returns."""

    __slots__ = ()

    def __init__(self, sampler, *arguments):
        _Proxy.__init__(self, sampler, _State(sampler, *arguments))
        weakref.finalize(self, self._state.close)

    def __iter__(self):
        # Not a generator: iter() of the sampler may draw random numbers, and must do so now.
        epoch = self._state.begin()
        return _Steps(iter(self._wrapped), epoch, self)

    def __len__(self):
        return len(self._wrapped)

    def __bool__(self):
        return bool(self._wrapped)

    def __repr__(self):
        return f"milkweed.planned({self._wrapped!r})"

    def __reduce__(self):
        return _Planned, (self._wrapped, *self._state.arguments)


class _Steps(_Proxy):
    """An iterator of the sampler."""

    __slots__ = ()

    def __iter__(self):
        again = iter(self._wrapped)     # a sampler that is its own iterator begins again
        return self if again is self._wrapped else again

    def __next__(self):
        return self._state.step(self._wrapped)

    def __del__(self):
        self._state.end()


class _State:
    """What the epochs of a sampler share."""

    def __init__(self, sampler, paths, mount, lead):
        self.sampler = sampler
        self.arguments = paths, mount, lead
        self.mount = None   # with a stream of this process
        self.epoch = None   # the latest

    def begin(self):
        """Ends the latest epoch, and returns a new one."""
        paths, mount, lead = self.arguments
        last = self.epoch
        if last is None or not last.is_ours():
            last = None
            self.mount = _Control(mount, _stream(self.sampler), lead)
        self.epoch = _Epoch(self.sampler, paths, self.mount, last)
        return self.epoch

    def close(self):
        """Drops the plan. The sampler is garbage, or the process ends."""
        if self.epoch is not None and self.epoch.is_ours():
            self.epoch.stop()
            self.mount.drop(LAST_TIMEOUT)


class _Stopped(Exception):
    """The thread of an epoch must end."""


_PAUSE = object()   # precedes an item for which the thread waits


class _Epoch:
    """One epoch of a sampler, and the thread that hands over its order.

    The job calls the methods up to stop. They raise only what the sampler raises. The thread calls
    the others.
    """

    def __init__(self, sampler, paths, mount, last):
        self.sampler, self.paths, self.mount = sampler, paths, mount
        self.process = os.getpid()
        self.epoch = _epoch(sampler)
        self.number = self.epoch    # of the epoch, in the plan
        self.regular = True         # set_epoch has got the number after that of the last epoch
        self.promised = []          # paths of this epoch that the mount has from the last one

        self.steps = 0              # of the sampler
        self.known = 0              # steps whose items the thread has, or can find out
        self.wake_at = None         # the step that the thread waits for
        self.complete = False       # the sampler is exhausted
        self.stopped = False        # the thread must end
        self.messages = queue.SimpleQueue()     # to the thread: iterators of items, and None
        self.thread = None
        self.twin = None            # yields what the sampler yields
        self.following = None       # a sampler with the order of the next epoch

        self.start = 0              # the number of the first item
        self.taken = 0              # items that the thread has taken
        self.ahead = 1              # how many of these may be ahead of the steps
        self.next_paths = []        # paths of the next epoch that the mount has
        if last is not None:
            self.number = last.number + 1
            self.regular = self.epoch == last.epoch + 1
            if not last.stop():
                self.known = math.inf   # the mount has not answered yet: no plan for this epoch
            self.promised = last.next_paths

    def is_ours(self, getpid=os.getpid):    # os is None when the interpreter ends
        """Reports whether the epoch began in this process, and not in one that has forked it."""
        return self.process == getpid()

    def step(self, iterator):
        """Returns the next item of an iterator of the sampler."""
        if self.steps == 0:
            self.prepare()
        try:
            item = next(iterator)
        except StopIteration:
            self.complete = True
            self.messages.put(None)
            raise
        self.steps += 1
        if self.steps == self.wake_at:
            self.messages.put(None)
        if self.steps > self.known:
            self.learn(item, iterator)
        return item

    def prepare(self):
        """Is called before the first step."""
        try:
            if self.known == 0:
                self.twin = _twin(self.sampler)
        except Exception as problem:
            self.give_up(problem)

    def learn(self, item, iterator):
        """Gives the thread an item, and those that are known to follow it."""
        try:
            if self.twin is not None:
                items, self.known = self.twin, math.inf
            else:
                rest = _rest(iterator)
                items, self.known = itertools.chain((item,), rest), self.steps + operator.length_hint(rest)
            if self.messages.qsize() >= PENDING:
                raise TimeoutError("it accepts the order too slowly")
            self.messages.put(items)
            if self.thread is None:
                self.start = max(0, getattr(self.sampler, "yielded", 1) - 1)    # of torchdata's samplers
                self.following = _following(self.sampler) if self.regular else None
                self.thread = threading.Thread(target=self.run, name="milkweed", daemon=True)
                self.thread.start()
        except Exception as problem:
            self.give_up(problem)

    def give_up(self, problem):
        """Ends the plan of this epoch. The thread calls it, too."""
        self.known = math.inf
        self.stopped = True
        self.messages.put(None)
        self.mount.warn(problem)

    def end(self):
        """Is called when the iterator is garbage. After an exhausted one, the thread ends by itself."""
        if not self.complete and self.is_ours():
            self.stopped = True
            self.messages.put(None)

    def stop(self):
        """Ends the thread. Reports whether it has ended."""
        self.stopped = True
        self.messages.put(None)
        if self.thread is None or self.thread is threading.current_thread():
            return True
        self.thread.join(LAST_TIMEOUT)
        return not self.thread.is_alive()

    def run(self):
        try:
            self.hand_over(self.number, self.start, self.items(), self.promised)
            if self.following is not None:
                self.hand_over(self.number + 1, 0, iter(self.following), [], self.next_paths)
        except _Stopped:
            if not self.complete:   # the job does not need the rest
                self.mount.drop(TIMEOUT)
                self.next_paths = []
        except Exception as problem:
            self.give_up(problem)

    def hand_over(self, number, start, items, promised, record=None):
        """Hands over the items of an epoch, from a start on, except for paths that were promised."""
        part = []
        for item in itertools.chain(self.paced(items), [_PAUSE]):
            if item is not _PAUSE:
                paths = [self.paths[index] for index in _indices(item)]
                part += paths
                self.taken += 1
                self.ahead = max(2, AHEAD // max(1, len(paths)))
            if len(part) >= PART or part and item is _PAUSE:
                if part != promised[start:start + len(part)]:
                    promised = []   # the mount forgets what followed
                    self.mount.send(number, start, part)
                if record is not None:
                    record += part
                start, part = start + len(part), []

    def paced(self, items):
        """Yields items, as far as they may be ahead of the steps of the sampler."""
        for item in items:
            while self.taken - self.steps >= self.ahead:
                yield _PAUSE
                self.wake_at = self.taken - self.ahead // 2
                if self.steps < self.wake_at:
                    if self.complete:
                        return
                    self.receive()
            yield item

    def items(self):
        """Yields the items of this epoch as they become known."""
        while True:
            if self.messages.empty():
                yield _PAUSE
            items = self.receive()
            if items is not None:
                yield from items
                if self.following is not None:
                    return  # these were all
            elif self.complete and self.messages.empty():
                return

    def receive(self):
        """Waits for a message, and returns it."""
        message = self.messages.get()
        if self.stopped:
            raise _Stopped
        return message


def _classes(*names):
    """Returns those of the named classes whose modules are imported."""
    modules = ((sys.modules.get(module), name) for module, _, name in (n.rpartition(".") for n in names))
    return [getattr(module, name) for module, name in modules if hasattr(module, name)]


def _rest(iterator):
    """Returns an iterator over what an iterator will yield, or () if that is not known.

    A generator that is in `yield from x` will yield what x will yield, before it continues. A copy
    of the iterator of a list steps independently of it.
    """
    while type(iterator) is types.GeneratorType:
        iterator = iterator.gi_yieldfrom
    if type(iterator) in (type(iter([])), type(iter(())), type(iter(range(0)))):
        return copy.copy(iterator)
    return ()


def _twin(sampler):
    """Returns an iterator over what a sampler will yield from its first step on, or None."""
    if type(sampler) in _classes("torchdata.stateful_dataloader.sampler.StatefulDistributedSampler"):
        return iter(copy.copy(sampler))     # has a generator of its own, with a seed of its own
    subset = type(sampler) in _classes("torch.utils.data.sampler.SubsetRandomSampler")
    if not subset and not (type(sampler) in _classes("torch.utils.data.sampler.RandomSampler")
                           and sampler.replacement):
        return None
    torch = sys.modules["torch"]
    twin = copy.copy(sampler)
    if subset or twin.generator is not None:
        source = torch.default_generator if twin.generator is None else twin.generator
        twin.generator = torch.Generator(source.device)
        twin.generator.set_state(source.get_state())
        return iter(twin)
    state = torch.get_rng_state()
    try:
        items = iter(twin)
        first = list(itertools.islice(items, 1))    # draws the seed of a generator of its own
    finally:
        torch.set_rng_state(state)
    return itertools.chain(first, items)


def _following(sampler):
    """Returns a sampler with the order of the next epoch, or None if that is not known."""
    if type(sampler) not in _classes("torch.utils.data.distributed.DistributedSampler",
                                     "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler"):
        return None
    following = copy.copy(sampler)
    following.set_epoch(sampler.epoch + 1)
    return following


def _epoch(sampler):
    """Returns what set_epoch has set, or 0."""
    epoch = getattr(sampler, "epoch", 0)
    return epoch if isinstance(epoch, int) and epoch >= 0 else 0


def _stream(sampler):
    """Returns a name that no other stream has."""
    rank = getattr(sampler, "rank", os.environ.get("RANK", 0))
    return f"rank{rank}-{secrets.token_hex(4)}"     # not from a generator that the job may use


def _indices(item):
    """Returns the indices in what a sampler yields: an index or a batch of them."""
    try:
        return [operator.index(item)]
    except TypeError:
        if isinstance(item, (str, bytes)):
            return [item]
    return [index for part in item for index in _indices(part)]


class _Refused(ConnectionError):
    """The daemon has replied with an error."""

    def __init__(self, status, text):
        super().__init__("it replied %d: %s" % (status, text[:500].decode(errors="replace").strip()))
        self.status = status


class _Control:
    """The control socket of a mount, and a stream of its plan."""

    purpose = "plan"

    def __init__(self, mount, stream, lead):
        self.mount, self.stream, self.lead = mount, stream, lead
        self.prefixes = None    # of paths below the mount point
        self.used = False       # the mount has the stream
        self.warned = False

    def send(self, epoch, start, paths):
        """Makes paths the entries of an epoch from a start on."""
        body = b"".join([self.relative(path) + b"\0" for path in paths])
        reply = self.request("POST", TIMEOUT, body, stream=self.stream, epoch=epoch,
                             lead=max(0, min(int(self.lead), MAX_LEAD)), **{"from": start})
        self.used = True
        reply = json.loads(reply)
        if reply["rejected"]:
            self.warn("it rejected %d of %d paths: %s" % (reply["rejected"], len(paths), "; ".join(reply.get("errors", []))))

    def drop(self, timeout):
        """Drops the stream, if the mount has it."""
        if self.used:
            self.used = False
            try:
                self.request("DELETE", timeout, stream=self.stream)
            except Exception:
                pass    # the mount will forget the stream

    def relative(self, path):
        """Returns a path without the mount point, which has another path outside a container."""
        if self.prefixes is None:
            points = self.mount, os.path.normpath(self.mount), os.path.abspath(self.mount), os.path.realpath(self.mount)
            self.prefixes = [os.path.join(os.fsencode(point), b"") for point in points]
        given = os.fsencode(path)
        for path in given, os.path.normpath(given):
            for prefix in self.prefixes:
                if path.startswith(prefix):
                    return path[len(prefix):].lstrip(b"/")
        return given

    def request(self, method, timeout, body=None, path="/v1/plan", **query):
        """Returns the body of the reply."""
        connection = _Connection(self.find(), timeout)
        try:
            connection.request(method, path + "?" + urllib.parse.urlencode(query), body, {"Content-Type": "application/octet-stream"})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status // 100 != 2:
            raise _Refused(reply.status, text)
        return text

    def find(self):
        """Returns the path of the control socket."""
        try:
            return os.getxattr(self.mount, ATTRIBUTE)
        except OSError as problem:
            if problem.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                raise ConnectionError("it is not the mount point of a Milkweed mount") from None
            raise

    def warn(self, problem):
        """Warns of a problem, if it is the first."""
        if self.warned:
            return
        self.warned = True
        kind = f"{type(problem).__name__}: " if isinstance(problem, LookupError) else ""
        try:
            warnings.warn(f"milkweed: no {self.purpose} for {os.fspath(self.mount)!r}: {kind}{problem}", RuntimeWarning)
        except Exception:
            pass    # the job makes errors of warnings, or has closed its standard error


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path, timeout):
        super().__init__("milkweed", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except FileNotFoundError:
            raise ConnectionError(f"{os.fsdecode(self.path)} does not exist; a container needs its directory") from None
        except PermissionError:
            raise ConnectionError("only root and the user who mounted it may use its control socket") from None


def _sampler():
    """Returns the base class of samplers if PyTorch is imported. DataLoader does not require it."""
    return getattr(sys.modules.get("torch.utils.data"), "Sampler", object)


class LocalShuffle(_sampler()):
    """Yields the indices of this rank under partial local shuffling.

    In each epoch, a node reads a share of the files. Between two epochs, the fraction q of each share
    moves to other nodes, and Milkweed moves the copies. The ranks of a node divide the samples of its
    share, in a random order. All ranks compute the same shares from the same arguments, without the
    daemon. A daemon that does not accept the exchange costs one warning and reads from the source.

    samples are those of ImageFolder, (path, label), or only paths: below the mount point or relative
    to it. Several samples may have the same path: a file is what moves. All ranks need the same files,
    at least one for each node. balance="bytes" also balances the sizes of the shares.

    A mount has one exchange at a time. Use another kind of sampler for validation.

    Call set_epoch before each epoch; it may jump in any direction. Without it, each epoch has the
    order of the first, as with DistributedSampler, and no file moves.

    All ranks yield the same number of samples: some are repeated, or dropped if drop_last is true. If
    the files have different numbers of samples, the length depends on the epoch.

    The number of this node is that of the mount, if the mount has as many nodes as the job. Otherwise
    it comes from the process group of torch.distributed and the environment of torchrun or srun. The
    parameters after drop_last override both: the number of this process in the job, its number on
    this node, processes on each node, the number of this node, nodes.

    The nodes must agree on the source of the numbers, or samples are lost. So if torch.distributed is
    initialised, and the ranks of the job are its ranks, the first rank compares the numbers and the
    lists of all. This uses its key-value store, and no collective, which would need a GPU with NCCL.
    Every rank must therefore make its LocalShuffle, and in the same order if there are several.
    """

    def __init__(self, samples, mount, q=0.3, seed=0, balance="count", drop_last=False, *,
                 rank=None, local_rank=None, local_ranks=None, node=None, nodes=None):
        if balance not in ("count", "bytes"):
            raise ValueError(f"milkweed: balance is {balance!r}; it may be 'count' or 'bytes'")
        self.q, self.seed, self.balance, self.drop_last = float(q), operator.index(seed), balance, drop_last
        self.epoch = 0
        self._mount = _ExchangeControl(mount, "", 0)
        layout = _layout(rank, local_rank, local_ranks, node, nodes)
        self.nodes, self.node, self.local_ranks, self.local_rank = layout
        self._number_files(samples)
        self._number_node(node)
        self.rank = self.node * self.local_ranks + self.local_rank
        self.num_replicas = self.nodes * self.local_ranks
        self._latest = None     # an epoch, its slots, and the number of samples of each rank
        self._thread = None

    def _number_files(self, samples):
        """Sets the plan, and what the daemon needs to compute it, too."""
        relative = self._mount.relative
        names = [os.path.normpath(relative(sample[0] if isinstance(sample, (tuple, list)) else sample))
                 for sample in samples]
        order = sorted(range(len(names)), key=names.__getitem__)
        files, first = [], array.array("I")
        for i, index in enumerate(order):
            if not files or names[index] != files[-1]:
                files.append(names[index])
                first.append(i)
        if len(files) < self.nodes:
            raise ValueError(f"milkweed: {len(files)} files for {self.nodes} nodes; each node needs one")
        first.append(len(order))
        self._first = first                         # by file: where its samples begin in the following
        self._samples = array.array("I", order)     # by file
        sizes = None
        if self.balance == "bytes":
            folder = os.fsencode(self._mount.mount)
            sizes = [os.stat(os.path.join(folder, name)).st_size for name in files]
            files = [b"%s\0%d" % pair for pair in zip(files, sizes)]
        self._plan = _Exchange(len(files), self.nodes, self.seed, self.q, sizes)
        self._body = b"\0".join(files) + b"\0"
        bits = int.from_bytes(struct.pack(">d", self.q), "big")
        digest = hashlib.sha256(b"milkweed exchange 1\n%d %d %016x %s\n" % (
            self.nodes, self.seed, bits, self.balance.encode()))
        digest.update(self._body)
        self._id = digest.hexdigest()[:32]

    def _number_node(self, given):
        """Chooses between the numbers of the mount and those of the environment."""
        mounted, count, problem = None, None, "it is not the mount point of a Milkweed mount with peers"
        try:
            mounted, count = map(int, os.getxattr(self._mount.mount, NODE).split(b"/"))
        except (OSError, ValueError, AttributeError):   # only Linux has getxattr
            pass
        if count is not None and count != self.nodes:
            mounted, problem = None, f"the job has {self.nodes} nodes, and the mount has {count}"
        elif mounted is not None and given not in (None, mounted):
            mounted, problem = None, f"this is node {given} of the job, and node {mounted} of the mount"
        verdict = self._agree(mounted)
        if verdict == "environment" and mounted is not None:
            mounted, problem = None, "the mounts of the other nodes have other numbers or none"
        if mounted is not None:
            self.node = mounted
        elif self.node is None:
            raise ValueError("milkweed: the number of this node is unknown; pass node=")
        self._exchanges = mounted is not None and self.nodes > 1
        if mounted is None and (self.nodes > 1 or count is not None):
            self._mount.warn(problem)

    def _agree(self, mounted):
        """Returns which numbers all ranks use: those of the "mount" or of the "environment".

        Returns None if the ranks cannot be asked, so that each decides for itself.
        """
        dist = _distributed()
        size = self.nodes * self.local_ranks
        if dist is None or size == 1 or dist.get_world_size() != size:
            return None
        try:
            store = dist.distributed_c10d._get_default_store()
        except AttributeError:  # of another version
            return None
        prefix = f"milkweed/{next(_made)}/"
        digest = hashlib.sha256(repr((self._id, self.nodes, self.local_ranks, bool(self.drop_last))).encode())
        digest.update(self._first.tobytes())
        store.set(f"{prefix}{dist.get_rank()}", json.dumps([digest.hexdigest(), mounted, self.node, self.local_rank]))
        try:
            if dist.get_rank() == 0:
                claims = [json.loads(store.get(f"{prefix}{rank}")) for rank in range(size)]
                store.set(prefix + "verdict", _verdict(claims))
            verdict = store.get(prefix + "verdict").decode()
        except RuntimeError as problem:     # the time limit of the store
            raise RuntimeError(f"milkweed: not every rank has made a LocalShuffle: {problem}") from problem
        if verdict not in ("mount", "environment"):
            raise ValueError("milkweed: " + verdict)
        return verdict

    def set_epoch(self, epoch):
        """Sets the number of the epoch. The first is 0."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"milkweed: epoch {epoch} is negative")
        self.epoch = epoch

    def __len__(self):
        return self._advance()[2]

    def __iter__(self):
        # Returns the iterator of a list, in which planned() finds the order.
        self._begin()
        order, count = self._order(), len(self) * self.local_ranks
        order *= -(-count // len(order))
        indices = order[self.local_rank:count:self.local_ranks]
        self._join()
        return iter(indices)

    def __getstate__(self):
        return dict(self.__dict__, _thread=None)

    def _advance(self):
        """Returns the epoch, its slots, and the number of samples of each rank."""
        latest = self._latest
        if latest is not None and latest[0] == self.epoch:
            return latest
        plan, first, ranks = self._plan, self._first, self.local_ranks
        if latest is None or latest[0] > self.epoch:
            latest = 0, plan.start()
        epoch, slots = latest[:2]
        while epoch < self.epoch:
            epoch += 1
            slots = plan.advance(slots, epoch)
        counts = [sum([first[file + 1] - first[file] for file in plan.share(slots, node)]) for node in range(self.nodes)]
        count = min(counts) // ranks if self.drop_last else -(-max(counts) // ranks)
        self._latest = epoch, slots, count
        return self._latest

    def _order(self):
        """Returns the samples of this node in the order of the epoch."""
        _, slots, _ = self._advance()
        samples, first = self._samples, self._first
        order = []
        for file in sorted(self._plan.share(slots, self.node)):
            order += samples[first[file]:first[file + 1]]
        _shuffle(order, f"milkweed order 1 seed {self.seed} epoch {self.epoch} node {self.node}\n")
        return order

    def _begin(self):
        """Tells the daemon, from a thread, that this rank begins the epoch."""
        if not self._exchanges:
            return
        if self._thread is not None and self._thread.is_alive():    # in a forked process, it is not
            self._join()
            if self._thread.is_alive():
                self._mount.warn("it does not reply")
                return  # the next epoch tells it
        self._thread = threading.Thread(target=self._tell, args=(self.epoch,), name="milkweed", daemon=True)
        self._thread.start()

    def _join(self):
        if self._thread is not None:
            self._thread.join(LAST_TIMEOUT)

    def _tell(self, epoch):
        begun = {"epoch": epoch, "reader": self.local_rank, "readers": self.local_ranks}
        try:
            try:
                self._mount.request("POST", TIMEOUT, path="/v1/exchange/epoch", id=self._id, **begun)
                return
            except _Refused as problem:
                if problem.status != 404:
                    raise
            reply = self._mount.request("POST", LIST_TIMEOUT, self._body, "/v1/exchange", seed=self.seed, fraction=self.q,
                                        nodes=self.nodes, node=self.node, balance=self.balance, **begun)
            if json.loads(reply)["id"] != self._id:
                raise ValueError("it computes another exchange")
        except Exception as problem:
            self._mount.warn(problem)


def local_files(mount, epoch, paths=None, q=0.3, seed=0, balance="count", **numbers):
    """Returns the files that this process reads in an epoch under partial local shuffling, in order.

    paths are all files of the job, the same for all processes; without them, all files below the
    mount point. q, seed, balance and the other parameters are those of LocalShuffle. Each file is in
    the list of one process of the job; the lists may differ by some files in length. Tells the daemon
    that the epoch begins. It is waited for at most a second.
    """
    if paths is None:
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(mount) for name in names]
    paths = tuple(paths)
    shuffle = _local_shuffle(paths, mount, q, seed, balance, **numbers)
    shuffle.set_epoch(epoch)
    shuffle._begin()
    files = [paths[index] for index in shuffle._order()[shuffle.local_rank::shuffle.local_ranks]]
    shuffle._join()
    return files


@functools.lru_cache(maxsize=4)
def _local_shuffle(*arguments, **numbers):
    return LocalShuffle(*arguments, **numbers)


_made = itertools.count()   # numbers of the LocalShuffles that the ranks have compared


def _verdict(claims):
    """Returns which numbers all ranks use, or what is wrong with their claims."""
    digests, mounted, nodes, ranks = zip(*claims)
    if len(set(digests)) > 1:
        return "the ranks have different files or different arguments of LocalShuffle"
    for name, numbers in ("mount", mounted), ("environment", nodes):
        if None not in numbers and len(set(zip(numbers, ranks))) == len(claims):
            return name
    return "several ranks have the same numbers, or the number of a node is unknown; pass node= and local_rank="


def _distributed():
    """Returns torch.distributed if it is initialised."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


# What the launchers say of a process, and in which variables. SLURM_NTASKS and SLURM_NNODES are not
# among them: a batch script has them, too, and runs as one process.
_LAUNCHERS = (
    {"world": "WORLD_SIZE", "rank": "RANK", "local_rank": "LOCAL_RANK", "local_ranks": "LOCAL_WORLD_SIZE",
     "node": "GROUP_RANK", "nodes": "GROUP_WORLD_SIZE"},
    {"world": "WORLD_SIZE", "node": "NODE_RANK"},
    {"world": "SLURM_STEP_NUM_TASKS", "rank": "SLURM_PROCID", "local_rank": "SLURM_LOCALID",
     "node": "SLURM_NODEID", "nodes": "SLURM_STEP_NUM_NODES"},
)


def _layout(rank, local_rank, local_ranks, node, nodes):
    """Returns nodes, node, local_ranks and local_rank. node is None if only the mount can know it."""
    facts, dist = {}, _distributed()
    overridden = nodes is not None and local_ranks is not None
    if dist is not None:
        facts.update(world=dist.get_world_size(), rank=dist.get_rank())
        size = os.environ.get("WORLD_SIZE", "")
        if size not in ("", str(facts["world"])) and not overridden:
            raise ValueError(f"milkweed: torch.distributed has {facts['world']} processes, and WORLD_SIZE is {size}")
    for names in _LAUNCHERS:
        said = {fact: _number(name) for fact, name in names.items() if os.environ.get(name, "") != ""}
        # torchrun as a task of Slurm starts more processes than Slurm knows.
        if "world" in said and said["world"] == facts.get("world", said["world"]):
            facts = {**said, **facts}

    known = "world" in facts
    world = facts.get("world", 1)
    if overridden or not known:
        nodes, local_ranks = (1 if n is None else n for n in (nodes, local_ranks))
        world = nodes * local_ranks
    elif nodes is not None:
        local_ranks = world // max(1, nodes)
    elif local_ranks is not None:
        nodes = world // max(1, local_ranks)
    else:
        nodes, local_ranks = facts.get("nodes"), facts.get("local_ranks")
        if nodes is None and local_ranks is None:
            if world > 1:
                raise ValueError(f"milkweed: the job has {world} processes, but how many on each node? Pass local_ranks=")
            nodes = local_ranks = 1
        nodes = world // max(1, local_ranks) if nodes is None else nodes
        local_ranks = world // max(1, nodes) if local_ranks is None else local_ranks
    if min(nodes, local_ranks) < 1 or nodes * local_ranks != world:
        raise ValueError(f"milkweed: {world} processes are not {nodes} nodes with {local_ranks} processes each")

    if rank is not None:    # the environment says nothing else then
        facts = {"rank": rank}
    if local_rank is None:
        local_rank = facts.get("local_rank", facts["rank"] % local_ranks if "rank" in facts else 0 if local_ranks == 1 else None)
    if local_rank is None:
        raise ValueError(f"milkweed: which of the {local_ranks} processes of its node is this? Pass local_rank=")
    if node is None:
        node = facts.get("node", 0 if nodes == 1 else None)
    if node is None and "rank" in facts:
        node = facts["rank"] // local_ranks
        if facts["rank"] % local_ranks != local_rank:
            raise ValueError(f"milkweed: rank {facts['rank']} is not process {local_rank} of {local_ranks} of a node; pass node=")
    if not 0 <= local_rank < local_ranks or node is not None and not 0 <= node < nodes:
        raise ValueError(f"milkweed: {nodes} nodes with {local_ranks} processes each have no process {local_rank} of node {node}")
    return nodes, node, local_ranks, local_rank


def _number(name):
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"milkweed: {name}={os.environ[name]} is not a number") from None


class _ExchangeControl(_Control):
    """The mount of an exchange."""

    purpose = "exchange"


class _Exchange:
    """Says which node holds which file in an epoch, as placement/exchange of Milkweed does.

    The slots of an epoch are an array: a file or EMPTY, those of node n from n * width on.
    """

    def __init__(self, files, nodes, seed, fraction, sizes=None):
        if not 1 <= nodes <= 65536:
            raise ValueError(f"milkweed: {nodes} nodes; there may be 1 to 65536")
        if not 0 <= fraction <= 1:
            raise ValueError(f"milkweed: the fraction {fraction} is not between 0 and 1")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"milkweed: the seed {seed} is not between 0 and 2**64 - 1")
        self.files, self.nodes, self.seed, self.sizes = files, nodes, seed, sizes
        self.width = -(-files // nodes)     # slots of each node: the largest share, in files
        full = files // nodes if sizes is None else self.width
        self.moves = math.floor(fraction * full + 0.5) if nodes > 1 else 0  # files that each node sends

    def start(self):
        """Returns the slots of epoch 0."""
        nodes, width = self.nodes, self.width
        files = list(range(self.files))
        _shuffle(files, self.text(0))
        slots = array.array("I", [EMPTY]) * (nodes * width)
        if self.sizes is None:
            start = 0
            for n in range(nodes):
                share = files[start:start + self.files // nodes + (n < self.files % nodes)]
                slots[n * width:n * width + len(share)] = array.array("I", share)
                start += len(share)
            return slots
        files.sort(key=self.sizes.__getitem__, reverse=True)     # is stable, too
        held = [0] * nodes  # bytes
        for row in range(width):
            order = sorted(range(nodes), key=held.__getitem__)
            for n, file in zip(order, files[row * nodes:(row + 1) * nodes]):
                slots[n * width + row] = file
                held[n] += self.sizes[file]
        return slots

    def advance(self, slots, epoch):
        """Returns the slots of an epoch, from those of the epoch before."""
        nodes, width, moves = self.nodes, self.width, self.moves
        if moves == 0:
            return slots
        slots = slots[:]
        choices = moves if self.sizes else nodes * moves
        words = _words(self.text(epoch), choices + moves * (nodes - 1))
        if self.sizes:
            for i in range(moves):
                j = i + (words[i] * (width - i) >> 64)
                slots[i::width], slots[j::width] = slots[j::width], slots[i::width]
        else:
            for n in range(nodes):
                share = slots[n * width:(n + 1) * width].tolist()
                size = width - (share[-1] == EMPTY)
                for i, word in enumerate(words[n * moves:(n + 1) * moves]):
                    j = i + (word * (size - i) >> 64)
                    share[i], share[j] = share[j], share[i]
                slots[n * width:(n + 1) * width] = array.array("I", share)
        for i in range(moves):
            # Sattolo's swaps in the reverse order, on the files themselves, make the same permutation
            # as the swaps on the numbers of the nodes that receive the files.
            row = slots[i::width].tolist()
            start = choices + i * (nodes - 1)
            for n, word in enumerate(reversed(words[start:start + nodes - 1]), 1):
                m = word * n >> 64
                row[n], row[m] = row[m], row[n]
            slots[i::width] = array.array("I", row)
        return slots

    def share(self, slots, node):
        """Returns the files that a node holds, in no certain order."""
        return [file for file in slots[node * self.width:(node + 1) * self.width] if file != EMPTY]

    def text(self, epoch):
        return f"milkweed exchange 1 seed {self.seed} epoch {epoch}\n"


def _shuffle(items, text):
    """Shuffles a list with the random numbers of a text."""
    last = len(items) - 1
    for i, word in zip(range(last, 0, -1), _words(text, max(0, last))):
        j = word * (i + 1) >> 64
        items[i], items[j] = items[j], items[i]


def _words(text, count):
    """Returns random 64-bit numbers: SHAKE128 of a text, little-endian."""
    words = array.array("Q", hashlib.shake_128(text.encode()).digest(8 * count))
    if sys.byteorder == "big":
        words.byteswap()
    return words
