/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds a flipped bit by its syndrome.
 *
 * A CRC is linear: the checksums of two blocks that differ in one bit differ by
 * a value that depends only on the place of the bit. With the polynomial x^k of
 * a bit at distance k from the end of the block, the value is x^(k + 32) modulo
 * the CRC's polynomial.
 */
#include <errno.h>
#include <stdlib.h>

#include "layout/correct.h"

#define CORRECT_POLYNOMIAL 0x82F63B78u /* Castagnoli, reflected */

static int correct_compare(const void *a, const void *b)
{
    const struct lay_syndrome *x = a, *y = b;

    return x->value < y->value ? -1 : x->value > y->value;
}

static uint32_t correct_next(uint32_t value)
{
    return value & 1 ? value >> 1 ^ CORRECT_POLYNOMIAL : value >> 1;
}

void lay_syndromes_init(struct lay_syndromes *syndromes)
{
    const size_t crc = 8 * offsetof(struct lay_head, crc);
    uint32_t value = 1;

    for (uint32_t bit = LAY_BLOCK_BITS; bit-- > 0;) {
        value = correct_next(value);
        syndromes->of[bit] = (struct lay_syndrome){value, bit};
    }
    /* The checksum is computed with its own field as zero. */
    for (uint32_t bit = 0; bit < 32; bit++)
        syndromes->of[crc + bit].value = 1u << bit;
    qsort(syndromes->of, LAY_BLOCK_BITS, sizeof(syndromes->of[0]), correct_compare);
}

/* Returns the bit that a syndrome names, or -1, without a table. */
static int correct_search(uint32_t syndrome)
{
    const uint32_t crc = 8 * offsetof(struct lay_head, crc);
    uint32_t value = 1;

    /* A sound block, which has another reason to be refused, costs no search. */
    if (syndrome == 0)
        return -1;
    if ((syndrome & (syndrome - 1)) == 0)
        return (int)(crc + (uint32_t)__builtin_ctz(syndrome));
    for (uint32_t bit = LAY_BLOCK_BITS; bit-- > 0;) {
        value = correct_next(value);
        if (value == syndrome && (bit < crc || bit >= crc + 32))
            return (int)bit;
    }
    return -1;
}

static int correct_look_up(const struct lay_syndromes *syndromes, uint32_t syndrome)
{
    const struct lay_syndrome key = {.value = syndrome};
    const struct lay_syndrome *found =
        bsearch(&key, syndromes->of, LAY_BLOCK_BITS, sizeof(key), correct_compare);

    return found ? (int)found->bit : -1;
}

int lay_correct_data(uint32_t sum, void *block)
{
    uint32_t syndrome = lay_crc32c(0, block, LAY_BLOCK_SIZE) ^ sum, value = 1;
    uint8_t *bytes = block;

    for (int bit = (int)LAY_BLOCK_BITS - 1; bit >= 0; bit--) {
        value = correct_next(value);
        if (value != syndrome)
            continue;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        return bit;
    }
    return -EUCLEAN;
}

int lay_correct(const struct lay_syndromes *syndromes, const uint8_t uuid[16], uint64_t addr,
                void *block)
{
    uint32_t crc = lay_get32(((const struct lay_head *)block)->crc);
    uint32_t syndrome = lay_block_crc(uuid, addr, block) ^ crc;
    int bit = syndromes ? correct_look_up(syndromes, syndrome) : correct_search(syndrome);
    uint8_t *bytes = block;

    if (bit < 0)
        return -EUCLEAN;
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    return bit;
}
