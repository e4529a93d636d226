/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Drives a leased queue that only one group uses. Every function is called by all lanes of the
 * group together.
 *
 * When a function has returned, the data is in memory and visible to loads of the group. One lane
 * has loaded each command's completion with acquire at system scope (gq_load_cqe), and the lanes
 * have converged afterwards. The acquire discards stale lines in the SM's cache. The convergence
 * extends the order to the other lanes. Ordinary loads are therefore enough; ld.volatile or
 * __ldcv() would add nothing. Threads outside the group see the data after they have synchronised
 * with the group, for example by __syncthreads() in a block. The fence before the doorbell waits
 * for earlier stores of the group to the same memory, so that these stores precede the read.
 */
#ifndef CLIENT_DEVICE_GD_READ_H
#define CLIENT_DEVICE_GD_READ_H

#include "client/device/gd_queue.h"

/*
 * Returns the bytes of staging of each of the GD_GROUP lanes of a queue, and of
 * a command: at most the bytes that a command can carry, and at least a page,
 * which every command can carry.
 */
GQ_FN uint32_t gd_lane_staging(const struct gd_set *s)
{
    uint32_t bytes = GD_QUEUE_STAGING(s->lane_bytes) / GD_GROUP;

    while (bytes > s->max_command && bytes > GD_STAGED_ENDS)
        bytes /= 2;
    return bytes;
}

GQ_FN struct gq_reads gd_reads(const struct gpunvme_device_file *f, const struct gd_buffer *b)
{
    return (struct gq_reads){
        .map = f->map,
        .sums = f->sums,
        .target = b->target,
        .staging = f->set.staging,
        .lane_staging = gd_lane_staging(&f->set),
        .queue_area = GD_QUEUE_STAGING(f->set.lane_bytes),
        .staged = GD_STAGES(b),
        .whole = {0, 0, 0},
        .unit = gd_unit(f->set.max_command),
        .max_command = f->set.max_command,
    };
}

GQ_FN struct gq_run gd_run(const struct gpunvme_device_file *f, uint32_t n, uint32_t groups)
{
    return (struct gq_run){
        .results = NULL,
        .flags = NULL,
        .cancel = NULL,
        .leave = {f->set.lease, f->lease},
        .kick = NULL,
        .command_ns = f->set.command_ns,
        .budget_ns = 0,
        .n_cmds = n,
        .n_queues = groups,
        .group_shift = 0,
        .nsid = f->set.nsid,
        .opcode = NVME_IO_READ,
        .leave_value = GD_LEASE_REVOKED,
    };
}

/*
 * Called after gd_take(), which has checked both leases within GD_CHECK_NS. The
 * first check of the run, which loads two words of host memory, is therefore
 * delayed by GQ_FLAGS_NS.
 */
GQ_FN void gd_begin(const struct gd_reader *w, struct gq_reader *r, const struct gq_run *run,
                    const struct gq_reads *reads, const struct gq_port *port, uint32_t rank)
{
    struct gq_state *state = &w->file->set.queues[w->queue].state;

    gq_reads_begin(r, w->group, run, reads, port, state, rank, w->queue);
    r->copies = reads->staged && !reads->sums.words ? w->copies : NULL;
    r->prefetch = w->prefetch;
    r->w.flags_ns += GQ_FLAGS_NS;
    r->w.sq_tail = w->position.entry;
    r->w.cq_head = w->position.entry;
    r->w.phase = w->position.phase;
    r->w.cq_db_pending = w->position.cq_db_pending != 0;
}

/*
 * Called before gd_give(). Returns the lowest index of a read or unit of this
 * group that is not GQ_READ_OK, or GQ_NO_READ.
 */
GQ_FN uint32_t gd_end(struct gd_reader *w, struct gq_reader *r)
{
    w->is_last = gq_conclude_reads(r);
    w->in_flight = gq_in_flight(&r->w);
    w->outcome = r->w.outcome;
    w->bad_block = r->bad_block;
    w->position = (struct gd_position){.entry = r->w.cq_head, .phase = r->w.phase};
    gq_end(&r->w);
    return GQ_MIN32(r->bad);
}

/* Drives the queue until the work is done. Returns what gd_end() does. */
GQ_FN uint32_t gd_drive(struct gd_reader *w, const struct gq_run *run, const struct gq_reads *reads,
                        uint32_t rank)
{
    enum gq_round round = GQ_ROUND_BUSY;
    struct gq_reader r = {0};

    gd_begin(w, &r, run, reads, &w->port, rank);
    while (round != GQ_ROUND_ENDED) {
        if (round == GQ_ROUND_IDLE)
            gd_idle();
        round = gq_reads_round(&r);
    }
    return gd_end(w, &r);
}

/*
 * Compares the whole blocks of a read that has ended. Staged blocks were
 * compared before they were copied. Returns false if a block does not match,
 * and stores its number in w->bad_block.
 */
GQ_FN bool gd_matches(struct gd_reader *w, const struct gd_buffer *b, struct gq_read read)
{
    const struct gq_summer s = {.group = w->group, .sums = w->file->sums};
    uint64_t len = gq_read_bytes(&w->file->map, read.file_offset, read.len), bad;

    if (GD_STAGES(b))
        return true;
    bad = gq_find_bad_block(s, read.file_offset, len, b->addr + read.at);
    if (bad != GQ_NO_BAD_BLOCK)
        w->bad_block = bad;
    return bad == GQ_NO_BAD_BLOCK;
}

/*
 * Called after blocks did not match twice. Returns the error, and stores the
 * block for the host.
 */
GQ_FN int gd_mismatch_error(const struct gd_reader *w)
{
    int err = gd_refused_error(w);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && err == -EIO)
            gd_store64(w->file->bad_block, w->bad_block + 1);
    }
    return err;
}

#endif
