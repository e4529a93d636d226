/* SPDX-License-Identifier: BSD-2-Clause */
/* The queue code over a simulated drive in one process. */
#include "bench/lib/gq_stack.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_SOURCE ((uint64_t)1 << 30) /* pinned */
#define GATHER_MIN 512u                /* of the kernel */
#define WHOLE      (1u << 20)          /* pieces of a sequential read */

static int fail(const struct gq_stack *s, const char *object, int err, const char *advice)
{
    fprintf(stderr, "%s: %s: %s, %s\n", s->who, object, strerror(-err), advice);
    return err;
}

int gq_stack_executor(struct gq_options *opts, const char *name)
{
    const char *names[] = {"auto", "cuda", "cpu"};

    for (unsigned i = 0; i < 3; i++) {
        if (!strcmp(name, names[i])) {
            opts->executor = (enum gq_executor_kind)i;
            return 0;
        }
    }
    return -EINVAL;
}

/* Moves the share of one thread: the bytes of the stream from `at` on, to the same place. */
struct share {
    struct gq_stack *stack;
    enum gq_op op;
    const struct gq_file_extent *extents;
    size_t n_extents;
    uint64_t at, len, commands;
    pthread_t thread;
    int err;
};

static void *move(void *arg)
{
    struct share *s = arg;
    struct gq_request req = {.op = s->op,
                             .buffer = s->stack->buffer,
                             .buffer_offset = s->at,
                             .file_offset = s->at,
                             .len = s->len,
                             .extents = s->extents,
                             .n_extents = s->n_extents,
                             .end = s->stack->size};
    struct gq_result result;

    s->err = gq_transfer(s->stack->engine, &req, &result);
    s->commands = result.commands;
    if (s->err)
        fprintf(stderr, "%s: NVMe status %#x (%s) after %" PRIu64 " bytes\n", s->stack->who,
                result.nvme_status, nvme_status_text(result.nvme_status), result.bytes);
    return NULL;
}

static int transfer(struct gq_stack *s, enum gq_op op, const struct gq_file_extent *extents,
                    size_t n, unsigned threads, uint64_t *commands)
{
    struct share shares[GQ_STACK_READERS];
    unsigned started;
    int err = 0;

    for (started = 0; started < threads && !err; started++) {
        struct share *share = &shares[started];

        *share = (struct share){.stack = s, .op = op, .extents = extents, .n_extents = n};
        share->len = s->size / threads;
        share->at = started * share->len;
        if (threads > 1)
            err = -pthread_create(&share->thread, NULL, move, share);
        else
            move(share);
    }
    if (err)
        started--;
    *commands = 0;
    for (unsigned i = 0; i < started; i++) {
        if (threads > 1)
            pthread_join(shares[i].thread, NULL);
        err = err ? err : shares[i].err;
        *commands += shares[i].commands;
    }
    return err;
}

static int open_drive(struct gq_stack *s)
{
    struct sim_config cfg = {.ns[0] = {.bytes = s->size, .lba_size = s->lba},
                             .namespaces = 1,
                             .threads = s->sim_threads,
                             .mdts = 4u << 20,
                             .doorbell_stride = SIM_STRIDE_LINES};
    struct nvme_transport *t;
    int err = sim_create(&cfg, &s->sim, &t);

    if (err)
        return fail(s, "simulator", err, "try a smaller size");
    err = nvme_ctrlr_open(t, NULL, &s->ctrlr);
    if (err) {
        t->ops->close(t);
        return fail(s, "controller", err, "the simulator did not start");
    }
    return 0;
}

static int open_engine(struct gq_stack *s)
{
    int err;

    s->gpu = sim_cuda_dma_new();
    err = sim_set_dma_engine(s->sim, sim_cuda_dma_table(s->gpu));
    if (err)
        return fail(s, "simulator", err, "try a smaller size");
    err = gq_engine_open(s->ctrlr, 1, &s->opts, &s->engine);
    if (err)
        return fail(s, "engine", err, "try -x cpu");
    gq_engine_info(s->engine, &s->info);
    s->is_cuda = s->info.executor == GQ_EXECUTOR_CUDA;
    return 0;
}

