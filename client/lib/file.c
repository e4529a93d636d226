/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens files, counts their users, and finds memory for their transfers. Chooses the path of a
 * transfer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/handle.h"
#include "support/page.h"

void file_get(struct gpunvme_file *f)
{
    atomic_fetch_add_explicit(&f->users, 1, memory_order_relaxed);
}

/*
 * The decrement releases what this user did with the file to the user that frees it, whose
 * decrement acquires it.
 */
void file_put(struct gpunvme_file *f)
{
    if (atomic_fetch_sub_explicit(&f->users, 1, memory_order_acq_rel) != 1)
        return;
    file_direct_end(f);
    if (f->cached_fd >= 0)
        close(f->cached_fd);
    close(f->fd);
    free(f);
}

/* Flags that a second open of the file takes from the first one. */
#define KEPT_FLAGS (O_ACCMODE | O_APPEND | O_DSYNC | O_SYNC | O_NOATIME)

static int file_open_cached(const struct gpunvme_file *f)
{
    char link[32];
    int flags = fcntl(f->fd, F_GETFL);

    snprintf(link, sizeof(link), "/proc/self/fd/%d", f->fd);
    int fd = flags < 0 ? -1 : open(link, (flags & KEPT_FLAGS) | O_CLOEXEC);
    if (fd < 0)
        return gpunvme_fail(-errno,
                            "the file is open with O_DIRECT, and cannot be opened again "
                            "without it: %s",
                            strerror(errno));
    return fd;
}

int file_cached(struct gpunvme_file *f)
{
    int fd = atomic_load(&f->cached_fd), none = -1;

    if (fd >= 0)
        return fd;
    fd = file_open_cached(f);
    if (fd < 0 || atomic_compare_exchange_strong(&f->cached_fd, &none, fd))
        return fd;
    close(fd); /* another thread was first */
    return none;
}

int file_use(struct gpunvme_file *f, void *addr, size_t len, struct region_use *out)
{
    struct gpunvme *g = f->g;
    struct cuda_driver *cu = handle_cuda(g);
    int err = regions_use(g->regions, cu, f->mount, addr, len, out);

    if (err && f->mount != g->local && g->options.path != GPUNVME_PATH_GPU)
        err = regions_use(g->regions, cu, g->local, addr, len, out);
    return err;
}

/* --- Files that no mount serves, and what their file systems require of O_DIRECT -------------- */

/*
 * Shortens a range to the end of the file, where O_DIRECT would require a read of less than a
 * block.
 */
