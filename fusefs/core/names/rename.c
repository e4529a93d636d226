/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements rename in one handle: finds and checks both names, and assigns
 * them to other inodes.
 */
#include <errno.h>
#include <stdio.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/dir.h"

/* Holds a name and its inode. */
struct side {
    struct ffs_inode *dir;
    struct ffs_name name;
    struct ffs_entry entry;     /* the name, or the place for it */
    struct ffs_inode *inode;    /* referenced; NULL if there is no such name */
    struct ffs_inode *whiteout; /* referenced; the whiteout that replaces the name, or NULL */
};

static int rename_find_side(struct side *s)
{
    int err = ffs_dir_find(s->dir, s->name, &s->entry);

    return err ? err : ffs_dir_inode(s->dir, s->entry.ino, &s->inode);
}

static bool rename_moves_dir(const struct side *s)
{
    return s->inode && ffs_is_dir(s->inode);
}

/*
 * Returns -EINVAL if `dir` is `top` or lies below it. A chain of parents longer
 * than the number of possible directories is a loop.
 */
static int rename_check_not_below(struct ffs_inode *dir, const struct ffs_inode *top)
{
    uint64_t limit = ffs_geometry(dir->fs)->blocks;
    uint64_t ino = dir->ino, parent = lay_get64(dir->d.parent);

    for (; ino != top->ino; limit--) {
        struct ffs_inode *up;
        if (ino == LAY_INO_ROOT)
            return 0;
        if (limit == 0)
            return ffs_corrupt(dir->fs, LAY_NONE, dir->ino, "parents form a loop");
        int err = ffs_dir_inode(dir, parent, &up);
        if (err)
            return err;
        ino = parent;
        parent = lay_get64(up->d.parent);
        ffs_inode_put_meta(up);
        if (parent == 0)
            return ffs_corrupt(dir->fs, LAY_NONE, ino, "parent is not a directory");
    }
    return -EINVAL;
}

/* Checks whether the shape of the tree allows the inode of `from` at `to`. */
static int rename_check_move(const struct side *from, const struct side *to)
{
    if (ffs_nlink(to->dir) == 0)
        return -ENOENT;
    int err = ffs_may_remove(from->dir, from->inode);
    if (!err)
        err = to->inode ? ffs_may_remove(to->dir, to->inode) : ffs_may_add(to->dir);
    if (err)
        return err;
    if (!rename_moves_dir(from) || from->dir == to->dir)
        return 0;
    return rename_check_not_below(to->dir, from->inode);
}

static int rename_check_replace(const struct side *from, const struct side *to)
{
    if (!to->inode)
        return 0;
    if (!rename_moves_dir(from))
        return rename_moves_dir(to) ? -EISDIR : 0;
    return rename_moves_dir(to) ? ffs_dir_check_empty(to->inode) : -ENOTDIR;
}

static int rename_touch_dirs(struct ffs_tx *tx, struct side *a, struct side *b)
{
    int err = ffs_touch(tx, a->dir, FFS_MTIME | FFS_CTIME);

    if (!err && b->dir != a->dir)
        err = ffs_touch(tx, b->dir, FFS_MTIME | FFS_CTIME);
    return err;
}

/*
 * Updates ".." and link counts of a directory that has changed its parent. All
 * inodes are dirty.
 */
static int rename_reparent(struct ffs_inode *child, struct ffs_inode *from, struct ffs_inode *to)
{
    if (from == to)
        return 0;
    if (ffs_nlink(to) >= FFS_SUBDIR_MAX)
        return -EMLINK;
    if (ffs_nlink(from) <= 2)
        return ffs_corrupt(from->fs, LAY_NONE, from->ino, "inode.nlink");
    ffs_set_nlink(from, ffs_nlink(from) - 1);
    ffs_set_nlink(to, ffs_nlink(to) + 1);
    child->d.parent = lay_put64(to->ino);
    return 0;
}

/* Assigns the name at `to` to the inode of `from`. */
static int rename_put_name(struct ffs_tx *tx, const struct side *from, const struct side *to)
{
    struct ffs_entry entry = {to->entry.key, from->inode->ino,
                              ffs_dirent_type(ffs_mode(from->inode))};

    if (to->inode)
        return ffs_dir_replace(tx, to->dir, &entry);
    return ffs_dir_insert(tx, to->dir, to->name, &entry);
}

