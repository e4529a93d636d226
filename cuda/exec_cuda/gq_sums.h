/* SPDX-License-Identifier: BSD-2-Clause */
/* Computes checksums of data where it is: gq_exec_ops.sums. */
#ifndef CUDA_EXEC_CUDA_GQ_SUMS_H
#define CUDA_EXEC_CUDA_GQ_SUMS_H

#include <cuda_runtime_api.h>

#include "cuda/gq.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel like gq_kernels_load(), and stores the table that it uses. */
cudaError_t gq_sums_load(void);
/*
 * Launches the kernel for n parts. `at` holds offsets from base; NULL means
 * that the parts are contiguous. Both arrays are pinned and have n entries.
 */
cudaError_t gq_sums_launch(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
