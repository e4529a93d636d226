/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes batches of reads (READV) through the executor, and the remaining
 * pieces one by one.
 */
#include "fusefs/daemon/transfer/buffer_readv.h"

#include <errno.h>
#include <stdlib.h>

#include "blockdev/nvme/nvme_info.h"
#include "cuda/queue/gq_abi.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/transfer_host.h"
#include "layout/format.h"
#include "support/clock.h"

/*
 * When file_offset and buffer_offset of a piece differ by no multiple of 4, one
 * lane reads it by short commands, one after another. A piece longer than this
 * is then read by itself, by many commands at once.
 */
#define LONG_PIECE 65536u

/* Cost of one extent in a map, as a number of scanned pieces. */
#define PIECES_AN_EXTENT 8u
/*
 * Cost of a piece that looks up its own checksums, as a number of blocks of a
 * common lookup.
 */
#define BLOCKS_A_LOOKUP 32u

/*
 * Attempts to read a piece: by the engine, and separately after an engine
 * error.
 */
#define TRIES 2u

/*
 * In a longer batch, partial blocks are read through the kernel's path. The
 * words take 64 MiB.
 */
#define PART_SUMS (8u << 20)

/* Result of a piece that has not been processed. */
#define UNREAD (-EAGAIN)

struct batch {
    struct readv *r;
    struct buffer *list;
    volatile struct gpunvme_piece *pieces; /* memory shared with the client */
    uint64_t count;
    uint64_t buffer_len;
    uint64_t at;         /* index of the next piece to finish */
    uint64_t bytes;      /* of finished pieces; during the engine phase, bytes it read */
    bool by_engine;      /* the engine reads the list, otherwise pieces only */
    bool has_results;    /* each piece has a result, or UNREAD */
    bool whole;          /* the engine has read all pieces */
    bool too_long;       /* a piece was left out because of the limit */
    uint32_t *part_sums; /* gq_readv.part_sums, or NULL without checksums or memory */
    uint16_t status;     /* NVMe status of the engine's first error */

    uint64_t limit; /* limit for all pieces together, bytes */
    uint64_t tried; /* bytes of pieces that were read or failed */

    /* The mapped part of the file. */
    struct gpu_extents map;
    uint64_t end;  /* end of the part, file bytes */
    uint64_t size; /* size of the file, bytes */
};

/* --- Pieces ---------------------------------------------------------------------------------- */

static struct gpunvme_piece buffer_readv_copy_out(const volatile struct gpunvme_piece *p)
{
    return (struct gpunvme_piece){
        .file_offset = p->file_offset, .buffer_offset = p->buffer_offset, .len = p->len};
}

static int buffer_readv_check(const struct batch *b, const struct gpunvme_piece *p)
{
    if (p->len > INT32_MAX)
        return -EINVAL;
    if (p->file_offset > INT64_MAX - (uint64_t)p->len)
        return -EOVERFLOW;
    return p->buffer_offset > b->buffer_len || p->len > b->buffer_len - p->buffer_offset ? -ERANGE
                                                                                         : 0;
}

/* Returns true if the piece fits into TRIES times the limit. */
static bool buffer_readv_has_room(const struct batch *b, const struct gpunvme_piece *p)
{
    struct ffs_attr attr;

    ffs_getattr(b->r->t.inode, &attr);
    uint64_t left = p->file_offset < attr.size ? attr.size - p->file_offset : 0;
    uint64_t len = p->len < left ? p->len : left;
    return b->tried <= TRIES * b->limit && len <= TRIES * b->limit - b->tried;
}

static void mark_unread(struct batch *b)
{
    for (uint64_t i = 0; i < b->count; i++)
        b->pieces[i].result = UNREAD;
    b->has_results = true;
}

/*
 * Determines the range that the pieces span at the time of the scan. The client
 * may change them meanwhile; pieces outside the range are read one by one.
 */
static void span(const struct batch *b, uint64_t *start, uint64_t *end)
{
    *start = UINT64_MAX;
    *end = 0;
    for (uint64_t i = 0; i < b->count; i++) {
        uint64_t first = b->pieces[i].file_offset;
        uint64_t len = b->pieces[i].len;
        if (first > INT64_MAX - len)
            continue;
        *start = first < *start ? first : *start;
        *end = first + len > *end ? first + len : *end;
    }
}

/* --- Checksums ------------------------------------------------------------------------------- */

