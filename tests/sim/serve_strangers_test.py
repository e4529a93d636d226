#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""gpunvme-sim with the messages and commands of other clients: QEMU's vfio-user-pci with Linux's
driver behind it, and SPDK's initiator.

usage: serve_strangers_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import errno
import os
import select
import socket
import struct
import sys
import unittest

from rig import Server
from vfio_user import (ACTION_MASK, ACTION_TRIGGER, ASYNC_EVENT, CC, CONFIG, CREATE_CQ, CREATE_SQ,
                       CSTS, DATA_BOOL, DATA_EVENTFD, DATA_NONE, DMA_UNMAP, INVALID_FIELD, MSIX,
                       READ, READY, SET_IRQS, SHUTDOWN, Client, Driver, memfd)

MIB = 1 << 20
INVALID_VECTOR = 0x108
RING = Driver.DEPTH - 1 << 16 | 1  # queue 1


class Stranger(unittest.TestCase):
    options = ("--strict",)

    def setUp(self):
        self.server = self.enterContext(Server(*self.options))
        self.c = self.enterContext(Client(self.server.path))

    def maps(self):
        return self.server.holdings()[1]

    def set_irqs(self, start, count, fds=(), flags=DATA_EVENTFD | ACTION_TRIGGER, data=b""):
        request = struct.pack("<5I", 20 + len(data), flags, MSIX, start, count)
        return self.c.call(SET_IRQS, request + data, fds).error


class Memory(Stranger):
    def test_memory_at_address_zero_is_reached(self):
        """QEMU maps the guest's memory, which begins at address 0."""
        d = Driver(self.c).start()
        with memfd(MIB) as fd:
            self.assertEqual(self.c.map(0, MIB, fd), 0)
            self.assertEqual(d.identify(to=0), 0)
            self.assertEqual(os.pread(fd, 7, 4), b"SIM0001")
        d.disable()
        self.assertEqual(self.c.unmap(0, MIB), 0)

    def test_unmap_with_a_descriptor_is_accepted(self):
        """SPDK sends the descriptor of the memory with DMA_UNMAP, too."""
        before = self.server.holdings()
        with memfd(MIB) as fd:
            self.assertEqual(self.c.map(MIB, MIB, fd), 0)
            request = struct.pack("<2I2Q", 24, 0, MIB, MIB)
            self.assertEqual(self.c.call(DMA_UNMAP, request, [fd]).error, 0)
        self.assertEqual(self.server.holdings(), before)

    def test_one_unmap_removes_all_mappings(self):
        before = self.maps()
        with memfd(MIB) as fd:
            for at in 0, MIB, 3 * MIB:
                self.assertEqual(self.c.map(at, MIB, fd), 0)
            self.assertEqual(self.c.call(DMA_UNMAP, struct.pack("<2I2Q", 24, 2, 0, 0)).error, 0)
            self.assertEqual(self.maps(), before)
            self.assertEqual(self.c.map(0, MIB, fd), 0)
        self.assertEqual(self.c.unmap(0, MIB), 0)

    def test_memory_that_cannot_be_reached_is_recorded(self):
        """QEMU maps ROMs, which have no descriptor and are read-only."""
        before = self.maps()
        with memfd(MIB) as fd:
            self.assertEqual(self.c.map(0xfffc0000, 0x40000, None, 0, 1), 0)
            self.assertEqual(self.c.map(0xc0000, 0x20000, fd, 0, 1), 0)
            self.assertEqual(self.maps(), before)
            self.assertEqual(self.c.unmap(0xfffc0000, 0x40000), 0)
            self.assertEqual(self.c.unmap(0xc0000, 0x20000), 0)
            self.assertEqual(self.c.map(0xc0000, 0x20000, fd), 0)
            self.assertEqual(self.maps(), before + 1)

    def test_after_a_shutdown_the_driver_may_leave(self):
        """Linux and SPDK leave CC.EN set after a shutdown, and take the memory away."""
        d = Driver(self.c).start()
        self.assertIsNone(d.run(0, ASYNC_EVENT, seconds=0.02), "outstanding")
        self.c.write32(CC, self.c.read32(CC) | SHUTDOWN)
        self.assertEqual(self.c.read32(CSTS) & 0xc, 8, "complete")
        self.assertEqual(self.c.bus_master(False), 0)
        self.assertEqual(self.c.unmap(Driver.IOVA, Driver.BYTES), 0)

    def test_a_function_level_reset_disables_the_controller(self):
        """A virtual machine resets a function by its configuration space."""
        capabilities, control, flr = 0x54, 0x58, 1 << 28
        d = Driver(self.c).start()
        self.assertTrue(self.c.read(CONFIG, capabilities, 4).words("I")[0] & flr)
        self.assertEqual(self.c.write(CONFIG, control, struct.pack("<H", 0x8000)), 0)
        self.assertEqual((self.c.read32(CC), self.c.read32(CSTS)), (0, 0))
        self.assertEqual(self.c.read(CONFIG, control, 2).words("H")[0], 0)
        self.assertEqual((d.enable(), d.identify()), (READY, 0))
        d.disable()

    def test_a_client_that_leaves_takes_its_vectors_along(self):
        d = Driver(self.c).start()
        before = self.server.holdings()[0]
        event = os.eventfd(0)
        self.assertEqual(self.set_irqs(0, 1, [event]), 0)
        d.disable()
        self.c.socket.shutdown(socket.SHUT_RDWR)
        with Client(self.server.path):
            self.assertEqual(self.server.holdings()[0], before)
        os.close(event)


def signalled(event, seconds=10):
    """Is the eventfd signalled within the time? Its count is cleared."""
    poll = select.poll()
    poll.register(event, select.POLLIN)
    return bool(poll.poll(seconds * 1000)) and os.eventfd_read(event) > 0


