/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests a controller: compares reads of many shapes with reads of single pages. */
#include "blockdev/data_check.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_info.h"

/* Describes a command's pages, and the place of its data in the buffer. */
struct data_shape {
    size_t pages, at_page, at_byte;
};

/* Describes a range of the device and its current or intended data. */
struct data_window {
    unsigned char *data;
    uint64_t start; /* byte of the device */
    size_t pages;
    size_t *marks; /* pages that are not uniform and differ from the previous one, ascending */
    size_t n_marks;
};

/* The device's own commands and their buffer; see data_check_device(). */
struct data_commands {
    struct bd_dev *dev;
    unsigned char *buffer; /* DATA_CHECK_BUFFER bytes */
    bool is_dma;           /* true if from bd_dma_alloc() */
};

typedef int (*data_shape_fn)(void *context, const struct data_shape *s);

/* Number of single-page commands in flight. */
#define AT_ONCE 64u

/*
 * Each entry has a number of pages (0 is the longest command), a page of the
 * buffer, and a byte in it.
 */
static const struct data_shape shapes[] = {
    {1, 0, 0},  {1, 0, 512},  {2, 1, 0}, {2, 0, 1024}, {3, 0, 0},   {3, 510, 0},
    {17, 1, 0}, {64, 448, 0}, {0, 0, 0}, {0, 0, 512},  {0, 509, 0},
};

/* Returns the bytes of the longest command to try on a path. */
static size_t data_check_longest(size_t max_command)
{
    return max_command < DATA_CHECK_LONGEST ? max_command : DATA_CHECK_LONGEST;
}

/* Calls fn for each shape until it fails. Returns the last result. */
static int data_each_shape(size_t longest, data_shape_fn fn, void *context)
{
    int err = 0;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !err; i++) {
        struct data_shape s = shapes[i];

        if (!s.pages)
            s.pages = longest / PAGE_BYTES;
        if (s.pages && s.pages <= longest / PAGE_BYTES)
            err = fn(context, &s);
    }
    return err;
}

/* --- Errors ---------------------------------------------------------------------------------- */

int data_check_error(int err, uint16_t status)
{
    return nvme_status_errno(status) == -EINVAL ? -EPROTO : err;
}

/* A message about a failure consists of data_fails() and then data_cause(). */
static const char *data_fails(int err)
{
    return err == -EPROTO ? "is refused by the controller" : "fails: ";
}

static const char *data_cause(int err)
{
    return err == -EPROTO ? "" : strerror(-err);
}

/* --- Window ---------------------------------------------------------------------------------- */

/* Returns the first error of commands, as of data_check_error(). */
static int data_submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    int err = bd_submit(dev, ios, n);
    size_t i = 0;

    while (i < n && !ios[i].error)
        i++;
    return i < n ? data_check_error(err, ios[i].nvme_status) : err;
}

/* Transfers n pages from page `first` on. */
static int move_some(struct bd_dev *dev, const struct data_window *w, enum bd_op op,
                     unsigned char *data, size_t first, size_t n)
{
    struct bd_io ios[AT_ONCE];

    for (size_t i = 0; i < n; i++)
        ios[i] = (struct bd_io){.op = op,
                                .offset = w->start + (first + i) * PAGE_BYTES,
                                .len = PAGE_BYTES,
                                .buf = data + (first + i) * PAGE_BYTES};
    return data_submit(dev, ios, n);
}

/*
 * Transfers the window by commands of single pages between the device and
 * `data`. Returns 0 or the first error. Pages after a failed one are still
 * transferred, but none after -ETIMEDOUT, because each attempt would wait for
 * its deadline.
 */
static int data_window_move(struct bd_dev *dev, const struct data_window *w, enum bd_op op,
                            unsigned char *data)
{
    int err = 0;

    for (size_t i = 0, n; i < w->pages && err != -ETIMEDOUT; i += n) {
        n = w->pages - i < AT_ONCE ? w->pages - i : AT_ONCE;
        int now = move_some(dev, w, op, data, i, n);
        if (!err || now == -ETIMEDOUT)
            err = now;
    }
    return err;
}

