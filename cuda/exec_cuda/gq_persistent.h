/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The persistent kernel executes short lists without a launch. Its blocks take
 * them from tagged slots (gq_service.h), and drive a queue with each like a
 * launched kernel.
 */
#ifndef CUDA_EXEC_CUDA_GQ_PERSISTENT_H
#define CUDA_EXEC_CUDA_GQ_PERSISTENT_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "cuda/gq_exec.h"
#include "cuda/gq_service.h"

__BEGIN_DECLS

/*
 * This record in host memory has a list and the arguments that a launched
 * kernel would get. The item in the slot is its address.
 */
struct gq_persistent_list {
    struct gq_run run;
    struct gq_port port;
    struct gq_list list; /* map.extents is NULL for the extents in `few` */
    struct gq_state *state;
    struct gq_state first; /* a copy of *state */
    uint64_t area;         /* of staging */
};

/* These are the arguments of the kernel. */
struct gq_persistent_launch {
    struct gq_service_launch service;
    struct gq_service_stay *stay; /* device memory */
};

/* Load and launch the kernel; gq_persistent.c uses them. */
cudaError_t gq_persistent_load(void);
cudaError_t gq_persistent_launch(const struct gq_persistent_launch *l, cudaStream_t stream);

struct gq_persistent;

/* Returns 0, -ENOMEM or -EIO. */
int gq_persistent_open(struct gq_persistent **out);
/* Waits for the kernel to end. */
void gq_persistent_close(struct gq_persistent *r);
/*
 * Posts a run of one queue, the port of which is `port`. l->states->outcome
 * changes when the run has ended; the same thread then calls
 * gq_persistent_done(). Returns the slot; -EBUSY if none is free; or -EIO.
 */
int gq_persistent_post(struct gq_persistent *r, const struct gq_launch *l,
                       const struct gq_port *port);
/*
 * Called repeatedly until the list has ended: launches the kernel again if it
 * ended without taking the list. Returns 0 or -EIO. After an error nothing runs
 * or takes the list, and the slot is free.
 */
int gq_persistent_keep(struct gq_persistent *r, int slot);
/* Called after the list has ended: frees the slot. */
void gq_persistent_done(struct gq_persistent *r, int slot);
/* Returns the kernel's stream. */
cudaStream_t gq_persistent_stream(const struct gq_persistent *r);

__END_DECLS

#endif