static int transfer_clamp(const struct gpunvme_file *f, struct range *r)
{
    struct stat st;

    if (r->write || !f->regular)
        return 0;
    if (fstat(f->fd, &st) != 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    uint64_t size = (uint64_t)st.st_size;
    uint64_t left = r->file_offset < size ? size - r->file_offset : 0;
    if (r->len > left)
        r->len = (size_t)left;
    return 0;
}

/* Returns the number of bytes in the range that O_DIRECT can move. */
static size_t transfer_direct_part(const struct gpunvme_file *f, const struct range *r)
{
    if (!f->o_direct)
        return r->len;
    return r->file_offset % PAGE_BYTES ? 0 : r->len / PAGE_BYTES * PAGE_BYTES;
}

static size_t transfer_cached(struct gpunvme_file *f, struct gpunvme_buffer *b, struct range *r,
                              struct gpunvme_result *result, int *err)
{
    if (f->o_direct)
        r->fd = file_cached(f);
    if (r->fd >= 0)
        return gpunvme_transfer_bounced(b, r, result, err);
    *err = r->fd;
    return 0;
}

static size_t transfer_locally(struct gpunvme_file *f, struct gpunvme_buffer *b,
                               const struct range *r, struct gpunvme_result *result, int *err)
{
    struct range part = *r;

    *err = transfer_clamp(f, &part);
    part.known = true;
    struct range rest = part;
    part.direct = f->o_direct;
    part.len = transfer_direct_part(f, &part);
    rest.len -= part.len;
    rest.buffer_offset += part.len;
    rest.file_offset += part.len;
    size_t done = *err ? 0 : gpunvme_transfer_bounced(b, &part, result, err);
    if (!*err && done == part.len && rest.len)
        done += transfer_cached(f, b, &rest, result, err);
    return done;
}

/* --- Transfers ------------------------------------------------------------------------------- */

static _Thread_local char last_why[160];

/* Copies the text, because the buffer may be freed before the caller reads the text. */
static void keep_why(struct gpunvme_result *result)
{
    snprintf(last_why, sizeof(last_why), "%s", result->why);
    result->why = last_why;
}

/*
 * Reads below this size use the host's page cache even if the file is open with O_DIRECT, because
 * cuFile requires its programs to set this flag.
 */
#define CACHED_BELOW (16u << 10)

static ssize_t move_on_mount(struct gpunvme_file *f, const struct region_use *u,
                             const struct range *r, struct gpunvme_result *result)
{
    struct range part = *r;
    int fd = !r->write && f->o_direct && r->len < CACHED_BELOW ? file_cached(f) : -1;

    part.known = true;
    if (fd >= 0)
        part.fd = fd;
    else /* the mount accepts any offset and length with O_DIRECT */
        part.direct = f->o_direct;
    return transfer_range(u->buffer, &part, result);
}

static ssize_t transfer_by_path(struct gpunvme_file *f, const struct region_use *u, struct range *r,
                                struct gpunvme_result *result)
{
    int err;

    if (u->buffer->owner == f->mount && !f->why[0])
        return move_on_mount(f, u, r, result);
    if (f->g->options.path == GPUNVME_PATH_GPU)
        return gpunvme_fail(-EREMOTEIO, "%s", f->why);
    size_t done = transfer_locally(f, u->buffer, r, result, &err);
    result->why = gpunvme_log_bounce(f->why[0] ? f->why : "the mount does not take the memory");
    return done || !err ? (ssize_t)done : err;
}

static ssize_t transfer_use(struct gpunvme_file *f, struct range *r, void *addr,
                            struct gpunvme_result *sum)
{
    struct region_use u;
    ssize_t n = file_use(f, addr, r->len, &u);

    if (n == 0) {
        r->buffer_offset = u.offset;
        if (f->leased && !r->write) {
            sum->path = GPUNVME_CALLS_DIRECT;
            n = file_direct_read(f, &u, addr, r->len, r->file_offset);
        } else {
            n = transfer_by_path(f, &u, r, sum);
        }
        keep_why(sum);
        regions_release(f->g->regions, &u);
    }
    return n;
}

static ssize_t file_transfer_transfer(struct gpunvme_file *f, struct range *r, void *addr,
                                      struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    ssize_t n = handle_check_process(f->g);

    if (n == 0 && r->len) {
        file_get(f);
        n = transfer_use(f, r, addr, &sum);
        file_put(f);
    }
    if (result)
        *result = sum;
    return n;
}

ssize_t gpunvme_read(struct gpunvme_file *f, void *addr, size_t len, uint64_t file_offset,
                     struct gpunvme_result *result)
{
    struct range r = {.fd = f->fd, .file_offset = file_offset, .len = len};

    return file_transfer_transfer(f, &r, addr, result);
}

ssize_t gpunvme_write(struct gpunvme_file *f, const void *addr, size_t len, uint64_t file_offset,
                      struct gpunvme_result *result)
{
    struct range r = {.write = true, .fd = f->fd, .file_offset = file_offset, .len = len};

    return file_transfer_transfer(f, &r, (void *)(uintptr_t)addr, result);
}

/* --- Batches --------------------------------------------------------------------------------- */

static bool all_inside(const struct gpunvme_piece *pieces, size_t n, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].buffer_offset > len || pieces[i].len > len - pieces[i].buffer_offset)
            return false;
    }
    return true;
}

static int file_read_pieces(struct gpunvme_file *f, const struct region_use *u, size_t len,
                            struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *sum)
{
    for (size_t i = 0; i < n; i++) {
        struct gpunvme_piece *p = &pieces[i];
        struct range r = range_of_piece(f->fd, p);
        struct gpunvme_result one = {.why = sum->why};
        r.buffer_offset += u->offset;
        ssize_t done = p->len > INT32_MAX      ? -EINVAL
                       : all_inside(p, 1, len) ? transfer_by_path(f, u, &r, &one)
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

static int transfer_read_batch(struct gpunvme_file *f, void *addr, size_t len,
                               struct gpunvme_piece *pieces, size_t n, struct gpunvme_result *sum)
{
    struct region_use u;
    int err = file_use(f, addr, len, &u);

    if (err)
        return err;
    if (u.buffer->owner == f->mount && !f->why[0] && all_inside(pieces, n, len)) {
        shift(pieces, n, u.offset);
        err = readv_buffer(u.buffer, f->fd, pieces, n, sum);
        shift(pieces, n, -(uint64_t)u.offset);
    } else {
        err = file_read_pieces(f, &u, len, pieces, n, sum);
    }
    keep_why(sum);
    regions_release(f->g->regions, &u);
    return err;
}

int gpunvme_readv(struct gpunvme_file *f, void *addr, size_t len, struct gpunvme_piece *pieces,
                  size_t n, struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    int err = handle_check_process(f->g);

    if (!err && n) {
        file_get(f);
        err = transfer_read_batch(f, addr, len, pieces, n, &sum);
        file_put(f);
    }
    if (result)
        *result = sum;
    return err;
}
