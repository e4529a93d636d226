#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/internal.h"

static int transfer_failed(int err, const struct gpunvme_ioc_rw *rw)
{
    if (err == -EIO && rw->nvme_status)
        return gpunvme_fail(err, "the drive answered NVMe status 0x%x", rw->nvme_status);
    if (err == -ERANGE)
        return gpunvme_fail(err, "transfer past the end of the buffer");
    if (err == -EREMOTEIO)
        return gpunvme_fail(err, "the GPU path cannot serve this transfer");
    return gpunvme_fail(err, "transfer: %s", strerror(-err));
}

static void add_result(struct gpunvme_result *sum, const struct gpunvme_ioc_rw *rw)
{
    sum->commands += rw->commands;
    if (rw->path)
        sum->path = !sum->path || sum->path == rw->path ? rw->path : GPUNVME_PATH_MIXED;
    if (!sum->nvme_status)
        sum->nvme_status = rw->nvme_status;
}

/*
 * Until all is moved, the file ends (a read that moves nothing), or an error: then what was moved
 * before counts, as in read(2).
 */
static ssize_t transfer(unsigned long request, struct gpunvme_buffer *b, int fd,
                        size_t buffer_offset, uint64_t file_offset, size_t len,
                        struct gpunvme_result *result)
{
    struct gpunvme_result sum = {0};
    size_t done = 0;
    int err = 0;
    while (done < len) {
        struct gpunvme_ioc_rw rw = {.id = b->id,
                                    .key = b->key,
                                    .file_offset = file_offset + done,
                                    .buffer_offset = buffer_offset + done,
                                    .len = len - done};
        err = gpunvme_ioctl(fd, request, &rw, sizeof(rw));
        add_result(&sum, &rw);
        if (err)
            transfer_failed(err, &rw);
        if (err || !rw.bytes)
            break;
        done += rw.bytes;
    }
    if (result)
        *result = sum;
    return done || !err ? (ssize_t)done : err;
}

ssize_t gpunvme_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                     size_t len, struct gpunvme_result *result)
{
    return transfer(GPUNVME_IOC_READ, b, fd, buffer_offset, file_offset, len, result);
}

ssize_t gpunvme_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result)
{
    return transfer(GPUNVME_IOC_WRITE, b, fd, buffer_offset, file_offset, len, result);
}

ssize_t gpunvme_extents(int fd, uint64_t offset, struct gpunvme_extent *out, size_t max)
{
    size_t count = 0;
    struct gpunvme_ioc_extents ext;
    do {
        memset(&ext, 0, sizeof(ext));
        ext.file_offset = offset;
        ext.max = max - count < GPUNVME_EXTENTS_MAX ? (uint32_t)(max - count) : GPUNVME_EXTENTS_MAX;
        int err = gpunvme_ioctl(fd, GPUNVME_IOC_EXTENTS, &ext, sizeof(ext));
        if (err == -ENOTTY)
            return gpunvme_fail(err, "not a file of a gpunvmefs mount");
        if (err)
            return gpunvme_fail(err, "EXTENTS: %s", strerror(-err));
        if (ext.count > ext.max)
            return gpunvme_fail(-EPROTO, "EXTENTS: more than were asked for");
        if (!ext.count)
            break;
        memcpy(out + count, ext.extents, ext.count * sizeof(out[0]));
        count += ext.count;
        offset = out[count - 1].file_offset + out[count - 1].len;
    } while (count < max && !(out[count - 1].flags & GPUNVME_EXTENT_LAST));
    return (ssize_t)count;
}
