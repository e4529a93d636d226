/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Computes SipHash-2-4 (Aumasson and Bernstein, 2012), a keyed hash of short
 * inputs. Without the key, collisions cannot be computed, even from the hashes
 * of chosen inputs.
 */
#include <string.h>

#include "layout/layout.h"

struct state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static void rounds(struct state *s, unsigned n)
{
    while (n-- > 0) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 = rotate(s->v0, 32) + s->v3;
        s->v2 += s->v1;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 = rotate(s->v2, 32);
    }
}

/* Reads n <= 8 bytes as a little-endian number. */
static uint64_t siphash_load(const uint8_t *bytes, size_t n)
{
    le64 word = lay_put64(0);

    memcpy(&word, bytes, n);
    return lay_get64(word);
}

static void absorb(struct state *s, uint64_t word)
{
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

uint64_t lay_siphash(const uint8_t key[16], const void *data, size_t len)
{
    const uint8_t *bytes = data;
    uint64_t k0 = siphash_load(key, 8), k1 = siphash_load(key + 8, 8);
    struct state s = {k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull,
                      k0 ^ 0x6c7967656e657261ull, k1 ^ 0x7465646279746573ull};
    size_t whole = len & ~(size_t)7;

    for (size_t i = 0; i < whole; i += 8)
        absorb(&s, siphash_load(bytes + i, 8));
    absorb(&s, (uint64_t)len << 56 | siphash_load(bytes + whole, len - whole));
    s.v2 ^= 0xff;
    rounds(&s, 4);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
