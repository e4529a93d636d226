/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps errors of the CUDA runtime to -errno, for sources that are built with CUDA. */
#ifndef CUDA_GQ_CUDA_ERRNO_H
#define CUDA_GQ_CUDA_ERRNO_H

#include <cuda_runtime_api.h>
#include <errno.h>

/*
 * Returns 0 or -errno. Clears the thread's CUDA error, so that no later call
 * returns it again.
 */
static inline int gq_cuda_errno(cudaError_t err)
{
    if (err == cudaSuccess)
        return 0;
    cudaGetLastError();
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

#endif
