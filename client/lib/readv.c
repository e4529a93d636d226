/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes a batch of reads: by calls of the mount (READV), or by the bounce pipeline. */
#include <errno.h>
#include <string.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/readv_shared.h"

/* The pieces of a call, in the order in which they are read. */
struct batch {
    struct readv_call call;
    struct gpunvme_piece *pieces;
    size_t n, done; /* all pieces, and those that have a result */
};

/* --- One by one ------------------------------------------------------------------------------ */

/* Returns true if the error concerns the call and not one of its pieces. */
static bool ends_all(int err)
{
    return err == -EBADF || err == -ENOTTY || err == -EISDIR || err == -EINTR;
}

/* Reads by READ, which does the same more slowly. */
static int readv_read_singly(struct batch *batch)
{
    struct readv_call *c = &batch->call;

    for (; batch->done < batch->n; batch->done++) {
        struct gpunvme_piece *p = &batch->pieces[batch->done];
        struct range r = range_of_piece(c->fd, p);
        int err = p->len > INT32_MAX ? -EINVAL : 0;
        size_t done = err ? 0 : gpunvme_transfer_shared(c->b, &r, c->flags, c->result, &err);
        err = gpunvme_unless_ended(c->b, err);
        if (ends_all(err))
            return err;
        p->result = err ? err : (int32_t)done;
        c->bytes += done;
    }
    return 0;
}

/* --- The call -------------------------------------------------------------------------------- */

/* Reads the batch through a list, or one by one if the mount has no room for a list. */
static int read_by_way_of_list(struct batch *batch)
{
    struct connection *g = batch->call.b->owner;
    struct shared_list *l;
    size_t n = batch->n < GPUNVME_PIECES_MAX ? batch->n : GPUNVME_PIECES_MAX;

    if (shared_list_get(g, n, &l) != 0)
        return readv_read_singly(batch);
    int err = gpunvme_readv_shared(&batch->call, l, batch->pieces, batch->n, &batch->done);
    shared_list_put(g, l);
    return err;
}

static int read_by_the_mount(struct batch *batch)
{
    struct readv_call *c = &batch->call;
    struct connection *g = c->b->owner;
    struct shared_list *own = shared_list_of(g, batch->pieces, batch->n);

    c->flags = g->options.path == GPUNVME_PATH_GPU ? GPUNVME_NO_FALLBACK : 0;
    uint64_t begun = now_ns();
    nvtx_range_begin("readv by the mount", batch->n);
    int err = own ? gpunvme_readv_shared(c, own, batch->pieces, batch->n, &batch->done)
                  : read_by_way_of_list(batch);
    nvtx_range_end();
    call_stats_count(g, GPUNVME_OP_READV, c->result->path, c->bytes, begun);
    gpunvme_note_fallback(c->b, &(struct range){.write = false}, c->result);
    return err;
}

static size_t readv_bytes_of(const struct gpunvme_piece *pieces, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += pieces[i].len;
    return bytes;
}

static bool has_failed(const struct batch *batch)
{
    size_t i = 0;

    while (i < batch->n && batch->pieces[i].result >= 0)
        i++;
    return i < batch->n;
}

/*
 * A choice of the library lets no piece fail that the mount can read (transfer.c), so the mount
 * then reads the batch, which is short.
 */
static int readv_bounced(struct batch *batch, const struct path_taken *taken)
{
    struct readv_call *c = &batch->call;

    c->result->why = gpunvme_log_bounce(taken->why);
    int err = gpunvme_readv_bounced(c->b, c->fd, batch->pieces, batch->n, c->result);
    if (taken->by_size && (err || has_failed(batch))) {
        *c->result = (struct gpunvme_result){.why = ""};
        return read_by_the_mount(batch);
    }
    batch->done = batch->n;
    return err;
}

static int readv_read_batch(struct batch *batch)
{
    struct readv_call *c = &batch->call;
    struct range all = {.fd = c->fd, .len = readv_bytes_of(batch->pieces, batch->n)};
    struct path_taken taken = gpunvme_choose_path(c->b, &all, batch->n);

    if (!taken.why)
        return read_by_the_mount(batch);
    if (c->b->owner->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", taken.why);
    return readv_bounced(batch, &taken);
}

int readv_buffer(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                 struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct batch batch = {.call = {.b = b, .fd = fd, .result = &sum}, .pieces = pieces, .n = n};
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
