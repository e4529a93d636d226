# SPDX-License-Identifier: BSD-2-Clause
"""The tests of blktests (groups block and nvme) that take one device, with Linux's nvme driver on
gpunvme-sim. A test that does not apply to the device or to the guest is skipped with blktests'
reason."""
import os
import re

import pytest

from sim_guest import SimMachine, strict_sim

GROUPS = ("block", "nvme")
TIMEOUT = 15  # seconds that a test without a number of rounds of its own writes and reads
# What block/011 does with setpci while the driver has I/O in flight.
ON_PURPOSE = "client: bus mastering switched off while CC.EN is 1"
# Passthrough targets are connected by loop. The guest's packages are unpacked and not configured,
# so awk has no link.
CONFIG = f"""
TEST_DEVS=(/dev/nvme0n1)
DEVICE_ONLY=1
TIMEOUT={TIMEOUT}
nvme_trtype=loop
"""


def names(folder):
    """Returns GROUP/NUMBER of each test that takes one device."""
    found = []
    for group in GROUPS if folder else ():
        tests = os.path.join(folder, "tests", group)
        for number in sorted(n for n in os.listdir(tests) if re.fullmatch("[0-9]{3}", n)):
            with open(os.path.join(tests, number), encoding="utf-8") as file:
                if "\ntest_device()" in file.read():
                    found.append(f"{group}/{number}")
    return found


def pytest_generate_tests(metafunc):
    metafunc.parametrize("name", names(metafunc.config.getoption("--blktests")))


@pytest.fixture(scope="module")
def guest(lab, request):
    with strict_sim(lab, "--size=1100M", ignored=ON_PURPOSE) as sock:
        booted = lab.boot(SimMachine(request.config.getoption("--system"), sock))
        folder = os.path.abspath(request.config.getoption("--blktests"))
        lab.share(folder)
        booted.run(f"""
            mkdir /tmp/bin && ln -s /usr/bin/gawk /tmp/bin/awk
            printf '#!/bin/sh\\nexec "$@"\\n' >/tmp/bin/sudo && chmod +x /tmp/bin/sudo
            mount -t debugfs debugfs /sys/kernel/debug
            modprobe configfs && mount -t configfs configfs /sys/kernel/config
            cp -r /run/guest/{os.path.basename(folder)} /tmp/blktests
            # Debian's kernel versions have a "+", behind which blktests expects only digits.
            sed -i '/uname -r/s,/-\\.,/[-+].,' /tmp/blktests/common/rc
            cat >/tmp/blktests/config <<'END'
{CONFIG}END
        """)
        yield booted
        lab.power_off()


def test_blktests(guest, name):
    output = guest.run(f"""
        export PATH=/tmp/bin:/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_IGNORE_CHROOT=1
        mkdir -p /dev/char # udev's links
        ln -sf /dev/nvme0 "/dev/char/$(cat /sys/class/nvme/nvme0/dev)"
        cd /tmp/blktests && ./check {name} || true
        for file in results/*/{name}.*; do [ ! -e "$file" ] || tail -n 40 "$file"; done
    """, 900)
    verdict = re.search(r"\[(passed|failed|not run)\]\n((?: {4}.*\n)*)", output)
    assert verdict, output
    if verdict[1] == "not run":
        pytest.skip("; ".join(line.strip() for line in verdict[2].splitlines()))
    assert verdict[1] == "passed", output
