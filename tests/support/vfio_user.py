# SPDX-License-Identifier: BSD-2-Clause
"""A client of gpunvme-sim that composes each message byte by byte, and a minimal NVMe driver."""

import contextlib
import mmap
import os
import socket
import struct
import time

SECONDS = 10  # for a reply, or a completion

# Commands, and values of Linux's VFIO
(VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, GET_REGION_IO_FDS, GET_IRQ_INFO, SET_IRQS,
 REGION_READ, REGION_WRITE, DMA_READ, DMA_WRITE, RESET) = range(1, 14)
NO_REPLY, ERROR = 0x10, 0x20
BAR0, MSIX_BAR, CONFIG, REGIONS = 0, 4, 7, 9
INTX, MSIX, IRQS = 0, 2, 5
READABLE, WRITABLE, MAPPABLE, HAS_CAPS = 1, 2, 4, 8
DATA_NONE, DATA_BOOL, DATA_EVENTFD, ACTION_MASK, ACTION_TRIGGER = 1, 2, 4, 8, 32

# NVMe
CAP, VS, CC, CSTS, AQA, ASQ, ACQ, DOORBELLS = 0, 8, 0x14, 0x1c, 0x24, 0x28, 0x30, 0x1000
ENABLE, SHUTDOWN, READY, FATAL = 1, 1 << 14, 1, 2
CREATE_SQ, GET_LOG_PAGE, CREATE_CQ, IDENTIFY, SET_FEATURES, GET_FEATURES, ASYNC_EVENT = (
    1, 2, 5, 6, 9, 10, 12)
WRITE, READ = 1, 2
INVALID_FIELD, UNRECOVERED_READ = 2, 0x281


def message(command, payload=b"", number=7, flags=0, size=None):
    size = 16 + len(payload) if size is None else size
    return struct.pack("<HHIII", number, command, size, flags, 0) + payload


def access(region, offset, count):
    return struct.pack("<QII", offset, region, count)


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


@contextlib.contextmanager
def memfd(size):
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    yield fd
    os.close(fd)


class Reply:
    """error is 0, an errno, or None if the connection has ended."""

    def __init__(self, number=None, command=None, error=None, data=b"", fds=()):
        self.number, self.command, self.error, self.data, self.fds = (number, command, error, data,
                                                                      fds)

    def words(self, form, at=0):
        return struct.unpack_from("<" + form, self.data, at)


