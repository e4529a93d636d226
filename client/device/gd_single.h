/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the fast path: reads of one command. Such a read has whole LBAs of one extent, or
 * whole blocks if data has checksums, and a destination that is a multiple of 4. gd_read() sends
 * every other read through the general path (gd_read.h), and also a read whose data does not match.
 * Every function is called by all lanes of the group together, with the same arguments.
 *
 * Its steps:
 *
 *   gd_load_table, gd_load_extents   under way while the queue is taken
 *   gd_take                          the queue and its position
 *   gd_find_buffer, gd_make_single   the command, from the loaded words
 *   gd_command                       submission and completion, by lane 0 alone, and the copy
 *   gd_give_fenced                   the queue to its next owner
 *
 * The service (gd_serve.h) executes commands that the host has made by gd_command(), too.
 */
#ifndef CLIENT_DEVICE_GD_SINGLE_H
#define CLIENT_DEVICE_GD_SINGLE_H

#include "client/device/gd_read.h"

/* The first extents of the file, one a lane. */
struct gd_extents {
    GQ_LANE_MEMBER(struct gq_file_extent, entry);
};

GQ_FN void gd_load_extents(const struct gd_reader *w, struct gd_extents *x)
{
    const struct gq_file_map *map = &w->file->map;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(x->entry).offset = UINT64_MAX;
        GQ_AT(x->entry).lba = GQ_LBA_ZERO;
        if (lane < map->count) {
            GQ_AT(x->entry).offset = gd_load64(&map->extents[lane].offset);
            GQ_AT(x->entry).lba = gd_load64(&map->extents[lane].lba);
        }
    }
}

/* Finds the extent of cur->offset, which is before the file's end. Loads nothing if x has all. */
GQ_FN void gd_find_extent(const struct gd_reader *w, const struct gd_extents *x,
                          struct gq_cursor *cur)
{
    const struct gq_file_map *map = &w->file->map;
    uint32_t n;
    GQ_LANE_VAR(uint32_t, before);
    GQ_LANE_VAR(uint64_t, offset);
    GQ_LANE_VAR(uint64_t, lba);

    if (map->count > w->group.lanes) {
        gq_find_extent(map, cur);
        return;
    }
    GQ_FOR_LANES(lane)
    {
        GQ_AT(offset) = GQ_AT(x->entry).offset;
        GQ_AT(lba) = GQ_AT(x->entry).lba;
        GQ_AT(before) = GQ_AT(offset) <= cur->offset;
    }
    n = gq_count_ones(GQ_BALLOT(before)); /* the first is at 0 */
    cur->from = GQ_FROM64(offset, n - 1);
    cur->lba = GQ_FROM64(lba, n - 1);
    cur->to = n < map->count ? GQ_FROM64(offset, n) : map->end;
}

/*
 * Makes the command of a read, whose arguments are those of gd_read(). Its data
 * pointer is in the buffer, or in the first lane's part of the queue's staging.
 * Returns false if one command does not suffice, and the read takes the general
 * path.
 */
GQ_FN bool gd_make_single(const struct gd_reader *w, const struct gd_buffer *b,
                          const struct gd_extents *x, struct gq_read read, struct gq_cmd *cmd)
{
    const struct gpunvme_device_file *f = w->file;
    const struct gd_set *set = &f->set;
    bool staged = GD_STAGES(b);
    struct gq_cursor cur = {.offset = read.file_offset};

    if (read.len > (staged ? set->lane_bytes : set->max_command))
        return false;
    gd_find_extent(w, x, &cur);
    return gq_make_single(&f->map, staged ? &set->staging : &b->target, &cur,
                          staged ? gd_staging_of(set, w->queue) : b->target.head + read.at,
                          read.len, cmd);
}

/*
 * Copies the data of the staged command from staging to dst. Lane 0 then passes a fence for the
 * system, which orders the stores of all lanes, and the loads of staging, before its next store.
 */
GQ_FN void gd_copy_single(const struct gd_reader *w, uint64_t dst, uint32_t len)
{
    const struct gd_set *set = &w->file->set;
    uint64_t src = set->staging.base + gd_staging_of(set, w->queue);

    GQ_FOR_LANES(lane)
    {
        gq_copy_4k(dst, src, len, lane, w->group.lanes);
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_fence_results();
    }
}

