/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares functions on file data that reading, writing, truncation and maps
 * share. The caller holds inode->data, exclusively if the mapping changes, and
 * does not hold ffs.meta unless a function requires it.
 *
 * A file is changed in units of one block, or of 2 MiB if the inode is
 * GPU-bound, so that no extent of such a file ever begins or ends inside a
 * unit.
 *
 * A write has three steps. Space is allocated as unwritten in one handle, the
 * data is written to the device, and a second handle marks the space as
 * written. After a crash every byte therefore reads as zero or as data of this
 * file, and at most some unwritten blocks, which belong to the file, are
 * wasted.
 *
 * The part of the last unit after the end of the file is zero on the device as
 * far as it is written, except for the data of an append whose size was lost in
 * a crash. Therefore ffs_zero_edge() precedes each change of the end.
 */
#ifndef FUSEFS_CORE_DATA_DATA_H
#define FUSEFS_CORE_DATA_DATA_H

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/extents.h"

/* Maximum number of extents handled at a time. */
#define FFS_EXTENT_WINDOW 32u

struct ffs_extent_window {
    struct ffs_extent extent[FFS_EXTENT_WINDOW];
    size_t n;
    uint64_t end; /* first file block after the last extent */
};

/*
 * Maximum number of transfers for one bd_submit(); an extent needs at most
 * three.
 */
#define FFS_BATCH_MAX (3 * FFS_EXTENT_WINDOW)
struct ffs_batch {
    struct ffs *fs;
    size_t n;
    struct bd_io ios[FFS_BATCH_MAX]; /* the first n are set */
};
static inline void ffs_batch_init(struct ffs_batch *b, struct ffs *fs)
{
    b->fs = fs;
    b->n = 0;
}

/*
 * Holds properties of an inode that do not change while a file operation holds
 * inode->data.
 */
struct ffs_file {
    uint64_t size;
    uint64_t unit;   /* in blocks */
    uint32_t flags;  /* LAY_INODE_* */
    bool unfinished; /* a truncation has not finished */
};

static inline int data_check_type(const struct ffs_inode *inode)
{
    if (ffs_is_dir(inode))
        return -EISDIR;
    return S_ISREG(ffs_mode(inode)) ? 0 : -EINVAL;
}

/* The caller holds ffs.meta. */
static inline struct ffs_file ffs_file_of(const struct ffs_inode *inode)
{
    uint32_t flags = lay_get32(inode->d.flags);

    return (struct ffs_file){.size = ffs_size(inode),
                             .unit = flags & LAY_INODE_GPU_BOUND ? LAY_GPU_ALIGN : 1,
                             .flags = flags,
                             .unfinished = ffs_on_orphan_list(inode) && ffs_nlink(inode) > 0};
}

/*
 * Takes ffs.meta. Returns -EISDIR, -EINVAL if the inode is no regular file, or
 * -EIO after shutdown.
 */
static inline int ffs_file_open(struct ffs_inode *inode, struct ffs_file *out)
{
    int err = ffs_alive(inode->fs);

    if (err)
        return err;
    ffs_meta_read(inode->fs);
    err = data_check_type(inode);
    *out = ffs_file_of(inode);
    ffs_meta_done(inode->fs);
    return err;
}

static inline uint64_t ffs_unit_down(const struct ffs_file *f, uint64_t block)
{
    return block - block % f->unit;
}
static inline uint64_t ffs_unit_up(const struct ffs_file *f, uint64_t block)
{
    return ffs_unit_down(f, block + f->unit - 1);
}

/*
 * Gets as many extents of [first, end) as fit, the last one cut at end. Takes
 * ffs.meta.
 */
int ffs_extent_window_get(struct ffs_inode *inode, uint64_t first, uint64_t end,
                          struct ffs_extent_window *out);

/* Adds a transfer. The batch must have room. */
void ffs_batch_add(struct ffs_batch *b, enum bd_op op, uint64_t block, void *buf, uint64_t len);
int ffs_batch_run(struct ffs_batch *b);

/*
 * Allocates the holes of [first, end), whole units, as unwritten. *upto is the
 * end of the allocated part, which is less than `end` only if an error is
 * returned (-ENOSPC).
 */
int ffs_reserve(struct ffs_inode *inode, const struct ffs_file *f, uint64_t first, uint64_t end,
                uint64_t *upto);

struct ffs_fresh;
/*
 * Makes the data written to [first, end) (blocks, whole units) part of the
 * file: marks it as written, extends the file up to `size`, and sets times. If
 * fresh is NULL, blocks that were unwritten get no checksums and all others
 * keep theirs.
 */
int ffs_written(struct ffs_inode *inode, uint64_t first, uint64_t end, uint64_t size,
                const struct ffs_fresh *fresh);

enum ffs_zero_what { FFS_ZERO_WRITTEN = 1, FFS_ZERO_UNWRITTEN = 2 };
/*
 * Zeros [from, to) (bytes) on the device where the state of the extents matches
 * `what`. The mapping does not change.
 */
int ffs_zero(struct ffs_inode *inode, uint64_t from, uint64_t to, enum ffs_zero_what what);
/*
 * Called before the end of the file moves to `end` (bytes) or beyond. Zeros the
 * last unit from the file's size up to `end`, because a crash between an append
 * and the commit of its size leaves data of the append there.
 */
int ffs_zero_edge(struct ffs_inode *inode, const struct ffs_file *f, uint64_t end);

/* --- Truncation (write.c) --------------------------------------------------------------------- */

/*
 * Sets the size in a handle. When the file shrinks, also frees as much as the
 * handle has credits for. If *unfinished is set, the inode is on the orphan
 * list and ffs_truncate_finish() must follow.
 */
int ffs_size_set(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t size, bool *unfinished);
/*
 * Frees the blocks past the size of an orphan that has links, and removes it
 * from the list.
 */
int ffs_truncate_finish(struct ffs_inode *inode);
/* Reads the bitmaps that ffs_size_set() will need. Called before the handle. */
int ffs_prepare_shrink(struct ffs_inode *inode, uint64_t size);
/*
 * Finishes a truncation that was stopped by an error, because blocks past the
 * end must not become part of the file when it grows.
 */
int ffs_truncate_resume(struct ffs_inode *inode);
/*
 * Like ffs_file_open(), before a change of bytes from `from` on (FFS_SIZE_MAX
 * means no bytes), with inode->data held exclusively. Also returns -EROFS,
 * because mapped blocks are written without a handle that could refuse, and
 * -EPERM if the inode is immutable, or is append-only and `from` lies before
 * its end.
 */
int ffs_file_open_rw(struct ffs_inode *inode, uint64_t from, struct ffs_file *out);
/* Unmaps [first, end) in as many handles as needed. */
int ffs_unmap(struct ffs_inode *inode, uint64_t first, uint64_t end);
/* Like ffs_scrub() without flags up to the end of the file, but compares at most 2 MiB. */
int ffs_scrub_step(struct ffs_inode *inode, uint64_t offset, struct ffs_scrub *out);

#endif
