/*
 * Copies between pinned host memory and a GPU's memory, by channels: each is a stream of its own,
 * used by one thread. Large pieces go to the copy engine, many to a call; small ones to a gather
 * kernel that reads the host memory itself, for which the copy engine takes ten times as long.
 *
 * A submission ends in an event. Once the event has passed, the bytes are in place: the copy
 * engine and the kernel have both written through to the GPU's L2 (or, for copies to the host,
 * to host memory) before an event behind them in the stream is recorded.
 */
#include "cuda/gq_mover.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>

#include "cuda/gq_kernels.h"

#define CHANNELS     8u
#define RING         32u  /* submissions in flight on a channel */
#define MAX_COPIES   512u /* pieces of one submission */
#define KERNEL_BELOW (64u << 10)

struct channel {
    cudaStream_t stream;
    cudaEvent_t events[RING];
    struct gq_gather *gathers; /* pinned: RING rows of MAX_COPIES, read by the kernel */
    uint64_t submitted, done;  /* tickets: of the last submission, and of the last that ended */
    /* The copy engine's list, only while it is submitted. */
    void *dsts[MAX_COPIES];
    const void *srcs[MAX_COPIES];
    size_t lens[MAX_COPIES];
};

struct gq_mover {
    struct nvme_mover table;
    int device;
    struct channel channels[CHANNELS];
};