static int open_memory(struct gq_stack *s)
{
    int err = bench_memory_alloc(&s->memory, s->is_cuda, s->size);

    s->source_len = s->size < MAX_SOURCE ? s->size : MAX_SOURCE;
    if (!err) {
        s->source = bench_host_alloc(s->is_cuda, s->source_len);
        err = s->source ? 0 : -ENOMEM;
    }
    return err ? fail(s, "memory", err, "try a smaller size") : 0;
}

static int open_buffer(struct gq_stack *s)
{
    struct gq_mem mem = {.kind = s->is_cuda ? GQ_MEM_CUDA : GQ_MEM_HOST,
                         .addr = s->memory.addr,
                         .fd = -1,
                         .len = s->size};
    int err = gq_buffer_register(s->engine, &mem, &s->buffer);

    return err ? fail(s, "buffer", err, "it could not be registered") : 0;
}

/* Media and source hold the pattern from its start on; the media by writes of the queue code. */
static int fill(struct gq_stack *s)
{
    struct gq_file_extent all = {0, 0};
    uint64_t commands;
    int err = bench_fill(&s->memory, s->size, s->seed);

    if (!err)
        err = transfer(s, GQ_WRITE, &all, 1, 1, &commands);
    if (!err)
        err = gq_buffer_get(s->buffer, 0, s->source, s->source_len);
    return err ? fail(s, "media", err, "they could not be filled") : 0;
}

int gq_stack_open(struct gq_stack *s)
{
    int err;

    s->lba = s->lba ? s->lba : GQ_STACK_LBA;
    err = open_drive(s);
    if (!err)
        err = open_engine(s);
    if (!err)
        err = open_memory(s);
    if (!err)
        err = open_buffer(s);
    return err ? err : fill(s);
}

static void close_engine(struct gq_stack *s)
{
    if (s->buffer)
        gq_buffer_unregister(s->buffer);
    if (s->engine)
        gq_engine_close(s->engine);
    s->buffer = NULL;
    s->engine = NULL;
}

int gq_stack_reopen(struct gq_stack *s)
{
    int err;

    close_engine(s);
    err = open_engine(s);
    return err ? err : open_buffer(s);
}

void gq_stack_close(struct gq_stack *s)
{
    close_engine(s);
    if (s->ctrlr)
        nvme_ctrlr_close(s->ctrlr);
    sim_free(s->sim);
    sim_cuda_dma_free(s->gpu);
    bench_memory_free(&s->memory);
    bench_host_free(s->is_cuda, s->source);
    s->ctrlr = NULL;
    s->sim = NULL;
    s->source = NULL;
}

struct work {
    struct pattern_pieces pieces;
    struct gq_file_extent *extents;
    size_t n_extents;
    /* Of a batch: all pieces, and the media as a file. */
    struct gq_file_extent *map;
    struct gq_buffer *list;
};

static void free_work(struct gq_stack *s, struct work *w)
{
    bench_pieces_free(&w->pieces, s->is_cuda);
    free(w->extents);
    free(w->map);
    if (w->list)
        gq_buffer_unregister(w->list);
}

static int make_list(struct gq_stack *s, struct work *w)
{
    const struct pattern_pieces *p = &w->pieces;
    struct gq_mem mem = {
        .kind = GQ_MEM_FD, .len = p->n * sizeof(struct gq_read_desc), .is_list = true};
    struct gq_read_desc *list;
    int err;

    mem.fd = memfd_create("pieces", MFD_CLOEXEC);
    if (mem.fd < 0)
        return -errno;
    err = ftruncate(mem.fd, (off_t)mem.len) ? -errno : 0;
    if (!err)
        err = gq_buffer_register(s->engine, &mem, &w->list);
    close(mem.fd);
    if (err)
        return err;
    list = gq_buffer_list(w->list);
    for (uint64_t i = 0; i < p->n; i++)
        list[i] = (struct gq_read_desc){p->places[i], i * p->bytes, (uint32_t)p->bytes, 0};
    return 0;
}

