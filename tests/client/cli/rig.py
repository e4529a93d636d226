# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of the command gpunvme share: runs of programs, and mounts."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

GPUNVME, MKFS, DAEMON = sys.argv[1:4]
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


def serve(image, point, options):
    """A daemon in the foreground that serves the mount."""
    daemon = subprocess.Popen([DAEMON, image, point, "-f", "-o", options],
                              stderr=subprocess.DEVNULL)
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
