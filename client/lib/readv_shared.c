/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads lists by the mount's READV, in as many calls as it needs. */
#include <errno.h>
#include <string.h>

#include "client/lib/readv_shared.h"

/* The pieces of a list, or pieces to be copied to it. */
struct batch {
    struct readv_call *call;
    struct gpunvme_piece *pieces;
    size_t n, done;   /* all pieces, and those that have a result */
    size_t turn;      /* maximum pieces in one call of the mount */
    unsigned retries; /* see gpunvme_call() */
};

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
    struct gpunvme_ioc_readv v = {.flags = batch->call->flags,
                                  .id = batch->call->b->id,
                                  .key = batch->call->b->key,
                                  .list_id = l->id,
                                  .list_key = l->key,
                                  .first = first,
                                  .count = n,
                                  .bytes = UINT64_MAX}; /* the mount may not even set it */
    int err = gpunvme_call(batch->call->fd, GPUNVME_IOC_READV, &v, sizeof(v), batch->retries);

    *begun = v.bytes != UINT64_MAX &&
             (!err || err == -EINTR || err == -ETIMEDOUT || (err == -E2BIG && v.path));
    batch->call->bytes += *begun ? v.bytes : 0;
    gpunvme_add_result(batch->call->result, v.path, v.commands, v.nvme_status,
                       v.flags & GPUNVME_STAGED);
    err = gpunvme_unless_other_mount(batch->call->b->owner, batch->call->fd, err);
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
    if (too_long || gpunvme_was_interrupted(batch->call->b, err, &batch->retries)) {
        n = readv_count_read(in_place ? pieces : l->pieces, n);
        err = 0;
    }
    for (size_t i = 0; !in_place && i < n; i++)
        pieces[i].result = l->pieces[i].result;
    batch->done += n;
    if (n)
        batch->retries = 0;
    return err ? gpunvme_unless_ended(batch->call->b, readv_failed(err)) : 0;
}

int gpunvme_readv_shared(struct readv_call *call, struct shared_list *l,
                         struct gpunvme_piece *pieces, size_t n, size_t *done)
{
    bool in_place = pieces >= l->pieces && pieces < l->pieces + l->room;
    struct batch batch = {.call = call, .pieces = pieces, .n = n, .turn = l->room};
    int err = 0;

    while (batch.done < n && !err)
        err = read_turn(&batch, l, in_place);
    *done = batch.done;
    return err;
}
