#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""peer_memory.py COMMAND ...: an application whose GPU is the BAR of another device.

verify BAR FILE COPY  reads FILE into the BAR and writes it from there to COPY in many shapes, and
                      compares every byte with read(2); prints the path and the staged bytes.
segments BAR BAR FILE COPY
                      does the same with memory that consists of pieces of both BARs, out of order.
own BAR FILE          owns the BAR and reads into it until it is killed, or READ fails.
hold BAR FILE         registers the BAR and then only waits.
fill BAR FILE         registers host memory until the drive can map no more, and then the BAR.
take BAR              becomes the next owner of the memory as soon as it is free, fills it, and looks
                      whether anyone else writes to it.

Memory of a GPU is free when the last handle of it is closed. Here a lock of the BAR's open file
description acts so: it ends when the owner and the daemon have closed the last of its descriptors.
"""
import array
import errno
import fcntl
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time

MEM_DEVICE, MEM_FD, MEM_SEGMENTS, LIST = 3, 2, 4, 1
NO_FALLBACK = 1
ABI = 2
LATE_S = 0.3
LOCK_S = 30


def request(number, size):
    return 3 << 30 | size << 16 | ord("G") << 8 | number


def call(fd, number, layout, *values):
    """An ioctl of the ABI: `layout` follows its size and version. Returns the fields."""
    size = 8 + struct.calcsize("=" + layout)
    arg = bytearray(struct.pack("=II" + layout, size, ABI, *values))
    fcntl.ioctl(fd, request(number, size), arg)
    return struct.unpack_from("=" + layout, arg, 8)


# The fields of struct gpunvme_ioc_info.
INFO = "IIIIIIII16s16s64s128s16s108s256sII8sIII"


class Mount:
    """The daemon behind an open file of a mount."""

    def __init__(self, fd):
        self.fd = fd
        fields = call(fd, 0x60, INFO,
                      *struct.unpack("=" + INFO, bytes(struct.calcsize("=" + INFO))))
        self.tier, self.note = fields[1], fields[14].split(b"\0")[0].decode()
        self.socket = fields[13].split(b"\0")[0]
        self.cookie = fields[17]

    def send(self, *memory):
        """Returns the token for the descriptors."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(b"\0" + self.socket[1:])
            channel.send(self.cookie)
            channel.sendmsg([bytes(8)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                          array.array("i", memory))])
            return struct.unpack("=Q", channel.recv(8))[0]

    def register(self, kind, memory, offset, length, flags=0):
        """`memory` is a descriptor, or a list of them."""
        memory = memory if isinstance(memory, list) else [memory]
        fields = call(self.fd, 0x61, "IIQQQ64sQQ16s", kind, flags, offset, length,
                      self.send(*memory), bytes(64), 0, 0, bytes(16))
        return fields[6:8]

    def unregister(self, buffer):
        call(self.fd, 0x62, "QQ", *buffer)

    @staticmethod
    def move(number, fd, buffer, at, offset, length):
        """READ or WRITE: the bytes moved, and whether they were staged."""
        fields = call(fd, number, "IIQQQQQQQII", NO_FALLBACK, 0, *buffer, offset, at, length,
                      0, 0, 0, 0)
        assert fields[9] == 1, f"path {fields[9]}"
        return fields[7], bool(fields[0] & 2)

    @staticmethod
    def readv(fd, buffer, pieces, count):
        fields = call(fd, 0x67, "IIQQQQQQQQII", NO_FALLBACK, 0, *buffer, *pieces, 0, count,
                      0, 0, 0, 0)
        return bool(fields[0] & 2)


def open_bar(path):
    fd = os.open(path, os.O_RDWR)
    return fd, mmap.mmap(fd, os.fstat(fd).st_size)


def lock(fd):
    """Waits until nobody else has a handle of the memory."""
    end = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                sys.exit("the memory is not free after half a minute")
            time.sleep(0.001)


