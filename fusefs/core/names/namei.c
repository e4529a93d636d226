/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks up names, creates them for new and existing inodes, and removes them. */
#include "fusefs/core/names/dir.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/tree.h"
#include "fusefs/core/names/xattr.h"

int ffs_lookup(struct ffs_inode *dir, const char *name, struct ffs_inode **out)
{
    struct ffs_entry entry;
    struct ffs_name n;
    int err = ffs_alive(dir->fs);

    if (!err && strcmp(name, "..") == 0)
        return ffs_parent(dir, out);
    if (!err && strcmp(name, ".") == 0) {
        ffs_iref(dir, 1);
        *out = dir;
        return 0;
    }
    if (!err)
        err = ffs_name_check(name, &n);
    if (err)
        return err;

    ffs_meta_read(dir->fs);
    err = ffs_dir_find(dir, n, &entry);
    if (!err)
        err = ffs_dir_inode(dir, entry.ino, out);
    ffs_meta_done(dir->fs);
    return err;
}

int ffs_dir_inode(struct ffs_inode *dir, uint64_t ino, struct ffs_inode **out)
{
    int err = ffs_iget_meta(dir->fs, ino, out);

    if (err != -ESTALE)
        return err;
    return ffs_corrupt(dir->fs, LAY_NONE, dir->ino, "name of an inode that is not in use");
}

int ffs_parent(struct ffs_inode *dir, struct ffs_inode **out)
{
    int err = ffs_alive(dir->fs);

    if (err)
        return err;
    ffs_meta_read(dir->fs);
    if (!ffs_is_dir(dir))
        err = -ENOTDIR;
    else
        err = ffs_iget_meta(dir->fs, lay_get64(dir->d.parent), out);
    ffs_meta_done(dir->fs);
    return err;
}

/* --- New inodes ------------------------------------------------------------------------------ */

/* Holds the properties of a new inode. */
struct birth {
    uint32_t mode;
    uint32_t rdev;
    const struct ffs_cred *cred;
    const char *target; /* symbolic links */
};

/* Sets owner, group and set-gid, which may come from the parent directory. */
static void namei_set_owner(struct ffs_inode *inode, const struct ffs_inode *dir,
                            const struct birth *b)
{
    uint32_t mode = b->mode;
    uint32_t gid = b->cred->gid;

    if (ffs_mode(dir) & S_ISGID) {
        gid = lay_get32(dir->d.gid);
        if (S_ISDIR(mode))
            mode |= S_ISGID;
        else if ((mode & S_ISGID) && (mode & S_IXGRP) && b->cred->uid != 0 && b->cred->gid != gid)
            mode &= ~(uint32_t)S_ISGID;
    }
    inode->d.mode = lay_put32(mode);
    inode->d.uid = lay_put32(b->cred->uid);
    inode->d.gid = lay_put32(gid);
}

static int symlink_store_in_block(struct ffs_tx *tx, struct ffs_inode *inode, const char *target,
                                  size_t len)
{
    size_t head = len < LAY_PAYLOAD ? len : LAY_PAYLOAD;
    struct ffs_buf *buf;
    uint64_t block;
    int err = ffs_alloc_meta(tx, 0, &block);

    if (!err)
        err = ffs_tx_new(tx, block, LAY_MAGIC_SYMLINK, inode->ino, &buf);
    if (err)
        return err;
    struct lay_symlink_block *sl = buf->data;
    sl->len = lay_put32((uint32_t)head);
    memcpy(sl->bytes, target, head);
    ffs_buf_put(buf);

    inode->d.map_kind = lay_put16(LAY_MAP_LINK);
    inode->d.map.link.block = lay_put64(block);
    memcpy(inode->d.map.link.tail, target + head, len - head);
    return 0;
}

/* Stores the target of a new symbolic link, 1 to LAY_SYMLINK_MAX bytes. */
static int symlink_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *target, size_t len)
{
    inode->d.size = lay_put64(len);
    memset(&inode->d.map, 0, sizeof(inode->d.map));
    if (len > LAY_MAP_BYTES)
        return symlink_store_in_block(tx, inode, target, len);
    inode->d.map_kind = lay_put16(LAY_MAP_TARGET);
    memcpy(inode->d.map.bytes, target, len);
    return 0;
}

