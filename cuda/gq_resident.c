#include "cuda/gq_resident.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct gq_resident {
    struct gq_resident_launch launch; /* box and ended are pinned memory */
    uint64_t *box;
    cudaStream_t stream;
    bool busy; /* atomic; the rest is the list's poster's */
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

int gq_resident_open(const struct gq_port *ports, struct gq_resident **out)
{
    size_t box = GQ_RESIDENT_WORDS * sizeof(uint64_t), len = box + sizeof(uint32_t);
    struct gq_resident *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return -ENOMEM;
    err =
        to_errno(cudaHostAlloc((void **)&r->box, len, cudaHostAllocPortable | cudaHostAllocMapped));
    if (err)
        goto free_resident;
    memset(r->box, 0, len);
    r->launch = (struct gq_resident_launch){
        .box = r->box, .ended = (uint32_t *)(void *)((char *)r->box + box), .ports = ports};
    err = to_errno(open_stream(r));
    if (err)
        goto free_box;
    *out = r;
    return 0;

free_box:
    cudaFreeHost(r->box);
free_resident:
    free(r);
    return err;
}

void gq_resident_close(struct gq_resident *r)
{
    cudaStreamSynchronize(r->stream);
    cudaStreamDestroy(r->stream);
    cudaFreeHost(r->box);
    free(r);
}

cudaStream_t gq_resident_stream(const struct gq_resident *r)
{
    return r->stream;
}

static bool has_ended(const struct gq_resident *r)
{
    /* Acquire: the outcome of its last list came before. */
    return __atomic_load_n(r->launch.ended, __ATOMIC_ACQUIRE) == r->launch.launch;
}

static bool is_running(const struct gq_resident *r)
{
    return __atomic_load_n(&r->state->outcome, __ATOMIC_ACQUIRE) == GQ_OUT_RUNNING;
}

/* A kernel that has ended without the list will not take it any more. */
int gq_resident_keep(struct gq_resident *r)
{
    int err;

    if (!has_ended(r) || !is_running(r))
        return 0;
    r->launch.launch++;
    err = to_errno(gq_resident_run(&r->launch, r->stream));
    if (err)
        r->launch.launch--; /* it will not end */
    return err;
}

int gq_resident_post(struct gq_resident *r, const struct gq_resident_list *list)
{
    uint32_t payload[GQ_RESIDENT_WORDS] = {0};
    int err;

    if (__atomic_exchange_n(&r->busy, true, __ATOMIC_ACQUIRE))
        return -EBUSY;
    memcpy(payload, list, sizeof(*list));
    r->state = list->state;
    r->launch.list++;
    /* Release, each: who acquires any of them sees the commands that are not among them. */
    for (unsigned i = 0; i < GQ_RESIDENT_WORDS; i++)
        __atomic_store_n(&r->box[i], (uint64_t)r->launch.list << 32 | payload[i], __ATOMIC_RELEASE);
    err = gq_resident_keep(r);
    if (err)
        gq_resident_done(r);
    return err;
}

void gq_resident_done(struct gq_resident *r)
{
    __atomic_store_n(&r->busy, false, __ATOMIC_RELEASE);
}
