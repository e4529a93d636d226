/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the work of one lane for reads (gq_reads_protocol.h). The lane
 * takes a read, cuts it into commands and stores errors. It prepares one
 * command ahead.
 *
 * Unless noted otherwise, every function is called by one lane inside a region.
 */
#ifndef CUDA_QUEUE_GQ_READS_CUT_H
#define CUDA_QUEUE_GQ_READS_CUT_H

#include <errno.h>

#include "cuda/queue/gq_copy_warps.h"
#include "cuda/queue/gq_dealing.h"
#include "cuda/queue/gq_prefetch.h"
#include "cuda/queue/gq_protocol.h"
#include "cuda/queue/gq_prp.h"
#include "cuda/queue/gq_reads.h"

/* Maximum zeros that a lane writes in a round, so that rounds are short. */
#define GQ_ZEROS_A_ROUND 32768u

enum gq_lane_state {
    GQ_LANE_FREE,    /* prepares a command next */
    GQ_LANE_FILLING, /* a copy warp fills its staging for a write */
    GQ_LANE_READY,   /* has a command to post */
    GQ_LANE_WAITING  /* waits for its staged command and, if a read, its copy */
};

/*
 * Describes a prepared command and, if it is staged, the destination of its
 * bytes.
 */
struct gq_ready {
    struct gq_cmd cmd;
    uint64_t dst, src;
    uint32_t staged; /* bytes; 0: not staged */
    uint32_t zeros;  /* bytes of zeros to write to dst instead of a command */
    uint32_t cid;    /* CID if it is posted next */
};

/* A worker for reads. */
struct gq_reader {
    struct gq_worker w;
    const struct gq_reads *reads;
    struct gq_prefetch *prefetch; /* ring of the prefetch warp; NULL: the lanes load the list */
    uint32_t prefetched;          /* groups taken from the ring */
    struct gq_copy_jobs *copies;  /* jobs of the copy warps; NULL: the lanes copy */
    struct gq_portion portion;    /* the rest is not loaded; unused with a prefetch warp */
    bool is_dry;                  /* no portion is left */
    uint32_t rest;                /* result of reads that no group takes: GQ_READ_LOST or _OVER */
    uint32_t held_first;          /* lane i holds number held_first + i of the list */
    uint32_t held_end;            /* end of the held reads */
    uint32_t next;                /* the first held read that is not assigned to a lane */
    uint32_t ahead_first;         /* first of the reads being loaded */
    uint32_t coming;              /* number of reads being loaded */
    uint32_t lba_shift;           /* an LBA has 1 << lba_shift bytes */
    uint32_t grain;     /* commands are multiples of it: an LBA, or a block with a checksum */
    uint64_t bad_block; /* file offset of the last mismatching block, or GQ_NO_BAD_BLOCK */
    uint32_t ready_lanes, going; /* lanes with a prepared command; how many are posted next */
    uint32_t posted;             /* commands posted whose doorbell was not stored */
    bool holds_back;             /* the next round does not publish */
    GQ_LANE_MEMBER(struct gq_cursor, cur);
    GQ_LANE_MEMBER(struct gq_read, held);
    GQ_LANE_MEMBER(struct gq_read, ahead); /* reads being loaded */
    GQ_LANE_MEMBER(struct gq_ready, ready);
    GQ_LANE_MEMBER(uint32_t, lane_state);
    GQ_LANE_MEMBER(uint64_t, staging);   /* staging of the lane, at the controller's address */
    GQ_LANE_MEMBER(uint32_t, bad);       /* lowest index of a failed read of this lane */
    GQ_LANE_MEMBER(uint32_t, status_of); /* lowest index of a read with a status */
    GQ_LANE_MEMBER(uint32_t, status);    /* the status of that read */
    GQ_LANE_MEMBER(uint64_t, bytes);     /* sum of the reads that this lane has begun */
};

/* Returns read or unit i as requested. */
GQ_FN struct gq_read gq_load_read(const struct gq_reads *reads, uint32_t i)
{
    struct gq_read read;
    uint64_t start, end;

    if (reads->desc) {
        const struct gq_read_desc *one = &reads->desc[i];

        return (struct gq_read){one->file_offset, one->at, one->len};
    }
    read = reads->whole;
    start = gq_unit_start(reads, i);
    end = gq_unit_start(reads, i + 1);
    read.file_offset += start;
    read.at += start;
    read.len = (end < read.len ? end : read.len) - start;
    return read;
}