/* Sets the map of a new inode according to its type. */
static int namei_set_map(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_inode *dir,
                         const struct birth *b)
{
    if (S_ISREG(b->mode) || S_ISDIR(b->mode))
        inode->d.flags =
            lay_put32(lay_get32(dir->d.flags) & (LAY_INODE_GPU_BOUND | LAY_INODE_NOATIME));
    switch (b->mode & S_IFMT) {
    case S_IFREG:
        inode->d.map_kind = lay_put16(LAY_MAP_INLINE);
        return 0;
    case S_IFDIR:
        inode->d.parent = lay_put64(dir->ino);
        return ffs_tree_create(tx, inode, LAY_MAP_DIR);
    case S_IFLNK:
        assert(b->target);
        return symlink_store(tx, inode, b->target, strlen(b->target));
    default:
        inode->d.map_kind = lay_put16(LAY_MAP_EMPTY);
        inode->d.rdev = lay_put32(b->rdev);
        return 0;
    }
}

static int namei_give_birth(struct ffs_tx *tx, struct ffs_inode *dir, const struct birth *b,
                            struct ffs_inode **out)
{
    int err = ffs_inode_new(tx, b->mode, out);

    if (err)
        return err;
    struct ffs_inode *inode = *out;
    err = ffs_touch(tx, inode, FFS_ATIME | FFS_MTIME | FFS_CTIME);
    if (err)
        return err;
    inode->d.btime = inode->d.ctime;
    namei_set_owner(inode, dir, b);
    err = ffs_acl_inherit(tx, inode, dir, b->mode, b->cred->umask);
    return err ? err : namei_set_map(tx, inode, dir, b);
}

int ffs_whiteout_new(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_inode *like,
                     struct ffs_inode **out)
{
    const struct ffs_cred owner = {lay_get32(like->d.uid), lay_get32(like->d.gid), 0};
    const struct birth b = {.mode = S_IFCHR, .cred = &owner};
    int err = namei_give_birth(tx, dir, &b, out);

    if (!err)
        ffs_set_nlink(*out, 1);
    return err;
}

/*
 * Finds the place for a new name of dir. Returns -EEXIST if the name exists, and other errors if
 * dir takes no names.
 */
static int namei_find_place(struct ffs_inode *dir, struct ffs_name name, struct ffs_entry *place)
{
    int err = ffs_dir_find(dir, name, place);

    if (err == 0)
        return -EEXIST;
    if (err != -ENOENT)
        return err;
    return ffs_nlink(dir) == 0 ? -ENOENT : ffs_may_add(dir);
}

static int namei_add_name(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_name name,
                          struct ffs_entry *place, const struct ffs_inode *inode)
{
    place->ino = inode->ino;
    place->type = ffs_dirent_type(ffs_mode(inode));
    int err = ffs_dir_insert(tx, dir, name, place);
    return err ? err : ffs_touch(tx, dir, FFS_MTIME | FFS_CTIME);
}

static int namei_create_in(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_name name,
                           const struct birth *b, struct ffs_inode **out)
{
    struct ffs_entry place;
    int err = namei_find_place(dir, name, &place);

    if (err)
        return err;
    if (S_ISDIR(b->mode) && ffs_nlink(dir) >= FFS_SUBDIR_MAX)
        return -EMLINK;
    err = namei_give_birth(tx, dir, b, out);
    if (err)
        return err;
    ffs_set_nlink(*out, S_ISDIR(b->mode) ? 2 : 1);
    err = namei_add_name(tx, dir, name, &place, *out);
    if (!err && S_ISDIR(b->mode))
        ffs_set_nlink(dir, ffs_nlink(dir) + 1);
    return err;
}

static int namei_tmpfile_in(struct ffs_tx *tx, struct ffs_inode *dir, const struct birth *b,
                            struct ffs_inode **out)
{
    int err = ffs_is_dir(dir) ? ffs_may_add(dir) : -ENOTDIR;

    if (!err)
        err = namei_give_birth(tx, dir, b, out);
    return err ? err : ffs_orphan_add(tx, *out);
}

