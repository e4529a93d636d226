/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads of file ranges: the executor itself finds extents and PRPs. The host
 * copies a map; a list stays in place; the host does no work per command. Plain
 * data in memory of both sides; C11 and CUDA.
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

#define GQ_LBA_ZERO UINT64_MAX /* instead of an LBA: zeros */

/*
 * Describes an extent of a file. The extent ends at the offset of the next
 * entry, or at the end of the map.
 */
struct gq_file_extent {
    uint64_t offset; /* offset in the file; bytes, whole LBAs */
    uint64_t lba;    /* LBA of the first byte, or GQ_LBA_ZERO */
};
static_assert(sizeof(struct gq_file_extent) == 16, "one load of a lane");

/*
 * A map whose extents ascend without gaps from extents[0].offset on; it is
 * searched by bisection.
 */
struct gq_file_map {
    const struct gq_file_extent *extents;
    uint64_t end; /* end of the file in bytes, where reads end; 0 without extents */
    uint32_t count;
    uint32_t lba_size;
};

/*
 * Checksums of the file's data. With a table commands are whole blocks; with
 * words staged data is compared before it is copied. A block has GQ_SUM_BLOCK
 * bytes. Extents are whole blocks; the last one of the file may exceed map.end.
 */
#define GQ_SUM_BLOCK 4096u
struct gq_file_sums {
    const uint32_t *words; /* one per block, 0 if it has none; NULL: the file has none */
    const struct gq_sum_table *table;
};

/* Returns the length of a read, which is less than requested at the file's end. */
GQ_FN uint64_t gq_read_bytes(const struct gq_file_map *map, uint64_t offset, uint64_t len)
{
    if (offset >= map->end)
        return 0;
    return len < map->end - offset ? len : map->end - offset;
}

/*
 * Describes memory that the controller reaches, with a table of PRPs
 * (gq_prp.h).
 */
struct gq_target {
    uint64_t base;      /* the executor's address of the first page */
    uint64_t iova;      /* IOVA of the first page */
    uint64_t prps_iova; /* IOVA of the table of PRP entries */
    uint64_t head;      /* bytes from the first page to the target's first byte */
    uint64_t len;       /* bytes of the target */
};

/* Describes one read, with any alignment. */
struct gq_read {
    uint64_t file_offset;
    uint64_t at; /* offset of its first byte in the target */
    uint64_t len;
};

/*
 * Describes a read with its result. The result is the number of bytes read, or
 * -errno. The number is less than len only at the end of the file.
 */
struct gq_read_desc {
    uint64_t file_offset;
    uint64_t at;
    uint32_t len; /* at most INT32_MAX */
    int32_t result;
};
static_assert(sizeof(struct gq_read_desc) == 24, "lists are arrays of it");

/*
 * Numbers of queues. A warp that polls for completions reads host memory over
 * the link that carries the data, so a list has no more queues than it needs.
 * Reads of 512 bytes need all queues; for 4 KiB five are as good as 32, and for
 * 64 KiB 32 cost a twentieth. The length of the reads is estimated from samples
 * at uneven distances, because many lists are periodic.
 */
#define GQ_LONG_READ      2048u /* bytes; for such reads: */
#define GQ_QUEUES_OF_LONG 12u
#define GQ_READ_SAMPLES   8u

#define GQ_NO_READ UINT32_MAX /* is no index of a read */

/* Returns the index of sample i among n reads. */
GQ_FN uint64_t gq_read_sample(uint32_t i, uint64_t n)
{
    const uint32_t golden_ratio = 0x9e3779b9u; /* the fraction times 2^32 */

    return i * golden_ratio * n >> 32;
}

