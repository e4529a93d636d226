/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * File data: what reading, writing, truncation and maps share. The caller holds inode->data,
 * exclusively where the mapping changes, and not ffs.meta unless a function says so.
 *
 * A file is changed in units: one block, or 2 MiB where the inode is GPU-bound, so that no extent
 * of such a file ever begins or ends inside a unit.
 *
 * Order of a write: space is allocated as unwritten in one handle, the data goes to the device,
 * a second handle marks it written. Whatever a crash leaves reads as zeros or as this file's data,
 * and costs at most unwritten blocks, which belong to the file.
 *
 * Past the end of the file the last unit is zero on the device, as far as it is written, but for
 * what an append has left whose size a crash has lost: ffs_zero_edge() precedes each move of the
 * end.
 */
#ifndef FUSEFS_CORE_DATA_DATA_H
#define FUSEFS_CORE_DATA_DATA_H

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/extents.h"

/* Ranges handled at a time. */
#define FFS_EXTENT_WINDOW 32u

struct ffs_extent_window {
    struct ffs_extent extent[FFS_EXTENT_WINDOW];
    size_t n;
    uint64_t end; /* first file block past the last extent */
};

/* Transfers collected for one bd_submit(): three for an extent suffice. */
#define FFS_BATCH_MAX (3 * FFS_EXTENT_WINDOW)
struct ffs_batch {
    struct ffs *fs;
    size_t n;
    struct bd_io ios[FFS_BATCH_MAX]; /* n of them are set */
};
static inline void ffs_batch_init(struct ffs_batch *b, struct ffs *fs)
{
    b->fs = fs;
    b->n = 0;
}

/* What a file operation knows of its inode for as long as it holds inode->data. */
struct ffs_file {
    uint64_t size;
    uint64_t unit;   /* blocks */
    uint32_t flags;  /* LAY_INODE_* */
    bool unfinished; /* a truncation */
};
/* Takes ffs.meta. -EISDIR, -EINVAL (no regular file), -EIO after shutdown. */
int ffs_file_open(struct ffs_inode *inode, struct ffs_file *out);

static inline uint64_t ffs_unit_down(const struct ffs_file *f, uint64_t block)
{
    return block - block % f->unit;
}
static inline uint64_t ffs_unit_up(const struct ffs_file *f, uint64_t block)
{
    return ffs_unit_down(f, block + f->unit - 1);
}

/* As many extents of [first, end) as fit, the last one cut at end. Takes ffs.meta. */
int ffs_extent_window_get(struct ffs_inode *inode, uint64_t first, uint64_t end,
                          struct ffs_extent_window *out);

/* The batch must have room. */
void ffs_batch_add(struct ffs_batch *b, enum bd_op op, uint64_t block, uint64_t skip, void *buf,
                   uint64_t len);
int ffs_batch_run(struct ffs_batch *b);

/*
 * Allocates the holes of [first, end), whole units, as unwritten. *upto: how far it came, less
 * than end only together with an error (-ENOSPC).
 */
int ffs_reserve(struct ffs_inode *inode, const struct ffs_file *f, uint64_t first, uint64_t end,
                uint64_t *upto);

struct ffs_fresh;
/*
 * Makes the data written to [first, end) (blocks, whole units) part of the file: marks it written,
 * grows the file up to `size`, sets times. fresh NULL: blocks that were
 * unwritten get no checksums, and the other ones keep theirs.
 */
int ffs_written(struct ffs_inode *inode, uint64_t first, uint64_t end, uint64_t size,
                const struct ffs_fresh *fresh);

enum ffs_zero_what { FFS_ZERO_WRITTEN = 1, FFS_ZERO_UNWRITTEN = 2 };
/* Zeros [from, to) (bytes) on the device, where it is as `what` says; the mapping stays. */
int ffs_zero(struct ffs_inode *inode, uint64_t from, uint64_t to, enum ffs_zero_what what);
/*
 * Before the end of the file moves to `end` (bytes) or past it: zeros what the last unit holds from
 * the file's size on, as far as `end`. A crash between an append and the commit of its size leaves
 * the bytes of the append there.
 */
int ffs_zero_edge(struct ffs_inode *inode, const struct ffs_file *f, uint64_t end);

/* --- truncate.c ------------------------------------------------------------------------------ */

/*
 * Sets the size in a handle. Shrinking also frees what the handle has credits for; *unfinished:
 * the inode is on the orphan list and ffs_truncate_finish() has to follow.
 */
int ffs_size_set(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t size, bool *unfinished);
/* An orphan with links: frees what lies past its size, takes it off the list. */
int ffs_truncate_finish(struct ffs_inode *inode);
/* Before a handle that calls ffs_size_set(): reads the bitmaps that it will need. */
int ffs_prepare_shrink(struct ffs_inode *inode, uint64_t size);
/*
 * Finishes a truncation that an error has stopped: what lies past the end must not become part of
 * the file when it grows.
 */
int ffs_truncate_resume(struct ffs_inode *inode);
/*
 * ffs_file_open() before a change of bytes from `from` on (FFS_SIZE_MAX: of none), inode->data held
 * exclusively. Also -EROFS: mapped blocks are written without a handle to refuse; -EPERM: the inode
 * is immutable, or append-only and `from` lies before its end.
 */
int ffs_file_open_rw(struct ffs_inode *inode, uint64_t from, struct ffs_file *out);
/* Unmaps [first, end) in as many handles as it takes. */
int ffs_unmap(struct ffs_inode *inode, uint64_t first, uint64_t end);

#endif
