/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements block devices behind a file descriptor: plain files and the
 * kernel's block devices.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "blockdev/bd_kernel.h"
#include "blockdev/bd_pr.h"
#include "blockdev/bdev.h"
#include "support/file_lock.h"
#include "support/page.h"

#define ZEROES_CHUNK (256u << 10)

struct file_dev {
    struct bd_dev dev;
    int fd;
    int behind; /* the locked file behind a loop device, or -1 */
    bool is_block;
    uint64_t reserved; /* key of the reservation of this host; 0: none */
};

static struct file_dev *file_of(struct bd_dev *dev)
{
    return (struct file_dev *)dev;
}

/* Moves all bytes. A read of 0 bytes: another process has truncated it. */
static int file_move_all(int fd, bool write, char *buf, uint64_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = TEMP_FAILURE_RETRY(write ? pwrite(fd, buf, len, (off_t)offset)
                                             : pread(fd, buf, len, (off_t)offset));

        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        buf += n;
        offset += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return 0;
}

static int file_flush(int fd)
{
    return TEMP_FAILURE_RETRY(fdatasync(fd)) ? -errno : 0;
}

static int write_io(struct file_dev *f, const struct bd_io *io)
{
    int rc = file_move_all(f->fd, true, io->buf, io->len, io->offset);

    return rc || !(io->flags & BD_FUA) ? rc : file_flush(f->fd);
}

/* Returns 0, -EOPNOTSUPP if the mode is not supported, or -errno. */
static int file_allocate(int fd, int mode, uint64_t offset, uint64_t len)
{
    return TEMP_FAILURE_RETRY(fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)len))
               ? -errno
               : 0;
}

static int write_zero_bytes(int fd, uint64_t offset, uint64_t len)
{
    char *zeroes = calloc(1, ZEROES_CHUNK);
    int rc = zeroes ? 0 : -ENOMEM;

    while (!rc && len > 0) {
        uint64_t n = len < ZEROES_CHUNK ? len : ZEROES_CHUNK;

        rc = file_move_all(fd, true, zeroes, n, offset);
        offset += n;
        len -= n;
    }
    free(zeroes);
    return rc;
}

static int file_write_zeroes(struct file_dev *f, uint64_t offset, uint64_t len)
{
    int rc;

    if (len == 0)
        return 0;
    rc = file_allocate(f->fd, FALLOC_FL_ZERO_RANGE, offset, len);
    if (rc == -EOPNOTSUPP && !f->is_block)
        rc = file_allocate(f->fd, FALLOC_FL_PUNCH_HOLE, offset, len);
    return rc == -EOPNOTSUPP ? write_zero_bytes(f->fd, offset, len) : rc;
}

static int file_discard(struct file_dev *f, uint64_t offset, uint64_t len)
{
    uint64_t range[2] = {offset, len};
    int rc;

    if (len == 0)
        return 0;
    if (f->is_block)
        rc = ioctl(f->fd, BLKDISCARD, range) ? -errno : 0;
    else
        rc = file_allocate(f->fd, FALLOC_FL_PUNCH_HOLE, offset, len);
    return rc == -EOPNOTSUPP ? 0 : rc;
}

static int file_run(struct file_dev *f, const struct bd_io *io)
{
    switch (io->op) {
    case BD_READ:
        return file_move_all(f->fd, false, io->buf, io->len, io->offset);
    case BD_WRITE:
        return write_io(f, io);
    case BD_WRITE_ZEROES:
        return file_write_zeroes(f, io->offset, io->len);
    case BD_DISCARD:
        return file_discard(f, io->offset, io->len);
    case BD_FLUSH:
        return f->dev.info.read_only ? 0 : file_flush(f->fd);
    }
    return -EINVAL;
}

/*
 * Returns -EACCES for an error that is due to the reservation of another host.
 * The kernel reports the loss of pages that it has written back as -EIO.
 */
static int file_error(const struct file_dev *f, int rc)
{
    if (rc == -EBADE || (rc == -EIO && f->reserved && bd_pr_keep(f->fd, f->reserved) == -EACCES))
        return -EACCES;
    return rc;
}

static int file_submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n; i++) {
        ios[i].error = file_error(file_of(dev), file_run(file_of(dev), &ios[i]));
        if (!rc)
            rc = ios[i].error;
    }
    return rc;
}

