/* SPDX-License-Identifier: BSD-2-Clause */
/* Self-test of a controller: shapes of reads, and their comparison with single pages. */
#include "blockdev/data_check.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_info.h"

/* Of a list. Its bytes between pieces move the next one to another place in its page. */
#define PIECE_LBAS 3u
#define PIECE_GAP  64u
#define LIST_MAX   (DATA_CHECK_PIECES * (PIECE_LBAS * PAGE_BYTES + PIECE_GAP))

static_assert(LIST_MAX <= DATA_CHECK_BUFFER, "a list of the largest LBAs");

/* Pages of a command (0: as many as one carries), to a page of the buffer and a byte in it. */
static const struct shape {
    size_t pages, at_page, at_byte;
} shapes[] = {
    {1, 0, 0},  {1, 0, 512},  {2, 1, 0}, {2, 0, 1024}, {3, 0, 0},   {3, 510, 0},
    {17, 1, 0}, {64, 448, 0}, {0, 0, 0}, {0, 0, 512},  {0, 509, 0},
};

/* The beginning of the device, as reads of single pages returned it. */
struct window {
    unsigned char *data;
    size_t pages;
    size_t *marks; /* pages that no other page equals, ascending */
    size_t n_marks;
};

int data_check_error(int err, uint16_t status)
{
    return nvme_status_errno(status) == -EINVAL ? -EPROTO : err;
}

static int submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    int err = bd_submit(dev, ios, n);
    size_t i = 0;

    while (i < n && !ios[i].error)
        i++;
    return i < n ? data_check_error(err, ios[i].nvme_status) : err;
}

static int read_pages(struct bd_dev *dev, const struct window *w)
{
    struct bd_io *ios = calloc(w->pages, sizeof(*ios));
    int err;

    if (!ios)
        return -ENOMEM;
    for (size_t i = 0; i < w->pages; i++)
        ios[i] = (struct bd_io){.op = BD_READ,
                                .offset = i * PAGE_BYTES,
                                .len = PAGE_BYTES,
                                .buf = w->data + i * PAGE_BYTES};
    err = submit(dev, ios, w->pages);
    free(ios);
    return err;
}

static bool is_uniform(const unsigned char *page)
{
    return memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* A page like its neighbours shows nothing when it is in the place of another. */
static void find_marks(struct window *w)
{
    for (size_t i = 0; i < w->pages; i++) {
        const unsigned char *page = w->data + i * PAGE_BYTES;

        if (!is_uniform(page) && (!i || memcmp(page, page - PAGE_BYTES, PAGE_BYTES) != 0))
            w->marks[w->n_marks++] = i;
    }
}

static void window_close(struct window *w)
{
    free(w->marks);
    free(w->data);
}

static int window_open(struct bd_dev *dev, size_t pages, struct window *out)
{
    int err;

    *out = (struct window){.pages = pages};
    if (out->pages > dev->info.bytes / PAGE_BYTES)
        out->pages = (size_t)(dev->info.bytes / PAGE_BYTES);
    out->data = malloc(out->pages * PAGE_BYTES + 1);
    out->marks = calloc(out->pages + 1, sizeof(*out->marks));
    err = out->data && out->marks ? read_pages(dev, out) : -ENOMEM;
    if (err)
        window_close(out);
    else
        find_marks(out);
    return err;
}

/* Where a read of n pages begins whose page k is a mark; the first pages when there is none. */
static size_t begin_at(const struct window *w, size_t n, size_t k)
{
    for (size_t i = 0; i < w->n_marks; i++) {
        if (w->marks[i] >= k && w->marks[i] - k + n <= w->pages)
            return w->marks[i] - k;
    }
    return 0;
}

/* What became of a read; followed by its cause(). */
static const char *fails(int err)
{
    return err == -EPROTO ? "is refused by the controller" : "fails: ";
}

static const char *cause(int err)
{
    return err == -EPROTO ? "" : strerror(-err);
}

static int differs(const struct data_check *c, const struct window *w, const struct shape *s,
                   size_t first, char *why, size_t len)
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

static int try_one(const struct data_check *c, const struct window *w, const struct shape *s,
                   size_t first, char *why, size_t len)
{
    size_t at = s->at_page * PAGE_BYTES + s->at_byte;

    memset(c->buffer + at, 0xa5, s->pages * PAGE_BYTES + 1);
    int err = c->read(c->context, first * PAGE_BYTES, at, s->pages * PAGE_BYTES);
    if (!err)
        return differs(c, w, s, first, why, len);
    snprintf(why, len,
             "%s: a read of %zu bytes to byte %zu of a page %s%s, although reads of single "
             "pages succeed",
             c->path, s->pages * PAGE_BYTES, s->at_byte, fails(err), cause(err));
    return err;
}

static int try_shape(const struct data_check *c, const struct window *w, const struct shape *s,
                     char *why, size_t len)
{
    const size_t places[] = {0, 1, s->pages / 2, s->pages - 1};
    int err = 0;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !err; i++) {
        if (s->pages <= w->pages && (i == 0 || places[i] > places[i - 1]))
            err = try_one(c, w, s, begin_at(w, s->pages, places[i]), why, len);
    }
    return err;
}

