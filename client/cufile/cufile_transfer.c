/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements synchronous, vectored and stream-ordered reads and writes. */
#include "client/cufile/cufile_transfer.h"

#include <errno.h>
#include <stdlib.h>

#include "client/cufile/cufile_log.h"
#include "client/cufile/cufile_stats.h"
#include "support/clock.h"

static const char *path_name(uint32_t path)
{
    static const char *const names[] = {"no path", "GPU path", "bounce path",
                                        "GPU and bounce path"};

    return names[path < 4 ? path : 0];
}

/*
 * Logs the path of a handle's transfers, once per handle at level WARN and for
 * each transfer at TRACE.
 */
static void transfer_log(const struct cufile_transfer *t, ssize_t bytes,
                         const struct gpunvme_result *result)
{
    const char *what = t->write ? "write" : "read", *why = result->why[0] ? result->why : "";
    unsigned way = 1u << (result->path & 3);
    bool told = __atomic_fetch_or(&t->handle->said, way, __ATOMIC_RELAXED) & way;

    if (bytes < 0)
        cufile_log(CUFILE_LOG_ERROR, "%s of %zu bytes at %llu, fd %d: %s", what, t->size,
                   (unsigned long long)t->file_offset, t->handle->fd, gpunvme_error());
    else if (!told && result->path && result->path != GPUNVME_PATH_GPU)
        cufile_log(CUFILE_LOG_WARN, "fd %d: %s: %s", t->handle->fd, path_name(result->path), why);
    if (bytes >= 0 && cufile_logs(CUFILE_LOG_TRACE))
        cufile_log(CUFILE_LOG_TRACE, "%s of %zu bytes at %llu, fd %d: %zd bytes, %s%s%s", what,
                   t->size, (unsigned long long)t->file_offset, t->handle->fd, bytes,
                   path_name(result->path), why[0] ? ": " : "", why);
}

static ssize_t failed(ssize_t err)
{
    switch (err) {
    case -ENOTSUP:
    case -EREMOTEIO:
        return -CU_FILE_IO_NOT_SUPPORTED;
    case -ENODEV:
        return -CU_FILE_CUDA_DRIVER_ERROR;
    case -EFAULT:
        return -CU_FILE_CUDA_POINTER_RANGE_ERROR;
    case -ENOTTY: /* the descriptor now refers to another file */
        return -CU_FILE_HANDLE_NOT_REGISTERED;
    default:
        errno = (int)-err;
        return -1;
    }
}

ssize_t cufile_transfer_end(const struct cufile_transfer *t, ssize_t bytes,
                            const struct gpunvme_result *result)
{
    transfer_log(t, bytes, result);
    cufile_stats_transfer(t, bytes, result);
    return bytes < 0 ? failed(bytes) : bytes;
}

/* --- Read and write -------------------------------------------------------------------------- */

static ssize_t cufile_transfer_transfer(CUfileHandle_t fh, bool write, char *base, size_t size,
                                        off_t file_offset, off_t offset)
{
    struct gpunvme_result result = {.why = ""};

    if (!base || file_offset < 0)
        return -CU_FILE_INVALID_VALUE;
    struct cufile_handle *h = cufile_handle_get(fh);
    if (!h)
        return -CU_FILE_HANDLE_NOT_REGISTERED;
    struct cufile_transfer t = {h, write, (uint64_t)file_offset, size, now_ns()};
    ssize_t n = write ? gpunvme_write(h->file, base + offset, size, t.file_offset, &result)
                      : gpunvme_read(h->file, base + offset, size, t.file_offset, &result);
    n = cufile_transfer_end(&t, n, &result);
    cufile_handle_put(h);
    return n;
}

ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_offset, off_t offset)
{
    return cufile_transfer_transfer(fh, false, base, size, file_offset, offset);
}

ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t file_offset,
                    off_t offset)
{
    return cufile_transfer_transfer(fh, true, (char *)(uintptr_t)base, size, file_offset, offset);
}

