/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares pure functions that correct one flipped bit of a block by means of
 * its checksum.
 */
#ifndef LAYOUT_CORRECT_H
#define LAYOUT_CORRECT_H

#include <sys/cdefs.h>

#include "layout/layout.h"

__BEGIN_DECLS

/* Bit b of byte n has the number 8 * n + b. */
#define LAY_BLOCK_BITS (8 * LAY_BLOCK_SIZE)

/*
 * Corrects a block at address `addr` that does not match its own checksum. A
 * flip of two bits never looks like one of a single bit, but another block's
 * content does with probability 2^-17. Therefore the caller makes all other
 * checks, including that of the age, on the corrected block. The caller uses
 * the block only if all checks pass. The search takes some 50 microseconds.
 *
 * Returns the number of the bit that was flipped back. Returns -EUCLEAN if no
 * single flip explains the checksum, or if the checksum matches; the block is
 * unchanged then.
 */
int lay_correct(const uint8_t uuid[16], uint64_t addr, void *block);

/*
 * Acts like lay_correct() for a data block whose checksum entry is `sum`
 * (FORMAT.md 5.4). Data has no other check, so unrelated content is changed by
 * mistake with probability 2^-17. Only a user who requested the correction may
 * receive the result.
 */
int lay_correct_data(uint32_t sum, void *block);

__END_DECLS

#endif
