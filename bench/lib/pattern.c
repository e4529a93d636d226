/* SPDX-License-Identifier: BSD-2-Clause */
/* The host's part of the file contents that host and GPU compute for any byte. */
#include "bench/lib/pattern.h"

void pattern_host_write(void *memory, uint64_t bytes, uint64_t seed, uint64_t place, bool poison)
{
    uint64_t *words = memory, flip = poison ? UINT64_MAX : 0;

    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = pattern_word(seed, place / 8 + i) ^ flip;
}

uint64_t pattern_host_count_wrong(const void *memory, const struct pattern_pieces *p)
{
    const uint64_t *words = memory;
    uint64_t wrong = 0, each = p->bytes / 8;

    for (uint64_t piece = 0; piece < p->n; piece++) {
        for (uint64_t i = 0; i < each; i++)
            wrong += words[piece * each + i] != pattern_word(p->seed, p->places[piece] / 8 + i);
    }
    return wrong;
}
