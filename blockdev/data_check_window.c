/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Self-test of a controller: the shapes of commands, the window, and the
 * device's own commands.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/data_check_internal.h"
#include "blockdev/nvme/nvme_info.h"

/* Number of single-page commands in flight. */
#define AT_ONCE 64u

/*
 * Length in pages (0 means the longest command), page of the buffer, byte in
 * that page.
 */
static const struct data_shape shapes[] = {
    {1, 0, 0},  {1, 0, 512},  {2, 1, 0}, {2, 0, 1024}, {3, 0, 0},   {3, 510, 0},
    {17, 1, 0}, {64, 448, 0}, {0, 0, 0}, {0, 0, 512},  {0, 509, 0},
};

size_t data_check_longest(size_t max_command)
{
    return max_command < DATA_CHECK_LONGEST ? max_command : DATA_CHECK_LONGEST;
}

int data_each_shape(size_t longest, data_shape_fn fn, void *context)
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

const char *data_fails(int err)
{
    return err == -EPROTO ? "is refused by the controller" : "fails: ";
}

const char *data_cause(int err)
{
    return err == -EPROTO ? "" : strerror(-err);
}

/* --- Window ---------------------------------------------------------------------------------- */

int data_submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
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

int data_window_move(struct bd_dev *dev, const struct data_window *w, enum bd_op op,
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

/*
 * Uniform pages and pages like their neighbour get no mark: the test cannot see
 * if they are swapped.
 */
void data_window_mark(struct data_window *w)
{
    w->n_marks = 0;
    for (size_t i = 0; i < w->pages; i++) {
        const unsigned char *page = w->data + i * PAGE_BYTES;

        if (!is_uniform(page) && (!i || memcmp(page, page - PAGE_BYTES, PAGE_BYTES) != 0))
            w->marks[w->n_marks++] = i;
    }
}

void data_window_close(struct data_window *w)
{
    free(w->marks);
    free(w->data);
}

int data_window_open(struct bd_dev *dev, uint64_t start, size_t pages, struct data_window *out)
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

static int read_one(void *context, uint64_t offset, size_t at, size_t len)
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

int data_commands_open(struct bd_dev *dev, struct data_commands *out)
{
    *out = (struct data_commands){.dev = dev, .buffer = bd_dma_alloc(dev, DATA_CHECK_BUFFER)};
    out->is_dma = out->buffer != NULL;
    if (!out->buffer)
        out->buffer = malloc(DATA_CHECK_BUFFER);
    return out->buffer ? 0 : -ENOMEM;
}

void data_commands_close(struct data_commands *c)
{
    if (c->is_dma)
        bd_dma_free(c->dev, c->buffer, DATA_CHECK_BUFFER);
    else
        free(c->buffer);
}

struct data_check data_commands_path(struct data_commands *c, uint64_t start, size_t max_command)
{
    return (struct data_check){.path = "commands of the processor",
                               .read = read_one,
                               .read_list = data_check_window_read_list,
                               .context = c,
                               .buffer = c->buffer,
                               .max_command = max_command,
                               .start = start};
}
