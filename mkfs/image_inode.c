/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads inodes of an image through the extents of the inode file. */
#include <errno.h>

#include "mkfs/walk.h"

/* Searches the extents of a file for one block. */
struct find_block {
    uint64_t file_block;
    uint64_t found; /* 0: not found */
};

static void match_extent(void *arg, const struct lay_extent *e)
{
    struct find_block *f = arg;
    uint64_t first = lay_get64(e->file_block);

    if (f->file_block >= first && f->file_block - first < lay_get32(e->len))
        f->found = lay_get64(e->block) + (f->file_block - first);
}

int image_read_inode(struct image *img, const struct lay_super *sb, uint64_t ino,
                     struct lay_inode *out, const char **why)
{
    static const struct walk_ops ops = {.extent = match_extent};
    struct find_block f = {.file_block = ino / LAY_INODES_PER_BLOCK};
    union lay_block b;

    int err = walk_extents(img, 0, &sb->inode_file, &ops, &f, NULL);
    if (err)
        return err;
    if (f.found == 0)
        return -ENOENT;
    err = image_read(img, f.found, &b);
    if (!err)
        err = lay_check_inode_block(&img->geo, &b.inodes, f.file_block, f.found, why);
    if (!err)
        *out = b.inodes.inodes[ino % LAY_INODES_PER_BLOCK];
    return err;
}
