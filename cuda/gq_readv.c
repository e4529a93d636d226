/*
 * Many reads at once: one run over the whole list, which lies where the caller has it. The host
 * looks at a piece only where something went wrong.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_run.h"

#define READS_A_QUEUE 8u
/*
 * Who waits for completions reads host memory over the link that carries the data, so no more
 * queues than the reads need: 512 bytes want all of them, of 4 KiB five do as well as 32, and of 64
 * KiB 32 cost a twentieth.
 */
#define QUEUES_ENOUGH  32u
#define LONG_READ      2048u /* bytes; of such reads: */
#define QUEUES_OF_LONG 12u
#define SAMPLES        8u

struct readv {
    struct gq_job job;
    const struct gq_readv *req;
    struct gq_reads reads;
    volatile struct gq_asked *pieces; /* as the host addresses them */
    bool told;          /* the pieces have results by a run whose queues are known to have ended */
    bool bad;           /* not all of them are bytes */
    uint64_t taken;     /* bytes that run has begun with */
    uint16_t status;    /* of a command of its that failed, */
    uint32_t status_of; /* and the number of its piece */
};

/* There is one list: all. */
static bool fill_list(struct gq_job *job, unsigned i, struct gq_chunk *chunk)
{
    const struct readv *v = (const struct readv *)job;

    chunk->n_cmds = (uint32_t)v->req->n;
    chunk->n_pieces = 0;
    return i == 0;
}

static void take_state(struct readv *v, const struct gq_state *state)
{
    v->taken += state->bytes;
    v->bad |= state->bad != UINT32_MAX;
    if (state->status && state->status_of < v->status_of) {
        v->status = (uint16_t)state->status;
        v->status_of = state->status_of;
    }
}

/* What the queues say of the whole list. */
static int take_list(struct gq_job *job, unsigned i, const struct gq_chunk *chunk, int err)
{
    struct readv *v = (struct readv *)job;
    const struct gq_launch *l = &job->runs[0].launch;

    (void)i;
    (void)chunk;
    v->told = true;
    v->bad = err != 0;
    v->taken = 0;
    v->status = 0;
    v->status_of = UINT32_MAX;
    for (unsigned q = 0; q < l->run.n_queues; q++)
        take_state(v, &l->states[q]);
    return err;
}

/* A guess from some of them, on which only the number of queues depends. */
static bool reads_are_long(const struct readv *v)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < SAMPLES; i++)
        bytes += v->pieces[i * v->req->n / SAMPLES].len;
    return bytes >= SAMPLES * LONG_READ;
}

static uint64_t queues_wanted(const struct readv *v)
{
    uint64_t n = (v->req->n + READS_A_QUEUE - 1) / READS_A_QUEUE;
    uint64_t enough = reads_are_long(v) ? QUEUES_OF_LONG : QUEUES_ENOUGH;

    return n < enough ? n : enough;
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

    v->reads.map.extents = (const struct gq_file_extent *)(uintptr_t)at;
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

static int run_list(struct gq_job *job)
{
    struct readv *v = (struct readv *)job;
    int err = put_map(v);

    if (!err)
        err = gq_job_lists(job, false);
    v->told = v->told && !job->runs[0].failed;
    return err;
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

static int check(const struct gq_engine *e, const struct gq_readv *req)
{
    uint64_t room = req->list->len / sizeof(struct gq_asked);
    int err = check_map(e, req);

    if (err)
        return err;
    if (req->n > GQ_READV_PIECES)
        return -E2BIG;
    if (!req->most || !req->list->is_list || req->first > room || req->n > room - req->first)
        return -EINVAL;
    return req->buffer->unreachable ? -ENOTSUP : 0;
}

static uint64_t map_start(const struct gq_readv *req)
{
    return req->n_extents ? req->extents[0].offset : 0;
}

static void describe(struct readv *v)
{
    const struct gq_readv *req = v->req;
    const struct gq_engine *e = v->job.e;
    const struct gq_buffer *b = req->buffer, *list = req->list;
    uint64_t first = req->first * sizeof(struct gq_asked);

    v->pieces = (struct gq_asked *)gq_buffer_list(list) + req->first;
    v->reads = (struct gq_reads){
        .map = {.end = req->end, .count = (uint32_t)req->n_extents, .lba_size = e->ns.lba_size},
        .target = {.base = b->region.base,
                   .iova = b->region.iova,
                   .prps_iova = b->region.prps.iova,
                   .head = b->import.head,
                   .len = b->len},
        .staging = {.base = e->staging.base + e->queue_staging,
                    .iova = e->staging.iova + e->queue_staging},
        .asked = (struct gq_asked *)(uintptr_t)(list->import.base + list->import.head + first),
        .most = req->most,
        .odd_most = req->odd_most,
        .goes_on = req->goes_on,
        .is_part = req->goes_on || map_start(req) != 0,
        .max_command = e->info.max_command,
    };
}

/* Is it for runs with this map? Of a whole file's, all pieces are. */
static bool is_inside(const struct readv *v, uint64_t i)
{
    uint64_t offset = v->pieces[i].file_offset;

    return offset >= map_start(v->req) && (!v->req->goes_on || offset < v->req->end);
}

/* What the list says now: of the executor's memory only bytes that a run has begun with. */
static uint64_t count_bytes(const struct readv *v)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < v->req->n && bytes < v->taken; i++) {
        int32_t result = v->pieces[i].result;

        bytes += result > 0 && is_inside(v, i) ? (uint64_t)result : 0;
    }
    return bytes < v->taken ? bytes : v->taken;
}

/* Nothing is known of any piece. Of a part of a file all stay that no run has come to. */
static void lose_all(const struct readv *v)
{
    uint64_t n = v->reads.is_part && !v->job.runs[0].failed ? 0 : v->req->n;

    for (uint64_t i = 0; i < n; i++) {
        if (is_inside(v, i))
            v->pieces[i].result = -ECANCELED;
    }
}

static void conclude(const struct readv *v)
{
    struct gq_result *result = v->job.result;

    if (!v->told)
        lose_all(v);
    result->partial = v->bad || !v->told;
    result->taken = v->told ? v->taken : 0;
    result->bytes = !v->told ? 0 : v->bad ? count_bytes(v) : v->taken;
    result->nvme_status = v->status;
}

static int readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    struct readv v = {.job = {.e = e,
                              .buffer = req->buffer,
                              .cancel = req->cancel,
                              .result = result,
                              .opcode = NVME_IO_READ,
                              .reads = &v.reads,
                              .work = run_list,
                              .fill = fill_list,
                              .take = take_list},
                      .req = req};
    int err = check(e, req);

    if (err || req->n == 0)
        return err;
    describe(&v);
    v.job.want = queues_wanted(&v);
    v.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    err = gq_job_do(&v.job);
    conclude(&v);
    return err;
}

static int readv_from(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    int err = gq_buffer_enter(e, req->list);

    if (err)
        return err;
    err = readv(e, req, result);
    gq_buffer_leave(req->list);
    return err;
}

int gq_readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    int err = gq_job_enter(e, req->buffer, result);

    if (!err) {
        err = readv_from(e, req, result);
        gq_buffer_leave(req->buffer);
    }
    gq_job_leave(e, false, result);
    return err;
}
