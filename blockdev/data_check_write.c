/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Self-test of a controller: writes in a scratch area. After each write the
 * whole area is read by commands of single pages, so misplaced and surplus
 * pages are both detected.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/data_check_internal.h"

#define WORDS (PAGE_BYTES / sizeof(uint64_t))

struct writing {
    struct data_commands commands;
    struct data_window w; /* data: the expected content of the area */
    unsigned char *former, *got;
    uint64_t word; /* next word of the pattern; every word is unique */
    bool (*interrupted)(void);
    char *why;
    size_t len;
};

/* Fills pages that differ from each other and from all earlier ones. */
static void data_check_write_fill(struct writing *t, unsigned char *data, size_t pages)
{
    for (size_t i = 0; i < pages * WORDS; i++, t->word++)
        memcpy(data + i * sizeof(t->word), &t->word, sizeof(t->word));
}

static int data_check_write_fail(struct writing *t, const char *what, int err)
{
    snprintf(t->why, t->len, "%s of single pages at byte %" PRIu64 " of the device %s%s", what,
             t->w.start, data_fails(err), data_cause(err));
    return err;
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
        snprintf(t->why, t->len,
                 "a write of %zu bytes from byte %zu of a page %s%s, although writes of single "
                 "pages succeed",
                 bytes, s->at_byte, data_fails(err), data_cause(err));
    return err;
}

/*
 * Writes to the middle of the area, so that the pages around it reveal a
 * surplus page.
 */
static int try_write(void *context, const struct data_shape *s)
{
    struct writing *t = context;

    if (t->interrupted && t->interrupted()) {
        snprintf(t->why, t->len, "interrupted, the scratch area holds what it held before");
        return -EINTR;
    }
    int err = write_shape(t, s, (t->w.pages - s->pages) / 2);
    if (!err)
        err = data_check_write_compare(t, t->w.data);
    if (err == -EILSEQ)
        snprintf(t->why, t->len,
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
        snprintf(t->why, t->len,
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
    if (n == 0)
        return before ? before : flushed;
    snprintf(t->why, t->len,
             "%zu pages of the scratch area, %zu bytes from byte %" PRIu64
             " of the device, could not be put back%s%s: write them anew from a copy",
             n, t->w.pages * PAGE_BYTES, t->w.start, err ? ", " : "", err ? strerror(-err) : "");
    return -EUCLEAN;
}

static int check_area(struct writing *t, size_t max_command)
{
    size_t lba_size = t->commands.dev->info.lba_size;
    struct data_check reads = data_commands_path(&t->commands, t->w.start, max_command);
    int err = fill_area(t);

    if (!err)
        err = data_check_reads(&reads, &t->w, lba_size, t->why, t->len);
    if (!err)
        err = data_each_shape(data_check_longest(max_command), try_write, t);
    return put_back(t, err);
}

/* Checks the area before anything is written. */
static int data_check_write_refuse(struct writing *t, uint64_t start, size_t bytes)
{
    const struct bd_info *info = &t->commands.dev->info;

    if (start % PAGE_BYTES || start >= info->bytes || info->bytes - start < bytes) {
        snprintf(t->why, t->len,
                 "no scratch area at byte %" PRIu64 " of the device: a multiple of %zu is needed, "
                 "and %zu bytes behind it of the %" PRIu64 " that there are",
                 start, (size_t)PAGE_BYTES, bytes, info->bytes);
        return -EINVAL;
    }
    if (info->read_only)
        snprintf(t->why, t->len, "the namespace is write protected, reads alone can be checked");
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
                       bool (*interrupted)(void), char *why, size_t len)
{
    struct writing t = {.interrupted = interrupted, .why = why, .len = len};
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
