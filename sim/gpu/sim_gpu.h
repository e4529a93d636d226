/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies between the media of a simulated drive and GPU memory: the hooks
 * (cuda/gq_copies.h) that an engine on this drive is given at open. They own
 * the drive's DMA engine and the peers that copy for it.
 */
#ifndef SIM_GPU_SIM_GPU_H
#define SIM_GPU_SIM_GPU_H

#include "cuda/gq_copies.h"
#include "sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sim_gpu;

/* For one namespace of s, which must outlive it. -ENOMEM. */
int sim_gpu_new(struct sim *s, uint32_t nsid, struct sim_gpu **out);
/* Precondition: the engine and all peers are closed. NULL: nothing. */
void sim_gpu_free(struct sim_gpu *g);
struct gq_copies *sim_gpu_hooks(struct sim_gpu *g);

#ifdef __cplusplus
}
#endif

#endif
