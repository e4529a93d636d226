/*
 * Many reads at once: the list goes to the executor in parts. The host looks at no read but to
 * count its bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gq_run.h"

#define READS_A_QUEUE  8u
#define QUEUES_ENOUGH  32u
#define FIRST_CHUNK    1024u
#define READS_TO_SPLIT 1024u

/* What a chunk holds of the list. */
struct part {
    size_t first, n;
    uint64_t bytes; /* if all goes well */
};

struct readv {
    struct gq_job job;
    const struct gq_readv *req;
    struct gq_reads reads[GQ_SLOT_CHUNKS];
    struct part parts[GQ_SLOT_CHUNKS];
    size_t next, room;     /* of the list, what the next part begins with; its size */
    size_t done;           /* reads whose results stand */
    uint64_t sure, unsure; /* bytes of those, and of parts that may run once more */
    uint16_t status;       /* the first error of those */
};

static uint64_t bytes_of(const struct readv *v, const struct gq_read *read)
{
    return gq_read_bytes(&v->reads[0].map, read->file_offset, read->len);
}

static bool fill_part(struct gq_job *job, unsigned i, struct gq_chunk *chunk)
{
    struct readv *v = (struct readv *)job;
    size_t n = v->req->n - v->next < v->room ? v->req->n - v->next : v->room;
    struct part *part = &v->parts[i % GQ_SLOT_CHUNKS];

    if (n == 0)
        return false;
    *part = (struct part){.first = v->next, .n = n};
    if (v->req->reads)
        memcpy(chunk->reads, &v->req->reads[v->next], n * sizeof(*chunk->reads));
    else
        v->req->fill(v->req->context, v->next, n, chunk->reads);
    memset(chunk->results, 0, n * sizeof(*chunk->results));
    static_assert(GQ_READ_OK == 0, "results begin as it");
    for (size_t k = 0; k < n; k++)
        part->bytes += bytes_of(v, &chunk->reads[k]);
    chunk->n_cmds = (uint32_t)n;
    chunk->n_pieces = 0;
    v->next += n;
    v->room = 2 * v->room < GQ_CHUNK_CMDS ? 2 * v->room : GQ_CHUNK_CMDS;
    return true;
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

static int take_part(struct gq_job *job, unsigned i, const struct gq_chunk *chunk, int err)
{
    struct readv *v = (struct readv *)job;
    const struct part *part = &v->parts[i % GQ_SLOT_CHUNKS];
    uint64_t bytes = part->bytes;
    uint32_t bad = 0;

    if (v->req->reads)
        memcpy(&v->req->results[part->first], chunk->results, part->n * sizeof(*chunk->results));
    else
        v->req->take(v->req->context, part->first, part->n, chunk->reads, chunk->results);
    for (size_t k = 0; k < part->n; k++)
        bad |= chunk->results[k];
    if (bad)
        bytes = count_bytes(v, chunk);
    if (err) {
        v->unsure += bytes;
        return err;
    }
    v->sure += bytes;
    v->status = job->result->nvme_status;
    v->done = part->first + part->n;
    return 0;
}

/* Reads that did end count, but the part may run once more. */
static void take_part_behind(struct gq_job *job, unsigned i, const struct gq_chunk *chunk)
{
    take_part(job, i, chunk, -ECANCELED);
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

    for (unsigned i = 0; i < GQ_SLOT_CHUNKS; i++) {
        v->reads[i].map.extents = (const struct gq_file_extent *)(uintptr_t)at;
        v->reads[i].list = slot->chunks[i].reads;
    }
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

static int run_parts(struct gq_job *job)
{
    struct readv *v = (struct readv *)job;
    int err = put_map(v);

    v->next = v->done;
    v->room = FIRST_CHUNK;
    v->unsure = 0;
    job->result->nvme_status = v->status;
    if (err)
        return err;
    err = gq_job_lists(job, v->req->n - v->done > READS_TO_SPLIT);
    job->want = queues_wanted(v);
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

    for (unsigned i = 0; i < GQ_SLOT_CHUNKS; i++)
        v->reads[i] = reads;
}

static int readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    struct readv v = {.job = {.e = e,
                              .buffer = req->buffer,
                              .cancel = req->cancel,
                              .result = result,
                              .opcode = NVME_IO_READ,
                              .reads = v.reads,
                              .work = run_parts,
                              .fill = fill_part,
                              .take = take_part,
                              .take_behind = take_part_behind},
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
