/*
 * Reads of file ranges whose extents and PRPs the executor works out itself: what the host hands
 * to a kernel, or to a host thread, that drives queue pairs. The host copies a map, a list is taken
 * where it is, and nothing is done for a single command. Plain data in memory that both sides
 * reach; C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_READS_H
#define CUDA_QUEUE_GQ_READS_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"
#include "cuda/queue/gq_work.h"

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
    uint64_t end; /* of the file, bytes: reads are short there; 0 without extents */
    uint32_t count;
    uint32_t lba_size;
};

/* How many bytes a read will have: less than asked for at the file's end. */
GQ_FN uint64_t gq_read_bytes(const struct gq_file_map *map, uint64_t offset, uint64_t len)
{
    if (offset >= map->end)
        return 0;
    return len < map->end - offset ? len : map->end - offset;
}

/* Memory that the controller reaches, with a table of PRPs (gq_prp.h). */
struct gq_target {
    uint64_t base;      /* its first page, as the executor addresses it */
    uint64_t iova;      /* the same for the controller */
    uint64_t prps_iova; /* of the table */
    uint64_t head;      /* bytes from there to the first that may be read to */
    uint64_t len;       /* bytes that may be read to */
};

/* One read. Any alignment. */
struct gq_read {
    uint64_t file_offset;
    uint64_t at; /* where its first byte goes: counted from the first that may be read to */
    uint64_t len;
};
static_assert(sizeof(struct gq_read) == 24, "lists are arrays of it");

/* The same with its result beside it: bytes, fewer only at the file's end, or -errno. */
struct gq_read_desc {
    uint64_t file_offset;
    uint64_t at;
    uint32_t len; /* at most INT32_MAX */
    int32_t result;
};
static_assert(sizeof(struct gq_read_desc) == 24, "lists are arrays of it");

/*
 * Who waits for completions reads host memory over the link that carries the data, so a list has no
 * more queues than it needs: 512 bytes want all there are, of 4 KiB five do as well as 32, and of
 * 64 KiB 32 cost a twentieth. How long its reads are is guessed by some of them: not at even
 * distances, for many a list repeats itself.
 */
#define GQ_LONG_READ      2048u /* bytes; of such reads: */
#define GQ_QUEUES_OF_LONG 12u
#define GQ_READ_SAMPLES   8u

/* Which of n reads the i-th of the samples is. */
GQ_FN uint64_t gq_read_sample(uint32_t i, uint64_t n)
{
    const uint32_t golden_ratio = 0x9e3779b9u; /* its part behind the point, of 2^32 */

    return i * golden_ratio * n >> 32;
}

/* The work of a run: a list of reads, or one read that is shared out in units. */
struct gq_reads {
    struct gq_file_map map;
    struct gq_target target;
    /*
     * For what cannot go straight to its place: GQ_STAGING_LBAS for each queue, an area; from a
     * page's start on. Of target only base and iova.
     */
    struct gq_target staging;
    const struct gq_read *list; /* gq_run.n_cmds of them; NULL: there is only `whole`, or these: */
    struct gq_read_desc *desc;  /* and gq_run.results is not looked at; NULL: none */
    /* Of `asked`, whose host goes through what was not read (gq_readv); 0: it does not. */
    uint64_t most; /* a group that has taken on more bytes than that leaves the rest of its share */
    uint64_t odd_most; /* of a read to an address that asks for a command each LBA */
    bool goes_on;      /* the file does, behind map.end */
    bool is_part; /* of the file, the map: what is not begun with may have a result, it stays */
    struct gq_read whole;
    uint32_t unit; /* bytes, whole LBAs, a power of two: whole is cut at multiples in the file */
    uint32_t max_command; /* bytes a command carries at most, whole LBAs */
};
#define GQ_STAGING_LBAS 32u

/*
 * The result of a read, or unit: GQ_READ_OK, all its bytes up to the file's end are there; GQ_ENDED
 * | status of one of its commands that failed; GQ_READ_LOST, not known or never sent;
 * GQ_READ_INVALID, it starts before the map or leaves the target. Whoever starts a run sets all to
 * GQ_READ_OK, only failures are stored.
 */
#define GQ_READ_OK      0u
#define GQ_READ_LOST    0x40000000u
#define GQ_READ_INVALID 0x20000000u
/* Of `asked` alone: left to the host; left since the group had taken on too much. */
#define GQ_READ_LEFT 0x10000000u
#define GQ_READ_OVER 0x08000000u

#endif
