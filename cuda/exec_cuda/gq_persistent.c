/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the host's side of the persistent kernel. */
#include "cuda/exec_cuda/gq_persistent.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_cuda_errno.h"

/* This memory is pinned. */
struct persistent_memory {
    struct gq_service_memory service;
    struct gq_persistent_list lists[GQ_SERVICE_SLOTS]; /* of the slots; protected by the claims */
};

struct gq_persistent {
    struct persistent_memory *memory;
    struct gq_service_stay *stay; /* device memory */
    cudaStream_t stream;
    struct gq_service service;
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

static int persistent_launch_kernel(void *ctx, const struct gq_service_launch *launch)
{
    const struct gq_persistent *r = ctx;
    const struct gq_persistent_launch l = {.service = *launch, .stay = r->stay};

    return gq_cuda_errno(gq_persistent_launch(&l, r->stream));
}

/* Allocates zeroed memory for the host and for the device. */
static int open_memory(struct gq_persistent *r)
{
    int err = gq_cuda_errno(cudaHostAlloc((void **)&r->memory, sizeof(*r->memory),
                                          cudaHostAllocPortable | cudaHostAllocMapped));

    if (err)
        return err;
    memset(r->memory, 0, sizeof(*r->memory));
    err = gq_cuda_errno(cudaMalloc((void **)&r->stay, sizeof(*r->stay)));
    return err ? err : gq_cuda_errno(cudaMemset(r->stay, 0, sizeof(*r->stay)));
}

static void persistent_free(struct gq_persistent *r)
{
    cudaFree(r->stay);
    if (r->memory)
        cudaFreeHost(r->memory);
    free(r);
}

int gq_persistent_open(struct gq_persistent **out)
{
    struct gq_persistent *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return -ENOMEM;
    err = open_memory(r);
    if (!err)
        err = gq_cuda_errno(open_stream(r));
    if (err) {
        persistent_free(r);
        return err;
    }
    gq_service_init(&r->service, &r->memory->service, (uintptr_t)&r->memory->service,
                    persistent_launch_kernel, r);
    *out = r;
    return 0;
}

void gq_persistent_close(struct gq_persistent *r)
{
    cudaStreamSynchronize(r->stream);
    cudaStreamDestroy(r->stream);
    gq_service_destroy(&r->service);
    persistent_free(r);
}

cudaStream_t gq_persistent_stream(const struct gq_persistent *r)
{
    return r->stream;
}

static bool is_running(const struct gq_state *state)
{
    return __atomic_load_n(&state->outcome, __ATOMIC_ACQUIRE) == GQ_OUT_RUNNING;
}

int gq_persistent_keep(struct gq_persistent *r, int slot)
{
    if (!gq_service_is_unserved(&r->service) || !is_running(r->memory->lists[slot].state))
        return 0;
    int err = gq_service_start(&r->service, slot);
    if (!err || !is_running(r->memory->lists[slot].state))
        return 0; /* another thread's kernel may have ended the list meanwhile */
    gq_service_release(&r->service, slot);
    return err;
}

int gq_persistent_post(struct gq_persistent *r, const struct gq_launch *l,
                       const struct gq_port *port)
{
    int slot = gq_service_claim(&r->service, false), err;
    struct gq_persistent_list *list;

    if (slot < 0)
        return slot;
    list = &r->memory->lists[slot];
    *list = (struct gq_persistent_list){.run = l->run,
                                        .port = *port,
                                        .list = *l->list,
                                        .state = l->states,
                                        .first = *l->states,
                                        .area = l->queues[0]};
    if (l->list->reads.map.extents == l->list->few)
        list->list.reads.map.extents = NULL;
    gq_service_post(&r->service, slot, &list, sizeof(list));
    err = gq_persistent_keep(r, slot);
    return err ? err : slot;
}

void gq_persistent_done(struct gq_persistent *r, int slot)
{
    gq_service_release(&r->service, slot);
}
