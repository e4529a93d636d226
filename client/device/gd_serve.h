/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A block of the service, which is one warp: it serves the reads of one thread of the host after
 * another. Every function is called by all lanes together; variables are the same for all lanes.
 *
 * Most reads are one command, which the host has made. The warp keeps its queue between reads for
 * at most GD_HOLD_NS, and only in leases that have GD_HOLD_LEAST queues for each block, so that
 * other readers find one. It keeps nothing of files: each command carries the state word of its
 * extents' lease. The leases are checked at most GD_CHECK_NS before the doorbell, as for all reads
 * (gd_lease.h).
 */
#ifndef CLIENT_DEVICE_GD_SERVE_H
#define CLIENT_DEVICE_GD_SERVE_H

#include "client/device/gd_lone.h"
#include "client/device/gd_service.h"
#include "client/device/gd_single.h"
#include "cuda/gq_serve.h"

/*
 * The longest time that the warp keeps a queue for which other readers may
 * wait. The next queue often belongs to another thread of a controller in
 * software, which sleeps by then, so one read waits for that thread.
 */
#define GD_HOLD_NS    10000000u
#define GD_HOLD_LEAST 4u

struct gd_serve {
    struct gq_server server;
    const struct gd_service_launch *launch;
    bool holds;        /* the reader owns its queue */
    uint64_t taken_ns; /* when the queue was taken */
    struct gd_reader *reader;
    struct gpunvme_device_file *file; /* the reader's: queues, and leases of the last command */
};

/* Stores the end of the read for the host. */
GQ_FN void gd_serve_answer(const struct gd_serve *t, int err)
{
    const struct gq_server *w = &t->server;
    uint64_t *to = &w->launch->memory->slots[w->slot].answer;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_store_own_result((int64_t *)to, (int64_t)gd_answer(w->number, err));
    }
}

/*
 * Releases the queue. Lane 0 has passed a fence since the last store to the
 * queue, before the doorbell or after a copy.
 */
GQ_FN void gd_serve_give(struct gd_serve *t)
{
    if (t->holds)
        gd_give_fenced(t->reader);
    t->holds = false;
}

/*
 * Takes a queue and its position. The previous queue is tried last: a waiting reader has the time
 * of one failed try, a trip over the bus, to take it.
 */
GQ_FN int gd_serve_take(struct gd_serve *t)
{
    struct gd_reader *w = t->reader;
    int err = gd_take_from(w, w->queue + 1);

    t->holds = !err;
    t->taken_ns = t->server.now_ns;
    w->in_flight = 0;
    w->outcome = GQ_OUT_RUNNING;
    return err;
}

#define GD_WORD_OF(member)      (offsetof(union gd_request, member) / sizeof(uint32_t))
#define GD_WORD(t, member)      gq_serve_word(&(t)->server, GD_WORD_OF(member))
#define GD_TWO_WORDS(t, member) gq_serve_pair(&(t)->server, GD_WORD_OF(member))

/*
 * Returns the command of the item. The data pointer of a staged command is the
 * staging of the queue.
 */
GQ_FN struct gq_cmd gd_serve_command(const struct gd_serve *t, uint32_t staged)
{
    const struct gd_set *set = &t->file->set;
    uint64_t at = set->staging.iova + gd_staging_of(set, t->reader->queue);
    struct gq_cmd cmd = {.slba = GD_TWO_WORDS(t, command.slba),
                         .prp1 = GD_TWO_WORDS(t, command.prp1),
                         .prp2 = GD_TWO_WORDS(t, command.prp2),
                         .nlb = GD_WORD(t, command.nlb)};

    if (GD_WORD(t, command.kind) == GD_COMPARED)
        cmd.prp2 = 0;
    if (staged) {
        cmd.prp1 = at;
        cmd.prp2 = staged > NVME_PAGE_SIZE ? at + NVME_PAGE_SIZE : 0;
    }
    return cmd;
}

/* Returns true if the block at dst matches the checksum at the address `sum`. */
GQ_FN bool gd_serve_matches(const struct gd_serve *t, uint64_t dst, uint64_t sum)
{
    const struct gq_summer summer = {
        .group = t->reader->group,
        .sums = {.words = (const uint32_t *)sum, .table = t->launch->sum_table}};

    return gq_find_bad_block(summer, 0, GQ_SUM_BLOCK, dst) == GQ_NO_BAD_BLOCK;
}

