/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies between pinned host memory and a GPU's memory in channels. Each
 * channel is a stream, used by one thread. Copies of 64 KiB and more use the
 * copy engine, many in one call. Smaller copies use the copy kernel
 * (sim_copy_kernel.h), which reads the host memory itself; the copy engine
 * takes ten times as long for them. Copies of odd size or alignment use a
 * kernel that is launched for them.
 *
 * A submission that the copy kernel does not handle completely ends with an
 * event. When the event has passed, the bytes are in place: copy engine and
 * kernel have written through to the GPU's L2 (or to host memory, for copies to
 * the host) before an event behind them in the stream is recorded.
 */
#include "sim/gpu/sim_cuda_dma.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "cuda/gq_cuda_errno.h"
#include "sim/gpu/sim_copy_kernel.h"

#define CHANNELS     16u
#define RING         32u  /* submissions in flight on a channel */
#define MAX_COPIES   512u /* of one submission */
#define KERNEL_BELOW (64u << 10)
/*
 * Number of blocks of a channel that saturate the link, each with a batch in
 * flight. More blocks do not increase the throughput and delay other traffic on
 * the link.
 */
#define BLOCKS_ENOUGH 4u

/* Describes a submission, which ends when all its parts have ended. */
struct submission {
    cudaEvent_t event;
    bool by_event;       /* a part was launched and ends with the event */
    bool failed;         /* result, after its end */
    bool by_copy_kernel; /* a part was posted to the copy kernel and ends with the ticket */
    struct sim_copy_kernel_ticket ticket;
};

struct channel {
    int device; /* CUDA's ordinal */
    cudaStream_t stream;
    struct sim_copy_kernel *copy_kernel;
    struct submission ring[RING];
    struct sim_gather *gathers; /* pinned: RING rows of MAX_COPIES, read by the kernel */
    uint64_t failed;            /* the last ticket that failed */
    uint64_t submitted, done;   /* tickets of the last submission and of the last one that ended */
    /* List for the copy engine, valid during a submission. */
    void *dsts[MAX_COPIES];
    const void *srcs[MAX_COPIES];
    size_t lens[MAX_COPIES];
};

/* The engine is open for this GPU. */
struct gpu_channels {
    int device; /* CUDA's ordinal */
    struct channel channels[CHANNELS];
};

struct sim_cuda_dma {
    struct sim_dma_engine table;
    struct sim_cuda_dma *next; /* in spares */
    unsigned n;
    struct gpu_channels *gpus[SIM_DMA_DEVICES];
};

/*
 * Engines that no drive uses, for the next drive. An open engine is never closed: freeing pinned
 * memory waits for all kernels of the process, and one of them may not end.
 */
static struct {
    pthread_mutex_t lock; /* protects first */
    struct sim_cuda_dma *first;
} spares = {.lock = PTHREAD_MUTEX_INITIALIZER};

static_assert(BLOCKS_ENOUGH <= SIM_COPY_KERNEL_BLOCKS, "each block has slots");
static_assert(MAX_COPIES <= BLOCKS_ENOUGH * SIM_COPY_KERNEL_SLOTS * SIM_COPY_KERNEL_BATCH,
              "room for copies of one length");
static_assert(BLOCKS_ENOUGH <= SIM_KEEPER_STREAMS, "a block that has work is launched at once");

/*
 * Selects the device for calls of CUDA. It is a property of the calling thread,
 * and the threads are those of the controller. Polls of the copy kernel do not
 * need it.
 */
static int cuda_dma_bind_device(int device)
{
    return gq_cuda_errno(cudaSetDevice(device));
}

/*
 * Selects the device for a call on a thread of the engine's user, and stores
 * the one that the thread had selected, for leave_device().
 */
static int enter_device(int device, int *before)
{
    int err = gq_cuda_errno(cudaGetDevice(before));

    return err ? err : cuda_dma_bind_device(device);
}

static void leave_device(int device, int before)
{
    if (before != device)
        cuda_dma_bind_device(before);
}

/* The channels of all GPUs are numbered in sequence. */
static struct channel *channel_of(const struct sim_cuda_dma *m, unsigned channel)
{
    return &m->gpus[channel / CHANNELS]->channels[channel % CHANNELS];
}

