/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and prepares the device on which a file system is created. */
#include "mkfs/target.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "blockdev/bd_signature.h"
#include "layout/layout.h"

static bool is_regular(const struct target *t, struct stat *st)
{
    return !t->opened.ctrlr && t->fd >= 0 && fstat(t->fd, st) == 0 && S_ISREG(st->st_mode);
}

/* Opens the file. A missing file is created here; anything else must exist. */
static int target_open_file(struct target *t, uint64_t bytes, bool dry_run)
{
    const char *path = t->device->name.path;
    int mode = O_CLOEXEC | O_NONBLOCK | (dry_run ? O_RDONLY : O_RDWR);

    t->fd = open(path, mode);
    if (t->fd >= 0)
        return 0;
    if (errno != ENOENT)
        return tool_error(t->device->text, "cannot open: %s", strerror(errno));
    if (bytes == 0)
        return tool_error(t->device->text, "does not exist, --size creates it");
    if (dry_run)
        return 0;
    /*
     * Mode 0600, because readers of the image are not bound by the permissions of
     * files inside.
     */
    t->fd = open(path, mode | O_CREAT | O_EXCL, 0600);
    if (t->fd < 0)
        return tool_error(t->device->text, "cannot create: %s", strerror(errno));
    t->created = true;
    return 0;
}

static int open_controller(struct target *t, uint32_t flags)
{
    if (tool_open(t->device, flags, &t->opened) != 0)
        return -1;
    if (t->opened.dev->info.read_only && !(flags & BD_OPEN_READ_ONLY))
        return tool_error(t->device->text, "write protected, nothing can be made on it");
    int err = bd_signature_copy_ends(t->opened.dev, &t->fd);
    return err ? tool_error(t->device->text, "cannot read: %s", tool_strerror(err)) : 0;
}

int target_open(struct target *t, const struct tool_device *device, uint64_t bytes, bool dry_run)
{
    uint32_t flags = BD_OPEN_EXCLUSIVE | (dry_run ? BD_OPEN_READ_ONLY : 0);

    *t = (struct target){.device = device, .fd = -1};
    if (bd_name_is_ctrlr(&device->name))
        return open_controller(t, flags);
    if (target_open_file(t, bytes, dry_run) != 0)
        return -1;
    return t->fd >= 0 ? tool_open(device, flags, &t->opened) : 0;
}

void target_close(struct target *t, bool failed)
{
    bd_opened_close(&t->opened);
    if (t->fd >= 0)
        close(t->fd);
    if (failed && t->created)
        unlink(t->device->name.path);
}

/*
 * Finds the signature of gpunvmefs, which libblkid does not know. Returns 1 if
 * it is there, 0 if not, or -errno.
 */
static int find_own(int fd, struct bd_signature *s)
{
    le32 magic;
    ssize_t n = pread(fd, &magic, sizeof(magic), 0);

    if (n < 0)
        return -errno;
    if (n != (ssize_t)sizeof(magic) || lay_get32(magic) != LAY_MAGIC_SUPER)
        return 0;
    snprintf(s->name, sizeof(s->name), "a gpunvmefs file system");
    return 1;
}

int target_refuse_signature(const struct target *t, bool force)
{
    struct bd_signature s;

    if (t->fd < 0)
        return 0;
    int found = find_own(t->fd, &s);
    if (!found)
        found = bd_signature_find(t->fd, 0, t->opened.dev->info.lba_size, NULL, NULL, &s);
    if (found < 0)
        return tool_error(t->device->text, "cannot look for signatures: %s", tool_strerror(found));
    if (found && !force)
        return tool_error(t->device->text, "holds %s, -f overwrites it", s.name);
    return 0;
}

uint64_t target_bytes(const struct target *t, uint64_t wanted)
{
    struct stat st;
    uint64_t bytes = t->opened.dev ? t->opened.dev->info.bytes : 0;
    bool grows = !t->opened.dev || is_regular(t, &st);

    return grows && bytes < wanted ? wanted : bytes;
}

int target_check_room(const struct target *t, uint64_t bytes)
{
    struct statvfs vfs;
    struct stat st;

    if (!is_regular(t, &st) || fstatvfs(t->fd, &vfs) != 0)
        return 0;
    uint64_t room = (uint64_t)vfs.f_bavail * vfs.f_frsize + (uint64_t)st.st_blocks * 512;
    if (bytes <= room)
        return 0;
    return tool_error(t->device->text,
                      "needs %" PRIu64 " MiB for its bitmaps, %" PRIu64
                      " MiB are free where it lies: give a smaller --size",
                      bytes >> 20, room >> 20);
}

/*
 * Extends a regular file to the size of the file system and opens the device
 * again to learn its new size.
 */
static int target_extend_file(struct target *t, uint64_t wanted)
{
    struct stat st;

    if (!is_regular(t, &st) || (uint64_t)st.st_size >= wanted)
        return 0;
    if (ftruncate(t->fd, (off_t)wanted) != 0)
        return tool_error(t->device->text, "cannot extend: %s", strerror(errno));
    bd_opened_close(&t->opened);
    return tool_open(t->device, BD_OPEN_EXCLUSIVE, &t->opened);
}

int target_prepare(struct target *t, uint64_t wanted)
{
    int err = bd_signature_wipe(t->fd, t->opened.dev->info.lba_size);

    if (!err && t->opened.ctrlr)
        err = bd_signature_write_ends(t->opened.dev, t->fd);
    if (err)
        return tool_error(t->device->text, "cannot wipe old signatures: %s", tool_strerror(err));
    return target_extend_file(t, wanted);
}