static void piece_lost(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, int err)
{
    struct batch *b = s->ctx;

    (void)file_offset;
    b->pieces[owner].result = err;
    b->whole = false;
}

/*
 * Verifies the bytes that the engine has read of each piece. If the client has
 * changed a piece since, another range inside the buffer is checked, and if
 * that does not match, it is filled from the file.
 */
static void verify_pieces(struct batch *b, struct transfer_sums *s)
{
    for (uint64_t i = 0; i < b->count; i++) {
        struct gpunvme_piece p = buffer_readv_copy_out(&b->pieces[i]);
        int32_t result = b->pieces[i].result;
        if (result > 0 && (uint32_t)result <= p.len && buffer_readv_check(b, &p) == 0)
            transfer_sums_add(s, i, p.file_offset, p.buffer_offset, (uint64_t)result,
                              b->part_sums ? b->part_sums + 2 * i : NULL);
    }
    transfer_sums_end(s);
}

static void look_up_sums(const struct batch *b, struct transfer_sums *s)
{
    uint64_t start, end;

    span(b, &start, &end);
    end = end < b->size ? end : b->size;
    if (start < end && (end - start) / LAY_BLOCK_SIZE <= BLOCKS_A_LOOKUP * b->count)
        transfer_sums_look_up(s, start, end);
}

static int buffer_readv_verify(struct batch *b)
{
    struct transfer_sums *s = transfer_sums_new(&b->r->t);

    if (!s)
        return -ENOMEM;
    s->lost = piece_lost;
    s->ctx = b;
    look_up_sums(b, s);
    verify_pieces(b, s);
    transfer_sums_free(s);
    return 0;
}

/* --- By the engine --------------------------------------------------------------------------- */

static int call_engine(struct batch *b, unsigned left, struct gq_result *result)
{
    struct transfer *t = &b->r->t;
    struct gq_buffer *list;
    int err = buffer_gq_list(b->list, t->use.buffer, &list);

    if (err)
        return err;
    struct gq_readv req = {.buffer = buffer_gq(t->use.buffer),
                           .extents = b->map.extents,
                           .n_extents = b->map.count,
                           .end = b->end,
                           .goes_on = b->end < b->size,
                           .list = list,
                           .first = b->r->v.first,
                           .n = b->count,
                           .most = b->limit - b->tried,
                           .odd_most = LONG_PIECE,
                           .part_sums = b->part_sums,
                           .deadline_ms = left,
                           .cancel = (const volatile uint32_t *)&t->cancel};

    return gq_readv(buffer_engine(t->use.buffer), &req, result);
}

/* Sets *stuck if commands may remain in flight for an unbounded time. */
static int run_engine(struct batch *b, bool *stuck)
{
    struct transfer *t = &b->r->t;
    struct gq_result result = {0};
    unsigned left;
    int err = transfer_time_left(t, &left);

    if (err)
        return err;
    transfer_begin_run(t);
    err = call_engine(b, left, &result);
    b->tried += result.taken;
    b->bytes += result.bytes;
    b->status = b->status ? b->status : result.nvme_status;
    b->has_results |= !err || result.partial;
    b->whole = !err && !result.partial;
    *stuck = !transfer_take_result(t, err, &result);
    return err;
}

/* --- The map --------------------------------------------------------------------------------- */

/* Runs all pieces against the map, which starts at file byte `start`. */
static int read_mapped(struct batch *b, uint64_t start, struct ffs_map *map)
{
    bool stuck = false;

    b->end = start + map->len;
    b->size = map->size;
    int err = gpu_extents_make(map, b->r->t.daemon->stack.bdev->info.lba_size, false, &b->map);
    if (!err && (map->len || b->end == 0))
        err = run_engine(b, &stuck);
    free(b->map.extents);
    if (stuck)
        ffs_map_abandon(map);
    else
        ffs_map_release(map);
    return err;
}

/*
 * Reads the whole map, which costs less than a scan of many pieces if it has
 * few extents. Sets *mapped if that was so and the engine ran.
 */
static int readv_whole(struct batch *b, bool *mapped)
{
    struct ffs_map map;
    size_t few = b->count / PIECES_AN_EXTENT;

    if (few > GQ_READV_EXTENTS)
        few = GQ_READV_EXTENTS;
    *mapped = false;
    int err = few ? ffs_map_read_some(b->r->t.inode, 0, INT64_MAX, few, &map) : 0;
    /* Damage elsewhere in the file does not matter to these pieces. */
    if (err == -EIO)
        return 0;
    if (err || !few)
        return err;
    *mapped = map.len == map.size;
    if (*mapped)
        return read_mapped(b, 0, &map);
    ffs_map_release(&map);
    return 0;
}

