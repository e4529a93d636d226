/* SPDX-License-Identifier: BSD-2-Clause */
/* One class of transfers. */
#include "tests/client/lib/path_choice_rig.h"

#include <stdlib.h>

#include "client/lib/path_choice.h"

struct path_choice_rig {
    struct path_choice choice;
};

struct path_choice_rig *path_choice_rig_new(bool bounces, uint32_t length)
{
    struct path_choice_rig *r = malloc(sizeof(*r));

    if (!r)
        abort();
    path_choice_init(&r->choice, bounces, length);
    return r;
}

void path_choice_rig_free(struct path_choice_rig *r)
{
    free(r);
}

uint32_t path_choice_rig_ask(const struct path_choice_rig *r)
{
    return path_choice_ask(&r->choice);
}

bool path_choice_rig_bounces(uint32_t phase)
{
    return path_choice_bounces(phase);
}

bool path_choice_rig_is_trial(uint32_t phase)
{
    return path_choice_is_trial(phase);
}

bool path_choice_rig_is_measured(uint32_t phase)
{
    return path_choice_is_measured(phase);
}

void path_choice_rig_add(struct path_choice_rig *r, uint32_t phase, uint64_t ns)
{
    path_choice_add(&r->choice, phase, ns);
}
