# SPDX-License-Identifier: BSD-2-Clause
"""A running guest: QEMU, the agent in it that runs scripts, QEMU's monitor and its judgements."""
import contextlib
import ctypes
import json
import mmap
import os
import queue
import re
import shlex
import shutil
import socket
import subprocess
import textwrap
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# What a driver's mistakes leave behind: in QEMU's log (its traces of protocol errors, accesses that
# hit nothing), and in the guest's kernel log.
JUDGE = ("-trace", "pci_nvme_err*", "-trace", "pci_nvme_ub*", "-d", "guest_errors")
KERNEL_COMPLAINTS = re.compile(
    r"DMAR: (?!.*(?:Host address width|DRHD base|dmar\d|IOMMU|Intel|No )).*[Ff]ault|BUG:|WARNING:|"
    r"Oops|Kernel panic|blocked for more than|general protection fault|rcu: INFO")
# no_timer_check: without it a busy machine now and then sees the guest panic at boot.
PARAMETERS = ("console=ttyS0 loglevel=5 panic=-1 no_timer_check mitigations=off nokaslr "
              "random.trust_cpu=on cryptomgr.notests tsc=nowatchdog").split()


class GuestError(Exception):
    pass


def tsc_khz():
    """Returns the rate of the host's time stamp counter, which is that of an emulated processor,
    too."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def sample():
        """Returns both clocks, read in the least disturbed of several tries."""
        tries = [(time.monotonic_ns(), rdtsc(), time.monotonic_ns()) for _ in range(20)]
        before, ticks, after = min(tries, key=lambda found: found[2] - found[0])
        return (before + after) / 2, ticks

    start, first = sample()
    time.sleep(0.1)
    end, last = sample()
    return round((last - first) * 1_000_000 / (end - start))


class Failed(GuestError):
    """A script in the guest ended with another status than the scenario asks for."""


class Late(GuestError):
    """Something took longer than it may."""


class MonitorError(GuestError):
    """QEMU refuses a command."""


class Qmp:
    """QEMU's monitor."""

    def __init__(self, sock):
        self.file = sock.makefile("rw", encoding="utf-8")
        self._answer()
        self.execute("qmp_capabilities")

    def _answer(self):
        for line in self.file:
            message = json.loads(line)
            if "event" not in message:
                return message
        raise GuestError("QEMU closed its monitor")

    def execute(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        answer = self._answer()
        if "error" in answer:
            raise MonitorError(f"monitor: {command}: {answer['error']['desc']}")
        return answer["return"]

    def human(self, line):
        """A command of the human monitor; returns its output."""
        return self.execute("human-monitor-command", **{"command-line": line})


def read(path):
    """A file's text; empty while there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Job:
    """A script under way in the guest."""

    def __init__(self, guest, name):
        self.guest, self.name, self.status = guest, name, None

    @property
    def output(self):
        return read(os.path.join(self.guest.share, f"{self.name}.out"))

    def wait(self, timeout):
        """Its exit status; GuestError when it takes longer than `timeout` seconds."""
        end = time.monotonic() + timeout
        while self.status is None:
            self.guest.listen(end, f"job {self.name} has not ended after {timeout} s")
        return self.status

    def until(self, printed, timeout):
        """Waits until `printed`(its output so far) is true; GuestError when it ends before."""
        end = time.monotonic() + timeout
        while not printed(self.output):
            if self.status is not None or time.monotonic() > end:
                raise GuestError(f"job {self.name}, status {self.status}, has printed only\n"
                                 f"{self.output}")
            try:
                self.guest.listen(time.monotonic() + 0.1, "")
            except Late:
                pass


class Guest:
    """`folder` is this run's own: images, logs, and `share`, which the guest sees too. `build` is
    the build whose programs run in the guest."""

    def __init__(self, kernel, machine, folder, build, kvm=False):
        self.folder, self.share = folder, os.path.join(folder, "share")
        self.machine = machine
        self.jobs, self.answers = {}, queue.Queue()
        self.judged = {"judge.log": 0, "kmsg": 0}
        self.filters = 0
        os.makedirs(self.share, exist_ok=True)
        self._make_share(build)
        self._make_images()
        self._start(kernel, kvm)

    # ---- Beginning and end ----

    def _make_share(self, build):
        self._write("paths", [ROOT, build] if self.machine.root == "/" else [])
        self._write("addresses", [f"{name} {address}"
                                  for name, address in self.machine.addresses().items()])
        self._write("env", [f"BUILD={shlex.quote(build)}", f"SOURCE={shlex.quote(ROOT)}"])
        shutil.copy(os.path.join(HERE, "guest_lib.sh"), self.share)

    def _write(self, name, lines):
        with open(os.path.join(self.share, name), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def _make_images(self):
        for controller in self.machine.controllers:
            for namespace in controller.namespaces:
                path = os.path.join(self.folder, namespace.image)
                if not os.path.exists(path):
                    subprocess.run(["qemu-img", "create", "-q", "-f", namespace.format,
                                    *namespace.image_options(), path, namespace.size],
                                   check=True, timeout=60)

    def _start(self, kernel, kvm):
        monitor, monitor_qemu = socket.socketpair()
        agent, agent_qemu = socket.socketpair()
        argv = self._arguments(kernel, kvm, monitor_qemu.fileno(), agent_qemu.fileno())
        with open(os.path.join(self.folder, "qemu.log"), "wb") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(monitor_qemu.fileno(), agent_qemu.fileno()))
        monitor_qemu.close()
        agent_qemu.close()
        monitor.settimeout(60)
        self.agent = agent.makefile("rw", encoding="utf-8", errors="replace")
        threading.Thread(target=self._read_agent, daemon=True).start()
        try:
            self.monitor = Qmp(monitor)
        except (OSError, GuestError) as error:
            self.kill()
            raise GuestError(f"QEMU does not start: {error}\n{self.log('qemu.log')}") from error

    def _arguments(self, kernel, kvm, monitor_fd, agent_fd):
        accel = "kvm" if kvm else "tcg,thread=multi"
        nine = "security_model=none,multidevs=remap"
        parameters = [*PARAMETERS, *self.machine.kernel_parameters()]
        if not kvm:
            # A busy host makes the kernel's calibration wrong by up to 20 times, and with it every
            # deadline in the guest.
            parameters.append(f"tsc_early_khz={tsc_khz()}")
        return [
            *self.machine.qemu(), "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
            "-machine", "q35", "-accel", accel, "-cpu", "max", "-smp", "1",
            "-kernel", kernel.image, "-initrd", kernel.initrd, "-append", " ".join(parameters),
            "-serial", f"file:{self.folder}/kmsg",
            "-chardev", f"socket,id=agent,fd={agent_fd}", "-serial", "chardev:agent",
            "-chardev", f"socket,id=monitor,fd={monitor_fd}",
            "-mon", "chardev=monitor,mode=control",
            "-fsdev", f"local,id=host,path={self.machine.root},readonly=on,{nine}",
            "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-fsdev", f"local,id=work,path={self.share},{nine}",
            "-device", "virtio-9p-pci,fsdev=work,mount_tag=work",
            *JUDGE, "-D", f"{self.folder}/judge.log", *self.machine.arguments(self.folder)]

    def _read_agent(self):
        for line in self.agent:
            self.answers.put(line.strip())
        self.answers.put(None)

    def boot(self, timeout=120):
        """Waits until the guest takes scripts."""
        end = time.monotonic() + timeout
        self.listen(end, f"the guest has not booted after {timeout} s", until="ready")

    def power_off(self, timeout=60):
        """An orderly end of the guest; GuestError when QEMU does not end with it."""
        self._send("quit")
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise GuestError(f"the guest is still running {timeout} s after power-off") from None
        if status != 0:
            raise GuestError(f"QEMU ended with status {status}: {self.log('qemu.log')}")

    def kill(self):
        """A power cut: what QEMU's caches hold is gone."""
        self.process.kill()
        self.process.wait()

    # ---- Scripts ----

    def _send(self, line):
        self.agent.write(line + "\n")
        self.agent.flush()

    def listen(self, end, late, until=None):
        """Takes one answer of the agent, or all up to `until`; GuestError(late) after `end`."""
        while True:
            try:
                line = self.answers.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise Late(late + self.tail()) from None
            if line is None:
                raise GuestError("the guest is gone" + self.tail())
            if line.startswith("failed: "):
                raise GuestError(f"the guest could not start: {line}{self.tail()}")
            name, _, status = line.partition(" ")
            if name in self.jobs:
                self.jobs.pop(name).status = int(status)
            if until in (None, line):
                return

    def start(self, script):
        """Runs a bash script in the guest and does not wait for it."""
        name = f"{len(os.listdir(self.share)):04}"
        self._write(f"{name}.sh", [". /run/guest/guest_lib.sh", script])
        job = self.jobs[name] = Job(self, name)
        self._send(name)
        return job

    def run(self, script, timeout=60, status=0):
        """Runs a bash script to its end and returns its output, both streams; Failed when its exit
        status is not `status` (None: whatever it is)."""
        job = self.start(script)
        got = job.wait(timeout)
        if status not in (None, got):
            raise Failed(f"exit status {got} instead of {status} from\n"
                         f"{textwrap.dedent(script).strip()}\nwhich printed\n{job.output.strip()}")
        return job.output

    # ---- Faults ----

    @contextlib.contextmanager
    def filtered(self, name, **options):
        """While it lasts, a block filter of QEMU stands before the image of the controller `name`'s
        first namespace; options as for blockdev-add. Yields the filter's node name."""
        node, below = f"{name}n1", f"{name}n1-image"
        number = self.filters = self.filters + 1
        child = "image" if options["driver"] == "blkdebug" else "file"
        self.monitor.execute("blockdev-add", **{
            "node-name": f"{node}-filter-{number}", child: below, **options})
        self._put_on(node, f"{node}-filter-{number}")
        try:
            yield f"{node}-filter-{number}"
        finally:
            self._put_on(node, below)
            self.monitor.execute("blockdev-del", **{"node-name": f"{node}-filter-{number}"})

    def _put_on(self, node, below, tries=20):
        """This flushes, so it uses up errors of flushes that are still to come."""
        for left in reversed(range(tries)):
            with contextlib.suppress(*([MonitorError] if left else [])):
                return self.monitor.execute("blockdev-reopen", options=[
                    {"driver": "raw", "node-name": node, "file": below}])

    def errors(self, name, iotype, times=None, **where):
        """Commands of the kind fail: "read", "write" or "flush", the latter so many `times`."""
        rule = {"event": "none", "iotype": iotype, "errno": 5, "once": times is not None, **where}
        return self.filtered(name, **{"driver": "blkdebug", "inject-error": [rule] * (times or 1)})

    @contextlib.contextmanager
    def slowness(self, name, limit, unit="iops-total"):
        """Limits the drive to so many commands a second, or bytes with the unit bps-total."""
        group = f"limits-{self.filters}"
        self.monitor.execute("object-add", **{
            "qom-type": "throttle-group", "id": group, "limits": {unit: limit}})
        with self.filtered(name, **{"driver": "throttle", "throttle-group": group}):
            try:
                yield
            finally:
                self.monitor.execute("qom-set", path=f"/objects/{group}", property="limits",
                                     value={unit: 0})
        self.monitor.execute("object-del", id=group)

    # ---- Judgement ----

    def log(self, name):
        return read(os.path.join(self.folder, name))

    def tail(self):
        lines = self.log("kmsg").splitlines()[-15:]
        return "\nlast lines of the guest's kernel:\n" + "\n".join(lines) if lines else ""

    def complaints(self, expected=None):
        """What QEMU and the guest's kernel have held against the driver since the last call, but
        for the lines that match the regular expression `expected`."""
        found = []
        for name, taken in self.judged.items():
            lines = self.log(name).splitlines()
            fresh, self.judged[name] = lines[taken:], len(lines)
            found += [line for line in fresh
                      if (name == "judge.log" or KERNEL_COMPLAINTS.search(line))
                      and not (expected and re.search(expected, line))]
        return found
