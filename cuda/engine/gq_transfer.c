/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Transfers a list of reads, or one range of a file.
 *
 * A list is executed in runs, one run per slice. The host reads the result of a
 * piece only if an error was reported.
 *
 * The executor cuts a range into units. A unit that consists of whole LBAs of
 * one extent is one command. A run covers a part of the range whose extents fit
 * into a workspace's map. With a listener, or with a lent queue for which the
 * device waits, a run is also at most gq_options.part bytes long.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/engine/gq_job.h"
#include "support/minmax.h"

#define READS_A_QUEUE  8u
#define QUEUES_OF_LIST 32u
/*
 * Sizes of a slice. Between two slices the gate admits threads that wait for
 * runs to end. A slice occupies the link for about 20 ms, a hundred times the
 * cost of draining a run and launching the next.
 */
#define SLICE_BYTES  (1ull << 30)
#define SLICE_PIECES (1ull << 20)

/* Holds the result of a run, derived from the states of its queues. */
struct tally {
    bool is_known;  /* the pieces have results: all queues are known to have ended */
    bool bad;       /* some results are errors */
    uint64_t taken; /* bytes of the pieces that were begun */
    uint16_t status;
    uint32_t status_of; /* index of the first piece with a status */
};

struct readv {
    struct gq_job job;
    const struct gq_readv *req;
    uint64_t queues;                      /* number to reserve */
    struct gq_reads reads;                /* reads of the slice */
    bool sums_parts;                      /* req->part_sums is filled in */
    struct gq_read_desc *desc;            /* all pieces, at the executor's address */
    volatile struct gq_read_desc *pieces; /* the pieces at the host's address */
    uint64_t at, n;                       /* the slice: its first piece and its number of pieces */
    uint64_t slices;                      /* number of slices that may still be cut off */
    struct tally last;                    /* result of the last run over the slice */
    struct tally all;                     /* result of the pieces before the slice */
};

static void take_state(struct tally *t, const struct gq_state *state)
{
    t->taken += state->bytes;
    t->bad |= state->bad != UINT32_MAX;
    if (state->status && state->status_of < t->status_of) {
        t->status = (uint16_t)state->status;
        t->status_of = state->status_of;
    }
}

/* Estimates the bytes of the pieces from `first` on. */
static uint64_t guess_bytes(const struct readv *v, uint64_t first)
{
    uint64_t n = v->req->n - first, bytes = 0;

    for (uint32_t i = 0; i < GQ_READ_SAMPLES; i++)
        bytes += v->pieces[first + gq_read_sample(i, n)].len;
    return bytes * n / GQ_READ_SAMPLES;
}

static uint64_t readv_queues_wanted(const struct readv *v)
{
    uint64_t a_queue = v->reads.lanes ? 1 : READS_A_QUEUE;
    uint64_t n = (v->req->n + a_queue - 1) / a_queue;
    bool are_long = guess_bytes(v, 0) >= v->req->n * GQ_LONG_READ;
    uint64_t enough = are_long ? GQ_QUEUES_OF_LONG : QUEUES_OF_LIST;

    return min_u64(n, v->job.result->staged ? GQ_QUEUES_OF_STAGED : enough);
}

/*
 * Returns twice the number of slices of the longest permitted list. A list
 * whose samples are not typical may use up this number. The rest of the list is
 * then a single slice.
 */
static uint64_t slices_enough(const struct gq_readv *req)
{
    return 2 * (req->most / SLICE_BYTES + req->n / SLICE_PIECES + 1);
}

static uint64_t rounded(uint64_t n, uint64_t unit)
{
    return n / unit + (n % unit >= unit / 2);
}

/*
 * Returns the number of pieces of the next slice: either all remaining pieces
 * or an equal share.
 */
static uint64_t slice_pieces(struct readv *v)
{
    uint64_t left = v->req->n - v->at;
    uint64_t slices = left ? rounded(guess_bytes(v, v->at), SLICE_BYTES) : 0;

    if (slices < rounded(left, SLICE_PIECES))
        slices = rounded(left, SLICE_PIECES);
    if (slices < 2 || !v->slices)
        return left;
    v->slices--;
    return (left + slices - 1) / slices;
}

/* Cuts the slice that starts at v->at. */
static void cut_slice(struct readv *v)
{
    uint64_t n = slice_pieces(v);

    v->n = v->sums_parts ? min_u64(n, GQ_PART_PIECES) : n;
}

/* Adds the result of the slice to the total and cuts the next slice. */
static void pass_slice(struct readv *v)
{
    v->all.bad |= v->last.bad;
    v->all.taken += v->last.taken;
    if (!v->all.status)
        v->all.status = v->last.status;
    v->last = (struct tally){0};
    v->at += v->n;
    cut_slice(v);
}