/* One to three LBAs, of marked pages where there are some. */
static struct data_check_piece piece_of(const struct window *w, size_t lba_size, size_t i)
{
    size_t page = w->n_marks ? w->marks[i % w->n_marks] : i % w->pages;
    struct data_check_piece p = {.offset = page * PAGE_BYTES + i * lba_size % PAGE_BYTES,
                                 .len = (1 + i % PIECE_LBAS) * lba_size};

    if (p.offset + p.len > w->pages * PAGE_BYTES)
        p = (struct data_check_piece){.len = lba_size};
    return p;
}

static bool is_right(const struct data_check *c, const struct window *w,
                     const struct data_check_piece *p)
{
    const unsigned char *got = c->buffer + p->at, *gap = got + p->len;

    return memcmp(got, w->data + p->offset, p->len) == 0 && gap[0] == 0xa5 &&
           memcmp(gap, gap + 1, PIECE_GAP - 1) == 0;
}

static int try_list(const struct data_check *c, const struct window *w, size_t lba_size, char *why,
                    size_t len)
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
        snprintf(why, len, "%s: a list of short reads %s%s", c->path, fails(err), cause(err));
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

/* Fewer marks are not in all places of the shorter lists. */
#define FEW_MARKS 64u

static void say_how_much(const struct window *w, char *why, size_t len)
{
    why[0] = '\0';
    if (w->n_marks < FEW_MARKS)
        snprintf(
            why, len,
            "only %zu of the first %zu pages differ from their neighbours, so PRP entries that "
            "are taken in another order may not show",
            w->n_marks, w->pages);
}

int data_check_run(struct bd_dev *dev, const struct data_check *check, char *why, size_t len)
{
    size_t most = check->max_command < DATA_CHECK_LONGEST ? check->max_command : DATA_CHECK_LONGEST;
    struct window w;
    int err = window_open(dev, 2 * (most / PAGE_BYTES), &w);

    if (err && err != -ENOMEM)
        snprintf(why, len, "%s: a read of single pages at the beginning of the device %s%s",
                 check->path, fails(err), cause(err));
    if (err)
        return err;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !err; i++) {
        struct shape s = shapes[i];

        if (!s.pages)
            s.pages = most / PAGE_BYTES;
        if (s.pages && s.pages <= most / PAGE_BYTES)
            err = try_shape(check, &w, &s, why, len);
    }
    if (!err && check->read_list && w.pages)
        err = try_list(check, &w, dev->info.lba_size, why, len);
    if (!err)
        say_how_much(&w, why, len);
    window_close(&w);
    return err;
}

struct device_road {
    struct bd_dev *dev;
    unsigned char *buffer;
};

static int device_read(void *context, uint64_t offset, size_t at, size_t len)
{
    const struct device_road *r = context;
    struct bd_io io = {.op = BD_READ, .offset = offset, .len = len, .buf = r->buffer + at};

    return submit(r->dev, &io, 1);
}

int data_check_device(struct bd_dev *dev, size_t max_command, char *why, size_t len)
{
    void *dma = bd_dma_alloc(dev, DATA_CHECK_BUFFER);
    struct device_road r = {.dev = dev, .buffer = dma ? dma : malloc(DATA_CHECK_BUFFER)};
    struct data_check check = {.path = "commands of the processor",
                               .read = device_read,
                               .context = &r,
                               .buffer = r.buffer,
                               .max_command = max_command};
    int err;

    if (!r.buffer)
        return -ENOMEM;
    err = data_check_run(dev, &check, why, len);
    if (dma)
        bd_dma_free(dev, dma, DATA_CHECK_BUFFER);
    else
        free(r.buffer);
    return err;
}
