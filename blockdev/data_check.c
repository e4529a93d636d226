/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Self-test of a controller: reads of many shapes, compared with reads of
 * single pages.
 */
#include "blockdev/data_check_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * Limits of a list. The gap shifts the next piece to another place in its page.
 */
#define PIECE_LBAS 3u
#define PIECE_GAP  64u
#define LIST_MAX   (DATA_CHECK_PIECES * (PIECE_LBAS * PAGE_BYTES + PIECE_GAP))

static_assert(LIST_MAX <= DATA_CHECK_BUFFER, "a list of the largest LBAs");

/*
 * Returns the first page of a read of n pages whose page k is a mark, or 0 if
 * there is none.
 */
static size_t begin_at(const struct data_window *w, size_t n, size_t k)
{
    for (size_t i = 0; i < w->n_marks; i++) {
        if (w->marks[i] >= k && w->marks[i] - k + n <= w->pages)
            return w->marks[i] - k;
    }
    return 0;
}

static int differs(const struct data_check *c, const struct data_window *w,
                   const struct data_shape *s, size_t first, char *why, size_t len)
{
    const unsigned char *got = c->buffer + s->at_page * PAGE_BYTES + s->at_byte;
    size_t i = 0;

    while (i < s->pages &&
           memcmp(got + i * PAGE_BYTES, w->data + (first + i) * PAGE_BYTES, PAGE_BYTES) == 0)
        i++;
    if (i == s->pages && got[s->pages * PAGE_BYTES] == 0xa5)
        return 0;
    snprintf(why, len,
             "wrong data by %s: a read of %zu bytes to byte %zu of a page %s; the controller does "
             "not take PRP entries as specified and cannot be used",
             c->path, s->pages * PAGE_BYTES, s->at_byte,
             i < s->pages ? "returns other bytes than reads of single pages" : "writes too much");
    return -EILSEQ;
}

static int try_one(const struct data_check *c, const struct data_window *w,
                   const struct data_shape *s, size_t first, char *why, size_t len)
{
    size_t at = s->at_page * PAGE_BYTES + s->at_byte;

    memset(c->buffer + at, 0xa5, s->pages * PAGE_BYTES + 1);
    int err = c->read(c->context, w->start + first * PAGE_BYTES, at, s->pages * PAGE_BYTES);
    if (!err)
        return differs(c, w, s, first, why, len);
    snprintf(why, len,
             "%s: a read of %zu bytes to byte %zu of a page %s%s, although reads of single "
             "pages succeed",
             c->path, s->pages * PAGE_BYTES, s->at_byte, data_fails(err), data_cause(err));
    return err;
}

/* Context of try_shape() for a test of reads. */
struct reading {
    const struct data_check *check;
    const struct data_window *w;
    char *why;
    size_t len;
};

/*
 * Reads with a mark as first, second, middle and last page; reads once if all
 * pages are marks.
 */
static int try_shape(void *context, const struct data_shape *s)
{
    const struct reading *r = context;
    const size_t places[] = {0, 1, s->pages / 2, s->pages - 1};
    size_t tried = SIZE_MAX;
    int err = 0;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !err; i++) {
        size_t first = begin_at(r->w, s->pages, places[i]);

        if (s->pages <= r->w->pages && first != tried && (i == 0 || places[i] > places[i - 1]))
            err = try_one(r->check, r->w, s, first, r->why, r->len);
        tried = first;
    }
    return err;
}

/* Returns piece i: one to three LBAs, in marked pages if there are any. */
static struct data_check_piece piece_of(const struct data_window *w, size_t lba_size, size_t i)
{
    size_t page = w->n_marks ? w->marks[i % w->n_marks] : i % w->pages;
    struct data_check_piece p = {.offset = page * PAGE_BYTES + i * lba_size % PAGE_BYTES,
                                 .len = (1 + i % PIECE_LBAS) * lba_size};

    if (p.offset + p.len > w->pages * PAGE_BYTES)
        p = (struct data_check_piece){.len = lba_size};
    p.offset += w->start;
    return p;
}

static bool is_right(const struct data_check *c, const struct data_window *w,
                     const struct data_check_piece *p)
{
    const unsigned char *got = c->buffer + p->at, *gap = got + p->len;

    return memcmp(got, w->data + (p->offset - w->start), p->len) == 0 && gap[0] == 0xa5 &&
           memcmp(gap, gap + 1, PIECE_GAP - 1) == 0;
}

static int try_list(const struct data_check *c, const struct data_window *w, size_t lba_size,
                    char *why, size_t len)
{
    struct data_check_piece pieces[DATA_CHECK_PIECES];
    size_t at = 0, i = 0;

    for (; i < DATA_CHECK_PIECES; i++) {
        pieces[i] = piece_of(w, lba_size, i);
        pieces[i].at = at;
        at += pieces[i].len + PIECE_GAP;
    }
    memset(c->buffer, 0xa5, at);
    int err = c->read_list(c->context, pieces, DATA_CHECK_PIECES);
    if (err) {
        snprintf(why, len, "%s: a list of short reads %s%s", c->path, data_fails(err),
                 data_cause(err));
        return err;
    }
    for (i = 0; i < DATA_CHECK_PIECES && is_right(c, w, &pieces[i]); i++)
        ;
    if (i == DATA_CHECK_PIECES)
        return 0;
    snprintf(why, len,
             "wrong data by %s: in a list of short reads one of %zu bytes to byte %zu of a page "
             "returns other bytes than reads of single pages, or is written over; the controller "
             "cannot be used",
             c->path, pieces[i].len, pieces[i].at % PAGE_BYTES);
    return -EILSEQ;
}

/*
 * With fewer marks than this, not every place of the shorter lists is covered.
 */
#define FEW_MARKS 64u

static void say_how_much(const struct data_window *w, char *why, size_t len)
{
    why[0] = '\0';
    if (w->n_marks < FEW_MARKS && w->n_marks < w->pages)
        snprintf(
            why, len,
            "only %zu of the %zu pages that were read differ from their neighbours, so PRP entries "
            "that are taken in another order may not show",
            w->n_marks, w->pages);
}

int data_check_reads(const struct data_check *check, const struct data_window *w, size_t lba_size,
                     char *why, size_t len)
{
    struct reading r = {.check = check, .w = w, .why = why, .len = len};
    int err = data_each_shape(data_check_longest(check->max_command), try_shape, &r);

    if (!err && check->read_list && w->pages)
        err = try_list(check, w, lba_size, why, len);
    if (!err)
        say_how_much(w, why, len);
    return err;
}

int data_check_run(struct bd_dev *dev, const struct data_check *check, char *why, size_t len)
{
    size_t pages = 2 * (data_check_longest(check->max_command) / PAGE_BYTES);
    struct data_window w;
    int err = data_window_open(dev, check->start, pages, &w);

    if (err && err != -ENOMEM)
        snprintf(why, len, "%s: a read of single pages at byte %" PRIu64 " of the device %s%s",
                 check->path, check->start, data_fails(err), data_cause(err));
    if (err)
        return err;
    err = data_check_reads(check, &w, dev->info.lba_size, why, len);
    data_window_close(&w);
    return err;
}

int data_check_device(struct bd_dev *dev, uint64_t start, size_t max_command, bool lists, char *why,
                      size_t len)
{
    struct data_commands c;
    int err = data_commands_open(dev, &c);

    if (err)
        return err;
    struct data_check check = data_commands_path(&c, start, max_command);
    if (!lists)
        check.read_list = NULL;
    err = data_check_run(dev, &check, why, len);
    data_commands_close(&c);
    return err;
}