class Interrupts(Stranger):
    """A controller with a CQ with interrupts, which is number 1, and three eventfds."""

    def setUp(self):
        super().setUp()
        self.events = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
        for event in self.events:
            self.addCleanup(os.close, event)
        self.d = Driver(self.c).start()
        self.addCleanup(self.d.disable)

    def test_capability_and_table_describe_the_vectors(self):
        space = self.c.read(CONFIG, 0, 256).data
        at = space[0x34]
        while at and space[at] != 0x11:
            at = space[at + 1]
        self.assertTrue(at, "no capability for MSI-X")
        vectors, table, bits = struct.unpack_from("<HII", space, at + 2)
        self.assertEqual(vectors, 112, "112 queues and the admin's")
        bar, pending = table & 7, bits & ~7
        self.assertEqual((bits & 7, table & ~7), (bar, 0))
        self.assertGreaterEqual(pending, 113 * 16)
        size = self.c.region_info(bar).words("4I2Q")[4]
        self.assertGreaterEqual(size, pending + 16)

        def word(offset):
            return self.c.read(bar, offset, 4).words("I")[0]
        self.assertEqual(word(12), 1, "masked at first")
        self.assertEqual(self.c.write(bar, 112 * 16, b"\x5a" * 16), 0)
        self.assertEqual(word(112 * 16 + 8), 0x5a5a5a5a)
        self.assertEqual(self.c.write(bar, pending, b"\xff" * 8), 0)
        self.assertEqual(word(pending), 0, "read-only")

    def test_completions_signal_the_vector_of_their_queue(self):
        first, other, own = self.events
        self.assertEqual(self.set_irqs(0, 3, self.events), 0)
        self.assertEqual(self.d.identify(), 0)
        self.assertTrue(signalled(first), "the admin queue has vector 0")
        ring = Driver.IOVA + Driver.RINGS
        self.assertEqual(self.d.run(0, CREATE_CQ, ring + Driver.CQ, RING, 1 | 2 | 2 << 16), 0)
        self.assertEqual(self.d.run(0, CREATE_SQ, ring, RING, 1 | 1 << 16), 0)
        while signalled(first, 0.05):
            pass
        for i in range(20):
            self.assertEqual(self.d.rw(READ, 0), 0)
            self.assertTrue(signalled(own), i)
        self.assertFalse(signalled(first, 0))
        self.assertFalse(signalled(other, 0))

    def test_vectors_can_be_replaced_and_removed(self):
        first, second, _ = self.events
        before = self.server.holdings()[0]
        self.assertEqual(self.set_irqs(0, 1, [first]), 0)
        self.assertEqual(self.set_irqs(0, 1, [second]), 0)
        self.assertEqual(self.server.holdings()[0], before + 1)
        self.assertEqual(self.d.identify(), 0)
        self.assertTrue(signalled(second))
        self.assertFalse(signalled(first, 0))
        self.assertEqual(self.set_irqs(0, 1), 0, "no descriptor: removed")
        self.assertEqual(self.server.holdings()[0], before)
        self.assertEqual(self.d.identify(), 0)
        self.assertFalse(signalled(second, 0.05))
        self.assertEqual(self.set_irqs(110, 3, self.events), 0)
        self.assertEqual(self.set_irqs(0, 0, (), DATA_NONE | ACTION_TRIGGER), 0)
        self.assertEqual(self.server.holdings()[0], before, "no vectors: all are removed")

    def test_a_client_can_trigger_them(self):
        first, second, _ = self.events
        self.assertEqual(self.set_irqs(5, 2, [first, second]), 0)
        self.assertEqual(self.set_irqs(6, 1, (), DATA_NONE | ACTION_TRIGGER), 0)
        self.assertTrue(signalled(second))
        self.assertEqual(self.set_irqs(5, 2, (), DATA_BOOL | ACTION_TRIGGER, b"\1\0"), 0)
        self.assertTrue(signalled(first))
        self.assertFalse(signalled(second, 0))

    def test_a_full_event_delays_no_command(self):
        """An eventfd that a client has filled delays nobody but its interrupts."""
        full = os.eventfd(0)
        self.addCleanup(os.close, full)
        os.eventfd_write(full, (1 << 64) - 2)
        self.assertEqual(self.set_irqs(0, 1, [full]), 0)
        for _ in range(20):
            self.assertEqual(self.d.identify(), 0)
        self.assertEqual(self.set_irqs(0, 1, self.events[:1]), 0, "the waiting write ends")
        self.assertEqual(self.d.identify(), 0)
        self.assertTrue(signalled(self.events[0]))
        self.assertEqual(self.set_irqs(0, 1, [full]), 0)
        self.assertEqual(self.d.identify(), 0)


class Mistakes(Stranger):
    options = ()

    def test_of_interrupts_are_refused(self):
        d = Driver(self.c).start()
        event = os.eventfd(0)
        with memfd(4096) as file:
            for arguments in ((0, 2, [event]), (0, 2, [event, file]),  # no eventfd
                              (112, 2, [event, event]), (0, 1, (), DATA_NONE | ACTION_MASK)):
                self.assertEqual(self.set_irqs(*arguments), errno.EINVAL, arguments)
        os.close(event)
        for cdw11, status in ((1 | 2 | 113 << 16, INVALID_VECTOR),  # no such vector
                              (1 | 1 << 16, INVALID_VECTOR),  # a vector without interrupts
                              (1 | 4, INVALID_FIELD)):  # a reserved bit
            self.assertEqual(d.run(0, CREATE_CQ, Driver.IOVA + 0x18000, RING, cdw11), status)
        d.disable()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
