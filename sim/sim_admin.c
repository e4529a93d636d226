/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes admin commands. All threads are paused while one runs. BASE chapter
 * 5.
 */
#include <errno.h>
#include <nvme/types.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_admin.h"

#define SIM_AGAIN 0xfffeu /* not a status: the command stays queued */
#define SIM_HELD  0xfffdu /* the command completes later or never */
#define CQ_IEN    2u      /* of CDW11: the CQ has interrupts */

static unsigned char *ring_memory(struct admin *a, uint32_t size, size_t entry)
{
    if (a->sqe->prp1 & (NVME_PAGE_SIZE - 1))
        return NULL;
    return sim_host_at(a->th, a->sqe->prp1, size * entry);
}

/* Makes the checks common to both kinds of queues. */
static uint16_t check_create(struct admin *a, uint32_t id, uint32_t size, bool exists)
{
    if (!id || id > a->s->granted || exists)
        return NVME_ERR_QID_INVALID;
    if (size < 2 || size > a->s->cfg.max_depth)
        return NVME_ERR_QUEUE_SIZE;
    if (!(a->sqe->cdw11 & 1)) /* CAP.CQR: rings must be contiguous */
        return NVME_ERR_INVALID_FIELD;
    return NVME_OK;
}

/* Sets the range of doorbells that threads poll. */
static void note_top_queue(struct sim *s)
{
    unsigned top = s->cfg.io_queues;

    while (top > 0 && !s->sqs[top].ring && !s->cqs[top].ring)
        top--;
    atomic_store(&s->top_queue, top);
}

/* CDW11 of Create I/O CQ: IEN is bit 1, and IV is 0 without it. */
static uint16_t admin_check_vector(const struct admin *a)
{
    uint32_t vector = a->sqe->cdw11 >> 16;

    if (a->sqe->cdw11 & 0xfffcu)
        return NVME_ERR_INVALID_FIELD;
    if (a->sqe->cdw11 & CQ_IEN)
        return vector < a->s->cfg.vectors ? NVME_OK : SIM_ERR_INVALID_VECTOR;
    return vector ? SIM_ERR_INVALID_VECTOR : NVME_OK;
}

static uint16_t admin_create_cq(struct admin *a)
{
    uint32_t id = a->sqe->cdw10 & 0xffff, size = (a->sqe->cdw10 >> 16) + 1;
    bool known = id <= a->s->cfg.io_queues, exists = known && a->s->cqs[id].ring;

    if (known && a->s->cqs[id].kept)
        return NVME_ERR_QID_INVALID;
    uint16_t st = check_create(a, id, size, exists);

    if (st == NVME_OK)
        st = admin_check_vector(a);
    if (st == NVME_OK && (atomic_load(&a->s->cc) >> NVME_CC_IOCQES_SHIFT & 0xf) != 4)
        st = NVME_ERR_QUEUE_SIZE;
    unsigned char *ring = st == NVME_OK ? ring_memory(a, size, sizeof(struct nvme_cqe)) : NULL;
    if (st == NVME_OK && !ring)
        st = NVME_ERR_INVALID_FIELD;
    if (st != NVME_OK)
        return sim_admin_flagged(a, SIM_EV_BAD_QUEUE_CREATE, st);
    struct sim_cq *cq = &a->s->cqs[id];
    sim_doorbells_reset(a->s, (uint16_t)id, true);
    cq->ring = ring;
    cq->iova = a->sqe->prp1;
    cq->size = size;
    cq->head = cq->tail = cq->seen = 0;
    cq->phase = 1;
    cq->users = 0;
    cq->interrupts = a->sqe->cdw11 & CQ_IEN ? &a->s->interrupts : NULL;
    cq->vector = (uint16_t)(a->sqe->cdw11 >> 16);
    note_top_queue(a->s);
    return NVME_OK;
}