/* Creates an inode, without a name if it is NULL. */
static int namei_create_once(struct ffs_inode *dir, const struct ffs_name *name,
                             const struct birth *b, struct ffs_inode **out)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(dir->fs, FFS_NAME_CREDITS, &tx);

    if (err)
        return err;
    *out = NULL;
    err = ffs_tx_finish(tx, name ? namei_create_in(tx, dir, *name, b, out)
                                 : namei_tmpfile_in(tx, dir, b, out));
    if (err && *out) {
        ffs_iput(*out, 1);
        *out = NULL;
    }
    return err;
}

static int namei_create(struct ffs_inode *dir, const char *name, const struct birth *b,
                        struct ffs_inode **out)
{
    struct ffs_name n;
    bool tried = false;
    int err = 0;

    if (name)
        err =
            strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ? -EEXIST : ffs_name_check(name, &n);
    if (err)
        return err;
    do
        err = namei_create_once(dir, name ? &n : NULL, b, out);
    while (ffs_retry_space(dir->fs, err, &tried));
    return err;
}

int ffs_mknod(struct ffs_inode *dir, const char *name, uint32_t mode, uint32_t rdev,
              const struct ffs_cred *cred, struct ffs_inode **out)
{
    struct birth b = {.mode = mode & (S_IFMT | 07777u), .cred = cred};

    switch (mode & S_IFMT) {
    case 0:
        b.mode |= S_IFREG;
        break;
    case S_IFCHR:
    case S_IFBLK:
        b.rdev = ffs_rdev_pack(rdev);
        break;
    case S_IFREG:
    case S_IFIFO:
    case S_IFSOCK:
        break;
    default:
        return -EINVAL;
    }
    return namei_create(dir, name, &b, out);
}

int ffs_mkdir(struct ffs_inode *dir, const char *name, uint32_t mode, const struct ffs_cred *cred,
              struct ffs_inode **out)
{
    struct birth b = {.mode = S_IFDIR | (mode & 07777), .cred = cred};

    return namei_create(dir, name, &b, out);
}

int ffs_symlink(struct ffs_inode *dir, const char *name, const char *target,
                const struct ffs_cred *cred, struct ffs_inode **out)
{
    struct birth b = {.mode = S_IFLNK | 0777, .cred = cred, .target = target};
    size_t len = strnlen(target, LAY_SYMLINK_MAX + 1);

    if (len == 0)
        return -ENOENT;
    return len > LAY_SYMLINK_MAX ? -ENAMETOOLONG : namei_create(dir, name, &b, out);
}

int ffs_tmpfile(struct ffs_inode *dir, uint32_t mode, const struct ffs_cred *cred,
                struct ffs_inode **out)
{
    struct birth b = {.mode = S_IFREG | (mode & 07777), .cred = cred};

    return namei_create(dir, NULL, &b, out);
}

/* --- Hard links ------------------------------------------------------------------------------ */

static int namei_link_in(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_inode *dir,
                         struct ffs_name name)
{
    struct ffs_entry place;

    if (ffs_is_dir(inode) || ffs_is_fixed(inode))
        return -EPERM;
    if (ffs_nlink(inode) >= FFS_LINK_MAX)
        return -EMLINK;
    int err = namei_find_place(dir, name, &place);
    if (!err)
        err = namei_add_name(tx, dir, name, &place, inode);
    if (!err)
        err = ffs_touch(tx, inode, FFS_CTIME);
    /* A file that was created without a name has its first name now, so it is not an orphan. */
    if (!err && ffs_nlink(inode) == 0)
        err = ffs_orphan_del(tx, inode);
    if (!err)
        ffs_set_nlink(inode, ffs_nlink(inode) + 1);
    return err;
}

int ffs_link(struct ffs_inode *inode, struct ffs_inode *dir, const char *name)
{
    struct ffs_name n;
    bool tried = false;
    int err = ffs_name_check(name, &n);

    if (err)
        return err == -EINVAL ? -EEXIST : err;
    do {
        struct ffs_tx *tx;
        err = ffs_tx_begin(dir->fs, FFS_NAME_CREDITS, &tx);
        if (!err)
            err = ffs_tx_finish(tx, namei_link_in(tx, inode, dir, n));
    } while (ffs_retry_space(dir->fs, err, &tried));
    return err;
}