static void *file_dma_alloc(struct bd_dev *dev, size_t len)
{
    void *buf;

    (void)dev;
    if (len == 0 || len > SIZE_MAX / 2)
        return NULL;
    buf = mmap(NULL, page_whole(len), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return buf == MAP_FAILED ? NULL : buf;
}

static void file_dma_free(struct bd_dev *dev, void *buf, size_t len)
{
    (void)dev;
    munmap(buf, page_whole(len));
}

static void file_close(struct bd_dev *dev)
{
    struct file_dev *f = file_of(dev);

    if (f->reserved)
        (void)bd_pr_release(f->fd, f->reserved);
    close(f->fd);
    if (f->behind >= 0)
        close(f->behind);
    free(f);
}

static int file_size(const struct file_dev *f, uint64_t *bytes, uint32_t *own_lba)
{
    struct stat st;
    int sector;

    *own_lba = 512;
    if (!f->is_block) {
        if (fstat(f->fd, &st))
            return -errno;
        *bytes = (uint64_t)st.st_size;
        return 0;
    }
    if (ioctl(f->fd, BLKGETSIZE64, bytes) || ioctl(f->fd, BLKSSZGET, &sector))
        return -errno;
    *own_lba = (uint32_t)sector;
    return 0;
}

static int file_capacity(struct bd_dev *dev, uint64_t *bytes)
{
    uint32_t own_lba;

    return file_size(file_of(dev), bytes, &own_lba);
}

static int file_reserve(struct bd_dev *dev, uint64_t key, bool preempt, uint64_t *holder)
{
    struct file_dev *f = file_of(dev);
    int rc = f->is_block ? bd_pr_take(f->fd, key, preempt, holder) : -ENOTSUP;

    if (!rc)
        f->reserved = key;
    return rc;
}

static const struct bd_ops file_ops = {
    .submit = file_submit,
    .dma_alloc = file_dma_alloc,
    .dma_free = file_dma_free,
    .close = file_close,
    .capacity = file_capacity,
    .reserve = file_reserve,
};

/*
 * Opens the path to learn its type, and a block device again with O_EXCL, which
 * is defined for block devices only and fails with EBUSY while the kernel has
 * it mounted. O_NONBLOCK prevents the open of a FIFO from blocking.
 */
static int file_open_path(const char *path, uint32_t flags, struct file_dev *f)
{
    int mode = (flags & BD_OPEN_READ_ONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
    struct stat st;
    int fd = open(path, mode);
    int rc = 0;

    if (fd < 0)
        return errno == EISDIR ? -ENOTBLK : -errno;
    if (fstat(fd, &st))
        rc = -errno;
    else if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
        rc = -ENOTBLK;
    else if (flags & BD_OPEN_EXCLUSIVE && S_ISREG(st.st_mode) && bd_loop_in_use(path))
        rc = -EBUSY;
    f->is_block = !rc && S_ISBLK(st.st_mode);
    if (f->is_block && flags & BD_OPEN_EXCLUSIVE) {
        close(fd);
        f->fd = open(path, mode | O_EXCL);
        return f->fd < 0 ? -errno : 0;
    }
    if (rc)
        close(fd);
    f->fd = fd;
    return rc;
}

static int bd_file_lock(int fd, uint32_t flags)
{
    int kind = LOCK_SH;

    if (flags & BD_OPEN_EXCLUSIVE)
        kind = LOCK_EX;
    else if (flags & BD_OPEN_READ_ONLY)
        return 0;
    return file_lock(fd, kind);
}

/* Locks the file behind a loop device too: it may be open by its name. */
static int lock_behind(struct file_dev *f, uint32_t flags)
{
    f->behind = f->is_block ? bd_loop_file(f->fd) : -1;
    return f->behind < 0 ? 0 : bd_file_lock(f->behind, flags);
}

static uint64_t file_lock_id(const struct file_dev *f)
{
    struct stat st;

    if (fstat(f->fd, &st) != 0)
        return 0;
    return f->is_block ? bd_lock_id(BD_LOCK_BLOCK, st.st_rdev, 0)
                       : bd_lock_id(BD_LOCK_FILE, st.st_dev, st.st_ino);
}

static bool file_on_fabric(int fd)
{
    char folder[64];
    struct stat st;

    if (fstat(fd, &st) != 0)
        return false;
    snprintf(folder, sizeof(folder), "/sys/dev/block/%u:%u", major(st.st_rdev), minor(st.st_rdev));
    return bd_on_fabric(folder);
}

static int file_describe(struct file_dev *f, const char *path, uint32_t flags, uint32_t lba_size)
{
    struct bd_info *info = &f->dev.info;
    uint32_t own_lba;
    int rc = file_size(f, &info->bytes, &own_lba);

    if (rc)
        return rc;
    info->lba_size = lba_size ? lba_size : own_lba;
    if ((info->lba_size != 512 && info->lba_size != 4096) || info->lba_size < own_lba)
        return -EINVAL;
    info->bytes -= info->bytes % info->lba_size;
    info->volatile_cache = true;
    info->read_only = flags & BD_OPEN_READ_ONLY;
    info->discards = true;
    info->lock = flags & BD_OPEN_EXCLUSIVE ? file_lock_id(f) : 0;
    info->shared = f->is_block && file_on_fabric(f->fd);
    snprintf(info->name, sizeof(info->name), "%s", path);
    return 0;
}

int bd_file_open(const char *path, uint32_t flags, uint32_t lba_size, struct bd_dev **out)
{
    struct file_dev *f = calloc(1, sizeof(*f));
    int rc;

    if (!f)
        return -ENOMEM;
    f->dev.ops = &file_ops;
    rc = file_open_path(path, flags, f);
    if (rc) {
        free(f);
        return rc;
    }
    f->behind = -1;
    rc = bd_file_lock(f->fd, flags);
    if (!rc)
        rc = lock_behind(f, flags);
    if (!rc)
        rc = file_describe(f, path, flags, lba_size);
    if (rc)
        file_close(&f->dev);
    else
        *out = &f->dev;
    return rc;
}
