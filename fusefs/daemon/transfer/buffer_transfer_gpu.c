/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The GPU path of READ and WRITE: extents of a file for the executor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/state/gpu_extents.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "fusefs/daemon/transfer/transfer_sums.h"
#include "layout/format.h"

/*
 * Ends the commands that a call of the engine left in flight. False: they cannot be ended. A
 * controller that has failed for good executes no commands, unless it could not be stopped.
 */
static bool settle(struct daemon *d)
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
    t->needs_recovery |= err == -ENODEV;
    return !result->unsettled || settle(t->daemon);
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

/* Verifies the next *moved bytes, which have been read. After an error *moved ends before it. */
static int verify(struct transfer *t, uint64_t *moved)
{
    uint64_t offset = t->rw.file_offset + t->done, at = t->rw.buffer_offset + t->done;
    struct lost lost = {0};
    struct transfer_sums *s = transfer_sums_new(t);

    if (!s) {
        *moved = 0;
        return -ENOMEM;
    }
    s->lost = note_lost;
    s->ctx = &lost;
    transfer_sums_add(s, 0, offset, at, *moved, NULL);
    transfer_sums_end(s);
    transfer_sums_free(s);
    if (lost.err)
        *moved = lost.file_offset - offset;
    return lost.err;
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
    if (*moved && t->daemon->stack.data_csum) {
        int bad = verify(t, moved);
        err = bad ? bad : err;
    }
    return err;
}

/*
 * The checksums of data that is about to be written; NULL without them, and
 * where they cannot be computed: the data then has none until it is scrubbed.
 */
static uint32_t *sums_before(struct transfer *t, uint64_t len)
{
    if (!t->daemon->stack.data_csum || len % LAY_BLOCK_SIZE ||
        (t->rw.file_offset + t->done) % LAY_BLOCK_SIZE)
        return NULL;
    return transfer_sums_of(t, t->rw.buffer_offset + t->done, len / LAY_BLOCK_SIZE);
}

/*
 * A block that the application has changed during the write gets no checksum:
 * its content on the drive is not known.
 */
static void forget_changed(struct transfer *t, uint32_t *before, uint64_t n)
{
    uint32_t *after = transfer_sums_of(t, t->rw.buffer_offset + t->done, n);

    for (uint64_t i = 0; i < n; i++) {
        if (!after || before[i] != after[i])
            before[i] = FFS_NO_SUM;
    }
    free(after);
}

/* Ends the map with `written` bytes, whole blocks. sums: of sums_before(). */
static int end_write(struct transfer *t, struct ffs_map *map, uint64_t written, uint32_t *sums)
{
    if (sums && written)
        forget_changed(t, sums, written / LAY_BLOCK_SIZE);
    return ffs_map_write_end_sums(map, written, sums);
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
    uint32_t *sums;

    *moved = 0;
    int err = ffs_map_write(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    sums = sums_before(t, len);
    err = move(t, &map, &written, &stuck);
    if (stuck) {
        free(sums);
        ffs_map_abandon(&map);
        return -EROFS;
    }
    written -= written % LAY_BLOCK_SIZE;
    int end = end_write(t, &map, written, sums);
    free(sums);
    if (end)
        return end;
    *moved = written;
    return err;
}
