# SPDX-License-Identifier: BSD-2-Clause
"""pytest's side of the guest tests: options, the guest of each file, and the table at the end."""
import os
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from guest import Guest  # noqa: E402
from kernel import Kernel  # noqa: E402

ROOMY = 4 << 30


def pytest_addoption(parser):
    parser.addoption("--kernel", help="folder of an unpacked kernel package")
    parser.addoption("--build-dir", help="finished build of the project")
    parser.addoption("--kvm", action="store_true", help="not emulated")
    parser.addoption("--system", help="root of a system with QEMU 10.1 (scripts/sim-judge.sh)")
    parser.addoption("--blktests", help="folder of blktests, built (scripts/sim-judge.sh)")
    parser.addoption("--keep", action="store_true", help="keep images and logs of failed files")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not part of what every change must pass")
    config.addinivalue_line("markers", "smoke: the few that show whether anything works")
    config.addinivalue_line("markers", "complaints(regex): what QEMU is expected to complain about")


def pytest_ignore_collect(collection_path, config):
    """The judges of gpunvme-sim need a system of their own, which scripts/sim-judge.sh makes."""
    return True if "judges" in collection_path.parts and not config.getoption("--system") else None


class Lab:
    """Makes guests of one test file; they share a folder, and with it images, one after another."""

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.build = os.path.abspath(config.getoption("--build-dir"))
        self.kernel = Kernel(config.getoption("--kernel"), os.path.join(self.build, "guest"))
        self.guest = None

    def boot(self, machine):
        assert self.guest is None, "one guest at a time"
        self.guest = Guest(self.kernel, machine, self.folder, self.build,
                           self.config.getoption("--kvm"))
        self.guest.boot()
        return self.guest

    def power_off(self):
        guest, self.guest = self.guest, None
        if guest is not None:
            try:
                guest.power_off()
            finally:
                guest.kill()
            assert guest.complaints() == []

    def kill(self):
        """Power cut."""
        guest, self.guest = self.guest, None
        if guest is not None:
            guest.kill()

    def path(self, name):
        return os.path.join(self.folder, name)

    def share(self, path):
        """Shows the running guest a file or folder, in /run/guest."""
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(self.guest.share, os.path.basename(path)))
        else:
            shutil.copy(path, self.guest.share)


@pytest.fixture(scope="module")
def lab(request):
    roomy = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > ROOMY
    folder = tempfile.mkdtemp(prefix="gpunvme-guest-", dir="/dev/shm" if roomy else None)
    os.chmod(folder, 0o755)
    made = Lab(request.config, folder)
    failed_before = request.session.testsfailed
    try:
        yield made
    finally:
        made.kill()
        if request.config.getoption("--keep") and request.session.testsfailed > failed_before:
            print(f"\nimages and logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def guest(lab, request):
    """The guest with the MACHINE of the test's file; all tests there share it."""
    yield lab.boot(request.module.MACHINE)
    lab.power_off()


@pytest.fixture(autouse=True)
def judged(request):
    """After each test: QEMU and the guest's kernel have nothing to say against the driver."""
    yield
    if "lab" not in request.fixturenames:
        return
    lab = request.getfixturevalue("lab")
    running, expected = lab.guest, request.node.get_closest_marker("complaints")
    if "guest" not in request.fixturenames:
        lab.kill()  # its own, still there because it failed
    if running is not None:
        assert running.complaints(expected.args[0] if expected else None) == []


def pytest_terminal_summary(terminalreporter):
    """One line a test function: how its cases went, and how long they took with boots."""
    seconds, cases = {}, {}
    for reports in terminalreporter.stats.values():
        for report in [r for r in reports if hasattr(r, "when")]:
            name, _, case = report.nodeid.partition("[")
            name = name.rpartition("/")[2]
            seconds[name] = seconds.get(name, 0) + report.duration
            cases.setdefault(name, {}).setdefault(case, report.outcome)
            if report.outcome != "passed":
                cases[name][case] = report.outcome
    terminalreporter.section("guest tests")
    for name in sorted(cases):
        outcomes = list(cases[name].values())
        shown = ", ".join(f"{outcomes.count(o)} {o}" for o in sorted(set(outcomes)))
        terminalreporter.write_line(f"{seconds[name]:6.1f} s  {name[5:]:70}  {shown}")
