/* SPDX-License-Identifier: BSD-2-Clause */
/* The order of the passes of fsck. */
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

int fsck_passes(struct fsck *f)
{
    static int (*const passes[])(struct fsck *) = {
        claim_fixed_areas, fsck_journal, fsck_supers,  fsck_inodes,
        fsck_directories,  fsck_links,   fsck_bitmaps,
    };
    int err = 0;

    f->sb = f->super.sb;
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]) && !err; i++)
        err = passes[i](f);
    return err;
}

void fsck_end(struct fsck *f)
{
    image_end(&f->img);
    free(f->claimed);
    free(f->inode_blocks);
    free(f->inodes);
}
