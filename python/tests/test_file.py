# SPDX-License-Identifier: BSD-2-Clause
"""Reads and writes, by all kinds of buffers."""

import asyncio
import concurrent.futures
import ctypes
import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import gpunvme

SIZE = 1_000_003


def buffers():
    return [np.zeros(5000, dtype=np.uint8), np.zeros(1250, dtype=np.float32), bytearray(5000),
            memoryview(bytearray(5000)), np.zeros((50, 100), dtype=np.int8)]


@pytest.mark.parametrize("buf", buffers(), ids=lambda b: type(b).__name__)
def test_reads_into_what_has_a_buffer(path, content, buf):
    with gpunvme.open(path) as f:
        assert f.read(buf, file_offset=77) == 5000
    assert bytes(buf) == content[77:5077].tobytes()


def test_reads_parts_of_a_buffer_and_ends_with_the_file(path, content):
    buf = np.zeros(1000, dtype=np.uint8)
    with gpunvme.open(path) as f:
        assert f.size() == SIZE
        assert f.read(buf, 100, 4096, buf_offset=33) == 100
        assert np.array_equal(buf[33:133], content[4096:4196])
        assert not buf[:33].any() and not buf[133:].any()
        assert f.read(buf, file_offset=SIZE - 10) == 10
        assert f.read(buf, file_offset=SIZE) == 0
        for size, at in ((1001, 0), (1, 1000), (-1, 0), (1, -1)):
            with pytest.raises(ValueError):
                f.read(buf, size, 0, at)
        with pytest.raises(ValueError):
            f.read(buf, file_offset=-1)


def test_writes(path, content):
    fresh = np.random.default_rng(2).integers(0, 256, 70000, dtype=np.uint8)
    with gpunvme.open(path, "r+") as f:
        assert f.write(fresh, file_offset=12345) == 70000
        assert f.write(b"abc", file_offset=SIZE) == 3
    content[12345:82345] = fresh
    with open(path, "rb") as file:
        assert file.read() == content.tobytes() + b"abc"


def test_opens_in_every_mode(path):
    buf = bytearray(10)
    with gpunvme.open(path) as f, pytest.raises(OSError) as error:
        f.write(buf)
    assert error.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError):
        gpunvme.open(path + ".none")
    with pytest.raises(ValueError):
        gpunvme.open(path, "rb")
    with gpunvme.open(path, "w") as f:
        assert f.write(b"12345") == 5
    assert os.path.getsize(path) == 5


def test_descriptors_stay_the_callers(path, content):
    fd = os.open(path, os.O_RDONLY)
    buf = bytearray(100)
    f = gpunvme.open(fd)
    assert f.fileno() != fd and os.path.sameopenfile(f.fileno(), fd)
    assert f.read(buf) == 100
    f.close()
    f.close()
    assert f.closed
    with pytest.raises(ValueError):
        f.read(buf)
    assert os.pread(fd, 100, 0) == content[:100].tobytes()
    os.close(fd)


def test_futures_give_the_bytes_moved(path, content):
    parts = [bytearray(10000) for _ in range(50)]
    with gpunvme.open(path) as f:
        futures = [f.pread(part, file_offset=i * 10000) for i, part in enumerate(parts)]
        assert [future.get() for future in futures] == [10000] * 50
        assert all(future.done() for future in futures)
        with pytest.raises(ValueError):
            f.pread(parts[0], 10001).get()
    assert b"".join(parts) == content[:500000].tobytes()


def test_futures_are_those_of_the_standard_library(path, content):
    parts = [bytearray(1000) for _ in range(8)]

    async def by_coroutines(f):
        return await asyncio.gather(*(f.pread(part) for part in parts)), await f.pread(parts[0], 5)

    with gpunvme.open(path) as f:
        futures = {f.pread(part, file_offset=i): i for i, part in enumerate(parts)}
        for future in concurrent.futures.as_completed(futures):
            i = futures[future]
            assert future.result() == 1000 and parts[i] == content[i:i + 1000].tobytes()
        assert asyncio.run(by_coroutines(f)) == ([1000] * 8, 5)
        with pytest.raises(OSError):
            f.pwrite(parts[0]).result()  # the file is open for reading


