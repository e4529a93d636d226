/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Launches kernels that read a file through a cache, and compare what they
 * read.
 */
#ifndef TESTS_CLIENT_DEVICE_TEST_CACHE_KERNELS_H
#define TESTS_CLIENT_DEVICE_TEST_CACHE_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct gpunvme_device_cache;

/* Byte i of the file of a test. */
#define CACHE_BYTE(i) ((uint8_t)((((i) >> 3) * 0x9e3779b97f4a7c15u ^ (i) >> 11) >> ((i)&7) * 8))

/* The results of the threads or warps of a launch. */
struct cache_found {
    unsigned long long reads, wrong; /* wrong: read without an error */
    unsigned long long failed;       /* read with an error */
    int error;                       /* one of them */
};

/*
 * Each warp makes `rounds` reads of up to CACHE_ROOM bytes at random places
 * below `span`, to its CACHE_ROOM bytes of `room`.
 */
#define CACHE_ROOM 6000u
cudaError_t launch_cache_warps(const struct gpunvme_device_cache *c, uint8_t *room, unsigned warps,
                               unsigned rounds, uint64_t span, struct cache_found *found,
                               cudaStream_t stream);
/* Each thread gets elements of 12 bytes, some of them from a branch of its own. */
cudaError_t launch_cache_threads(const struct gpunvme_device_cache *c, unsigned warps,
                                 unsigned rounds, uint64_t span, struct cache_found *found,
                                 cudaStream_t stream);
/* Each warp holds lines, and its threads get words of eight bytes from them. */
cudaError_t launch_cache_holds(const struct gpunvme_device_cache *c, unsigned warps,
                               unsigned rounds, uint64_t span, struct cache_found *found,
                               cudaStream_t stream);
/*
 * Prefetches n bytes from `offset` on by one warp. Stores the result of the
 * prefetch in *error.
 */
cudaError_t launch_cache_prefetch(const struct gpunvme_device_cache *c, uint64_t n, uint64_t offset,
                                  int *error, cudaStream_t stream);

__END_DECLS

#endif
