/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The orphan list contains inodes whose change must be finished after a crash
 * (FORMAT.md 3.5). It is linked through next_orphan from the superblock, most
 * recent first.
 */
#include <assert.h>
#include <errno.h>
#include <syslog.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/state.h"

int ffs_orphan_add(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs *fs = tx->fs;

    if (lay_get64(inode->d.next_orphan) != 0)
        return 0;
    int err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_tx_dirty(tx, fs->super);
    if (err)
        return err;
    uint64_t head = lay_get64(ffs_super(fs)->orphan);
    inode->d.next_orphan = lay_put64(head);
    inode->orphan_prev = 0;
    ffs_super(fs)->orphan = lay_put64(inode->ino);
    struct ffs_inode *second;
    if (head == LAY_NONE || ffs_inode_load(fs, head, true, &second))
        return 0;
    second->orphan_prev = inode->ino;
    ffs_inode_put_meta(second);
    return 0;
}

/*
 * Returns true if the inode named by the hint is the predecessor; *out is then
 * referenced.
 */
static bool orphan_try_hint(struct ffs *fs, const struct ffs_inode *inode, struct ffs_inode **out)
{
    if (inode->orphan_prev == 0 || ffs_inode_load(fs, inode->orphan_prev, true, out))
        return false;
    if (lay_get64((*out)->d.next_orphan) == inode->ino)
        return true;
    ffs_inode_put_meta(*out);
    *out = NULL;
    return false;
}

/*
 * Finds the predecessor in the list and adds a reference, by the hint, or else
 * by a walk from the head. Returns NULL on an error.
 */
static int orphan_find_prev(struct ffs *fs, const struct ffs_inode *inode, struct ffs_inode **out)
{
    uint64_t at = lay_get64(ffs_super(fs)->orphan);
    uint64_t left = lay_get64(ffs_super(fs)->inodes);

    if (orphan_try_hint(fs, inode, out))
        return 0;
    while (at != LAY_NONE && at != 0 && left-- > 0) {
        int err = ffs_inode_load(fs, at, true, out);
        if (err)
            return err == -ESTALE ? ffs_corrupt(fs, 0, at, "on the orphan list, but free") : err;
        at = lay_get64((*out)->d.next_orphan);
        if (at == inode->ino)
            return 0;
        ffs_inode_put_meta(*out);
        *out = NULL;
    }
    return ffs_corrupt(fs, 0, inode->ino, "not on the orphan list");
}

int ffs_orphan_del(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs *fs = tx->fs;
    struct ffs_inode *prev = NULL;
    uint64_t next = lay_get64(inode->d.next_orphan);

    if (next == 0)
        return 0;

    int err = ffs_inode_dirty(tx, inode);
    if (!err)
        err = ffs_tx_dirty(tx, fs->super);
    if (!err && lay_get64(ffs_super(fs)->orphan) != inode->ino)
        err = orphan_find_prev(fs, inode, &prev);
    if (!err && prev)
        err = ffs_inode_dirty(tx, prev);
    if (err)
        goto put;
    if (prev)
        prev->d.next_orphan = lay_put64(next);
    else
        ffs_super(fs)->orphan = lay_put64(next);
    inode->d.next_orphan = lay_put64(0);

    struct ffs_inode *after;
    if (next != LAY_NONE && !ffs_inode_load(fs, next, true, &after)) {
        after->orphan_prev = prev ? prev->ino : 0;
        ffs_inode_put_meta(after);
    }
put:
    if (prev)
        ffs_inode_put_meta(prev);
    return err;
}

/* Finishes the inode at the head of the list. */
static int orphan_finish_one(struct ffs *fs, uint64_t ino)
{
    struct ffs_inode *inode;
    int err = ffs_iget(fs, ino, &inode);

    if (err)
        return err == -ESTALE ? ffs_corrupt(fs, 0, ino, "on the orphan list, but free") : err;
    /* Dropping the only reference of an unlinked inode frees it. */
    if (lay_get32(inode->d.nlink) != 0)
        err = fs->semantics->truncate_finish(inode);
    ffs_iput(inode, 1);
    return err;
}

/*
 * Returns true if the inode could not be finished because a block of it is
 * damaged. It then stays on the list until fsck has repaired it, and so do
 * those after it.
 */
static bool orphan_is_damaged(struct ffs *fs, int err, uint64_t ino)
{
    bool stays = lay_get64(ffs_super(fs)->orphan) == ino;

    if ((err && err != -EUCLEAN) || !stays || !atomic_load(&fs->checked.any_damaged) ||
        ffs_health(fs))
        return false;
    ffs_log(fs, LOG_WARNING, "inode %llu: damaged, so it cannot be freed; run fsck.gpunvme",
            (unsigned long long)ino);
    return true;
}

/*
 * Ends on any image: a finished inode leaves the list, so a list that is a ring
 * becomes open.
 */
int ffs_orphans_finish(struct ffs *fs)
{
    for (;;) {
        uint64_t ino = lay_get64(ffs_super(fs)->orphan);
        if (ino == LAY_NONE)
            return 0;
        int err = orphan_finish_one(fs, ino);
        if (orphan_is_damaged(fs, err, ino))
            return 0;
        if (!err && lay_get64(ffs_super(fs)->orphan) == ino)
            err = ffs_corrupt(fs, 0, ino, "the orphan list is a ring");
        if (err)
            return err;
    }
}
