#!/usr/bin/env python3
"""Use milkweed.mount as jobs do. Each command prints the mount point when it has read from the mount.

    mounting.py COMMAND SOURCE TIER FILE
"""
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import milkweed

command, source, tier, name = sys.argv[1:]


def mount(tier=tier, **options):
    return milkweed.mount(source, tiers=[f"ssd:{tier}:64MiB"], clock_skew="0s", **options)


def content(folder):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def want(condition, what):
    if not condition:
        sys.exit("mounting.py: " + what)


def read(folder):
    want(content(folder) == content(source), f"{folder} has other bytes")
    print(os.fspath(folder), flush=True)


def read_and_stay(folder):
    """Stays until its standard input is closed."""
    read(folder)
    sys.stdin.read()


def is_mounted(path):
    with open("/proc/self/mountinfo") as table:
        return any(line.split()[4] == path for line in table)


def want_unmounted(path):
    for _ in range(1000):   # the daemon may unmount before the module does
        if not is_mounted(path):
            return
        time.sleep(0.01)
    want(False, path + " is still mounted")


def with_block():
    with mount() as path:
        read(path)
        want(milkweed.status(path)["source"]["path"] == source, "the status is that of another source")
        with mount() as again:
            want(again == path, "the mount is not shared")
        want(is_mounted(path), "the end of the inner block has unmounted")
        try:
            with mount():
                raise KeyError
        except KeyError:
            pass
        want(is_mounted(path), "an exception has unmounted")
    want_unmounted(path)


def notebook():
    first = mount()
    read(first)
    second = mount()    # the cell is run again
    with mount() as path:
        second.unmount()
        second.unmount()
        read(path)
    want(is_mounted(path), "the first cell uses it")
    first.unmount()
    want_unmounted(path)
    threads = [threading.Thread(target=lambda: read(mount())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want(is_mounted(path), "garbage has ended the use")    # and the end of the process must


def open_file():
    with mount() as path:
        file = open(os.path.join(path, name), "rb")
    want(is_mounted(path) and file.read(1), "an open file is gone")
    with mount() as again:      # before the file is closed
        want(again == path, "there are two mounts")
        file.close()
    want_unmounted(path)


def crash():
    with mount() as path:
        os.kill(milkweed.status(path)["pid"], signal.SIGKILL)
        while os.access(path, os.R_OK):
            time.sleep(0.01)
        with mount() as again:
            want(again == path, "it is mounted elsewhere")
            read(again)
        want(is_mounted(path), "the outer block has not ended")
    want_unmounted(path)


def pickled():
    with mount() as path:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            copy = pool.apply(pickle.loads, (pickle.dumps(mount()),))
        copy.unmount()
        want(copy.path == path and is_mounted(path), "the copy is not one of the path")
        read(copy)


def ending():
    """Another use ends when the mount has been found."""
    first, ask = mount(), milkweed.status

    def status(path):
        milkweed.status = ask
        first.unmount()
        return ask(path)

    milkweed.status = status
    with mount() as path:
        read(path)


def killed():
    """A process is killed while the program runs for it, for which it makes the folder $STARTED."""
    child = os.fork()
    if child == 0:
        mount().unmount()
    while not os.path.exists(os.environ["STARTED"]):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with mount() as path:
        for _ in range(20):
            want(content(path) == content(source), "the mount is gone")
            time.sleep(0.1)


def use():
    with mount() as path:
        read(path)


def stay():
    read_and_stay(mount())


def fork():
    path = mount()
    if os.fork() == 0:
        read_and_stay(path)
    else:
        sys.stdin.read()


def fork_in_block():
    with mount() as path:
        if os.fork() == 0:
            read_and_stay(path)
            sys.exit()
    want(is_mounted(path), "a forked process uses it")


def refused():
    try:
        mount()
    except milkweed.MountError as problem:
        print(problem.code, problem)
        want(str(pickle.loads(pickle.dumps(problem))) == str(problem), "it cannot be sent to another process")


def generations():
    with mount() as path:
        with open(os.path.join(path, "f")) as file:
            print(file.read().strip())
        want(milkweed.status(path)["generation"] == "v1", "the generation is another")
        with mount(generation="v1") as same:
            want(same == path, "the mount of this generation is not shared")
        with mount(generation="v2", tier=tier + "-of-v2") as other:
            with open(os.path.join(other, "f")) as file:
                print(file.read().strip())


if __name__ == "__main__":
    globals()[command]()