#ifdef __CUDACC__
/*
 * Called by all lanes. Takes the next neighbours, one into `ahead` of each
 * lane, if they have arrived.
 */
GQ_FN void gq_take_prefetched(struct gq_reader *r)
{
    bool is_over = gq_prefetch_is_over(r->prefetch);
    struct gq_span span;

    if (!gq_prefetch_has(r->prefetch, r->prefetched)) {
        r->is_dry = is_over;
        return;
    }
    span = r->prefetch->spans[r->prefetched % GQ_PREFETCH_GROUPS];
    if (r->w.group.rank < span.n)
        r->ahead = gq_prefetch_read(r->prefetch, r->prefetched, r->w.group.rank);
    gq_prefetch_took(r->prefetch, ++r->prefetched);
    r->ahead_first = span.first;
    r->coming = span.n;
}
#endif

/* Returns true if the read is inside the target and not before the map. */
GQ_FN bool gq_read_is_valid(const struct gq_reads *reads, const struct gq_read *read)
{
    uint64_t room = reads->target.len;

    if (reads->desc && read->len > INT32_MAX)
        return false;
    return read->at <= room && read->len <= room - read->at &&
           (reads->map.count == 0 || read->file_offset >= reads->map.extents[0].offset);
}

/*
 * Returns the error, by the run's outcome, of reads that it did not reach or
 * has lost.
 */
GQ_FN int gq_lost_error(uint32_t outcome)
{
    if (outcome == GQ_OUT_LEFT)
        return -ESTALE;
    if (outcome == GQ_OUT_CANCELLED)
        return -ECANCELED;
    return outcome == GQ_OUT_TIMED_OUT ? -ETIMEDOUT : -EIO;
}

/* Returns the error stored for read `index` instead of GQ_READ_LOST and the like. */
GQ_FN int gq_read_desc_error(const struct gq_reader *r, uint32_t index, uint32_t result)
{
    if (result == GQ_READ_INVALID)
        return r->reads->desc[index].len > INT32_MAX ? -EINVAL : -EFAULT;
    if (result == GQ_READ_LEFT)
        return -EAGAIN;
    if (result == GQ_READ_OVER)
        return -E2BIG;
    if (result == GQ_READ_MISMATCH)
        return GQ_MISMATCH;
    return result == GQ_READ_LOST ? gq_lost_error(r->w.outcome) : -EIO;
}

GQ_FN void gq_fail_read(struct gq_reader *r, uint32_t lane, uint32_t index, uint32_t result)
{
    if (r->reads->desc)
        r->reads->desc[index].result = gq_read_desc_error(r, index, result);
    else if (r->w.run->results)
        r->w.run->results[index] = result;
    if (index < GQ_AT(r->bad))
        GQ_AT(r->bad) = index;
}

/* Like gq_fail_read(), for the status of a command. */
GQ_FN void gq_refuse_read(struct gq_reader *r, uint32_t lane, uint32_t index, uint32_t status)
{
    gq_fail_read(r, lane, index, GQ_ENDED | status);
    if (index < GQ_AT(r->status_of)) {
        GQ_AT(r->status_of) = index;
        GQ_AT(r->status) = status;
    }
}

/* Finds the extent of the next byte. */
GQ_FN void gq_find_extent(const struct gq_file_map *map, struct gq_cursor *cur)
{
    uint32_t low = 0, n = map->count;

    if (cur->offset >= cur->from && cur->offset < cur->to)
        return;
    while (n > 1) {
        uint32_t half = n / 2;

        if (map->extents[low + half].offset <= cur->offset)
            low += half;
        n -= half;
    }
    cur->from = map->extents[low].offset;
    cur->lba = map->extents[low].lba;
    cur->to = low + 1 < map->count ? map->extents[low + 1].offset : map->end;
}

/*
 * Makes a command for whole grains of the next n bytes, which have at least
 * one. Returns its bytes.
 */
GQ_FN uint64_t gq_make_direct(const struct gq_reader *r, uint64_t at, uint64_t n,
                              struct gq_cmd *cmd)
{
    const struct gq_target *t = &r->reads->target;

