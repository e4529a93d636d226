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

void lay_syndromes_init(struct lay_syndromes *syndromes)
{
    const size_t crc = 8 * offsetof(struct lay_head, crc);
    uint32_t value = 1;

    for (uint32_t bit = LAY_BLOCK_BITS; bit-- > 0;) {
        value = value & 1 ? value >> 1 ^ CORRECT_POLYNOMIAL : value >> 1;
        syndromes->of[bit] = (struct lay_syndrome){value, bit};
    }
    /* The checksum is computed with its own field as zero. */
    for (uint32_t bit = 0; bit < 32; bit++)
        syndromes->of[crc + bit].value = 1u << bit;
    qsort(syndromes->of, LAY_BLOCK_BITS, sizeof(syndromes->of[0]), correct_compare);
}

int lay_correct(const struct lay_syndromes *syndromes, const uint8_t uuid[16], uint64_t addr,
                void *block)
{
    const struct lay_head *head = block;
    const struct lay_syndrome key = {.value =
                                         lay_block_crc(uuid, addr, block) ^ lay_get32(head->crc)};
    const struct lay_syndrome *found =
        bsearch(&key, syndromes->of, LAY_BLOCK_BITS, sizeof(key), correct_compare);
    uint8_t *bytes = block;

    if (!found)
        return -EUCLEAN;
    bytes[found->bit / 8] ^= (uint8_t)(1u << found->bit % 8);
    return (int)found->bit;
}