def test_a_cancelled_future_holds_nothing(path):
    buf = bytearray(SIZE)
    with gpunvme.open(path) as f:
        futures = [f.pread(buf) for _ in range(100)]
        cancelled = [future.cancel() for future in futures]
    assert all(future.done() for future in futures) and any(cancelled)


@pytest.mark.parametrize("offset", [1 << 63, (1 << 64) + 1, np.uint64((1 << 64) - 1)])
def test_refuses_offsets_that_no_file_has(path, offset):
    buf = bytearray(10)
    with gpunvme.open(path, "r+") as f:
        for call in (f.read, f.write, f.pread, f.pwrite, f.read_async, f.write_async):
            with pytest.raises(OverflowError):
                call(buf, 10, offset)
        for offsets in ([int(offset)], np.array([int(offset) % (1 << 64)] * 2, dtype=np.uint64)):
            if int(offsets[0]) >= 1 << 63:
                with pytest.raises(OverflowError):
                    f.readv(buf, offsets, 5)
    assert not any(buf)


def test_takes_numbers_of_numpy(path, content):
    buf = np.zeros(100, dtype=np.uint8)
    with gpunvme.open(path) as f:
        assert f.read(buf, np.int64(10), np.uint32(7), np.int16(3)) == 10
        assert np.array_equal(buf[3:13], content[7:17])
        assert f.readv(buf, np.array([0, 50]), np.int64(20), np.array([0, 20])) == [20, 20]
        with pytest.raises(ValueError):
            f.readv(buf, np.array([0]), 20, np.array([(1 << 63) - 10]))


WITHOUT_NUMPY = """
import sys
import gpunvme
buf = bytearray(3000)
with open(sys.argv[1], "rb") as file:
    content = file.read()
with gpunvme.open(sys.argv[1]) as f:
    assert f.readv(buf, [0, 5000, len(content) - 10], 1000) == [1000, 1000, 10]
    assert buf[1000:2000] == content[5000:6000]
    records = gpunvme.Records(f, 7, 100, 1000)
    records.gather([999, 0], buf)
    assert buf[:200] == content[99907:100007] + content[7:107]
    for call, error in ((lambda: f.readv(buf, [True], 1), TypeError),
                        (lambda: f.readv(buf, [-1], 1), ValueError),
                        (lambda: f.readv(buf, [0], 3001), ValueError),
                        (lambda: records.gather([1000], buf), IndexError)):
        try:
            call()
        except error:
            continue
        sys.exit("not refused")
assert "numpy" not in sys.modules
"""


def test_takes_lists_without_numpy(path):
    subprocess.run([sys.executable, "-B", "-c", WITHOUT_NUMPY, path], check=True, timeout=60)


@pytest.mark.parametrize("mask", [[True, False], np.array([True, False])], ids=["list", "numpy"])
def test_masks_are_no_offsets(path, mask):
    with gpunvme.open(path) as f, pytest.raises(TypeError, match="mask"):
        f.readv(bytearray(100), mask, 10)


def test_files_are_pickled_by_their_path(path, content, monkeypatch):
    buf = bytearray(100)
    monkeypatch.chdir(os.path.dirname(path))
    with gpunvme.open(os.path.basename(path), "w+") as f, gpunvme.CuFile(path) as cufile:
        f.write(content)
        monkeypatch.chdir("/")
        for one in (f, cufile):
            with pickle.loads(pickle.dumps(one)) as again:
                assert type(again) is type(one) and again.read(buf, file_offset=5) == 100
            assert buf == content[5:105].tobytes()
        with gpunvme.open(f.fileno()) as by_number, pytest.raises(TypeError, match="no path"):
            pickle.dumps(by_number)
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(f)


@pytest.mark.parametrize("kind", [list, np.array])
def test_many_reads_in_one_call(path, content, kind):
    offsets = np.random.default_rng(3).integers(0, SIZE - 512, 1000)
    records = np.zeros((1000, 512), dtype=np.uint8)
    with gpunvme.open(path) as f:
        assert f.readv(records, kind(offsets), 512) == [512] * 1000
        assert all(np.array_equal(r, content[o:o + 512])
                   for r, o in zip(records, offsets, strict=True))
        assert f.readv(records, [0, SIZE - 7], [3, 100], [1, 200]) == [3, 7]
        assert np.array_equal(records[0, 1:4], content[:3])
        for wrong in (([0], [1, 2]), ([-1], [1]), ([0], [1 << 31]), ([0], [512_001])):
            with pytest.raises(ValueError):
                f.readv(records, *wrong)


