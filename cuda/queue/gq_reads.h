/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads of file ranges: the executor finds extents and PRPs itself. The host
 * copies a map, a list stays in place, and no work of the host is done for a
 * single command. Plain data in memory of both sides; C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_READS_H
#define CUDA_QUEUE_GQ_READS_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_bits.h"
#include "cuda/queue/gq_sum_table.h"
#include "cuda/queue/gq_work.h"

#define GQ_LBA_ZERO UINT64_MAX /* in place of an LBA: zeros */

/* An extent of a file: from `offset` up to the next entry's, or the map's end. */
struct gq_file_extent {
    uint64_t offset; /* in the file, bytes, whole LBAs */
    uint64_t lba;    /* of its first byte, or GQ_LBA_ZERO */
};
static_assert(sizeof(struct gq_file_extent) == 16, "one load of a lane");

/* Ascending and without gaps from extents[0].offset on; searched by bisection. */
struct gq_file_map {
    const struct gq_file_extent *extents;
    uint64_t end; /* of the file, bytes: a read ends there; 0 without extents */
    uint32_t count;
    uint32_t lba_size;
};

/*
 * Checksums of the file's data. With a table commands are of whole blocks; with
 * words staged data is compared before it is copied. A block has GQ_SUM_BLOCK
 * bytes; extents are whole blocks, the last of the file may go past map.end.
 */
#define GQ_SUM_BLOCK 4096u
struct gq_file_sums {
    const uint32_t *words; /* of each block; 0: it has none. NULL: the file has none */
    const struct gq_sum_table *table;
};

/* Length of a read: less than requested at the file's end. */
GQ_FN uint64_t gq_read_bytes(const struct gq_file_map *map, uint64_t offset, uint64_t len)
{
    if (offset >= map->end)
        return 0;
    return len < map->end - offset ? len : map->end - offset;
}

/* Memory that the controller reaches, with a table of PRPs (gq_prp.h). */
struct gq_target {
    uint64_t base;      /* the first page at the executor's address */
    uint64_t iova;      /* of the first page */
    uint64_t prps_iova; /* of the table of PRP entries */
    uint64_t head;      /* bytes from the first page to the first byte of the target */
    uint64_t len;       /* bytes of the target */
};

/* One read. Any alignment. */
struct gq_read {
    uint64_t file_offset;
    uint64_t at; /* its first byte in the target */
    uint64_t len;
};
static_assert(sizeof(struct gq_read) == 24, "lists are arrays of it");

/* A read with its result: bytes, fewer only at the file's end, or -errno. */
struct gq_read_desc {
    uint64_t file_offset;
    uint64_t at;
    uint32_t len; /* at most INT32_MAX */
    int32_t result;
};
static_assert(sizeof(struct gq_read_desc) == 24, "lists are arrays of it");

/*
 * A warp that polls for completions reads host memory over the link that
 * carries the data, so a list has no more queues than it needs: reads of 512
 * bytes need all queues, for 4 KiB five are as good as 32, and for 64 KiB 32
 * cost a twentieth. The length of the reads is estimated from samples at uneven
 * distances, because many lists are periodic.
 */
#define GQ_LONG_READ      2048u /* bytes; of such reads: */
#define GQ_QUEUES_OF_LONG 12u
#define GQ_READ_SAMPLES   8u

/* The index, of n reads, of sample i. */
GQ_FN uint64_t gq_read_sample(uint32_t i, uint64_t n)
{
    const uint32_t golden_ratio = 0x9e3779b9u; /* its fraction, times 2^32 */

    return i * golden_ratio * n >> 32;
}

/* Work of a run: a list of reads, or one read that is split in units. */
struct gq_reads {
    struct gq_file_map map;
    struct gq_file_sums sums;
    struct gq_target target;
    /*
     * Staging, page-aligned. From `head` on each queue has an area, with a part
     * for each lane that takes reads. prps_iova is used where a part is longer
     * than two pages; len is not used.
     */
    struct gq_target staging;
    /*
     * Bytes of a lane's part, and maximum of a staged command: a power of two,
     * at least an LBA, with checksums a block, and a divisor of staging.head. 0:
     * an LBA.
     */
    uint32_t lane_staging;
    uint32_t lanes;      /* that take reads, the first of a group; 0: all */
    uint32_t filling;    /* of a write: lanes that copy warps serve at a time; 0: all */
    uint32_t queue_area; /* bytes of a queue's area; 0: a part for each of GQ_STAGING_LANES */
    bool staged;         /* the controller does not reach the target: all bytes are staged */
    const struct gq_read *list; /* gq_run.n_cmds reads; NULL: `whole` or desc */
    struct gq_read_desc
        *desc; /* the same with results, and gq_run.results is not used; NULL: none */
    /* Of desc: the host handles reads that were not begun (gq_readv); 0: it does not. */
    uint64_t most;       /* bytes of begun reads after which a group leaves the rest of its share */
    uint64_t odd_most;   /* maximum of a read to an address that takes one command for each LBA */
    uint32_t *part_sums; /* gq_readv.part_sums, without words of checksums; NULL: none */
    bool goes_on;        /* the file continues behind map.end */
    bool is_part;        /* the map is of a part: reads that are not begun keep their results */
    bool again;          /* of desc only those with the result GQ_MISMATCH are read */
    struct gq_read whole;
    uint32_t unit; /* bytes, whole LBAs, a power of two: whole is cut at multiples in the file */
    uint32_t max_command; /* maximum of a command in bytes, whole LBAs */
};
#define GQ_STAGING_LANES 32u

/* By any thread: number of units of `whole`, of which the first and the last may be shorter. */
GQ_FN uint64_t gq_count_units(const struct gq_reads *reads)
{
    uint64_t offset = reads->whole.file_offset;
    uint64_t len = gq_read_bytes(&reads->map, offset, reads->whole.len);
    uint32_t shift = gq_prefix_ones(reads->unit - 1);

    return len ? ((offset + len - 1) >> shift) - (offset >> shift) + 1 : 0;
}

/* Bytes of `whole` before unit i. */
GQ_FN uint64_t gq_unit_start(const struct gq_reads *reads, uint32_t i)
{
    uint64_t unit = reads->unit;

    return i ? i * unit - (reads->whole.file_offset & (unit - 1)) : 0;
}

/*
 * The result of a read, or unit: GQ_READ_OK, all its bytes up to the file's end
 * are there; GQ_ENDED | status of one of its commands that failed;
 * GQ_READ_LOST, unknown or never posted; GQ_READ_INVALID, it starts before the
 * map or leaves the target. The starter of a run sets all to GQ_READ_OK; only
 * failures are stored.
 */
#define GQ_READ_OK      0u
#define GQ_READ_LOST    0x40000000u
#define GQ_READ_INVALID 0x20000000u
/* Of desc only: left to the host; left because the group had begun too much. */
#define GQ_READ_LEFT 0x10000000u
#define GQ_READ_OVER 0x08000000u
/* Staged data does not match its checksum: gq_reader.bad_block. */
#define GQ_READ_MISMATCH 0x04000000u
/* The result of desc then, for the caller of the run: not an errno that reads end with. */
#define GQ_MISMATCH (-EBADMSG)

#endif