/*
 * Sends the command of the item and waits for its end; the warp has a queue.
 * Returns 0, -errno, or GQ_MISMATCH, after which the host reads the block by
 * the general path.
 */
GQ_FN int gd_serve_drive(struct gd_serve *t)
{
    struct gd_reader *w = t->reader;
    struct gq_run run = gd_run(t->file, 1, 1);
    uint32_t staged = GD_WORD(t, command.staged);
    uint64_t dst = GD_TWO_WORDS(t, command.dst);
    struct gq_cmd cmd = gd_serve_command(t, staged);
    int err;

    run.leave[1] = NULL; /* a host that no longer waits may have closed the file */
    err = gd_command(w, &run, &cmd, dst, staged);
    if (!err && GD_WORD(t, command.kind) == GD_COMPARED &&
        !gd_serve_matches(t, dst, GD_TWO_WORDS(t, command.prp2)))
        err = GQ_MISMATCH;
    return err;
}

/* It is called instead of inlined, because most reads are one command. */
GQ_CALLED_FN int64_t gd_serve_pread(const struct gpunvme_device_file *file, uint64_t dst,
                                    uint64_t len, uint64_t offset)
{
    return gd_shared_pread_warp(file, dst, len, offset);
}

/*
 * Serves a read of several commands through shared queues. The warp first returns its own queue,
 * for which the read might wait. Lane 0's fence orders what all lanes have stored before the
 * answer.
 */
GQ_FN void gd_serve_several(struct gd_serve *t)
{
    const struct gq_server *w = &t->server;
    const struct gpunvme_device_file *file =
        (const struct gpunvme_device_file *)GD_TWO_WORDS(t, read.file);

    gd_serve_give(t);
    int64_t got = gd_serve_pread(file, GD_TWO_WORDS(t, read.addr), GD_TWO_WORDS(t, read.len),
                                 GD_TWO_WORDS(t, read.offset));
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_fence_results();
    }
    gd_serve_answer(t, got < 0 ? (int)got : 0);
    gq_serve_touch(&t->server);
}

/* Serves a read of one command. The answer comes before the queue is returned. */
GQ_FN void gd_serve_one(struct gd_serve *t)
{
    const struct gd_set *set = &t->file->set;
    int err = 0;

    t->file->lease = (const uint32_t *)GD_TWO_WORDS(t, command.lease);
    t->file->checked_ns = (uint64_t *)GD_TWO_WORDS(t, command.checked_ns);
    if (!t->holds)
        err = gd_serve_take(t);
    if (!err)
        err = gd_serve_drive(t);
    gd_serve_answer(t, err);
    gq_serve_touch(&t->server);
    if (err || t->reader->in_flight || set->n_queues < GD_HOLD_LEAST * t->launch->service.slots ||
        t->server.now_ns - t->taken_ns > GD_HOLD_NS)
        gd_serve_give(t);
}

/*
 * Serves the slot until it is time to leave. `number` is that of the last read of the slot that was
 * taken, and began_ns the time of gq_service_begin(). Returns the number of the last read. The warp
 * has no queue then.
 */
GQ_FN uint32_t gd_serve(const struct gd_service_launch *l, struct gq_service_stay *stay,
                        uint32_t slot, uint64_t began_ns, uint32_t number)
{
    struct gpunvme_device_file file = {.set = l->set};
    struct gd_reader reader = {.group = gq_whole_group(), .file = &file, .queue = slot};
    struct gd_serve self = {.server = {.group = reader.group,
                                       .launch = &l->service,
                                       .stay = stay,
                                       .slot = slot,
                                       .number = number,
                                       .began_ns = began_ns},
                            .launch = l,
                            .reader = &reader,
                            .file = &file};

    while (gq_serve_take(&self.server)) {
        if (GD_WORD(&self, read.kind) == GD_READ)
            gd_serve_several(&self);
        else
            gd_serve_one(&self);
    }
    gd_serve_give(&self);
    return self.server.number;
}

#endif
