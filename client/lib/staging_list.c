/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads pieces of a list into staging, and scatters them to a buffer. */
#include "client/lib/staging_pair.h"

#include <errno.h>

#include "client/lib/readv.h"

/*
 * Pieces that are no neighbours begin in staging at a multiple of this number,
 * plus their offset in the file modulo 4. The drive then transfers data without
 * a copy by the daemon.
 */
#define APART   64u
#define PADDING (APART + 3u)
/* Fewer pieces and bytes are read by read(2), which takes less time than READV. */
#define LIST_LEAST 8u

/* Returns the error of a piece that the half does not read, or 0. */
static int staging_list_check(const struct staging_pair *pair, const struct staging_list *l,
                              const struct gpunvme_piece *p)
{
    if (p->len > INT32_MAX)
        return -EINVAL;
    if (p->file_offset > INT64_MAX - (uint64_t)p->len)
        return -EOVERFLOW;
    if (p->buffer_offset > l->b->len || p->len > l->b->len - p->buffer_offset)
        return -ERANGE;
    return p->len > pair->chunk ? -E2BIG : 0;
}

size_t staging_list_count(const struct staging_pair *pair, const struct staging_list *l,
                          size_t first, size_t most)
{
    size_t left = l->n - first, n = 0, bytes = 0;

    if (most > STAGING_PIECES)
        most = STAGING_PIECES;
    if (left > most)
        left = most;
    for (; n < left; n++) {
        const struct gpunvme_piece *p = &l->pieces[first + n];
        size_t len = staging_list_check(pair, l, p) ? 0 : p->len + PADDING;
        if (n && bytes + len > pair->chunk)
            break;
        bytes += len;
    }
    return n;
}

/* Walks through the pieces that a half reads. */
struct cursor {
    const struct staging_pair *pair;
    const struct half *s;
    const struct staging_list *l;
    size_t i; /* next piece of the half's part of the list */
    size_t k; /* next piece of the half */
};

/* Steps to the next piece that the half reads. Returns false after the last one. */
static bool cursor_next(struct cursor *c, const struct gpunvme_piece **of_list,
                        struct gpunvme_piece **of_half)
{
    while (c->i < c->s->len) {
        *of_list = &c->l->pieces[c->s->at + c->i++];
        if (staging_list_check(c->pair, c->l, *of_list))
            continue;
        *of_half = &c->s->pieces[c->k++];
        return true;
    }
    return false;
}

/* Places the pieces in the half. Returns their number; *bytes is the sum of their lengths. */
static size_t staging_list_place(const struct staging_pair *pair, struct half *s,
                                 const struct staging_list *l, size_t *bytes)
{
    struct cursor c = {.pair = pair, .s = s, .l = l};
    const struct gpunvme_piece *p;
    struct gpunvme_piece *out;
    size_t base = (size_t)(s->staging - (char *)pair->staging->addr), at = 0;
    uint64_t end = UINT64_MAX;

    *bytes = 0;
    while (cursor_next(&c, &p, &out)) {
        if (p->buffer_offset != end)
            at = (at + APART - 1) / APART * APART + p->file_offset % 4;
        *out = (struct gpunvme_piece){.file_offset = p->file_offset,
                                      .buffer_offset = base + at,
                                      .len = p->len,
                                      .result = -ECANCELED};
        at += p->len;
        end = p->buffer_offset + p->len;
        *bytes += p->len;
    }
    return c.k;
}

/* Reads the pieces by read(2). Returns an error that concerns the file and not one piece. */
static int staging_list_read_singly(const struct staging_pair *pair, const struct half *s,
                                    const struct staging_list *l, size_t n)
{
    struct range r = {.fd = l->fd};

    for (size_t i = 0; i < n; i++) {
        struct gpunvme_piece *p = &s->pieces[i];
        struct half one = {.data = (char *)pair->staging->addr + p->buffer_offset, .len = p->len};
        int err;
        size_t done = staging_pair_move_by_syscall(&one, &r, p->file_offset, &err);
        if (err == -EBADF || err == -EISDIR)
            return err;
        p->result = err ? err : (int32_t)done;
    }
    return 0;
}

static int staging_list_read(const struct staging_pair *pair, const struct half *s,
                             const struct staging_list *l, size_t n, size_t bytes,
                             struct gpunvme_result *result)
{
    struct readv_call call = {
        .b = pair->staging, .fd = l->fd, .pieces = s->pieces, .n = n, .result = result};

    if (pair->list && (n >= LIST_LEAST || bytes >= STAGING_SYSCALL_BELOW))
        return readv_by_list(&call, pair->list);
    return staging_list_read_singly(pair, s, l, n);
}

/* Copies the pieces, and neighbours in staging and buffer together. */
static int staging_list_copy(struct staging_pair *pair, struct half *s,
                             const struct staging_list *l)
{
    struct cursor c = {.pair = pair, .s = s, .l = l};
    const struct gpunvme_piece *p;
    struct gpunvme_piece *from;
    struct half run = *s; /* the bytes to copy next */
    char *to = NULL;
    int err = 0;

    run.len = 0;
    while (cursor_next(&c, &p, &from) && !err) {
        char *src = (char *)pair->staging->addr + from->buffer_offset;
        char *dst = (char *)l->b->addr + p->buffer_offset;
        if (from->result <= 0)
            continue;
        if (src != run.data + run.len || dst != to + run.len) {
            err = run.len ? staging_pair_copy_start(pair, &run, to, false) : 0;
            run.data = src;
            run.len = 0;
            to = dst;
        }
        run.len += (size_t)from->result;
    }
    return !err && run.len ? staging_pair_copy_start(pair, &run, to, false) : err;
}

int staging_list_begin(struct staging_pair *pair, struct half *s, const struct staging_list *l,
                       struct gpunvme_result *result)
{
    size_t bytes, n = staging_list_place(pair, s, l, &bytes);
    int err = n ? staging_list_read(pair, s, l, n, bytes, result) : 0;

    s->copy_error = err ? 0 : staging_list_copy(pair, s, l);
    return err;
}

uint64_t staging_list_finish(struct staging_pair *pair, struct half *s,
                             const struct staging_list *l)
{
    int err = staging_pair_copy_wait(pair, s);
    uint64_t bytes = 0;

    err = s->copy_error ? s->copy_error : err;
    for (size_t i = 0, k = 0; i < s->len; i++) {
        struct gpunvme_piece *p = &l->pieces[s->at + i];
        int bad = staging_list_check(pair, l, p);
        int32_t result = bad ? bad : s->pieces[k++].result;
        p->result = result > 0 && err ? err : result;
        bytes += p->result > 0 ? (uint64_t)p->result : 0;
    }
    return bytes;
}
