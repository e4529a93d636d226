/* SPDX-License-Identifier: BSD-2-Clause */
/* Executes a batch of reads by calls of the mount (READV) or by the bounce pipeline. */
#include <errno.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/readv.h"

/* --- One by one ------------------------------------------------------------------------------ */

/* Returns true if the error concerns the call and not one of its pieces. */
static bool ends_all(int err)
{
    return err == -EBADF || err == -ENOTTY || err == -EISDIR || err == -EINTR;
}

/* Reads each piece by a READ, which is slower than a READV. */
static int readv_read_singly(struct readv_call *c)
{
    for (; c->done < c->n; c->done++) {
        struct gpunvme_piece *p = &c->pieces[c->done];
        struct range r = range_of_piece(c->fd, p);
        int err = p->len > INT32_MAX ? -EINVAL : 0;
        size_t done = err ? 0 : gpunvme_transfer_shared(c->b, &r, c->flags, c->result, &err);
        if (ends_all(err))
            return err;
        p->result = err ? err : (int32_t)done;
        c->bytes += done;
    }
    return 0;
}

/* --- The call -------------------------------------------------------------------------------- */

/* Reads the batch through a list, or one by one if the mount has no room for a list. */
static int read_by_way_of_list(struct readv_call *c)
{
    struct connection *g = c->b->owner;
    struct shared_list *l;
    size_t n = c->n < GPUNVME_PIECES_MAX ? c->n : GPUNVME_PIECES_MAX;

    if (shared_list_get(g, n, &l) != 0)
        return readv_read_singly(c);
    int err = readv_by_list(c, l);
    shared_list_put(g, l);
    return err;
}

static int read_by_the_mount(struct readv_call *c)
{
    struct connection *g = c->b->owner;
    struct shared_list *own = shared_list_of(g, c->pieces, c->n);

    c->flags = g->options.path == GPUNVME_PATH_GPU ? GPUNVME_NO_FALLBACK : 0;
    uint64_t begun = now_ns();
    nvtx_range_begin("readv by the mount", c->n);
    int err = own ? readv_by_list(c, own) : read_by_way_of_list(c);
    nvtx_range_end();
    call_stats_count(g, GPUNVME_OP_READV, c->result->path, c->bytes, begun);
    gpunvme_note_fallback(c->b, &(struct range){.write = false}, c->result);
    return err;
}

static size_t readv_bytes_of(const struct readv_call *c)
{
    size_t bytes = 0;

    for (size_t i = 0; i < c->n; i++)
        bytes += c->pieces[i].len;
    return bytes;
}

static bool has_failed(const struct readv_call *c)
{
    size_t i = 0;

    while (i < c->n && c->pieces[i].result >= 0)
        i++;
    return i < c->n;
}

/*
 * A choice of the library lets no piece fail that the mount can read (transfer.c), so the mount
 * then reads the batch, which is short.
 */
static int readv_bounced(struct readv_call *c, const struct path_taken *taken)
{
    c->result->why = gpunvme_log_bounce(taken->why);
    int err = gpunvme_readv_bounced(c->b, c->fd, c->pieces, c->n, c->result);
    if (taken->by_size && (err || has_failed(c))) {
        *c->result = (struct gpunvme_result){.why = ""};
        return read_by_the_mount(c);
    }
    c->done = c->n;
    return err;
}

static int readv_read_batch(struct readv_call *c)
{
    struct range all = {.fd = c->fd, .len = readv_bytes_of(c)};
    struct path_taken taken = gpunvme_choose_path(c->b, &all, c->n);

    if (!taken.why)
        return read_by_the_mount(c);
    if (c->b->owner->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", taken.why);
    return readv_bounced(c, &taken);
}

int readv_buffer(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                 struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct readv_call call = {.b = b, .fd = fd, .pieces = pieces, .n = n, .result = &sum};
    int err = n ? readv_read_batch(&call) : 0;

    for (size_t i = call.done; i < n; i++)
        pieces[i].result = -ECANCELED;
    if (result)
        *result = sum;
    return err;
}
