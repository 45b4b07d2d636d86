"""Tests of milkweed.py. Run them in this folder with: python3 -m unittest"""
import collections
import contextlib
import copy
import gc
import hashlib
import http.server
import itertools
import json
import multiprocessing
import operator
import os
import pickle
import random
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import typing
import unittest
import urllib.parse
import warnings
from unittest import mock

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data import WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import milkweed

MOUNT = "/mnt/dataset"
N = 1000
PATHS = [f"{MOUNT}/class{i % 7}/{i}.jpg" for i in range(N)]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves /v1/plan strictly: a request that the contract does not allow fails the test."""

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if server.hang is not None:
            server.hang.wait()
        if self.path.startswith("/v1/exchange"):
            return self.exchange(body)
        query = self.query({"stream", "epoch", "from", "lead"})
        stream, epoch, start = query["stream"], int(query["epoch"]), int(query["from"])
        server.require(len(stream.encode()) <= 128, "name of the stream: " + stream)
        server.require(epoch >= 0 and start >= 0 and 0 <= int(query["lead"]) <= 65536, f"numbers: {query}")
        server.require(self.headers["Content-Type"] == "application/octet-stream", "content type")
        server.require(body == b"" or body.endswith(b"\0"), "the last path has no NUL")
        paths = [os.fsdecode(path) for path in body.split(b"\0")[:-1]]
        with server.changed:
            server.requests.append((stream, epoch, start, len(paths)))
            server.leads.add(int(query["lead"]))
            entries = server.plans[stream].setdefault(epoch, {})
            server.require(not entries or start <= max(entries) + 1, f"a gap before {start}")
            for i in [i for i in entries if i >= start]:
                del entries[i]
            entries.update(enumerate(paths, start))
            server.changed.notify_all()
        rejected = [path for path in paths if path.startswith("/")]
        reply = json.dumps({"accepted": len(paths) - len(rejected), "rejected": len(rejected), "errors": rejected[:3]})
        self.reply(server.status, server.text or reply)

    def exchange(self, body):
        """Serves /v1/exchange. The daemon computes the identifier by itself."""
        server, url = self.server, urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        names = {"epoch", "reader", "readers"}
        if url.path == "/v1/exchange/epoch":
            server.require(set(query) == names | {"id"} and body == b"", f"request {self.path}")
            status, text = (204, "") if query["id"] == server.exchange else (404, "no exchange")
        else:
            names |= {"seed", "fraction", "nodes", "node", "balance"}
            server.require(url.path == "/v1/exchange" and set(query) == names, f"request {self.path}")
            bits, = struct.unpack(">Q", struct.pack(">d", float(query["fraction"])))
            head = "milkweed exchange 1\n%s %s %016x %s\n" % (query["nodes"], query["seed"], bits, query["balance"])
            server.exchange = hashlib.sha256(head.encode() + body).hexdigest()[:32] if server.status == 200 else None
            status, text = server.status, server.text or json.dumps({"id": server.exchange})
        with server.changed:
            server.exchanged.append((url.path, query, body))
        self.reply(status, text)

    def do_DELETE(self):
        with self.server.changed:
            stream = self.query({"stream"})["stream"]
            self.server.require(stream in self.server.plans, f"no stream {stream}")
            self.server.dropped.append(stream)
            self.server.plans.pop(stream, None)
            self.server.changed.notify_all()
        self.reply(204, "")

    def query(self, names):
        url = urllib.parse.urlsplit(self.path)
        pairs = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
        self.server.require(url.path == "/v1/plan", f"path {url.path}")
        self.server.require(sorted(name for name, _ in pairs) == sorted(names), f"parameters: {pairs}")
        return dict(pairs)

    def reply(self, status, text):
        with contextlib.suppress(BrokenPipeError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    def address_string(self):
        return "job"

    def log_message(self, *_):
        pass


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A control socket of a mount."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path):
        self.changed = threading.Condition()    # guards the following
        self.plans = collections.defaultdict(dict)  # stream -> epoch -> number -> path
        self.requests = []      # (stream, epoch, from, number of paths)
        self.leads = set()
        self.dropped = []
        self.faults = []        # of the client
        self.exchange = None    # its identifier
        self.exchanged = []     # requests: path, parameters, body

        self.status, self.text, self.hang = 200, None, None     # what it replies, and when
        super().__init__(path, Handler)

    def require(self, ok, fault):
        if not ok:
            self.faults.append(fault)

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, timeout=30)

    def entries(self, epoch=0):
        """Returns the paths of an epoch of the only stream, in order."""
        with self.changed:
            (epochs,) = self.plans.values() or [{}]
            return [path for _, path in sorted(epochs.get(epoch, {}).items())]


class WithDaemon(unittest.TestCase):
    """Starts a daemon, and fails if one of its requests was wrong or a thread is left."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.socket = os.path.join(folder.name, "socket")
        self.daemon = Daemon(self.socket)
        server = threading.Thread(target=self.daemon.serve_forever, kwargs={"poll_interval": 0.01})
        server.start()
        self.addCleanup(server.join)
        self.addCleanup(self.daemon.server_close)
        self.addCleanup(self.daemon.shutdown)
        attribute = mock.patch.object(os, "getxattr", self.getxattr)
        attribute.start()
        self.addCleanup(attribute.stop)
        self.addCleanup(self.check)

    def getxattr(self, path, name):
        self.assertEqual((path, name), (MOUNT, "user.milkweed.socket"))
        return os.fsencode(self.socket)

    def check(self):
        gc.collect()
        self.assertEqual(self.daemon.faults, [])
        self.until("the threads have ended", lambda: "milkweed" not in [t.name for t in threading.enumerate()])

    def until(self, what, condition):
        deadline = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.005)

    def wants(self, paths, epoch=0):
        """Waits until the plan of an epoch has these paths."""
        names = [path[len(MOUNT) + 1:] for path in paths]
        if not self.daemon.wait(lambda: self.daemon.entries(epoch) == names):
            got = self.daemon.entries(epoch)
            self.fail(f"epoch {epoch}: {len(got)} entries {got[:5]}…, want {len(names)} {names[:5]}…")

    def planned(self, sampler, paths=PATHS, **options):
        return milkweed.planned(sampler, paths, MOUNT, **options)


# Samplers that users write.

class Shuffled:
    """Shuffles its own list in each epoch, with a generator that others use."""

    def __init__(self):
        self.indices = list(range(N))

    def __iter__(self):
        random.shuffle(self.indices)
        return iter(self.indices)

    def __len__(self):
        return N


class Drawn:
    """Draws when the iterator is made, before DataLoader draws its seed."""

    def __iter__(self):
        return iter(torch.randperm(N).tolist())