static int copy_map(struct gq_job *job)
{
    struct readv *v = (struct readv *)job;

    return gq_job_put_map(job, v->req->extents, v->req->n_extents, &v->reads.map.extents);
}

/*
 * Plans the slice as the next list. Plans nothing while another slice is in
 * flight, because its results determine this slice. Plans nothing if the list
 * is known to be too long.
 */
static bool plan_slice(struct gq_job *job, struct gq_list *list)
{
    struct readv *v = (struct readv *)job;
    uint64_t most = v->req->most - v->all.taken;

    if (job->filled > job->ended || v->at >= v->req->n || v->all.taken > v->req->most)
        return false;
    v->reads.desc = v->desc + v->at;
    if (v->sums_parts)
        gq_part_sums_use(job->e, job->reservation.workspace, v->n, &v->reads);
    v->reads.most = most ? most : 1; /* the remaining pieces may be empty */
    list->reads = v->reads;
    list->n = (uint32_t)v->n;
    return true;
}

/*
 * Merges the sums of the slice into the caller's. Earlier runs over other parts
 * of the file may have stored sums of other pieces.
 */
static void take_part_sums(const struct readv *v)
{
    uint32_t *out = v->req->part_sums + 2 * v->at;

    for (uint64_t i = 0; i < 2 * v->n; i++)
        out[i] = v->reads.part_sums[i] ? v->reads.part_sums[i] : out[i];
}

/* Derives the result of the slice from the states of the queues. */
static int complete_slice(struct gq_job *job, const struct gq_list *list, int err)
{
    struct readv *v = (struct readv *)job;

    (void)list;
    v->last = (struct tally){.is_known = true, .bad = err != 0, .status_of = UINT32_MAX};
    for (unsigned q = 0; q < job->reservation.n; q++)
        take_state(&v->last, gq_job_state(job, q));
    if (v->sums_parts)
        take_part_sums(v);
    if (!err)
        pass_slice(v);
    return err;
}

static uint64_t readv_want(const struct gq_job *job)
{
    return ((const struct readv *)job)->queues;
}

static const struct gq_job_kind readv_kind = {
    .want = readv_want,
    .prepare = copy_map,
    .plan = plan_slice,
    .complete = complete_slice,
};

/*
 * Returns true if the extent up to `end` lies inside the namespace and starts
 * at a whole LBA. The last LBA of the file may be partial.
 */
static bool extent_is_valid(const struct gq_engine *e, const struct gq_file_extent *x, uint64_t end)
{
    uint64_t lba_size = e->ns.lba_size, all = gq_ns_lbas(e), lbas;

    if (end <= x->offset || x->offset % lba_size)
        return false;
    lbas = (end - x->offset - 1) / lba_size + 1;
    return x->lba == GQ_LBA_ZERO || (lbas <= all && x->lba <= all - lbas);
}

static int readv_check_map(const struct gq_engine *e, const struct gq_readv *req)
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

static int readv_check(const struct gq_engine *e, const struct gq_readv *req)
{
    uint64_t room = req->list->len / sizeof(struct gq_read_desc);
    int err = readv_check_map(e, req);

    if (err)
        return err;
    if (req->n > GQ_READV_PIECES)
        return -E2BIG;
    if (!req->most || !req->list->is_list || req->first > room || req->n > room - req->first)
        return -EINVAL;
    return req->buffer->is_list ? -ENOTSUP : 0;
}

static uint64_t map_start(const struct gq_readv *req)
{
    return req->n_extents ? req->extents[0].offset : 0;
}

static void set_up_reads(struct readv *v)
{
    const struct gq_readv *req = v->req;
    const struct gq_engine *e = v->job.e;
    const struct gq_buffer *b = req->buffer, *list = req->list;
    uint64_t first = req->first * sizeof(struct gq_read_desc);

    v->pieces = (struct gq_read_desc *)gq_buffer_list(list) + req->first;
    v->desc = (struct gq_read_desc *)(uintptr_t)(list->import.base + list->import.head + first);
    gq_job_set_up_reads(e, b, &v->reads);
    v->reads.map.end = req->end;
    v->reads.map.count = (uint32_t)req->n_extents;
    v->reads.odd_most = b->staged ? UINT64_MAX : req->odd_most;
    v->reads.goes_on = req->goes_on;
    v->reads.is_part = req->goes_on || map_start(req) != 0;
}

/*
 * Returns true if the piece begins inside the mapped part of the file. Always
 * true if the map covers the whole file.
 */
