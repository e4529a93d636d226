/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies of any size and alignment by a kernel that is launched for them. */
#ifndef SIM_GPU_SIM_GATHER_H
#define SIM_GPU_SIM_GATHER_H

#include <cuda_runtime_api.h>
#include <sys/cdefs.h>

#include "sim/gpu/sim_copy_slots.h"

__BEGIN_DECLS

/*
 * Loads the kernel in advance, because its first launch would load it and wait
 * for running kernels.
 */
cudaError_t sim_gather_load(void);
/*
 * Copies asynchronously on the stream. `copies` is pinned and valid until the
 * kernel has ended.
 */
cudaError_t sim_gather_run(const struct sim_gather *copies, uint32_t n, cudaStream_t stream);

__END_DECLS

#endif
