/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes a batch of reads: by calls of the mount (READV), or by the bounce pipeline. */
#include <errno.h>
#include <string.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/readv.h"

/* --- By lists -------------------------------------------------------------------------------- */

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
static int readv_read_list(struct readv_call *c, const struct shared_list *l, size_t first,
                           size_t n, bool *begun)
{
    struct gpunvme_ioc_readv v = {.flags = c->flags,
                                  .id = c->b->id,
                                  .key = c->b->key,
                                  .list_id = l->id,
                                  .list_key = l->key,
                                  .first = first,
                                  .count = n,
                                  .bytes = UINT64_MAX}; /* the mount may not even set it */
    int err = gpunvme_call(c->fd, GPUNVME_IOC_READV, &v, sizeof(v), c->retries);

    *begun = v.bytes != UINT64_MAX &&
             (!err || err == -EINTR || err == -ETIMEDOUT || (err == -E2BIG && v.path));
    c->bytes += *begun ? v.bytes : 0;
    gpunvme_add_result(c->result, v.path, v.commands, v.nvme_status, v.flags & GPUNVME_STAGED);
    err = gpunvme_unless_other_mount(c->b->owner, c->fd, err);
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
static int read_turn(struct readv_call *c, struct shared_list *l, bool in_place)
{
    struct gpunvme_piece *pieces = c->pieces + c->done;
    size_t left = c->n - c->done;
    size_t n = left < c->turn ? left : c->turn;
    bool begun;

    if (!in_place)
        readv_copy_in(l, pieces, n);
    int err = readv_read_list(c, l, in_place ? (size_t)(pieces - l->pieces) : 0, n, &begun);
    bool too_long = err == -E2BIG && n > 1;
    c->turn = 2 * n < l->room ? 2 * n : l->room; /* few pieces may be the long ones */
    if (too_long)
        c->turn = n / 2;
    if (!begun)
        n = 0;
    if (too_long || gpunvme_was_interrupted(c->b, err, &c->retries)) {
        n = readv_count_read(in_place ? pieces : l->pieces, n);
        err = 0;
    }
    for (size_t i = 0; !in_place && i < n; i++)
        pieces[i].result = l->pieces[i].result;
    c->done += n;
    if (n)
        c->retries = 0;
    return err ? gpunvme_unless_ended(c->b, readv_failed(err)) : 0;
}

int readv_by_list(struct readv_call *c, struct shared_list *l)
{
    bool in_place = c->pieces >= l->pieces && c->pieces < l->pieces + l->room;
    int err = 0;

    c->turn = l->room;
    while (c->done < c->n && !err)
        err = read_turn(c, l, in_place);
    return err;
}

/* --- One by one ------------------------------------------------------------------------------ */

/* Returns true if the error concerns the call and not one of its pieces. */
static bool ends_all(int err)
{
    return err == -EBADF || err == -ENOTTY || err == -EISDIR || err == -EINTR;
}

/* Reads by READ, which does the same more slowly. */
static int readv_read_singly(struct readv_call *c)
{
    for (; c->done < c->n; c->done++) {
        struct gpunvme_piece *p = &c->pieces[c->done];
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
    int err = gpunvme_use_begin(b);

    if (!err) {
        err = n ? readv_read_batch(&call) : 0;
        gpunvme_use_end(b);
    }
    for (size_t i = call.done; i < n; i++)
        pieces[i].result = -ECANCELED;
    if (result)
        *result = sum;
    return err;
}