/* Polls until the command has ended or is lost. Returns 0 or -errno. */
GQ_FN int gd_await(struct gd_reader *w, struct gq_single *s)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            while (gq_single_poll(s) == GQ_OUT_RUNNING)
                gd_idle();
        }
    }
    w->outcome = GQ_SAME32(s->outcome);
    w->in_flight = w->outcome != GQ_OUT_DONE;
    w->position = s->at;
    return w->outcome == GQ_OUT_DONE && !GQ_SAME32(s->status) ? 0 : gd_run_error(w);
}

/*
 * Submits the command on the group's queue, waits for its end, and copies its
 * data to dst if it has `staged` bytes in the queue's staging. Returns 0 or
 * -errno; -ESTALE if the leases have ended. The load of their last check
 * overlaps the stores of the entry.
 */
GQ_FN int gd_command(struct gd_reader *w, const struct gq_run *run, const struct gq_cmd *cmd,
                     uint64_t dst, uint32_t staged)
{
    struct gq_single s = {.run = run, .port = &w->port, .at = w->position};
    GQ_LANE_VAR(uint32_t, stale);
    int err;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(w->file->checked_ns);

            gq_single_start(&s);
            gq_single_store(&s, cmd);
            GQ_AT(stale) = gd_lease_ended(w->file, s.start_ns, checked);
            if (!GQ_AT(stale))
                gq_single_ring_sq(&s);
        }
    }
    w->position.cq_db_pending = 0;
    if (GQ_FROM32(stale, 0))
        return -ESTALE;
    err = gd_await(w, &s);
    if (!err && staged)
        gd_copy_single(w, dst, staged);
    return err;
}

/*
 * Called after gd_command(). Lane 0 has passed its fence there, and has stored
 * nothing to the queue since.
 */
GQ_FN void gd_give_fenced(const struct gd_reader *w)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock_fenced(&w->file->set.locks[w->queue], gd_left(w));
    }
}

/*
 * Returns true if the file has no checksums, or the read consists of whole
 * blocks.
 */
GQ_FN bool gd_has_whole_blocks(const struct gd_reader *w, struct gq_read read)
{
    return !w->file->sums.words || (read.file_offset | read.len) % GQ_SUM_BLOCK == 0;
}

/* Called after gd_command(), which has also copied staged blocks to the buffer. */
GQ_FN bool gd_single_matches(const struct gd_reader *w, const struct gd_buffer *b,
                             struct gq_read read)
{
    const struct gq_summer s = {.group = w->group, .sums = w->file->sums};

    return !s.sums.words ||
           gq_find_bad_block(s, read.file_offset, read.len, b->addr + read.at) == GQ_NO_BAD_BLOCK;
}

/*
 * Copies the ring position from lane 0, which alone has it after a single
 * command, to all lanes, which drive the queue next.
 */
GQ_FN void gd_share_position(struct gd_reader *w)
{
    const struct gq_position own = w->position;

    w->position = (struct gq_position){.entry = GQ_SAME32(own.entry),
                                       .phase = GQ_SAME32(own.phase),
                                       .cq_db_pending = GQ_SAME32(own.cq_db_pending)};
}

/*
 * Called after gd_take(). Reads part `rank` of `groups` parts of one read,
 * which ends before the file does, to byte `at` of the buffer, and unlocks the
 * queue. x was loaded before gd_take().
 */
GQ_FN int gd_read(struct gd_reader *w, const struct gd_buffer *b, const struct gd_extents *x,
                  struct gq_read read, uint32_t rank, uint32_t groups)
{
    struct gq_cmd cmd;
    int err;

    if (groups == 1 && gd_has_whole_blocks(w, read) && gd_make_single(w, b, x, read, &cmd)) {
        const struct gq_run run = gd_run(w->file, 1, 1);

        err = gd_command(w, &run, &cmd, b->addr + read.at, GD_STAGES(b) ? (uint32_t)read.len : 0);
        if (err || w->defers || gd_single_matches(w, b, read)) {
            gd_give_fenced(w);
            return err;
        }
        w->again = true;
        gd_share_position(w);
    }
    err = gd_read_part(w, b, read, rank, groups);
    gd_give(w);
    return err;
}

#endif
