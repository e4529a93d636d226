/*
 * fsck's passes, as its main() runs them.
 */
#include "tests/fusefs/image_check.h"

#include <errno.h>
#include <stdlib.h>

#include "mkfs/fsck.h"

static int claim_fixed_areas(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    f->claimed = calloc(geo->blocks / 64 + 1, sizeof(*f->claimed));
    if (!f->claimed)
        return -ENOMEM;
    fsck_claim(f, 0, 0, 1);
    fsck_claim(f, 0, geo->bitmap_start, geo->bitmap_blocks);
    fsck_claim(f, 0, geo->journal_start, geo->journal_blocks);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        fsck_claim(f, 0, geo->copies[i], 1);
    return 0;
}

static int run_passes(struct fsck *f)
{
    static int (*const passes[])(struct fsck *) = {
        claim_fixed_areas, fsck_journal, fsck_supers,  fsck_inodes,
        fsck_directories,  fsck_links,   fsck_bitmaps,
    };
    int err = 0;
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]) && !err; i++)
        err = passes[i](f);
    return err;
}

int64_t image_check(struct bd_dev *dev)
{
    struct fsck *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->path = dev->info.name;
    int64_t result = image_start(&f->img, dev, &f->super);
    if (result == 0) {
        f->sb = f->super.sb;
        result = run_passes(f);
    }
    if (result == 0)
        result = (int64_t)fsck_problems(f);
    image_end(&f->img);
    free(f->claimed);
    free(f->inode_blocks);
    free(f->inodes);
    free(f);
    return result;
}
