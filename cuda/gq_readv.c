/*
 * Many reads at once: the list goes to the executor in chunks, two of them under way at a time,
 * each on half of the queues, and a third is filled meanwhile. The host looks at no read but to
 * count its bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_run.h"

#define READS_A_QUEUE  8u
#define QUEUES_ENOUGH  16u
#define FIRST_CHUNK    1024u
#define READS_TO_SPLIT 1024u

/* What a chunk holds of the list. */
struct part {
    size_t first, n;
    uint64_t bytes; /* if all goes well */
};

/*
 * Parts are numbered in the order of the list: part i is in the slot's chunks[i % GQ_SLOT_CHUNKS]
 * and is run by runs[i % n_runs].
 */
struct readv {
    struct gq_job job;
    const struct gq_readv *req;
    struct gq_reads reads[GQ_SLOT_RUNS];
    struct gq_job_run runs[GQ_SLOT_RUNS];
    struct part parts[GQ_SLOT_CHUNKS];
    unsigned n_runs;
    unsigned filled, started, ended; /* parts of this lease */
    size_t next, room;               /* of the list, what the next part begins with; its size */
    size_t done;                     /* reads whose results stand */
    uint64_t sure, unsure;           /* bytes of those, and of parts that may run once more */
    uint16_t status;                 /* the first error of those */
};

static struct part *part_of(struct readv *v, unsigned i)
{
    return &v->parts[i % GQ_SLOT_CHUNKS];
}

static struct gq_chunk *chunk_of(struct readv *v, unsigned i)
{
    return &v->job.e->slots[v->job.lease.slot].chunks[i % GQ_SLOT_CHUNKS];
}

static struct gq_job_run *run_of(struct readv *v, unsigned i)
{
    return &v->runs[i % v->n_runs];
}

static uint64_t bytes_of(const struct readv *v, const struct gq_read *read)
{
    return gq_read_bytes(&v->reads[0].map, read->file_offset, read->len);
}

/* False: there is nothing left to fill, or no room for it. */
static bool fill_part(struct readv *v)
{
    size_t n = v->req->n - v->next < v->room ? v->req->n - v->next : v->room;
    struct part *part = part_of(v, v->filled);
    struct gq_chunk *chunk = chunk_of(v, v->filled);

    if (n == 0 || v->filled - v->ended == GQ_SLOT_CHUNKS)
        return false;
    *part = (struct part){.first = v->next, .n = n};
    if (v->req->reads)
        memcpy(chunk->reads, &v->req->reads[v->next], n * sizeof(*chunk->reads));
    else
        v->req->fill(v->req->context, v->next, n, chunk->reads);
    memset(chunk->results, 0, n * sizeof(*chunk->results));
    static_assert(GQ_READ_OK == 0, "results begin as it");
    for (size_t i = 0; i < n; i++)
        part->bytes += bytes_of(v, &chunk->reads[i]);
    chunk->n_cmds = (uint32_t)n;
    chunk->n_pieces = 0;
    v->next += n;
    v->filled++;
    v->room = 2 * v->room < GQ_CHUNK_CMDS ? 2 * v->room : GQ_CHUNK_CMDS;
    return true;
}

static int start_part(struct readv *v)
{
    const struct gq_chunk *chunk = chunk_of(v, v->started);
    struct gq_job_run *run = run_of(v, v->started);
    struct gq_reads *reads = &v->reads[v->started % v->n_runs];
    int err;

    reads->list = chunk->reads;
    run->launch.reads = reads;
    run->launch.run =
        (struct gq_run){.results = chunk->results, .n_cmds = chunk->n_cmds, .opcode = NVME_IO_READ};
    err = gq_job_start(&v->job, run, chunk, v->started > v->ended);
    v->started += !err;
    return err;
}

/* Fills ahead, and starts as much as may be under way. 0, or why nothing more is to be started. */
static int start_parts(struct readv *v)
{
    bool filled = true;
    int err = 0;

    while (!err && filled) {
        while (!err && v->started < v->filled && v->started - v->ended < v->n_runs)
            err = start_part(v);
        filled = !err && fill_part(v);
    }
    return err == -EAGAIN ? 0 : err;
}

/* How many bytes came, where not all reads went well. */
static uint64_t count_bytes(struct readv *v, const struct gq_chunk *chunk)
{
    struct gq_result *result = v->job.result;
    uint64_t bytes = 0;

    for (size_t i = 0; i < chunk->n_cmds; i++) {
        uint32_t r = chunk->results[i];

        if (r == GQ_READ_OK)
            bytes += bytes_of(v, &chunk->reads[i]);
        else if ((r & GQ_ENDED) && !result->nvme_status)
            result->nvme_status = (uint16_t)(r & 0xffffu);
    }
    return bytes;
}

/* err: what the run of the oldest part under way came to. */
static void take_part(struct readv *v, int err)
{
    const struct part *part = part_of(v, v->ended);
    const struct gq_chunk *chunk = chunk_of(v, v->ended);
    uint64_t bytes = part->bytes;
    uint32_t bad = 0;

    if (run_of(v, v->ended)->failed) /* whatever they say, it is not known */
        return;
    if (v->req->reads)
        memcpy(&v->req->results[part->first], chunk->results, part->n * sizeof(*chunk->results));
    else
        v->req->take(v->req->context, part->first, part->n, chunk->reads, chunk->results);
    for (size_t i = 0; i < part->n; i++)
        bad |= chunk->results[i];
    if (bad)
        bytes = count_bytes(v, chunk);
    if (err) {
        v->unsure += bytes;
        return;
    }
    v->sure += bytes;
    v->status = v->job.result->nvme_status;
    v->done = part->first + part->n;
}

