/* SPDX-License-Identifier: BSD-2-Clause */
/* Lets the caches of a direct file begin their last generation. */
#include "client/lib/direct.h"
#include "client/lib/handle.h"
#include "tests/client/lib/cache_rig.h"

void cache_rig_use_up(struct gpunvme_file *f)
{
    struct leased_cache *c;

    LIST_FOREACH(c, &f->leased->caches, entry)
    {
        c->device.generation = GD_CACHE_GENERATIONS - 1;
    }
}