/* -errno for what CUDA said, which is taken back so that no later call reports it again. */
static int to_errno(cudaError_t err)
{
    if (err == cudaSuccess)
        return 0;
    cudaGetLastError();
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/* The device is a property of the calling thread: threads come from the controller. */
static int bind_device(const struct gq_mover *m)
{
    return to_errno(cudaSetDevice(m->device));
}

/* Tickets end in order, so it is enough to look at the oldest event that has not passed. */
static int advance(struct channel *ch)
{
    while (ch->done < ch->submitted) {
        cudaError_t err = cudaEventQuery(ch->events[(ch->done + 1) % RING]);

        if (err == cudaErrorNotReady) {
            cudaGetLastError();
            return 0;
        }
        if (err != cudaSuccess)
            return -EIO;
        ch->done++;
    }
    return 0;
}

static struct gq_gather direction(const struct nvme_copy *c, bool to_device)
{
    uint64_t host = (uint64_t)(uintptr_t)c->host;

    return to_device ? (struct gq_gather){c->device, host, c->len}
                     : (struct gq_gather){host, c->device, c->len};
}

/* Sorts the pieces, neighbours joined, into the engine's list and the kernel's. */
static void sort_pieces(struct channel *ch, struct gq_gather *small, bool to_device,
                        const struct nvme_copy *copies, unsigned n, unsigned *n_large,
                        unsigned *n_small)
{
    unsigned i = 0;

    *n_large = *n_small = 0;
    while (i < n) {
        struct gq_gather g = direction(&copies[i++], to_device);

        while (i < n) {
            struct gq_gather next = direction(&copies[i], to_device);

            if (next.dst != g.dst + g.len || next.src != g.src + g.len)
                break;
            g.len += next.len;
            i++;
        }
        if (g.len < KERNEL_BELOW) {
            small[(*n_small)++] = g;
        } else {
            ch->dsts[*n_large] = (void *)(uintptr_t)g.dst;
            ch->srcs[*n_large] = (const void *)(uintptr_t)g.src;
            ch->lens[(*n_large)++] = g.len;
        }
    }
}

static cudaError_t copy_large(struct channel *ch, unsigned n, bool to_device)
{
    /* In stream order: the source must not be read before earlier submissions have ended. */
    struct cudaMemcpyAttributes attr = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;

    if (n == 1)
        return cudaMemcpyAsync(ch->dsts[0], ch->srcs[0], ch->lens[0],
                               to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                               ch->stream);
    return cudaMemcpyBatchAsync(ch->dsts, ch->srcs, ch->lens, n, &attr, &first, 1, ch->stream);
}

static int mover_submit(void *ctx, unsigned channel, bool to_device, const struct nvme_copy *copies,
                        unsigned n, uint64_t *ticket)
{
    struct gq_mover *m = ctx;
    struct channel *ch = &m->channels[channel];
    struct gq_gather *small = ch->gathers + (ch->submitted + 1) % RING * MAX_COPIES;
    unsigned n_large, n_small;
    cudaError_t err = cudaSuccess;

    if (bind_device(m) || advance(ch))
        return -EIO;
    if (ch->submitted - ch->done == RING)
        return -EAGAIN;
    sort_pieces(ch, small, to_device, copies, n, &n_large, &n_small);
    if (n_large)
        err = copy_large(ch, n_large, to_device);
    if (err == cudaSuccess && n_small)
        err = gq_kernel_gather(small, n_small, ch->stream);
    if (err == cudaSuccess)
        err = cudaEventRecord(ch->events[(ch->submitted + 1) % RING], ch->stream);
    if (err != cudaSuccess)
        return -EIO;
    *ticket = ++ch->submitted;
    return 0;
}

static int mover_poll(void *ctx, unsigned channel, uint64_t ticket)
{
    struct gq_mover *m = ctx;
    struct channel *ch = &m->channels[channel];

    if (ch->done >= ticket)
        return 1;
    if (bind_device(m) || advance(ch))
        return -EIO;
    return ch->done >= ticket;
}

/* Memory that is pinned already, by another engine say, serves as well. */
static int mover_pin(void *ctx, void *addr, size_t len)
{
    cudaError_t err;

    if (bind_device(ctx))
        return -EIO;
    err = cudaHostRegister(addr, len, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (err == cudaErrorHostMemoryAlreadyRegistered) {
        cudaGetLastError();
        return 0;
    }
    return to_errno(err);
}

static void mover_unpin(void *ctx, void *addr)
{
    if (bind_device(ctx))
        return;
    if (cudaHostUnregister(addr) != cudaSuccess)
        cudaGetLastError();
}

static const struct nvme_mover_ops mover_ops = {
    .max_copies = MAX_COPIES,
    .submit = mover_submit,
    .poll = mover_poll,
    .pin = mover_pin,
    .unpin = mover_unpin,
};

/* Also of a channel that is only partly open. */
static void close_channel(struct channel *ch)
{
    for (unsigned i = 0; i < RING; i++) {
        if (ch->events[i])
            cudaEventDestroy(ch->events[i]);
    }
    if (ch->stream)
        cudaStreamDestroy(ch->stream);
    if (ch->gathers)
        cudaFreeHost(ch->gathers);
}

static int open_channel(struct channel *ch)
{
    cudaError_t err = cudaStreamCreateWithFlags(&ch->stream, cudaStreamNonBlocking);

    if (err == cudaSuccess)
        err = cudaHostAlloc((void **)&ch->gathers, sizeof(*ch->gathers) * RING * MAX_COPIES,
                            cudaHostAllocPortable | cudaHostAllocMapped);
    for (unsigned i = 0; i < RING && err == cudaSuccess; i++)
        err = cudaEventCreateWithFlags(&ch->events[i], cudaEventDisableTiming);
    return to_errno(err);
}

void gq_mover_close(struct gq_mover *m)
{
    bind_device(m);
    for (unsigned i = 0; i < CHANNELS; i++)
        close_channel(&m->channels[i]);
    free(m);
}

int gq_mover_open(int cuda_device, struct gq_mover **out)
{
    struct gq_mover *m = calloc(1, sizeof(*m));
    int err;

    if (!m)
        return -ENOMEM;
    m->device = cuda_device;
    m->table = (struct nvme_mover){.ops = &mover_ops, .ctx = m, .channels = CHANNELS};
    err = bind_device(m);
    for (unsigned i = 0; i < CHANNELS && !err; i++)
        err = open_channel(&m->channels[i]);
    if (err) {
        gq_mover_close(m);
        return err;
    }
    *out = m;
    return 0;
}

const struct nvme_mover *gq_mover_table(const struct gq_mover *m)
{
    return &m->table;
}
