#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The examples on a mount: those in C with the CPU executor, those in CUDA where there is a GPU.

usage: examples_test.py GPUNVME MKFS FSCK DAEMON SIM READ READV WRITE DIRECT
                        [STREAM KERNEL ARRAY REPLICATE]
"""

import ctypes
import os
import random
import re
import sys
import tempfile
import unittest

from rig import ARGUMENTS, mounted, needs_mounts, output

READ, READV, WRITE, DIRECT, *CUDA = ARGUMENTS
BLOCK = 4096


def gpus():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(
        ctypes.byref(count)) == 0 else 0


class Examples(unittest.TestCase):
    def start(self, options, size):
        self.mount = self.enterContext(mounted(options, "256M"))
        self.data = os.path.join(self.mount, "data")
        self.content = random.Random(17).randbytes(size)
        with open(self.data, "wb") as f:
            f.write(self.content)

    def expect_same(self, name, content):
        with open(name, "rb") as f:
            self.assertTrue(f.read() == content, name)


@needs_mounts
class InC(Examples):
    BYTES = (17 << 20) + 1234  # more than one chunk of read.c, not whole blocks

    def setUp(self):
        self.start("executor=cpu,direct=root", self.BYTES)
        self.copy = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "copy")

    def expect_commands(self, text, begin, least):
        self.assertTrue(text.startswith(begin), text)
        self.assertGreaterEqual(int(re.search(r", (\d+) NVMe commands", text)[1]), least)

    def test_read_copies_the_file_by_commands_of_the_executor(self):
        self.expect_commands(output(READ, self.data, self.copy), f"{self.BYTES} bytes, ",
                             17)  # of 1 MiB each
        self.expect_same(self.copy, self.content)

    def test_readv_reads_what_pread_reads(self):
        self.expect_commands(output(READV, self.data, "3000", "512"), "3000 pieces, ", 3000)

    def test_write_makes_the_same_file(self):
        written = os.path.join(self.mount, "written")
        self.assertEqual(output(WRITE, self.data, written), f"{self.BYTES} bytes\n")
        self.expect_same(written, self.content)

    def test_direct_reads_every_block(self):
        self.assertTrue(output(DIRECT, self.data).startswith(
            f"{(self.BYTES + BLOCK - 1) // BLOCK} reads, "))

    def test_each_reports_its_errors(self):
        self.assertEqual(output(READ, status=2), "usage: example_read FILE COPY\n")
        self.assertEqual(output(READV, self.data, "0", "512", status=2),
                         "usage: example_readv FILE COUNT SIZE\n")
        missing = os.path.join(self.mount, "missing")
        self.assertEqual(output(DIRECT, missing, status=1),
                         f"example_direct: {missing}: No such file or directory\n")
        # Outside a mount there are no leases, and the library gives the reason.
        self.assertIn("not on a gpunvmefs mount", output(DIRECT, "/proc/self/exe", status=1))
        output(READ, READ, self.copy)  # any file can be read
        with open(READ, "rb") as f:
            self.expect_same(self.copy, f.read())


@needs_mounts
@unittest.skipUnless(CUDA and gpus(), "no CUDA device")
class InCuda(Examples):
    BYTES = 40 << 20  # more than both chunks of stream.cu, whole blocks

    def setUp(self):
        self.start("gpu=require,direct=root", self.BYTES)
        self.stream, self.kernel, self.array, self.replicate = CUDA

    def sum(self):
        """What the programs print that sum the words of the file."""
        words = sum(memoryview(self.content).cast("Q")) % (1 << 64)
        return f"{self.BYTES} bytes, sum of words {words:x}\n"

    def test_stream_sums_the_words(self):
        self.assertEqual(output(self.stream, self.data), self.sum())

    def test_replicate_loads_into_several_gpus(self):
        other = "1" if gpus() > 1 else "0"  # one GPU has the file twice
        self.assertEqual(output(self.replicate, self.data, "0", other),
                         f"GPU 0: {self.sum()}GPU {other}: {self.sum()}")

    def test_array_adds_vectors(self):
        self.assertIn(f"{self.BYTES // 8} sums, equal to those of the host\n",
                      output(self.array, self.data))

    def test_kernel_counts_the_zeros(self):
        zeros = 0
        for warp in range(32):  # the places that kernel.cu reads
            place = warp + 1
            for _ in range(256):
                place = (place * 6364136223846793005 + 1442695040888963407) % (1 << 64)
                at = (place >> 16) % (self.BYTES // BLOCK) * BLOCK
                zeros += self.content.count(0, at, at + BLOCK)
        self.assertEqual(output(self.kernel, self.data),
                         f"{32 * 256 * BLOCK} bytes, {zeros} of them zero\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