/* --- unlink(2) and rmdir(2) ------------------------------------------------------------------- */

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

/*
 * Finds the inode of a name that is to be removed, and checks that it may be removed. `only`, if
 * it is not NULL, is the inode that the name must have. *out is referenced as soon as it is set,
 * also on failure.
 */
static int namei_find_victim(struct ffs_inode *dir, struct ffs_name name, bool is_dir,
                             const struct ffs_inode *only, struct ffs_entry *entry,
                             struct ffs_inode **out)
{
    int err = ffs_dir_find(dir, name, entry);

    if (!err && only && entry->ino != only->ino)
        err = -ESTALE;
    if (!err)
        err = ffs_dir_inode(dir, entry->ino, out);
    if (err)
        return err;
    err = ffs_may_remove(dir, *out);
    if (err)
        return err;
    if (is_dir)
        return ffs_is_dir(*out) ? ffs_dir_check_empty(*out) : -ENOTDIR;
    return ffs_is_dir(*out) ? -EISDIR : 0;
}

static int namei_remove(struct ffs_inode *dir, const char *name, bool is_dir,
                        const struct ffs_inode *only)
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
    err = namei_find_victim(dir, n, is_dir, only, &entry, &victim);
    if (!err)
        err = ffs_dir_remove(tx, dir, entry.key);
    if (!err)
        err = ffs_touch(tx, dir, FFS_MTIME | FFS_CTIME);
    if (!err)
        err = ffs_drop_link(tx, dir, victim);
    ffs_tx_finish(tx, err);
    /* Dropping the last reference frees the blocks, in handles of its own. */
    if (victim)
        ffs_iput(victim, 1);
    return err;
}

int ffs_unlink(struct ffs_inode *dir, const char *name)
{
    return namei_remove(dir, name, false, NULL);
}

int ffs_unlink_inode(struct ffs_inode *dir, const char *name, const struct ffs_inode *inode)
{
    return namei_remove(dir, name, false, inode);
}

int ffs_rmdir(struct ffs_inode *dir, const char *name)
{
    return namei_remove(dir, name, true, NULL);
}

/* --- Symbolic links -------------------------------------------------------------------------- */

/* The caller holds ffs.meta. `target` has room for LAY_SYMLINK_MAX bytes. */
static ssize_t symlink_load(struct ffs_inode *inode, char *target)
{
    size_t len = ffs_size(inode);

    if (!S_ISLNK(ffs_mode(inode)))
        return -EINVAL;
    if (lay_get16(inode->d.map_kind) == LAY_MAP_TARGET) {
        memcpy(target, inode->d.map.bytes, len);
        return (ssize_t)len;
    }
    struct lay_expect expect = {.magic = LAY_MAGIC_SYMLINK, .owner = inode->ino};
    struct ffs_buf *buf;
    uint64_t block = lay_get64(inode->d.map.link.block);
    int err = ffs_buf_get(inode->fs, block, &expect, &buf);
    if (err)
        return err;
    const struct lay_symlink_block *sl = buf->data;
    size_t head = len < LAY_PAYLOAD ? len : LAY_PAYLOAD;
    if (lay_get32(sl->head.magic) != LAY_MAGIC_SYMLINK || lay_get32(sl->len) != head)
        err = ffs_corrupt(inode->fs, block, inode->ino, "length of the target");
    if (!err) {
        memcpy(target, sl->bytes, head);
        memcpy(target + head, inode->d.map.link.tail, len - head);
    }
    ffs_buf_put(buf);
    return err ? err : (ssize_t)len;
}

ssize_t ffs_readlink(struct ffs_inode *inode, char *buf, size_t size)
{
    char target[LAY_SYMLINK_MAX];
    int err = ffs_alive(inode->fs);

    if (err)
        return err;
    ffs_meta_read(inode->fs);
    ssize_t len = symlink_load(inode, target);
    ffs_meta_done(inode->fs);
    if (len > 0)
        memcpy(buf, target, (size_t)len < size ? (size_t)len : size);
    return len;
}
