/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps the health of the file system: its flags, failures and log messages.
 * Has the calls by which layout/ reads and writes the device.
 */
#include "fusefs/core/state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <syslog.h>
#include <time.h>

#include "support/clock.h"

unsigned ffs_health(struct ffs *fs)
{
    return atomic_load(&fs->health);
}

int ffs_alive(struct ffs *fs)
{
    return ffs_health(fs) & FFS_DOWN ? -EIO : 0;
}

int ffs_writable(struct ffs *fs)
{
    unsigned health = ffs_health(fs);

    if (health & FFS_DOWN)
        return -EIO;
    return health ? -EROFS : 0;
}

void ffs_log(struct ffs *fs, int level, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (!fs->opts.log)
        return;
    int head = snprintf(line, sizeof(line), "%s: ", fs->dev->info.name); /* at most 63 bytes */
    va_start(ap, fmt);
    vsnprintf(line + head, sizeof(line) - (size_t)head, fmt, ap);
    va_end(ap);
    fs->opts.log(level, line);
}

int ffs_fail(struct ffs *fs, const char *what, int err)
{
    unsigned before = atomic_fetch_or(&fs->health, FFS_FAILED);

    if (!(before & FFS_FAILED))
        ffs_log(fs, LOG_ERR, "%s: %s; the file system is read-only now", what,
                err == -EACCES
                    ? "another host has reserved the device, what was not durable is lost"
                    : strerror(-err));
    return -EIO;
}

/*
 * Runs one flush at a time. A flush holds a queue pair until it ends, and reads need the other
 * ones. A flush under way may have begun too early for the caller; the next one serves all waiters.
 * The kernel reports pages that it could not write only once, and drops them. A waiter whose
 * predecessor failed therefore finds the file system failed, and does not flush again.
 * A read-only mount has written nothing, and a controller refuses the flush of a host if another
 * one has reserved the namespace.
 */
int ffs_flush(struct ffs *fs)
{
    struct ffs_flushes *f = &fs->flushes;
    uint64_t seen = atomic_load(&f->begun);

    pthread_mutex_lock(&f->lock);
    int err = ffs_health(fs) & FFS_FAILED ? -EIO : 0;
    if (!err && !fs->opts.read_only && atomic_load(&f->begun) == seen) {
        atomic_store(&f->begun, seen + 1);
        err = bd_flush(fs->dev);
        if (err)
            err = ffs_fail(fs, "flush", err);
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

void ffs_device_lost(struct ffs *fs)
{
    ffs_fail(fs, "the device is lost", -EIO);
}

void ffs_background_hurry(struct ffs *fs)
{
    struct ffs_background *b = &fs->background;

    pthread_mutex_lock(&b->lock);
    b->hurry = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

/* Returns what the number of a logical address counts. */
static const char *state_noun_of(uint64_t addr)
{
    switch (lay_addr_kind(addr)) {
    case LAY_KIND_SUPER:
        return "superblock";
    case LAY_KIND_MAP:
        return "block of the chunk map";
    case LAY_KIND_CHUNK:
        return "metadata block";
    case LAY_KIND_BITMAP:
        return "bitmap";
    case LAY_KIND_SUMS:
        return "checksum block";
    default:
        return "block";
    }
}

void ffs_note_corrupt(struct ffs *fs, uint64_t block, uint64_t ino, const char *why)
{
    ffs_log(fs, LOG_ERR, "corrupt: %s %llu, inode %llu: %s; run fsck.gpunvme", state_noun_of(block),
            (unsigned long long)lay_addr_number(block), (unsigned long long)ino, why);
    atomic_fetch_or(&fs->health, FFS_CORRUPT);
    ffs_background_hurry(fs);
}

void ffs_meta_read(struct ffs *fs)
{
    pthread_rwlock_rdlock(&fs->meta);
}

void ffs_meta_done(struct ffs *fs)
{
    pthread_rwlock_unlock(&fs->meta);
}

struct lay_time ffs_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return lay_time_make(now.tv_sec, (uint32_t)now.tv_nsec);
}

uint64_t ffs_free_blocks(struct ffs *fs)
{
    return lay_get64(ffs_super(fs)->area.free_blocks);
}

struct bd_dev *ffs_dev(struct ffs *fs)
{
    return fs->dev;
}

const struct lay_geometry *ffs_geometry(struct ffs *fs)
{
    return &fs->geo;
}

void *ffs_dma_alloc(struct ffs *fs, size_t len)
{
    return bd_dma_alloc(fs->dev, len);
}

void ffs_dma_free(struct ffs *fs, void *buf, size_t len)
{
    bd_dma_free(fs->dev, buf, len);
}

/* --- The device ------------------------------------------------------------------------------- */

static int state_read(void *dev, uint64_t block, void *data)
{
    return bd_read(dev, ffs_bytes(block), data, LAY_BLOCK_SIZE);
}

static int state_write(void *dev, uint64_t block, const void *data)
{
    return bd_write(dev, ffs_bytes(block), data, LAY_BLOCK_SIZE, 0);
}

static int state_flush(void *dev)
{
    return bd_flush(dev);
}

struct lay_io ffs_io(struct bd_dev *dev)
{
    return (struct lay_io){state_read, state_write, state_flush, dev};
}

uint64_t ffs_random(void)
{
    uint64_t value = 0;

    /* Early in the boot of a machine there may be no random bytes yet; a mount does not wait. */
    while (value == 0) {
        if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value))
            value = now_ns() * 0x9e3779b97f4a7c15ull;
    }
    return value;
}
