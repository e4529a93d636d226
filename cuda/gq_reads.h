/*
 * Reads of file ranges whose extents and PRPs the executor works out itself: what the host hands
 * to a kernel, or to a host thread, that drives queue pairs. The host copies a map and a list, and
 * does nothing for a single command. Plain data in memory that both sides reach; C11 and CUDA.
 */
#ifndef CUDA_GQ_READS_H
#define CUDA_GQ_READS_H

#include <assert.h>
#include <stdint.h>

#include "cuda/gq_work.h"

#define GQ_LBA_ZERO UINT64_MAX /* in place of an LBA: reads as zeros */

/* A run of a file: from `offset` up to the next entry's, or the map's end. */
struct gq_file_extent {
    uint64_t offset; /* in the file, bytes, whole LBAs */
    uint64_t lba;    /* of its first byte; or GQ_LBA_ZERO */
};
static_assert(sizeof(struct gq_file_extent) == 16, "one load of a lane");

/* Ascending and without gaps from extents[0].offset on; found by binary search. */
struct gq_file_map {
    const struct gq_file_extent *extents;
    uint64_t end; /* of the file, bytes: reads are short there */
    uint32_t count;
    uint32_t lba_size;
};

/* Memory that the controller reaches, as gq_region.h lays out its PRP table. */
struct gq_target {
    uint64_t base;      /* its first page, as the executor addresses it */
    uint64_t iova;      /* the same for the controller */
    uint64_t prps_iova; /* of the region's table */
    uint64_t len;       /* bytes, whole pages */
};

/* One read. Any alignment. */
struct gq_read {
    uint64_t file_offset;
    uint64_t at; /* byte of the target's first page, where the first byte goes */
    uint64_t len;
};
static_assert(sizeof(struct gq_read) == 24, "lists are arrays of it");

/*
 * The result of a read: GQ_READ_OK, all its bytes up to the file's end are there; GQ_ENDED | status
 * of the first of its commands that failed; GQ_READ_LOST, not known or never sent.
 */
#define GQ_READ_OK   0u
#define GQ_READ_LOST 0x40000000u

#endif
