/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Words that follow the changes of an inode's extents, size and checksums.
 */
#include "fusefs/core/state.h"

static void watch_store(const struct ffs_watch *w)
{
    /* Release: a reader that sees the new count sees the change itself. */
    if (w->word)
        __atomic_store_n(w->word, w->changes, __ATOMIC_RELEASE);
}

void ffs_watch_add(struct ffs_inode *inode, struct ffs_watch *w)
{
    pthread_rwlock_wrlock(&inode->fs->meta);
    *w = (struct ffs_watch){.changes = 1, .next = inode->watches};
    inode->watches = w;
    pthread_rwlock_unlock(&inode->fs->meta);
}

void ffs_watch_share(struct ffs_inode *inode, struct ffs_watch *w, uint64_t *word)
{
    pthread_rwlock_wrlock(&inode->fs->meta);
    w->word = word;
    watch_store(w);
    pthread_rwlock_unlock(&inode->fs->meta);
}

void ffs_watch_remove(struct ffs_inode *inode, struct ffs_watch *w)
{
    struct ffs_watch **at = &inode->watches;

    pthread_rwlock_wrlock(&inode->fs->meta);
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    pthread_rwlock_unlock(&inode->fs->meta);
}

bool ffs_watch_any(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool any = inode->watches != NULL;
    ffs_meta_done(inode->fs);
    return any;
}

void ffs_watches_tell(struct ffs_inode *inode)
{
    for (struct ffs_watch *w = inode->watches; w; w = w->next) {
        w->changes++;
        watch_store(w);
    }
}

static bool watch_drop(struct ffs_watch *w, uint64_t first, uint64_t end)
{
    bool any = false;

    for (uint64_t i = first; i < end && i < w->n_sums; i++) {
        any |= __atomic_load_n(&w->sums[i], __ATOMIC_RELAXED) != LAY_NO_SUM;
        /* The submission of the write, which follows, releases it. */
        __atomic_store_n(&w->sums[i], LAY_NO_SUM, __ATOMIC_RELAXED);
    }
    return any;
}

/* ffs.meta, shared, excludes handles; the data lock excludes other calls for this inode. */
void ffs_watches_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end)
{
    ffs_meta_read(inode->fs);
    for (struct ffs_watch *w = inode->watches; w; w = w->next) {
        if (!w->sums || !watch_drop(w, first, end))
            continue;
        w->changes++;
        watch_store(w);
    }
    ffs_meta_done(inode->fs);
}
