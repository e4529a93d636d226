/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the argument of the passes of a gather of rows (gd_table.h), and the
 * words that the passes share. The structures are plain data for C11 and CUDA.
 */
#ifndef CLIENT_DEVICE_GD_TABLE_LAUNCH_H
#define CLIENT_DEVICE_GD_TABLE_LAUNCH_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/queue/gq_reads.h"

/* Launch geometry of a pass. */
#define GD_TABLE_WARPS  8u   /* warps per block */
#define GD_TABLE_BLOCKS 264u /* maximum number of blocks */

/* Adjacent rows of one file. Segments are in the order of their rows. */
struct gd_table_segment {
    uint64_t first_row; /* number in the table */
    uint64_t offset;    /* byte in the file at which the first row begins */
    uint32_t file;      /* number of the file */
    uint32_t reserved;
};

/*
 * An entry of the hash table: one range of units of a file that rows of this
 * gather touch. A key has these fields, from its lowest bit on: 48 bits of the
 * first unit's number, 14 bits of the file's number, an unused bit, and a bit
 * that is 1. Rows that begin in one unit share a range, even if only some of
 * them reach into one unit more.
 */
#define GD_TABLE_UNIT_BITS 48u
#define GD_TABLE_FILE_BITS 14u
#define GD_TABLE_USED      ((uint64_t)1 << 63)
struct gd_table_slot {
    uint64_t key;   /* 0: unused */
    uint32_t piece; /* number among the pieces of its file, then of the list */
    uint32_t more;  /* 1: the range has one unit more than the shortest one */
};

/*
 * The place of a row is the number of its slot, to which the bit CLAIMED may be
 * added, or GD_TABLE_ZEROS, GD_TABLE_BAD or GD_TABLE_COPIED.
 */
#define GD_TABLE_CLAIMED 0x80000000u /* this row has added the range */
#define GD_TABLE_ZEROS   0x7fffffffu /* the row is zeros */
#define GD_TABLE_BAD     0x7ffffffeu /* no such row */
#define GD_TABLE_COPIED  0x7ffffffdu /* the row was copied out of lines */
#define GD_TABLE_SLOTS   0x40000000u /* maximum number of slots */

/*
 * Contains the number of failed rows of a gather, the first failed row, and
 * sums over all gathers.
 */
struct gd_table_words {
    uint64_t first; /* number among the ids << 32 | error; UINT64_MAX: none */
    uint32_t failed;
    uint32_t left;     /* groups that have ended their pass */
    uint32_t copied;   /* rows of this gather that lay in lines */
    uint32_t few_left; /* groups of a gather of few rows that have ended | their ranges << 16 */
    /*
     * 1 + the number of the first piece of this gather to whose staging a lost
     * command may still write; 0: none. Stays set until the leases are renewed.
     */
    uint32_t late;
    uint32_t number; /* of the leases at the beginning of the gather */
    uint32_t begun;  /* 1 until the last pass of a gather has run, which notes lost commands */
    uint64_t gathers, rows, reads, all_failed, hits;
};

/* Each file of a table has such an entry in memory of the executor. */
struct gpunvme_device_cache;
struct gpunvme_device_file;
struct gd_table_cache {
    const struct gpunvme_device_cache *cache; /* NULL: none */
    uint64_t generation;                      /* at the beginning of the gather */
};

/*
 * Describes the status that a gather stores for its caller. Equals struct
 * gpunvme_table_status.
 */
struct gd_table_status {
    uint64_t failed;
    int64_t first_id;
    int32_t error;
    uint32_t reads;
};
static_assert(sizeof(struct gd_table_status) == 24 &&
                  offsetof(struct gd_table_status, first_id) == 8 &&
                  offsetof(struct gd_table_status, error) == 16 &&
                  offsetof(struct gd_table_status, reads) == 20,
              "part of the library's interface");

enum gd_table_pass { GD_TABLE_CLEAR, GD_TABLE_CLAIM, GD_TABLE_PLACE, GD_TABLE_PICK };

/*
 * GD_TABLE_FEW is the maximum number of ids of a gather by one launch
 * (gd_table_few.h). The next constant is the number of warps in its blocks.
 */
#define GD_TABLE_FEW       256u
#define GD_TABLE_FEW_WARPS 1u

/*
 * Describes a table in memory of the executor. Passes change only the arrays
 * and words to which it points.
 */
struct gd_row_table {
    const struct gd_table_segment *segments;
    struct gd_table_segment only; /* a copy of the first segment, which takes no load */
    uint64_t rows, stride;        /* bytes from a row to the next one */
    uint32_t n_segments, n_files;
    uint32_t row_bytes;
    uint32_t unit_shift; /* reads are whole units of 1 << unit_shift bytes */
    uint32_t turn;       /* pieces that are read before rows are picked from them */
    uint32_t slot_bytes; /* bytes of staging for a piece */
    uint64_t staging;    /* address of turn * slot_bytes bytes */
    struct gd_table_slot *slots;
    uint32_t *places; /* one for each id */
    struct gq_read_desc *pieces;
    uint32_t *counts; /* pieces of each file */
    uint32_t *bounds; /* number of each file's first piece; the last entry is their sum */
    struct gd_table_words *words;
    /* The direct path has one for each file. */
    const struct gpunvme_device_file *const *files;
    const struct gpunvme_device_file *first_file; /* files[0] */
    struct gd_table_cache *caches;                /* one for each file; NULL: no file has a cache */
    /* The first file, if commands write to the staging; NULL: none does. */
    const struct gpunvme_device_file *file;
};

struct gd_table_launch {
    struct gd_row_table table;
    const void *ids;
    uint32_t n;
    bool wide;      /* ids have 64 bits, otherwise 32 */
    bool pads;      /* an id of -1 is a row of zeros */
    bool zeros;     /* any id out of range is a row of zeros */
    bool is_last;   /* last pass of a gather */
    uint32_t mask;  /* number of slots of this gather - 1 */
    uint32_t first; /* number of the first piece that is picked from */
    uint64_t out;   /* address of the first row */
    uint64_t out_stride;
    struct gd_table_status *status;
    enum gd_table_pass pass;
};

/*
 * Returns the number of slots for n ids: at least 2 * n, so that a search ends
 * soon.
 */
static inline uint32_t gd_table_slots(uint32_t n)
{
    uint32_t slots = 64;

    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

#endif
