/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Moves parts of READ and WRITE through host memory, and checks the limits of
 * all parts.
 */
#include <errno.h>

#include "fusefs/daemon/state/open_file.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "support/clock.h"

bool transfer_is_cancelled(const struct transfer *t)
{
    return atomic_load_explicit(&t->cancel, memory_order_relaxed) != 0;
}

int transfer_time_left(const struct transfer *t, unsigned *ms)
{
    *ms = 0;
    if (!t->deadline)
        return 0;
    int64_t left = t->deadline - (int64_t)now_ms();
    if (left <= 0)
        return -ETIMEDOUT;
    *ms = (unsigned)left;
    return 0;
}

int transfer_bounce(struct transfer *t, uint64_t offset, uint64_t at, uint64_t len, uint64_t *moved)
{
    struct daemon *d = t->daemon;
    struct buffer *buffer = t->use.buffer;
    struct bounce *b = bounce_get(&d->bounces);

    *moved = 0;
    if (!b)
        return -ENOMEM;
    ssize_t n = t->write ? buffer_get(buffer, at, b->data, (size_t)len)
                         : file_read(t->inode, offset, b->data, (size_t)len);
    if (n == 0 && t->write) {
        n = ffs_write(t->inode, offset, b->data, (size_t)len);
    } else if (n > 0) {
        file_accessed(t->inode, t->flags);
        n = buffer_put(buffer, at, b->data, (size_t)n) ? -EIO : n;
    }
    bounce_put(&d->bounces, b);
    if (n < 0)
        return (int)n;
    *moved = (uint64_t)n;
    t->op.bounced += *moved;
    return 0;
}
