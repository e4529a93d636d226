#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A hostile or faulty client of gpunvme-sim: the server does not crash, hang or leak.

usage: serve_hostile_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import errno
import os
import random
import socket
import struct
import sys
import time
import unittest

from rig import Server
from vfio_user import (AQA, BAR0, CC, CONFIG, CSTS, DMA_MAP, DMA_UNMAP, GET_INFO, GET_IRQ_INFO,
                       GET_REGION_INFO, READY, REGION_READ, REGION_WRITE, RESET, SET_IRQS, VERSION,
                       VS, Client, Driver, access, memfd, message)

MIB = 1 << 20
MAX = (1 << 64) - 1
MAP = struct.pack("<2I3Q", 32, 3, 0, 4096, 4096)


class Hostile(unittest.TestCase):
    """After each test a well-behaved client is served, and no resource is leaked."""

    def setUp(self):
        self.server = self.enterContext(Server())
        with self.client():
            self.before = self.server.holdings()
        self.addCleanup(self.expect_service)

    def expect_service(self):
        self.assertIsNone(self.server.process.poll(), self.server.err())
        with self.client() as c:
            self.assertEqual((c.read32(VS), c.read32(CC)), (0x20000, 0))
            self.assertEqual(self.server.holdings(), self.before)

    def client(self, greet=True):
        return Client(self.server.path, greet)

    def expect_end(self, client, error):
        self.assertEqual(client.receive().error, error)
        self.assertIsNone(client.receive().error)

    def test_invalid_sizes_end_the_connection(self):
        for size in 0, 1, 15, 1 << 20, 0x7fffffff, 0xffffffff:
            with self.subTest(size), self.client() as c:
                c.send(message(GET_INFO, size=size))
                self.expect_end(c, errno.EPROTO)

    def test_short_payloads_are_refused(self):
        with self.client() as c:
            for command in (DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, GET_IRQ_INFO, SET_IRQS,
                            REGION_READ, REGION_WRITE, VERSION):
                for size in 0, 1, 3, 15:
                    self.assertEqual(c.call(command, bytes(size)).error, errno.EINVAL, command)

    def test_wrong_counts_are_refused(self):
        with self.client() as c:
            for count in 0, 3, 5, 8, 65535, 0xffffffff:
                self.assertEqual(c.call(REGION_WRITE, access(BAR0, AQA, count) + bytes(4)).error,
                                 errno.EINVAL, count)
            self.assertEqual(c.call(GET_INFO, struct.pack("<4I", 15, 0, 0, 0)).error, errno.EINVAL)

    def test_only_commands_are_accepted(self):
        with self.client() as c:
            for flags in 1, 2, 0x20, 15:
                self.assertEqual(c.call(RESET, flags=flags).error, errno.EINVAL, flags)

    def test_nothing_works_before_the_version(self):
        for command in 0, 2, 4, 5, 9, 13, 77:
            with self.client(False) as c:
                self.assertEqual(c.call(command, bytes(32)).error, errno.EINVAL)
                self.assertIsNone(c.receive().error)

    def test_invalid_versions_are_refused(self):
        for json, *more in (("{}", 1), ("{}", 0, b""), ("{",), ("[]",), ("nonsense",),
                            ('{"capabilities":7}',), ('{"capabilities":{"max_msg_fds":"many"}}',),
                            ('{"capabilities":{"max_msg_fds":-1}}',), ("[" * 60000,)):
            with self.subTest(json[:40]), self.client(False) as c:
                major, *end = more or [0]
                self.assertEqual(c.version(major, 1, json, *end).error, errno.EINVAL)
                self.assertIsNone(c.receive().error)
        with self.client() as c:
            self.assertEqual(c.version(0, 1, "{}").error, errno.EINVAL, "twice")
            self.assertEqual(c.read32(VS), 0x20000)

    def test_unexpected_descriptors_are_closed(self):
        with memfd(MIB) as fd, self.client() as c:
            now = self.server.holdings()[0]
            for n in 1, 8, 9, 60:
                fds = [fd] * n
                self.assertEqual(c.call(GET_INFO, struct.pack("<4I", 16, 0, 0, 0), fds).error,
                                 errno.EINVAL, n)
                self.assertEqual(c.call(DMA_MAP, MAP, fds).error, 0 if n == 1 else errno.EINVAL, n)
                self.assertEqual(c.call(999, b"", fds).error, errno.ENOTSUP)
            self.assertEqual(self.server.holdings()[0], now)

    def test_descriptors_in_every_piece_do_no_harm(self):
        """Descriptors with each byte of a message count together, and all are closed."""
        with memfd(MIB) as fd, self.client() as c:
            before = self.server.holdings()[1]
            for byte in message(DMA_MAP, MAP):
                c.send(bytes([byte]), [fd])
            self.assertEqual(c.receive().error, errno.EINVAL)
            for byte in message(DMA_MAP, MAP):
                c.send(bytes([byte]))
            self.assertEqual(c.receive().error, 0, "no descriptor, for those before are gone")
            self.assertEqual(self.server.holdings()[1], before)

    def test_invalid_mappings_are_refused(self):
        at, far = 0x40000000, 0x200000000
        ends = os.pipe()
        read_only = os.open("/proc/self/exe", os.O_RDONLY)
        with memfd(MIB) as fd, self.client() as c:
            self.assertEqual(c.map(at, MIB, fd), 0)
            for error, iova, size, file, *more in (
                    (errno.EEXIST, at, MIB, fd), (errno.EEXIST, at + MIB - 4096, 4096, fd),
                    (errno.EEXIST, at - 4096, 8192, fd), (errno.EINVAL, at + 1, 4096, fd),
                    (errno.EINVAL, far, 0, fd), (errno.EINVAL, far, 4095, fd),
                    (errno.EINVAL, far, 4096, fd, 1), (errno.EINVAL, far, 2 * MIB, fd),
                    (errno.EINVAL, far, 4096, fd, MIB), (errno.EINVAL, far, MIB, fd, MAX - 4095),
                    (errno.EINVAL, far, 1 << 63, fd), (errno.EINVAL, far, MAX - 4095, fd, 4096),
                    (errno.EINVAL, MAX - 4095, 4096, fd), (errno.EINVAL, 1 << 63, 8192, fd),
                    (errno.EINVAL, far, 4096, ends[0]), (errno.EACCES, far, 4096, read_only),
                    (errno.EINVAL, MAX - 4095, 8192, None), (errno.EEXIST, at + 4096, 4096, None),
                    (errno.EEXIST, at + 4096, 4096, fd, 0, 1),
                    (errno.EINVAL, far, 4096, fd, 0, 7)):
                self.assertEqual(c.map(iova, size, file, *more), error, (hex(iova), size, more))
            for iova, size in ((at, 4096), (at + 4096, MIB - 4096), (at, 2 * MIB), (0, 0), (at, 0),
                               (0, MAX)):
                self.assertEqual(c.unmap(iova, size), errno.ENOENT)
            for flags, fds in (2, ()), (0, (fd, fd)):  # all, and a range; two descriptors
                self.assertEqual(c.call(DMA_UNMAP, struct.pack("<2I2Q", 24, flags, at, MIB),
                                        fds).error, errno.EINVAL)
            self.assertEqual(c.unmap(at, MIB), 0)
            self.assertEqual(c.unmap(at, MIB), errno.ENOENT)
        for fd in (*ends, read_only):
            os.close(fd)

    def test_an_enormous_file_does_no_harm(self):
        """A sparse file of any size is accepted; mapping it costs no memory."""
        with memfd((1 << 63) - 4096) as fd, self.client() as c:
            self.assertIn(c.map(4096, (1 << 52) - 4096 * 20, fd), (errno.ENOMEM, errno.EINVAL))
            self.assertEqual(c.read32(VS), 0x20000)

    def test_mappings_are_limited(self):
        with memfd(4096) as fd, self.client() as c:
            for i in range(4096):  # as max_dma_maps says
                self.assertEqual(c.map((i + 1) * 4096, 4096, fd), 0, i)
            self.assertEqual(c.map(4097 * 4096, 4096, fd), errno.ENOSPC)
            self.assertEqual(c.unmap(4096, 4096), 0)
            self.assertEqual(c.map(4096 * 5000, 4096, fd), 0)

    def test_a_file_that_shrinks_does_no_harm(self):
        """The memory of the rings is removed while the controller uses it."""
        with self.client() as c:
            d = Driver(c).start()
            self.assertEqual(d.identify(), 0)
            os.ftruncate(d.fd, 0)
            d.doorbell(0, 5)
            self.assertIsNone(c.receive().error, "the client is sent away")
        self.assertIn("a file shrank while it was mapped", self.server.err())

    def test_rings_full_of_garbage_do_no_harm(self):
        rng = random.Random(7)
        with self.client() as c:
            d = Driver(c)
            c.bus_master()
            for _ in range(20):
                self.assertEqual(d.enable(), READY)
                for i in range(0, 0x4000, 8):
                    v = rng.getrandbits(64)
                    if i % 64 == 0:  # half of the opcodes exist
                        v = v & ~0xc0ff | rng.randrange(16)
                    if i % 64 == 24 and v % 2:
                        v = Driver.IOVA + v % Driver.BYTES
                    struct.pack_into("<Q", d.memory, i, v)
                for bell in range(6):
                    d.doorbell(bell, rng.randrange(20))
                c.read32(CSTS)
                d.disable()

    def test_every_register_takes_any_value(self):
        rng = random.Random(11)
        with self.client() as c:
            Driver(c, False)
            for _ in range(3000):
                n = 1 << rng.randrange(5)
                c.write(BAR0 if rng.randrange(8) else CONFIG, rng.randrange(0x4000),
                        rng.randbytes(min(n, 8)).ljust(n, b"\0"))
                c.read(BAR0, rng.randrange(64), n)
            for register in range(0, 0x40, 4):
                self.assertEqual(c.write32(register, 0xffffffff), 0)

    def test_hanging_up_at_any_byte_does_no_harm(self):
        whole = message(DMA_MAP, MAP)
        with memfd(MIB) as fd:
            for n in range(len(whole)):
                with self.client() as c:
                    c.send(whole[:n + 1], [fd])
        for _ in range(50):
            self.client(False).socket.close()

    def test_a_silent_client_is_disconnected(self):
        with self.client(False) as c:
            self.assertIsNone(c.receive().error)
        self.assertIn("no whole message", self.server.err())

    def test_an_unfinished_message_ends_the_connection(self):
        with self.client() as c:
            c.send(message(REGION_WRITE, size=4096) + bytes(100))
            self.assertIsNone(c.receive().error)

    def test_unread_replies_end_the_connection(self):
        """Replies fill the socket. The server disconnects the client and continues to serve."""
        one = message(REGION_READ, access(CONFIG, 0, 4096))
        end, sent = time.monotonic() + 10, 0
        with self.client() as c:
            c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            c.socket.setblocking(False)
            with self.assertRaises(BrokenPipeError):
                while time.monotonic() < end:
                    try:
                        sent += c.socket.send(one) > 0
                    except BlockingIOError:
                        time.sleep(0.005)
        self.assertGreater(sent, 10)

    def test_random_bytes_do_no_harm(self):
        rng = random.Random(23)
        with memfd(MIB) as fd:
            for _ in range(200):
                junk = rng.randbytes(rng.randrange(200))
                if len(junk) >= 16 and rng.randrange(2):  # a valid header
                    head = struct.pack("<HII", rng.randrange(16), len(junk), 0)
                    junk = junk[:2] + head + junk[12:]
                with self.client(rng.randrange(4) != 0) as c:
                    if junk:
                        c.send(junk, [fd] * rng.randrange(4))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
