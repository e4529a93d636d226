#include "cuda/gq_copier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHORTEST 512u
#define LONGEST  (64u << 10)
/* Blocks end one by one, so launches overlap, each in a stream whose last launch has ended. */
#define STREAMS        4u
#define ASK_CUDA_EVERY 4096u /* polls in vain */

struct gq_copier {
    struct gq_copier_launch launch; /* boxes, done and ended are pinned memory */
    unsigned blocks, idle_polls;
    uint32_t posted[GQ_COPIER_BLOCKS];   /* batches ever put into the block's boxes */
    uint32_t launched[GQ_COPIER_BLOCKS]; /* number of its last launch */
    cudaStream_t streams[STREAMS];
    uint32_t in_stream[STREAMS][GQ_COPIER_BLOCKS]; /* launches of the stream; 0: none */
};

static int to_errno(cudaError_t err)
{
    if (err == cudaSuccess)
        return 0;
    cudaGetLastError();
    return err == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

static void close_streams(struct gq_copier *c)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        if (!c->streams[i])
            continue;
        cudaStreamSynchronize(c->streams[i]);
        cudaStreamDestroy(c->streams[i]);
    }
}

static int open_streams(struct gq_copier *c)
{
    int err = 0;

    for (unsigned i = 0; i < STREAMS && !err; i++)
        err = to_errno(cudaStreamCreateWithFlags(&c->streams[i], cudaStreamNonBlocking));
    if (err)
        close_streams(c);
    return err;
}

int gq_copier_open(unsigned blocks, struct gq_copier **out)
{
    size_t boxes = sizeof(struct gq_copier_box) * GQ_COPIER_BOXES * blocks;
    size_t counts = GQ_COPIER_BLOCKS * sizeof(uint32_t);
    struct gq_copier *c = calloc(1, sizeof(*c));
    char *memory;
    int err;

    if (!c)
        return -ENOMEM;
    c->blocks = blocks;
    err = to_errno(cudaHostAlloc((void **)&memory, boxes + 2 * counts,
                                 cudaHostAllocPortable | cudaHostAllocMapped));
    if (err)
        goto free_copier;
    memset(memory, 0, boxes + 2 * counts);
    c->launch.boxes = (struct gq_copier_box *)(void *)memory;
    c->launch.done = (uint32_t *)(void *)(memory + boxes);
    c->launch.ended = (uint32_t *)(void *)(memory + boxes + counts);
    err = open_streams(c);
    if (err)
        goto free_memory;
    *out = c;
    return 0;

free_memory:
    cudaFreeHost(memory);
free_copier:
    free(c);
    return err;
}

void gq_copier_close(struct gq_copier *c)
{
    if (!c)
        return;
    close_streams(c);
    cudaFreeHost((void *)(uintptr_t)c->launch.boxes);
    free(c);
}

/* Acquire: a batch counted as done is in place, and its box may be filled again. */
static uint32_t done(const struct gq_copier *c, unsigned block)
{
    return __atomic_load_n(&c->launch.done[block], __ATOMIC_ACQUIRE);
}

static uint32_t under_way(const struct gq_copier *c, unsigned block)
{
    return c->posted[block] - done(c, block);
}

/* Little work stays on few blocks, and the others end. */
static unsigned least_busy(const struct gq_copier *c)
{
    unsigned best = 0;

    for (unsigned b = 1; b < c->blocks && under_way(c, best); b++) {
        if (under_way(c, b) < under_way(c, best))
            best = b;
    }
    return best;
}

bool gq_copier_takes(const struct gq_gather *copy)
{
    return copy->len >= SHORTEST && copy->len <= LONGEST && (copy->len & (copy->len - 1)) == 0 &&
           ((copy->dst | copy->src) & 15) == 0;
}

/* How many copies from the first one have its length, and fit into a box. */
static unsigned batch_len(const struct gq_gather *copies, unsigned n)
{
    unsigned i = 1;

    n = n < GQ_COPIER_BATCH ? n : GQ_COPIER_BATCH;
    while (i < n && copies[i].len == copies[0].len)
        i++;
    return i;
}