def test_memory_of_the_mount_takes_the_gpu_path(mount, content):
    name = os.path.join(mount, "own")
    content.tofile(name)
    with gpunvme.open(name) as f:
        assert f.on_mount and f.path_taken is None
        own = f.alloc_host(SIZE)
        assert f.read(own) == SIZE
        assert (f.path_taken, f.why) == ("gpu", "")
        assert np.array_equal(np.frombuffer(own, dtype=np.uint8), content)
        assert f.readv(own, [4096, 0], 4096) == [4096, 4096]
        assert f.path_taken == "gpu"
        assert f.read(bytearray(10)) == 10
        assert f.path_taken == "bounce" and f.why
    os.unlink(name)


def test_other_files_bounce_and_say_why(tmpfs):
    name = os.path.join(tmpfs, "file")
    with open(name, "wb") as file:
        file.write(b"x" * 100)
    with gpunvme.open(name) as f:
        assert not f.on_mount
        assert f.read(bytearray(100)) == 100
        assert f.path_taken == "bounce"
        assert "not on a gpunvmefs mount" in f.why


def test_reads_into_device_memory(path, content, cuda):
    array = cuda.array(100000)
    with gpunvme.open(path, "r+") as f:
        assert f.read(array, 50000, 3, buf_offset=5) == 50000
        assert array.get()[5:50005] == content[3:50003].tobytes()
        array.put(b"z" * 100)
        assert f.write(array, 100, 0) == 100
        assert f.readv(array, [10, 1000], 20, [0, 20]) == [20, 20]
        with pytest.raises(BufferError):
            f.read(cuda.array(10, readonly=True))
    with open(path, "rb") as file:
        assert file.read(100) == b"z" * 100
    assert array.get()[20:40] == content[1000:1020].tobytes()
    array.free()


def test_reads_in_the_order_of_streams(path, content, cuda):
    array, stream = cuda.array(4096), cuda.stream()
    with gpunvme.open(path, "r+") as f:
        futures = [f.read_async(array, file_offset=i, stream=stream) for i in range(50)]
        assert [future.get(timeout=60) for future in futures] == [4096] * 50
        assert array.get() == content[49:49 + 4096].tobytes()
        written = f.write_async(array, 10, SIZE, stream=stream)
        cuda.synchronize(stream)
        assert written.done() and written.get() == 10
    with pytest.raises(TypeError):
        f.read_async(array, stream="no stream")


def test_closing_waits_for_streams(path, content, cuda):
    array, stream = cuda.array(SIZE), cuda.stream()
    with gpunvme.open(path) as f:
        futures = [f.read_async(array, stream=stream) for _ in range(20)]
    assert all(future.done() for future in futures) and futures[-1].get() == SIZE
    assert array.get() == content.tobytes()
    array.free()