/* Work of a run: a list of reads, or one read that is split into units. */
struct gq_reads {
    struct gq_file_map map;
    struct gq_file_sums sums;
    struct gq_target target;
    /*
     * Describes page-aligned staging. From `head` on, each queue has an area
     * with one part for each lane that takes reads. prps_iova is used if a part
     * is longer than two pages. len is not used.
     */
    struct gq_target staging;
    /*
     * Bytes of a lane's part, and maximum of a staged command. It is a power of
     * two, at least an LBA (with checksums a block), and a divisor of staging.head.
     */
    uint32_t lane_staging;
    uint32_t lanes;      /* lanes that take reads, the first of a group; 0: all */
    uint32_t queue_area; /* bytes of a queue's area */
    bool staged;         /* the controller does not reach the target, so all bytes are staged */
    struct gq_read_desc *desc; /* gq_run.n_cmds reads with results; NULL: `whole` */
    /*
     * The next two are for desc: the host handles reads that were not begun
     * (gq_readv). 0 means that it does not.
     */
    uint64_t most;       /* begun bytes after which a group leaves the rest of its share */
    uint64_t odd_most;   /* maximum of a read to an address for which all of it is staged */
    uint32_t *part_sums; /* gq_readv.part_sums; not with words of checksums; NULL: none */
    bool goes_on;        /* the file continues after map.end */
    bool is_part;        /* the map is of a part: reads not begun keep their results */
    bool again;          /* only reads of desc with the result GQ_MISMATCH are read */
    struct gq_read whole;
    uint32_t unit;        /* bytes of a unit: whole LBAs, a power of two, aligned in the file */
    uint32_t max_command; /* maximum bytes of a command, whole LBAs */
};
#define GQ_STAGING_LANES 32u

/*
 * Called by any thread. Returns the number of units of `whole`; the first and
 * the last may be shorter.
 */
GQ_FN uint64_t gq_count_units(const struct gq_reads *reads)
{
    uint64_t offset = reads->whole.file_offset;
    uint64_t len = gq_read_bytes(&reads->map, offset, reads->whole.len);
    uint32_t shift = gq_prefix_ones(reads->unit - 1);

    return len ? ((offset + len - 1) >> shift) - (offset >> shift) + 1 : 0;
}

/*
 * Returns log2 of the number of adjacent reads of a list of n that go to one
 * queue at once. It is at most `most`, and less if the list is too short.
 */
GQ_FN uint32_t gq_group_shift(uint32_t n, uint32_t queues, uint32_t most)
{
    uint32_t shift = 0;

    while (shift < most && (queues << (shift + 1)) <= n)
        shift++;
    return shift;
}

/* Returns the bytes of `whole` before unit i. */
GQ_FN uint64_t gq_unit_start(const struct gq_reads *reads, uint32_t i)
{
    uint64_t unit = reads->unit;

    return i ? i * unit - (reads->whole.file_offset & (unit - 1)) : 0;
}

/*
 * Names the results of a read or unit. GQ_READ_OK means that all bytes up to
 * the end of the file were read. GQ_ENDED | status means that a command failed
 * with this status. GQ_READ_LOST means that the read was not posted or that its
 * outcome is unknown. GQ_READ_INVALID means that the read starts before the map
 * or exceeds the target. The starter of a run sets all results to GQ_READ_OK.
 * The run stores only failures.
 */
#define GQ_READ_OK      0u
#define GQ_READ_LOST    0x40000000u
#define GQ_READ_INVALID 0x20000000u
/*
 * Only reads of desc have these results. GQ_READ_LEFT leaves the read to the
 * host. GQ_READ_OVER does so because the group had begun too many bytes.
 */
#define GQ_READ_LEFT 0x10000000u
#define GQ_READ_OVER 0x08000000u
/* Staged data does not match its checksum; see gq_reader.bad_block. */
#define GQ_READ_MISMATCH 0x04000000u
/*
 * The result of desc in that case, for the caller of the run; no read ends with
 * this errno.
 */
#define GQ_MISMATCH (-EBADMSG)

/* Describes the progress of a read. */
struct gq_cursor {
    uint64_t offset;   /* file offset of the next byte */
    uint64_t at;       /* position of the next byte in the target, from its first page */
    uint64_t left;     /* bytes; 0: only commands in flight remain */
    uint64_t from, to; /* file range of the last extent found; empty: none */
    uint64_t lba;      /* first LBA of that extent */
    uint32_t index;    /* index of the read */
};

#endif
