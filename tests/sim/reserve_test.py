#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Reservations: two controllers of one namespace, each with a host of its own.

usage: reserve_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import contextlib
import os
import struct
import sys
import tempfile
import unittest

from rig import Server
from vfio_user import (ASYNC_EVENT, GET_FEATURES, GET_LOG_PAGE, INVALID_FIELD, READ, SET_FEATURES,
                       WRITE, Client, Driver)

FLUSH, REGISTER, REPORT, ACQUIRE, RELEASE = 0, 0xd, 0xe, 0x11, 0x15
WE, EA, WERO, EARO, WEAR, EAAR = range(1, 7)  # types
ADD, REMOVE, REPLACE, ANY_KEY = 0, 1, 2, 8  # of REGISTER
LOSE_POWER, KEEP = 2 << 30, 3 << 30
PREEMPT, CLEAR = 1, 1  # of ACQUIRE, and of RELEASE
HOST_ID, RESERVATION_LOG = 0x81, 0x80
OK, CONFLICT, SEQUENCE, HOST_ID_FORMAT = 0, 0x83, 0xc, 0x18


class Party:
    """A host with a controller of its own."""

    def __init__(self, folder, number):
        self.context = contextlib.ExitStack()
        server = self.context.enter_context(Server(
            "--shared", "--strict", "-i", os.path.join(folder, "image"),
            "--reservations", os.path.join(folder, "state")))
        self.d = Driver(self.context.enter_context(Client(server.path))).start()
        self.context.callback(self.d.disable)
        self.d.create_io_queue()
        self.number = number
        assert self.name_host(number) == OK

    def admin(self, opcode, cdw10, cdw11=0):
        return self.d.run(0, opcode, Driver.IOVA + Driver.DATA, cdw10, cdw11)

    def name_host(self, number):
        self.put(bytes([number]) + bytes(15))
        return self.admin(SET_FEATURES, HOST_ID, 1)

    def put(self, data):
        self.d.memory[Driver.DATA:Driver.DATA + len(data)] = data

    def io(self, opcode, cdw10=0, cdw11=0):
        return self.d.run(1, opcode, Driver.IOVA + Driver.DATA, cdw10, cdw11, nsid=1)

    def flush(self, nsid=1):
        return self.d.run(1, FLUSH, nsid=nsid)

    def run(self, opcode, cdw10, key, second=0):
        self.put(struct.pack("<2Q", key, second))
        return self.io(opcode, cdw10)

    def add(self, key, persist=0):
        return self.run(REGISTER, ADD | persist, 0, key)

    def remove(self, key):
        return self.run(REGISTER, REMOVE, key)

    def acquire(self, key, kind):
        return self.run(ACQUIRE, kind << 8, key)

    def preempt(self, key, other, kind):
        return self.run(ACQUIRE, PREEMPT | kind << 8, key, other)

    def release(self, key, kind):
        return self.run(RELEASE, kind << 8, key)

    def report(self):
        """The type, whether it persists, and the registrants: (reserves, key, host) of each."""
        assert self.io(REPORT, 4096 // 4 - 1, 1) == OK
        data = self.d.data()
        kind, count, _, persists = struct.unpack_from("<BHHB", data, 4)
        return kind, persists, [(data[at + 2], *struct.unpack_from("<QB", data, at + 8))
                                for at in range(64, 64 * (1 + count), 64)]


class Reserve(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="gpunvme-sim-"))
        with open(os.path.join(self.folder, "image"), "wb") as f:
            f.truncate(4 << 20)
        self.start()
        self.addCleanup(self.stop)

    def start(self):
        self.a, self.b = (Party(self.folder, number) for number in (1, 2))

    def stop(self):
        for party in self.a, self.b:
            party.context.close()

    def expect(self, *pairs):
        for i, (got, status) in enumerate(pairs):
            self.assertEqual(got, status, f"number {i}")

    def test_each_type_permits_what_it_says(self):
        """With each type, the holder, a registrant, and a stranger read and write."""
        a, b = self.a, self.b
        self.expect((a.add(10), OK))
        for kind, registrant_reads, registrant_writes, stranger_reads in (
                (WE, OK, CONFLICT, OK), (EA, CONFLICT, CONFLICT, CONFLICT), (WERO, OK, OK, OK),
                (EARO, OK, OK, CONFLICT), (WEAR, OK, OK, OK), (EAAR, OK, OK, CONFLICT)):
            with self.subTest(kind):
                self.expect((a.acquire(10, kind), OK), (a.io(WRITE), OK), (a.io(READ), OK),
                            (b.io(READ), stranger_reads), (b.io(WRITE), CONFLICT),
                            (b.flush(), CONFLICT), (b.flush(0xffffffff), CONFLICT),
                            (b.add(20), OK),
                            (b.io(READ), registrant_reads), (b.io(WRITE), registrant_writes))
                found, _, registrants = b.report()
                self.assertEqual((found, registrants[1][0]), (kind, kind >= WEAR))
                self.expect((b.remove(20), OK),
                            (a.release(10, EA if kind == WE else WE), INVALID_FIELD),
                            (a.release(10, kind), OK), (b.io(WRITE), OK))

    def test_keys_are_compared(self):
        a, b = self.a, self.b
        self.expect((a.acquire(10, WE), CONFLICT), (a.remove(10), CONFLICT),  # not registered
                    (a.add(10), OK), (a.add(10), OK), (a.add(11), CONFLICT),
                    (a.acquire(11, WE), CONFLICT), (a.acquire(10, 0), INVALID_FIELD),
                    (a.acquire(10, 7), INVALID_FIELD), (a.acquire(10, WE), OK),
                    (a.acquire(10, WE), OK), (a.acquire(10, WERO), CONFLICT), (b.add(20), OK),
                    (b.acquire(20, WE), CONFLICT), (b.release(20, WE), OK))
        self.assertEqual(b.report()[0], WE, "b released what it did not hold")
        self.expect((a.release(11, WE), CONFLICT), (a.run(REGISTER, REPLACE, 11, 12), CONFLICT),
                    (a.run(REGISTER, REPLACE | ANY_KEY, 0, 12), OK))
        self.assertEqual(b.report(), (WE, 0, [(1, 12, 1), (0, 20, 2)]))
        self.expect((a.remove(12), OK))
        self.assertEqual(b.report()[0], 0, "it ends with its holder")
        self.expect((b.run(RELEASE, CLEAR, 20), OK))
        self.assertEqual(b.report(), (0, 0, []))

    def test_preempting_takes_it_and_says_so(self):
        a, b = self.a, self.b
        self.expect((a.add(10), OK), (a.acquire(10, WE), OK), (b.add(20), OK),
                    (a.d.run(0, ASYNC_EVENT, seconds=0), None),
                    (b.preempt(20, 99, WE), CONFLICT),  # nobody has the key
                    (b.preempt(20, 0, WE), INVALID_FIELD), (a.io(WRITE), OK),
                    (b.preempt(20, 10, WE), OK), (a.io(WRITE), CONFLICT), (b.io(WRITE), OK))
        event, cid, status = a.d.complete(0)
        self.assertEqual((event, cid, status), (RESERVATION_LOG << 16 | 6, a.d.tail[0] - 1, OK))
        for expected in 1, 0:
            self.expect((a.admin(GET_LOG_PAGE, RESERVATION_LOG | 15 << 16), OK))
            self.assertEqual(struct.unpack_from("<B3xI", a.d.data(), 8), (expected, expected))
        self.expect((a.acquire(10, WE), CONFLICT))  # it is not registered any more

    def test_one_key_preempts_all_registrants(self):
        a, b = self.a, self.b
        self.expect((a.add(10), OK), (b.add(20), OK), (a.acquire(10, WEAR), OK),
                    (b.preempt(20, 0, WE), OK))
        self.assertEqual(b.report(), (WE, 0, [(1, 20, 2)]))

    def test_a_power_loss_ends_only_what_is_not_to_persist(self):
        self.expect((self.a.add(10, LOSE_POWER), OK), (self.a.acquire(10, WE), OK))
        self.b.context.close()
        self.b = Party(self.folder, 2)
        self.assertEqual(self.b.report()[0], WE, "another controller has power")
        self.stop()
        self.start()
        self.assertEqual(self.b.report()[0], 0)
        self.expect((self.a.add(10, KEEP), OK), (self.a.acquire(10, WE), OK))
        self.stop()
        self.start()
        self.assertEqual(self.b.report()[:2], (WE, 1))
        self.expect((self.a.io(WRITE), OK), (self.b.io(WRITE), CONFLICT))

    def test_a_host_is_named_once_until_a_reset(self):
        a = self.a
        self.expect((a.name_host(1), OK), (a.name_host(3), SEQUENCE))
        a.put(b"\xee" * 16)
        self.expect((a.admin(GET_FEATURES, HOST_ID, 1), OK))
        self.assertEqual(a.d.data(2), b"\1\0")
        self.expect((a.admin(SET_FEATURES, HOST_ID, 0), INVALID_FIELD),
                    (a.io(REPORT, 15), HOST_ID_FORMAT))  # without EDS


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
