/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * unlink and rmdir.
 */
#include <errno.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/namei.h"

int ffs_drop_link(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_inode *inode)
{
    uint32_t nlink = ffs_nlink(inode);
    int err = ffs_touch(tx, inode, FFS_CTIME);

    if (err)
        return err;
    if (nlink == 0 || (ffs_is_dir(inode) && ffs_nlink(dir) <= 2))
        return ffs_corrupt(dir->fs, LAY_NONE, nlink ? dir->ino : inode->ino, "inode.nlink");
    if (ffs_is_dir(inode)) {
        ffs_set_nlink(dir, ffs_nlink(dir) - 1);
        nlink = 0;
    } else {
        nlink--;
    }
    ffs_set_nlink(inode, nlink);
    return nlink == 0 && !ffs_on_orphan_list(inode) ? ffs_orphan_add(tx, inode) : 0;
}

/* The kind of inode that a name may lose. */
struct removal {
    bool is_dir;
    const struct ffs_inode *only; /* NULL: whatever the name means */
};

/* The inode behind a name that is to go away, and whether it may. Referenced on success. */
static int namei_find_victim(struct ffs_inode *dir, struct ffs_name name,
                             const struct removal *what, struct ffs_entry *entry,
                             struct ffs_inode **out)
{
    int err = ffs_dir_find(dir, name, entry);

    if (!err && what->only && entry->ino != what->only->ino)
        err = -ESTALE;
    if (!err)
        err = ffs_dir_inode(dir, entry->ino, out);
    if (err)
        return err;
    err = ffs_may_remove(dir, *out);
    if (err)
        return err;
    if (what->is_dir)
        return ffs_is_dir(*out) ? ffs_dir_check_empty(*out) : -ENOTDIR;
    return ffs_is_dir(*out) ? -EISDIR : 0;
}

static int namei_remove(struct ffs_inode *dir, const char *name, const struct removal *what)
{
    struct ffs_inode *victim = NULL;
    struct ffs_entry entry;
    struct ffs_name n;
    struct ffs_tx *tx;
    int err = ffs_name_check(name, &n);

    if (!err)
        err = ffs_tx_begin(dir->fs, FFS_NAME_CREDITS, &tx);
    if (err)
        return err;

    ffs_tx_use_reserve(tx);
    err = namei_find_victim(dir, n, what, &entry, &victim);
    if (!err)
        err = ffs_dir_remove(tx, dir, entry.key);
    if (!err)
        err = ffs_touch(tx, dir, FFS_MTIME | FFS_CTIME);
    if (!err)
        err = ffs_drop_link(tx, dir, victim);
    ffs_tx_finish(tx, err);
    /* The last reference frees the blocks, in handles of its own. */
    if (victim)
        ffs_iput(victim, 1);
    return err;
}

int ffs_unlink(struct ffs_inode *dir, const char *name)
{
    const struct removal what = {.is_dir = false};

    return namei_remove(dir, name, &what);
}

int ffs_unlink_inode(struct ffs_inode *dir, const char *name, const struct ffs_inode *inode)
{
    const struct removal what = {.only = inode};

    return namei_remove(dir, name, &what);
}

int ffs_rmdir(struct ffs_inode *dir, const char *name)
{
    const struct removal what = {.is_dir = true};

    return namei_remove(dir, name, &what);
}
