/* SPDX-License-Identifier: BSD-2-Clause */
/* The host's side of the persistent kernel. */
#include "cuda/exec_cuda/gq_persistent.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GQ_LANES 1u
#include "cuda/gq_cuda_errno.h"
#include "cuda/queue/gq_single.h"

struct gq_persistent {
    struct gq_tagged_slot_memory *memory; /* pinned */
    cudaStream_t stream;
    bool busy; /* atomic; the other members belong to the poster of the list */
    struct gq_tagged_slot slot;
    struct gq_state *state;
    uint32_t *single_result; /* NULL: gq_single.h does not drive the list */
};

/*
 * Opens a stream of the highest priority, because such streams have hardware
 * queues that other streams do not share.
 */
static cudaError_t open_stream(struct gq_persistent *r)
{
    int least, greatest;
    cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (err != cudaSuccess)
        return err;
    return cudaStreamCreateWithPriority(&r->stream, cudaStreamNonBlocking, greatest);
}

static int persistent_launch_kernel(void *ctx, const struct gq_tagged_slot_launch *slot)
{
    const struct gq_persistent *r = ctx;

    return gq_cuda_errno(gq_persistent_launch(slot, r->stream));
}

int gq_persistent_open(struct gq_persistent **out)
{
    struct gq_persistent *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return -ENOMEM;
    err = gq_cuda_errno(cudaHostAlloc((void **)&r->memory, sizeof(*r->memory),
                                      cudaHostAllocPortable | cudaHostAllocMapped));
    if (err)
        goto free_persistent;
    memset(r->memory, 0, sizeof(*r->memory));
    gq_tagged_slot_init(&r->slot, r->memory, (uintptr_t)r->memory);
    r->slot.launch_kernel = persistent_launch_kernel;
    r->slot.ctx = r;
    err = gq_cuda_errno(open_stream(r));
    if (err)
        goto free_memory;
    *out = r;
    return 0;

free_memory:
    cudaFreeHost(r->memory);
free_persistent:
    free(r);
    return err;
}

void gq_persistent_close(struct gq_persistent *r)
{
    cudaStreamSynchronize(r->stream);
    cudaStreamDestroy(r->stream);
    cudaFreeHost(r->memory);
    free(r);
}

cudaStream_t gq_persistent_stream(const struct gq_persistent *r)
{
    return r->stream;
}

static bool is_running(const struct gq_persistent *r)
{
    return __atomic_load_n(&r->state->outcome, __ATOMIC_ACQUIRE) == GQ_OUT_RUNNING;
}

/* Launches the kernel again if it has ended without taking the list. */
int gq_persistent_keep(struct gq_persistent *r)
{
    if (!gq_tagged_slot_is_unserved(&r->slot) || !is_running(r))
        return 0;
    return gq_tagged_slot_start(&r->slot);
}

static void post_list(struct gq_persistent *r, const struct gq_run *run, const struct gq_port *port,
                      const struct gq_copy *copy)
{
    const struct gq_state *state = r->state;
    struct gq_persistent_list list = {.run = *run,
                                      .port = *port,
                                      .state = r->state,
                                      .sq_tail = state->sq_tail,
                                      .cq_head = state->cq_head,
                                      .phase = state->phase,
                                      .cq_db_pending = state->cq_db_pending,
                                      .first_cid = state->first_cid,
                                      .single = r->single_result != NULL};

    if (run->n_cmds <= GQ_PERSISTENT_CMDS) {
        memcpy(list.cmds, run->cmds, run->n_cmds * sizeof(list.cmds[0]));
        list.run.cmds = NULL;
    }
    if (copy)
        list.one.copy = *copy;
    gq_tagged_slot_post(&r->slot, &list, sizeof(list));
}

static void persistent_leave(struct gq_persistent *r)
{
    __atomic_store_n(&r->busy, false, __ATOMIC_RELEASE);
}

int gq_persistent_post(struct gq_persistent *r, const struct gq_run *run,
                       const struct gq_port *port, struct gq_state *state,
                       const struct gq_copy *copy)
{
    bool single = gq_single_suits(run, port, state);
    int err;

    if ((copy && !single) || __atomic_exchange_n(&r->busy, true, __ATOMIC_ACQUIRE))
        return -EBUSY;
    r->state = state;
    r->single_result = single ? run->results : NULL;
    post_list(r, run, port, copy);
    err = gq_persistent_keep(r);
    if (err)
        persistent_leave(r);
    return err;
}

void gq_persistent_done(struct gq_persistent *r)
{
    if (r->single_result)
        gq_single_complete(r->state, r->single_result);
    persistent_leave(r);
}
