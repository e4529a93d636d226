#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""gpunvme-sim: the protocol with a well-behaved client; start and end of the process.

usage: serve_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import errno
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from rig import SIM, Server, output
from vfio_user import (ACTION_MASK, ACTION_TRIGGER, AQA, BAR0, CAP, CC, CONFIG, CSTS, DATA_BOOL,
                       DATA_EVENTFD, DATA_NONE, DOORBELLS, ENABLE, FATAL, GET_INFO, GET_IRQ_INFO,
                       HAS_CAPS, INTX, IRQS, MAPPABLE, MSIX, MSIX_BAR, NO_REPLY, READ, READABLE,
                       READY, REGION_READ, REGION_WRITE, REGIONS, RESET, SET_IRQS,
                       UNRECOVERED_READ, VERSION, VS, WRITABLE, WRITE, Client, Driver, access,
                       message, u32)

ALL_ONES = (1 << 64) - 1


class Serve(unittest.TestCase):
    def setUp(self):
        self.server = self.enterContext(Server())

    def client(self, greet=True):
        return self.enterContext(Client(self.server.path, greet))

    def test_version_is_negotiated(self):
        reply = self.client(False).version(
            0, 7, '{"capabilities":{"max_msg_fds":2,"max_data_xfer_size":4096}}')
        self.assertEqual((reply.error, reply.words("2H"), reply.data[-1:]), (0, (0, 1), b"\0"))
        for name in "capabilities", "max_msg_fds", "max_data_xfer_size", "max_dma_maps", "pgsizes":
            self.assertIn(f'"{name}"'.encode(), reply.data)

    def test_version_needs_no_capabilities(self):
        for json in "", "{}", '{"capabilities":{}}':
            with Client(self.server.path, False) as c:
                self.assertEqual(c.version(0, 0, json, b"\0" if json else b"").words("2H"), (0, 0))

    def test_device_is_a_pci_device_that_can_be_reset(self):
        reply = self.client().call(GET_INFO, struct.pack("<4I", 16, 0, 0, 0))
        self.assertEqual(reply.words("4I"), (16, 1 | 2, REGIONS, IRQS))

    def test_doorbells_of_bar0_can_be_mapped(self):
        reply = self.client().region_info(BAR0)
        room, flags, _, caps, size, offset = reply.words("4I2Q")
        self.assertEqual((room, size), (64, 0x4000))
        self.assertEqual(flags, READABLE | WRITABLE | MAPPABLE | HAS_CAPS)
        # The sparse areas: identifier, version, next capability, number of areas.
        self.assertEqual(reply.words("HHII", caps), (1, 1, 0, 1))
        self.assertEqual(reply.words("2Q", caps + 16), (0x1000, 0x1000))
        self.assertGreaterEqual(os.fstat(reply.fds[0]).st_size, offset + 0x2000)
        with self.assertRaises(OSError):
            os.ftruncate(reply.fds[0], 0)
        os.close(reply.fds[0])

    def test_region_info_that_does_not_fit_reports_its_size(self):
        reply = self.client().region_info(BAR0, 32)
        room, flags, _, caps, _, _ = reply.words("4I2Q")
        self.assertEqual((len(reply.data), room, caps, reply.fds), (32, 64, 0, []))
        # QEMU refuses capabilities without an offset.
        self.assertEqual(flags & (HAS_CAPS | MAPPABLE), MAPPABLE)

    def test_other_regions_are_empty(self):
        c = self.client()
        for i in range(1, REGIONS):
            _, flags, index, _, size, _ = c.region_info(i).words("4I2Q")
            self.assertEqual((index, size), (i, 4096 if i in (CONFIG, MSIX_BAR) else 0))
            self.assertFalse(flags & MAPPABLE)
        self.assertEqual(c.region_info(REGIONS).error, errno.EINVAL)

    def test_a_client_that_accepts_no_descriptors_gets_none(self):
        c = self.client(False)
        self.assertEqual(c.version(0, 1, '{"capabilities":{"max_msg_fds":0}}').error, 0)
        reply = c.region_info(BAR0)
        self.assertFalse(reply.words("2I")[1] & MAPPABLE)
        self.assertEqual(reply.fds, [])

    def test_configuration_space_is_that_of_an_nvme_controller(self):
        c = self.client()

        def config32(at):
            return c.read(CONFIG, at, 4).words("I")[0]
        self.assertEqual(config32(8) >> 8, 0x010802)
        space = c.read(CONFIG, 0, 4096).data
        self.assertEqual(space[0xe], 0, "type 0 header")
        ids, at = [], space[0x34]
        while at and len(ids) < 9:
            ids.append(space[at])
            at = space[at + 1]
        self.assertEqual(ids, [1, 0x10, 0x11], "power management, PCI Express, MSI-X")
        # The bits of the BAR that stay zero encode its size.
        self.assertEqual(c.write(CONFIG, 0x10, bytes([0xff] * 8)), 0)
        self.assertEqual((config32(0x10), config32(0x14)), (0xffffc004, 0xffffffff))
        # Read-only fields keep their value.
        self.assertEqual(c.write(CONFIG, 0, bytes([0xff] * 8)), 0)
        self.assertEqual((config32(0), config32(4) & 0xffff), (0x00101b36, 0x0546))
        self.assertEqual(c.write(CONFIG, 4094, bytes(4)), errno.EINVAL)
        self.assertEqual(c.read(CONFIG, ALL_ONES, 2).error, errno.EINVAL)

    def test_registers_accept_four_and_eight_bytes(self):
        c = self.client()
        cap = c.read64(CAP)
        self.assertEqual((cap & 0xffff, cap >> 16 & 1), (255, 1), "MQES, CQR")
        self.assertEqual((c.read32(CAP + 4), c.read32(VS)), (cap >> 32, 0x20000))
        for offset, count in (*((0, n) for n in (0, 1, 2, 3, 5, 12, 16, 65536)), (2, 4),
                              (0x4000 - 2, 4), (ALL_ONES - 3, 4)):
            self.assertEqual(c.read(BAR0, offset, count).error, errno.EINVAL, (offset, count))
        # Doorbells have four bytes, and behind them there is nothing.
        for offset, count in (0x14, 3), (0x1000, 8), (0x3ffc, 4):
            self.assertEqual(c.write(BAR0, offset, bytes([1] * count)), errno.EINVAL, offset)
        self.assertEqual(c.read32(0x3ffc), 0)
        for region in 1, 5, 6, 8, 9, 0xffffffff:
            self.assertEqual(c.read(region, 0, 4).error, errno.EINVAL)

    def test_other_interrupts_are_accepted_and_never_raised(self):
        c = self.client()

        def info(index):
            return c.call(GET_IRQ_INFO, struct.pack("<4I", 16, 0, index, 0))

        def set_irqs(flags, start, count, fds=()):
            return c.call(SET_IRQS, struct.pack("<5I", 20, flags, INTX, start, count), fds).error
        _, flags, _, count = info(INTX).words("4I")
        self.assertEqual((flags & 1, count), (1, 1), "by eventfd")
        self.assertEqual(info(MSIX).words("4I")[3], 113)
        self.assertEqual(info(IRQS).error, errno.EINVAL)
        before = self.server.holdings()
        event = os.eventfd(0)
        trigger = DATA_EVENTFD | ACTION_TRIGGER
        self.assertEqual(set_irqs(trigger, 0, 1, [event]), 0)
        self.assertEqual(set_irqs(trigger, 0, 1), 0)
        self.assertEqual(set_irqs(trigger, 0, 1, [event, event]), errno.EINVAL)
        self.assertEqual(set_irqs(trigger, 0xffffffff, 1, [event]), errno.EINVAL)
        self.assertEqual(set_irqs(DATA_NONE | ACTION_TRIGGER, 0, 0), 0)
        self.assertEqual(set_irqs(DATA_NONE | DATA_BOOL | ACTION_MASK, 0, 0), errno.EINVAL)
        self.assertEqual(set_irqs(DATA_BOOL | ACTION_MASK, 0, 1), errno.EINVAL, "no data")
        os.close(event)
        self.assertEqual(self.server.holdings(), before)

    def test_unsupported_requests_are_refused(self):
        """Those of other clients (QEMU) for features that this device lacks."""
        c = self.client()
        for command in 0, 6, 11, 12, 14, 15, 16, 17, 18, 999, 65535:
            self.assertEqual(c.call(command, bytes(64)).error, errno.ENOTSUP, command)
        self.assertEqual(c.call(RESET).error, 0)
        self.assertEqual(c.call(RESET, bytes(1)).error, errno.EINVAL)

    def test_no_reply_suppresses_the_reply(self):
        c, payload = self.client(), access(BAR0, AQA, 4) + u32(0x000f000f)
        c.send(message(REGION_WRITE, payload, 1, NO_REPLY))
        c.send(message(999, payload, 2, NO_REPLY))
        self.assertEqual(c.read32(AQA), 0x000f000f, "the next reply is that of the read")

    def test_pipelined_commands_are_answered_in_order(self):
        c = self.client()
        c.send(b"".join(message(REGION_READ, access(BAR0, VS, 4), i) for i in range(50)))
        self.assertEqual([c.receive().number for _ in range(50)], list(range(50)))

    def test_a_second_client_is_refused(self):
        first, second = self.client(), self.client(False)
        self.assertIsNone(second.receive().error)
        self.assertEqual(first.read32(VS), 0x20000)

    def test_ends_properly_with_a_client_connected(self):
        Driver(self.client()).start()
        self.assertEqual(self.server.stop(signal.SIGINT), 0)
        self.assertFalse(os.path.exists(self.server.path), "the socket is gone")

    def test_only_the_owner_may_use_the_socket(self):
        self.assertEqual(os.stat(self.server.path).st_mode & 0o777, 0o700)

    def test_replaces_a_socket_without_a_listener(self):
        self.assertIn("Address already in use", output(SIM, self.server.path, status=1))
        self.server.stop(signal.SIGKILL)
        self.assertTrue(os.path.exists(self.server.path))
        with subprocess.Popen([SIM, "--strict", self.server.path], stdout=subprocess.PIPE,
                              text=True) as again:
            self.assertEqual(again.stdout.readline(), f"listening on {self.server.path}\n")
            again.terminate()


