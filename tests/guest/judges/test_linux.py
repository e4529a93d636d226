# SPDX-License-Identifier: BSD-2-Clause
"""Linux's nvme driver, nvme-cli and fio on gpunvme-sim, which QEMU (vfio-user-pci) gives to the
guest. The simulator counts each mistake that it sees in them, and must have seen none: a mistake
of it or of them."""
import pytest

from sim_guest import SimMachine, strict_sim

VARIANTS = {"default": [], "odd": ["--lba=512", "--mdts=8K", "--reorder", "--latency-us=100",
                                   "--no-mmap", "--threads=2", "--io-queues=2", "--max-depth=16",
                                   "--pci-id=1b96:0001"]}
# The functions of the guest's scripts: DISK and CTRL, and what fio is always told.
HEAD = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
DISK=/dev/nvme0n1 CTRL=/dev/nvme0
FIO="fio --name=judge --filename=$DISK --ioengine=io_uring --direct=1 --verify=crc32c \\
    --verify_fatal=1 --verify_state_save=0 --size=48M --bsrange=4k-128k --bs_unaligned=0 \\
    --iodepth=16 --rw=randwrite"
"""


@pytest.fixture(scope="module", params=VARIANTS)
def sim(lab, request):
    """The simulator's socket; after the guest it must have seen no mistake."""
    with strict_sim(lab, "--size=64M", *VARIANTS[request.param]) as sock:
        yield sock


@pytest.fixture(scope="module")
def guest(lab, sim, request):
    yield lab.boot(SimMachine(request.config.getoption("--system"), sim))
    lab.power_off()


def run(guest, script, timeout=120):
    return guest.run(HEAD + script, timeout)


def test_the_driver_uses_interrupts(guest):
    output = run(guest, """
        dmesg | grep 'nvme nvme0'
        dd if=$DISK of=/dev/null bs=1M count=16 iflag=direct status=none
        grep nvme0q1 /proc/interrupts
        ! dmesg | grep -iE 'nvme.*(timeout|fail|error|unable|invalid)'
    """)
    assert "queues" in output
    vector = next(line for line in output.splitlines() if line.endswith("nvme0q1"))
    assert "MSI" in vector and int(vector.split()[1]) > 0, output


def test_nvme_cli_shows_the_controller(guest):
    output = run(guest, """
        nvme id-ctrl $CTRL
        for what in smart-log error-log fw-log effects-log supported-log-pages \\
            changed-ns-list-log fid-support-effects-log nvm-id-ctrl id-iocs list-ns; do
            echo "== $what"; nvme $what $CTRL >/tmp/shown; cat /tmp/shown
        done
        for what in id-ns nvm-id-ns cmdset-ind-id-ns ns-descs; do
            echo "== $what"; nvme $what $DISK
        done
    """)
    for line in ("gpunvmefs simulated NVMe controller", "wctemp    : 343", "37 °C (310 K)",
                 "available_spare				: 100%", "nguid   : 6770756e766d6566"):
        assert line in output, output


def test_mandatory_features_have_values(guest):
    output = run(guest, """
        for fid in 1 2 4 5 6 7 8 9 10 11; do nvme get-feature -f $fid $CTRL -n 1; done
        nvme set-feature -f 4 -V 320 $CTRL && nvme get-feature -f 4 $CTRL
    """)
    assert output.count("urrent value") == 11 and "0x00000140" in output, output


def test_fio_reads_what_it_wrote(guest):
    run(guest, "$FIO", 300)


def test_discarded_and_zeroed_blocks_read_as_zeros(guest):
    run(guest, """
        head -c 4M /dev/zero | tr '\\0' x | dd of=$DISK bs=1M count=4 iflag=fullblock oflag=direct status=none
        blkdiscard -o 1M -l 1M $DISK
        blkdiscard -z -o 2M -l 1M $DISK
        echo 3 >/proc/sys/vm/drop_caches
        for mib in 0 1 2 3; do
            dd if=$DISK bs=1M skip=$mib count=1 iflag=direct status=none >/tmp/block
            if [ $mib = 1 ] || [ $mib = 2 ]; then expected='\\0'; else expected=x; fi
            [ "$(tr -d "$expected" </tmp/block | wc -c)" = 0 ]
        done
    """)


@pytest.mark.parametrize("how", ["nvme reset $CTRL", "echo 1 >/sys/class/nvme/nvme0/device/reset",
                                 "echo 1 >/sys/class/nvme/nvme0/rescan_controller"])
def test_fio_survives(guest, how):
    run(guest, f"""
        $FIO --loops=3 >/tmp/fio.out 2>&1 & job=$!
        for _ in 1 2 3; do sleep 1; {how}; done
        wait $job || {{ cat /tmp/fio.out; exit 1; }}
    """, 400)


def test_the_driver_can_be_removed_and_come_back(guest):
    run(guest, """
        device=$(readlink -f /sys/class/nvme/nvme0/device)
        for _ in 1 2 3; do
            echo "${device##*/}" >/sys/bus/pci/drivers/nvme/unbind
            echo "${device##*/}" >/sys/bus/pci/drivers/nvme/bind
            for _ in $(seq 100); do [ -b $DISK ] && break; sleep 0.1; done
            dd if=$DISK of=/dev/null bs=1M count=4 iflag=direct status=none
        done
    """)
