/* SPDX-License-Identifier: BSD-2-Clause */
/* The host's side of a tagged slot. */
#include "cuda/gq_tagged_slot.h"

#include <assert.h>
#include <string.h>

void gq_tagged_slot_init(struct gq_tagged_slot *s, struct gq_tagged_slot_memory *memory,
                         uint64_t device)
{
    *s = (struct gq_tagged_slot){
        .memory = memory, .launch = {.slot = (struct gq_tagged_slot_memory *)(uintptr_t)device}};
}

uint32_t gq_tagged_slot_post(struct gq_tagged_slot *s, const void *item, size_t len)
{
    uint32_t payload[GQ_TAGGED_SLOT_WORDS] = {0};

    assert(len <= sizeof(payload));
    memcpy(payload, item, len);
    s->launch.first = gq_tagged_slot_next(s->launch.first);
    for (unsigned i = 0; i < GQ_TAGGED_SLOT_WORDS; i++)
        __atomic_store_n(&s->memory->words[i], (uint64_t)s->launch.first << 32 | payload[i],
                         __ATOMIC_RELEASE);
    return s->launch.first;
}

void gq_tagged_slot_retract(struct gq_tagged_slot *s)
{
    for (unsigned i = 0; i < GQ_TAGGED_SLOT_WORDS; i++)
        __atomic_store_n(&s->memory->words[i], 0, __ATOMIC_RELEASE);
}

bool gq_tagged_slot_is_unserved(const struct gq_tagged_slot *s)
{
    return __atomic_load_n(&s->memory->ended, __ATOMIC_ACQUIRE) == s->launch.launch;
}

int gq_tagged_slot_start(struct gq_tagged_slot *s)
{
    int err;

    s->launch.launch++;
    err = s->launch_kernel(s->ctx, &s->launch);
    if (err)
        s->launch.launch--; /* no kernel will end it */
    return err;
}
