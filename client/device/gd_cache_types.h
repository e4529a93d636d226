/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the layout of a leased file's cache (gd_cache.h) in memory of the
 * executor. The structures are plain data in C11 and CUDA.
 */
#ifndef CLIENT_DEVICE_GD_CACHE_TYPES_H
#define CLIENT_DEVICE_GD_CACHE_TYPES_H

#include <assert.h>

#include "client/device/gd_types.h"

/*
 * The lines of a set are its ways. A set has at least GD_CACHE_WAYS ways and
 * fewer than twice as many, so that the number of sets can be a power of two.
 * The number of ways is even if there are several sets. A cache of fewer lines
 * has one set.
 */
#define GD_CACHE_WAYS 16u

/*
 * Lanes load this many words of a set at a time, also behind its last way, so
 * as many words follow the last set.
 */
#define GD_CACHE_LOOKS 8u

/*
 * Each line has one word. Its fields, from the lowest bit on, are the state, a
 * bit that a hit sets and CLOCK clears, the number of readers that use the
 * line, the generation of the cache in which the line was claimed, and the tag.
 * A GPU has fewer threads at a time than the field of readers can count.
 */
#define GD_CACHE_FREE    0u
#define GD_CACHE_FILLING 1u /* one group reads the line; all others wait */
#define GD_CACHE_VALID   2u
#define GD_CACHE_FAILED  3u /* a lost command may still write to the line */
#define GD_CACHE_STATE   3u
#define GD_CACHE_TOUCHED 4u
#define GD_CACHE_PIN     ((uint64_t)1 << 3)
#define GD_CACHE_PINS    ((((uint64_t)1 << 20) - 1) << 3)

#define GD_CACHE_GENERATION_SHIFT 23u
#define GD_CACHE_GENERATIONS      ((uint64_t)1 << 14)
#define GD_CACHE_GENERATION_MASK  ((GD_CACHE_GENERATIONS - 1) << GD_CACHE_GENERATION_SHIFT)
#define GD_CACHE_TAG_SHIFT        37u
#define GD_CACHE_TAGS             ((uint64_t)1 << 27)

/* The generation of a cache that keeps no line. */
#define GD_CACHE_OFF 0u

/*
 * Counters that the groups of some SMs share. Other SMs have other copies of
 * them, because a GPU makes the additions to one word one after another.
 */
#define GD_CACHE_COUNTERS 64u /* a power of two */
struct gd_cache_counts {
    uint64_t hits;     /* reads of a part of a line that was valid */
    uint64_t misses;   /* lines that were filled, or failed */
    uint64_t bypasses; /* reads through the slots */
    uint64_t reserved;
};

/* Memory of reads that bypass the lines: slots of one line each. */
#define GD_CACHE_SLOTS      512u /* the maximum */
#define GD_CACHE_SLOT_BYTES ((size_t)16 << 20)

/* Describes a cache. The struct is opaque in gpunvme_array.cuh. Only the host changes it. */
struct gpunvme_device_cache {
    const struct gpunvme_device_file *file;
    uint64_t *words; /* of each line, set by set; the first is at a multiple of 16 */
    /*
     * Each set has one word: the bit GD_TAKEN, which is set while a group
     * claims a line, and above it the way at which CLOCK begins.
     */
    uint32_t *locks;
    uint32_t *slots; /* bits of the slots in use */
    /*
     * Each line has one word, which remembers a line of its set that was missed
     * and not kept: 1 + its tag, or 0. Used if second_touch is set.
     */
    uint32_t *recent;
    struct gd_cache_counts *counts;
    uint64_t lines;      /* address of the lines, in registered memory */
    uint64_t slots_at;   /* address of the slots, likewise */
    uint64_t generation; /* from 1 on, or GD_CACHE_OFF; words of another one are not valid */
    uint32_t line_shift; /* a line has 1 << line_shift bytes */
    uint32_t set_shift;  /* there are 1 << set_shift sets */
    uint32_t ways;
    uint32_t n_slots;      /* a multiple of 32 */
    uint32_t second_touch; /* 1: only lines that were missed recently are kept, 0: all */
};

#endif
