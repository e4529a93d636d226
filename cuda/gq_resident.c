#include "cuda/gq_resident.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct gq_resident {
    const struct gq_port *ports;
    struct gq_box_memory *memory; /* pinned */
    cudaStream_t stream;
    bool busy; /* atomic; the rest is the list's poster's */
    struct gq_box box;
    struct gq_state *state;
};

static int to_errno(cudaError_t err)
{
    if (err == cudaSuccess)
        return 0;
    cudaGetLastError();
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/* Of the highest priority: such streams have hardware queues that others do not share. */
static cudaError_t open_stream(struct gq_resident *r)
{
    int least, greatest;
    cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (err != cudaSuccess)
        return err;
    return cudaStreamCreateWithPriority(&r->stream, cudaStreamNonBlocking, greatest);
}

static int run(void *ctx, const struct gq_box_launch *box)
{
    const struct gq_resident *r = ctx;
    const struct gq_resident_launch l = {.box = *box, .ports = r->ports};

    return to_errno(gq_resident_run(&l, r->stream));
}

int gq_resident_open(const struct gq_port *ports, struct gq_resident **out)
{
    struct gq_resident *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return -ENOMEM;
    r->ports = ports;
    err = to_errno(cudaHostAlloc((void **)&r->memory, sizeof(*r->memory),
                                 cudaHostAllocPortable | cudaHostAllocMapped));
    if (err)
        goto free_resident;
    memset(r->memory, 0, sizeof(*r->memory));
    gq_box_init(&r->box, r->memory, (uintptr_t)r->memory);
    r->box.run = run;
    r->box.ctx = r;
    err = to_errno(open_stream(r));
    if (err)
        goto free_memory;
    *out = r;
    return 0;

free_memory:
    cudaFreeHost(r->memory);
free_resident:
    free(r);
    return err;
}

void gq_resident_close(struct gq_resident *r)
{
    cudaStreamSynchronize(r->stream);
    cudaStreamDestroy(r->stream);
    cudaFreeHost(r->memory);
    free(r);
}

cudaStream_t gq_resident_stream(const struct gq_resident *r)
{
    return r->stream;
}

static bool is_running(const struct gq_resident *r)
{
    return __atomic_load_n(&r->state->outcome, __ATOMIC_ACQUIRE) == GQ_OUT_RUNNING;
}

/* A kernel that has ended without the list will not take it any more. */
int gq_resident_keep(struct gq_resident *r)
{
    if (!gq_box_is_alone(&r->box) || !is_running(r))
        return 0;
    return gq_box_run(&r->box);
}

int gq_resident_post(struct gq_resident *r, const struct gq_resident_list *list)
{
    int err;

    if (__atomic_exchange_n(&r->busy, true, __ATOMIC_ACQUIRE))
        return -EBUSY;
    r->state = list->state;
    gq_box_put(&r->box, list, sizeof(*list));
    err = gq_resident_keep(r);
    if (err)
        gq_resident_done(r);
    return err;
}

void gq_resident_done(struct gq_resident *r)
{
    __atomic_store_n(&r->busy, false, __ATOMIC_RELEASE);
}
