#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The tools on a controller of another process: their output agrees with its server's options.

usage: served_test.py GPUNVME MKFS FSCK DAEMON SIM FAKE_CUDA HAS_CUDA
FAKE_CUDA is the folder of a driver in place of CUDA's; HAS_CUDA is 1 in a build with CUDA.
"""

import json
import os
import struct
import sys
import tempfile
import unittest

from rig import ARGUMENTS, GPUNVME, MKFS, SIM, Server, document, output, run
from vfio_user import Client

FAKE_CUDA, HAS_CUDA = ARGUMENTS


def file_of(content):
    made = tempfile.NamedTemporaryFile(prefix="gpunvme-check-")
    made.write(content)
    made.flush()
    return made


def check(device, *options, status=None, **environment):
    """The lines that a check prints. Its status depends on the machine, too."""
    return output(GPUNVME, "check", *options, device, status=status, **environment)


class Served(unittest.TestCase):
    def test_identify_shows_every_namespace_of_the_server(self):
        with Server("--namespaces=2", "--lba=512", "--size=32M", "--mdts=64K") as server:
            found = document("identify", server.device)
        self.assertEqual(found["through"], "vfio-user")
        self.assertEqual(found["controller"]["max_transfer"], 65536)
        self.assertTrue(found["controller"]["usable"])
        self.assertEqual(len(found["namespaces"]), 2)
        second = found["namespaces"][1]
        self.assertEqual((second["nsid"], second["bytes"], second["lba_size"]), (2, 32 << 20, 512))

    def test_what_the_driver_does_for_a_known_controller_is_told(self):
        with Server("--strict", "--pci-id", "126f:2263") as known, Server() as other:
            self.assertEqual(document("identify", known.device)["quirks"],
                             "no namespace descriptors")
            self.assertEqual(document("identify", other.device)["quirks"], "none")
            self.assertIn("workarounds for this controller: no namespace descriptors",
                          check(known.device))
        output(SIM, "--pci-id", "126f:x", "/none", status=2)

    def test_registers_are_those_of_the_server(self):
        with Server("--max-depth", "64") as server:
            found = document("regs", server.device)
        self.assertEqual((found["cap"]["mqes"], found["vs"]["major"], found["reset"]),
                         (63, 2, False))

    def test_check_looks_into_the_controller(self):
        with Server("--no-volatile-cache", "--max-depth", "32") as server:
            text = check(server.device)
        for line in ("no volatile write cache", "queues of up to 32 entries", "LBAs of 4096 bytes"):
            self.assertIn(line, text)

    def test_check_says_how_many_regions_the_server_keeps(self):
        for options, regions in (("--dma-maps", "64"), 64), ((), 4096):
            with Server(*options) as server:
                self.assertIn(f"{regions} DMA regions at most", check(server.device))

    def test_a_server_of_too_few_regions_is_named_with_the_remedy(self):
        mkfs, check = (MKFS, "-q", "-f"), (GPUNVME, "check", "--data")
        for maps, tool in (("1", mkfs), ("1", check), ("3", mkfs)):
            with Server("--dma-maps", maps) as server:
                self.assertIn(f"{maps} DMA regions do not suffice: raise the limit of the drive's "
                              "server", output(*tool, server.device, status=1))

    def test_a_stuck_controller_is_reset_at_open(self):
        with Server("--strict", "--stuck") as server:
            output(MKFS, "-q", "-f", server.device)
        with Server("--stuck", "--no-reset") as server:
            self.assertIn("start its server again",
                          output(MKFS, "-q", "-f", server.device, status=1))

    def test_a_server_that_does_not_answer_is_named_within_the_deadline(self):
        with Server("--second-client=wait") as server:
            with Client(server.path):
                text = output(MKFS, "-q", "-f", "--deadline=300", server.device, status=1)
            self.assertIn("no answer to VERSION within 300 ms", text)
            self.assertIn("end that client", text)
            output(MKFS, "-q", "-f", "--deadline=60000", server.device)
            output(MKFS, "-q", "-f", "--deadline=0", server.device, status=2)

    def tier(self, device, **environment):
        found = json.loads(check(device, "-o", "json", **environment))["checks"]
        return next(entry["text"] for entry in found if entry["id"] == "tier")

    def test_check_says_at_which_tier_the_server_is_used_and_why(self):
        by_cpu = "tier 1, the CPU executor runs the queues"
        with Server() as server:
            self.assertRegex(self.tier(server.device, CUDA_VISIBLE_DEVICES=""),
                             f"^{by_cpu}.*host memory")
            said = self.tier(server.device, LD_LIBRARY_PATH=FAKE_CUDA)  # maps any doorbells
        self.assertRegex(said, r"^tier 1, the GPU \(.*staged" if HAS_CUDA == "1" else
                         f"^{by_cpu}.*built without CUDA")

    def test_check_finds_that_reads_fail_or_are_refused_if_they_are_long(self):
        for options, said in (
                (("--no-mdts",), "is refused by the controller, although reads of single pages"),
                (("--fault", "status,op=read,status=0x281"),
                 "a read of single pages at byte 0 of the device fails")):
            with Server(*options) as server:
                self.assertIn(said, check(server.device, "--data", status=1))

    def test_check_reads_data_on_request(self):
        words = struct.pack(f"<{1 << 20}Q", *range(1 << 20))
        with Server("--strict", "--no-prp-chains") as server:
            self.assertNotIn("single pages", check(server.device))
            self.assertIn("commands of every length return what", check(server.device, "--data"))
        with file_of(words) as image, Server("--swaps-prps", "-i", image.name) as server:
            self.assertIn("wrong data by commands of the processor",
                          check(server.device, "--data", status=1))
        run("check", "--data", status=2)

    def test_check_writes_on_request_and_puts_back(self):
        content = b"x" * (8 << 20)
        with file_of(content) as image:
            with Server("--strict", "--no-prp-chains", "-i", image.name) as server:
                self.assertIn("commands of every length read and write what",
                              check(server.device, "--data", "--scratch=1M"))
                self.assertIn("no scratch area at byte 9437184",
                              check(server.device, "--data", "--scratch=9M", status=1))
            for swaps in "5,write", "29,write", "5,read":
                with Server("--swaps-prps=" + swaps, "-i", image.name) as server:
                    self.assertIn("wrong data",
                                  check(server.device, "--data", "--scratch=0", status=1), swaps)
            with open(image.name, "rb") as f:
                self.assertEqual(f.read(), content)
        for wrong in (("--data", "--scratch=x"), ("--scratch=0",), ("--data", "--cufile")):
            run("check", *wrong, "/none", status=2)
        for wrong in "0", "3,flush":
            output(SIM, "--swaps-prps=" + wrong, "/none", status=2)

    def test_one_after_the_other(self):
        with Server("--strict") as server:
            for command in "identify", "regs", "check", "identify":
                self.assertNotIn("gpunvme: ", output(GPUNVME, command, server.device, status=None))

    def test_the_deadline_bounds_the_wait_for_a_silent_server(self):
        with Server() as server:
            server.pause()
            for command in "identify", "regs", "check":
                self.assertIn("within 300 ms", output(GPUNVME, command, "--deadline=300",
                                                      server.device, status=1))
            server.go_on()
            run("identify", "-t", "0", server.device, status=2)

    def test_a_namespace_that_cannot_be_used_is_refused_with_the_reason(self):
        for options, said, remedy in ((("--zoned",), "it is zoned", "nvme-create-ns(1)"),
                                      (("--metadata", "8"), "carry metadata", "nvme-format(1)")):
            with self.subTest(options), Server("--strict", *options) as server:
                text = output(GPUNVME, "identify", server.device, status=1)
                self.assertIn("namespace 1 cannot be used: ", text)
                self.assertIn(said, text)
                text = check(server.device, status=1)
                self.assertIn(said, text)
                self.assertIn(remedy, text)
                text = output(MKFS, "-q", "-f", server.device, status=1)
                self.assertIn(said, text)
                self.assertEqual(text.count("\n"), 1, text)

    def test_a_write_protected_namespace_is_refused_by_mkfs(self):
        with Server("--read-only", "--strict") as server:
            self.assertIn("write protected", output(MKFS, "-q", "-f", server.device, status=1))

    def test_a_wrong_server_is_one_line(self):
        for options, said in ((("--no-mmap",), "doorbells"),
                              (("--fault", "fatal,op=identify"), "does not start"),
                              (("--fault", "status,op=identify,status=6"), "Identify")):
            with self.subTest(options), Server(*options) as server:
                self.assertRegex(output(GPUNVME, "identify", server.device, status=1),
                                 rf"\Agpunvme: {server.device}: .*{said}.*\n\Z")

    def test_a_busy_server_ends_in_a_line(self):
        with Server() as server, Client(server.path):
            self.assertEqual(output(GPUNVME, "identify", server.device, status=1).count("\n"), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