/* Assigns a queue to a thread, that of its CQ: a CQ must have one writer. */
static void admin_adopt(struct sim *s, struct sim_sq *sq)
{
    struct sim_thread *th = &s->threads[sq->cq->id % s->n_threads];

    th->sqs[th->n_sqs++] = sq;
    atomic_store(&s->owner[2 * sq->id], (uint8_t)th->index);
    atomic_store(&s->owner[2 * sq->cq->id + 1], (uint8_t)th->index);
}

static uint16_t admin_create_sq(struct admin *a)
{
    uint32_t id = a->sqe->cdw10 & 0xffff, size = (a->sqe->cdw10 >> 16) + 1;
    uint32_t cqid = a->sqe->cdw11 >> 16;
    bool known = id <= a->s->cfg.io_queues, exists = known && a->s->sqs[id].ring;

    if (known && a->s->sqs[id].kept)
        return NVME_ERR_QID_INVALID;
    uint16_t st = check_create(a, id, size, exists);

    if (st == NVME_OK && (!cqid || cqid > a->s->granted || !a->s->cqs[cqid].ring))
        st = NVME_ERR_CQ_INVALID;
    if (st == NVME_OK && ((a->sqe->cdw11 & 0xfff8u) || a->sqe->cdw12 >> 16))
        st = NVME_ERR_INVALID_FIELD;
    if (st == NVME_OK && (atomic_load(&a->s->cc) >> NVME_CC_IOSQES_SHIFT & 0xf) != 6)
        st = NVME_ERR_QUEUE_SIZE;
    unsigned char *ring = st == NVME_OK ? ring_memory(a, size, sizeof(struct nvme_sqe)) : NULL;
    if (st == NVME_OK && !ring)
        st = NVME_ERR_INVALID_FIELD;
    if (st != NVME_OK)
        return sim_admin_flagged(a, SIM_EV_BAD_QUEUE_CREATE, st);
    struct sim_sq *sq = &a->s->sqs[id];
    sim_doorbells_reset(a->s, (uint16_t)id, false);
    memset(sq->cids, 0, 65536 / 8);
    sq->ring = ring;
    sq->iova = a->sqe->prp1;
    sq->cq = &a->s->cqs[cqid];
    sq->cq->users++;
    sq->size = size;
    sq->head = sq->tail = sq->seen = sq->reported = sq->last = 0;
    atomic_store_explicit(&sq->submitted, 0, memory_order_relaxed);
    sq->deleting = false;
    atomic_store(&sq->lent, false);
    admin_adopt(a->s, sq);
    note_top_queue(a->s);
    return NVME_OK;
}

static void disown(struct sim *s, struct sim_sq *sq)
{
    struct sim_thread *th = &s->threads[sim_owner(s, sq->id, false)];
    unsigned i = 0;

    while (th->sqs[i] != sq)
        i++;
    th->sqs[i] = th->sqs[--th->n_sqs];
}

/* Ends entries that were not fetched in the same way as fetched ones. */
static void abort_unfetched(struct sim *s, struct sim_sq *sq)
{
    struct sim_thread *th = &s->threads[sim_owner(s, sq->id, false)];

    sim_sq_peek(th, sq);
    while (sq->head != sq->tail && sim_cq_has_room(sq->cq)) {
        struct nvme_sqe sqe;
        sim_fetch(th, sq, &sqe);
        sim_post(sq, sqe.cid, NVME_ERR_SQ_DELETED, 0);
    }
}