static int check_room(const struct gq_copier *c, const struct gq_gather *copies, unsigned n)
{
    unsigned boxes = c->blocks * GQ_COPIER_BOXES, full = 0, batches = 0;

    for (unsigned i = 0; i < n; batches++)
        i += batch_len(copies + i, n - i);
    for (unsigned b = 0; b < c->blocks; b++)
        full += under_way(c, b);
    if (batches > boxes)
        return -ENOSPC;
    return batches > boxes - full ? -EAGAIN : 0;
}

/*
 * The head goes last: who sees it sees all that was stored before, but for the words that he loaded
 * together with it, those of the first line. These all get this filling's tag, used or not, or a
 * word of 128 fillings ago might pass for a new one.
 */
static void post(struct gq_copier *c, unsigned block, const struct gq_gather *copies, unsigned n)
{
    uint32_t batch = c->posted[block]++;
    uint64_t tag = GQ_COPIER_TAG(batch / GQ_COPIER_BOXES + 1);
    uint64_t shift = (uint64_t)__builtin_ctzll(copies[0].len);
    uint64_t *words =
        (uint64_t *)(uintptr_t)c->launch.boxes[block * GQ_COPIER_BOXES + batch % GQ_COPIER_BOXES]
            .words;

    words[1] = tag;
    for (unsigned i = 0; i < n; i++) {
        words[2 + 2 * i] = copies[i].dst | tag;
        words[3 + 2 * i] = copies[i].src | tag;
    }
    for (unsigned i = 2 + 2 * n; i < GQ_COPIER_LINE; i++)
        words[i] = tag;
    __atomic_store_n(&words[0], n | shift << 8 | tag, __ATOMIC_RELEASE);
}

static bool has_ended(const struct gq_copier *c, unsigned block, uint32_t launch)
{
    /* Acquire: its last count came before. Numbers wrap around: their distance does not. */
    uint32_t ended = __atomic_load_n(&c->launch.ended[block], __ATOMIC_ACQUIRE);

    return (int32_t)(ended - launch) >= 0;
}

/* A stream in which nothing runs, or STREAMS. */
static unsigned free_stream(const struct gq_copier *c)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        bool ended = true;

        for (unsigned b = 0; b < c->blocks; b++)
            ended = ended && has_ended(c, b, c->in_stream[i][b]);
        if (ended)
            return i;
    }
    return STREAMS;
}

/* When a block has work and no kernel: launches all that have none. */
static int start_ended(struct gq_copier *c)
{
    unsigned stream;
    bool needed = false;

    for (unsigned b = 0; b < c->blocks && !needed; b++)
        needed = under_way(c, b) && has_ended(c, b, c->launched[b]);
    stream = needed ? free_stream(c) : STREAMS;
    if (stream == STREAMS)
        return 0; /* polls come by again */
    for (unsigned b = 0; b < c->blocks; b++) {
        bool start = has_ended(c, b, c->launched[b]);

        c->launch.first[b] = done(c, b);
        c->launch.launch[b] = start ? ++c->launched[b] : 0;
        if (start)
            c->in_stream[stream][b] = c->launched[b];
    }
    return to_errno(gq_copier_run(&c->launch, c->blocks, c->streams[stream]));
}

int gq_copier_submit(struct gq_copier *c, const struct gq_gather *copies, unsigned n,
                     struct gq_copier_ticket *ticket)
{
    int err = check_room(c, copies, n);

    if (err)
        return err;
    while (n) {
        unsigned in_box = batch_len(copies, n);

        post(c, least_busy(c), copies, in_box);
        copies += in_box;
        n -= in_box;
    }
    memcpy(ticket->need, c->posted, sizeof(ticket->need));
    return start_ended(c);
}

/* A kernel that faulted counts no further; CUDA knows, and is asked seldom, for it takes locks. */
static int check_streams(struct gq_copier *c)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        cudaError_t err = cudaStreamQuery(c->streams[i]);

        if (err == cudaErrorNotReady)
            cudaGetLastError();
        else if (err != cudaSuccess)
            return to_errno(err);
    }
    return 0;
}

int gq_copier_poll(struct gq_copier *c, const struct gq_copier_ticket *ticket)
{
    int err;

    for (unsigned b = 0; b < c->blocks; b++) {
        /* Counts wrap around: their distance does not. */
        if ((int32_t)(ticket->need[b] - done(c, b)) <= 0)
            continue;
        err = ++c->idle_polls % ASK_CUDA_EVERY ? 0 : check_streams(c);
        return err ? err : start_ended(c);
    }
    return 1;
}
