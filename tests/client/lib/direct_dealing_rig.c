/* SPDX-License-Identifier: BSD-2-Clause */
/* Sets of words of checks in flight, as C++ tests call them. */
#include "tests/client/lib/direct_dealing_rig.h"

#include <assert.h>
#include <stdlib.h>

#include "client/lib/direct.h"

static_assert(DEALING_RIG_SETS == DIRECT_SLOTS, "as many as there are");

struct dealings_rig {
    struct gpunvme_direct d;
};

struct dealings_rig *dealings_rig_open(void)
{
    struct dealings_rig *rig = calloc(1, sizeof(*rig));

    if (!rig)
        return NULL;
    pthread_mutex_init(&rig->d.lock, NULL);
    if (!direct_slots_open(&rig->d))
        return rig;
    free(rig);
    return NULL;
}

void dealings_rig_close(struct dealings_rig *rig)
{
    direct_slots_close(&rig->d);
    pthread_mutex_destroy(&rig->d.lock);
    free(rig);
}

struct gd_check *dealings_rig_take(struct dealings_rig *rig)
{
    return direct_slots_take(&rig->d);
}

void dealings_rig_give_back(struct dealings_rig *rig, const struct gd_check *set)
{
    direct_slots_give_back(&rig->d, set);
}
