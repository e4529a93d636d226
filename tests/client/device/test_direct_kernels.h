/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of an application that reads by itself. */
#ifndef TESTS_CLIENT_DEVICE_TEST_DIRECT_KERNELS_H
#define TESTS_CLIENT_DEVICE_TEST_DIRECT_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct gpunvme_device_file;

/* What word i of a test's file is. */
#define CONTENT_WORD(i) ((uint64_t)(i)*0x9e3779b97f4a7c15u ^ (uint64_t)(i) >> 7)

struct request {
    unsigned char *dst;
    uint64_t n, offset;
    int64_t result;
};

/* One request for each thread (called from two places), warp, or block. */
cudaError_t launch_threads(const struct gpunvme_device_file *f, struct request *r, unsigned n,
                           cudaStream_t stream);
cudaError_t launch_warps(const struct gpunvme_device_file *f, struct request *r, unsigned n,
                         cudaStream_t stream);
/* The same in two steps; a warp has four requests under way. */
cudaError_t launch_warps_later(const struct gpunvme_device_file *f, struct request *r, unsigned n,
                               cudaStream_t stream);
cudaError_t launch_threads_later(const struct gpunvme_device_file *f, struct request *r, unsigned n,
                                 cudaStream_t stream);
cudaError_t launch_blocks(const struct gpunvme_device_file *f, struct request *r, unsigned n,
                          unsigned threads, cudaStream_t stream);

/*
 * Each of the warps reads pages of the file to the same place over and over, comparing it before
 * and after: `rounds` times, or until an error. wrong: words that were not the file's; last: the
 * last result of each warp. hog: each warp takes all shared memory of a multiprocessor, which
 * leaves no room there for other kernels.
 */
cudaError_t launch_rereads(const struct gpunvme_device_file *f, unsigned char *dst, unsigned warps,
                           bool hog, uint64_t rounds, unsigned long long *wrong, int64_t *last,
                           cudaStream_t stream);

cudaError_t launch_fill(unsigned char *dst, unsigned char value, uint64_t n, cudaStream_t stream);
cudaError_t launch_copy(unsigned char *dst, const unsigned char *src, uint64_t n,
                        cudaStream_t stream);

__END_DECLS

#endif
