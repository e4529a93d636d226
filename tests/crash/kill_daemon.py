#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""kill_daemon.py MKFS FSCK DAEMON [ROUNDS [SEED]]: kills the daemon in the middle of writes.

Each round mounts the image, checks every file that earlier rounds have fsynced, lets threads
write, rename and remove, and kills the daemon at a random moment. Afterwards the image must mount,
hold all fsynced data, have only whole files where they are published as caches do, and be clean for
fsck. Exit 77: this machine cannot mount.
GPUNVME_TEST_DEVICE names a device to be used, and overwritten, instead of an image.
"""
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

PUBLISHED = "published"
BOUND = 120  # seconds, for anything that ends at once when it works
GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def content(name, size):
    return random.Random(name).randbytes(size)


def write_synced(path, data, append):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0), 0o644)
    try:
        for at in range(0, len(data), 60000):
            os.write(fd, data[at:at + 60000])
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(folder, name, data, link):
    """As caches do, without fsync: a name appears when its file is whole."""
    path = os.path.join(folder, name)
    if link:
        fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o644)
    else:
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for at in range(0, len(data), 60000):
            os.write(fd, data[at:at + 60000])
        if link:
            # With a descriptor, which is not used, link() follows the symbolic link.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
        else:
            os.rename(path + ".new", path)
    finally:
        os.close(fd)


class Round:
    """What runs while the daemon lives. `kept` holds name -> size of what must survive."""

    def __init__(self, mountpoint, number, kept):
        self.base = mountpoint
        self.number = number
        self.kept = kept
        self.errors = []
        self.ends = threading.Event()  # set before the daemon is killed

    def keep(self, who):
        """Files that are fsynced, some under a name of their own first."""
        rng = random.Random(f"{self.number} {who}")
        for i in range(1 << 30):
            name = f"kept-{self.number}-{who}-{i}"
            size = rng.choice((0, 1, 500, 4096, 5000, 70000, 300000))
            path = os.path.join(self.base, name)
            if i % 3 == 0:
                write_synced(path + ".new", content(name, size), append=False)
                os.rename(path + ".new", path)
                sync_dir(self.base)
            else:
                write_synced(path, content(name, size), append=i % 3 == 1)
            self.kept[name] = size

    def drop(self, who):
        """Removals that are committed: those names must not come back."""
        for i in range(1 << 30):
            name = f"dropped-{self.number}-{who}-{i}"
            path = os.path.join(self.base, name)
            write_synced(path, content(name, 9000), append=False)
            os.unlink(path)
            sync_dir(self.base)
            self.kept[name] = None

    def cache(self, who):
        """Files that are published, of which the oldest are removed."""
        folder = os.path.join(self.base, PUBLISHED)
        os.makedirs(folder, exist_ok=True)
        rng = random.Random(f"{self.number} {who}")
        names = []
        for i in range(1 << 30):
            size = rng.choice((1, 4096, 70000, 300000, 1 << 20))
            names.append(f"{self.number}-{who}-{i}-{size}")
            publish(folder, names[-1], content(names[-1], size), link=i % 2 == 0)
            if len(names) > 30:
                os.unlink(os.path.join(folder, names.pop(0)))

    def churn(self, who):
        """Directories, links, renames over each other, sparse files: nothing is promised."""
        rng = random.Random(f"{self.number} {who}")
        top = os.path.join(self.base, f"churn-{who}")
        os.makedirs(top, exist_ok=True)
        while True:
            a, b = (os.path.join(top, str(rng.randrange(40))) for _ in range(2))
            try:
                self.change(rng, a, b)
            except OSError as e:
                if e.errno in GONE:
                    raise

    @staticmethod
    def change(rng, a, b):
        kind = rng.randrange(7)
        if kind == 0:
            os.rename(a, b)
        elif kind == 1:
            os.link(a, b)
        elif kind == 2:
            os.mkdir(a)
        elif kind == 3:
            os.rmdir(a)
        elif kind == 4:
            os.unlink(a)
        elif kind == 5:
            os.truncate(a, rng.randrange(1 << 20))
        else:
            with open(a, "r+b" if os.path.exists(a) else "wb", buffering=0) as f:
                f.seek(rng.randrange(1 << 21))
                f.write(bytes(rng.randrange(1 << 17)))

    def run(self, work, who):
        try:
            work(who)
        except OSError as e:
            # Linux ends a request with EIO if the daemon dies while it copies the request.
            if e.errno not in GONE and not (e.errno == errno.EIO and self.ends.is_set()):
                self.errors.append(f"{work.__name__}: {e}")

    def start(self):
        works = [self.keep, self.keep, self.drop, self.churn, self.churn, self.cache, self.cache]
        threads = [threading.Thread(target=self.run, args=(w, i), daemon=True)
                   for i, w in enumerate(works)]
        for t in threads:
            t.start()
        return threads


class Mount:
    def __init__(self, daemon, image, mountpoint, log):
        self.mountpoint = mountpoint
        with open(log, "ab") as out:
            self.process = subprocess.Popen([daemon, image, mountpoint, "-f"], stderr=out)
        end = time.monotonic() + BOUND
        while not os.path.ismount(mountpoint):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                sys.exit(f"the daemon does not serve: {open(log).read()}")
            time.sleep(0.01)

    def kill(self, this, threads):
        this.ends.set()
        self.process.kill()
        self.process.wait(BOUND)
        for t in threads:  # they must not go on in the directory below the mount
            t.join(BOUND)
        subprocess.run(["umount", "-l", self.mountpoint], check=True, timeout=BOUND)

    def end(self):
        subprocess.run(["umount", self.mountpoint], check=True, timeout=BOUND)
        return self.process.wait(BOUND)


def check(mountpoint, kept):
    wrong = []
    for name, size in kept.items():
        path = os.path.join(mountpoint, name)
        if size is None:
            if os.path.lexists(path):
                wrong.append(f"{name}: removed, synced, and there again")
        elif not os.path.exists(path):
            wrong.append(f"{name}: fsynced and lost")
        else:
            with open(path, "rb") as f:
                if f.read() != content(name, size):
                    wrong.append(f"{name}: fsynced, other content")
    return wrong


def check_published(mountpoint):
    """Each name stands for a whole file; then the folder is emptied for the next round."""
    folder = os.path.join(mountpoint, PUBLISHED)
    wrong = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        if not name.endswith(".new") and data != content(name, int(name.split("-")[-1])):
            wrong.append(f"{name}: published, and {len(data)} bytes of it are there")
        os.unlink(os.path.join(folder, name))
    return wrong


def make_room(mountpoint, kept):
    """Removes all but the newest files, so that rounds without end fit on the image."""
    for name in list(kept)[:-500]:
        if kept.pop(name) is not None:
            os.unlink(os.path.join(mountpoint, name))


def play(tools, where, rounds, rng):
    mkfs, fsck, daemon = tools
    image, mountpoint, log = (os.path.join(where, n) for n in ("image", "mnt", "log"))
    os.mkdir(mountpoint)
    image = os.environ.get("GPUNVME_TEST_DEVICE", image)
    subprocess.run([mkfs, "-qf", "-s", "1G", image], check=True, timeout=BOUND)
    kept = {}
    for number in range(rounds):
        mount = Mount(daemon, image, mountpoint, log)
        this = Round(mountpoint, number, kept)
        threads = this.start()
        time.sleep(rng.uniform(0.02, 1.5))
        mount.kill(this, threads)
        wrong = list(this.errors)
        mount = Mount(daemon, image, mountpoint, log)
        wrong += check(mountpoint, kept) + check_published(mountpoint)
        if not wrong:
            make_room(mountpoint, kept)
        if mount.end() != 0:
            wrong.append(f"the daemon did not end well: {open(log).read()}")
        seen = subprocess.run([fsck, "-n", image], capture_output=True, text=True, timeout=BOUND)
        if seen.returncode != 0:
            wrong.append(f"fsck.gpunvme -n: exit {seen.returncode}: {seen.stdout}{seen.stderr}")
        if wrong:
            return f"round {number}: " + "\n".join(wrong[:20])
        print(f"round {number}: nothing lost", flush=True)
    return None


def main():
    tools = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else random.randrange(1 << 30)
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("skipped: mounting needs root and /dev/fuse")
        sys.exit(77)
    print(f"seed {seed}", flush=True)
    roomy = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 2 << 30
    where = tempfile.mkdtemp(prefix="gpunvme-kill-", dir="/dev/shm" if roomy else None)
    try:
        wrong = play(tools, where, rounds, random.Random(seed))
    finally:
        subprocess.run(["umount", "-ql", os.path.join(where, "mnt")], timeout=BOUND, check=False)
        shutil.rmtree(where, ignore_errors=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
