/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads lists by the mount's READV, in as many calls as it needs. */
#include <errno.h>
#include <string.h>

#include "client/lib/readv.h"

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
    int err = gpunvme_call(c->b->owner, c->fd, GPUNVME_IOC_READV, &v, sizeof(v), c->retries);

    *begun = v.bytes != UINT64_MAX &&
             (!err || err == -EINTR || err == -ETIMEDOUT || (err == -E2BIG && v.path));
    c->bytes += *begun ? v.bytes : 0;
    gpunvme_add_result(c->result, v.path, v.commands, v.nvme_status, v.flags & GPUNVME_STAGED);
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
    if (too_long || gpunvme_was_interrupted(err, &c->retries)) {
        n = readv_count_read(in_place ? pieces : l->pieces, n);
        err = 0;
    }
    for (size_t i = 0; !in_place && i < n; i++)
        pieces[i].result = l->pieces[i].result;
    c->done += n;
    if (n)
        c->retries = 0;
    return err ? readv_failed(err) : 0;
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