static int end_part(struct readv *v)
{
    uint64_t commands = v->job.result->commands;
    int err = gq_job_wait(&v->job, run_of(v, v->ended), chunk_of(v, v->ended));

    take_part(v, err);
    v->ended++;
    if (!err && v->job.result->commands != commands)
        nvme_ctrlr_progress(v->job.e->ctrlr);
    return err;
}

static uint64_t queues_wanted(const struct readv *v)
{
    size_t n = (v->req->n - v->done + READS_A_QUEUE - 1) / READS_A_QUEUE;

    return n < QUEUES_ENOUGH ? n : QUEUES_ENOUGH;
}

/* Copies the map to the slot's part of the executor's memory, where it is not already. */
static int put_map(struct readv *v)
{
    struct gq_engine *e = v->job.e;
    struct gq_slot_res *slot = &e->slots[v->job.lease.slot];
    size_t room = GQ_READV_EXTENTS * sizeof(*slot->map);
    size_t len = v->req->n_extents * sizeof(*slot->map);
    uint64_t at = e->maps.base + v->job.lease.slot * room;
    int err;

    for (unsigned i = 0; i < GQ_SLOT_RUNS; i++)
        v->reads[i].map.extents = (const struct gq_file_extent *)(uintptr_t)at;
    if (slot->map_extents == v->req->n_extents &&
        (len == 0 || !memcmp(slot->map, v->req->extents, len)))
        return 0;
    if (!slot->map)
        slot->map = malloc(room);
    if (!slot->map)
        return -ENOMEM;
    slot->map_extents = 0;
    err = e->exec->ops->put(e->exec, at, v->req->extents, len);
    if (err)
        return err;
    memcpy(slot->map, v->req->extents, len);
    slot->map_extents = v->req->n_extents;
    return 0;
}

/* After an error nothing more is started; what is under way is told to end. */
static int run_parts(struct gq_job *job)
{
    struct readv *v = (struct readv *)job;
    int err = put_map(v), stop = 0;

    v->n_runs = job->lease.n > 1 && v->req->n - v->done > READS_TO_SPLIT ? GQ_SLOT_RUNS : 1;
    gq_job_share(job, v->runs, v->n_runs);
    v->next = v->done;
    v->room = FIRST_CHUNK;
    v->unsure = 0;
    job->result->nvme_status = v->status;
    v->filled = v->started = v->ended = 0;
    if (err)
        return err;
    do {
        stop = stop ? stop : start_parts(v);
        if (v->ended < v->started)
            err = end_part(v);
    } while (!err && (v->ended < v->started || (!stop && v->ended < v->filled)));
    for (; v->ended < v->started; v->ended++) {
        gq_job_abandon(job, run_of(v, v->ended), chunk_of(v, v->ended));
        take_part(v, -ECANCELED);
    }
    job->want = queues_wanted(v);
    return err ? err : stop;
}

/* The extent up to `end`: whole LBAs but for the file's last, and of this namespace. */
static bool extent_is_valid(const struct gq_engine *e, const struct gq_file_extent *x, uint64_t end)
{
    uint64_t lba_size = e->ns.lba_size, lbas;

    if (end <= x->offset || x->offset % lba_size)
        return false;
    lbas = (end - x->offset - 1) / lba_size + 1;
    return x->lba == GQ_LBA_ZERO || (lbas <= e->ns.lbas && x->lba <= e->ns.lbas - lbas);
}

static int check_map(const struct gq_engine *e, const struct gq_readv *req)
{
    if (req->n_extents > GQ_READV_EXTENTS)
        return -E2BIG;
    if (req->n_extents == 0 && req->end != 0)
        return -EINVAL;
    for (size_t i = 0; i < req->n_extents; i++) {
        uint64_t end = i + 1 < req->n_extents ? req->extents[i + 1].offset : req->end;

        if (!extent_is_valid(e, &req->extents[i], end))
            return -EINVAL;
    }
    return 0;
}

static void describe(struct readv *v)
{
    const struct gq_engine *e = v->job.e;
    const struct gq_buffer *b = v->job.buffer;
    const struct gq_reads reads = {
        .map = {.end = v->req->end,
                .count = (uint32_t)v->req->n_extents,
                .lba_size = e->ns.lba_size},
        .target = {.base = b->region.base,
                   .iova = b->region.iova,
                   .prps_iova = b->region.prps.iova,
                   .head = b->import.head,
                   .len = b->len},
        .staging = {.base = e->staging.base + e->queue_staging,
                    .iova = e->staging.iova + e->queue_staging},
        .max_command = e->info.max_command,
    };

    for (unsigned i = 0; i < GQ_SLOT_RUNS; i++)
        v->reads[i] = reads;
}

static int readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    struct readv v = {.job = {.e = e,
                              .buffer = req->buffer,
                              .cancel = req->cancel,
                              .result = result,
                              .work = run_parts},
                      .req = req};
    int err = check_map(e, req);

    if (err)
        return err;
    if (req->buffer->unreachable)
        return -ENOTSUP;
    if (req->n == 0)
        return 0;
    describe(&v);
    v.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    v.job.want = queues_wanted(&v);
    err = gq_job_do(&v.job);
    result->bytes = v.sure + v.unsure;
    return err;
}

int gq_readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    int err;

    for (size_t i = 0; req->reads && i < req->n; i++)
        req->results[i] = GQ_READ_LOST;
    err = gq_job_enter(e, req->buffer, result);
    if (!err) {
        err = readv(e, req, result);
        gq_buffer_leave(req->buffer);
    }
    gq_job_leave(e, false, result);
    return err;
}
