/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks into struct ffs, which C++ cannot include. */
#include "tests/fusefs/core/space_probe.h"

#include "fusefs/core/state.h"

bool space_is_unlocked(struct ffs *fs)
{
    if (pthread_rwlock_trywrlock(&fs->meta))
        return false;
    pthread_rwlock_unlock(&fs->meta);
    return true;
}

size_t space_maps(struct ffs *fs)
{
    size_t n = 0;

    for (uint64_t g = 0; g < lay_groups(&fs->geo); g++)
        n += fs->alloc.groups[g].map != NULL;
    return n;
}
