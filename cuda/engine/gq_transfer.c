/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transfers one range of a file. The executor cuts the range into units,
 * each of which is a command where it is whole LBAs of one extent. A list is a
 * part of the range whose extents fit into a workspace's map; with a listener
 * it is also at most gq_options.part bytes long, and with a lent queue, for
 * which the device waits.
 */
#include <errno.h>
#include <string.h>

#include "cuda/engine/gq_job.h"
#include "support/minmax.h"

/*
 * Eight commands per queue hide a round trip. More queues can be slower: a warp
 * that polls for completions reads host memory over the link that carries the
 * data, and delays the start of copies. Sixteen warps slowed reads of 1 MiB
 * commands by up to 18 %, eight by 1 %.
 */
#define UNITS_A_QUEUE 8u
#define QUEUES_ENOUGH 8u
/*
 * Above these sizes staged commands are longer; a shorter transfer is spread
 * over more of them.
 */
#define LONG_READ  ((uint64_t)16 << 20)
#define LONG_WRITE ((uint64_t)4 << 20)

struct transfer {
    struct gq_job job;
    const struct gq_request *req;
    struct gq_reads reads; /* of every list: all members except map and range */
    uint64_t at;           /* bytes before the next list */
    size_t first, n;       /* extents in the map of the workspace; n is 0 if it has none */
};

/*
 * Returns the index of the extent that contains file byte `offset`, which lies
 * inside the extents.
 */
static size_t transfer_find_extent(const struct gq_request *req, uint64_t offset)
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

/* Sets the map of the list, which begins in the window of extents [first, first + n). */
static void transfer_use_map(const struct transfer *t, size_t first, size_t n, struct gq_list *list)
{
    const struct gq_request *req = t->req;

    list->reads.map.count = (uint32_t)n;
    list->reads.map.end = first + n < req->n_extents ? req->extents[first + n].offset : req->end;
}

/*
 * Sets the map of a list whose first extent is `first`. Returns false if a new
 * map must be copied to the workspace while a list is in flight, or if the copy
 * fails, which sets the job's error.
 */
static bool transfer_set_map(struct transfer *t, size_t first, struct gq_list *list)
{
    const struct gq_file_extent *extents = &t->req->extents[first];
    size_t n = t->req->n_extents - first;

    if (n <= GQ_FEW_EXTENTS) {
        list->reads.map.extents = memcpy(list->few, extents, n * sizeof(*extents));
        transfer_use_map(t, first, n, list);
        return true;
    }
    if (first < t->first || first >= t->first + t->n) {
        if (t->job.filled > t->job.ended)
            return false;
        t->first = first;
        t->n = n < GQ_READV_EXTENTS ? n : GQ_READV_EXTENTS;
        t->job.err = gq_job_put_map(&t->job, extents, t->n, &t->reads.map.extents);
    }
    list->reads.map.extents = t->reads.map.extents;
    transfer_use_map(t, t->first, t->n, list);
    return !t->job.err;
}

static bool transfer_plan(struct gq_job *job, struct gq_list *list)
{
    struct transfer *t = (struct transfer *)job;
    const struct gq_request *req = t->req;
    uint64_t offset = req->file_offset + t->at;
    bool in_parts = req->listener || job->e->opts.lender;
    uint64_t part = in_parts ? job->e->opts.part : UINT64_MAX;

    if (t->at == req->len)
        return false;
    list->reads = t->reads;
    if (!transfer_set_map(t, transfer_find_extent(req, offset), list))
        return false;
    list->reads.whole = (struct gq_read){
        .file_offset = offset,
        .at = req->buffer_offset + t->at,
        .len = min_u64(min_u64(req->len - t->at, part), list->reads.map.end - offset)};
    list->n = (uint32_t)gq_count_units(&list->reads);
    list->start = t->at;
    list->end = t->at += list->reads.whole.len;
    if (req->listener && req->listener->begins)
        req->listener->begins(req->listener, list->end);
    return true;
}

/*
 * Counts the bytes of the list before the first unit that was not transferred,
 * and takes the first status.
 */
static int transfer_complete(struct gq_job *job, const struct gq_list *list, int err)
{
    struct transfer *t = (struct transfer *)job;
    struct gq_listener *listener = t->req->listener;
    uint32_t bad = UINT32_MAX, status_of = UINT32_MAX;

    for (unsigned q = 0; q < job->reservation.n; q++) {
        const struct gq_state *state = gq_job_state(job, q);

        bad = state->bad < bad ? state->bad : bad;
        if (state->status && state->status_of < status_of) {
            status_of = state->status_of;
            job->result->nvme_status = (uint16_t)state->status;
        }
    }
    job->result->bytes =
        bad == UINT32_MAX ? list->end : list->start + gq_unit_start(&list->reads, bad);
    if (job->result->nvme_status || (!err && bad != UINT32_MAX))
        err = -EIO;
    if (listener && job->result->bytes > list->start && (!err || err == -ERESTART))
        listener->ended(listener, job->result->bytes);
    return err;
}

