#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Linux beyond POSIX on a mount: inode flags, attributes, the label, ACLs, times, discards.

usage: linux_attr_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import sys
import time
import unittest
from ctypes import c_uint

from rig import Image, as_user, error_of, needs_mounts, output, unmount

LIBC = ctypes.CDLL(None, use_errno=True)

# linux/fs.h, and FITRIM's range
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801c581f, 0x401c5820
FS_IOC_GETFSLABEL, FS_IOC_SETFSLABEL = 0x81009431, 0x41009432
FS_IOC_SHUTDOWN, FITRIM = 0x8004587d, 0xc0185879
FS_COMPR, FS_IMMUTABLE, FS_APPEND, FS_NOATIME, FS_EXTENT = 0x4, 0x10, 0x20, 0x80, 0x80000
FS_XFLAG_APPEND, FS_XFLAG_NOATIME = 0x10, 0x40
GPUNVME_IOC_RESIZE = 0xc0204770  # gpunvme/gpunvme_ioctl.h
EVERYTHING = struct.pack("3Q", 0, (1 << 64) - 1, 0)

CLONE_NEWUSER, CAP_SYS_ADMIN, CAPABILITY_VERSION_3 = 0x10000000, 21, 0x20080522
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4

ACL_ACCESS, ACL_DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
TYPES = ("file", "dir", "full", "link", "fifo", "socket", "null", "block")


def call(name, *arguments):
    """A system call that Python lacks."""
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def ioctl(path, number, argument):
    """The argument as the call has left it."""
    argument = bytearray(argument)
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, number, argument)
    finally:
        os.close(fd)
    return bytes(argument)


def set_flags(path, flags):
    ioctl(path, FS_IOC_SETFLAGS, struct.pack("l", flags))


def flags_of(path):
    return struct.unpack("l", ioctl(path, FS_IOC_GETFLAGS, bytes(8)))[0] & ~FS_EXTENT


def label_of(path):
    return ioctl(path, FS_IOC_GETFSLABEL, b"x" * 256).split(b"\0")[0]


def acl(*entries):
    return struct.pack("I", 2) + b"".join(struct.pack("HHI", *entry) for entry in entries)


def one_user(uid, perm, mask):
    """user::rw-, user:UID:perm, group::---, mask::mask, other::---"""
    none = 0xffffffff
    return acl((1, 6, none), (2, perm, uid), (4, 0, none), (0x10, mask, none), (0x20, 0, none))


def kernel_has(major, minor):
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (major, minor)


def opens(path, flags):
    os.close(os.open(path, flags))


