/* SPDX-License-Identifier: BSD-2-Clause */
/* The GPU path of READ and WRITE passes extents of a file to the executor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/state/gpu_extents.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "fusefs/daemon/transfer/transfer_parts.h"
#include "fusefs/daemon/transfer/transfer_sums.h"
#include "layout/format.h"
#include "support/minmax.h"

/*
 * Ends the commands that a call of the engine left in flight. Returns false if
 * they cannot be ended. A controller that has failed for good executes no
 * commands, unless it could not be stopped.
 */
static bool buffer_transfer_gpu_settle(struct daemon *d)
{
    int err = gq_engine_recover(d->stack.engine);

    if (!err || (err == -EIO && nvme_ctrlr_settled(d->stack.ctrlr)))
        return true;
    log_line(LOG_ERR, "%s: commands of the executor cannot be ended: %s", d->opts->device,
             strerror(-err));
    return false;
}

bool transfer_take_result(struct transfer *t, int err, const struct gq_result *result)
{
    t->rw.commands += result->commands;
    if (result->staged && result->bytes)
        t->rw.flags |= GPUNVME_STAGED;
    if (!t->rw.nvme_status)
        t->rw.nvme_status = result->nvme_status;
    t->status = result->nvme_status;
    t->needs_recovery |= err == -ENODEV;
    t->stuck |= result->unsettled && !buffer_transfer_gpu_settle(t->daemon);
    return !t->stuck;
}

/*
 * Moves map->len bytes, of which *moved are confirmed. Sets *stuck if commands
 * may remain in flight for an unbounded time. `parts` may be NULL; otherwise it
 * is notified of the parts.
 */
static int buffer_transfer_gpu_move(struct transfer *t, const struct ffs_map *map,
                                    struct transfer_parts *parts, uint64_t *moved, bool *stuck)
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
                             .cancel = (const volatile uint32_t *)&t->cancel,
                             .listener = parts ? &parts->listener : NULL};
    err = gq_transfer(d->stack.engine, &req, &result);
    free(x.extents);
    *moved = result.bytes;
    *stuck = !transfer_take_result(t, err, &result);
    return err;
}

/* The first byte of a READ that could not be verified. */
struct lost {
    uint64_t file_offset;
    int err;
};

static void note_lost(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, int err)
{
    struct lost *l = s->ctx;

    (void)owner;
    if (l->err && l->file_offset <= file_offset)
        return;
    l->file_offset = file_offset;
    l->err = err;
}

/* Adds bytes [from, to) of the file, which lie in the range of the transfer. */
static void add_range(struct transfer_sums *s, uint64_t from, uint64_t to)
{
    const struct gpunvme_ioc_rw *rw = &s->t->rw;

    if (from < to)
        transfer_sums_add(s, 0, from, rw->buffer_offset + (from - rw->file_offset), to - from,
                          NULL);
}

/*
 * Verifies the next *moved bytes, which have been read, except those that
 * `parts` has verified. `parts` may be NULL. After an error *moved ends before
 * it.
 */
static int buffer_transfer_gpu_verify(struct transfer *t, const struct transfer_parts *parts,
                                      uint64_t *moved)
{
    uint64_t offset = t->rw.file_offset + t->done, end = offset + *moved;
    uint64_t first = parts ? parts->first * LAY_BLOCK_SIZE : offset;
    uint64_t next = parts ? parts->next * LAY_BLOCK_SIZE : offset;
    struct lost lost = {0};

    if (next >= end && first <= offset)
        return 0;
    struct transfer_sums *s = transfer_sums_new(t);
    if (!s) {
        *moved = 0;
        return -ENOMEM;
    }
    s->lost = note_lost;
    s->ctx = &lost;
    add_range(s, offset, min_u64(first, end));
    add_range(s, next > offset ? next : offset, end);
    transfer_sums_end(s);
    transfer_sums_free(s);
    if (lost.err)
        *moved = lost.file_offset - offset;
    return lost.err;
}

static struct transfer_parts *new_parts(struct transfer *t, uint64_t len)
{
    return t->daemon->stack.data_csum && len ? transfer_parts_new(t, len) : NULL;
}

int transfer_gpu_read(struct transfer *t, uint64_t len, uint64_t *moved)
{
    struct ffs_map map;
    bool stuck = false;

    *moved = 0;
    int err = ffs_map_read(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    struct transfer_parts *parts = new_parts(t, map.len);
    if (map.len)
        err = buffer_transfer_gpu_move(t, &map, parts, moved, &stuck);
    if (stuck)
        ffs_map_abandon(&map);
    else
        ffs_map_release(&map);
    if (*moved && parts)
        transfer_parts_read(parts, *moved);
    if (*moved && t->daemon->stack.data_csum) {
        int bad = buffer_transfer_gpu_verify(t, parts, moved);
        err = bad ? bad : err;
    }
    transfer_parts_free(parts);
    return err;
}

/*
 * Ends the map with `written` bytes, which are whole blocks. Blocks without
 * checksums get them by a scrub.
 */
static int end_write(struct ffs_map *map, uint64_t written, struct transfer_parts *parts)
{
    const uint32_t *sums = parts && written ? transfer_parts_written(parts, written) : NULL;

    return ffs_map_write_end_sums(map, written, sums);
}

/*
 * Only whole blocks become part of the file, since a new block contains stale
 * data after the last byte written.
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
    struct transfer_parts *parts = new_parts(t, len);
    err = buffer_transfer_gpu_move(t, &map, parts, &written, &stuck);
    if (stuck) {
        transfer_parts_free(parts);
        ffs_map_abandon(&map);
        return -EROFS;
    }
    written -= written % LAY_BLOCK_SIZE;
    int end = end_write(&map, written, parts);
    transfer_parts_free(parts);
    if (end)
        return end;
    *moved = written;
    return err;
}
