#include "mkfs/image.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/walk.h"

int image_read_raw(struct image *img, uint64_t block, union image_block *out)
{
    assert(block < img->device_blocks);
    return bd_read(img->dev, block << LAY_BLOCK_SHIFT, out, LAY_BLOCK_SIZE);
}

static int compare_patch(const void *key, const void *element)
{
    uint64_t block = *(const uint64_t *)key;
    const struct image_patch *p = element;
    return block < p->block ? -1 : block > p->block;
}

int image_read(struct image *img, uint64_t block, union image_block *out)
{
    const struct image_patch *p = NULL;
    if (img->patch_count > 0)
        p = bsearch(&block, img->patches, img->patch_count, sizeof(*p), compare_patch);
    return image_read_raw(img, p ? p->log_block : block, out);
}

/* Is there a sound superblock at addr that says it belongs there? */
static int try_super(struct image *img, uint64_t addr, struct image_super *super)
{
    int err = image_read_raw(img, addr, (union image_block *)&super->sb);
    if (err)
        return err;
    err = lay_check_super(&super->sb, addr, img->device_blocks, &img->geo, NULL, NULL);
    super->addr = addr;
    return err;
}

/* Copies lie where mkfs puts them for a file system that fills the device (FORMAT.md 4.1). */
static int find_copy(struct image *img, struct image_super *super)
{
    uint64_t blocks = img->device_blocks;
    uint64_t groups = (blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;
    const uint64_t places[] = {
        blocks - 1,
        groups > 1 ? groups / 2 * LAY_GROUP_BLOCKS : blocks / 2,
    };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (try_super(img, places[i], super) == 0)
            return 0;
    }
    return -EUCLEAN;
}

int image_start(struct image *img, struct bd_dev *dev, struct image_super *super)
{
    memset(img, 0, sizeof(*img));
    memset(super, 0, sizeof(*super));
    img->dev = dev;
    img->device_blocks = dev->info.bytes >> LAY_BLOCK_SHIFT;
    if (img->device_blocks == 0)
        return super->error = -EINVAL;
    int err = image_read_raw(img, 0, (union image_block *)&super->sb);
    if (err)
        return err;
    /* The bound of the device comes separately: a cut image keeps a sound superblock. */
    super->error = lay_check_super(&super->sb, 0, 0, &img->geo, &super->features, &super->why);
    if (!super->error && img->geo.blocks > img->device_blocks) {
        super->why = "the device is smaller than the file system";
        return super->error = -EUCLEAN;
    }
    if (super->error != -EUCLEAN && super->error != -EINVAL)
        return super->error;
    return find_copy(img, super) == 0 ? 0 : super->error;
}

void image_end(struct image *img)
{
    free(img->patches);
    img->patches = NULL;
    img->patch_count = 0;
}

/* Looks for one block of a file among its extents. */
struct find_block {
    uint64_t file_block;
    uint64_t found; /* 0: not there */
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
    union image_block b;

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