static bool is_inside(const struct readv *v, uint64_t i)
{
    uint64_t offset = v->pieces[i].file_offset;

    return offset >= map_start(v->req) && (!v->req->goes_on || offset < v->req->end);
}

/*
 * Sums up the results in the list. The caller may overwrite the results, so the
 * sum is limited to the bytes of the pieces that were begun.
 */
static uint64_t count_bytes(const struct readv *v)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < v->at && bytes < v->all.taken; i++) {
        int32_t result = v->pieces[i].result;

        bytes += result > 0 && is_inside(v, i) ? (uint64_t)result : 0;
    }
    return bytes < v->all.taken ? bytes : v->all.taken;
}

/*
 * Sets the results of pieces from `at` on, which no run has completed. If the
 * map covers a part of the file, sets only the pieces of a run whose state is
 * unknown.
 */
static void lose_rest(const struct readv *v, int32_t error)
{
    uint64_t end = v->req->n;

    if (v->reads.is_part)
        end = v->job.failed ? v->at + v->n : v->at;
    for (uint64_t i = v->at; i < end; i++) {
        if (is_inside(v, i))
            v->pieces[i].result = error;
    }
}

static void readv_conclude(struct readv *v, int err)
{
    struct gq_result *result = v->job.result;

    if (v->last.is_known && !v->job.failed)
        pass_slice(v);
    lose_rest(v, err ? -ECANCELED : -E2BIG);
    result->partial = v->all.bad || v->at < v->req->n;
    result->taken = v->all.taken;
    result->bytes = result->partial ? count_bytes(v) : v->all.taken;
    result->nvme_status = v->all.status;
}

static int readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    struct readv v = {.job = {.kind = &readv_kind,
                              .e = e,
                              .buffer = req->buffer,
                              .cancel = req->cancel,
                              .result = result,
                              .opcode = NVME_IO_READ},
                      .req = req,
                      .slices = slices_enough(req)};
    int err = readv_check(e, req);

    if (err || req->n == 0)
        return err;
    set_up_reads(&v);
    result->staged = req->buffer->staged;
    v.sums_parts = req->part_sums && e->part_sums.words && !req->buffer->staged;
    cut_slice(&v);
    if (result->staged && guess_bytes(&v, 0) / req->n >= e->long_staging)
        gq_job_lengthen_commands(&v.job, &v.reads);
    v.queues = readv_queues_wanted(&v);
    v.job.deadline_ns = gq_job_deadline(req->deadline_ms);
    err = gq_job_execute(&v.job);
    readv_conclude(&v, err);
    return err;
}

static int readv_from(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    int err = gq_buffer_enter(e, req->list);

    if (err)
        return err;
    return gq_buffer_leave(req->list, readv(e, req, result));
}

int gq_readv(struct gq_engine *e, const struct gq_readv *req, struct gq_result *result)
{
    int err = gq_job_enter(e, req->buffer, result);

    if (!err) {
        err = readv_from(e, req, result);
        err = gq_buffer_leave(req->buffer, err);
    }
    gq_job_leave(e, false, err, result);
    return err;
}

/* --- Maps of files ---------------------------------------------------------------------------- */

int gq_job_put_map(struct gq_job *j, const struct gq_file_extent *extents, size_t n,
                   const struct gq_file_extent **out)
{
    struct gq_engine *e = j->e;
    struct gq_workspace *workspace = &e->workspaces[j->reservation.workspace];
    size_t room = GQ_READV_EXTENTS * sizeof(*workspace->map);
    size_t len = n * sizeof(*workspace->map);
    uint64_t at = e->maps.base + j->reservation.workspace * room;
    int err;

    *out = (const struct gq_file_extent *)(uintptr_t)at;
    if (workspace->map_extents == n && (len == 0 || !memcmp(workspace->map, extents, len)))
        return 0;
    if (!workspace->map)
        workspace->map = malloc(room);
    if (!workspace->map)
        return -ENOMEM;
    workspace->map_extents = 0;
    err = e->exec->ops->put(e->exec, at, extents, len);
    if (err)
        return err;
    memcpy(workspace->map, extents, len);
    workspace->map_extents = n;
    return 0;
}

/*
 * Eight commands per queue hide a round trip. More queues can be slower: a warp
 * that polls for completions reads host memory over the link that carries the
 * data, and delays the start of copies. Sixteen warps slowed reads of 1 MiB
 * commands by up to 18 %, eight by 1 %.
 */
#define UNITS_A_QUEUE   8u
#define QUEUES_OF_RANGE 8u
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

    return min_u64((units + UNITS_A_QUEUE - 1) / UNITS_A_QUEUE, QUEUES_OF_RANGE);
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
