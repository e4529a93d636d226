/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests given at once: reads of one file into one buffer of its mount become one READV. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/handle.h"
#include "client/lib/io_threads.h"

struct list {
    struct work work;                   /* first */
    struct gpunvme_transfer **requests; /* behind the pieces */
    size_t n;
    char *addr; /* of all their memory, from its first byte to its last */
    size_t len;
    struct gpunvme_piece pieces[];
};

static bool is_piece(const struct gpunvme_transfer *r)
{
    return !r->write && !r->pieces && r->len && r->len <= INT32_MAX && !r->file->why[0];
}

/* How many of the first requests may be pieces of one READV. */
static size_t run_length(struct gpunvme_transfer *const *requests, size_t n)
{
    size_t i = 0;

    while (i < n && is_piece(requests[i]) && requests[i]->file == requests[0]->file)
        i++;
    return i;
}

static void set_memory(struct list *l)
{
    uintptr_t first = UINTPTR_MAX, end = 0;

    for (size_t i = 0; i < l->n; i++) {
        uintptr_t at = (uintptr_t)l->requests[i]->addr;
        first = at < first ? at : first;
        end = at + l->requests[i]->len > end ? at + l->requests[i]->len : end;
    }
    l->addr = (char *)first;
    l->len = end - first;
}

/* Elsewhere pieces would be read one after the other. */
static bool is_mounts_memory(const struct list *l)
{
    struct gpunvme_file *f = l->requests[0]->file;
    struct region_use u;

    if (file_use(f, l->addr, l->len, &u) != 0)
        return false;
    bool known = u.buffer->owner == f->mount->connection;
    regions_release(f->g->regions, &u);
    return known;
}

/* The results are those of reads that the call has not come to. */
static void set_pieces(struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct gpunvme_transfer *r = l->requests[i];
        l->pieces[i] =
            (struct gpunvme_piece){.file_offset = r->file_offset,
                                   .buffer_offset = (uint64_t)((char *)r->addr - l->addr),
                                   .len = (uint32_t)r->len,
                                   .result = -ECANCELED};
    }
}

static struct list *io_list_list_new(struct gpunvme_transfer *const *requests, size_t n)
{
    size_t each = sizeof(struct gpunvme_piece) + sizeof(requests[0]);
    struct list *l = calloc(1, sizeof(*l) + n * each);

    if (!l)
        return NULL;
    l->requests = (struct gpunvme_transfer **)&l->pieces[n];
    l->n = n;
    memcpy(l->requests, requests, n * sizeof(requests[0]));
    set_memory(l);
    if (is_mounts_memory(l)) {
        set_pieces(l);
        return l;
    }
    free(l);
    return NULL;
}

/* --- The transfer ---------------------------------------------------------------------------- */

static void end_request(const struct list *l, size_t i, int err, const struct gpunvme_result *sum)
{
    struct gpunvme_transfer *r = l->requests[i];
    int32_t result = l->pieces[i].result;

    if (err && result == -ECANCELED)
        result = err;
    else if (result < 0)
        gpunvme_fail(result, "a read of a list: %s", strerror(-result));
    r->bytes = result;
    r->result = *sum;
    r->result.commands = i ? 0 : sum->commands;
    r->result.nvme_status = result < 0 ? sum->nvme_status : 0;
    r->done(r);
}

static void run_list(struct work *w)
{
    struct list *l = (struct list *)w;
    struct gpunvme_file *f = l->requests[0]->file;
    struct gpunvme_result sum;
    int err = gpunvme_readv(f, l->addr, l->len, l->pieces, l->n, &sum);

    for (size_t i = 0; i < l->n; i++)
        end_request(l, i, err, &sum);
    free(l);
    file_put(f);
}

static bool list_start_list(struct gpunvme_transfer *const *requests, size_t n)
{
    struct gpunvme_file *f = requests[0]->file;
    struct list *l = handle_check_process(f->g) ? NULL : io_list_list_new(requests, n);

    if (!l)
        return false;
    file_get(f);
    l->work.run = run_list;
    if (submit_give(f->g->async, &l->work) == 0)
        return true;
    file_put(f);
    free(l);
    return false;
}

size_t gpunvme_submit(struct gpunvme_transfer *const *requests, size_t n)
{
    size_t started = 0;

    while (started < n) {
        size_t run = run_length(requests + started, n - started);
        bool listed = run > 1 && list_start_list(requests + started, run);
        size_t end = started + (run ? run : 1);
        while (!listed && started < end && gpunvme_start(requests[started]) == 0)
            started++;
        if (listed)
            started = end;
        else if (started < end)
            break;
    }
    return started;
}