/*
 * Behaves like preadv(2): stops at the first short part, and returns an error
 * only if nothing was moved.
 */
static ssize_t transfer_vector(CUfileHandle_t fh, bool write, const CUfileIOVec_t *iov, size_t n,
                               off_t file_offset, unsigned flags)
{
    ssize_t done = 0;

    if ((!iov && n) || flags)
        return -CU_FILE_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        if (!iov[i].len)
            continue;
        ssize_t part =
            cufile_transfer_transfer(fh, write, iov[i].base, iov[i].len, file_offset + done, 0);
        if (part < 0 && !done)
            done = part;
        else if (part > 0)
            done += part;
        if (part < (ssize_t)iov[i].len)
            break;
    }
    cufile_stats_vector(write, done);
    return done;
}

ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t n, off_t file_offset,
                    unsigned flags)
{
    return transfer_vector(fh, false, iov, n, file_offset, flags);
}

ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t n, off_t file_offset,
                     unsigned flags)
{
    return transfer_vector(fh, true, iov, n, file_offset, flags);
}

/* --- Streams --------------------------------------------------------------------------------- */

static void async_done(void *arg, const struct gpunvme_stream_transfer *a,
                       const struct gpunvme_result *result)
{
    struct cufile_transfer *t = arg;

    t->size = *a->len;
    t->file_offset = (uint64_t)*a->file_offset;
    *a->bytes = cufile_transfer_end(t, *a->bytes, result);
    cufile_handle_put_inside(t->handle);
    free(t);
}

static int transfer_submit(CUfileHandle_t fh, bool write, void *base, size_t *size,
                           off_t *file_offset, off_t *offset, ssize_t *bytes, void *stream)
{
    if (!base || !size || !file_offset || !offset || !bytes)
        return CU_FILE_INVALID_VALUE;
    struct cufile_handle *h = cufile_handle_get(fh);
    if (!h)
        return CU_FILE_HANDLE_NOT_REGISTERED;
    struct cufile_transfer *t = malloc(sizeof(*t));
    if (!t) {
        cufile_handle_put(h);
        return CU_FILE_NOMEM_ERROR;
    }
    *t = (struct cufile_transfer){.handle = h, .write = write, .begun_ns = now_ns()};
    struct gpunvme_stream_transfer what = {.write = write,
                                           .addr = base,
                                           .len = size,
                                           .file_offset = file_offset,
                                           .addr_offset = offset,
                                           .bytes = bytes,
                                           .done = async_done,
                                           .arg = t};
    int err = gpunvme_submit_stream(h->file, &what, stream);
    if (!err)
        return CU_FILE_SUCCESS;
    cufile_log(CUFILE_LOG_ERROR, "in a stream: %s", gpunvme_error());
    cufile_handle_put(h);
    free(t);
    return err == -ENOTSUP ? CU_FILE_ASYNC_NOT_SUPPORTED
           : err == -EIO   ? CU_FILE_CUDA_DRIVER_ERROR
                           : cufile_error_of(err);
}

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
                              off_t *offset, ssize_t *bytes, CUstream_t stream)
{
    return cufile_status(
        transfer_submit(fh, false, base, size, file_offset, offset, bytes, stream));
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
                               off_t *offset, ssize_t *bytes, CUstream_t stream)
{
    return cufile_status(transfer_submit(fh, true, base, size, file_offset, offset, bytes, stream));
}

/*
 * Streams need no state: the first stream-ordered transfer creates the state
 * that all share.
 */
CUfileError_t cuFileStreamRegister(CUstream_t stream, unsigned flags)
{
    (void)stream;
    return cufile_status(flags > 15 ? CU_FILE_INVALID_VALUE : CU_FILE_SUCCESS);
}

CUfileError_t cuFileStreamDeregister(CUstream_t stream)
{
    (void)stream;
    return cufile_status(CU_FILE_SUCCESS);
}
