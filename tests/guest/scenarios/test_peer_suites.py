# SPDX-License-Identifier: BSD-2-Clause
"""Runs suites of the mount with a device's memory in place of GPU memory (tier 2). They check each
byte, INFO and STATS. Those of their mounts that stage run with p2p=off."""
import pytest

from machine import Controller, Machine, Namespace, Peer

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "1G")]),
                   Controller("large", [Namespace("large.img", "1G", lba=4096)])],
                  peers=[Peer("gpu0", 256), Peer("gpu1", 256)])
# The third suite is the part of the direct path's in which no drive has to fail.
SUITES = ["e2e/e2e_test", "e2e/buffer_test",
          "client/client_direct_test --gtest_filter='Mounts/Direct.*/defaults'"]


@pytest.fixture(scope="module", name="drive")
def bound(guest):
    guest.run("""
        for drive in drive large; do gpunvme bind -f "$(bdf_of $drive)" >/dev/null; done
        for gpu in gpu0 gpu1; do echo 1 >"/sys/bus/pci/devices/$(bdf_of $gpu)/enable"; done
    """)
    return guest


def suite(guest, name, gpu, timeout, drive="drive"):
    output = guest.run(f"""
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE="vfio:$(bdf_of {drive})"
        export GPUNVME_CPU_MEMORY=$(bdf_of {gpu})
        "$BUILD"/tests/{name}
    """, timeout)
    assert "[  PASSED  ]" in output and "[  FAILED  ]" not in output, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_suite_in_the_memory_of_a_device(drive, name):
    suite(drive, name, "gpu0", 900)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Direct", "Staged", "Readv"])
def test_tables_in_the_memory_of_a_device(drive, way):
    """The suite keeps a mount for each way, but a drive serves only one. It counts commands of
    drives with blocks of 4 KiB."""
    suite(drive, f"client/cufile/client_table_test --gtest_filter='*/{way}'", "gpu0", 600, "large")


@pytest.mark.slow
def test_end_to_end_in_the_memory_of_another_device(drive):
    suite(drive, "e2e/e2e_test", "gpu1", 300)
