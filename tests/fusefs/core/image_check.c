/* SPDX-License-Identifier: BSD-2-Clause */
/* The passes of fsck on a device in memory. */
#include "tests/fusefs/core/image_check.h"

#include <errno.h>
#include <stdlib.h>

#include "mkfs/fsck.h"

int64_t image_check(struct bd_dev *dev)
{
    struct fsck *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->path = dev->info.name;
    int64_t result = image_start(&f->img, dev, &f->super);
    if (result == 0)
        result = fsck_passes(f);
    if (result == 0)
        result = (int64_t)fsck_problems(f);
    fsck_end(f);
    free(f);
    return result;
}
