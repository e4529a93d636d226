/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the kernels of the benchmark of caches. */
#ifndef BENCH_LIB_CACHE_KERNELS_H
#define BENCH_LIB_CACHE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_cache;
struct gpunvme_device_file;

/* The way by which warps get lines, or threads get elements of eight bytes. */
enum cache_way {
    CACHE_COPY,     /* lines: a copy of the file in GPU memory */
    CACHE_PREAD,    /* lines: gpunvme_pread_warp() */
    CACHE_LINES,    /* lines: gpunvme_cache_read_warp() */
    CACHE_LOADS,    /* elements: the copy */
    CACHE_ELEMENTS, /* elements: gpunvme_array */
};

struct cache_run {
    const struct gpunvme_device_cache *cache;
    const struct gpunvme_device_file *file;
    const void *copy; /* the file in GPU memory */
    void *to;         /* registered GPU memory: a line for each warp */
    uint64_t seed;    /* of the pattern of the file */
    uint64_t line;    /* bytes of a line */
    uint64_t lines;   /* of the file, a power of two */
    uint64_t n;       /* lines or elements to get, in an order without a pattern */
    unsigned warps;
};

/*
 * Runs one way, compares the bytes with the pattern, and stores the time in
 * *seconds. Returns 0, or -EIO if a read failed, a byte was wrong or the GPU
 * failed. Stores the error of a read in *result.
 */
int kernel_cache(enum cache_way way, const struct cache_run *r, double *seconds, int64_t *result);

/* The results of reads of a drive that may fail. */
struct cache_found {
    unsigned long long reads, failed, wrong; /* wrong: without an error */
    long long error;                         /* of a failed read */
};
/*
 * Lets each warp make `rounds` reads of up to two lines at random places, which
 * depend on `turn`. Half of the places are in the first eighth of the file. Every
 * fourth read loads its bytes from a line that the warp holds. Compares all bytes
 * with the pattern, and adds to *found. Returns 0, or -EIO if the GPU failed.
 */
int kernel_cache_random(const struct cache_run *r, uint64_t turn, unsigned rounds,
                        struct cache_found *found);

#ifdef __cplusplus
}
#endif

#endif