static uint16_t delete_sq(struct admin *a)
{
    uint32_t id = a->sqe->cdw10 & 0xffff;
    struct sim *s = a->s;

    if (id && id <= s->cfg.io_queues && s->sqs[id].kept) {
        s->sqs[id].kept = false;
        return NVME_OK;
    }
    if (!id || id > s->cfg.io_queues || !s->sqs[id].ring)
        return sim_admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QID_INVALID);
    struct sim_sq *sq = &s->sqs[id];
    sq->deleting = true;
    if (sim_queue_moving(s, sq)) { /* copies cannot be aborted, so the deletion waits for them */
        if (!s->delete_deadline)
            s->delete_deadline = now_ns() + SIM_DRAIN_MS * 1000000ull;
        if (now_ns() < s->delete_deadline)
            return SIM_AGAIN;
        atomic_store(&s->halted, true);
        return NVME_ERR_INTERNAL;
    }
    s->delete_deadline = 0;
    sim_abort_queue(s, sq, NVME_ERR_SQ_DELETED);
    abort_unfetched(s, sq);
    disown(s, sq);
    sq->cq->users--;
    sq->ring = NULL;
    sim_doorbells_reset(s, sq->id, false);
    note_top_queue(s);
    return NVME_OK;
}

static uint16_t delete_cq(struct admin *a)
{
    uint32_t id = a->sqe->cdw10 & 0xffff;
    struct sim *s = a->s;

    if (id && id <= s->cfg.io_queues && s->cqs[id].kept) {
        s->cqs[id].kept = false;
        return NVME_OK;
    }
    if (!id || id > s->cfg.io_queues || !s->cqs[id].ring)
        return sim_admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QID_INVALID);
    if (s->cqs[id].users)
        return sim_admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QUEUE_DELETION);
    s->cqs[id].ring = NULL;
    sim_doorbells_reset(s, (uint16_t)id, true);
    note_top_queue(s);
    return NVME_OK;
}

/* Returns the number of Abort commands in flight, including this one. */
static unsigned aborts_outstanding(struct admin *a)
{
    const struct sim_sq *sq = &a->s->sqs[0];
    unsigned n = 1;

    for (uint32_t i = sq->head; i != sq->tail; i = (i + 1) % sq->size)
        n += sq->ring[i * sizeof(struct nvme_sqe)] == NVME_ADMIN_ABORT; /* byte 0: opcode */
    for (uint32_t i = 0; a->th->free_commands < SIM_COMMANDS && i < SIM_COMMANDS; i++) {
        const struct sim_cmd *cmd = &a->th->commands[i];
        n += cmd->state != SIM_CMD_FREE && cmd->sq == sq && cmd->sqe.opcode == NVME_ADMIN_ABORT;
    }
    return n;
}

static uint16_t admin_abort_command(struct admin *a)
{
    if (aborts_outstanding(a) > SIM_ABORT_LIMIT)
        return sim_admin_flagged(a, SIM_EV_ABORT_LIMIT, NVME_ERR_ABORT_LIMIT);
    uint32_t sqid = a->sqe->cdw10 & 0xffff, cid = a->sqe->cdw10 >> 16;
    bool found = !a->s->cfg.no_abort && sqid <= a->s->cfg.io_queues && a->s->sqs[sqid].ring &&
                 sim_abort(a->s, (uint16_t)sqid, (uint16_t)cid, NVME_ERR_ABORT_REQUESTED);

    a->result = !found; /* bit 0: not aborted */
    return NVME_OK;
}

/*
 * Completes a request with the event of a changed namespace, at most once until
 * the list is read.
 */
static void tell_change(struct sim *s)
{
    struct sim_sq *sq = &s->sqs[0];

    if (!s->changed || s->change_told || !s->aers || !sim_cq_has_room(sq->cq) ||
        !(sim_events_wanted(s) & NVME_EVENT_NS_CHANGED))
        return;
    s->change_told = true;
    sim_post(sq, s->aer_cids[--s->aers], NVME_OK,
             NVME_LOG_CHANGED_NS << 16 | NVME_AER_NS_CHANGED | NVME_AER_TYPE_NOTICE);
}

/* Reports one event of reservations. The next one is reported after the log was read. */
static void admin_tell_reservation(struct sim *s)
{
    struct sim_sq *sq = &s->sqs[0];
    struct sim_reservations *r = &s->reservations;

    if (!r->preempted || r->notified || !s->aers || !sim_cq_has_room(sq->cq))
        return;
    r->notified = true;
    sim_post(sq, s->aer_cids[--s->aers], NVME_OK,
             NVME_LOG_RESERVATION << 16 | NVME_AER_RESERVATION | NVME_AER_TYPE_IO);
}