def test_takes_dlpack_of_the_host(path, content):
    class Tensor:
        """DLPack, and nothing else."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self):
            return self.array.__dlpack__()

    array = np.zeros((10, 50), dtype=np.float64)
    with gpunvme.open(path) as f:
        assert f.read(Tensor(array), file_offset=9) == 4000
        with pytest.raises(BufferError):
            f.read(Tensor(array[:, ::2]))
    assert array.tobytes() == content[9:4009].tobytes()


@pytest.mark.parametrize("bits, lanes", [(1, 1), (4, 1), (6, 1), (1, 4)])
def test_elements_must_be_whole_bytes(path, bits, lanes):
    """Its elements are packed."""
    from gpunvme._memory import _DLTensor
    memory, shape = (ctypes.c_ubyte * 4096)(), (ctypes.c_int64 * 1)(256)
    tensor = _DLTensor(ctypes.addressof(memory), 1, 0, 1, 1, bits, lanes, shape, None, 0)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Tensor:
        def __dlpack__(self):
            return new(ctypes.addressof(tensor), b"dltensor", None)

    with gpunvme.open(path) as f:
        with pytest.raises(BufferError, match="not whole bytes"):
            f.read(Tensor())
        assert not any(memory)
        tensor.bits, tensor.lanes = 4, 2
        assert f.read(Tensor()) == 256


def test_arrays_of_objects_are_refused(path):
    record = np.dtype([("Offset", "i8"), ("what", "O")])
    wrong = [np.array(["a", "b", None], dtype=object), memoryview(np.array([1, "b"], dtype=object)),
             np.zeros(3, dtype=record), (ctypes.py_object * 3)()]
    with gpunvme.open(path, "r+") as f:
        for array in wrong:
            for call in (f.read, f.write):
                with pytest.raises(BufferError):
                    call(array)
        fine = np.zeros(3, dtype=[("Offset", "i8"), ("Other", "i4")])
        assert f.read(memoryview(fine)) == f.read(fine) == 36
        assert f.read(np.zeros(3, dtype="M8[s]")) == 24
    assert wrong[0].tolist() == ["a", "b", None]


def test_lazy_views_of_torch_are_refused(path, torch):
    values = torch.ones(8, dtype=torch.complex64)
    with gpunvme.open(path, "r+") as f:
        for view in (values.conj(), torch._neg_view(torch.ones(8)), torch.ones(8, device="meta")):
            for call in (f.read, f.write):
                with pytest.raises(BufferError):
                    call(view)


def test_a_child_refuses_memory_of_cuda(path, cuda):
    array, child = cuda.array(4096), 0
    with gpunvme.open(path) as f:
        assert f.read(array) == 4096
        child = os.fork()
        if child == 0:
            try:
                f.read(array)
            except OSError as error:
                os._exit(0 if "fork" in str(error) and f.read(bytearray(10)) == 10 else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    array.free()


def test_what_has_no_memory_is_named(path):
    with gpunvme.open(path) as f:
        with pytest.raises(TypeError):
            f.read(object())
        with pytest.raises((BufferError, ValueError, TypeError)):
            f.read(b"constant")
        with pytest.raises((BufferError, ValueError)):
            f.read(np.zeros((10, 10))[:, ::2])


def test_memory_is_registered_once(path):
    buf = np.zeros(10000, dtype=np.uint8)
    gpunvme.register(buf)
    with pytest.raises(FileExistsError):
        gpunvme.register(buf)
    with gpunvme.open(path) as f:
        assert f.read(buf[100:]) == 9900
    gpunvme.deregister(buf)
    with pytest.raises(FileNotFoundError):
        gpunvme.deregister(buf)


def test_a_child_of_fork_reads_by_its_own_handle(path, content):
    buf = bytearray(1000)
    f = gpunvme.open(path)
    assert f.pread(buf).get() == 1000
    child = os.fork()
    if child == 0:
        ok = f.read(buf, file_offset=5) == 1000 and f.pread(buf, file_offset=7).get() == 1000
        os.lseek(f.fileno(), 77, os.SEEK_SET)
        os._exit(0 if ok and buf == content[7:1007].tobytes() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert os.lseek(f.fileno(), 0, os.SEEK_CUR) == 0  # the child has an open file of its own
    assert f.read(buf) == 1000
    f.close()


def test_options_come_first():
    with pytest.raises(RuntimeError):
        gpunvme.configure(threads=2)


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="'direct'"):
        gpunvme.configure(path="direct")


def test_runs_programs_of_kvikio(path, content):
    buf = np.zeros(4096, dtype=np.uint8)
    with gpunvme.CuFile(path, "r+") as f:
        assert f.read(buf, 4096, 100) == 4096
        assert f.pread(buf, file_offset=8).get() == 4096
        assert np.array_equal(buf, content[8:4104])
        assert f.raw_read(buf, 10, 0, 50) == 10
        assert np.array_equal(buf[50:60], content[:10])
        assert f.write(buf, 4096, 0) == 4096
        assert f.pwrite(buf, file_offset=0).get() == 4096
        assert f.raw_read_async(buf, None, 100, 20).check_bytes_done() == 100
    assert gpunvme.defaults.get("num_threads") >= 1
    gpunvme.defaults.set({"num_threads": 3, "task_size": 1 << 20})
    assert gpunvme.defaults.get("num_threads") == 3
    with pytest.raises(KeyError):
        gpunvme.defaults.set("strange", 1)
    gpunvme.memory_register(buf)
    gpunvme.memory_deregister(buf)
