/* SPDX-License-Identifier: BSD-2-Clause */
/* Polls doorbells, fetches submission queue entries, and posts completions. */
#include <string.h>

#include "sim/sim_internal.h"

size_t sim_doorbell_word(const struct sim *s, unsigned qid, bool cq)
{
    return (size_t)(2 * qid + cq) << s->cfg.doorbell_stride;
}

void sim_doorbells_reset(struct sim *s, uint16_t qid, bool cq)
{
    size_t w = sim_doorbell_word(s, qid, cq);

    assert(w < s->doorbells_len / sizeof(uint32_t));
    atomic_store(&s->doorbells[w], 0);
    atomic_store(&s->seen[w], 0);
}

static void note_seen(struct sim_thread *th, uint16_t qid, bool cq, uint32_t value)
{
    size_t w = sim_doorbell_word(th->s, qid, cq);

    atomic_store_explicit(&th->s->seen[w], value, memory_order_relaxed);
    sim_count(&th->count.doorbells, 1);
}

/* Prefetches entries, which are in the cache of another core. */
static void prefetch_entries(const struct sim_sq *sq, uint32_t from)
{
    for (unsigned i = 0; i < 2 * SIM_BATCH && from != sq->tail; i++) {
        __builtin_prefetch(sq->ring + (size_t)from * sizeof(struct nvme_sqe));
        from = from + 1 == sq->size ? 0 : from + 1;
    }
}

static void tail_moved(struct sim_thread *th, struct sim_sq *sq, uint32_t tail)
{
    sq->seen = tail;
    note_seen(th, sq->id, false, tail);
    if (tail >= sq->size) {
        sim_flag(th->s, SIM_EV_DB_OUT_OF_RANGE, "SQ %u tail %u of %u", sq->id, tail, sq->size);
        return;
    }
    uint32_t used = sim_distance(sq->reported, sq->tail, sq->size);
    uint32_t added = sim_distance(sq->tail, tail, sq->size);
    if (used + added > sq->size - 1) {
        sim_flag(th->s, SIM_EV_SQ_OVERRUN, "SQ %u tail %u to %u, head %u", sq->id, sq->tail, tail,
                 sq->reported);
        return;
    }
    uint32_t from = sq->tail;
    sq->tail = tail;
    sim_count(&sq->submitted, added);
    prefetch_entries(sq, from);
}

uint64_t sim_submitted(struct nvme_transport *t, uint16_t qid)
{
    struct sim *s = sim_of(t);

    return atomic_load_explicit(&s->sqs[qid].submitted, memory_order_relaxed);
}

static void head_moved(struct sim_thread *th, struct sim_cq *cq, uint32_t head)
{
    cq->seen = head;
    note_seen(th, cq->id, true, head);
    if (head >= cq->size)
        sim_flag(th->s, SIM_EV_DB_OUT_OF_RANGE, "CQ %u head %u of %u", cq->id, head, cq->size);
    else if (sim_distance(cq->head, head, cq->size) > sim_distance(cq->head, cq->tail, cq->size))
        sim_flag(th->s, SIM_EV_CQ_HEAD_PAST_TAIL, "CQ %u head %u to %u, tail %u", cq->id, cq->head,
                 head, cq->tail);
    else
        cq->head = head;
}

void sim_sq_peek(struct sim_thread *th, struct sim_sq *sq)
{
    /* Acquire: SQEs are visible, and CQ entries read, before the doorbell. */
    uint32_t tail = atomic_load_explicit(sq->doorbell, memory_order_acquire);
    uint32_t head = atomic_load_explicit(sq->cq->doorbell, memory_order_acquire);

    if (tail != sq->seen)
        tail_moved(th, sq, tail);
    if (head != sq->cq->seen)
        head_moved(th, sq->cq, head);
}

bool sim_sq_has_new(struct sim_sq *sq)
{
    if (!sq->ring)
        return false;
    return sq->head != sq->tail ||
           atomic_load_explicit(sq->doorbell, memory_order_relaxed) != sq->seen ||
           atomic_load_explicit(sq->cq->doorbell, memory_order_relaxed) != sq->cq->seen;
}