static uint64_t transfer_want(const struct gq_job *job)
{
    const struct transfer *t = (const struct transfer *)job;
    uint64_t units = (t->req->len - job->result->bytes) / t->reads.unit + 1;

    return min_u64((units + UNITS_A_QUEUE - 1) / UNITS_A_QUEUE, QUEUES_ENOUGH);
}

/* Starts from the first unit that was not transferred. */
static int transfer_prepare(struct gq_job *job)
{
    struct transfer *t = (struct transfer *)job;

    t->at = job->result->bytes;
    t->n = 0;
    return 0;
}

static const struct gq_job_kind transfer_kind = {
    .want = transfer_want,
    .prepare = transfer_prepare,
    .plan = transfer_plan,
    .complete = transfer_complete,
};

static int transfer_check_extent(const struct gq_engine *e, const struct gq_request *req, size_t i)
{
    const struct gq_file_extent *x = &req->extents[i];
    uint64_t end = i + 1 < req->n_extents ? req->extents[i + 1].offset : req->end;
    uint64_t bytes = end - x->offset, lbas = gq_ns_lbas(e);

    if (end <= x->offset || bytes % e->ns.lba_size)
        return -EINVAL;
    if (x->lba == GQ_LBA_ZERO)
        return req->op == GQ_READ ? 0 : -EINVAL;
    bytes /= e->ns.lba_size;
    return bytes > lbas || x->lba > lbas - bytes ? -EINVAL : 0;
}

static int transfer_check_range(const struct gq_engine *e, const struct gq_request *req)
{
    uint64_t start = req->n_extents ? req->extents[0].offset : req->end;

    for (size_t i = 0; i < req->n_extents; i++) {
        int err = transfer_check_extent(e, req, i);

        if (err)
            return err;
    }
    if (req->file_offset < start || req->file_offset > req->end ||
        req->len > req->end - req->file_offset)
        return -EINVAL;
    if (req->op == GQ_WRITE && ((start | req->file_offset | req->len) & (e->ns.lba_size - 1)))
        return -EINVAL;
    return 0;
}

static int transfer_check(const struct gq_engine *e, const struct gq_request *req)
{
    const struct gq_buffer *b = req->buffer;

    if (req->op != GQ_READ && req->op != GQ_WRITE)
        return -EINVAL;
    if (req->buffer_offset > b->len || req->len > b->len - req->buffer_offset)
        return -EINVAL;
    return b->is_list ? -ENOTSUP : transfer_check_range(e, req);
}

/*
 * Returns true if no whole LBA of the range begins at an address that a command
 * can have, a multiple of 4, so that all bytes are staged.
 */
static bool transfer_is_odd(const struct gq_request *req)
{
    uint64_t skip = req->file_offset - req->extents[0].offset;

    return (req->buffer->import.head + req->buffer_offset - skip) % 4 != 0;
}

static void transfer_set_up(struct transfer *t)
{
    const struct gq_engine *e = t->job.e;
    const struct gq_request *req = t->req;
    struct gq_reads *reads = &t->reads;

    gq_job_set_up_reads(e, req->buffer, reads);
    reads->staged = reads->staged || transfer_is_odd(req);
    if (reads->staged && req->len >= (req->op == GQ_WRITE ? LONG_WRITE : LONG_READ))
        gq_job_lengthen_commands(&t->job, reads);
    reads->unit = reads->staged ? reads->lane_staging : (gq_bits_of(reads->max_command) >> 1) + 1;
    t->job.result->staged = req->buffer->staged;
    t->job.deadline_ns = gq_job_deadline(req->deadline_ms);
}

static int transfer_execute(struct gq_engine *e, const struct gq_request *req,
                            struct gq_result *result)
{
    struct transfer t = {.job = {.kind = &transfer_kind,
                                 .e = e,
                                 .buffer = req->buffer,
                                 .cancel = req->cancel,
                                 .result = result,
                                 .opcode = req->op == GQ_WRITE ? NVME_IO_WRITE : NVME_IO_READ},
                         .req = req};
    int err = transfer_check(e, req);

    if (err || req->len == 0)
        return err;
    transfer_set_up(&t);
    return gq_job_execute(&t.job);
}

int gq_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result)
{
    int err = gq_job_enter(e, req->buffer, result);

    if (!err) {
        err = transfer_execute(e, req, result);
        err = gq_buffer_leave(req->buffer, err);
    }
    gq_job_leave(e, req->op == GQ_WRITE, err, result);
    return err;
}
