/* SPDX-License-Identifier: BSD-2-Clause */
/* The passes of fsck on a device in memory. */
#include "tests/fusefs/core/image_check.h"

#include <errno.h>
#include <stdlib.h>

#include "mkfs/fsck/fsck.h"

/* Problems found by a run in this mode; *repaired: none of them is left. */
static int64_t run(struct bd_dev *dev, enum fsck_mode mode, bool *repaired)
{
    struct fsck *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->path = dev->info.name;
    f->mode = mode;
    int64_t result = image_start(&f->img, dev, false, &f->labels);
    if (result == 0)
        result = fsck_run(f);
    *repaired = result == 0 && fsck_all_repaired(f);
    if (result == 0)
        result = (int64_t)fsck_problems(f);
    fsck_end(f);
    free(f);
    return result;
}

int64_t image_check(struct bd_dev *dev)
{
    bool repaired;

    return run(dev, FSCK_CHECK, &repaired);
}

static int64_t repair(struct bd_dev *dev, enum fsck_mode mode)
{
    bool repaired;
    int64_t result = run(dev, mode, &repaired);

    return result <= 0 || repaired ? result : -ENOTRECOVERABLE;
}

int64_t image_fsck(struct bd_dev *dev)
{
    return repair(dev, FSCK_YES);
}

int64_t image_preen(struct bd_dev *dev)
{
    return repair(dev, FSCK_PREEN);
}