class Client:
    def __init__(self, path, greet=True):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)  # without a timeout it waits for its turn
        self.socket.settimeout(SECONDS)
        self.number = 100
        if greet:
            assert self.version(0, 1, '{"capabilities":{"max_msg_fds":8}}').error == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, raw, fds=()):
        """receive() detects a closed connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sent = socket.send_fds(self.socket, [raw], fds) if fds else self.socket.send(raw)
            self.socket.sendall(raw[sent:])

    def take(self, size):
        data, fds = b"", []
        while len(data) < size:
            part, more, _, _ = socket.recv_fds(self.socket, size - len(data), 1)
            fds += more
            if not part:
                raise ConnectionResetError
            data += part
        return data, fds

    def receive(self):
        try:
            head, fds = self.take(16)
            number, command, size, flags, error = struct.unpack("<HHIII", head)
            data, more = self.take(size - 16)
        except (ConnectionResetError, TimeoutError):
            return Reply()
        assert flags & 15 == 1 and bool(flags & ERROR) == bool(error) and not (error and data)
        return Reply(number, command, error, data, fds + more)

    def call(self, command, payload=b"", fds=(), flags=0):
        self.number += 1
        self.send(message(command, payload, self.number, flags), fds)
        reply = self.receive()
        assert reply.error is None or (reply.number, reply.command) == (self.number, command)
        return reply

    def version(self, major, minor, json, end=b"\0"):
        return self.call(VERSION, struct.pack("<HH", major, minor) + json.encode() + end)

    def region_info(self, index, room=4096):
        return self.call(GET_REGION_INFO, struct.pack("<4I2Q", room, 0, index, 0, 0, 0))

    def read(self, region, offset, count):
        """The reply without its repetition of the request."""
        reply = self.call(REGION_READ, access(region, offset, count))
        reply.data = reply.data[16:]
        return reply

    def write(self, region, offset, data):
        return self.call(REGION_WRITE, access(region, offset, len(data)) + data).error

    def read32(self, offset):
        return self.read(BAR0, offset, 4).words("I")[0]

    def read64(self, offset):
        return self.read(BAR0, offset, 8).words("Q")[0]

    def write32(self, offset, value):
        return self.write(BAR0, offset, u32(value))

    def write64(self, offset, value):
        return self.write(BAR0, offset, u64(value))

    def bus_master(self, on=True):
        return self.write(CONFIG, 4, struct.pack("<H", 0x406 if on else 0x402))

    def map(self, iova, size, fd, offset=0, flags=3):
        return self.call(DMA_MAP, struct.pack("<2I3Q", 32, flags, offset, iova, size),
                         () if fd is None else (fd,)).error

    def unmap(self, iova, size):
        request = struct.pack("<2I2Q", 24, 0, iova, size)
        reply = self.call(DMA_UNMAP, request)
        assert reply.error or reply.data == request, "the reply repeats the request"
        return reply.error


class Driver:
    """An admin queue, and an I/O queue, in a memfd. SQs are at qid * RINGS, CQs CQ behind them."""

    IOVA, BYTES, DATA, DEPTH = 0x10000000, 1 << 20, 0x40000, 16
    RINGS, CQ = 0x10000, 0x8000

    def __init__(self, client, mapped=True):
        self.client, self.fd = client, os.memfd_create("driver")
        os.ftruncate(self.fd, self.BYTES)
        self.memory = mmap.mmap(self.fd, self.BYTES)
        assert client.map(self.IOVA, self.BYTES, self.fd) == 0
        self.doorbells = None  # by message
        if mapped:
            reply = client.region_info(BAR0)
            *_, caps, _, offset = reply.words("4I2Q")
            begin, size = reply.words("2Q", caps + 16)
            pages = mmap.mmap(reply.fds[0], size, offset=offset + begin)
            self.doorbells = memoryview(pages).cast("I")
            os.close(reply.fds[0])

    def __del__(self):
        os.close(self.fd)

    def enable(self):
        """CSTS, ready or failed."""
        self.memory[:2 * self.RINGS] = bytes(2 * self.RINGS)
        self.tail, self.head, self.phase = [0, 0], [0, 0], [1, 1]
        self.client.write32(AQA, (self.DEPTH - 1) * 0x10001)
        self.client.write64(ASQ, self.IOVA)
        self.client.write64(ACQ, self.IOVA + self.CQ)
        self.client.write32(CC, ENABLE | 6 << 16 | 4 << 20)
        return self.wait_ready(READY)

    def disable(self):
        self.client.write32(CC, 0)
        return self.wait_ready(0)

    def wait_ready(self, ready):
        end = time.monotonic() + SECONDS
        while True:
            csts = self.client.read32(CSTS)
            if csts & READY == ready or csts & FATAL or time.monotonic() > end:
                return csts

    def start(self):
        """Bus mastering, and the controller."""
        assert self.client.bus_master() == 0 and self.enable() == READY
        return self

    def create_io_queue(self):
        ring = self.IOVA + self.RINGS
        assert self.run(0, CREATE_CQ, ring + self.CQ, 1 | (self.DEPTH - 1) << 16, 1) == 0
        assert self.run(0, CREATE_SQ, ring, 1 | (self.DEPTH - 1) << 16, 1 | 1 << 16) == 0

    def doorbell(self, index, value):
        if self.doorbells:
            self.doorbells[index] = value
        else:
            self.client.write32(DOORBELLS + 4 * index, value)

    def run(self, qid, opcode, prp1=0, cdw10=0, cdw11=0, nsid=0, seconds=SECONDS):
        """The status of a command, or None if there is no completion within the time."""
        at = qid * self.RINGS + 64 * self.tail[qid]
        self.memory[at:at + 64] = struct.pack("<BBHIQQQQ6I", opcode, 0, self.tail[qid], nsid, 0, 0,
                                              prp1, 0, cdw10, cdw11, 0, 0, 0, 0)
        self.tail[qid] = (self.tail[qid] + 1) % self.DEPTH
        self.doorbell(2 * qid, self.tail[qid])
        done = self.complete(qid, seconds)
        return done[2] if done else None

    def complete(self, qid, seconds=SECONDS):
        """The result, the CID and the status of the next completion."""
        end = time.monotonic() + seconds
        while True:
            result, _, _, _, cid, status = struct.unpack_from(
                "<IIHHHH", self.memory, qid * self.RINGS + self.CQ + 16 * self.head[qid])
            if status & 1 == self.phase[qid]:
                break
            if time.monotonic() > end:
                return None
        self.head[qid] = (self.head[qid] + 1) % self.DEPTH
        self.phase[qid] ^= self.head[qid] == 0
        self.doorbell(2 * qid + 1, self.head[qid])
        return result, cid, status >> 1

    def identify(self, seconds=SECONDS, to=IOVA + DATA):
        return self.run(0, IDENTIFY, to, 1, seconds=seconds)

    def rw(self, opcode, lba, seconds=SECONDS):
        return self.run(1, opcode, self.IOVA + self.DATA, lba, nsid=1, seconds=seconds)

    def data(self, size=4096):
        return self.memory[self.DATA:self.DATA + size]

    def fill(self, byte):
        self.memory[self.DATA:self.DATA + 4096] = bytes([byte]) * 4096