/*
 * Maps the span part by part; each run leaves out pieces beyond its part. Stops
 * at the byte limit.
 */
static int read_span(struct batch *b)
{
    uint64_t start, end;
    int err = 0;

    mark_unread(b);
    span(b, &start, &end);
    while (!err && start < end && !b->whole && b->tried < b->limit &&
           !transfer_is_cancelled(&b->r->t)) {
        struct ffs_map map;
        err = ffs_map_read_some(b->r->t.inode, start, end - start, GQ_READV_EXTENTS, &map);
        if (!err)
            err = read_mapped(b, start, &map);
        start = b->end;
        end = end < b->size ? end : b->size;
    }
    return err;
}

static int read_once(struct batch *b)
{
    bool mapped;
    int err = readv_whole(b, &mapped);

    return err || mapped ? err : read_span(b);
}

/*
 * Repeats a batch as a whole if no piece of it has begun and a repetition is
 * permitted.
 */
static int buffer_readv_read_again(struct batch *b)
{
    struct transfer *t = &b->r->t;
    int err, failed;

    do {
        failed = read_once(b);
        err = failed ? transfer_fall_back(t, failed) : 0;
    } while (failed && !err && t->gpu && b->tried == 0);
    return err;
}

/*
 * Reads with the engine. Returns 0 if the remaining pieces can be read one by
 * one. A signal and the caller's deadline end the batch.
 */
static int read_by_engine(struct batch *b)
{
    struct transfer *t = &b->r->t;

    if (t->daemon->stack.data_csum && b->count <= PART_SUMS)
        b->part_sums = calloc(2 * b->count, sizeof(*b->part_sums));
    int err = buffer_readv_read_again(b);
    if (b->bytes)
        t->rw.path |= t->path;
    transfer_count(t, b->bytes);
    if (b->bytes && b->has_results && t->daemon->stack.data_csum && buffer_readv_verify(b)) {
        mark_unread(b);
        b->whole = false;
        err = transfer_fall_back(t, -ENOMEM);
    }
    free(b->part_sums);
    return err;
}

/* --- One by one ------------------------------------------------------------------------------ */

static bool is_open(int32_t result)
{
    return result < 0 && result != -E2BIG;
}

/* Counts the next piece, whose result has been stored. */
static void buffer_readv_finish(struct batch *b, int32_t result)
{
    b->bytes += result > 0 ? (uint64_t)result : 0;
    b->too_long |= result == -E2BIG;
    b->at++;
}

/*
 * Called when the drive has refused a piece of the batch. Returns 0 if the
 * piece may be read in another way or again. If the drive was not ready, the
 * separate read of the piece waits if necessary.
 */
static int after_refusal(struct batch *b)
{
    struct transfer *t = &b->r->t;

    if (t->no_fallback && nvme_status_not_yet(b->status))
        return 0;
    transfer_begin_run(t);
    t->status = b->status;
    t->failures = 0;
    return transfer_fall_back(t, -EIO);
}

static int try_piece(struct batch *b, const struct gpunvme_piece *p, bool refused)
{
    struct transfer *t = &b->r->t;
    int err = buffer_readv_check(b, p);

    t->done = 0;
    t->rw.file_offset = p->file_offset;
    t->rw.buffer_offset = p->buffer_offset;
    t->rw.len = p->len;
    if (!err && !buffer_readv_has_room(b, p))
        err = -E2BIG;
    if (!err && refused)
        err = after_refusal(b);
    return err ? err : transfer_read_range(t);
}

/*
 * Returns true if the call has reached its limit, or the executor has
 * repeatedly lost the commands of a piece.
 */
static bool ends_batch(const struct transfer *t, int err)
{
    return err == -ECANCELED || (err == -ETIMEDOUT && (t->deadline || t->no_fallback));
}

/*
 * Behaves like READ, except that a piece refused by the drive does not use the
 * executor again, unless host memory is not permitted.
 */
static int readv_piece(struct batch *b, int32_t result)
{
    struct transfer *t = &b->r->t;
    struct gpunvme_piece p = buffer_readv_copy_out(&b->pieces[b->at]);
    bool gpu = t->gpu, refused = result == -EIO && t->rw.nvme_status;
    int err = try_piece(b, &p, refused);

    if (refused)
        t->gpu = gpu;
    if (ends_batch(t, err))
        return err;
    b->tried += t->done;
    result = err ? err : (int32_t)t->done;
    b->pieces[b->at].result = result;
    buffer_readv_finish(b, result);
    return 0;
}