static struct sim_gather *row_of(struct channel *ch, const struct submission *sub)
{
    return ch->gathers + (size_t)(sub - ch->ring) * MAX_COPIES;
}

static struct sim_gather direction(const struct sim_copy *c, bool to_device)
{
    uint64_t host = (uint64_t)(uintptr_t)c->host;

    return to_device ? (struct sim_gather){c->device, host, c->len}
                     : (struct sim_gather){host, c->device, c->len};
}

/* The copies of a submission, sorted; large ones are in the channel's lists. */
struct sorted {
    struct sim_gather *small;
    unsigned n_large, n_small;
    bool plain; /* true if the copy kernel takes all copies */
};

/* Adds a copy to the channel's lists for the copy engine. */
static inline void put_large(struct channel *ch, unsigned at, const struct sim_gather *g)
{
    ch->dsts[at] = (void *)(uintptr_t)g->dst;
    ch->srcs[at] = (const void *)(uintptr_t)g->src;
    ch->lens[at] = g->len;
}

static inline void put_copy(struct channel *ch, struct sorted *s, const struct sim_gather *g)
{
    if (g->len < KERNEL_BELOW) {
        s->small[s->n_small++] = *g;
        s->plain = s->plain && sim_copy_kernel_takes(g);
        return;
    }
    put_large(ch, s->n_large++, g);
    s->plain = false;
}

/* Adjacent copies of one region are joined. */
static struct sorted sort_copies(struct channel *ch, struct sim_gather *small, bool to_device,
                                 const struct sim_copy *copies, unsigned n)
{
    struct sorted s = {.small = small, .plain = true};
    struct sim_gather g;

    if (!n)
        return s;
    g = direction(&copies[0], to_device);
    for (unsigned i = 1; i < n; i++) {
        struct sim_gather next = direction(&copies[i], to_device);

        if (next.dst == g.dst + g.len && next.src == g.src + g.len &&
            copies[i].region == copies[i - 1].region) {
            g.len += next.len;
            continue;
        }
        put_copy(ch, &s, &g);
        g = next;
    }
    put_copy(ch, &s, &g);
    return s;
}

static cudaError_t copy_large(struct channel *ch, unsigned n, bool to_device)
{
    /*
     * The source is read in stream order, after earlier submissions have ended.
     */
    struct cudaMemcpyAttributes attr = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;

    if (n == 1)
        return cudaMemcpyAsync(ch->dsts[0], ch->srcs[0], ch->lens[0],
                               to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                               ch->stream);
    return cudaMemcpyBatchAsync(ch->dsts, ch->srcs, ch->lens, n, &attr, &first, 1, ch->stream);
}

/* Launches these copies and records the event behind them. */
static int cuda_dma_launch(struct channel *ch, struct submission *sub,
                           const struct sim_gather *small, unsigned n_large, unsigned n_small,
                           bool to_device)
{
    cudaError_t err = cudaSuccess;

    if (cuda_dma_bind_device(ch->device))
        return -EIO;
    if (n_large)
        err = copy_large(ch, n_large, to_device);
    if (err == cudaSuccess && n_small)
        err = sim_gather_run(small, n_small, ch->stream);
    if (err == cudaSuccess)
        err = cudaEventRecord(sub->event, ch->stream);
    sub->by_event = err == cudaSuccess;
    return err == cudaSuccess ? 0 : -EIO;
}

