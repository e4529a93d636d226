/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records which contents of an inode the kernel may have cached. It is a hint
 * without false negatives, which avoids unneeded notifications of changes that
 * bypass the cache. The other bits of the inode's word belong to caches.h.
 */
#ifndef FUSEFS_DAEMON_REQUEST_KERNEL_CACHE_H
#define FUSEFS_DAEMON_REQUEST_KERNEL_CACHE_H

#include <stdbool.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/state/daemon.h"

enum kernel_cache {
    KERNEL_PAGES = 1, /* pages of the file; stays set while the kernel knows the inode */
    KERNEL_ATTR = 2,  /* attributes sent since the last invalidation */
};

/*
 * Called before the data or the attributes are read for the kernel. The
 * sequentially consistent store precedes that read, and a writer checks the
 * bits after its write. So either the writer sees the bit, or the reader sees
 * the new data.
 */
static inline void kernel_cache_add(struct ffs_inode *inode, enum kernel_cache what)
{
    uint32_t *word = ffs_user_word(inode);

    if (!(__atomic_load_n(word, __ATOMIC_SEQ_CST) & what))
        __atomic_fetch_or(word, what, __ATOMIC_SEQ_CST);
}

static inline bool kernel_cache_has(struct ffs_inode *inode, enum kernel_cache what)
{
    return __atomic_load_n(ffs_user_word(inode), __ATOMIC_SEQ_CST) & what;
}

/* Clears the bit and returns its value. */
static inline bool kernel_cache_take(struct ffs_inode *inode, enum kernel_cache what)
{
    return kernel_cache_has(inode, what) &&
           (__atomic_fetch_and(ffs_user_word(inode), ~(uint32_t)what, __ATOMIC_SEQ_CST) & what);
}

/*
 * Returns true if the kernel may hold data of the inode that is newer than the
 * file system's: data written with writeback_cache, or stored through a
 * mapping. The kernel has such pages only of a file that is open for writing.
 */
static inline bool kernel_cache_is_newer(const struct daemon *d, struct ffs_inode *inode)
{
    return file_may_be_dirty(inode) &&
           (d->writeback_cache || kernel_cache_has(inode, KERNEL_PAGES));
}

#endif
