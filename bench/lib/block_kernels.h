/* SPDX-License-Identifier: BSD-2-Clause */
/* A block of a kernel that reads a file for itself. */
#ifndef BENCH_LIB_BLOCK_KERNELS_H
#define BENCH_LIB_BLOCK_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;

/*
 * The first `bytes` of the file to memory of a registered buffer, by so many blocks of 256 threads:
 * gpunvme_pread_block() of `part` bytes after another. Blocks until all are read. 0, or -errno of a
 * read; -ENODATA: a read was short; -EIO also: the GPU failed.
 */
int kernel_block_reads(const struct gpunvme_device_file *file, void *to, uint64_t bytes,
                       uint64_t part, unsigned blocks);

#ifdef __cplusplus
}
#endif

#endif