    n = n < r->reads->max_command ? n : r->reads->max_command;
    n &= ~(uint64_t)(r->grain - 1);
    n = gq_prp_clip(at, n, r->grain);
    cmd->prp1 = t->iova + at;
    cmd->prp2 = gq_prp2(t->iova, t->prps_iova, at, n);
    cmd->nlb = (uint32_t)(n >> r->lba_shift) - 1;
    return n;
}

/* Returns the number of lanes that take reads; a group may have fewer. */
GQ_FN uint32_t gq_reading_lanes(const struct gq_reads *reads)
{
    return reads->lanes ? reads->lanes : GQ_STAGING_LANES;
}

/*
 * Sets up the lane's copy for its copy warp, which makes it after the command
 * of a read, and at once for a write.
 */
GQ_FN void gq_set_up_copy(struct gq_reader *r, uint32_t lane, bool is_write)
{
    struct gq_copy_job *job = &r->copies->job[lane];

    job->dst = is_write ? GQ_AT(r->ready).src : GQ_AT(r->ready).dst;
    job->src = is_write ? GQ_AT(r->ready).dst : GQ_AT(r->ready).src;
    job->len = GQ_AT(r->ready).staged;
    if (is_write)
        gq_release_block(&job->state, GQ_COPY_POSTED);
}

/*
 * Called when the lane has prepared a staged command. The staging of a write is
 * filled before the command is ready.
 */
GQ_FN void gq_prepare_copy(struct gq_reader *r, uint32_t lane)
{
    const struct gq_ready *ready = &GQ_AT(r->ready);
    bool is_write = r->w.run->opcode == NVME_IO_WRITE;

    if (r->copies) {
        gq_set_up_copy(r, lane, is_write);
        GQ_AT(r->lane_state) = is_write ? GQ_LANE_FILLING : GQ_LANE_READY;
        return;
    }
    if (is_write)
        gq_copy_bytes(ready->src, ready->dst, ready->staged, 0, 1);
    GQ_AT(r->lane_state) = GQ_LANE_READY;
}

/*
 * Prepares a command into the lane's staging: grains around the next n bytes,
 * of which the first is byte `lead` of its grain. Returns how many of these
 * bytes it reads.
 */
GQ_FN uint64_t gq_make_staged(struct gq_reader *r, uint32_t lane, uint64_t n, uint32_t lead)
{
    const struct gq_target *t = &r->reads->staging;
    struct gq_ready *ready = &GQ_AT(r->ready);
    uint32_t room = r->reads->lane_staging - lead;
    uint32_t bytes = n < room ? (uint32_t)n : room;
    uint32_t cover = (lead + bytes + r->grain - 1) & ~(r->grain - 1);

    ready->cmd.prp1 = t->iova + GQ_AT(r->staging);
    ready->cmd.prp2 = gq_prp2(t->iova, t->prps_iova, GQ_AT(r->staging), cover);
    ready->cmd.nlb = (cover >> r->lba_shift) - 1;
    ready->src = t->base + GQ_AT(r->staging) + lead;
    ready->staged = bytes;
    return bytes;
}

/*
 * Returns true if whole grains of the next n bytes, of which the first is byte
 * `lead` of its grain, are read or written without staging. A read that ends
 * within a grain is staged as a whole if the lane has room: one command instead
 * of two.
 */
GQ_FN bool gq_goes_direct(const struct gq_reader *r, const struct gq_cursor *cur, uint64_t n,
                          uint32_t lead)
{
    return !r->reads->staged && lead == 0 && n >= r->grain && cur->at % 4 == 0 &&
           ((n & (r->grain - 1)) == 0 || n > r->reads->lane_staging);
}

/* Prepares the lane's next command, or zeros. cur.left is not 0. */
GQ_FN void gq_make_ready(struct gq_reader *r, uint32_t lane)
{
    const struct gq_reads *reads = r->reads;
    struct gq_cursor *cur = &GQ_AT(r->cur);
    struct gq_ready *ready = &GQ_AT(r->ready);
    uint32_t lead;
    uint64_t n;

    gq_find_extent(&reads->map, cur);
    n = cur->left < cur->to - cur->offset ? cur->left : cur->to - cur->offset;
    lead = (uint32_t)(cur->offset - cur->from) & (r->grain - 1);
    ready->cmd.slba = cur->lba + ((cur->offset - cur->from - lead) >> r->lba_shift);
    ready->dst = reads->target.base + cur->at;
    ready->staged = 0;
    if (cur->lba == GQ_LBA_ZERO) {
        n = n < GQ_ZEROS_A_ROUND ? n : GQ_ZEROS_A_ROUND;
        ready->zeros = (uint32_t)n;
    } else if (gq_goes_direct(r, cur, n, lead)) {
        n = gq_make_direct(r, cur->at, n, &ready->cmd);
        GQ_AT(r->lane_state) = GQ_LANE_READY;
    } else {
        n = gq_make_staged(r, lane, n, lead);
        gq_prepare_copy(r, lane);
    }
    cur->offset += n;
    cur->at += n;
    cur->left -= n;
}

