#include "cuda/gq_box.h"

#include <assert.h>
#include <string.h>

void gq_box_init(struct gq_box *b, struct gq_box_memory *memory, uint64_t device)
{
    *b = (struct gq_box){.memory = memory,
                         .launch = {.box = (struct gq_box_memory *)(uintptr_t)device}};
}

uint32_t gq_box_put(struct gq_box *b, const void *piece, size_t len)
{
    uint32_t payload[GQ_BOX_WORDS] = {0};

    assert(len <= sizeof(payload));
    memcpy(payload, piece, len);
    b->launch.first = gq_box_next(b->launch.first);
    for (unsigned i = 0; i < GQ_BOX_WORDS; i++)
        __atomic_store_n(&b->memory->words[i], (uint64_t)b->launch.first << 32 | payload[i],
                         __ATOMIC_RELEASE);
    return b->launch.first;
}

void gq_box_take_back(struct gq_box *b)
{
    for (unsigned i = 0; i < GQ_BOX_WORDS; i++)
        __atomic_store_n(&b->memory->words[i], 0, __ATOMIC_RELEASE);
}

bool gq_box_is_alone(const struct gq_box *b)
{
    return __atomic_load_n(&b->memory->ended, __ATOMIC_ACQUIRE) == b->launch.launch;
}

int gq_box_run(struct gq_box *b)
{
    int err;

    b->launch.launch++;
    err = b->run(b->ctx, &b->launch);
    if (err)
        b->launch.launch--; /* it will not end */
    return err;
}
