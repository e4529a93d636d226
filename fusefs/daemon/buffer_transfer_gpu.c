/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The GPU path of READ and WRITE: extents of a file for the executor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/buffer_transfer.h"
#include "fusefs/daemon/daemon_log.h"
#include "fusefs/daemon/gpu_extents.h"
#include "layout/format.h"
#include "support/clock.h"

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

/*
 * A controller that has failed for good executes no commands, unless it could
 * not be stopped.
 */
bool transfer_settle(struct daemon *d)
{
    int err = gq_engine_recover(d->stack.engine);

    if (!err || (err == -EIO && nvme_ctrlr_settled(d->stack.ctrlr)))
        return true;
    log_line(LOG_ERR, "%s: commands of the executor cannot be ended: %s", d->opts->device,
             strerror(-err));
    return false;
}

/*
 * Moves map->len bytes; *moved of them are confirmed. *stuck: commands may
 * remain in flight for an unbounded time.
 */
static int move(struct transfer *t, const struct ffs_map *map, uint64_t *moved, bool *stuck)
{
    struct daemon *d = t->daemon;
    struct gq_result result = {0};
    struct gpu_extents x;
    unsigned left;
    int err = transfer_time_left(t, &left);

    if (err)
        return err;
    err = gpu_extents_make(map, d->stack.engine_info.lba_size, t->write, &x);
    if (err)
        return err;
    struct gq_request req = {.op = t->write ? GQ_WRITE : GQ_READ,
                             .buffer = buffer_gq(t->use.buffer),
                             .buffer_offset = t->rw.buffer_offset + t->done,
                             .file_offset = t->rw.file_offset + t->done,
                             .len = map->len,
                             .extents = x.extents,
                             .n_extents = x.count,
                             .end = x.end,
                             .deadline_ms = left,
                             .cancel = (const volatile uint32_t *)&t->cancel};
    err = gq_transfer(d->stack.engine, &req, &result);
    free(x.extents);
    *moved = result.bytes;
    t->rw.commands += result.commands;
    if (!t->rw.nvme_status)
        t->rw.nvme_status = result.nvme_status;
    t->needs_recovery |= err == -ENODEV;
    *stuck = result.unsettled && !transfer_settle(d);
    return err;
}

int transfer_gpu_read(struct transfer *t, uint64_t len, uint64_t *moved)
{
    struct ffs_map map;
    bool stuck = false;

    *moved = 0;
    int err = ffs_map_read(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    if (map.len)
        err = move(t, &map, moved, &stuck);
    if (stuck)
        ffs_map_abandon(&map);
    else
        ffs_map_release(&map);
    return err;
}

/*
 * Only whole blocks become part of the file: a new block holds stale data
 * behind the last byte written.
 */
int transfer_gpu_write(struct transfer *t, uint64_t len, uint64_t *moved)
{
    struct ffs_map map;
    uint64_t written = 0;
    bool stuck = false;

    *moved = 0;
    int err = ffs_map_write(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    err = move(t, &map, &written, &stuck);
    if (stuck) {
        ffs_map_abandon(&map);
        return -EROFS;
    }
    written -= written % LAY_BLOCK_SIZE;
    int end = ffs_map_write_end(&map, written);
    if (end)
        return end;
    *moved = written;
    return err;
}