/* Returns the file offset of the first extent. */
GQ_FN uint64_t gq_map_start(const struct gq_file_map *map)
{
    return map->count ? map->extents[0].offset : 0;
}

/*
 * Returns true if a read is left to the host, because it is invalid, takes
 * fewer commands on another path, or is outside this part of the map.
 */
GQ_FN bool gq_is_for_host(const struct gq_reads *reads, const struct gq_read *read)
{
    uint64_t end = reads->map.end, len = gq_read_bytes(&reads->map, read->file_offset, read->len);

    if (read->file_offset > INT64_MAX - read->len)
        return true;
    if (read->file_offset < gq_map_start(&reads->map))
        return true;
    if (reads->goes_on && (read->file_offset > end || read->len > end - read->file_offset))
        return true;
    return len > reads->odd_most && (read->file_offset - reads->target.head - read->at) % 4;
}

/* Handles a read that is not begun. */
GQ_FN void gq_leave_read(struct gq_reader *r, uint32_t lane, uint32_t index, uint32_t result)
{
    if (!r->reads->is_part)
        gq_fail_read(r, lane, index, result);
    else if (index < GQ_AT(r->bad))
        GQ_AT(r->bad) = index;
}

/* Called by all lanes: reads [first, end) of the list are not begun. */
GQ_FN void gq_leave_span(struct gq_reader *r, uint32_t first, uint32_t end, uint32_t result)
{
    struct gq_worker *w = &r->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t i = first; i < end; i += w->group.lanes) {
            if (i + lane < end)
                gq_leave_read(r, lane, i + lane, result);
        }
    }
}

/*
 * Called by all lanes after gq_prefetch_stop(): leaves the reads that the
 * prefetch warp has taken.
 */
GQ_FN void gq_leave_prefetched(struct gq_reader *r, uint32_t result)
{
    const struct gq_prefetch *p = r->prefetch;

    if (!p || r->is_dry)
        return;
    for (; r->prefetched != p->filled; r->prefetched++) {
        struct gq_span span = p->spans[r->prefetched % GQ_PREFETCH_GROUPS];

        gq_leave_span(r, span.first, span.first + span.n, result);
    }
    for (uint32_t i = 0; i < GQ_PREFETCH_LEFT; i++)
        gq_leave_span(r, p->left[i].first, p->left[i].first + p->left[i].n, result);
}

/*
 * Takes a copy of the read for the lane. Later stores to the list do not
 * matter, because the lanes have converged after the load. With desc the result
 * is stored now, unless the prefetch warp has stored it. Errors are stored
 * later, by lanes that have converged with this one since.
 */
GQ_FN void gq_take_read(struct gq_reader *r, uint32_t lane, const struct gq_read *read,
                        uint32_t index)
{
    const struct gq_reads *reads = r->reads;
    struct gq_cursor *cur = &GQ_AT(r->cur);

    cur->index = index;
    if (reads->again && reads->desc[index].result != GQ_MISMATCH)
        return;
    if (reads->most && gq_is_for_host(reads, read)) {
        gq_leave_read(r, lane, cur->index, GQ_READ_LEFT);
        return;
    }
    if (!gq_read_is_valid(reads, read)) {
        gq_fail_read(r, lane, cur->index, GQ_READ_INVALID);
        return;
    }
    cur->offset = read->file_offset;
    cur->at = reads->target.head + read->at;
    cur->left = gq_read_bytes(&reads->map, read->file_offset, read->len);
    GQ_AT(r->bytes) += cur->left;
    if (reads->desc && !(r->prefetch && gq_prefetch_answers(reads)))
        reads->desc[cur->index].result = (int32_t)cur->left;
}

#endif
