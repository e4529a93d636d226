/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums of data, computed where it is: gq_exec_ops.sums. */
#ifndef CUDA_EXEC_CUDA_GQ_SUMS_H
#define CUDA_EXEC_CUDA_GQ_SUMS_H

#include <cuda_runtime_api.h>

#include "cuda/gq.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As gq_kernels_load(); also stores the table that the kernel looks up. */
cudaError_t gq_sums_load(void);
/* at: offsets from base, or NULL: one after the other; both arrays are pinned, n entries. */
cudaError_t gq_sums_launch(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
