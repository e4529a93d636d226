/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A block device in memory that records every write and flush, so that a test can compute the media
 * that a power cut after any of them could have left.
 *
 * The model of the volatile cache: a write is durable when a flush that began after it has
 * returned, or at once with BD_FUA. Any other write may have reached the media, or not, or in part,
 * in units of one LBA, in any order.
 */
#ifndef TESTS_FUSEFS_CRASH_DEV_H
#define TESTS_FUSEFS_CRASH_DEV_H

#include "blockdev/bdev.h"

#ifdef __cplusplus
extern "C" {
#endif

struct crash_dev;

struct crash_dev *crash_dev_new(uint64_t bytes, uint32_t lba_size);
void crash_dev_free(struct crash_dev *d);
struct bd_dev *crash_dev_bd(struct crash_dev *d);
/*
 * Returns the bytes, which may be changed. The end of the device then compares all with zeros.
 */
uint8_t *crash_dev_bytes(struct crash_dev *d);
/* Returns the bytes, which are only read. */
const uint8_t *crash_dev_peek(const struct crash_dev *d);
/* Returns the byte at an offset, from which len bytes may be changed. */
uint8_t *crash_dev_range(struct crash_dev *d, uint64_t offset, uint64_t len);

/* Forgets the record; every later write and flush is an operation with a number. */
void crash_dev_record(struct crash_dev *d);
size_t crash_dev_ops(struct crash_dev *d);
/* Flushes and FUA change nothing from now on: how a drive that lies behaves. */
void crash_dev_ignore_flush(struct crash_dev *d, bool ignore);

enum crash_fate {
    CRASH_DROP,   /* writes that are not durable are lost */
    CRASH_KEEP,   /* everything is there */
    CRASH_RANDOM, /* each write kept, dropped or torn, from the seed */
};
/* The media after a cut when `ops` operations had been done: a device of its own. */
struct crash_dev *crash_dev_cut(struct crash_dev *d, size_t ops, enum crash_fate fate,
                                uint64_t seed);

/*
 * The next write or flush fails after `after` further ones, and so do all later ones. -1: none.
 */
void crash_dev_fail_writes(struct crash_dev *d, long after);
/* Reads of this byte range fail; len 0: none. */
void crash_dev_fail_reads(struct crash_dev *d, uint64_t offset, uint64_t len);
/* Reads so far that touched the byte. */
uint64_t crash_dev_reads(struct crash_dev *d, uint64_t offset);
/* Microseconds that each transfer takes at least. */
void crash_dev_slow(struct crash_dev *d, unsigned us);

#ifdef __cplusplus
}
#endif

#endif
