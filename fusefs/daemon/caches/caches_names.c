/* SPDX-License-Identifier: BSD-2-Clause */
/* Moves and links files into cache directories, within their limits. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fusefs/daemon/caches/caches_internal.h"

/* Reserves the size of the file until the new name exists. */
static int hold_file(struct caches *c, struct ffs_inode *dir, struct ffs_inode *inode,
                     struct caches_charge *charge)
{
    struct ffs_attr a;
    int i = caches_word_cache(dir);

    *charge = (struct caches_charge){.cache = -1};
    if (caches_word_get(inode) & WORD_REMOVED)
        return -ESTALE;
    ffs_getattr(inode, &a);
    return i >= 0 && S_ISREG(a.mode) ? caches_hold(c, i, a.blocks * 512, charge) : 0;
}

int caches_link(struct caches *c, struct ffs_inode *inode, struct ffs_inode *dir, const char *name)
{
    struct caches_charge charge;
    int err = hold_file(c, dir, inode, &charge);

    if (err)
        return err;
    err = ffs_link(inode, dir, name);
    caches_let_go(c, &charge, err ? 0 : charge.held);
    if (!err)
        caches_adopt(c, dir, inode);
    return err;
}

static int rename_plain(const struct caches_rename *r)
{
    return ffs_rename(r->dir, r->name, r->new_dir, r->new_name, r->flags);
}

static void adopt_name(struct caches *c, struct ffs_inode *dir, const char *name)
{
    struct ffs_inode *inode;

    if (ffs_lookup(dir, name, &inode) != 0)
        return;
    caches_adopt(c, dir, inode);
    ffs_iput(inode, 1);
}

int caches_rename(struct caches *c, const struct caches_rename *r)
{
    struct caches_charge charge;
    struct ffs_inode *inode;

    if (caches_word_cache(r->dir) == caches_word_cache(r->new_dir))
        return rename_plain(r);
    int err = ffs_lookup(r->dir, r->name, &inode);
    if (err)
        return err;
    err = hold_file(c, r->new_dir, inode, &charge);
    if (!err) {
        err = rename_plain(r);
        caches_let_go(c, &charge, err ? 0 : charge.held);
    }
    if (!err) {
        adopt_name(c, r->new_dir, r->new_name);
        adopt_name(c, r->dir, r->name); /* for an exchange */
    }
    ffs_iput(inode, 1);
    return err;
}