def write_file(path, content=b"", mode=0o644):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, mode)
    with open(fd, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(fd)


@needs_mounts
class OnMount(unittest.TestCase):
    """One mount for all cases; each has a directory of its own."""

    @classmethod
    def setUpClass(cls):
        cls.image = Image("256M")
        cls.addClassCleanup(cls.image.close)
        if not cls.image.mount():
            raise AssertionError(cls.image.log())

    def setUp(self):
        os.umask(0)
        self.dir = self.image.path(self.id().split(".")[-1])
        os.mkdir(self.dir, 0o777)

    def p(self, name):
        return os.path.join(self.dir, name)

    def make(self, name, content=b"", mode=0o644):
        write_file(self.p(name), content, mode)
        return self.p(name)

    def stat(self, name=""):
        return os.lstat(self.p(name))

    def expect_error(self, error, *arguments, **more):
        self.assertEqual(error_of(*arguments, **more), error, arguments)

    def make_each_type(self):
        self.make("file", b"content")
        os.mkdir(self.p("dir"))
        os.mkdir(self.p("full"))
        self.make("full/child")
        os.symlink("file", self.p("link"))
        for name, kind, device in (("fifo", stat.S_IFIFO, 0), ("socket", stat.S_IFSOCK, 0),
                                   ("null", stat.S_IFCHR, os.makedev(1, 3)),
                                   ("block", stat.S_IFBLK, os.makedev(300, 70000))):
            os.mknod(self.p(name), kind | 0o644, device)


class Flags(OnMount):
    def test_an_immutable_file_refuses_every_change(self):
        f, g = self.make("f", b"text"), self.p("g")
        os.setxattr(f, "user.a", b"a")
        open_before = os.open(f, os.O_RDWR)
        set_flags(f, FS_IMMUTABLE | FS_NOATIME)
        self.assertEqual(flags_of(f), FS_IMMUTABLE | FS_NOATIME)
        for refused in ((os.open, f, os.O_WRONLY), (os.open, f, os.O_WRONLY | os.O_TRUNC),
                        (os.write, open_before, b"x"), (os.ftruncate, open_before, 1),
                        (os.chmod, f, 0o600), (os.setxattr, f, "user.a", b"b"),
                        (os.removexattr, f, "user.a"),
                        (os.setxattr, f, "user.gpunvme.gpu_bound", b"1"),
                        (os.setxattr, f, ACL_ACCESS, acl((1, 6, 0xffffffff), (4, 4, 0xffffffff),
                                                         (0x20, 4, 0xffffffff))),
                        (os.unlink, f), (os.link, f, g), (os.rename, f, g)):
            self.expect_error(errno.EPERM, *refused)
        os.close(open_before)
        self.assertEqual(self.stat("f").st_size, 4)
        set_flags(f, 0)
        os.unlink(f)

    def test_an_append_only_file_is_opened_only_for_appending(self):
        f = self.make("f", b"text")
        set_flags(f, FS_APPEND)
        self.expect_error(errno.EPERM, os.open, f, os.O_WRONLY)
        self.expect_error(errno.EPERM, os.open, f, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
        with open(f, "ab") as file:
            file.write(b"more")
        self.assertEqual(self.stat("f").st_size, 8)
        set_flags(f, 0)

    def test_flags_belong_to_the_owner_and_the_first_two_to_root(self):
        f = self.make("f")
        os.chown(f, 1000, 1000)
        self.assertEqual(as_user(1000, set_flags, f, FS_NOATIME), 0)
        self.assertEqual(flags_of(f), FS_NOATIME)
        self.assertEqual(as_user(1000, set_flags, f, FS_IMMUTABLE), errno.EPERM)
        self.assertEqual(as_user(1001, set_flags, f, 0), errno.EPERM)
        self.assertEqual(flags_of(f), FS_NOATIME)
        self.expect_error(errno.EOPNOTSUPP, set_flags, f, FS_COMPR)
        extended = ioctl(f, FS_IOC_FSGETXATTR, bytes(28))
        self.assertEqual(struct.unpack("I", extended[:4])[0], FS_XFLAG_NOATIME)
        ioctl(f, FS_IOC_FSSETXATTR, struct.pack("I", FS_XFLAG_APPEND) + extended[4:])
        self.assertEqual(flags_of(f), FS_APPEND)
        set_flags(f, 0)


class Attributes(OnMount):
    def test_have_values_of_64_kib(self):
        f, value = self.make("f"), b"v" * 65536
        os.setxattr(f, "user.large", value)
        os.setxattr(f, "user.small", b"v")
        self.assertEqual(os.getxattr(f, "user.large"), value)
        self.assertEqual(set(os.listxattr(f)), {"user.large", "user.small"})
        os.removexattr(f, "user.large")
        self.assertEqual(self.stat("f").st_blocks, 0, "attributes are in no file's blocks")

    def test_only_root_sees_names_of_trusted_ones(self):
        f, names = self.make("f"), {"trusted.first", "user.seen", "trusted.last"}
        for name in names:
            os.setxattr(f, name, b"v")
        self.assertEqual(set(os.listxattr(f)), names)

        def seen():
            buffer = ctypes.create_string_buffer(10)
            room = LIBC.listxattr(f.encode(), None, 0)
            size = LIBC.listxattr(f.encode(), buffer, 10)
            if (room, size, buffer.value) != (10, 10, b"user.seen"):
                raise OSError(errno.EBADMSG, buffer.value)
        self.assertEqual(as_user(1000, seen), 0)

    def test_have_a_name_behind_their_space(self):
        f = self.make("f")
        for name in "user.", "trusted.", "security.":
            self.expect_error(errno.EINVAL, os.setxattr, f, name, b"v")
            self.expect_error(errno.EINVAL, os.removexattr, f, name)


class WholeFileSystem(OnMount):
    def test_the_label_is_read_and_set(self):
        chosen = (self.dir, FS_IOC_SETFSLABEL, b"chosen".ljust(256, b"\0"))
        self.assertEqual(as_user(1000, ioctl, *chosen), errno.EPERM)
        ioctl(*chosen)
        self.assertEqual(label_of(self.dir), b"chosen")

    def drop_admin(self):
        """CAP_SYS_ADMIN, which root in a container lacks."""
        head, data = (c_uint * 2)(CAPABILITY_VERSION_3, 0), (c_uint * 6)()
        call("capget", head, data)
        for i in range(3):
            data[i] &= ~(1 << CAP_SYS_ADMIN)
        call("capset", head, data)

    def enter_namespace(self):
        """A user namespace in which root has all capabilities and remains root outside."""
        call("unshare", CLONE_NEWUSER)
        with open("/proc/self/uid_map", "w", encoding="ascii") as f:
            f.write("0 0 1\n")
        assert os.getuid() == 0

    def first_permitted(self, become, may_be_refused=False):
        """200 and more: the ioctl that was not refused."""
        root = self.image.point
        try:
            become()
        except OSError as error:
            raise OSError(errno.EPERM if may_be_refused else 199, error)
        for i, (number, argument) in enumerate((
                (FS_IOC_SETFSLABEL, b"stolen".ljust(256, b"\0")),
                (FITRIM, struct.pack("3Q", 0, (1 << 64) - 1, (1 << 64) - 1)),
                (GPUNVME_IOC_RESIZE, struct.pack("2I3Q", 32, 2, 0, 0, 0)),
                (FS_IOC_SHUTDOWN, bytes(4)))):
            if error_of(ioctl, root, number, argument) != errno.EPERM:
                raise OSError(200 + i, "permitted")
        raise OSError(errno.EPERM, "refused")

    def test_only_privileged_root_changes_it(self):
        self.assertEqual(as_user(0, self.first_permitted, self.drop_admin), errno.EPERM)
        self.assertEqual(as_user(0, self.first_permitted, self.enter_namespace, True), errno.EPERM)
        self.assertNotEqual(label_of(self.dir), b"stolen")


class Acls(OnMount):
    """The kernel checks access by what the file system keeps."""

    def can(self, uid, name, flags):
        return as_user(uid, opens, self.p(name), flags) == 0

    def mode(self, name):
        return self.stat(name).st_mode & 0o7777

    def test_a_named_user_has_the_access_that_the_mask_leaves(self):
        f = self.make("f", b"text", 0o600)
        self.assertFalse(self.can(7, "f", os.O_RDONLY))
        os.setxattr(f, ACL_ACCESS, one_user(7, 6, 6))
        self.assertTrue(self.can(7, "f", os.O_RDWR))
        self.assertFalse(self.can(8, "f", os.O_RDONLY))
        self.assertEqual(self.mode("f"), 0o660)
        os.chmod(f, 0o640)
        self.assertTrue(self.can(7, "f", os.O_RDONLY))
        self.assertFalse(self.can(7, "f", os.O_WRONLY))
        os.removexattr(f, ACL_ACCESS)
        self.assertFalse(self.can(7, "f", os.O_RDONLY))

    def test_new_files_get_the_default_acl_or_the_umask(self):
        os.umask(0o22)
        self.make("plain", b"", 0o666)
        self.assertEqual(self.mode("plain"), 0o644)
        os.mkdir(self.p("d"))
        self.assertEqual(self.mode("d"), 0o755)
        os.setxattr(self.p("d"), ACL_DEFAULT, one_user(7, 7, 7))
        self.make("d/f", b"", 0o666)
        self.assertEqual(self.mode("d/f"), 0o660)
        self.assertTrue(self.can(7, "d/f", os.O_RDWR))
        os.mkdir(self.p("d/sub"))
        self.assertTrue(os.getxattr(self.p("d/sub"), ACL_DEFAULT))
        self.make("d/sub/g", b"", 0o600)
        self.assertFalse(self.can(7, "d/sub/g", os.O_RDONLY))  # the mask is that of the mode

    def test_one_of_a_stranger_to_the_group_clears_set_gid(self):
        f = self.make("f", b"", 0o600)
        os.chown(f, 1000, 50)
        os.chmod(f, 0o2750)
        for uid, error, mode in ((0, 0, 0o2670), (1000, 0, 0o670), (1001, errno.EPERM, 0o670)):
            self.assertEqual(as_user(uid, os.setxattr, f, ACL_ACCESS, one_user(7, 7, 7)), error)
            self.assertEqual(self.mode("f"), mode)


class Names(OnMount):
    """Birth times, files without names, whiteouts."""

    def extended(self, name):
        """The times of birth and modification, and the other fields, by statx(2)."""
        birth, modified, *rest = output("stat", "--printf", "%.9W %Y %i %f %h %s %t %T",
                                        self.p(name)).split()
        return birth, modified, rest

    @unittest.skipUnless(kernel_has(6, 6), "FUSE asks for birth times from Linux 6.6 on")
    def test_the_birth_time_stays_when_the_file_changes(self):
        self.make_each_type()
        for kind in TYPES:
            found = self.stat(kind)
            device = os.major(found.st_rdev), os.minor(found.st_rdev)
            birth, _, rest = self.extended(kind)
            self.assertGreater(float(birth), 1600000000, kind)
            self.assertEqual(rest, [str(found.st_ino), f"{found.st_mode:x}", str(found.st_nlink),
                                    str(found.st_size), *(f"{n:x}" for n in device)], kind)
        before = self.extended("file")[0]
        os.utime(self.p("file"), (5, 5))
        self.assertEqual(self.extended("file")[:2], (before, "5"))

    @unittest.skipUnless(kernel_has(6, 1), "FUSE passes O_TMPFILE on from Linux 6.1 on")
    def test_a_file_without_a_name_is_opened_and_named(self):
        def name_it(fd, name):
            call("linkat", AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD,
                 self.p(name).encode(), AT_SYMLINK_FOLLOW)
        fd = os.open(self.dir, os.O_TMPFILE | os.O_RDWR, 0o640)
        os.write(fd, b"text")
        self.assertEqual((os.fstat(fd).st_nlink, os.fstat(fd).st_mode), (0, stat.S_IFREG | 0o640))
        name_it(fd, "named")
        os.close(fd)
        self.assertEqual((self.stat("named").st_size, self.stat("named").st_nlink), (4, 1))
        fd = os.open(self.dir, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        self.expect_error(errno.ENOENT, name_it, fd, "not")
        os.close(fd)
        self.expect_error(errno.ENOTDIR, os.open, self.p("named"), os.O_TMPFILE | os.O_RDWR)

    def test_a_rename_leaves_a_whiteout(self):
        def whiteout(old, new, more=0):
            call("renameat2", AT_FDCWD, self.p(old).encode(), AT_FDCWD, self.p(new).encode(),
                 RENAME_WHITEOUT | more)
        self.make("a", b"text")
        self.make("old")
        os.mkdir(self.p("d"))
        os.mkdir(self.p("e"))
        self.expect_error(errno.EEXIST, whiteout, "a", "old", RENAME_NOREPLACE)
        self.expect_error(errno.EINVAL, whiteout, "a", "old", RENAME_EXCHANGE)
        whiteout("a", "old")
        self.assertEqual(self.stat("old").st_size, 4)
        left = self.stat("a")
        self.assertEqual((left.st_mode, left.st_rdev, left.st_nlink), (stat.S_IFCHR, 0, 1))
        whiteout("d", "e")
        self.assertEqual(self.stat("d").st_mode, stat.S_IFCHR)
        self.assertEqual(self.stat().st_nlink, 3)  # itself and e
        os.unlink(self.p("a"))
        os.unlink(self.p("d"))


class Overlay(OnMount):
    def setUp(self):
        super().setUp()
        for name in "lower", "upper", "work", "merged", "lower/dir":
            os.mkdir(self.p(name))
        for name, content in (("kept", b"lower"), ("gone", b"lower"), ("dir/inside", b"")):
            self.make("lower/" + name, content)
        options = ",".join(f"{name}dir={self.p(name)}" for name in ("lower", "upper", "work"))
        error = error_of(call, "mount", b"overlay", self.p("merged").encode(), b"overlay", 0,
                         options.encode())
        if error in (errno.ENODEV, errno.EPERM):
            self.skipTest("overlayfs: " + os.strerror(error))
        self.assertEqual(error, 0)
        self.addCleanup(unmount, self.p("merged"))

    def expect_whiteout(self, name):
        self.assertTrue(stat.S_ISCHR(self.stat("upper/" + name).st_mode), name)

    def test_a_mount_is_an_upper_layer(self):
        kept = self.p("merged/kept")
        self.make("merged/new", b"new")
        os.unlink(self.p("merged/gone"))
        self.expect_whiteout("gone")
        with open(kept, "ab") as f:
            f.write(b"+upper")
        with open(kept, "rb") as f:
            self.assertEqual(f.read(), b"lower+upper")
        self.assertEqual(self.stat("lower/kept").st_size, 5)
        os.rename(kept, self.p("merged/moved"))
        self.expect_whiteout("kept")
        os.unlink(self.p("merged/dir/inside"))
        os.rmdir(self.p("merged/dir"))
        os.mkdir(self.p("merged/dir"))
        names = os.listdir(self.p("merged"))
        self.assertIn("moved", names)
        self.assertNotIn("gone", names)
        self.assertEqual(os.listdir(self.p("merged/dir")), [])  # that of the lower layer is hidden


@needs_mounts
class OwnMount(unittest.TestCase):
    """Cases with options of the mount, and those that see the size of the image."""

    LEN = 16 << 20

    def setUp(self):
        self.image = Image("128M")
        self.addCleanup(self.image.close)

    def mount(self, options=""):
        self.assertTrue(self.image.mount(options), self.image.log())
        return self.image.path("f")

    def second_read_counts(self, path):
        """Does a read of a file, made and read before, set its access time?"""
        times = []
        for content in b"x", None:
            if content:
                with open(path, "wb") as f:
                    f.write(content)
            else:
                opens(path, os.O_RDWR)
            time.sleep(0.002)
            for _ in range(2):
                with open(path, "rb") as f:
                    self.assertEqual(f.read(1), b"x")
            times.append(os.stat(path).st_atime_ns)
        return times[1] > times[0]

    def test_access_times_follow_the_options_of_the_mount(self):
        for options, first, second in (("", True, False), ("noatime", False, False),
                                       ("strictatime", True, True)):
            path = self.mount(options)
            self.assertEqual(self.second_read_counts(path), second, options)
            found = os.stat(path)
            self.assertEqual(found.st_atime_ns > found.st_mtime_ns, first, options)
            os.unlink(path)
            self.image.unmount()

    def read_moves_access(self, path, flags):
        before = os.stat(path).st_atime_ns
        fd = os.open(path, os.O_RDONLY | flags)
        self.assertTrue(os.listdir(fd) if flags & os.O_DIRECTORY else os.read(fd, 1))
        os.close(fd)
        return os.stat(path).st_atime_ns > before

    def test_access_times_do_not_change_by_reads_with_noatime(self):
        path, folder = self.mount("strictatime"), self.image.path("d")
        write_file(path, bytes(10))
        self.assertFalse(self.read_moves_access(path, os.O_NOATIME))
        self.assertTrue(self.read_moves_access(path, 0))
        os.mkdir(folder)
        write_file(os.path.join(folder, "a"))
        self.assertFalse(self.read_moves_access(folder, os.O_DIRECTORY | os.O_NOATIME))
        write_file(os.path.join(folder, "f"))  # ends the kernel's cache of the directory
        self.assertTrue(self.read_moves_access(folder, os.O_DIRECTORY))

    def taken(self):
        return os.stat(self.image.device).st_blocks * 512

    def test_an_image_shrinks_when_a_file_is_removed_from_a_mount_with_discard(self):
        for discard in "", "discard":
            path = self.mount(discard)
            write_file(path, b"x" * self.LEN)
            # An image in memory also has pages for the holes that were read, so the file may lie in
            # pages that exist, and only the sum is known.
            full = self.taken()
            self.assertGreaterEqual(full, self.LEN)
            os.unlink(path)
            for name in "commits", "commits again":
                write_file(self.image.path(name), b"x")
                os.unlink(self.image.path(name))
            self.assertEqual(self.taken() + self.LEN // 2 < full, discard != "", self.taken())
            self.image.unmount()

    def test_fstrim_shrinks_the_image(self):
        path = self.mount()
        empty = self.taken()
        write_file(path, b"x" * self.LEN)
        write_file(self.image.path("kept"), b"x" * 4096)
        os.unlink(path)
        write_file(self.image.path("commits"), b"x")
        trimmed = struct.unpack("3Q", ioctl(self.image.point, FITRIM, EVERYTHING))[1]
        self.assertGreaterEqual(trimmed, self.LEN)
        self.assertLess(trimmed, 128 << 20)
        self.assertLess(self.taken(), empty + self.LEN // 2)
        behind = struct.pack("3Q", 1 << 40, (1 << 64) - 1, 0)
        self.assertEqual(error_of(ioctl, self.image.point, FITRIM, behind), errno.EINVAL)
        self.assertEqual(as_user(1000, ioctl, self.image.point, FITRIM, behind), errno.EPERM)

    def test_fsync_of_the_root_makes_every_file_durable(self):
        """Stands in for syncfs(2), which the kernel does not pass on."""
        self.mount("commit=3600")
        os.mkdir(self.image.path("d"))
        for name in "d/f", "d/later":
            with open(self.image.path(name), "wb") as f:
                f.write(b"text")
            if name == "d/f":
                root = os.open(self.image.point, os.O_RDONLY)
                os.fsync(root)
                os.close(root)
        self.image.kill()
        self.mount()
        self.assertEqual(os.stat(self.image.path("d/f")).st_size, 4)
        self.assertFalse(os.path.exists(self.image.path("d/later")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
