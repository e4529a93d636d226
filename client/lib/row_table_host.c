/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers on the calling thread: one lane executes the passes of the kernel,
 * and READV, which any file has, reads the pieces. GPU memory of the caller is
 * copied to host memory before the gather, and back afterwards.
 */
#define GQ_LANES 1
#include "client/device/gd_list.h"
#include "client/device/gd_table.h"

#include <errno.h>
#include <stdlib.h>

#include "client/lib/row_table.h"

void table_host_pass(const struct gd_table_launch *l)
{
    const struct gd_table_worker worker = {.group = gq_whole_group(), .l = l, .groups = 1};

    gd_table_run(&worker);
}

/* --- Reads ----------------------------------------------------------------------------------- */

/*
 * Stores err as the result of the pieces that a failed READV has not read,
 * instead of -ECANCELED.
 */
static void table_host_fail(struct gq_read_desc *pieces, uint32_t n, int err)
{
    for (uint32_t i = 0; err && i < n; i++) {
        if (pieces[i].result == -ECANCELED)
            pieces[i].result = err;
    }
}

void table_host_read(struct gpunvme_table *t, const struct gd_table_launch *l)
{
    const struct gd_row_table *table = &t->table;

    for (uint32_t k = 0; k < table->n_files; k++) {
        struct gpunvme_result result;
        uint32_t first, n = gd_list_window(&table->bounds[k], l->first, table->turn, &first);
        struct gq_read_desc *pieces = table->pieces + first;
        int err = gpunvme_readv(t->files[k], t->staging, (size_t)table->turn * table->slot_bytes,
                                (struct gpunvme_piece *)pieces, n, &result);

        table_host_fail(pieces, n, err);
        t->commands += result.commands;
    }
}

/* --- GPU memory ------------------------------------------------------------------------------ */

/* Stores host memory that replaces the GPU arrays of a gather. */
struct table_host_copy {
    struct gd_table_launch l;
    struct gd_table_status status;
    void *ids, *rows; /* NULL: none */
};

static size_t table_host_ids_len(const struct gd_table_launch *l)
{
    return (size_t)l->n * (l->wide ? 8 : 4);
}

static int table_host_copy_ids(struct gpunvme_table *t, const struct gd_table_launch *l,
                               struct table_host_copy *c)
{
    c->l = *l;
    c->ids = malloc(table_host_ids_len(l) + 1);
    c->rows = calloc((size_t)l->n + 1, t->table.row_bytes);
    if (!c->ids || !c->rows)
        return gpunvme_fail(-ENOMEM, "a gather of %u rows: out of memory", l->n);
    c->l.ids = c->ids;
    c->l.out = (uintptr_t)c->rows;
    c->l.out_stride = t->table.row_bytes;
    c->l.status = &c->status;
    return l->n ? gpunvme_copy_out(t->g, l->ids, c->ids, table_host_ids_len(l)) : 0;
}

/* Copies all rows at once if they are adjacent. */
static int table_host_copy_rows(struct gpunvme_table *t, const struct gd_table_launch *l,
                                const struct table_host_copy *c)
{
    size_t row = t->table.row_bytes, at_once = l->out_stride == row ? l->n : 1;
    int err = 0;

    for (size_t i = 0; i < l->n && !err; i += at_once)
        err = gpunvme_copy_in(t->g, (void *)(uintptr_t)(l->out + i * l->out_stride),
                              (const char *)c->rows + i * row, at_once * row);
    return err ? err : gpunvme_copy_in(t->g, l->status, &c->status, sizeof(c->status));
}

static int table_host_gather_copied(struct gpunvme_table *t, const struct gd_table_launch *l,
                                    table_host_fn gather)
{
    struct table_host_copy c = {0};
    int err = table_host_copy_ids(t, l, &c);

    if (!err)
        err = gather(t, &c.l, NULL);
    if (!err)
        err = table_host_copy_rows(t, l, &c);
    free(c.ids);
    free(c.rows);
    return err;
}

/* Returns true if an array is in GPU memory. */
static bool table_host_is_copied(struct cuda_driver *cu, const struct gd_table_launch *l)
{
    const uint64_t at[] = {(uintptr_t)l->ids, l->out, (uintptr_t)l->status};
    int device = CUDA_NO_DEVICE;

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]) && device == CUDA_NO_DEVICE; i++) {
        if (at[i] && cuda_driver_locate(cu, at[i], &device) != 0)
            device = CUDA_NO_DEVICE;
    }
    return device != CUDA_NO_DEVICE;
}

int table_host_gather(struct gpunvme_table *t, struct gd_table_launch *l, void *stream,
                      table_host_fn gather)
{
    struct cuda_driver *cu = handle_cuda(t->g);
    bool is_copied = cu && table_host_is_copied(cu, l);

    if (!cu && stream)
        return gpunvme_fail(-ENODEV, "a stream needs CUDA, which is not loaded: pass NULL");
    if (!is_copied && !stream)
        return gather(t, l, NULL);
    if (cuda_driver_is_captured(cu, stream))
        return gpunvme_fail(-ENOTSUP, "a gather without the direct path cannot be captured: %s",
                            t->why);
    int err = cuda_driver_stream_end(cu, stream);
    if (err)
        return err;
    return is_copied ? table_host_gather_copied(t, l, gather) : gather(t, l, NULL);
}
