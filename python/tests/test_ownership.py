# SPDX-License-Identifier: BSD-2-Clause
"""Each object of the package in each way that its life goes on or ends.

"right": every use had all bytes of its file. "refused": an exception with a sentence. "either": one
of them, by who comes first. Never other bytes, a crash, or a call that does not return.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

import gpunvme
import ownership

EVENTS = ("closed_while_used", "used_after_close", "fork_idle", "fork_busy", "spawn", "collected",
          "exit", "descriptor_reused")
TABLE = {
    "Opened":     ("right", "refused", "right", "right", "right", "right", "right", "right"),
    "Descriptor": ("right", "refused", "right", "right", "refused", "right", "right", "right"),
    "Direct":     ("right", "refused", "refused", "refused", "right", "right", "right", "right"),
    "Reading":    ("right", "right", "right", "either", "refused", "right", "right", "right"),
    "Streaming":  ("right", "right", "right", "either", "refused", "right", "right", "right"),
    "Kinds":      ("right", "refused", "right", "right", "right", "right", "right", "right"),
    "Tensors":    ("right", "refused", "right", "right", "right", "right", "right", "right"),
    "Layers":     ("right", "refused", "refused", "refused", "refused", "right", "right", "right"),
    "Dataset":    ("right", "refused", "right", "right", "right", "right", "right", "right"),
    "HostMemory": ("right", "right", "right", "right", "refused", "right", "right", "right"),
    "Registered": ("right", "refused", "right", "right", "right", "right", "right", "right"),
}
CELLS = [pytest.param(name, event, expected, id=f"{name}-{event}")
         for name, row in TABLE.items() for event, expected in zip(EVENTS, row, strict=True)]


def in_child(call):
    """What a child of fork() makes of it; it must end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, call().encode())
        finally:
            os._exit(0)
    os.close(writing)
    until = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(1e-3)
    with os.fdopen(reading) as file:
        return file.read()


class Users:
    """Threads that use an object until it refuses, or leave is called."""

    def __init__(self, kind):
        self.kind, self.seen, self.leaving = kind, [], False
        self.threads = [threading.Thread(target=self.go_on) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def go_on(self):
        while not self.leaving:
            self.seen.append(ownership.outcome(self.kind))
            if self.seen[-1] == "refused":
                return

    def leave(self):
        self.leaving = True
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        return set(self.seen)


def closed_while_used(kind):
    users = Users(kind)
    while not users.seen:
        time.sleep(1e-3)
    kind.end()
    with open(kind.path + ".other", "wb") as other:  # takes the descriptor
        other.write(bytes(ownership.SIZE))
    seen = users.leave()
    assert "right" in seen
    return "WRONG" if "WRONG" in seen else "right"


def used_after_close(kind):
    kind.end()
    return ownership.outcome(kind)


def fork_idle(kind):
    assert kind.use()

    def use_and_close():
        seen = ownership.outcome(kind)
        kind.end()
        return seen

    seen = in_child(use_and_close)
    assert kind.use()
    return seen


def fork_busy(kind):
    users = Users(kind)
    seen = {in_child(lambda: ownership.outcome(kind)) for _ in range(6)}
    assert users.leave() == {"right"}
    return seen.pop() if len(seen) == 1 else "either" if seen == {"right", "refused"} else str(seen)


def spawn(kind):
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    worker = context.Process(target=ownership.tell, args=(type(kind).__name__, kind.obj, queue))
    try:
        worker.start()
    except (TypeError, ValueError, AttributeError):
        return "refused"
    worker.join(60)
    assert worker.exitcode == 0
    return queue.get()


def use_another(kind):
    buf = bytearray(ownership.SIZE)
    other = type(kind)(os.path.dirname(kind.path))
    if isinstance(other.obj, gpunvme.File) and not other.obj.direct:
        future = other.obj.pread(buf)
        del other
        assert future.get() == len(buf) and buf == ownership.CONTENT
        del future
    else:
        other.use()
        del other


def collected(kind):
    use_another(kind)  # CUDA opens files at the first use of some of its functions
    before = len(os.listdir("/proc/self/fd"))
    use_another(kind)
    for _ in range(3000):  # a thread may hold the last reference for a moment
        gc.collect()
        if len(os.listdir("/proc/self/fd")) <= before + 1:
            break
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    return ownership.outcome(kind)


def at_exit(kind):
    program = [sys.executable, "-B", ownership.__file__, type(kind).__name__,
               os.path.dirname(kind.path)]
    done = subprocess.run(program, capture_output=True, timeout=60, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return "right"


def descriptor_reused(kind):
    """The object's own descriptor stays its own, whatever the program does with numbers."""
    numbers = [os.open("/dev/zero", os.O_RDONLY) for _ in range(20)]
    for number in numbers:
        os.close(number)
    return ownership.outcome(kind)


HOW = {"exit": at_exit}


@pytest.mark.parametrize("name, event, expected", CELLS)
def test_each_object_ends_as_documented(folder, request, name, event, expected):
    if name == "Direct" and "mount" not in request.node.callspec.id:
        with pytest.raises(OSError, match="not on a gpunvmefs mount"):
            ownership.Direct(folder)
        return
    if name in ("Layers", "Dataset"):
        pytest.importorskip("torch", reason="torch is not installed")
    kind = getattr(ownership, name)(folder)
    how = HOW.get(event) or globals()[event]
    assert how(kind) in ({"right", "refused", "either"} if expected == "either" else {expected})
    kind.end()
