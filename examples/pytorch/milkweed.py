"""Tell a Milkweed mount which files a job is about to read, so that the mount fetches them in time.

Copy this file beside your script. It needs Python 3.8 and its standard library. For PyTorch:

    sampler = milkweed.planned(sampler, [path for path, _ in dataset.samples], mount)

`sampler` is any Sampler, BatchSampler or DistributedSampler; the result goes to the DataLoader as
`sampler=` or `batch_sampler=`. For tf.data, and for any program that knows its order:

    milkweed.plan(paths, mount)

A plan is a hint. If the mount does not accept it, there is one warning, and the job goes on.

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
import copy
import errno
import http.client
import itertools
import json
import math
import operator
import os
import queue
import secrets
import socket
import sys
import threading
import types
import urllib.parse
import warnings
import weakref

__all__ = ["plan", "planned"]

LEAD = 1024         # files that the loader requests before the job uses them, unless the job says
MAX_LEAD = 65536    # the most that the mount accepts
AHEAD = 32768       # entries that are handed over before the loader requests them
PART = 4096         # entries of one request to the mount
PENDING = 8192      # parts of an order that wait for the thread
TIMEOUT = 5         # seconds for each operation on the socket
LAST_TIMEOUT = 1    # the same at the end of the process; also of the thread of an epoch

ATTRIBUTE = "user.milkweed.socket"  # of the mount point; its value is the path of the control socket


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
    mount = _Mount(mount, stream, lead)
    try:
        remaining = iter(paths)
        for start in itertools.count(0, PART):
            part = list(itertools.islice(remaining, PART))
            if part or start == 0:
                mount.send(epoch, start, part)
            if len(part) < PART:
                return True
    except Exception as problem:
        mount.warn(problem)
    return False


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
            self.mount = _Mount(mount, _stream(self.sampler), lead)
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


class _Mount:
    """A stream of the plan of a mount."""

    def __init__(self, mount, stream, lead):
        self.mount, self.stream, self.lead = mount, stream, lead
        self.prefixes = None    # of paths below the mount point
        self.used = False       # the mount has the stream
        self.warned = False

    def send(self, epoch, start, paths):
        """Makes paths the entries of an epoch from a start on."""
        body = b"".join([self.relative(path) + b"\0" for path in paths])
        reply = self.request("POST", TIMEOUT, body, epoch=epoch, lead=max(0, min(int(self.lead), MAX_LEAD)), **{"from": start})
        self.used = True
        reply = json.loads(reply)
        if reply["rejected"]:
            self.warn("it rejected %d of %d paths: %s" % (reply["rejected"], len(paths), "; ".join(reply.get("errors", []))))

    def drop(self, timeout):
        """Drops the stream, if the mount has it."""
        if self.used:
            self.used = False
            try:
                self.request("DELETE", timeout)
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

    def request(self, method, timeout, body=None, **query):
        """Returns the body of the reply."""
        connection = _Connection(self.find(), timeout)
        try:
            target = "/v1/plan?" + urllib.parse.urlencode(dict(query, stream=self.stream))
            connection.request(method, target, body, {"Content-Type": "application/octet-stream"})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status // 100 != 2:
            raise ConnectionError("it replied %d: %s" % (reply.status, text[:500].decode(errors="replace").strip()))
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
            warnings.warn(f"milkweed: no plan for {os.fspath(self.mount)!r}: {kind}{problem}", RuntimeWarning)
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
            raise ConnectionError("only root and the user who mounted it may plan") from None