int sim_change_ns(struct sim *s, uint32_t nsid, bool replaced)
{
    struct sim_ns *ns = sim_ns_get(s, nsid);

    if (!ns)
        return -EINVAL;
    sim_pause(s);
    ns->identity += replaced;
    s->changed |= 1u << (nsid - 1);
    if (s->running && !sim_idle(s))
        tell_change(s);
    sim_resume(s);
    return 0;
}

static uint16_t async_event(struct admin *a)
{
    if (a->s->aers == SIM_AER_LIMIT)
        return SIM_ERR_AER_LIMIT;
    a->s->aer_cids[a->s->aers++] = a->sqe->cid;
    tell_change(a->s);
    admin_tell_reservation(a->s);
    return SIM_HELD;
}

static uint16_t admin_run(struct admin *a)
{
    const struct nvme_sqe *q = a->sqe;

    if (q->flags || q->cdw2 || q->cdw3 || q->mptr)
        return sim_admin_flagged(a, SIM_EV_RESERVED_FIELD, NVME_ERR_INVALID_FIELD);
    switch (q->opcode) {
    case NVME_ADMIN_IDENTIFY:
        return sim_identify(a);
    case NVME_ADMIN_CREATE_CQ:
        return admin_create_cq(a);
    case NVME_ADMIN_CREATE_SQ:
        return admin_create_sq(a);
    case NVME_ADMIN_DELETE_SQ:
        return delete_sq(a);
    case NVME_ADMIN_DELETE_CQ:
        return delete_cq(a);
    case NVME_ADMIN_SET_FEATURES:
    case NVME_ADMIN_GET_FEATURES:
        return sim_features(a);
    case NVME_ADMIN_ABORT:
        return admin_abort_command(a);
    case NVME_ADMIN_ASYNC_EVENT:
        return async_event(a);
    case NVME_ADMIN_GET_LOG_PAGE:
        return sim_get_log_page(a);
    default:
        return sim_admin_flagged(a, SIM_EV_BAD_OPCODE, NVME_ERR_INVALID_OPCODE);
    }
}

/* Flips one bit of Identify's data, drawn from the seed. */
static void admin_flip_bit(struct admin *a)
{
    uint64_t at = sim_random(&a->th->rng) % NVME_PAGE_SIZE;

    if (a->sqe->opcode != NVME_ADMIN_IDENTIFY)
        return;
    sim_flip(a->th, at, (unsigned char)(1u << (sim_random(&a->th->rng) % 8)));
}

static struct sim_cmd *admin_keep(struct admin *a)
{
    struct sim_cmd *cmd = sim_command_take(a->th, &a->s->sqs[0]);

    cmd->sqe = *a->sqe;
    return cmd;
}

static uint16_t hold_back(struct admin *a, uint64_t ns)
{
    struct sim_cmd *cmd = admin_keep(a);

    /* The heap contains only I/O commands; run_held() checks admin commands. */
    cmd->due = now_ns() + ns;
    if (cmd->due < a->s->admin_due)
        a->s->admin_due = cmd->due;
    return SIM_HELD;
}

static uint16_t run_faulty(struct admin *a, const struct sim_fault *f)
{
    uint16_t st = NVME_OK;

    switch (f->kind) {
    case SIM_FAULT_STATUS:
        return f->status;
    case SIM_FAULT_LOSE:
        admin_keep(a)->state = SIM_CMD_LOST;
        return SIM_HELD;
    case SIM_FAULT_REPEAT: /* for queues of I/O only */
    case SIM_FAULT_LATE:
        return hold_back(a, f->delay_ns);
    case SIM_FAULT_HANG:
        sim_hang(a->s, f->delay_ns);
        return hold_back(a, 0);
    case SIM_FAULT_FATAL:
        atomic_store(&a->s->halted, true);
        return SIM_HELD;
    case SIM_FAULT_REMOVE:
        atomic_store(&a->s->gone, true);
        return SIM_HELD;
    case SIM_FAULT_CORRUPT:
        st = admin_run(a);
        if (st == NVME_OK)
            admin_flip_bit(a);
        break;
    }
    return st;
}