class CommandLine(unittest.TestCase):
    def test_reports_its_errors(self):
        for options, words, status in (
                ("", "SOCKET", 2), ("--lba=100 s", "--lba", 2), ("--mdts=5000 s", "--mdts", 2),
                ("--size=12X s", "--size", 2), ("--max-depth=99999 s", "--max-depth", 2),
                ("--second-client=eat s", "--second-client", 2),
                ("--fault=explode s", "explode", 2),
                ("--fault=lose,op=nothing s", "op=nothing", 2),
                ("--image=/nonexistent/image s",
                 "/nonexistent/image: cannot be opened: No such file", 1),
                ("/nonexistent/folder/socket", "cannot listen there: No such file", 1),
                ("/etc/passwd", "/etc/passwd: cannot listen there: File exists", 1),
                ("x" * 200, "too long", 1)):
            self.assertIn(words, output(SIM, *options.split(), status=status), options)


class Drive(unittest.TestCase):
    """A controller: I/O, faults, resets, successive clients."""

    def serve(self, *options):
        self.server = self.enterContext(Server(*options))
        return self.server

    def client(self):
        return self.enterContext(Client(self.server.path))

    def exercise(self, c, mapped=True):
        """Enables a controller, writes, reads back, disables it."""
        d = Driver(c, mapped).start()
        self.assertEqual((d.identify(), d.data(11)[4:]), (0, b"SIM0001"))
        d.create_io_queue()
        d.fill(0x5a)
        for lba in range(40):
            self.assertEqual(d.rw(WRITE, lba), 0)
        d.fill(0)
        self.assertEqual((d.rw(READ, 39), d.data()[-1]), (0, 0x5a))
        self.assertEqual(d.disable(), 0)
        self.assertEqual(c.unmap(Driver.IOVA, Driver.BYTES), 0)

    def test_works_through_mapped_doorbells(self):
        self.serve("--strict")
        self.exercise(self.client())

    def test_works_with_messages_only(self):
        self.serve("--strict", "--no-mmap")
        c = self.client()
        reply = c.region_info(BAR0)
        self.assertEqual((reply.words("2I")[1] & MAPPABLE, reply.fds), (0, []))
        self.exercise(c, False)

    def test_options_reach_the_controller(self):
        self.serve("--strict", "--threads=2", "--latency-us=200", "--max-depth=16", "--no-sgl",
                   "--namespaces=3", "--size=1M", "--mdts=8K", "--ready-ms=20", "--reorder",
                   "--seed=3", "--no-volatile-cache", "--io-queues=2")
        c = self.client()
        self.assertEqual(c.read64(CAP) & 0xffff, 15, "MQES")
        self.exercise(c)
        d = Driver(c).start()
        self.assertEqual(d.identify(), 0)
        found = d.data()
        # MDTS of two pages, namespaces, no volatile cache, no SGLs
        self.assertEqual([found[at] for at in (77, 516, 525, 536)], [1, 3, 0, 0])
        d.disable()

    def test_image_keeps_written_data(self):
        with tempfile.NamedTemporaryFile() as image:
            image.truncate(1 << 20)
            with Server("--strict", "--image=" + image.name, "--lba=4096") as server, \
                 Client(server.path) as c:
                self.exercise(c)
            data = image.read()
        self.assertEqual(len(data), 1 << 20)
        self.assertTrue(data.startswith(b"\x5a" * 40 * 4096))

    def test_without_bus_mastering_the_controller_fails(self):
        server = self.serve("--strict")
        with Client(server.path) as c:
            d = Driver(c)
            self.assertEqual(d.enable(), FATAL)
            self.assertEqual(d.disable(), 0, "CC.EN to 0 heals")
            d.start()
            self.assertEqual(d.identify(), 0)
            self.assertEqual(c.bus_master(False), 0)
            self.assertTrue(c.read32(CSTS) & FATAL)
            self.assertTrue(c.read32(CC) & ENABLE)
            self.assertEqual(d.disable(), 0)
        self.assertEqual(server.stop(), 3)
        self.assertIn("CC.EN set while bus mastering is off", server.err())

    def test_strict_reports_the_recorded_mistakes(self):
        server = self.serve("--strict")
        with Client(server.path) as c:
            d = Driver(c).start()
            d.doorbell(6, 1)
            for _ in range(10):  # an idle thread sweeps all doorbells
                self.assertEqual(d.identify(), 0)
                time.sleep(0.02)
            d.disable()
        self.assertEqual(server.stop(), 3)
        self.assertIn("DB_INVALID_QUEUE", server.err())

    def test_device_reset_disables_and_keeps_the_map(self):
        self.serve("--strict", "--fault=hang,op=identify,times=1")
        c = self.client()
        d = Driver(c).start()
        self.assertIsNone(d.identify(0.05))
        self.assertEqual(c.call(RESET).error, 0)
        self.assertEqual((c.read32(CC), c.read32(CSTS)), (0, 0))
        self.assertEqual((d.enable(), d.identify()), (READY, 0))
        d.disable()

    def test_device_reset_recovers_a_stuck_controller(self):
        server = self.serve("--stuck")
        c = self.client()
        d = Driver(c)
        c.bus_master()
        c.write32(CC, ENABLE)
        self.assertEqual(c.read32(CSTS), 0)
        c.write32(CC, 0)
        self.assertEqual(c.call(RESET).error, 0)
        self.assertEqual(d.enable(), READY)
        # The same by a signal.
        server.process.send_signal(signal.SIGUSR1)
        c.read32(VS)  # two messages: the signal is handled between them at the latest
        c.write32(CC, 0)
        self.assertEqual(c.read32(CSTS), READY)

    def test_a_missing_reset_is_reported_and_refused(self):
        self.serve("--no-reset")
        c = self.client()
        self.assertFalse(c.call(GET_INFO, struct.pack("<4I", 16, 0, 0, 0)).words("2I")[1] & 1)
        self.assertEqual(c.call(RESET).error, errno.ENOTSUP)
        Driver(c).start()
        control = 0x8000  # Initiate Function Level Reset
        self.assertEqual(c.write(CONFIG, 0x58, struct.pack("<H", control)), 0)
        self.assertEqual(c.read32(CSTS), READY)

    def test_after_removal_it_reads_all_ones_until_the_next_client(self):
        server = self.serve("--strict")
        with Client(server.path) as c:
            d = Driver(c).start()
            server.process.send_signal(signal.SIGUSR2)
            c.read32(VS)
            self.assertEqual((c.read32(CSTS), c.read64(CAP)), (0xffffffff, ALL_ONES))
            d.doorbell(0, 1)
            self.assertEqual(c.call(RESET).error, errno.EIO)
            self.assertEqual(c.unmap(Driver.IOVA, Driver.BYTES), 0)
        # A reset request to a removed drive is refused and is no mistake of the protocol.
        self.exercise(self.client())

    def test_faults_are_injected(self):
        self.serve("--strict", "--fault=status,op=read,lba=7+2,status=0x281,times=1",
                   "--fault=lose,op=write,lba=9,times=1")
        d = Driver(self.client()).start()
        d.create_io_queue()
        for opcode, lba, seconds, status in ((READ, 6, 10, 0), (READ, 8, 10, UNRECOVERED_READ),
                                             (READ, 8, 10, 0), (WRITE, 9, 0.05, None),
                                             (WRITE, 9, 10, 0)):
            self.assertEqual(d.rw(opcode, lba, seconds), status)
        d.disable()

    def test_a_killed_client_leaves_nothing(self):
        """With commands in flight. The next one gets a controller in the state after power-on."""
        server = self.serve("--strict", "--latency-us=20000")
        with Client(server.path):
            before = server.holdings()
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                d = Driver(Client(server.path)).start()
                d.create_io_queue()
                d.rw(READ, 0, 0)  # in flight
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        self.assertEqual(os.read(ready, 1), b"x")
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        c = self.client()
        self.assertEqual([c.read32(at) for at in (CC, AQA, DOORBELLS)], [0, 0, 0])
        self.assertEqual(server.holdings(), before)
        self.exercise(c)

    def test_old_doorbells_have_no_effect(self):
        """A former client can store to doorbells that it has mapped: they belong to no queue."""
        server = self.serve("--strict")
        with Client(server.path) as first:
            d = Driver(first)
        c = self.client()
        for i in range(32):
            d.doorbell(i, 5)
        self.exercise(c)
        self.assertEqual(c.read32(DOORBELLS + 8), 0)

    def test_a_second_client_waits_for_its_turn(self):
        server = self.serve("--second-client=wait")
        with Client(server.path) as first:
            second = self.enterContext(Client(server.path, False))
            second.send(message(VERSION, struct.pack("<HH", 0, 1)))
            second.socket.settimeout(0.05)
            self.assertIsNone(second.receive().error, "not answered")
            self.assertEqual(first.read32(VS), 0x20000)
        second.socket.settimeout(10)
        self.assertEqual(second.receive().error, 0)
        self.assertEqual(second.read32(VS), 0x20000)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
