/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes a batch of reads in one call of the mount (READV). */
#include <errno.h>
#include <string.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/shared_list.h"

/* The pieces of a call, in the order in which they are read. */
struct batch {
    struct gpunvme_buffer *b;
    int fd;
    uint32_t flags;
    struct gpunvme_piece *pieces;
    size_t n, done;   /* all pieces, and those that have a result */
    size_t turn;      /* maximum pieces in one call of the mount */
    unsigned retries; /* see gpunvme_call() */
    uint64_t bytes;   /* bytes that the mount has read */
    struct gpunvme_result *result;
};

/* --- By READV -------------------------------------------------------------------------------- */

static int readv_failed(int err)
{
    if (err == -ENOTTY)
        return gpunvme_fail(err, "not a file of the buffer's mount");
    if (err == -EREMOTEIO)
        return gpunvme_fail(err, "the GPU path cannot serve this batch");
    if (err == -E2BIG)
        return gpunvme_fail(err, "the mount does not take so long a piece");
    return gpunvme_fail(err, "READV: %s", strerror(-err));
}

static void readv_copy_in(struct shared_list *l, const struct gpunvme_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        l->pieces[i] = pieces[i];
        l->pieces[i].result = -ECANCELED;
    }
}

/* Reads pieces [first, first + n) of the list. *begun is set if they have results. */
static int readv_read_list(struct batch *batch, const struct shared_list *l, size_t first, size_t n,
                           bool *begun)
{
    struct gpunvme_ioc_readv v = {.flags = batch->flags,
                                  .id = batch->b->id,
                                  .key = batch->b->key,
                                  .list_id = l->id,
                                  .list_key = l->key,
                                  .first = first,
                                  .count = n,
                                  .bytes = UINT64_MAX}; /* the mount may not even set it */
    int err = gpunvme_call(batch->fd, GPUNVME_IOC_READV, &v, sizeof(v), batch->retries);

    *begun = v.bytes != UINT64_MAX &&
             (!err || err == -EINTR || err == -ETIMEDOUT || (err == -E2BIG && v.path));
    batch->bytes += *begun ? v.bytes : 0;
    gpunvme_add_result(batch->result, v.path, v.commands, v.nvme_status, v.flags & GPUNVME_STAGED);
    err = gpunvme_unless_other_mount(batch->b->owner, batch->fd, err);
    return err || *begun ? err
                         : -ENOTTY; /* another file system may return 0 for an unknown ioctl */
}

/*
 * Returns the number of pieces before the first unread one. The others were too long together or
 * were interrupted.
 */
static size_t readv_count_read(const struct gpunvme_piece *pieces, size_t n)
{
    size_t i = 0;

    while (i < n && pieces[i].result != -E2BIG && pieces[i].result != -ECANCELED)
        i++;
    return i;
}

/*
 * Reads the next pieces in one call, in place if they are a part of l, otherwise from copies in l.
 * If they are too long together for the mount, it reads some of them, and the next call has fewer.
 */
static int read_turn(struct batch *batch, struct shared_list *l, bool in_place)
{
    struct gpunvme_piece *pieces = batch->pieces + batch->done;
    size_t left = batch->n - batch->done;
    size_t n = left < batch->turn ? left : batch->turn;
    bool begun;

    if (!in_place)
        readv_copy_in(l, pieces, n);
    int err = readv_read_list(batch, l, in_place ? (size_t)(pieces - l->pieces) : 0, n, &begun);
    bool too_long = err == -E2BIG && n > 1;
    batch->turn = 2 * n < l->room ? 2 * n : l->room; /* few pieces may be the long ones */
    if (too_long)
        batch->turn = n / 2;
    if (!begun)
        n = 0;
    if (too_long || gpunvme_was_interrupted(batch->b, err, &batch->retries)) {
        n = readv_count_read(in_place ? pieces : l->pieces, n);
        err = 0;
    }
    for (size_t i = 0; !in_place && i < n; i++)
        pieces[i].result = l->pieces[i].result;
    batch->done += n;
    if (n)
        batch->retries = 0;
    return err ? gpunvme_unless_ended(batch->b, readv_failed(err)) : 0;
}

