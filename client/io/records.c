/* SPDX-License-Identifier: BSD-2-Clause */
/* Records of equal length in a file: ranges and lists of them. */
#include "gpunvme/gpunvme_records.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/io/io.h"

#define AT_ONCE 1048576u /* pieces of one list */

/* What a read of `len` bytes that returned n came to. */
static int check_read(ssize_t n, size_t len)
{
    if (n >= 0 && (size_t)n < len)
        return gpunvme_fail(-EIO, "the file ends within the records");
    return n < 0 ? (int)n : 0;
}

int gpunvme_records_read(const struct gpunvme_records *r, uint64_t first, size_t n, void *addr,
                         struct gpunvme_result *result)
{
    uint64_t end = first + n;

    if (first > r->count || n > r->count - first)
        return gpunvme_fail(-ERANGE, "records %" PRIu64 " to %" PRIu64 " of %" PRIu64, first, end,
                            r->count);
    size_t len = n * r->size;
    ssize_t done = gpunvme_io_read(r->file, addr, len, r->offset + first * r->size, result);
    return check_read(done, len);
}

/* --- Gathers --------------------------------------------------------------------------------- */

static int fill(const struct gpunvme_records *r, const int64_t *index, size_t n,
                struct gpunvme_piece *pieces)
{
    for (size_t i = 0; i < n; i++) {
        if ((uint64_t)index[i] >= r->count)
            return gpunvme_fail(-ERANGE, "record %lld of %llu", (long long)index[i],
                                (unsigned long long)r->count);
        pieces[i] = (struct gpunvme_piece){.file_offset = r->offset + (uint64_t)index[i] * r->size,
                                           .buffer_offset = (uint64_t)i * r->size,
                                           .len = r->size};
    }
    return 0;
}

static int check_pieces(const struct gpunvme_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].result < 0)
            return gpunvme_fail(pieces[i].result, "record of list place %zu: %s", i,
                                strerror(-pieces[i].result));
        if ((uint32_t)pieces[i].result < pieces[i].len)
            return gpunvme_fail(-EIO, "the file ends within the records");
    }
    return 0;
}

static int gather(const struct gpunvme_records *r, const int64_t *index, size_t n, char *addr,
                  struct gpunvme_piece *pieces, struct gpunvme_result *result)
{
    int err = 0;

    for (size_t at = 0; at < n && !err; at += AT_ONCE) {
        size_t some = n - at < AT_ONCE ? n - at : AT_ONCE;
        err = fill(r, index + at, some, pieces);
        if (!err)
            err = gpunvme_io_readv(r->file, addr + at * r->size, some * r->size, pieces, some,
                                   result);
        if (!err)
            err = check_pieces(pieces, some);
    }
    return err;
}

/* The list as the host can read it; *copy is to be freed. */
static int fetch_index(struct gpunvme_io *io, const int64_t **index, size_t n, int64_t **copy)
{
    struct cuda_driver *cu = io_cuda(io);
    int device = CUDA_NO_DEVICE;
    int err = cu ? cuda_driver_locate(cu, (uintptr_t)*index, &device) : 0;

    *copy = NULL;
    if (err || device == CUDA_NO_DEVICE)
        return err;
    *copy = calloc(n, sizeof(**copy));
    if (!*copy)
        return gpunvme_fail(-ENOMEM, "out of memory");
    err = cuda_driver_copy_out(cu, device, *copy, (uintptr_t)*index, n * sizeof(**copy));
    *index = *copy;
    return err;
}

int gpunvme_records_gather(const struct gpunvme_records *r, const int64_t *index, size_t n,
                           void *addr, struct gpunvme_result *result)
{
    int64_t *copy;
    int err = n ? fetch_index(r->file->io, &index, n, &copy) : 0;

    if (!n || err) {
        if (n)
            free(copy);
        return err;
    }
    struct gpunvme_piece *pieces = calloc(n < AT_ONCE ? n : AT_ONCE, sizeof(*pieces));
    err =
        pieces ? gather(r, index, n, addr, pieces, result) : gpunvme_fail(-ENOMEM, "out of memory");
    free(pieces);
    free(copy);
    return err;
}
