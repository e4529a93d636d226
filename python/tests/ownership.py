# SPDX-License-Identifier: BSD-2-Clause
"""Objects of the package for test_ownership.py, and what processes of their own do with them."""

import contextlib
import json
import os
import struct
import sys
import threading

import numpy as np

import gpunvme
import gpunvme.numpy

SIZE = 1 << 20
CONTENT = np.random.default_rng(21).integers(0, 256, SIZE, dtype=np.uint8).tobytes()
REFUSALS = (OSError, ValueError, TypeError, gpunvme.numpy.SafetensorError)


class Opened:
    """An object over a file of CONTENT: use() tells whether it has the right bytes."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "content")
        if not os.path.exists(self.path):
            with open(self.path, "wb") as file:
                file.write(CONTENT)
                os.fsync(file.fileno())
        self.obj, self.is_ended = self.make(), False

    def end(self):
        if not self.is_ended:
            self.is_ended = True
            self.close()

    def make(self):
        return gpunvme.open(self.path)

    def use(self):
        buf = bytearray(SIZE)
        return self.obj.read(buf) == SIZE and buf == CONTENT

    def close(self):
        self.obj.close()


class Descriptor(Opened):
    """A file by its number, which becomes another file's afterwards."""

    def make(self):
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return gpunvme.open(fd)
        finally:
            self.reuse(fd)

    def reuse(self, fd):
        other = os.open("/dev/zero", os.O_RDONLY)
        os.dup2(other, fd)
        os.close(other)
        self.other = fd

    def close(self):
        super().close()
        os.close(self.other)


class Direct(Opened):
    def make(self):
        self.file = gpunvme.open(self.path, direct=True)
        self.buffers = [self.file.alloc_host(SIZE) for _ in range(8)]  # one for each thread
        return self.file

    def use(self):
        try:
            buf = self.buffers.pop()
        except (AttributeError, IndexError):
            buf = self.obj.alloc_host(SIZE)
        n = self.obj.read(buf)
        right = n == SIZE and buf == CONTENT
        if hasattr(self, "buffers"):
            self.buffers.append(buf)
        return right


class Reading(Opened):
    """A future under way; closing is that of its file."""

    def make(self):
        self.file, self.buf = gpunvme.open(self.path), bytearray(SIZE)
        for _ in range(40):
            future = self.file.pread(self.buf)
        return future

    def use(self):
        return self.obj.get(30) == SIZE and self.buf == CONTENT

    def close(self):
        self.file.close()


class Streaming(Opened):
    """A transfer in the order of a stream. With CUDA a child may fork before its end."""

    def make(self):
        self.file, self.buf = gpunvme.open(self.path), np.zeros(SIZE, dtype=np.uint8)
        for _ in range(40):
            future = self.file.read_async(self.buf)
        return future

    def use(self):
        return self.obj.get(30) == SIZE and self.buf.tobytes() == CONTENT

    def close(self):
        self.file.close()


class Kinds(Opened):
    """A catalogue with records of one kind."""

    def make(self):
        name = self.path + ".json"
        gpunvme.write_catalogue(name, {"part": {"file": "content", "offset": 0, "size": SIZE // 64,
                                                "count": 64}})
        return gpunvme.Catalogue(name)

    def use(self):
        buf, index = bytearray(SIZE), list(range(64))
        self.obj["part"].gather(index, buf)
        return buf == CONTENT


class Tensors(Opened):
    """safe_open()."""

    def make(self):
        tensors = {"t": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}
        text = json.dumps(tensors).encode()
        name = self.path + ".safetensors"
        if not os.path.exists(name):
            with open(name, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + CONTENT)
        return gpunvme.numpy.safe_open(name, framework="np")

    def use(self):
        return self.obj.get_tensor("t").tobytes() == CONTENT

    def close(self):
        self.obj.__exit__(None, None, None)


class HostMemory(Opened):
    """Memory of alloc_host(), which outlives its file."""

    def make(self):
        self.file = gpunvme.open(self.path)
        out = self.file.alloc_host(SIZE)
        self.file.read(out)
        return out

    def use(self):
        return self.obj == CONTENT

    def close(self):
        self.file.close()


class Registered(Opened):
    """A buffer that is registered while it is read into."""

    def make(self):
        self.buf = bytearray(SIZE)
        gpunvme.register(self.buf)
        return gpunvme.open(self.path)

    def use(self):
        buf = getattr(self, "buf", None) or bytearray(SIZE)
        return self.obj.read(buf) == SIZE and buf == CONTENT

    def close(self):
        gpunvme.deregister(self.buf)
        super().close()


class Layers(Opened):
    """A stream of layers, in torch's memory of the host."""

    def make(self):
        from gpunvme.torch import LayerStream
        tensors = {f"layer.{i}": {"dtype": "U8", "shape": [SIZE // 4],
                                  "data_offsets": [i * SIZE // 4, (i + 1) * SIZE // 4]}
                   for i in range(4)}
        text, name = json.dumps(tensors).encode(), self.path + "-layers.safetensors"
        if not os.path.exists(name):
            with open(name, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + CONTENT)
        self.lock, self.pid = threading.Lock(), os.getpid()  # one thread at a time uses a stream
        return LayerStream(name, "cpu", loop=True, depth=2)

    def use(self):
        with self.lock if os.getpid() == self.pid else contextlib.nullcontext():
            for name, tensor in next(self.obj).items():
                i = int(name[-1])
                if tensor.numpy().tobytes() != CONTENT[i * SIZE // 4:(i + 1) * SIZE // 4]:
                    return False
        return True


class Dataset(Opened):
    """Records as tensors."""

    def make(self):
        from gpunvme.torch import IndexedDataset
        name = self.path + "-data.json"
        gpunvme.write_catalogue(name, {"part": {"file": "content", "offset": 0, "size": SIZE // 64,
                                                "count": 64}})
        return IndexedDataset(name, "part", device="cpu")

    def use(self):
        return self.obj[:].numpy().tobytes() == CONTENT


def outcome(kind):
    """Of a use: "right", "WRONG" or "refused"."""
    try:
        return "right" if kind.use() else "WRONG"
    except REFUSALS as error:
        assert len(str(error)) > 10, repr(error)
        return "refused"


def kind_of(name, obj):
    """What a process makes of an object that it was sent."""
    kind = object.__new__(globals()[name])
    kind.obj = obj
    return kind


def tell(name, obj, queue):
    queue.put(outcome(kind_of(name, obj)))


def leave_busy(name, folder):
    """Uses the object by threads while the interpreter ends."""
    kind = globals()[name](folder)

    def go_on():
        with contextlib.suppress(RuntimeError):  # executors take no work any more
            while True:
                kind.use()

    # Not in torch: the interpreter ends a daemon thread inside its C++ code, which aborts.
    for _ in range(0 if name in ("Layers", "Dataset") else 2):
        threading.Thread(target=go_on, daemon=True).start()
    if name in ("Layers", "Dataset"):
        kind.use()  # a stream goes on reading ahead
    if hasattr(kind.obj, "pread"):
        for _ in range(20):
            kind.obj.pread(bytearray(SIZE))


if __name__ == "__main__":
    leave_busy(*sys.argv[1:])
