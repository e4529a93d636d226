/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads and changes attributes of inodes. */
#include <errno.h>
#include <sys/sysmacros.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/dir.h"
#include "fusefs/core/names/xattr.h"
#include "fusefs/core/state.h"

/* --- Attributes ------------------------------------------------------------------------------- */

uint32_t ffs_rdev_pack(uint32_t rdev)
{
    return major(rdev) << 20 | minor(rdev);
}

static uint32_t attr_rdev_unpack(uint32_t stored)
{
    return (uint32_t)makedev(stored >> 20, stored & 0xfffff);
}

static struct timespec attr_timespec_of(struct lay_time t)
{
    return (struct timespec){.tv_sec = lay_time_sec(t), .tv_nsec = lay_get32(t.nsec)};
}

static void attr_fill(const struct ffs_inode *inode, struct ffs_attr *out)
{
    const struct lay_inode *d = &inode->d;

    *out = (struct ffs_attr){
        .ino = inode->ino,
        .generation = lay_get32(d->generation),
        .mode = lay_get32(d->mode),
        .nlink = lay_get32(d->nlink),
        .uid = lay_get32(d->uid),
        .gid = lay_get32(d->gid),
        .rdev = attr_rdev_unpack(lay_get32(d->rdev)),
        .size = lay_get64(d->size),
        .blocks = lay_get64(d->blocks) * (LAY_BLOCK_SIZE / 512),
        .atime = attr_timespec_of(d->atime),
        .mtime = attr_timespec_of(d->mtime),
        .ctime = attr_timespec_of(d->ctime),
        .btime = attr_timespec_of(d->btime),
        .flags = lay_get32(d->flags),
    };
}

void ffs_getattr(struct ffs_inode *inode, struct ffs_attr *out)
{
    ffs_meta_read(inode->fs);
    ffs_stamp_see(inode);
    attr_fill(inode, out);
    ffs_meta_done(inode->fs);
}

static bool attr_time_ok(const struct timespec *t)
{
    return t->tv_nsec >= 0 && t->tv_nsec < 1000000000;
}

/*
 * Returns -EPERM for a refused change. An immutable inode accepts a change of its flags only; an
 * append-only one accepts the current time as well.
 */
static int attr_check_fixed(const struct ffs_inode *inode, uint32_t set)
{
    uint32_t flags = lay_get32(inode->d.flags);
    uint32_t now = FFS_SET_ATIME_NOW | FFS_SET_MTIME_NOW | FFS_SET_CTIME;

    if (flags & LAY_INODE_IMMUTABLE)
        return set & ~(uint32_t)FFS_SET_FLAGS ? -EPERM : 0;
    if (flags & LAY_INODE_APPEND)
        return set & ~(now | FFS_SET_FLAGS) ? -EPERM : 0;
    return 0;
}

/* Checks everything that can be refused, before anything changes. */
static int attr_check_set(const struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set)
{
    uint32_t type = ffs_mode(inode) & S_IFMT;
    int err = attr_check_fixed(inode, set);

    if (err)
        return err;
    if ((set & FFS_SET_SIZE) && type != S_IFREG)
        return type == S_IFDIR ? -EISDIR : -EINVAL;
    if ((set & FFS_SET_SIZE) && attr->size > FFS_SIZE_MAX)
        return -EFBIG;
    if (((set & FFS_SET_ATIME) && !attr_time_ok(&attr->atime)) ||
        ((set & FFS_SET_MTIME) && !attr_time_ok(&attr->mtime)) ||
        ((set & FFS_SET_CTIME) && !attr_time_ok(&attr->ctime)))
        return -EINVAL;
    if (!(set & FFS_SET_FLAGS) || attr->flags == lay_get32(inode->d.flags))
        return 0;
    if ((attr->flags & ~LAY_INODE_FLAGS) || (type != S_IFREG && type != S_IFDIR))
        return -EINVAL;
    /*
     * A file with blocks cannot become GPU-bound: its blocks were not allocated in units of 2 MiB.
     */
    bool has_blocks = lay_get16(inode->d.map_kind) == LAY_MAP_TREE || lay_get16(inode->d.map_count);
    return type == S_IFREG && (attr->flags & LAY_INODE_GPU_BOUND) && has_blocks ? -EINVAL : 0;
}

