/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes one transfer as lists of commands, one list per chunk of the stream.
 */
#include <errno.h>

#include "cuda/engine/gq_job.h"

#define COMMANDS_A_QUEUE 8u
#define QUEUES_ENOUGH    8u
/* A transfer of more commands has two chunks in flight at a time. */
#define COMMANDS_TO_SPLIT 1024u

struct transfer {
    struct gq_job job;
    const struct gq_request *req;
    struct gq_plan plan;                 /* cuts the next chunk */
    struct gq_plan done;                 /* at the first byte not known to be transferred */
    struct gq_plan after[GQ_JOB_CHUNKS]; /* the plan after each chunk */
};

/*
 * Takes results in stream order: counts bytes up to the first command not known
 * to have succeeded.
 */
static void take_results(struct gq_result *result, const struct gq_chunk *chunk)
{
    bool whole = true;

    for (uint32_t i = 0; i < chunk->n_cmds; i++) {
        uint32_t r = chunk->results[i];

        if (r == GQ_ENDED)
            continue;
        if (whole)
            result->bytes = chunk->stream[i];
        whole = false;
        if (r != GQ_PENDING && !result->nvme_status)
            result->nvme_status = (uint16_t)(r & 0xffffu);
    }
    if (whole)
        result->bytes = chunk->end;
}

static bool plan_chunk(struct gq_job *job, unsigned i, struct gq_chunk *chunk)
{
    struct transfer *t = (struct transfer *)job;
    struct gq_listener *l = t->req->listener;
    unsigned at = i % GQ_JOB_CHUNKS;
    uint64_t part = job->e->chunk_staging;

    if (!gq_plan_next(&t->plan, chunk, (GQ_JOB_CHUNKS * job->reservation.workspace + at) * part,
                      part))
        return false;
    t->after[at] = t->plan;
    if (l && l->begins)
        l->begins(l, chunk->start, chunk->end);
    return true;
}

static int complete_chunk(struct gq_job *job, unsigned i, const struct gq_chunk *chunk, int err)
{
    struct transfer *t = (struct transfer *)job;
    struct gq_listener *l = t->req->listener;

    take_results(job->result, chunk);
    if (job->result->nvme_status)
        err = -EIO;
    if (err)
        return err;
    t->done = t->after[i % GQ_JOB_CHUNKS];
    if (l)
        l->ended(l, chunk->start, chunk->end);
    return 0;
}

/*
 * Eight commands per queue hide a round trip. More queues can be slower: a warp
 * that polls for completions reads host memory over the link that carries the
 * data, and delays the start of copies. Sixteen warps slowed reads of 1 MiB
 * commands by up to 18 %, eight by 1 %.
 */
static uint64_t transfer_queues_wanted(const struct gq_job *job)
{
    const struct transfer *t = (const struct transfer *)job;
    uint64_t n = (gq_plan_estimate(&t->done) + COMMANDS_A_QUEUE - 1) / COMMANDS_A_QUEUE;

    return n < QUEUES_ENOUGH ? n : QUEUES_ENOUGH;
}

/* Starts from the first chunk that did not end. */
static int transfer_prepare(struct gq_job *job)
{
    struct transfer *t = (struct transfer *)job;

    t->plan = t->done;
    job->split =
        gq_plan_estimate(&t->done) > COMMANDS_TO_SPLIT || t->done.len - t->done.pos > t->done.part;
    return 0;
}

static const struct gq_job_kind transfer_kind = {
    .want = transfer_queues_wanted,
    .prepare = transfer_prepare,
    .plan = plan_chunk,
    .complete = complete_chunk,
};

static int transfer_check_request(const struct gq_engine *e, const struct gq_request *req,
                                  struct gq_plan *plan)
{
    const struct gq_buffer *b = req->buffer;
    struct gq_plan_env env = {
        .op = req->op,
        .lba_size = e->ns.lba_size,
        .max_command = e->info.max_command,
        .ns_bytes = gq_ns_lbas(e) * e->ns.lba_size,
        .buffer = &b->region,
        .buffer_head = b->import.head + req->buffer_offset,
        .staging = &e->staging,
        .staged = b->staged,
    };

    if (req->op != GQ_READ && req->op != GQ_WRITE)
        return -EINVAL;
    if (req->buffer_offset > b->len || req->len > b->len - req->buffer_offset)
        return -EINVAL;
    if (b->is_list)
        return -ENOTSUP;
    return gq_plan_start(plan, &env, req);
}

static int gq_transfer_transfer(struct gq_engine *e, const struct gq_request *req,
                                struct gq_result *result)
{
    struct transfer t = {.job = {.kind = &transfer_kind,
                                 .e = e,
                                 .buffer = req->buffer,
                                 .cancel = req->cancel,
                                 .result = result,
                                 .opcode = req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ},
                         .req = req};
    int err = transfer_check_request(e, req, &t.done);

    if (err || req->len == 0)
        return err;
    if (req->buffer->staged && !gq_plan_is_short_read(&t.done)) {
        if (req->listener && req->listener->begins)
            req->listener->begins(req->listener, 0, req->len);
        return gq_staged_transfer(e, req, result);
    }
    result->staged = req->buffer->staged;
    t.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    return gq_job_execute(&t.job);
}

int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    int err = gq_job_enter(e, req->buffer, result);

    if (!err) {
        err = gq_transfer_transfer(e, req, result);
        gq_buffer_leave(req->buffer);
    }
    gq_job_leave(e, req->op == GQ_WRITE, err, result);
    return err;
}