static bool is_uniform(const unsigned char *page)
{
    return memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* Equal pages get no mark: the test cannot see if they are swapped. */
static void data_window_mark(struct data_window *w)
{
    w->n_marks = 0;
    for (size_t i = 0; i < w->pages; i++) {
        const unsigned char *page = w->data + i * PAGE_BYTES;

        if (!is_uniform(page) && (!i || memcmp(page, page - PAGE_BYTES, PAGE_BYTES) != 0))
            w->marks[w->n_marks++] = i;
    }
}

/* Frees the window's memory. */
static void data_window_close(struct data_window *w)
{
    free(w->marks);
    free(w->data);
}

/* Reads at most `pages` pages. After an error nothing is to be closed. */
static int data_window_open(struct bd_dev *dev, uint64_t start, size_t pages,
                            struct data_window *out)
{
    uint64_t behind = start < dev->info.bytes ? (dev->info.bytes - start) / PAGE_BYTES : 0;
    int err;

    *out = (struct data_window){.start = start, .pages = behind < pages ? (size_t)behind : pages};
    out->data = malloc(out->pages * PAGE_BYTES + 1);
    out->marks = calloc(out->pages + 1, sizeof(*out->marks));
    err = out->data && out->marks ? data_window_move(dev, out, BD_READ, out->data) : -ENOMEM;
    if (err)
        data_window_close(out);
    else
        data_window_mark(out);
    return err;
}

/* --- The device's own commands --------------------------------------------------------------- */

static int data_check_read_one(void *context, uint64_t offset, size_t at, size_t len)
{
    const struct data_commands *c = context;
    struct bd_io io = {.op = BD_READ, .offset = offset, .len = len, .buf = c->buffer + at};

    return data_submit(c->dev, &io, 1);
}

static int data_check_window_read_list(void *context, const struct data_check_piece *pieces,
                                       size_t n)
{
    const struct data_commands *c = context;
    struct bd_io ios[DATA_CHECK_PIECES];

    for (size_t i = 0; i < n; i++)
        ios[i] = (struct bd_io){.op = BD_READ,
                                .offset = pieces[i].offset,
                                .len = pieces[i].len,
                                .buf = c->buffer + pieces[i].at};
    return data_submit(c->dev, ios, n);
}

/* Allocates the buffer. Returns 0 or -ENOMEM. */
static int data_commands_open(struct bd_dev *dev, struct data_commands *out)
{
    *out = (struct data_commands){.dev = dev, .buffer = bd_dma_alloc(dev, DATA_CHECK_BUFFER)};
    out->is_dma = out->buffer != NULL;
    if (!out->buffer)
        out->buffer = malloc(DATA_CHECK_BUFFER);
    return out->buffer ? 0 : -ENOMEM;
}

/* Frees the buffer. */
static void data_commands_close(struct data_commands *c)
{
    if (c->is_dma)
        bd_dma_free(c->dev, c->buffer, DATA_CHECK_BUFFER);
    else
        free(c->buffer);
}

/* Returns the path of the device's own commands, for data_check_reads(). */
static struct data_check data_commands_path(struct data_commands *c, uint64_t start,
                                            size_t max_command)
{
    return (struct data_check){.path = "commands of the processor",
                               .read = data_check_read_one,
                               .read_list = data_check_window_read_list,
                               .context = c,
                               .buffer = c->buffer,
                               .max_command = max_command,
                               .start = start};
}

/* Limits of a list. The gap moves the next piece in its page. */
#define PIECE_LBAS 3u
#define PIECE_GAP  64u
#define LIST_MAX   (DATA_CHECK_PIECES * (PIECE_LBAS * PAGE_BYTES + PIECE_GAP))

static_assert(LIST_MAX <= DATA_CHECK_BUFFER, "a list of the largest LBAs");

/* Returns where n pages start whose page k is a mark, or 0. */
static size_t begin_at(const struct data_window *w, size_t n, size_t k)
{
    for (size_t i = 0; i < w->n_marks; i++) {
        if (w->marks[i] >= k && w->marks[i] - k + n <= w->pages)
            return w->marks[i] - k;
    }
    return 0;
}

static int differs(const struct data_check *c, const struct data_window *w,
                   const struct data_shape *s, size_t first, struct reason *why)
{
    const unsigned char *got = c->buffer + s->at_page * PAGE_BYTES + s->at_byte;
    size_t i = 0;

    while (i < s->pages &&
           memcmp(got + i * PAGE_BYTES, w->data + (first + i) * PAGE_BYTES, PAGE_BYTES) == 0)
        i++;
    if (i == s->pages && got[s->pages * PAGE_BYTES] == 0xa5)
        return 0;
    return reason_set(
        why, -EILSEQ,
        "wrong data by %s: a read of %zu bytes to byte %zu of a page %s; the controller does "
        "not take PRP entries as specified and cannot be used",
        c->path, s->pages * PAGE_BYTES, s->at_byte,
        i < s->pages ? "returns other bytes than reads of single pages" : "writes too much");
}

static int try_one(const struct data_check *c, const struct data_window *w,
                   const struct data_shape *s, size_t first, struct reason *why)
{
    size_t at = s->at_page * PAGE_BYTES + s->at_byte;

    memset(c->buffer + at, 0xa5, s->pages * PAGE_BYTES + 1);
    int err = c->read(c->context, w->start + first * PAGE_BYTES, at, s->pages * PAGE_BYTES);
    if (!err)
        return differs(c, w, s, first, why);
    return reason_set(
        why, err,
        "%s: a read of %zu bytes to byte %zu of a page %s%s, although reads of single "
        "pages succeed",
        c->path, s->pages * PAGE_BYTES, s->at_byte, data_fails(err), data_cause(err));
}

/* Context of try_shape() for a test of reads. */
struct reading {
    const struct data_check *check;
    const struct data_window *w;
    struct reason *why;
};

/* Reads with marks in four places, or once if all pages are marks. */
static int try_shape(void *context, const struct data_shape *s)
{
    const struct reading *r = context;
    const size_t places[] = {0, 1, s->pages / 2, s->pages - 1};
    size_t tried = SIZE_MAX;
    int err = 0;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !err; i++) {
        size_t first = begin_at(r->w, s->pages, places[i]);

        if (s->pages <= r->w->pages && first != tried && (i == 0 || places[i] > places[i - 1]))
            err = try_one(r->check, r->w, s, first, r->why);
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

static bool data_check_is_right(const struct data_check *c, const struct data_window *w,
                                const struct data_check_piece *p)
{
    const unsigned char *got = c->buffer + p->at, *gap = got + p->len;

    return memcmp(got, w->data + (p->offset - w->start), p->len) == 0 && gap[0] == 0xa5 &&
           memcmp(gap, gap + 1, PIECE_GAP - 1) == 0;
}

static int try_list(const struct data_check *c, const struct data_window *w, size_t lba_size,
                    struct reason *why)
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
    if (err)
        return reason_set(why, err, "%s: a list of short reads %s%s", c->path, data_fails(err),
                          data_cause(err));
    for (i = 0; i < DATA_CHECK_PIECES && data_check_is_right(c, w, &pieces[i]); i++)
        ;
    if (i == DATA_CHECK_PIECES)
        return 0;
    return reason_set(
        why, -EILSEQ,
        "wrong data by %s: in a list of short reads one of %zu bytes to byte %zu of a page "
        "returns other bytes than reads of single pages, or is written over; the controller "
        "cannot be used",
        c->path, pieces[i].len, pieces[i].at % PAGE_BYTES);
}

/* Fewer marks do not cover every place of the shorter lists. */
#define FEW_MARKS 64u

static void say_how_much(const struct data_window *w, struct reason *why)
{
    why->text[0] = '\0';
    if (w->n_marks < FEW_MARKS && w->n_marks < w->pages)
        reason_set(
            why, 0,
            "only %zu of the %zu pages that were read differ from their neighbours, so PRP entries "
            "that are taken in another order may not show",
            w->n_marks, w->pages);
}

/* Like data_check_run(), for a window that is already open. */
static int data_check_reads(const struct data_check *check, const struct data_window *w,
                            size_t lba_size, struct reason *why)
{
    struct reading r = {.check = check, .w = w, .why = why};
    int err = data_each_shape(data_check_longest(check->max_command), try_shape, &r);

    if (!err && check->read_list && w->pages)
        err = try_list(check, w, lba_size, why);
    if (!err)
        say_how_much(w, why);
    return err;
}

int data_check_run(struct bd_dev *dev, const struct data_check *check, struct reason *why)
{
    size_t pages = 2 * (data_check_longest(check->max_command) / PAGE_BYTES);
    struct data_window w;
    int err = data_window_open(dev, check->start, pages, &w);

    if (err && err != -ENOMEM)
        reason_set(why, 0, "%s: a read of single pages at byte %" PRIu64 " of the device %s%s",
                   check->path, check->start, data_fails(err), data_cause(err));
    if (err)
        return err;
    err = data_check_reads(check, &w, dev->info.lba_size, why);
    data_window_close(&w);
    return err;
}

int data_check_device(struct bd_dev *dev, uint64_t start, size_t max_command, bool lists,
                      struct reason *why)
{
    struct data_commands c;
    int err = data_commands_open(dev, &c);

    if (err)
        return err;
    struct data_check check = data_commands_path(&c, start, max_command);
    if (!lists)
        check.read_list = NULL;
    err = data_check_run(dev, &check, why);
    data_commands_close(&c);
    return err;
}

#define WORDS (PAGE_BYTES / sizeof(uint64_t))

struct writing {
    struct data_commands commands;
    struct data_window w; /* data: the expected content of the area */
    unsigned char *former, *got;
    uint64_t word; /* next word of the pattern; every word is unique */
    bool (*interrupted)(void);
    struct reason *why;
};

/* Fills pages that differ from each other and from all earlier ones. */
static void data_check_write_fill(struct writing *t, unsigned char *data, size_t pages)
{
    for (size_t i = 0; i < pages * WORDS; i++, t->word++)
        memcpy(data + i * sizeof(t->word), &t->word, sizeof(t->word));
}

static int data_check_write_fail(struct writing *t, const char *what, int err)
{
    return reason_set(t->why, err, "%s of single pages at byte %" PRIu64 " of the device %s%s",
                      what, t->w.start, data_fails(err), data_cause(err));
}

/* Returns -EILSEQ if the area differs from `want`. */
static int data_check_write_compare(struct writing *t, const unsigned char *want)
{
    int err = data_window_move(t->commands.dev, &t->w, BD_READ, t->got);

    if (err)
        return data_check_write_fail(t, "a read", err);
    return memcmp(t->got, want, t->w.pages * PAGE_BYTES) == 0 ? 0 : -EILSEQ;
}

static int write_area(struct writing *t, unsigned char *data)
{
    int err = data_window_move(t->commands.dev, &t->w, BD_WRITE, data);

    return err ? data_check_write_fail(t, "a write", err) : 0;
}

static int write_shape(struct writing *t, const struct data_shape *s, size_t first)
{
    unsigned char *data = t->commands.buffer + s->at_page * PAGE_BYTES + s->at_byte;
    const size_t bytes = s->pages * PAGE_BYTES;
    struct bd_io io = {
        .op = BD_WRITE, .offset = t->w.start + first * PAGE_BYTES, .len = bytes, .buf = data};

    data_check_write_fill(t, data, s->pages);
    memcpy(t->w.data + first * PAGE_BYTES, data, bytes);
    int err = data_submit(t->commands.dev, &io, 1);
    if (err)
        return reason_set(
            t->why, err,
            "a write of %zu bytes from byte %zu of a page %s%s, although writes of single "
            "pages succeed",
            bytes, s->at_byte, data_fails(err), data_cause(err));
    return 0;
}

/* Writes to the middle, so that pages around it reveal a surplus page. */
static int try_write(void *context, const struct data_shape *s)
{
    struct writing *t = context;

    if (t->interrupted && t->interrupted())
        return reason_set(t->why, -EINTR,
                          "interrupted, the scratch area holds what it held before");
    int err = write_shape(t, s, (t->w.pages - s->pages) / 2);
    if (!err)
        err = data_check_write_compare(t, t->w.data);
    if (err == -EILSEQ)
        return reason_set(
            t->why, err,
            "wrong data: after a write of %zu bytes from byte %zu of a page, reads of single "
            "pages return other bytes; the controller does not take PRP entries as specified "
            "and cannot be used",
            s->pages * PAGE_BYTES, s->at_byte);
    return err;
}

static int fill_area(struct writing *t)
{
    data_check_write_fill(t, t->w.data, t->w.pages);
    int err = write_area(t, t->w.data);
    if (!err)
        err = data_check_write_compare(t, t->w.data);
    if (err == -EILSEQ)
        reason_set(t->why, 0,
                   "wrong data: reads of single pages at byte %" PRIu64
                   " of the device return other bytes than writes of single pages wrote",
                   t->w.start);
    data_window_mark(&t->w);
    return err;
}

static size_t pages_that_differ(const struct writing *t)
{
    size_t n = 0;

    for (size_t i = 0; i < t->w.pages; i++)
        n += memcmp(t->got + i * PAGE_BYTES, t->former + i * PAGE_BYTES, PAGE_BYTES) != 0;
    return n;
}

/*
 * Restores the former content. Returns `before`, the result of the test, unless
 * content is lost. If writes fail now but those of the test failed as well,
 * nothing is lost; so the area is read in either case.
 */
static int put_back(struct writing *t, int before)
{
    struct bd_dev *dev = t->commands.dev;
    int err = data_window_move(dev, &t->w, BD_WRITE, t->former);
    int flushed = bd_flush(dev), unread = data_window_move(dev, &t->w, BD_READ, t->got);
    size_t n = unread ? t->w.pages : pages_that_differ(t);

    err = err ? err : flushed ? flushed : unread;
    if (n == 0 && flushed && !before)
        (void)data_check_write_fail(t, "a flush after writes", flushed);
    if (n == 0)
        return before ? before : flushed;
    return reason_set(t->why, -EUCLEAN,
                      "%zu pages of the scratch area, %zu bytes from byte %" PRIu64
                      " of the device, could not be put back%s%s: write them anew from a copy",
                      n, t->w.pages * PAGE_BYTES, t->w.start, err ? ", " : "",
                      err ? strerror(-err) : "");
}

static int check_area(struct writing *t, size_t max_command)
{
    size_t lba_size = t->commands.dev->info.lba_size;
    struct data_check reads = data_commands_path(&t->commands, t->w.start, max_command);
    int err = fill_area(t);

    if (!err)
        err = data_check_reads(&reads, &t->w, lba_size, t->why);
    if (!err)
        err = data_each_shape(data_check_longest(max_command), try_write, t);
    return put_back(t, err);
}

/* Checks the area before anything is written. */
static int data_check_write_refuse(struct writing *t, uint64_t start, size_t bytes)
{
    const struct bd_info *info = &t->commands.dev->info;

    if (start % PAGE_BYTES || start >= info->bytes || info->bytes - start < bytes)
        return reason_set(t->why, -EINVAL,
                          "no scratch area at byte %" PRIu64
                          " of the device: a multiple of %zu is needed, "
                          "and %zu bytes behind it of the %" PRIu64 " that there are",
                          start, (size_t)PAGE_BYTES, bytes, info->bytes);
    if (info->read_only)
        reason_set(t->why, 0, "the namespace is write protected, reads alone can be checked");
    return info->read_only ? -EROFS : 0;
}

static int writing_open(struct writing *t, uint64_t start, size_t bytes)
{
    int err = data_window_open(t->commands.dev, start, bytes / PAGE_BYTES, &t->w);

    if (err && err != -ENOMEM)
        data_check_write_fail(t, "a read", err);
    if (err)
        return err;
    t->former = malloc(t->w.pages * PAGE_BYTES + 1);
    t->got = malloc(t->w.pages * PAGE_BYTES + 1);
    if (t->former && t->got) {
        memcpy(t->former, t->w.data, t->w.pages * PAGE_BYTES);
        memcpy(&t->word, t->former, t->w.pages ? sizeof(t->word) : 0);
        t->word = ~t->word;
        return 0;
    }
    data_window_close(&t->w);
    return -ENOMEM;
}

int data_check_scratch(struct bd_dev *dev, uint64_t start, size_t max_command,
                       bool (*interrupted)(void), struct reason *why)
{
    struct writing t = {.interrupted = interrupted, .why = why};
    size_t bytes = 2 * (data_check_longest(max_command) / PAGE_BYTES) * PAGE_BYTES;
    int err = data_commands_open(dev, &t.commands);

    if (err)
        return err;
    err = data_check_write_refuse(&t, start, bytes);
    if (!err)
        err = writing_open(&t, start, bytes);
    if (!err) {
        err = check_area(&t, max_command);
        data_window_close(&t.w);
    }
    free(t.former);
    free(t.got);
    data_commands_close(&t.commands);
    return err;
}