static void attr_set_owner_and_mode(struct ffs_inode *inode, const struct ffs_attr *attr,
                                    uint32_t set)
{
    if (set & (FFS_SET_UID | FFS_SET_GID))
        inode->d.mode = lay_put32(ffs_without_setid(ffs_mode(inode), false));
    if (set & FFS_SET_MODE)
        inode->d.mode = lay_put32((ffs_mode(inode) & S_IFMT) | (attr->mode & 07777));
    if (set & FFS_SET_UID)
        inode->d.uid = lay_put32(attr->uid);
    if (set & FFS_SET_GID)
        inode->d.gid = lay_put32(attr->gid);
    if (set & FFS_SET_FLAGS)
        inode->d.flags = lay_put32(attr->flags);
}

static void attr_set_times(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set)
{
    struct lay_time now = ffs_stamp_exact(inode->fs);

    if (set & FFS_SET_ATIME)
        inode->d.atime = lay_time_make(attr->atime.tv_sec, (uint32_t)attr->atime.tv_nsec);
    if (set & FFS_SET_MTIME)
        inode->d.mtime = lay_time_make(attr->mtime.tv_sec, (uint32_t)attr->mtime.tv_nsec);
    if (set & FFS_SET_CTIME)
        inode->d.ctime = lay_time_make(attr->ctime.tv_sec, (uint32_t)attr->ctime.tv_nsec);
    if (set & FFS_SET_ATIME_NOW)
        inode->d.atime = now;
    if (set & FFS_SET_MTIME_NOW)
        inode->d.mtime = now;
}

static int attr_set_in(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_attr *attr,
                       uint32_t set, bool *unfinished)
{
    int err = attr_check_set(inode, attr, set);

    if (!err)
        err = ffs_touch(tx, inode, FFS_CTIME);
    if (!err && (set & FFS_SET_MODE))
        err = ffs_acl_chmod(tx, inode, attr->mode);
    if (!err && (set & FFS_SET_SIZE))
        err = ffs_size_set(tx, inode, attr->size, unfinished);
    if (err)
        return err;
    attr_set_owner_and_mode(inode, attr, set);
    attr_set_times(inode, attr, set);
    return 0;
}

static int attr_set_once(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set,
                         struct ffs_attr *out)
{
    bool unfinished = false;
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);

    if (err)
        return err;
    err = attr_set_in(tx, inode, attr, set, &unfinished);
    if (!err && out) {
        ffs_stamp_see(inode);
        attr_fill(inode, out);
    }
    err = ffs_tx_finish(tx, err);
    if (err || !unfinished)
        return err;
    err = ffs_truncate_finish(inode);
    if (out)
        ffs_getattr(inode, out);
    return err;
}

/* Prepares the data for a change of size or flags. The caller holds inode->data exclusively. */
static int attr_prepare_data(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set)
{
    struct ffs_file f;

    if (!(set & FFS_SET_SIZE))
        return ffs_truncate_resume(inode);
    int err = ffs_file_open_rw(inode, 0, &f);
    if (!err)
        err = ffs_prepare_shrink(inode, attr->size);
    return err ? err : ffs_zero_edge(inode, &f, attr->size);
}

int ffs_clear_setid(struct ffs_inode *inode, bool outsider)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, 8, &tx);

    if (err)
        return err;
    err = ffs_touch(tx, inode, FFS_CTIME);
    if (!err)
        inode->d.mode = lay_put32(ffs_without_setid(ffs_mode(inode), outsider));
    return ffs_tx_finish(tx, err);
}

int ffs_setattr(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set,
                struct ffs_attr *out)
{
    bool tried = false, moves_data = set & (FFS_SET_SIZE | FFS_SET_FLAGS);
    int err = 0;

    if (moves_data) {
        pthread_rwlock_wrlock(&inode->data);
        err = attr_prepare_data(inode, attr, set);
    }
    if (!err) {
        do
            err = attr_set_once(inode, attr, set, out);
        while (ffs_retry_space(inode->fs, err, &tried));
    }
    if (moves_data)
        pthread_rwlock_unlock(&inode->data);
    return err;
}