def compare(what, got, expected):
    if got != expected:
        first = next(i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
        sys.exit(f"{what}: differs from byte {first} on")


def shapes(length, room):
    """Places in the file and the buffer, and lengths: whole pages, parts of blocks, odd ones."""
    draw = random.Random(1)
    yield 0, 0, min(length, room)
    for step in (4096, 512, 4, 1):
        for _ in range(12):
            n = draw.randrange(step, min(length, room) // 16, step)
            yield (draw.randrange(0, length - n, step), draw.randrange(0, room - n, step), n)


def verify_reads(mount, fd, data, memory, buffer):
    staged = False
    for at_file, at, n in shapes(len(data), len(memory)):
        memory[at:at + n] = bytes(n)
        got, was = mount.move(0x63, fd, buffer, at, at_file, n)
        staged |= was
        assert got == n, (got, n)
        compare(f"READ {at_file} {at} {n}", memory[at:at + n], data[at_file:at_file + n])
    return staged


def verify_list(mount, fd, data, memory, buffer):
    """READV of rows, as a gather does."""
    count, row = 256, 1024
    room = os.memfd_create("list", os.MFD_ALLOW_SEALING)
    os.ftruncate(room, count * 24)
    pieces = mmap.mmap(room, count * 24)
    rows = [random.Random(i).randrange(0, len(data) - row) // 8 * 8 for i in range(count)]
    for i, place in enumerate(rows):
        struct.pack_into("=QQIi", pieces, 24 * i, place, i * row, row, 0)
    memory[:count * row] = bytes(count * row)
    staged = mount.readv(fd, buffer, mount.register(MEM_FD, room, 0, count * 24, LIST), count)
    for i, place in enumerate(rows):
        assert struct.unpack_from("=i", pieces, 24 * i + 20)[0] == row
        compare(f"piece {i}", memory[i * row:(i + 1) * row], data[place:place + row])
    return staged


def verify_write(mount, copy, data, memory, buffer):
    """Over blocks that the file has: those of a growing file take the ordinary path."""
    n = min(len(data), len(memory)) // 4096 * 4096
    os.pwrite(copy, bytes(n), 0)
    os.fsync(copy)
    memory[:n] = data[:n]
    moved, staged = mount.move(0x64, copy, buffer, 0, 0, n)
    assert moved == n, moved
    compare("WRITE", os.pread(copy, n, 0), data[:n])
    return staged


class Pieces:
    """Pieces of BARs, given as (descriptor, mapping, offset, length), as one memory that begins
    `head` bytes behind the start of the first one. Its slices are those of mmap."""

    def __init__(self, pieces, head):
        self.pieces, self.head = pieces, head

    def __len__(self):
        return sum(piece[3] for piece in self.pieces) - self.head

    def parts(self, where):
        """Yields the mappings of a slice, each with its range there and the range in the slice."""
        start, stop, _ = where.indices(len(self))
        at, want = 0, range(start + self.head, stop + self.head)
        for _, memory, offset, length in self.pieces:
            first, last = max(at, want.start), min(at + length, want.stop)
            if first < last:
                yield (memory, slice(offset + first - at, offset + last - at),
                       slice(first - want.start, last - want.start))
            at += length

    def __getitem__(self, where):
        return b"".join(memory[there] for memory, there, _ in self.parts(where))

    def __setitem__(self, where, data):
        for memory, there, here in self.parts(where):
            memory[there] = data[here]


def register_pieces(mount, memory):
    """Registers the pieces as segments of one buffer."""
    table = os.memfd_create("table", os.MFD_ALLOW_SEALING)
    os.write(table, b"".join(struct.pack("=QQII", offset, length, 0, 0)
                             for _, _, offset, length in memory.pieces))
    handles = [piece[0] for piece in memory.pieces]
    return mount.register(MEM_SEGMENTS, [table, *handles], memory.head, len(memory))


def segments(bar, other, path, copy):
    (one, first), (two, second) = open_bar(bar), open_bar(other)
    lock(one)
    lock(two)
    memory = Pieces([(one, first, 8 << 20, 2 << 20), (two, second, 4096, 1 << 20),
                     (one, first, 0, 1 << 20), (two, second, 4 << 20, 12288),
                     (one, first, 2 << 20, 2 << 20)], 5000)
    around = first[1 << 20:2 << 20], second[:4096]
    verify_memory(path, copy, memory, lambda mount: register_pieces(mount, memory))
    assert around == (first[1 << 20:2 << 20], second[:4096]), "memory between the segments"


def verify(bar, path, copy):
    handle, memory = open_bar(bar)
    lock(handle)
    verify_memory(path, copy, memory,
                  lambda mount: mount.register(MEM_DEVICE, handle, 0, len(memory)))


def verify_memory(path, copy, memory, register):
    fd, out = os.open(path, os.O_RDONLY), os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    mount = Mount(fd)
    buffer = register(mount)
    staged = verify_reads(mount, fd, data, memory, buffer)
    staged |= verify_list(mount, fd, data, memory, buffer)
    staged |= verify_write(mount, out, data, memory, buffer)
    mount.unregister(buffer)
    print(f"tier {mount.tier}, staged {staged}: {mount.note}")


def registered(bar, path):
    """Returns the mount, the file, the memory, and the buffer that it is registered as."""
    fd = os.open(path, os.O_RDONLY)
    handle, memory = open_bar(bar)
    lock(handle)
    mount = Mount(fd)
    return mount, fd, memory, mount.register(MEM_DEVICE, handle, 0, len(memory))


def hold(bar, path):
    _mount, _fd, _memory, _buffer = registered(bar, path)
    print("holding", flush=True)
    signal.pause()


def own(bar, path):
    """Reads a file that is not in the page cache, since READ goes to the drive."""
    mount, fd, memory, buffer = registered(bar, path)
    length = min(os.fstat(fd).st_size, len(memory))
    print("reading", flush=True)
    try:
        while True:
            mount.move(0x63, fd, buffer, 0, 0, length)
    except OSError as error:
        sys.exit(f"READ: {errno.errorcode[error.errno]}")


def verify_one(mount, fd, memory, buffer, what):
    """Reads a page, and prints whether it was staged, and how long it took with `what`."""
    data = os.pread(fd, 4096, 0)
    memory[:4096] = bytes(4096)
    start = time.monotonic()
    moved, staged = mount.move(0x63, fd, buffer, 0, 0, 4096)
    assert moved == 4096, moved
    compare(what, memory[:4096], data)
    print(f"{what}: staged {staged}, {time.monotonic() - start:.1f} s", flush=True)


def register_until_refused(mount):
    """Registers pages of one memfd as buffers. Returns the errno of the refusal and the buffers."""
    room, buffers = os.memfd_create("room", os.MFD_ALLOW_SEALING), []
    os.ftruncate(room, 4096)
    try:
        while True:
            buffers.append(mount.register(MEM_FD, room, 0, 4096))
    except OSError as error:
        return errno.errorcode[error.errno], buffers


def fill(bar, path):
    fd = os.open(path, os.O_RDONLY)
    handle, memory = open_bar(bar)
    mount = Mount(fd)
    refusal, buffers = register_until_refused(mount)
    print(f"{len(buffers)} buffers, then {refusal}", flush=True)
    for buffer in buffers[-2:]:
        mount.unregister(buffer)
    start = time.monotonic()
    try:
        buffer = mount.register(MEM_DEVICE, handle, 0, len(memory))
        verify_one(mount, fd, memory, buffer, "full")
        mount.unregister(buffer)
    except OSError as error:
        print(f"full: {errno.errorcode[error.errno]}, {time.monotonic() - start:.1f} s", flush=True)
    for buffer in buffers[:-2]:
        mount.unregister(buffer)
    buffer = mount.register(MEM_DEVICE, handle, 0, len(memory))
    verify_one(mount, fd, memory, buffer, "empty")


def foreign_pages(bar, waits=True, victims=()):
    """Kills the victims in this order and becomes the next owner of the memory: as soon as it is
    free, or at once. Returns how many pages have data of another owner then."""
    handle, memory = open_bar(bar)
    mine = bytes([0xA5]) * len(memory)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    if waits:
        lock(handle)
    memory[:] = mine
    time.sleep(LATE_S)
    got = memory[:]
    memory.close()
    os.close(handle)
    if got == mine:
        return 0
    return sum(got[i:i + 4096] != mine[i:i + 4096] for i in range(0, len(mine), 4096))


def take(bar):
    print(f"{foreign_pages(bar)} pages of another owner's data")


if __name__ == "__main__":
    {"verify": verify, "segments": segments, "own": own, "hold": hold, "fill": fill,
     "take": take}[sys.argv[1]](*sys.argv[2:])
