/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the blocks of an inode file whose map is damaged: each block names its
 * first inode.
 */
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/store.h"

/*
 * True if the block is an inode block that the inode file lacks; *index is its
 * place there.
 */
static bool is_missing(const struct fsck *f, const union lay_block *b, uint64_t block,
                       uint64_t *index)
{
    uint64_t first = lay_get64(b->head.owner);

    *index = first / LAY_INODES_PER_BLOCK;
    return lay_get32(b->head.magic) == LAY_MAGIC_INODES && first % LAY_INODES_PER_BLOCK == 0 &&
           *index < f->inode_block_count && f->inode_blocks[*index].damaged &&
           lay_check_head(b, LAY_MAGIC_INODES, f->img.geo.uuid, block, first, NULL) == 0;
}

/*
 * Removes privileges from an inode that was found, because the data of a lost
 * file may imitate an inode block.
 */
static void take_privileges(struct lay_inode *inode)
{
    uint32_t mode = lay_get32(inode->mode);

    if (S_ISREG(mode))
        inode->mode = lay_put32(mode & ~(uint32_t)(S_ISUID | S_ISGID));
    if (S_ISCHR(mode) || S_ISBLK(mode))
        inode->rdev = lay_put32(0);
}

static int fsck_adopt_adopt(struct fsck *f, uint64_t index, uint64_t block, union lay_block *b)
{
    struct inode_block_info *info = &f->inode_blocks[index];
    union lay_block other;
    int err = info->addr ? image_read(&f->img, info->addr, &other) : 0;

    if (err || (info->addr && lay_get64(other.head.tid) >= lay_get64(b->head.tid)))
        return err;
    info->addr = block;
    fsck_claim_fixed(f, block, 1);
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++)
        take_privileges(&b->inodes.inodes[slot]);
    return store_put(f, block, b);
}

static int adopt_search_group(struct fsck *f, uint64_t group)
{
    union lay_block bits, b;
    uint64_t index;
    int err = image_read(&f->img, f->img.geo.bitmap_start + group, &bits);

    for (uint32_t bit = 0; bit < lay_group_blocks(&f->img.geo, group) && !err; bit++) {
        uint64_t block = group * LAY_GROUP_BLOCKS + bit;
        if (fsck_is_claimed(f, block) || !(bits.bitmap.bits[bit / 8] >> bit % 8 & 1))
            continue;
        err = image_read(&f->img, block, &b);
        if (!err && is_missing(f, &b, block, &index))
            err = fsck_adopt_adopt(f, index, block, &b);
    }
    return err;
}

int fsck_adopt_blocks(struct fsck *f)
{
    bool any = false;
    int err = 0;

    for (uint64_t index = 0; index < f->inode_block_count && !any; index++)
        any = !f->inode_blocks[index].addr;
    for (uint64_t group = 0; group < lay_groups(&f->img.geo) && any && !err; group++) {
        err = adopt_search_group(f, group);
        fsck_progress(f, "search", group + 1, lay_groups(&f->img.geo));
    }
    return err;
}
