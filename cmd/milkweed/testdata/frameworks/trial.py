"""Trials: programs that read a dataset with a library, for tests that compare a mount with its source.

A module of trials ends with serve(). It answers requests in JSON on standard input, one a line:

    {"do": "make", "trial": NAME, "data": DIR}                  makes the dataset of a trial
    {"do": "read", "trial": NAME, "data": DIR, "epoch": N}      reads it; the same N, the same order
    {"do": "errors", "trial": NAME, "data": DIR}                does what a read-only file system refuses

The reply is {"result": ...}: digests and losses for read, and for errors what the library reports.
An exception that ends the trial is {"error": its type and text}.
"""
import gc
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile

TRIALS = {}     # name to Trial


class Trial:
    """A trial has functions make(data), read(data, epoch, scratch) and refused(data).

    refused yields pairs of a name and a function that raises, in addition to attempts. scratch is an
    empty folder outside of the dataset.
    """

    def __init__(self, name, make, read, refused=lambda data: ()):
        self.make, self.read, self.refused = make, read, refused
        TRIALS[name] = self


def text(error, data, scratch):
    """Returns the type and the text of an exception, without the paths of this run."""
    found = f"{type(error).__name__}: {error}".replace(data, "DATA").replace(scratch, "SCRATCH")
    return re.sub(r"\btmp\w{6,8}\b|\b[0-9a-f]{32}\b", "TEMPORARY", found)


def errors(refused, data, scratch):
    """Returns what each function that must fail reports."""
    found = {}
    for name, function in itertools.chain(attempts(data), refused(data)):
        assert name not in found, name
        try:
            function()
        except Exception as error:
            found[name] = text(error, data, scratch)
        else:
            found[name] = "no error"
    return found


def answer(request):
    one, data = TRIALS[request["trial"]], request["data"]
    scratch = tempfile.mkdtemp()
    try:
        match request["do"]:
            case "make":
                os.makedirs(data, exist_ok=True)
                return {"result": one.make(data)}
            case "read":
                return {"result": one.read(data, request["epoch"], scratch)}
            case "errors":
                return {"result": errors(one.refused, data, scratch)}
        raise ValueError(request["do"])
    except Exception as error:
        return {"error": text(error, data, scratch)}
    finally:
        gc.collect()    # closes the files of readers that have no close()
        shutil.rmtree(scratch)


def serve():
    """Answers requests until standard input ends, and ends the process then.

    Libraries would wait for threads, and for other processes, at the end.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)   # what libraries print is no reply
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=replies, flush=True)
    os._exit(0)


def digest(parts):
    """Returns the SHA-256 of bytes, or of objects with a buffer, in their order."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(memoryview(part).cast("B"))
    return sha.hexdigest()


def attempts(data):
    """Yields what any program may do to a dataset, and a read-only file system refuses."""
    first = min(os.path.join(folder, name) for folder, _, names in os.walk(data) for name in names)
    yield "create", lambda: open(os.path.join(data, "new"), "w")
    yield "append", lambda: open(first, "a")
    yield "mkdir", lambda: os.mkdir(os.path.join(data, "new"))
    yield "remove", lambda: os.remove(first)
    yield "rename", lambda: os.rename(first, first + ".new")
    yield "missing", lambda: open(os.path.join(data, "missing"))