static inline void mark_in_flight(struct sim_thread *th, const struct sim_sq *sq, uint32_t cid)
{
    uint64_t *word = &sq->cids[cid / 64], bit = 1ull << (cid % 64);

    if (*word & bit)
        sim_flag(th->s, SIM_EV_CID_REUSE, "SQ %u CID %u", sq->id, cid);
    *word |= bit;
}

/* Fetches the entry at head. Returns the next head. */
static SIM_HOT uint32_t fetch(struct sim_thread *th, const struct sim_sq *sq, uint32_t head,
                              struct nvme_sqe *sqe)
{
    memcpy(sqe, sq->ring + (size_t)head * sizeof(*sqe), sizeof(*sqe));
    mark_in_flight(th, sq, sqe->cid);
    return head + 1 == sq->size ? 0 : head + 1;
}

void sim_fetch(struct sim_thread *th, struct sim_sq *sq, struct nvme_sqe *sqe)
{
    assert(sq->head != sq->tail);
    sim_count(&th->count.commands, 1);
    sq->head = fetch(th, sq, sq->head, sqe);
}

static unsigned fetchable(const struct sim_thread *th, const struct sim_sq *sq)
{
    const struct sim_cq *cq = sq->cq;
    unsigned n = sim_distance(sq->head, sq->tail, sq->size);
    unsigned room = cq->size - 1 - sim_distance(cq->head, cq->tail, cq->size);

    n = n < room ? n : room;
    n = n < SIM_BATCH ? n : SIM_BATCH;
    return n < th->free_commands ? n : th->free_commands;
}

bool sim_sq_poll(struct sim_thread *th, struct sim_sq *sq)
{
    struct sim_cmd *batch[SIM_BATCH];

    if (sq->head == sq->tail || sq->deleting || th->blocked)
        return false;
    unsigned n = fetchable(th, sq);
    uint32_t head = sq->head;
    sim_count(&th->count.commands, n);
    /* The driver has submitted all of them, so all CIDs are in flight. */
    for (unsigned i = 0; i < n; i++) {
        batch[i] = sim_command_take(th, sq);
        head = fetch(th, sq, head, &batch[i]->sqe);
    }
    sq->head = head;
    sim_io_arrive(th, batch, n);
    return n > 0;
}

/* Checks doorbell words of no queue, a store to which is a mistake. */
void sim_sweep_doorbells(struct sim_thread *th, size_t from, size_t to, size_t step)
{
    struct sim *s = th->s;
    size_t stride = (size_t)1 << s->cfg.doorbell_stride;

    for (size_t w = from; w < to; w += step) {
        uint32_t v = atomic_load_explicit(&s->doorbells[w], memory_order_relaxed);
        if (v == atomic_load_explicit(&s->seen[w], memory_order_relaxed))
            continue;
        size_t q = w / stride / 2;
        bool cq = w / stride & 1, real = w % stride == 0 && q <= s->cfg.io_queues;
        if (real && (cq ? s->cqs[q].ring != NULL : s->sqs[q].ring != NULL))
            continue;
        atomic_store_explicit(&s->seen[w], v, memory_order_relaxed);
        sim_flag(s, SIM_EV_DB_INVALID_QUEUE, "value %u at offset %#zx", v, 0x1000 + w * 4);
    }
}

/* Posts what waits. A full CQ does not delay commands of another CQ. */
bool sim_cq_post_waiting(struct sim_thread *th)
{
    struct sim_list waiting = th->done;
    bool posted = false;

    th->done = (struct sim_list){SIM_NO_COMMAND, SIM_NO_COMMAND};
    for (uint32_t i = waiting.head; i != SIM_NO_COMMAND;) {
        struct sim_cmd *cmd = &th->commands[i];

        i = cmd->next;
        sim_sq_peek(th, cmd->sq);
        if (sim_cq_has_room(cmd->sq->cq)) {
            sim_complete(th, cmd, cmd->status);
            posted = true;
        } else {
            sim_finish(th, cmd, cmd->status);
        }
    }
    return posted;
}
