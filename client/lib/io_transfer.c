/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers and batches that the caller waits for, of any file and any memory. */
#include <errno.h>
#include <stdio.h>

#include "client/lib/io.h"

/* --- Transfers ------------------------------------------------------------------------------- */

static _Thread_local char last_why[160];

/* Buffers may end before their words are read. */
static void keep_why(struct gpunvme_result *result)
{
    snprintf(last_why, sizeof(last_why), "%s", result->why);
    result->why = last_why;
}

int io_use(struct gpunvme_io_file *f, void *addr, size_t len, struct region_use *out)
{
    struct gpunvme_io *io = f->io;
    struct cuda_driver *cu = io_cuda(io);
    int err = regions_use(io->regions, cu, f->mount->g, addr, len, out);

    if (err && f->mount != io->local && io->options.path != GPUNVME_PATH_GPU)
        err = regions_use(io->regions, cu, io->local->g, addr, len, out);
    return err;
}

/*
 * Below this length reads of a file that is open with O_DIRECT take the host's page cache as well:
 * in programs of cuFile the flag is a demand of the interface.
 */
#define CACHED_BELOW (16u << 10)

static ssize_t move_on_mount(struct gpunvme_io_file *f, const struct region_use *u,
                             const struct range *r, struct gpunvme_result *result)
{
    int fd = f->fd;

    if (r->write)
        return gpunvme_write(u->buffer, fd, r->buffer_offset, r->file_offset, r->len, result);
    if (f->direct && r->len < CACHED_BELOW)
        fd = io_file_cached(f);
    if (fd < 0) /* the mount reads any offset and length with O_DIRECT as well */
        fd = f->fd;
    return gpunvme_read(u->buffer, fd, r->buffer_offset, r->file_offset, r->len, result);
}

static ssize_t transfer_move(struct gpunvme_io_file *f, const struct region_use *u, struct range *r,
                             struct gpunvme_result *result)
{
    int err;

    if (u->buffer->owner == f->mount->g && !f->why[0])
        return move_on_mount(f, u, r, result);
    if (f->io->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", f->why);
    size_t done = io_move_local(f, u->buffer, r, result, &err);
    result->why = gpunvme_log_bounce(f->why[0] ? f->why : "the mount does not take the memory");
    return done || !err ? (ssize_t)done : err;
}

static ssize_t transfer_use(struct gpunvme_io_file *f, struct range *r, void *addr,
                            struct gpunvme_result *sum)
{
    struct region_use u;
    ssize_t n = io_use(f, addr, r->len, &u);

    if (n == 0) {
        r->buffer_offset = u.offset;
        n = transfer_move(f, &u, r, sum);
        keep_why(sum);
        regions_release(f->io->regions, &u);
    }
    return n;
}

static ssize_t io_transfer_transfer(struct gpunvme_io_file *f, struct range *r, void *addr,
                                    struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    ssize_t n = io_check_process(f->io);

    if (n == 0 && r->len) {
        io_file_get(f);
        n = transfer_use(f, r, addr, &sum);
        io_file_put(f);
    }
    if (result)
        *result = sum;
    return n;
}

ssize_t gpunvme_io_read(struct gpunvme_io_file *f, void *addr, size_t len, uint64_t file_offset,
                        struct gpunvme_result *result)
{
    struct range r = {.fd = f->fd, .file_offset = file_offset, .len = len};

    return io_transfer_transfer(f, &r, addr, result);
}

ssize_t gpunvme_io_write(struct gpunvme_io_file *f, const void *addr, size_t len,
                         uint64_t file_offset, struct gpunvme_result *result)
{
    struct range r = {.write = true, .fd = f->fd, .file_offset = file_offset, .len = len};

    return io_transfer_transfer(f, &r, (void *)(uintptr_t)addr, result);
}

/* --- Batches --------------------------------------------------------------------------------- */

static int read_pieces(struct gpunvme_io_file *f, const struct region_use *u, size_t len,
                       struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *sum)
{
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_piece *p = &pieces[i];
        struct range r = {.fd = f->fd,
                          .buffer_offset = u->offset + p->buffer_offset,
                          .file_offset = p->file_offset,
                          .len = p->len};
        struct gpunvme_result one = {.why = sum->why};
        bool inside = p->buffer_offset <= len && p->len <= len - p->buffer_offset;
        ssize_t done = p->len > INT32_MAX ? -EINVAL
                       : inside           ? transfer_move(f, u, &r, &one)
                                          : -ERANGE;
        gpunvme_add_result(sum, one.path, one.commands, one.nvme_status, one.staged);
        sum->why = one.why;
        p->result = (int32_t)done;
    }
    return 0;
}

static void shift(struct gpunvme_piece *pieces, size_t n, uint64_t by)
{
    for (size_t i = 0; by && i < n; i++)
        pieces[i].buffer_offset += by;
}

static bool all_inside(const struct gpunvme_piece *pieces, size_t n, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].buffer_offset > len || pieces[i].len > len - pieces[i].buffer_offset)
            return false;
    }
    return true;
}

static int transfer_read_batch(struct gpunvme_io_file *f, void *addr, size_t len,
                               struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *sum)
{
    struct region_use u;
    int err = io_use(f, addr, len, &u);

    if (err)
        return err;
    if (u.buffer->owner == f->mount->g && !f->why[0] && all_inside(pieces, n, len)) {
        shift(pieces, n, u.offset);
        err = gpunvme_readv(u.buffer, f->fd, pieces, n, sum);
        shift(pieces, n, -(uint64_t)u.offset);
    } else {
        err = read_pieces(f, &u, len, pieces, n, sum);
    }
    keep_why(sum);
    regions_release(f->io->regions, &u);
    return err;
}

int gpunvme_io_readv(struct gpunvme_io_file *f, void *addr, size_t len,
                     struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    int err = io_check_process(f->io);

    if (!err && n) {
        io_file_get(f);
        err = transfer_read_batch(f, addr, len, pieces, n, &sum);
        io_file_put(f);
    }
    if (result)
        *result = sum;
    return err;
}