static int end_event(const struct channel *ch, struct submission *sub)
{
    cudaError_t err;

    if (cuda_dma_bind_device(ch->device))
        return -EIO;
    err = cudaEventQuery(sub->event);

    if (err == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    if (err != cudaSuccess)
        return -EIO; /* repeated by each later poll */
    sub->by_event = false;
    return 1;
}

/* Returns 1 if the submission has ended, 0 if it is in flight, or -EIO. */
static int cuda_dma_ended(struct channel *ch, struct submission *sub)
{
    int rc = sub->by_event ? end_event(ch, sub) : 1;

    if (rc > 0 && sub->by_copy_kernel)
        rc = sim_copy_kernel_poll(ch->copy_kernel, &sub->ticket);
    return rc;
}

/*
 * Advances `done` up to the ticket: submissions end in order, each with its own
 * result.
 */
static void cuda_dma_advance(struct channel *ch, uint64_t ticket)
{
    int rc = 1;

    while (ch->done < ticket && rc) {
        struct submission *sub = &ch->ring[(ch->done + 1) % RING];

        rc = cuda_dma_ended(ch, sub);
        sub->failed = rc < 0;
        ch->done += rc != 0;
        if (rc < 0)
            ch->failed = ch->done;
    }
}

static int submit_copies(struct channel *ch, struct submission *sub, const struct sorted *s,
                         bool to_device)
{
    int err = -ENOSPC;

    sub->by_event = sub->by_copy_kernel = false;
    if (s->n_large + s->n_small == 0)
        return 0;
    if (s->plain)
        err = sim_copy_kernel_submit(ch->copy_kernel, s->small, s->n_small, &sub->ticket);
    sub->by_copy_kernel = err != -ENOSPC;
    if (err == -ENOSPC) /* not encodable, or more than all slots hold */
        err = cuda_dma_launch(ch, sub, s->small, s->n_large, s->n_small, to_device);
    return err;
}

static int cuda_dma_dma_engine_submit(void *ctx, unsigned channel, bool to_device,
                                      const struct sim_copy *copies, unsigned n, uint64_t *ticket)
{
    struct channel *ch = channel_of(ctx, channel);
    struct submission *sub = &ch->ring[(ch->submitted + 1) % RING];
    struct sorted sorted;
    int err;

    if (ch->submitted - ch->done == RING) {
        cuda_dma_advance(ch, ch->done + 1);
        if (ch->submitted - ch->done == RING)
            return -EAGAIN;
    }
    sorted = sort_copies(ch, row_of(ch, sub), to_device, copies, n);
    err = submit_copies(ch, sub, &sorted, to_device);
    if (err)
        return err;
    *ticket = ++ch->submitted;
    return 0;
}

static int cuda_dma_dma_engine_poll(void *ctx, unsigned channel, uint64_t ticket)
{
    struct channel *ch = channel_of(ctx, channel);

    cuda_dma_advance(ch, ticket);
    if (ch->done < ticket)
        return 0;
    if (ticket + RING <= ch->submitted) /* the entry is in use: threads share channels */
        return ticket <= ch->failed ? -EIO : 1;
    return ch->ring[ticket % RING].failed ? -EIO : 1;
}

/*
 * Pins the memory for all GPUs. Memory that is already pinned, for example by
 * another engine, is accepted.
 */
static int dma_engine_pin(void *ctx, void *addr, size_t len)
{
    const struct sim_cuda_dma *m = ctx;
    int device = m->gpus[0]->device, before;
    cudaError_t err;

    if (enter_device(device, &before))
        return -EIO;
    err = cudaHostRegister(addr, len, cudaHostRegisterPortable | cudaHostRegisterMapped);
    leave_device(device, before);
    if (err == cudaErrorHostMemoryAlreadyRegistered) {
        cudaGetLastError();
        return 0;
    }
    return gq_cuda_errno(err);
}

static void dma_engine_unpin(void *ctx, void *addr)
{
    const struct sim_cuda_dma *m = ctx;
    int device = m->gpus[0]->device, before;

    if (enter_device(device, &before))
        return;
    if (cudaHostUnregister(addr) != cudaSuccess)
        cudaGetLastError();
    leave_device(device, before);
}

/* Also closes a partly opened channel. */
static void close_channel(struct channel *ch)
{
    sim_copy_kernel_close(ch->copy_kernel);
    for (unsigned i = 0; i < RING; i++) {
        if (ch->ring[i].event)
            cudaEventDestroy(ch->ring[i].event);
    }
    if (ch->stream)
        cudaStreamDestroy(ch->stream);
    if (ch->gathers)
        cudaFreeHost(ch->gathers);
}

static int open_channel(struct channel *ch, int device, unsigned copy_kernel_blocks)
{
    cudaError_t err = cudaStreamCreateWithFlags(&ch->stream, cudaStreamNonBlocking);

    ch->device = device;
    if (err == cudaSuccess)
        err = cudaHostAlloc((void **)&ch->gathers, sizeof(*ch->gathers) * RING * MAX_COPIES,
                            cudaHostAllocPortable | cudaHostAllocMapped);
    for (unsigned i = 0; i < RING && err == cudaSuccess; i++)
        err = cudaEventCreateWithFlags(&ch->ring[i].event, cudaEventDisableTiming);
    return err == cudaSuccess ? sim_copy_kernel_open(copy_kernel_blocks, &ch->copy_kernel)
                              : gq_cuda_errno(err);
}

/*
 * Stores the number of blocks in the copy kernel of one channel; all channels
 * together have one for each multiprocessor. The blocks of all channels must be
 * resident together with other kernels, since otherwise the missing blocks
 * would wait for those that poll.
 */
static int copy_kernel_blocks(int device, unsigned *blocks)
{
    int processors;
    int err =
        gq_cuda_errno(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));

    *blocks = err ? 0 : (unsigned)processors / CHANNELS;
    if (*blocks > BLOCKS_ENOUGH)
        *blocks = BLOCKS_ENOUGH;
    if (*blocks == 0)
        *blocks = 1;
    return err;
}