static int make_batch(struct gq_stack *s, struct work *w)
{
    uint64_t lbas = s->size / s->lba;

    w->map = calloc(s->batch, sizeof(*w->map));
    if (!w->map)
        return -ENOMEM;
    for (uint64_t i = 0; i < s->batch; i++) {
        uint64_t lba = i * lbas / s->batch;

        w->map[i] = (struct gq_file_extent){lba * s->lba, lba};
    }
    return make_list(s, w);
}

static int make_work(struct gq_stack *s, uint64_t piece, bool random, struct work *w)
{
    uint64_t state = random ? s->seed : 0;
    int err;

    err = bench_pieces_make(&w->pieces, s->is_cuda, s->seed, s->size, piece,
                            random ? s->source_len : s->size, &state);
    w->n_extents = random ? w->pieces.n : 1;
    w->extents = calloc(w->n_extents, sizeof(*w->extents));
    if (err || !w->extents)
        return -ENOMEM;
    for (size_t i = 0; i < w->n_extents; i++)
        w->extents[i] = (struct gq_file_extent){i * w->pieces.bytes, w->pieces.places[i] / s->lba};
    return s->batch ? make_batch(s, w) : 0;
}

static int time_copy(struct gq_stack *s, struct bench_samples *samples)
{
    double start = bench_seconds();
    int err = bench_copy(&s->memory, s->size, s->source, s->source_len);

    bench_add(samples, (double)s->size / (bench_seconds() - start) * 1e-9);
    return err;
}

static int time_gather(struct gq_stack *s, const struct work *w, struct bench_samples *samples)
{
    double start;
    int err = bench_poison(&s->memory, s->seed);

    start = bench_seconds();
    if (!err)
        err = bench_gather(&s->memory, s->source, &w->pieces);
    bench_add(samples, (double)s->size / (bench_seconds() - start) * 1e-9);
    return err ? err : bench_verify(&s->memory, &w->pieces, s->who);
}

static int read_batch(struct gq_stack *s, const struct work *w, uint64_t *commands)
{
    struct gq_readv req = {.buffer = s->buffer,
                           .extents = w->map,
                           .n_extents = s->batch,
                           .end = s->size,
                           .list = w->list,
                           .n = w->pieces.n,
                           .most = UINT64_MAX,
                           .odd_most = UINT64_MAX};
    struct gq_result result;
    int err = gq_readv(s->engine, &req, &result);

    *commands = result.commands;
    if (!err && (result.partial || result.bytes != s->size))
        err = -EIO;
    if (err)
        fprintf(stderr, "%s: NVMe status %#x (%s), %" PRIu64 " bytes\n", s->who, result.nvme_status,
                nvme_status_text(result.nvme_status), result.bytes);
    return err;
}

static int time_read(struct gq_stack *s, const struct work *w, struct gq_figures *out)
{
    double start;
    int err = bench_poison(&s->memory, s->seed);

    start = bench_seconds();
    if (!err && s->batch)
        err = read_batch(s, w, &out->commands);
    else if (!err)
        err = transfer(s, GQ_READ, w->extents, w->n_extents, s->readers ? s->readers : 1,
                       &out->commands);
    bench_add(&out->reads, (double)s->size / (bench_seconds() - start) * 1e-9);
    return err ? err : bench_verify(&s->memory, &w->pieces, s->who);
}

int gq_stack_measure(struct gq_stack *s, uint64_t piece, bool random, unsigned repeats,
                     struct gq_figures *out)
{
    uint64_t bytes = piece ? piece : WHOLE;
    struct work w = {.extents = NULL};
    bool gathers;
    int err;

    err = make_work(s, bytes, random, &w);
    /* In order all places of the source must be there. */
    gathers = bytes % GATHER_MIN == 0 && (random || s->source_len == s->size);
    for (unsigned i = 0; i <= repeats && !err; i++) {
        if (i < 2)
            *out = (struct gq_figures){.commands = 0};
        err = time_copy(s, &out->copies);
        if (!err && gathers)
            err = time_gather(s, &w, &out->gathers);
        if (!err)
            err = time_read(s, &w, out);
    }
    free_work(s, &w);
    return err ? fail(s, "read", err, "nothing was measured") : 0;
}