static int read_turns(struct batch *batch, struct shared_list *l, bool in_place)
{
    int err = 0;

    batch->turn = l->room;
    while (batch->done < batch->n && !err)
        err = read_turn(batch, l, in_place);
    return err;
}

/* --- One by one ------------------------------------------------------------------------------ */

typedef size_t (*read_fn)(const struct batch *batch, const struct range *r, int *err);

static size_t read_shared(const struct batch *batch, const struct range *r, int *err)
{
    return gpunvme_transfer_shared(batch->b, r, batch->flags, batch->result, err);
}

static size_t readv_bounced(const struct batch *batch, const struct range *r, int *err)
{
    return gpunvme_transfer_bounced(batch->b, r, batch->result, err);
}

/*
 * Reads a piece by either path. A choice of the library lets no piece fail that the mount can read
 * (transfer.c).
 */
static size_t read_by_either(const struct batch *batch, const struct range *r, int *err)
{
    size_t done = readv_bounced(batch, r, err);

    return done || !*err ? done : read_shared(batch, r, err);
}

/* Returns true if the error concerns the call and not one of its pieces. */
static bool ends_all(int err)
{
    return err == -EBADF || err == -ENOTTY || err == -EISDIR || err == -EINTR;
}

static int readv_read_singly(struct batch *batch, read_fn read)
{
    for (; batch->done < batch->n; batch->done++) {
        struct gpunvme_piece *p = &batch->pieces[batch->done];
        struct range r = {.fd = batch->fd,
                          .buffer_offset = p->buffer_offset,
                          .file_offset = p->file_offset,
                          .len = p->len};
        int err = p->len > INT32_MAX ? -EINVAL : 0;
        size_t done = err ? 0 : read(batch, &r, &err);
        err = gpunvme_unless_ended(batch->b, err);
        if (ends_all(err))
            return err;
        p->result = err ? err : (int32_t)done;
        batch->bytes += done;
    }
    return 0;
}

/* --- The call -------------------------------------------------------------------------------- */

/*
 * Reads the batch through lists. If the mount has no room for a list, READ does the same more
 * slowly.
 */
static int read_by_way_of_list(struct batch *batch)
{
    struct connection *g = batch->b->owner;
    struct shared_list *l;
    size_t n = batch->n < GPUNVME_PIECES_MAX ? batch->n : GPUNVME_PIECES_MAX;

    if (shared_list_get(g, n, &l) != 0)
        return readv_read_singly(batch, read_shared);
    int err = read_turns(batch, l, false);
    shared_list_put(g, l);
    return err;
}

static int read_by_the_mount(struct batch *batch)
{
    struct connection *g = batch->b->owner;
    struct shared_list *own = shared_list_of(g, batch->pieces, batch->n);

    batch->flags = g->options.path == GPUNVME_PATH_GPU ? GPUNVME_NO_FALLBACK : 0;
    uint64_t begun = now_ns();
    nvtx_range_begin("readv by the mount", batch->n);
    int err = own ? read_turns(batch, own, true) : read_by_way_of_list(batch);
    nvtx_range_end();
    call_stats_count(g, GPUNVME_OP_READV, batch->result->path, batch->bytes, begun);
    gpunvme_note_fallback(batch->b, &(struct range){.write = false}, batch->result);
    return err;
}

static size_t readv_bytes_of(const struct gpunvme_piece *pieces, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += pieces[i].len;
    return bytes;
}

static int readv_read_batch(struct batch *batch)
{
    struct range all = {.fd = batch->fd, .len = readv_bytes_of(batch->pieces, batch->n)};
    struct path_taken taken = gpunvme_choose_path(batch->b, &all, batch->n);

    if (!taken.why)
        return read_by_the_mount(batch);
    if (batch->b->owner->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", taken.why);
    batch->result->why = gpunvme_log_bounce(taken.why);
    return readv_read_singly(batch, taken.by_size ? read_by_either : readv_bounced);
}

int readv_buffer(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                 struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct batch batch = {.b = b, .fd = fd, .pieces = pieces, .n = n, .result = &sum};
    int err = gpunvme_use_begin(b);

    if (!err) {
        err = n ? readv_read_batch(&batch) : 0;
        gpunvme_use_end(b);
    }
    for (size_t i = batch.done; i < n; i++)
        pieces[i].result = -ECANCELED;
    if (result)
        *result = sum;
    return err;
}
