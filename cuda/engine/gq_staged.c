/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transfers of buffers that the controller does not reach. The executor cuts
 * one range of a file into units of a lane's staging, and copies a unit while
 * the next ones are read. A list is a part of the range whose extents fit into
 * a workspace's map.
 */
#include <errno.h>
#include <string.h>

#include "cuda/engine/gq_job.h"
#include "support/minmax.h"

#define UNITS_A_QUEUE 8u
/*
 * Above these sizes commands are longer; a shorter transfer is spread over more
 * of them.
 */
#define LONG_READ  ((uint64_t)16 << 20)
#define LONG_WRITE ((uint64_t)4 << 20)
/*
 * A map of up to this many extents is not copied to the executor's memory: a
 * lane loads each of them over the bus once. A copy takes longer, and
 * neighbouring parts of a file have different maps.
 */
#define FEW_EXTENTS 8u

struct staged {
    struct gq_job job;
    const struct gq_request *req;
    struct gq_reads reads; /* the current list */
    uint64_t at;           /* bytes before it, which were transferred */
};

/*
 * Returns the index of the extent that contains file byte `offset`, which lies
 * inside the extents.
 */
static size_t find_extent(const struct gq_request *req, uint64_t offset)
{
    size_t low = 0, n = req->n_extents;

    while (n > 1) {
        size_t half = n / 2;

        if (req->extents[low + half].offset <= offset)
            low += half;
        n -= half;
    }
    return low;
}

/*
 * Sets the map. A few extents replace the chunk's commands, of which a list of
 * reads has none.
 */
static int staged_put_map(struct staged *s, const struct gq_file_extent *extents, size_t n,
                          struct gq_chunk *chunk)
{
    const struct gq_file_extent **to = &s->reads.map.extents;

    if (n > FEW_EXTENTS)
        return gq_job_put_map(&s->job, extents, n, to);
    *to = memcpy(chunk->cmds, extents, n * sizeof(*extents));
    return 0;
}

/* Sets up the list of the range from s->at on. */
static int set_up_list(struct staged *s, struct gq_chunk *chunk)
{
    const struct gq_request *req = s->req;
    uint64_t offset = req->file_offset + s->at;
    size_t first = find_extent(req, offset), n = req->n_extents - first;
    struct gq_file_map *map = &s->reads.map;

    n = n < GQ_READV_EXTENTS ? n : GQ_READV_EXTENTS;
    map->count = (uint32_t)n;
    map->end = first + n < req->n_extents ? req->extents[first + n].offset : req->end;
    s->reads.whole = (struct gq_read){.file_offset = offset,
                                      .at = req->buffer_offset + s->at,
                                      .len = min_u64(req->len - s->at, map->end - offset)};
    return staged_put_map(s, &req->extents[first], n, chunk);
}

static bool staged_plan(struct gq_job *job, unsigned i, struct gq_chunk *chunk)
{
    struct staged *s = (struct staged *)job;

    (void)i;
    if (job->filled > job->ended || s->at == s->req->len)
        return false;
    job->err = set_up_list(s, chunk);
    chunk->n_cmds = (uint32_t)gq_count_units(&s->reads);
    chunk->n_copies = 0;
    return !job->err;
}

/*
 * Counts the bytes of the list before the first unit that was not transferred,
 * and takes the first status.
 */
static int staged_complete(struct gq_job *job, unsigned i, const struct gq_chunk *chunk, int err)
{
    struct staged *s = (struct staged *)job;
    const struct gq_launch *l = &job->runs[0].launch;
    uint32_t bad = UINT32_MAX, status_of = UINT32_MAX;

    (void)i;
    (void)chunk;
    for (unsigned q = 0; q < l->run.n_queues; q++) {
        const struct gq_state *state = &l->states[q];

        bad = state->bad < bad ? state->bad : bad;
        if (state->status && state->status_of < status_of) {
            status_of = state->status_of;
            job->result->nvme_status = (uint16_t)state->status;
        }
    }
    s->at += bad == UINT32_MAX ? s->reads.whole.len : gq_unit_start(&s->reads, bad);
    job->result->bytes = s->at;
    return job->result->nvme_status ? -EIO : err;
}

static uint64_t staged_want(const struct gq_job *job)
{
    const struct staged *s = (const struct staged *)job;
    uint64_t units = (s->req->len - s->at) / s->reads.unit + 1;
    uint64_t n = (units + UNITS_A_QUEUE - 1) / UNITS_A_QUEUE;

    return min_u64(n, GQ_QUEUES_OF_STAGED);
}

static int staged_prepare(struct gq_job *job)
{
    job->split = false;
    return 0;
}

static const struct gq_job_kind staged_kind = {
    .want = staged_want,
    .prepare = staged_prepare,
    .plan = staged_plan,
    .complete = staged_complete,
};

int gq_staged_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    struct staged s = {.job = {.kind = &staged_kind,
                               .e = e,
                               .buffer = req->buffer,
                               .cancel = req->cancel,
                               .result = result,
                               .opcode = req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ,
                               .reads = &s.reads},
                       .req = req};

    gq_job_set_up_reads(e, req->buffer, &s.reads);
    if (req->len >= (req->op == GQ_WRITE ? LONG_WRITE : LONG_READ))
        gq_job_lengthen_commands(&s.job, &s.reads);
    s.reads.unit = s.reads.lane_staging;
    result->staged = true;
    s.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    return gq_job_execute(&s.job);
}
