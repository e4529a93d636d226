# SPDX-License-Identifier: BSD-2-Clause
"""What tests in Python share: runs of programs, mounts, and controllers of gpunvme-sim.

A test begins its arguments with GPUNVME MKFS FSCK DAEMON SIM, and has the rest in ARGUMENTS.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

GPUNVME, MKFS, FSCK, DAEMON, SIM, *ARGUMENTS = sys.argv[1:]
MEMORY = "/dev/shm"
SECONDS = 120  # a bound on the run of one program: sanitizers on a busy machine

needs_mounts = unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"),
                                   "mounting needs root and /dev/fuse")


def run(*arguments, status=0, user=None):
    """stdout and stderr of the command."""
    done = subprocess.run([GPUNVME, *arguments], capture_output=True, text=True, timeout=SECONDS,
                          check=False, user=user)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def document(*arguments, status=0):
    found = json.loads(run(*arguments, "-o", "json", status=status)[0])
    assert found["schema_version"] == 1
    return found


def output(*program, status=0, **environment):
    """stdout and stderr of a program together. A status of None stands for any."""
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=SECONDS, check=False, env={**os.environ, **environment})
    assert status in (None, done.returncode), (program, done.returncode, done.stdout)
    return done.stdout


def serve(image, point, options, log=None):
    """A daemon in the foreground that serves the mount, or has ended."""
    more = ("-o", options) if options else ()
    with open(log or os.devnull, "a", encoding="utf-8") as file:
        daemon = subprocess.Popen([DAEMON, image, point, "-f", *more], stderr=file)
    for _ in range(SECONDS * 20):
        if os.path.ismount(point) or daemon.poll() is not None:
            break
        time.sleep(0.05)
    return daemon


def unmount(point):
    """A file that a process had open when it ended is released a moment later."""
    for _ in range(SECONDS * 20):
        if subprocess.run(["umount", point], check=False, timeout=SECONDS).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"{point} stays busy")


@contextlib.contextmanager
def mounted(options, size="64M"):
    """The point of a mount of a new image."""
    with tempfile.TemporaryDirectory(prefix="gpunvme-commands-", dir=MEMORY) as top:
        image, point = os.path.join(top, "image"), os.path.join(top, "mnt")
        os.mkdir(point)
        output(MKFS, "-q", "-s", size, image)
        output(DAEMON, image, point, "-o", options)
        try:
            yield point
        finally:
            unmount(point)


class Image:
    """A file system and a place to mount it, which other users reach as well."""

    def __init__(self, size="64M", device=None):
        self.top = tempfile.TemporaryDirectory(prefix="gpunvme-image-", dir=MEMORY)
        os.chmod(self.top.name, 0o755)
        self.point, self.log_file = (os.path.join(self.top.name, name) for name in ("mnt", "log"))
        self.device = device or os.path.join(self.top.name, "image")
        self.daemon = None
        os.mkdir(self.point)
        with open(self.log_file, "w", encoding="utf-8"):
            pass
        output(MKFS, "-q", "-f", "-s", size, self.device)

    def path(self, name):
        return os.path.join(self.point, name)

    def mount(self, options=""):
        """Returns true if the daemon serves the mount."""
        self.daemon = serve(self.device, self.point, options, self.log_file)
        if self.daemon.poll() is not None:
            self.daemon = None
        return self.daemon is not None

    def log(self):
        with open(self.log_file, encoding="utf-8") as file:
            return file.read()

    def unmount(self, status=0):
        unmount(self.point)
        ended, self.daemon = self.daemon.wait(SECONDS), None
        assert ended == status, (ended, self.log())

    def kill(self):
        self.daemon.kill()
        self.daemon.wait(SECONDS)
        self.daemon = None
        unmount(self.point)

    def close(self):
        """The end of a test: the mount ends well, and fsck finds nothing."""
        try:
            if self.daemon:
                self.unmount()
            output(FSCK, "-n", self.device)
        finally:
            self.top.cleanup()


class Server:
    """gpunvme-sim. At the end of the context its exit status says that no driver made a mistake."""

    def __init__(self, *options, path=None):
        self.top = tempfile.TemporaryDirectory(prefix="gpunvme-served-")
        self.log = os.path.join(self.top.name, "log")
        self.path = path or os.path.join(self.top.name, "socket")
        self.device = "vfio-user:" + self.path
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([SIM, *options, self.path], stdout=subprocess.PIPE,
                                            stderr=log, text=True)
        line = self.process.stdout.readline()
        assert line == f"listening on {self.path}\n", (line, self.err())

    def err(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def stop(self, number=signal.SIGTERM):
        """The exit status, or the negative number of the signal that ended it.

        A paused server goes on first. A SIGCONT while it ends would take back the SIGSTOP by which
        LeakSanitizer stops its threads, and LeakSanitizer would wait for ever.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        self.go_on()
        self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(SECONDS)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until its last thread has stopped

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def holdings(self):
        """The numbers of its descriptors and of its mappings of memfds, to detect leaks."""
        proc = f"/proc/{self.process.pid}"
        with open(proc + "/maps", encoding="ascii") as maps:
            return len(os.listdir(proc + "/fd")), maps.read().count("memfd:")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.process.returncode is None:
            status = self.stop()
            assert failure[0] or status == 0, (status, self.err())
        self.top.cleanup()


def error_of(call, *arguments, **more):
    """The errno of a system call; 0 stands for success."""
    try:
        call(*arguments, **more)
    except OSError as error:
        return error.errno
    return 0


def as_user(uid, call, *arguments):
    """error_of() in a process of another user."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgid(uid)
            os.setuid(uid)
            code = error_of(call, *arguments)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