/*
 * Removes the old name, or replaces it by a whiteout that belongs to the owner
 * of the moved inode.
 */
static int rename_leave_name(struct ffs_tx *tx, struct side *from, bool whiteout)
{
    struct ffs_entry entry = from->entry;

    if (!whiteout)
        return ffs_dir_remove(tx, from->dir, entry.key);
    int err = ffs_whiteout_new(tx, from->dir, from->inode, &from->whiteout);
    if (err)
        return err;
    entry.ino = from->whiteout->ino;
    entry.type = ffs_dirent_type(S_IFCHR);
    return ffs_dir_replace(tx, from->dir, &entry);
}

static int rename_move(struct ffs_tx *tx, struct side *from, struct side *to, bool whiteout)
{
    int err = rename_check_replace(from, to);

    if (!err)
        err = rename_put_name(tx, from, to);
    if (!err)
        err = rename_leave_name(tx, from, whiteout);
    if (!err)
        err = rename_touch_dirs(tx, from, to);
    if (!err && to->inode)
        err = ffs_drop_link(tx, to->dir, to->inode);
    if (!err)
        err = ffs_touch(tx, from->inode, FFS_CTIME);
    if (!err && rename_moves_dir(from))
        err = rename_reparent(from->inode, from->dir, to->dir);
    return err;
}

/*
 * The counts are exchanged at once, because decrementing first would fail for a
 * parent with a single child.
 */
static int rename_exchange_parents(struct side *a, struct side *b)
{
    if (a->dir == b->dir)
        return 0;
    if (rename_moves_dir(a) && rename_moves_dir(b)) {
        a->inode->d.parent = lay_put64(b->dir->ino);
        b->inode->d.parent = lay_put64(a->dir->ino);
        return 0;
    }
    if (rename_moves_dir(a))
        return rename_reparent(a->inode, a->dir, b->dir);
    return rename_moves_dir(b) ? rename_reparent(b->inode, b->dir, a->dir) : 0;
}

static int rename_exchange(struct ffs_tx *tx, struct side *a, struct side *b)
{
    if (!b->inode)
        return -ENOENT;
    int err = rename_check_move(b, a);
    if (!err)
        err = rename_put_name(tx, a, b);
    if (!err)
        err = rename_put_name(tx, b, a);
    if (!err)
        err = rename_touch_dirs(tx, a, b);
    if (!err)
        err = ffs_touch(tx, a->inode, FFS_CTIME);
    if (!err)
        err = ffs_touch(tx, b->inode, FFS_CTIME);
    return err ? err : rename_exchange_parents(a, b);
}

static int rename_in(struct ffs_tx *tx, struct side *from, struct side *to, uint32_t flags)
{
    int err = rename_find_side(from);

    if (err)
        return err;
    err = rename_find_side(to);
    if (err && err != -ENOENT)
        return err;
    if (to->inode && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    err = rename_check_move(from, to);
    /*
     * If both names belong to the same file, POSIX requires that both are kept.
     */
    if (err || from->inode == to->inode)
        return err;
    if (flags & RENAME_EXCHANGE)
        return rename_exchange(tx, from, to);
    return rename_move(tx, from, to, flags & RENAME_WHITEOUT);
}

static int rename_once(struct side from, struct side to, uint32_t flags)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(from.dir->fs, FFS_NAME_CREDITS, &tx);

    if (err)
        return err;
    err = ffs_tx_finish(tx, rename_in(tx, &from, &to, flags));
    if (from.inode)
        ffs_iput(from.inode, 1);
    if (to.inode)
        ffs_iput(to.inode, 1);
    if (from.whiteout)
        ffs_iput(from.whiteout, 1);
    return err;
}

int ffs_rename(struct ffs_inode *dir, const char *name, struct ffs_inode *new_dir,
               const char *new_name, uint32_t flags)
{
    struct side from = {.dir = dir}, to = {.dir = new_dir};
    bool tried = false;

    if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT)) ||
        ((flags & RENAME_EXCHANGE) && (flags & ~RENAME_EXCHANGE)))
        return -EINVAL;
    int err = ffs_name_check(name, &from.name);
    if (!err)
        err = ffs_name_check(new_name, &to.name);
    if (err)
        return err;
    do
        err = rename_once(from, to, flags);
    while (ffs_retry_space(dir->fs, err, &tried));
    return err;
}
