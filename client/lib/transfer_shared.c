/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers of registered memory by the mount's ioctls. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "client/lib/client_internal.h"

int gpunvme_unless_other_mount(const struct connection *g, int fd, int err)
{
    struct stat st;

    return err == -ENOENT && fstat(fd, &st) == 0 && st.st_dev != g->dev ? -ENOTTY : err;
}

static int transfer_failed(int err, const struct gpunvme_ioc_rw *rw)
{
    if (err == -ENOTTY)
        return gpunvme_fail(err, "not a file of the buffer's mount");
    if (err == -EIO && rw->nvme_status)
        return gpunvme_fail(err, "the drive answered NVMe status 0x%x", rw->nvme_status);
    if (err == -ERANGE)
        return gpunvme_fail(err, "transfer past the end of the buffer");
    if (err == -EREMOTEIO)
        return gpunvme_fail(err, "the GPU path cannot serve this transfer");
    return gpunvme_fail(err, "transfer: %s", strerror(-err));
}

void gpunvme_add_result(struct gpunvme_result *sum, uint32_t path, uint64_t commands,
                        uint32_t nvme_status, bool staged)
{
    sum->commands += commands;
    sum->staged |= staged;
    if (path)
        sum->path = !sum->path || sum->path == path ? path : GPUNVME_PATH_MIXED;
    if (!sum->nvme_status)
        sum->nvme_status = nvme_status;
}

/* Makes one call for the rest of the range. Returns 0 or -errno. */
static int call_mount(const struct gpunvme_buffer *b, const struct range *r, size_t done,
                      struct gpunvme_ioc_rw *rw, unsigned retries)
{
    unsigned long request = r->write ? GPUNVME_IOC_WRITE : GPUNVME_IOC_READ;

    rw->id = b->id;
    rw->key = b->key;
    rw->file_offset = r->file_offset + done;
    rw->buffer_offset = r->buffer_offset + done;
    rw->len = r->len - done;
    int err = gpunvme_call(r->fd, request, rw, sizeof(*rw), retries);
    return gpunvme_unless_other_mount(b->owner, r->fd, err);
}

size_t gpunvme_transfer_shared(struct gpunvme_buffer *b, const struct range *r, uint32_t flags,
                               struct gpunvme_result *result, int *err)
{
    size_t done = 0;
    unsigned retries = 0;

    *err = 0;
    while (done < r->len && !*err) {
        struct gpunvme_ioc_rw rw = {.flags = flags};
        *err = call_mount(b, r, done, &rw, retries);
        gpunvme_add_result(result, rw.path, rw.commands, rw.nvme_status, rw.flags & GPUNVME_STAGED);
        if (gpunvme_was_interrupted(*err, &retries))
            *err = 0;
        else if (*err)
            *err = transfer_failed(*err, &rw);
        else if (!rw.bytes)
            break;
        else
            retries = 0;
        done += rw.bytes;
    }
    return done;
}