static uint16_t arrive(struct admin *a)
{
    /* A deletion that waits for copies was matched the first time. */
    const struct sim_fault *f = a->s->n_faults && !a->s->delete_deadline
                                    ? sim_fault_match(a->s, &a->s->sqs[0], a->sqe)
                                    : NULL;

    return f ? run_faulty(a, f) : admin_run(a);
}

/* The record is freed first, since an Abort command may name itself. */
static void run_late(struct sim *s, struct sim_thread *th, struct sim_cmd *late)
{
    struct sim_cmd cmd = *late;
    struct admin a = {.s = s, .th = th, .sqe = &cmd.sqe};

    sim_command_free(th, late);
    uint16_t st = cmd.decided ? cmd.status : admin_run(&a);
    if (st == SIM_AGAIN)
        hold_back(&a, 0);
    else if (st != SIM_HELD)
        sim_post(cmd.sq, cmd.sqe.cid, st, a.result);
}

/* Runs the commands that LATE and HANG have delayed and that are now due. */
static bool run_held(struct sim *s, struct sim_thread *th)
{
    uint64_t now = now_ns();
    bool worked = false;

    if (s->admin_due > now)
        return false;
    s->admin_due = UINT64_MAX;
    for (uint32_t i = 0; i < SIM_COMMANDS; i++) {
        struct sim_cmd *cmd = &th->commands[i];

        if (cmd->state != SIM_CMD_HELD || cmd->sq != &s->sqs[0])
            continue;
        if (cmd->due <= now && sim_cq_has_room(cmd->sq->cq)) {
            run_late(s, th, cmd);
            worked = true;
        } else if (cmd->due < s->admin_due) {
            s->admin_due = cmd->due;
        }
    }
    return worked;
}

static bool run_all(struct sim *s, struct sim_thread *th)
{
    struct sim_sq *sq = &s->sqs[0];
    bool worked = false;

    sim_sq_peek(th, sq);
    while (sq->head != sq->tail && sim_cq_has_room(sq->cq) && th->free_commands && !sim_idle(s)) {
        struct nvme_sqe sqe;
        uint32_t head = sq->head;

        sim_fetch(th, sq, &sqe);
        struct admin a = {.s = s, .th = th, .sqe = &sqe};
        uint16_t st = arrive(&a);
        if (st == SIM_AGAIN) {
            sq->head = head;
            sq->cids[sqe.cid / 64] &= ~(1ull << (sqe.cid % 64));
            break;
        }
        worked = true;
        if (st != SIM_HELD)
            sim_post(sq, sqe.cid, st, a.result);
    }
    return worked;
}

/* Admin commands use spans of their own: a blocked command keeps its. */
static void swap_spans(struct sim *s, struct sim_thread *th, unsigned n)
{
    struct sim_span *t = th->spans;

    th->spans = s->admin_spans;
    s->admin_spans = t;
    th->n_spans = n;
}

/* Runs the commands in the admin queue. Returns true if one was taken. */
bool sim_admin_run(struct sim *s)
{
    struct sim_thread *th = &s->threads[0];
    unsigned n = th->n_spans;

    if (!atomic_load(&s->running) || sim_idle(s) || now_ns() < s->ready_at)
        return false;
    swap_spans(s, th, 0);
    sim_reserve_look(s);
    admin_tell_reservation(s);
    bool worked = run_held(s, th);
    worked |= run_all(s, th);
    swap_spans(s, th, n);
    return worked;
}
