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

#include "layout/correct.h"

#define CORRECT_POLYNOMIAL 0x82F63B78u /* Castagnoli, reflected */

static uint32_t correct_next(uint32_t value)
{
    return value & 1 ? value >> 1 ^ CORRECT_POLYNOMIAL : value >> 1;
}

/*
 * Returns the bit that a syndrome names, or -1. `crc` is the bit at which the
 * checksum begins, or LAY_BLOCK_BITS if the checksum is not in the block.
 */
static int correct_search(uint32_t syndrome, uint32_t crc)
{
    uint32_t value = 1;

    /* A block that was refused for a reason other than its checksum needs no search. */
    if (syndrome == 0)
        return -1;
    if (crc < LAY_BLOCK_BITS && (syndrome & (syndrome - 1)) == 0)
        return (int)(crc + (uint32_t)__builtin_ctz(syndrome));
    for (uint32_t bit = LAY_BLOCK_BITS; bit-- > 0;) {
        value = correct_next(value);
        if (value == syndrome && (bit < crc || bit >= crc + 32))
            return (int)bit;
    }
    return -1;
}

static int correct_flip(uint32_t syndrome, uint32_t crc, uint8_t *block)
{
    int bit = correct_search(syndrome, crc);

    if (bit < 0)
        return -EUCLEAN;
    block[bit / 8] ^= (uint8_t)(1u << bit % 8);
    return bit;
}

int lay_correct_data(uint32_t sum, void *block)
{
    return correct_flip(lay_crc32c(0, block, LAY_BLOCK_SIZE) ^ sum, LAY_BLOCK_BITS, block);
}

int lay_correct(const uint8_t uuid[16], uint64_t addr, void *block)
{
    uint32_t crc = lay_get32(((const struct lay_head *)block)->crc);

    return correct_flip(lay_block_crc(uuid, addr, block) ^ crc, 8 * offsetof(struct lay_head, crc),
                        block);
}
