/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The common interface to all block devices checks the arguments, then calls
 * the device's methods.
 */
#include <assert.h>
#include <errno.h>

#include "blockdev/bdev.h"

static bool moves_data(enum bd_op op)
{
    return op == BD_READ || op == BD_WRITE;
}

static int check_io(const struct bd_dev *dev, const struct bd_io *io)
{
    const struct bd_info *info = &dev->info;
    uint64_t mask = info->lba_size - 1, bytes = bd_bytes(dev);

    if (io->flags & ~(BD_FUA | BD_ALWAYS) || (io->flags && io->op != BD_WRITE))
        return -EINVAL;
    if (io->op == BD_FLUSH)
        return 0;
    /* This form avoids overflow. */
    if ((io->offset | io->len) & mask || io->len > bytes || io->offset > bytes - io->len)
        return -EINVAL;
    if (moves_data(io->op) && io->len > SIZE_MAX)
        return -EINVAL;
    if (io->op != BD_READ && info->read_only)
        return -EROFS;
    return 0;
}

int bd_may_write(const struct bd_dev *dev, bool wait)
{
    return dev->permit ? dev->permit->may_write(dev->permit, wait) : 0;
}

bool bd_io_changes(const struct bd_io *io)
{
    return io->op != BD_READ && io->op != BD_FLUSH && !(io->flags & BD_ALWAYS);
}

/* Fails all transfers if one of them changes the device and may not. */
static int check_permit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && !rc && dev->permit; i++) {
        if (bd_io_changes(&ios[i]))
            rc = ios[i].error = bd_may_write(dev, true);
    }
    return rc;
}

/* Nothing was sent, so the valid transfers end with -ECANCELED. */
static void cancel_rest(struct bd_io *ios, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!ios[i].error)
            ios[i].error = -ECANCELED;
    }
}

int bd_submit(struct bd_dev *dev, struct bd_io *ios, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n; i++) {
        assert(!moves_data(ios[i].op) || ios[i].buf || ios[i].len == 0);
        ios[i].nvme_status = 0;
        ios[i].error = check_io(dev, &ios[i]);
        if (!rc)
            rc = ios[i].error;
    }
    if (!rc)
        rc = check_permit(dev, ios, n);
    if (rc)
        cancel_rest(ios, n);
    if (rc || n == 0)
        return rc;
    return dev->ops->submit(dev, ios, n);
}

int bd_read(struct bd_dev *dev, uint64_t offset, void *buf, uint64_t len)
{
    struct bd_io io = {.op = BD_READ, .offset = offset, .len = len, .buf = buf};

    return bd_submit(dev, &io, 1);
}

int bd_write(struct bd_dev *dev, uint64_t offset, const void *buf, uint64_t len, uint32_t flags)
{
    /* The interface has one pointer for both directions. */
    struct bd_io io = {
        .op = BD_WRITE, .flags = flags, .offset = offset, .len = len, .buf = (void *)buf};

    return bd_submit(dev, &io, 1);
}

int bd_write_zeroes(struct bd_dev *dev, uint64_t offset, uint64_t len)
{
    struct bd_io io = {.op = BD_WRITE_ZEROES, .offset = offset, .len = len};

    return bd_submit(dev, &io, 1);
}

int bd_discard(struct bd_dev *dev, uint64_t offset, uint64_t len)
{
    struct bd_io io = {.op = BD_DISCARD, .offset = offset, .len = len};

    return bd_submit(dev, &io, 1);
}

int bd_flush(struct bd_dev *dev)
{
    struct bd_io io = {.op = BD_FLUSH};

    return bd_submit(dev, &io, 1);
}

void *bd_dma_alloc(struct bd_dev *dev, size_t len)
{
    return dev->ops->dma_alloc(dev, len);
}

void bd_dma_free(struct bd_dev *dev, void *buf, size_t len)
{
    if (buf)
        dev->ops->dma_free(dev, buf, len);
}

void bd_close(struct bd_dev *dev)
{
    dev->ops->close(dev);
}

int bd_refresh(struct bd_dev *dev)
{
    uint64_t bytes;
    int rc = dev->ops->capacity ? dev->ops->capacity(dev, &bytes) : 0;

    if (rc || !dev->ops->capacity)
        return rc;
    bytes -= bytes % dev->info.lba_size;
    if (bytes > bd_bytes(dev))
        __atomic_store_n(&dev->info.bytes, bytes, __ATOMIC_RELAXED);
    return 0;
}