/* Called with the device selected. */
static int open_channels(struct gpu_channels *g)
{
    unsigned blocks;
    int err = gq_cuda_errno(sim_copy_kernel_load());

    if (!err)
        err = copy_kernel_blocks(g->device, &blocks);
    for (unsigned i = 0; i < CHANNELS && !err; i++)
        err = open_channel(&g->channels[i], g->device, blocks);
    return err;
}

/* If a channel cannot be opened, nothing has been launched on the open ones. */
static int cuda_dma_open_device(struct sim_cuda_dma *m, int device)
{
    struct gpu_channels *g = calloc(1, sizeof(*g));
    int before, err = g ? enter_device(device, &before) : -ENOMEM;

    if (err)
        goto free_channels;
    g->device = device;
    err = open_channels(g);
    for (unsigned i = 0; i < CHANNELS && err; i++)
        close_channel(&g->channels[i]);
    leave_device(device, before);
    if (err)
        goto free_channels;
    m->gpus[m->n++] = g;
    return 0;

free_channels:
    free(g);
    return err;
}

/* Returns the number of the GPU, which is that of its first mapping. */
static int dma_engine_open(void *ctx, uint64_t device)
{
    struct sim_cuda_dma *m = ctx;
    struct cudaPointerAttributes at;
    int err = gq_cuda_errno(cudaPointerGetAttributes(&at, (const void *)(uintptr_t)device));
    unsigned i = 0;

    if (err || at.type != cudaMemoryTypeDevice)
        return -EFAULT;
    while (i < m->n && m->gpus[i]->device != at.device)
        i++;
    if (i == SIM_DMA_DEVICES)
        return -EFAULT;
    err = i == m->n ? cuda_dma_open_device(m, at.device) : 0;
    return err ? err : (int)i;
}

static const struct sim_dma_engine_ops dma_engine_ops = {
    .max_copies = MAX_COPIES,
    .open = dma_engine_open,
    .submit = cuda_dma_dma_engine_submit,
    .poll = cuda_dma_dma_engine_poll,
    .pin = dma_engine_pin,
    .unpin = dma_engine_unpin,
};

struct sim_cuda_dma *sim_cuda_dma_new(void)
{
    struct sim_cuda_dma *m;

    pthread_mutex_lock(&spares.lock);
    m = spares.first;
    if (m)
        spares.first = m->next;
    pthread_mutex_unlock(&spares.lock);
    if (!m)
        m = calloc(1, sizeof(*m));
    if (m)
        m->table = (struct sim_dma_engine){.ops = &dma_engine_ops, .ctx = m, .channels = CHANNELS};
    return m;
}

void sim_cuda_dma_free(struct sim_cuda_dma *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&spares.lock);
    m->next = spares.first;
    spares.first = m;
    pthread_mutex_unlock(&spares.lock);
}

const struct sim_dma_engine *sim_cuda_dma_table(const struct sim_cuda_dma *m)
{
    return m ? &m->table : NULL;
}
