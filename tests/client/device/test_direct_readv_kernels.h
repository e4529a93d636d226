/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of an application that reads lists of its own. */
#ifndef TESTS_CLIENT_DEVICE_TEST_DIRECT_READV_KERNELS_H
#define TESTS_CLIENT_DEVICE_TEST_DIRECT_READV_KERNELS_H

#include <cuda_runtime_api.h>
#include <sys/cdefs.h>

#include "gpunvme/gpunvme.h"

__BEGIN_DECLS

/*
 * Each of the warps reads n pieces, the next n of `pieces`, places counted from dst. returned: what
 * the call returned, a word for each warp; wrong: results that its threads saw and that are not
 * `expected` of the piece.
 */
cudaError_t launch_lists(const struct gpunvme_device_file *f, void *dst,
                         struct gpunvme_piece *pieces, unsigned n, unsigned warps,
                         const int *expected, int *returned, unsigned *wrong, cudaStream_t stream);

__END_DECLS

#endif
