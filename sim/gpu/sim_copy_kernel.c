/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the host's side of a copy kernel in this process. */
#include "sim/gpu/sim_copy_kernel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_cuda_errno.h"

#define IDLE_NS        400000u /* without MPS it takes turns with kernels of applications */
#define LOOK_EVERY     16u     /* empty polls between two checks; a submission also checks */
#define ASK_CUDA_EVERY 4096u   /* empty polls between two queries of CUDA; a multiple */

struct sim_copy_kernel {
    struct sim_poster poster;
    struct sim_keeper keeper;
    int device;
    /*
     * A launch has failed. It is not repeated: a later launch would make copies
     * of commands that have ended, over bytes that have changed since.
     */
    bool failed;
    bool faulted; /* the context has failed: no kernel runs any more */
    unsigned idle_polls;
    cudaStream_t streams[SIM_KEEPER_STREAMS];
};

static void close_streams(struct sim_copy_kernel *c)
{
    for (unsigned i = 0; i < SIM_KEEPER_STREAMS; i++) {
        if (!c->streams[i])
            continue;
        cudaStreamSynchronize(c->streams[i]);
        cudaStreamDestroy(c->streams[i]);
    }
}

static int open_streams(struct sim_copy_kernel *c)
{
    int err = 0;

    for (unsigned i = 0; i < SIM_KEEPER_STREAMS && !err; i++)
        err = gq_cuda_errno(cudaStreamCreateWithFlags(&c->streams[i], cudaStreamNonBlocking));
    if (err)
        close_streams(c);
    return err;
}

static int copy_kernel_run(void *ctx, const struct sim_copy_kernel_launch *l, unsigned blocks,
                           unsigned stream)
{
    struct sim_copy_kernel *c = ctx;
    int err = gq_cuda_errno(
        cudaSetDevice(c->device)); /* the device is a property of the calling thread */

    return err ? err : gq_cuda_errno(sim_copy_kernel_run(l, blocks, c->streams[stream]));
}

int sim_copy_kernel_open(unsigned blocks, struct sim_copy_kernel **out)
{
    struct sim_copy_kernel *c = aligned_alloc(_Alignof(struct sim_copy_kernel), sizeof(*c));
    struct sim_copy_slots *m;
    int err;

    if (!c)
        return -ENOMEM;
    memset(c, 0, sizeof(*c));
    err = gq_cuda_errno(
        cudaHostAlloc((void **)&m, sizeof(*m), cudaHostAllocPortable | cudaHostAllocMapped));
    if (err)
        goto free_copy_kernel;
    memset(m, 0, sizeof(*m));
    c->poster = (struct sim_poster){.m = m, .blocks = blocks};
    sim_keeper_init(&c->keeper, &c->poster, IDLE_NS);
    c->keeper.run = copy_kernel_run;
    c->keeper.ctx = c;
    err = gq_cuda_errno(cudaGetDevice(&c->device));
    if (!err)
        err = open_streams(c);
    if (err)
        goto free_memory;
    *out = c;
    return 0;

free_memory:
    cudaFreeHost(m);
free_copy_kernel:
    free(c);
    return err;
}

void sim_copy_kernel_close(struct sim_copy_kernel *c)
{
    if (!c)
        return;
    close_streams(c);
    cudaFreeHost(c->poster.m);
    free(c);
}

/* A kernel that faulted counts no more. The query takes locks: rarely. */
static int check_streams(struct sim_copy_kernel *c)
{
    int bound = gq_cuda_errno(cudaSetDevice(c->device));

    if (bound)
        return bound;
    for (unsigned i = 0; i < SIM_KEEPER_STREAMS; i++) {
        cudaError_t err = cudaStreamQuery(c->streams[i]);

        if (err == cudaErrorNotReady)
            cudaGetLastError();
        else if (err != cudaSuccess)
            return gq_cuda_errno(err);
    }
    return 0;
}

static void copy_kernel_look(struct sim_copy_kernel *c)
{
    c->failed = c->failed || sim_keeper_peek(&c->keeper) != 0;
}

/* Called after each poll that found neither an ended copy nor room. */
static void look_now_and_then(struct sim_copy_kernel *c)
{
    if (++c->idle_polls % LOOK_EVERY)
        return;
    if (c->idle_polls % ASK_CUDA_EVERY == 0 && check_streams(c))
        c->failed = c->faulted = true;
    copy_kernel_look(c);
}

int sim_copy_kernel_submit(struct sim_copy_kernel *c, const struct sim_gather *copies, unsigned n,
                           struct sim_copy_kernel_ticket *ticket)
{
    int err = c->failed ? -EIO : sim_poster_room(&c->poster, copies, n);

    if (err == -EAGAIN)
        look_now_and_then(c);
    if (err)
        return err;
    sim_poster_post(&c->poster, copies, n, ticket);
    copy_kernel_look(c);
    return 0;
}

/*
 * A batch that a kernel may have taken is not abandoned: the kernel could copy
 * it after its failure was reported.
 */
int sim_copy_kernel_poll(struct sim_copy_kernel *c, const struct sim_copy_kernel_ticket *ticket)
{
    if (sim_poster_done(&c->poster, ticket))
        return 1;
    look_now_and_then(c);
    return c->faulted || (c->failed && sim_keeper_has_lost(&c->keeper, ticket)) ? -EIO : 0;
}