class Lazy:
    """Draws from one of the global generators in each step."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        for _ in range(N):
            yield self.draw()


class Mining:
    """Yields what the job has found to be hardest."""

    def __init__(self):
        self.losses = [0.0] * N

    def __iter__(self):
        for _ in range(N):
            yield max(range(N), key=self.losses.__getitem__)


class OwnIterator:
    """Is its own iterator."""

    def __iter__(self):
        self.left = random.sample(range(N), N)
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()


class Delegating(RandomSampler):
    """Counts its epochs, and draws at the end of each."""

    epochs = 0

    def __iter__(self):
        yield from super().__iter__()
        self.epochs += torch.randint(1, 5, ()).item()


class Groups:
    """A batch sampler with batches of several sizes, as arrays."""

    def __iter__(self):
        order = numpy.random.permutation(N)
        yield from numpy.split(order, [5, 6, 300])


class StatefulDistributedSampler(torch.utils.data.Sampler):
    """Stands for the class of torchdata, and has its attributes."""

    def __init__(self, size, num_replicas, rank):
        self.size, self.num_replicas, self.rank = size, num_replicas, rank
        self.epoch, self.yielded, self.next_yielded = 0, 0, None

    def __iter__(self):
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()[self.rank::self.num_replicas]
        for index in itertools.islice(order, self.yielded, None):
            self.yielded += 1
            yield index

    def __len__(self):
        return self.size // self.num_replicas

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"yielded": self.yielded, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch, self.next_yielded = state["epoch"], state["yielded"]


torchdata = mock.patch.dict(sys.modules, {
    "torchdata.stateful_dataloader.sampler": types.SimpleNamespace(StatefulDistributedSampler=StatefulDistributedSampler)})
setUpModule, tearDownModule = torchdata.start, torchdata.stop

SHARED = torch.Generator()  # is used by samplers and by the job


def weights():
    return torch.linspace(1, 5, N)


# The order of these is known at the first step.
FORESEEN = {
    "sequential": lambda: SequentialSampler(PATHS),
    "random": lambda: RandomSampler(PATHS),
    "random, generator": lambda: RandomSampler(PATHS, generator=torch.Generator().manual_seed(5)),
    "random, shared generator": lambda: RandomSampler(PATHS, generator=SHARED),
    "random, part": lambda: RandomSampler(PATHS, num_samples=300),
    "replacement": lambda: RandomSampler(PATHS, replacement=True, num_samples=777),
    "replacement, generator": lambda: RandomSampler(PATHS, True, generator=torch.Generator().manual_seed(5)),
    "subset": lambda: SubsetRandomSampler(range(0, N, 3)),
    "subset, generator": lambda: SubsetRandomSampler(list(range(N)), generator=torch.Generator().manual_seed(5)),
    "subset, shared generator": lambda: SubsetRandomSampler(range(N), generator=SHARED),
    "weighted": lambda: WeightedRandomSampler(weights(), N),
    "weighted, shared generator": lambda: WeightedRandomSampler(weights(), N // 2, False, generator=SHARED),
    "distributed": lambda: DistributedSampler(PATHS, 2, 1),
    "distributed, in order": lambda: DistributedSampler(PATHS, 3, 0, shuffle=False),
    "distributed, stateful": lambda: StatefulDistributedSampler(N, 2, 1),
    "batches": lambda: BatchSampler(RandomSampler(PATHS), 32, False),
    "batches, last dropped": lambda: BatchSampler(SubsetRandomSampler(range(N)), 24, True),
    "batches, distributed": lambda: BatchSampler(DistributedSampler(PATHS, 2, 0), 10, False),
    "shuffled": Shuffled,
    "drawn": Drawn,
    "delegating": lambda: Delegating(PATHS),
    "groups": Groups,
    "list": lambda: [[5, 6], [7], []],
    "tensor": lambda: torch.arange(N).flip(0),
}

# The order of these depends on what happens between the steps, or may do so.
UNFORESEEN = {
    "replacement, shared generator": lambda: RandomSampler(PATHS, True, generator=SHARED),
    "random, repeated": lambda: RandomSampler(PATHS, num_samples=3 * N + 50),
    "lazy, random": lambda: Lazy(lambda: random.randrange(N)),
    "lazy, numpy": lambda: Lazy(lambda: numpy.random.randint(N)),
    "lazy, torch": lambda: Lazy(lambda: torch.randint(N, ())),
    "lazy, generator": lambda: Lazy(lambda: torch.randint(N, (), generator=SHARED).item()),
    "mining": Mining,
    "own iterator": OwnIterator,
    "generator": lambda: (i for i in range(N)),
    "iterator of a list": lambda: iter(list(range(N))),
    "map": lambda: map(operator.neg, range(1, N)),
}


def trace(make, wrap, jump=False):
    """Returns everything that a job observes that reads three epochs with a sampler.

    The job draws random numbers itself, at the beginning of an epoch and at each step, from the
    generators that the sampler may use.
    """
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    SHARED.manual_seed(4)
    sampler = make()
    inner = getattr(sampler, "sampler", sampler)
    used, seen = wrap(sampler), []
    for epoch in 0, 1, 2:
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(2 * epoch if jump else epoch)
        steps = iter(used)
        seen.append(torch.empty((), dtype=torch.int64).random_().item())    # as DataLoader draws its seed
        for item in steps:
            seen += milkweed._indices(item), random.random(), numpy.random.rand(), torch.rand(()).item()
            seen.append(torch.rand((), generator=SHARED).item())
            if hasattr(inner, "losses"):
                inner.losses[seen[-5][0]] = -random.random()
            if hasattr(inner, "state_dict"):
                seen.append(inner.state_dict())
        state = {key: value for key, value in vars(inner).items() if isinstance(value, int)} if hasattr(inner, "__dict__") else None
        seen += [state, random.random(), numpy.random.rand(), torch.rand(()).item(), torch.rand((), generator=SHARED).item()]
    return seen


class Order(WithDaemon):
    """The job observes the same with and without planned()."""

    def test_same_order_and_same_random_numbers(self):
        for name, make in {**FORESEEN, **UNFORESEEN}.items():
            with self.subTest(name):
                self.assertEqual(trace(make, self.planned), trace(make, lambda sampler: sampler))
        self.assertGreater(len(self.daemon.dropped), 20)    # each of them had a plan

    def test_same_without_a_mount(self):
        self.socket += "-that-does-not-exist"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, make in {**FORESEEN, **UNFORESEEN}.items():
                with self.subTest(name):
                    self.assertEqual(trace(make, self.planned), trace(make, lambda sampler: sampler))

    def test_epochs_that_jump(self):
        for name in "distributed", "distributed, stateful", "batches, distributed":
            with self.subTest(name):
                make = FORESEEN[name]
                self.assertEqual(trace(make, self.planned, jump=True), trace(make, lambda s: s, jump=True))

    def test_two_iterators_at_once(self):
        for name in "random, shared generator", "distributed", "shuffled", "replacement":
            with self.subTest(name):
                def pairs(wrap):
                    torch.manual_seed(1), random.seed(1), SHARED.manual_seed(1)
                    sampler = wrap(FORESEEN[name]())
                    return list(zip(sampler, sampler))
                self.assertEqual(pairs(self.planned), pairs(lambda sampler: sampler))

    def test_error_of_the_sampler(self):
        def broken():
            yield 1
            raise KeyError("of the sampler")
        steps = iter(self.planned(broken()))
        self.assertEqual(next(steps), 1)
        with self.assertRaisesRegex(KeyError, "of the sampler"):
            next(steps)


class Plan(WithDaemon):
    """What the mount is told."""

    def test_order_is_known_at_the_first_step(self):
        for name, make in FORESEEN.items():
            with self.subTest(name):
                dropped = name.endswith("last dropped") * (N % 24)
                number = sum(len(milkweed._indices(item)) for item in make()) + dropped
                steps = iter(self.planned(make()))
                used = milkweed._indices(next(steps))
                self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries()) == number))
                told = self.daemon.entries()
                used += milkweed._indices(list(steps))
                self.assertEqual(told[:number - dropped], [PATHS[i][len(MOUNT) + 1:] for i in used])
                del steps
                gc.collect()
                self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_other_orders_are_told_step_by_step(self):
        for name, make in UNFORESEEN.items():
            if name in ("random, repeated", "replacement, shared generator", "iterator of a list"):
                continue
            with self.subTest(name):
                steps = iter(self.planned(make()))
                used = []
                for item in itertools.islice(steps, 3):
                    used.append(PATHS[item])
                    self.wants(used)
                del steps, item
                gc.collect()
                self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_second_permutation(self):
        steps = iter(self.planned(RandomSampler(PATHS, num_samples=2 * N)))
        used = [PATHS[next(steps)]]
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries()) == N))
        used += [PATHS[i] for i in itertools.islice(steps, N)]
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries()) == 2 * N))
        told = self.daemon.entries()
        self.assertEqual([f"{MOUNT}/{name}" for name in told], used + [PATHS[i] for i in steps])

    def test_look_ahead_is_bounded(self):
        for name, sampler, ahead in (
                ("indices", SequentialSampler(range(200_000)), 32768), ("batches", [range(100)] * 2000, 32700),
                ("twin", SubsetRandomSampler(range(200_000)), 32768),
                ("infinite", Lazy(lambda: 0), 0)):
            with self.subTest(name):
                paths = [str(i) for i in range(200_000)]
                steps = iter(self.planned(sampler, paths))
                taken = 0
                for count in 1, 500, 20_000, 60_000:
                    count = count // 100 or 1 if name == "batches" else min(count, N) if name == "infinite" else count
                    taken += sum(len(milkweed._indices(item)) for item in itertools.islice(steps, count))
                    least = taken + ahead // 2
                    self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries()) >= least))
                    self.assertLessEqual(len(self.daemon.entries()), taken + ahead)
                del steps
                self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_next_epoch(self):
        for name in "distributed", "distributed, stateful", "batches, distributed":
            with self.subTest(name):
                self.daemon.requests.clear()
                sampler = FORESEEN[name]()
                inner = getattr(sampler, "sampler", sampler)
                orders = []
                for epoch in range(4):
                    inner.set_epoch(epoch)
                    orders.append([PATHS[i] for i in inner])
                planned = self.planned(sampler)
                for epoch in range(3):
                    inner.set_epoch(epoch)
                    steps = iter(planned)
                    next(steps)
                    self.wants(orders[epoch], epoch)
                    self.wants(orders[epoch + 1], epoch + 1)
                    collections.deque(steps, 0)
                # Nothing was sent twice.
                self.assertEqual([r[1:3] for r in self.daemon.requests], [(0, 0), (1, 0), (2, 0), (3, 0)])
                del planned, steps
                self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_next_epoch_is_bounded(self):
        sampler = DistributedSampler(range(30_000), 1, 0)
        steps = iter(self.planned(sampler, [str(i) for i in range(30_000)]))
        next(steps)
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries(1)) == 1 + 32768 - 30_000))
        self.assertEqual(len(self.daemon.entries(0)), 30_000)
        collections.deque(steps, 0)
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries(1)) == 30_000))

    def test_without_set_epoch_the_next_epoch_is_told_once(self):
        sampler = DistributedSampler(PATHS, 2, 1)
        planned = self.planned(sampler)
        for epoch in range(3):
            order = [PATHS[i] for i in planned]
            self.wants(order, epoch)
        self.assertNotIn(3, self.daemon.plans[self.daemon.requests[0][0]])

    def test_other_samplers_have_no_next_epoch(self):
        for name in "sequential", "random, generator", "shuffled", "weighted":
            with self.subTest(name):
                planned = self.planned(FORESEEN[name]())
                self.wants([PATHS[i] for i in planned])
                self.until("the thread has ended", lambda: not planned._state.epoch.thread.is_alive())
                self.assertEqual({r[1] for r in self.daemon.requests}, {0})
                del planned
                self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_resumed_job(self):
        before = StatefulDistributedSampler(N, 2, 1)
        before.set_epoch(3)
        steps = iter(self.planned(before))
        used = [next(steps) for _ in range(100)]
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries(3)) == N // 2))
        state = self.planned(before).state_dict()
        self.assertEqual(state, {"yielded": 100, "epoch": 3})
        rest = [PATHS[i] for i in steps]
        del steps
        gc.collect()
        self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))
        self.daemon.requests.clear()

        after = self.planned(StatefulDistributedSampler(N, 2, 1))
        after.load_state_dict(state)
        steps = iter(after)
        self.assertEqual(PATHS[next(steps)], rest[0])
        self.wants(rest, 3)
        self.assertEqual(self.daemon.requests[0][1:], (3, 100, 400))
        self.assertEqual([PATHS[i] for i in steps], rest[1:])
        self.assertEqual(len(used) + len(rest), N // 2)

    def test_streams(self):
        with mock.patch.dict(os.environ, RANK="5"):
            samplers = [self.planned(s) for s in (SequentialSampler(PATHS), DistributedSampler(PATHS, 8, 3))]
            steps = [iter(s) for s in samplers]
            for s in steps:
                next(s)
        self.assertTrue(self.daemon.wait(lambda: len(self.daemon.plans) == 2))
        self.assertEqual(sorted(name.partition("-")[0] for name in self.daemon.plans), ["rank3", "rank5"])

    def test_lead(self):
        next(iter(self.planned(SequentialSampler(PATHS), lead=2 * 4 * 32)))
        self.assertTrue(self.daemon.wait(lambda: self.daemon.leads == {256}))
        self.assertTrue(milkweed.plan(PATHS, MOUNT))
        self.assertEqual(self.daemon.leads, {256, milkweed.LEAD})

    def test_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            link = os.path.join(folder, "link")
            os.symlink(MOUNT, link)
            mount = milkweed._Control(link, "", 0)
            for path, want in ((f"{link}/a/b", b"a/b"), (f"{MOUNT}/a", b"a"), ("a/b", b"a/b"), (b"a\xff", b"a\xff"),
                               ("/elsewhere/a", b"/elsewhere/a"), (f"{MOUNT}2/a", b"/mnt/dataset2/a")):
                self.assertEqual(mount.relative(path), want)
            self.assertEqual(milkweed._Control("mnt", "", 0).relative("mnt/a"), b"a")
            self.assertEqual(milkweed._Control("mnt/", "", 0).relative(os.path.abspath("mnt/a")), b"a")

    def test_keys(self):
        planned = self.planned([["a", "b"], ["c"]], {"a": "1", "b": "2", "c": "3"})
        collections.deque(planned, 0)
        self.assertTrue(self.daemon.wait(lambda: self.daemon.entries() == ["1", "2", "3"]))

    def test_plan_function(self):
        paths = [f"{MOUNT}/{i}" for i in range(10_000)]
        self.assertTrue(milkweed.plan(iter(paths), MOUNT, stream="files", epoch=2))
        self.wants(paths, 2)
        self.assertEqual([r[2:] for r in self.daemon.requests], [(0, 4096), (4096, 4096), (8192, 1808)])
        self.assertTrue(milkweed.plan([], MOUNT, stream="files", epoch=2))
        self.wants([], 2)


class End(WithDaemon):
    """A plan that the job does not need any more is dropped."""

    def test_abandoned_epoch(self):
        planned = self.planned(SequentialSampler(PATHS))
        steps = iter(planned)
        next(steps)
        self.wants(PATHS)
        del steps
        self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))
        self.assertEqual([PATHS[i] for i in planned], PATHS)    # the next epoch has a plan again
        self.wants(PATHS, 1)

    def test_garbage(self):
        planned = self.planned(DistributedSampler(PATHS, 2, 1))
        collections.deque(planned, 0)
        self.assertTrue(self.daemon.wait(lambda: self.daemon.entries(1)))
        del planned
        self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))

    def test_end_of_process(self):
        job = f"""if True:
            import os, milkweed
            os.getxattr = lambda path, name: {os.fsencode(self.socket)!r}
            planned = milkweed.planned(range(100), [str(i) for i in range(100)], {MOUNT!r})
            steps = iter(planned)
            next(steps)
            input()
        """
        with subprocess.Popen([sys.executable, "-B", "-c", job], stdin=subprocess.PIPE) as process:
            self.assertTrue(self.daemon.wait(lambda: len(self.daemon.entries()) == 100))
            process.communicate(b"\n")
        self.assertEqual(process.returncode, 0)
        self.assertTrue(self.daemon.wait(lambda: not self.daemon.plans))


class Trouble(WithDaemon):
    """A plan that fails costs one warning."""

    def job(self, epochs=3, paths=PATHS):
        """Reads with a plan. Returns the warnings."""
        planned = self.planned(RandomSampler(PATHS), paths)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(epochs):
                self.assertEqual(sorted(planned), list(range(N)))
                self.until("the thread has ended", lambda: not planned._state.epoch.thread.is_alive())
        self.assertEqual({w.category for w in caught}, {RuntimeWarning})
        return [str(w.message) for w in caught]

    def warns(self, pattern, **options):
        caught = self.job(**options)
        self.assertEqual(len(caught), 1, caught)
        self.assertRegex(caught[0], "^milkweed: no plan for '/mnt/dataset': .*" + pattern)

    def test_no_mount(self):
        with mock.patch.object(os, "getxattr", side_effect=OSError(61, "No data available")):
            self.warns("not the mount point of a Milkweed mount")
        with mock.patch.object(os, "getxattr", side_effect=FileNotFoundError(2, "No such file", MOUNT)):
            self.warns("No such file")

    def test_no_socket(self):
        self.socket += "2"
        self.warns("socket2 does not exist; a container needs its directory")

    def test_nobody_listens(self):
        with open(self.socket + "3", "w"):
            self.socket += "3"
        self.warns("refused")

    def test_other_user(self):
        with mock.patch("socket.socket.connect", side_effect=PermissionError(13, "Permission denied")):
            self.warns("only root and the user who mounted")

    def test_error_of_the_daemon(self):
        self.daemon.status, self.daemon.text = 500, "it is broken"
        self.warns("500: it is broken")

    def test_wrong_reply(self):
        self.daemon.text = "[]"
        self.warns("")

    def test_rejected_paths(self):
        self.warns("1000 of 1000 paths: /elsewhere/", paths=["/elsewhere/" + path for path in PATHS])
        self.assertEqual({r[1] for r in self.daemon.requests}, {0, 1, 2})

    def test_missing_paths(self):
        self.warns("IndexError: ", paths=PATHS[:10])

    def test_recovery(self):
        planned = self.planned(SequentialSampler(PATHS))
        self.daemon.status = 503
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collections.deque(planned, 0)
            self.until("the thread has ended", lambda: not planned._state.epoch.thread.is_alive())
        self.daemon.status = 200
        self.daemon.plans.clear()
        collections.deque(planned, 0)
        self.wants(PATHS, 1)

    def test_warnings_as_errors(self):
        self.daemon.status = 500
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            planned = self.planned(Lazy(lambda: 0))
            self.assertEqual(list(planned), [0] * N)
            self.assertFalse(milkweed.plan(PATHS, MOUNT))

    def test_plan_function(self):
        with self.assertWarnsRegex(RuntimeWarning, "500"):
            self.daemon.status = 500
            self.assertFalse(milkweed.plan(PATHS, MOUNT))

    def test_daemon_that_hangs(self):
        """The job reads five epochs while the daemon does not reply."""
        self.daemon.hang = threading.Event()
        with mock.patch.multiple(milkweed, TIMEOUT=60, LAST_TIMEOUT=0.01), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for make in lambda: SequentialSampler(PATHS), lambda: Lazy(iter(itertools.cycle(range(N))).__next__):
                planned = self.planned(make())
                for _ in range(5):
                    self.assertEqual(list(planned), list(range(N)))
                del planned
        self.assertEqual(self.daemon.requests, [])
        self.daemon.hang.set()

    def test_slow_daemon_bounds_memory(self):
        self.daemon.hang = threading.Event()
        self.addCleanup(self.daemon.hang.set)
        with mock.patch.multiple(milkweed, TIMEOUT=60, PENDING=10), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps = iter(self.planned(Lazy(lambda: 0)))
            collections.deque(steps, 0)
            self.assertLess(steps._state.messages.qsize(), 15)
        self.assertIn("too slowly", str(caught[0].message))


@typing.runtime_checkable
class Stateful(typing.Protocol):
    def state_dict(self): ...

    def load_state_dict(self, state): ...


def read(planned):
    return list(planned)


class Proxy(WithDaemon):
    """Frameworks see the sampler."""

    def test_attributes(self):
        sampler = DistributedSampler(PATHS, 4, 2)
        planned = self.planned(sampler)
        self.assertEqual((planned.num_replicas, planned.rank, len(planned)), (4, 2, 250))
        planned.set_epoch(7)
        self.assertEqual((sampler.epoch, planned.epoch), (7, 7))
        planned.seed = 5
        self.assertEqual(sampler.seed, 5)
        self.assertIsInstance(planned, DistributedSampler)
        self.assertNotIsInstance(planned, RandomSampler)
        self.assertFalse(hasattr(planned, "state_dict"))
        self.assertNotIsInstance(planned, Stateful)
        self.assertIsInstance(self.planned(StatefulDistributedSampler(N, 1, 0)), Stateful)
        self.assertFalse(self.planned([]))
        self.assertIn("SequentialSampler", repr(self.planned(SequentialSampler(PATHS))))
        with self.assertRaises(TypeError):
            len(self.planned(Mining()))

    def test_batch_sampler(self):
        sampler = BatchSampler(DistributedSampler(PATHS, 4, 2), 16, True)
        planned = self.planned(sampler)
        self.assertEqual((planned.batch_size, planned.drop_last, len(planned)), (16, True, 15))
        planned.sampler.set_epoch(3)
        self.assertEqual(sampler.sampler.epoch, 3)
        self.assertIs(type(sampler.sampler), DistributedSampler)    # the original is unchanged

    def test_copies(self):
        sampler = RandomSampler(PATHS[:100], generator=None)
        planned = self.planned(sampler)
        steps = iter(planned)   # has a thread
        next(steps)
        for copied in copy.copy(planned), copy.deepcopy(planned), pickle.loads(pickle.dumps(planned)):
            self.assertIs(type(copied), milkweed._Planned)
            torch.manual_seed(1)
            got = list(copied)
            torch.manual_seed(1)
            self.assertEqual(got, list(sampler))

    def test_other_processes(self):
        for method in "fork", "spawn":
            with self.subTest(method), mock.patch.dict(os.environ, PYTHONWARNINGS="ignore"):
                planned = self.planned(range(N))
                steps = iter(planned)
                next(steps)
                self.assertTrue(self.daemon.wait(lambda: self.daemon.plans))
                with multiprocessing.get_context(method).Pool(1) as pool:
                    self.assertEqual(pool.apply(read, [planned]), list(range(N)))
                self.assertEqual(list(steps), list(range(1, N)))
                del planned, steps

    def test_fork_without_pickling(self):
        planned = self.planned(range(N))
        steps = iter(planned)
        next(steps)
        self.wants(PATHS)
        child = os.fork()
        if child == 0:
            ok = list(planned) == list(range(N)) and list(steps) == list(range(1, N))
            del planned, steps
            os._exit(not ok)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(list(steps), list(range(1, N)))


class Images(torch.utils.data.Dataset):
    """Has random augmentation."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), numpy.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class Loader(WithDaemon):
    """DataLoader yields the same batches with and without planned()."""

    def batches(self, wrap, make, **options):
        random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
        if "batch_size" in options:
            loader = DataLoader(Images(), sampler=wrap(make()), **options)
        else:
            loader = DataLoader(Images(), batch_sampler=wrap(BatchSampler(make(), 64, False)), **options)
        # The numpy generator of a worker does not depend on the seed of the job.
        columns = slice(0, 4) if not options.get("num_workers") else [0, 1, 3]
        return [batch[:, columns].tolist() for _ in range(2) for batch in loader]

    def compare(self, **options):
        for make in lambda: RandomSampler(PATHS), lambda: SubsetRandomSampler(range(N)), \
                lambda: Lazy(lambda: random.randrange(N)):
            want = self.batches(lambda sampler: sampler, make, **options)
            self.assertEqual(self.batches(self.planned, make, **options), want)
            self.assertTrue(self.daemon.requests)

    def test_without_workers(self):
        self.compare(batch_size=64)
        self.compare()

    def test_with_workers(self):
        self.compare(batch_size=64, num_workers=2)
        self.compare(num_workers=2, persistent_workers=True)

    def test_spawned_workers(self):
        want = self.batches(lambda sampler: sampler, FORESEEN["random"], batch_size=64)
        got = self.batches(self.planned, FORESEEN["random"], batch_size=64, num_workers=1,
                           multiprocessing_context="spawn")
        # The job itself draws no augmentation with workers, so that later epochs differ.
        indices = [[row[0] for row in batch] for batch in got]
        self.assertEqual(indices[:16], [[row[0] for row in batch] for batch in want[:16]])

    def test_no_thread_when_workers_are_forked(self):
        seen = []
        loader = DataLoader(Images(), sampler=self.planned(DistributedSampler(PATHS, 1, 0)), batch_size=8, num_workers=1)
        os.register_at_fork(before=lambda: seen.append([t.name for t in threading.enumerate()]))
        for _ in range(3):
            collections.deque(loader, 0)
        self.assertGreaterEqual(len(seen), 3)
        self.assertNotIn("milkweed", sum(seen, []))


