/* Tagged slot: the host's side. */
#include "cuda/gq_tagged_slot.h"

#include <assert.h>
#include <string.h>

void gq_tagged_slot_init(struct gq_tagged_slot *b, struct gq_tagged_slot_memory *memory,
                         uint64_t device)
{
    *b = (struct gq_tagged_slot){
        .memory = memory, .launch = {.slot = (struct gq_tagged_slot_memory *)(uintptr_t)device}};
}

uint32_t gq_tagged_slot_post(struct gq_tagged_slot *b, const void *piece, size_t len)
{
    uint32_t payload[GQ_TAGGED_SLOT_WORDS] = {0};

    assert(len <= sizeof(payload));
    memcpy(payload, piece, len);
    b->launch.first = gq_tagged_slot_next(b->launch.first);
    for (unsigned i = 0; i < GQ_TAGGED_SLOT_WORDS; i++)
        __atomic_store_n(&b->memory->words[i], (uint64_t)b->launch.first << 32 | payload[i],
                         __ATOMIC_RELEASE);
    return b->launch.first;
}

void gq_tagged_slot_retract(struct gq_tagged_slot *b)
{
    for (unsigned i = 0; i < GQ_TAGGED_SLOT_WORDS; i++)
        __atomic_store_n(&b->memory->words[i], 0, __ATOMIC_RELEASE);
}

bool gq_tagged_slot_is_unserved(const struct gq_tagged_slot *b)
{
    return __atomic_load_n(&b->memory->ended, __ATOMIC_ACQUIRE) == b->launch.launch;
}

int gq_tagged_slot_start(struct gq_tagged_slot *b)
{
    int err;

    b->launch.launch++;
    err = b->launch_kernel(b->ctx, &b->launch);
    if (err)
        b->launch.launch--; /* no kernel will end it */
    return err;
}