/*
 * Reads the remaining pieces. If the engine has exceeded the limit, pieces
 * without a result get -E2BIG.
 */
static int read_rest(struct batch *b)
{
    bool over = b->tried > b->limit;
    int err = 0;

    while (b->at < b->count && !err) {
        int32_t result = b->pieces[b->at].result;
        if (over && result == UNREAD)
            b->pieces[b->at].result = result = -E2BIG;
        if (is_open(result))
            err = readv_piece(b, result);
        else
            buffer_readv_finish(b, result);
    }
    return err;
}

static void give_rest(struct batch *b, int32_t error)
{
    while (b->at < b->count) {
        int32_t result = b->pieces[b->at].result;
        if (is_open(result))
            b->pieces[b->at].result = result = error;
        buffer_readv_finish(b, result);
    }
}

/* --- The call -------------------------------------------------------------------------------- */

/*
 * Reads the pieces that the engine has not read. err is the error of its last
 * run.
 */
static int read_others(struct batch *b, int err)
{
    const struct transfer *t = &b->r->t;

    b->bytes = 0;
    if (!b->has_results)
        mark_unread(b);
    if (!err)
        err = read_rest(b);
    if (err == -ECANCELED || (err == -ETIMEDOUT && t->deadline)) {
        give_rest(b, -ECANCELED);
        return err == -ECANCELED ? -EINTR : err;
    }
    give_rest(b, err); /* no fallback: the result of all remaining pieces */
    return 0;
}

static int buffer_readv_read_all(struct batch *b)
{
    int err = b->by_engine ? read_by_engine(b) : 0;

    if (!b->whole)
        err = read_others(b, err);
    return !err && b->too_long ? -E2BIG : err;
}

static int run_with_list(struct readv *r, struct buffer *list)
{
    const struct gpunvme_ioc_readv *v = &r->v;
    struct batch b = {
        .r = r, .list = list, .count = v->count, .buffer_len = buffer_length(r->t.use.buffer)};
    uint64_t room = buffer_length(list) / sizeof(struct gpunvme_piece);

    if (v->first > room || v->count > room - v->first)
        return -ERANGE;
    if (r->t.path != GPUNVME_PATH_GPU && r->t.no_fallback)
        return -EREMOTEIO;
    /* The bounce engine reads its own lists only, and no other engine reads them. */
    b.by_engine =
        r->t.gpu && buffer_gq(list) && buffer_bounces(list) == buffer_bounces(r->t.use.buffer);
    b.pieces = (volatile struct gpunvme_piece *)buffer_list(list) + v->first;
    b.limit = b.buffer_len > READV_BYTES ? b.buffer_len : READV_BYTES;
    int err = buffer_readv_read_all(&b);
    r->v.bytes = b.bytes;
    return err;
}

static int buffer_readv_run(struct readv *r)
{
    struct transfer *t = &r->t;
    struct buffers *buffers = t->daemon->buffers;
    struct buffer_use list;
    int err = buffer_use_begin(buffers, r->v.list_id, r->v.list_key, t->uid, BUFFER_LIST,
                               &t->cancel, &list);

    if (err)
        return err;
    err = run_with_list(r, list.buffer);
    buffer_use_end(buffers, &list);
    return err;
}

void readv_run(struct readv *r)
{
    struct transfer *t = &r->t;
    struct gpunvme_ioc_readv *v = &r->v;

    v->bytes = v->commands = v->path = v->nvme_status = 0;
    t->error = -EINVAL;
    if (v->count == 0 || v->count > GPUNVME_PIECES_MAX)
        return;
    t->rw = (struct gpunvme_ioc_rw){
        .flags = v->flags, .deadline_ms = v->deadline_ms, .id = v->id, .key = v->key};
    transfer_op_begin(t, GPUNVME_OP_READV);
    t->error = transfer_begin(t);
    if (!t->error) {
        t->error = buffer_readv_run(r);
        transfer_end(t);
    }
    transfer_op_end(t, v->bytes);
    v->commands = t->rw.commands;
    v->path = t->rw.path;
    v->flags = t->rw.flags;
    v->nvme_status = t->rw.nvme_status;
}