class Exchange(unittest.TestCase):
    """The job and the daemon compute the same exchange."""

    def test_same_as_daemon(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../placement/exchange/testdata/golden.json")
        with open(golden) as file:
            plans = json.load(file)["plans"]
        self.assertTrue(plans)
        for want in plans:
            sizes, rule = want["sizes"], want.get("sizes_rule")
            if rule:
                sizes = [i * rule["factor"] % rule["modulus"] for i in range(want["files"])]
            plan = milkweed._Exchange(want["files"], want["nodes"], want["seed"], want["fraction"], sizes)
            self.assertEqual(plan.moves, want["moves"])
            slots = plan.start()
            for epoch in range(6):
                if epoch:
                    slots = plan.advance(slots, epoch)
                holders = [None] * want["files"]
                for node in range(want["nodes"]):
                    for file in plan.share(slots, node):
                        holders[file] = node
                with self.subTest(epoch=epoch, **{k: want[k] for k in ("files", "nodes", "seed", "fraction")}):
                    if str(epoch) in want.get("holders", {}):
                        self.assertEqual(" ".join(map(str, holders)), want["holders"][str(epoch)])
                    if str(epoch) in want.get("holders_sha256", {}):
                        digest = hashlib.sha256(struct.pack(f"<{len(holders)}H", *holders)).hexdigest()
                        self.assertEqual(digest, want["holders_sha256"][str(epoch)])

    def test_wrong_arguments(self):
        for arguments in (1, 0, 1, 0.5), (1, 65537, 1, 0.5), (1, 1, -1, 0.5), (1, 1, 1 << 64, 0.5), \
                (1, 1, 1, 1.01), (1, 1, 1, float("nan")):
            with self.subTest(arguments), self.assertRaises(ValueError):
                milkweed._Exchange(*arguments)


def shuffles(samples, nodes, ranks, **options):
    """Returns the samplers of all ranks of a job, by node and local rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # these have no mount
        return [[milkweed.LocalShuffle(samples, MOUNT, node=node, nodes=nodes, local_rank=rank, local_ranks=ranks, **options)
                 for rank in range(ranks)] for node in range(nodes)]


SEVERAL = [(f"{MOUNT}/{i * i // 7 % 40}.tar", i) for i in range(N)]   # files with several samples each


class Shuffle(unittest.TestCase):
    """The order of LocalShuffle."""

    def epochs(self, samplers, epochs):
        for epoch in epochs:
            for sampler in itertools.chain(*samplers):
                sampler.set_epoch(epoch)
            yield epoch, [[list(sampler) for sampler in node] for node in samplers]

    def test_each_sample_once(self):
        for samples, nodes, ranks, q, drop in itertools.product(
                (PATHS, SEVERAL), (1, 3, 7), (1, 4), (0, 0.3, 1), (False, True)):
            with self.subTest(files=len(set(samples)), nodes=nodes, ranks=ranks, q=q, drop=drop):
                samplers = shuffles(samples, nodes, ranks, q=q, drop_last=drop)
                for _, orders in self.epochs(samplers, range(3)):
                    self.assertEqual({len(order) for node in orders for order in node}, {len(samplers[0][0])})
                    counts = collections.Counter(itertools.chain(*itertools.chain(*orders)))
                    if drop:
                        self.assertEqual(set(counts.values()), {1})
                        lost = max(len(s._order()) for (s, *_) in samplers) - min(len(s._order()) for (s, *_) in samplers)
                        self.assertGreater(N - len(counts), -1)
                        self.assertLess(N - len(counts), nodes * (ranks + lost))
                    else:
                        self.assertEqual(set(counts), set(range(N)))
                        for node, (sampler, *_) in zip(orders, samplers):   # only what pads is repeated
                            own = sampler._order()
                            read = [index for row in zip(*node) for index in row]
                            self.assertEqual(read[:len(own)], own)
                            self.assertEqual(len(set(own)), len(own))

    def test_samples_of_a_file_stay_together(self):
        for _, orders in self.epochs(shuffles(SEVERAL, 4, 2), range(3)):
            files = [{SEVERAL[index][0] for rank in node for index in rank} for node in orders]
            self.assertEqual(sum(map(len, files)), len({path for path, _ in SEVERAL}))

    def test_fraction_moves(self):
        for q, want in (0, 0), (0.3, 30), (1, 100):
            (last, now) = ([set(node[0]) for node in orders]
                           for _, orders in self.epochs(shuffles(PATHS, 10, 1, q=q), range(2)))
            self.assertEqual([len(a - b) for a, b in zip(last, now)], [want] * 10)

    def test_one_node_shuffles_all(self):
        (_, a), (_, b) = self.epochs(shuffles(PATHS, 1, 1), range(2))
        self.assertEqual(sorted(a[0][0]), list(range(N)))
        self.assertNotEqual(a, b)
        self.assertNotEqual(a[0][0], list(range(N)))

    def test_resume(self):
        for balance in "count", "bytes":
            with mock.patch.object(os, "stat", lambda path: types.SimpleNamespace(st_size=len(path) ** 2)):
                make = lambda: shuffles(SEVERAL, 3, 2, balance=balance)
                samplers = make()
            run = dict(self.epochs(samplers, range(6)))
            self.assertEqual(dict(self.epochs(samplers, [2, 5, 0])), {e: run[e] for e in (2, 5, 0)})
            with mock.patch.object(os, "stat", lambda path: types.SimpleNamespace(st_size=len(path) ** 2)):
                self.assertEqual(dict(self.epochs(make(), [4])), {4: run[4]})

    def test_without_set_epoch(self):
        sampler = shuffles(PATHS, 2, 1)[0][0]
        self.assertEqual(list(sampler), list(sampler))
        with self.assertRaises(ValueError):
            sampler.set_epoch(-1)

    def test_balance_of_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            sizes = [i * i for i in range(60)]
            for i, size in enumerate(sizes):
                with open(os.path.join(folder, str(i)), "wb") as file:
                    file.truncate(size)
            held = []
            for node in range(4):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    sampler = milkweed.LocalShuffle([str(i) for i in range(60)], folder, balance="bytes", nodes=4, node=node)
                held.append(sum(sizes[i] for i in sampler))
        self.assertLess(max(held) - min(held), max(sizes) / 4)

    def test_paths(self):
        """The order depends on the set of files, not on their spelling or kind."""
        orders = []
        for spell in (lambda p: (p, 3)), (lambda p: p), (lambda p: p[len(MOUNT) + 1:]), os.fsencode, \
                (lambda p: p.replace("/class", "//./class")):
            orders.append(list(shuffles([spell(path) for path in PATHS], 3, 1)[1][0]))
        self.assertEqual(orders[1:], orders[:-1])
        backwards = [N - 1 - i for i in shuffles(PATHS[::-1], 3, 1)[1][0]]
        self.assertEqual(sorted(backwards), sorted(orders[0]))

    def test_wrong_arguments(self):
        for options in {"q": 2}, {"seed": -1}, {"balance": "size"}, {"nodes": N + 1, "node": 0}, {"node": 5}:
            with self.subTest(options), self.assertRaisesRegex(ValueError, "milkweed: "):
                milkweed.LocalShuffle(PATHS, MOUNT, **options)

    def test_copies(self):
        sampler = shuffles(SEVERAL, 3, 2)[1][1]
        sampler.set_epoch(2)
        want = list(sampler)
        for copied in copy.copy(sampler), copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler)):
            self.assertEqual(list(copied), want)
            copied.set_epoch(3)
            self.assertNotEqual(list(copied), want)
        self.assertEqual(list(sampler), want)

    def test_loader(self):
        for workers in 0, 2:
            sampler = shuffles(PATHS, 2, 1)[1][0]
            loader = DataLoader(Images(), sampler=sampler, batch_size=16, num_workers=workers, persistent_workers=workers > 0)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                got = [int(row[0]) for batch in loader for row in batch]
                self.assertEqual(got, list(sampler))
                self.assertEqual(len(loader), -(-len(sampler) // 16))
        self.assertIsInstance(sampler, torch.utils.data.Sampler)

    def test_local_files(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for epoch in 0, 2, 1:
                lists = [milkweed.local_files(MOUNT, epoch, PATHS, nodes=3, node=node, local_ranks=2, local_rank=rank)
                         for node in range(3) for rank in range(2)]
                self.assertEqual(sorted(sum(lists, [])), sorted(PATHS))
            with tempfile.TemporaryDirectory() as folder:
                os.mkdir(os.path.join(folder, "a"))
                for name in "a/1", "a/2", "b":
                    open(os.path.join(folder, name), "w").close()
                self.assertEqual(sorted(milkweed.local_files(folder, 0)), [os.path.join(folder, n) for n in ("a/1", "a/2", "b")])


class Layout(unittest.TestCase):
    """The numbers of a process."""

    def layout(self, environment, rank=None, local_rank=None, local_ranks=None, node=None, nodes=None):
        with mock.patch.dict(os.environ, {k: str(v) for k, v in environment.items()}, clear=True):
            return milkweed._layout(rank, local_rank, local_ranks, node, nodes)

    TORCHRUN = {"WORLD_SIZE": 8, "RANK": 6, "LOCAL_WORLD_SIZE": 4, "LOCAL_RANK": 2, "GROUP_RANK": 1, "GROUP_WORLD_SIZE": 2}
    SRUN = {"SLURM_STEP_NUM_TASKS": 8, "SLURM_PROCID": 3, "SLURM_LOCALID": 1, "SLURM_STEP_NUM_NODES": 2, "SLURM_NODEID": 1}
    TASK = {"SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": 1, "SLURM_LOCALID": 0, "SLURM_STEP_NUM_NODES": 2, "SLURM_NODEID": 1}

    def test_launchers(self):
        for environment, given, want in (
                ({}, {}, (1, 0, 1, 0)),
                ({}, {"nodes": 4}, (4, None, 1, 0)),    # the mount may know the rest
                ({}, {"nodes": 4, "node": 3}, (4, 3, 1, 0)),
                ({}, {"nodes": 4, "local_ranks": 2, "rank": 7}, (4, 3, 2, 1)),
                (self.TORCHRUN, {}, (2, 1, 4, 2)),
                (self.TORCHRUN, {"nodes": 1, "node": 0, "local_ranks": 1, "local_rank": 0}, (1, 0, 1, 0)),
                (self.TORCHRUN, {"rank": 1}, (2, 0, 4, 1)),
                (self.TORCHRUN, {"local_ranks": 2, "rank": 7}, (4, 3, 2, 1)),
                (self.SRUN, {}, (2, 1, 4, 1)),
                ({**self.TASK, **self.TORCHRUN}, {}, (2, 1, 4, 2)),     # torchrun in a task of Slurm
                ({"SLURM_NTASKS": 8, "SLURM_NNODES": 2, "SLURM_PROCID": 0}, {}, (1, 0, 1, 0)),  # a batch script
                ({**self.SRUN, "WORLD_SIZE": 8, "RANK": 3}, {}, (2, 1, 4, 1)),
                ({"WORLD_SIZE": 8, "RANK": 6, "LOCAL_RANK": 2, "NODE_RANK": 1}, {"local_ranks": 4}, (2, 1, 4, 2)),
                ({"WORLD_SIZE": 8, "RANK": 6}, {"nodes": 2}, (2, 1, 4, 2))):
            with self.subTest(environment=environment, given=given):
                self.assertEqual(self.layout(environment, **given), want)

    def test_contradictions(self):
        for environment, given in (
                ({"WORLD_SIZE": 8, "RANK": 6}, {}),     # how many on each node?
                ({**self.TORCHRUN, "LOCAL_WORLD_SIZE": 3}, {}),
                ({**self.TORCHRUN, "LOCAL_RANK": 4}, {}),
                ({**self.TORCHRUN, "GROUP_RANK": 2}, {}),
                ({**self.TORCHRUN, "WORLD_SIZE": "many"}, {}),
                ({**self.SRUN, "SLURM_STEP_NUM_TASKS": 7}, {}),
                ({"WORLD_SIZE": 4, "RANK": 2, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 1}, {}),
                ({}, {"local_ranks": 4, "node": 0}),
                ({}, {"nodes": 0}), ({}, {"nodes": 2, "node": 2}), (self.TORCHRUN, {"nodes": 3})):
            with self.subTest(environment=environment, given=given), self.assertRaisesRegex(ValueError, "^milkweed: "):
                self.layout(environment, **given)


class Telling(WithDaemon):
    """LocalShuffle tells the daemon of the mount which epoch begins."""

    node = b"1/3"

    def getxattr(self, path, name):
        if name != "user.milkweed.node":
            return super().getxattr(path, name)
        if self.node is None:
            raise OSError(61, "No data available")
        return self.node

    def shuffle(self, rank=0, samples=PATHS, **options):
        return milkweed.LocalShuffle(samples, MOUNT, nodes=3, local_ranks=2, local_rank=rank, **options)

    def paths(self):
        return [path for path, _, _ in self.daemon.exchanged]

    def test_epochs(self):
        samplers = [self.shuffle(rank, q=0.1, seed=7) for rank in range(2)]
        for epoch in 0, 1, 5:
            for sampler in samplers:
                sampler.set_epoch(epoch)
                len(sampler)
                list(sampler)
        self.assertEqual(self.paths(), ["/v1/exchange/epoch", "/v1/exchange"] + ["/v1/exchange/epoch"] * 5)
        _, query, body = self.daemon.exchanged[1]
        self.assertEqual(query, {"seed": "7", "fraction": "0.1", "nodes": "3", "node": "1", "epoch": "0", "balance": "count",
                                 "reader": "0", "readers": "2"})
        self.assertEqual(body, b"".join(os.fsencode(name) + b"\0" for name in sorted(p[len(MOUNT) + 1:] for p in PATHS)))
        self.assertEqual([(q["epoch"], q["reader"], q["readers"]) for _, q, _ in self.daemon.exchanged[2:]],
                         [("0", "1", "2"), ("1", "0", "2"), ("1", "1", "2"), ("5", "0", "2"), ("5", "1", "2")])
        self.daemon.exchange = None     # the daemon is started again
        list(samplers[0])
        self.assertEqual(self.paths()[-2:], ["/v1/exchange/epoch", "/v1/exchange"])
        self.assertEqual(self.daemon.exchanged[-1][1]["epoch"], "5")

    def test_balance_of_bytes(self):
        with mock.patch.object(os, "stat", lambda path: types.SimpleNamespace(st_size=len(path))):
            list(self.shuffle(samples=["b", "a/a", "c", "c"], balance="bytes"))
        self.assertEqual(self.daemon.exchanged[1][2], b"a/a\x0016\0b\x0014\0c\x0014\0")

    def test_number_of_the_mount(self):
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0"}):
            sampler = milkweed.LocalShuffle(PATHS, MOUNT)
        self.assertEqual((sampler.node, sampler.local_rank, sampler.rank, sampler.num_replicas), (1, 1, 3, 6))

    def test_local_files(self):
        with mock.patch.dict(os.environ, clear=True):
            files = [milkweed.local_files(MOUNT, epoch, PATHS, nodes=3) for epoch in (0, 0, 4)]
        self.assertEqual(files[0], files[1])
        self.assertEqual([len(part) for part in files], [333] * 3)
        self.assertEqual([q["epoch"] for _, q, _ in self.daemon.exchanged], ["0", "0", "0", "4"])

    def alone(self, pattern, epochs=3, **options):
        """One warning, no request that matters, and the right order."""
        with mock.patch.object(self, "node", None):
            want = shuffles(PATHS, 3, 2)    # send nothing
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sampler = self.shuffle(**options)
            for epoch in range(epochs):
                sampler.set_epoch(epoch)
                want[sampler.node][0].set_epoch(epoch)
                self.assertEqual(list(sampler), list(want[sampler.node][0]))
                sampler._join()
        self.assertEqual([w.category for w in caught], [RuntimeWarning])
        self.assertRegex(str(caught[0].message), "^milkweed: no exchange for '/mnt/dataset': .*" + pattern)

    def test_refused(self):
        self.daemon.status, self.daemon.text = 409, "no room"
        self.alone("409: no room")

    def test_other_exchange(self):
        self.daemon.text = '{"id": "00"}'
        self.alone("another exchange")

    def test_nobody_listens(self):
        self.socket += "2"
        self.alone("does not exist")

    def test_hangs(self):
        self.daemon.hang = threading.Event()
        with mock.patch.multiple(milkweed, TIMEOUT=60, LAST_TIMEOUT=0.01):
            self.addCleanup(self.daemon.hang.set)
            self.alone("does not reply")
        self.daemon.hang.set()

    def test_other_numbers(self):
        for self.node, pattern in (b"1/4", "the job has 3 nodes, and the mount has 4"), (None, "with peers"), \
                (b"2/3", "this is node 0 of the job, and node 2 of the mount"):
            with self.subTest(self.node):
                self.alone(pattern, node=0)
        self.assertEqual(self.daemon.exchanged, [])
        with self.assertRaisesRegex(ValueError, "number of this node is unknown"):
            self.node = None
            self.shuffle()

    def test_one_node(self):
        for self.node in None, b"0/1":
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(sorted(milkweed.LocalShuffle(PATHS, MOUNT, nodes=1)), list(range(N)))
        self.assertEqual(self.daemon.exchanged, [])

    def test_planned(self):
        sampler = self.shuffle()
        want = list(self.shuffle())
        planned = self.planned(sampler)
        planned.set_epoch(0)
        self.assertEqual(list(planned), want)
        self.wants([PATHS[i] for i in want])
        planned.set_epoch(3)
        self.assertEqual(self.daemon.exchanged[-1][1]["epoch"], "0")
        batches = self.planned(BatchSampler(sampler, 10, False))
        got = sum(batches, [])
        self.assertEqual(got, list(sampler))
        self.assertNotEqual(got, want)

    def test_no_thread_when_workers_are_forked(self):
        seen = []
        loader = DataLoader(Images(), sampler=self.shuffle(), batch_size=100, num_workers=1)
        os.register_at_fork(before=lambda: seen.append([t.name for t in threading.enumerate()]))
        collections.deque(loader, 0)
        self.assertTrue(seen)
        self.assertNotIn("milkweed", sum(seen, []))


JOB = """if True:
    import json, os, sys, warnings
    import torch, torch.distributed
    import milkweed
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    node, rank = int(os.environ["GROUP_RANK"]), torch.distributed.get_rank()
    results = []
    for numbers, count in (None, None), (b"10", 40), (b"10", 41), (b"1?", 40), (b"00", 40), (None, None):
        def getxattr(path, name):
            if numbers is None or numbers[node] == ord("?"):
                raise OSError(61, "No data available")
            return b"%c/2" % numbers[node]
        os.getxattr = getxattr
        files = count or (41 if len(results) == 0 else 40 + rank)
        try:
            sampler = milkweed.LocalShuffle([str(i) for i in range(files)], "/nowhere")
            sampler._exchanges = False
            epochs = []
            for epoch in range(3):
                sampler.set_epoch(epoch)
                epochs.append(list(sampler))
            results.append([sampler.node, epochs])
        except ValueError as problem:
            results.append(str(problem))
    with open(sys.argv[1], "w") as out:
        json.dump(results, out)
    torch.distributed.barrier()
"""


class Distributed(unittest.TestCase):
    """Processes of torch.distributed on two nodes with two ranks each."""

    def test_ranks_agree(self):
        with tempfile.TemporaryDirectory() as folder, socketserver.TCPServer(("127.0.0.1", 0), None) as server:
            port = server.server_address[1]
            server.server_close()
            jobs = []
            for rank in range(4):
                environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="4", RANK=str(rank),
                                   LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2), GROUP_RANK=str(rank // 2), OMP_NUM_THREADS="1")
                jobs.append(subprocess.Popen([sys.executable, "-B", "-c", JOB, f"{folder}/{rank}"], env=environment))
            for job in jobs:
                self.assertEqual(job.wait(120), 0)
            results = []
            for rank in range(4):
                with open(f"{folder}/{rank}") as result:
                    results.append(json.load(result))
        nodes = []
        for case in list(zip(*results))[:5]:
            nodes.append([node for node, _ in case])
            for epoch in range(3):
                orders = [epochs[epoch] for _, epochs in case]
                self.assertEqual({len(order) for order in orders}, {len(orders[0])})
                files = set(sum(orders, []))
                self.assertEqual(files, set(range(max(files) + 1)))
                self.assertLess(sum(map(len, orders)), len(files) + 4)
        # No mount, other numbers of the mounts, the same, numbers of one mount only, wrong numbers.
        self.assertEqual(nodes, [[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
        for rank in range(4):
            self.assertRegex(results[rank][5], "different files")


if __name__ == "__main__":
    unittest.main()
