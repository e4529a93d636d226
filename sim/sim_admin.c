/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes admin commands. All threads are paused while one runs. BASE chapter
 * 5.
 */
#include <endian.h>
#include <errno.h>
#include <nvme/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_internal.h"

#define SIM_AGAIN 0xfffeu /* not a status: the command stays queued */
#define SIM_HELD  0xfffdu /* the command completes later or never */
#define CQ_IEN    2u      /* of CDW11: the CQ has interrupts */

struct admin {
    struct sim *s;
    struct sim_thread *th;
    const struct nvme_sqe *sqe;
    uint32_t result;
};

static uint16_t admin_flagged(struct admin *a, enum sim_event e, uint16_t status)
{
    const struct nvme_sqe *q = a->sqe;

    sim_flag(a->s, e, "admin opcode %#x, NSID %u, CDW10 %#x, CDW11 %#x", q->opcode, q->nsid,
             q->cdw10, q->cdw11);
    return status;
}

static uint16_t give_page(struct admin *a, const void *page)
{
    uint16_t st = sim_spans(a->th, a->sqe, NVME_PAGE_SIZE);
    const unsigned char *from = page;

    for (unsigned i = 0; st == NVME_OK && i < a->th->n_spans; i++) {
        struct sim_span *p = &a->th->spans[i];
        if (!p->host)
            return NVME_ERR_DATA_TRANSFER;
        memcpy(p->host, from, p->len);
        from += p->len;
    }
    return st;
}

static void put_text(char *field, size_t len, const char *text)
{
    memset(field, ' ', len); /* ASCII fields are padded with spaces: BASE 1.5 */
    memcpy(field, text, strlen(text));
}

static void identify_ctrl(const struct sim_config *cfg, struct nvme_id_ctrl *id)
{
    put_text(id->sn, sizeof(id->sn), "SIM0001");
    put_text(id->mn, sizeof(id->mn), "gpunvmefs simulated NVMe controller");
    put_text(id->fr, sizeof(id->fr), "1");
    id->mdts = cfg->no_mdts ? 0 : (__u8)__builtin_ctz(cfg->mdts / 4096);
    id->cntlid = htole16(1);
    id->ver = htole32(SIM_VERSION);
    id->cntrltype = NVME_CTRL_CNTRLTYPE_IO;
    id->acl = SIM_ABORT_LIMIT - 1;
    id->aerl = SIM_AER_LIMIT - 1;
    id->sqes = 0x66;
    id->cqes = 0x44;
    id->nn = htole32(cfg->namespaces);
    id->oncs = htole16(NVME_CTRL_ONCS_DSM | NVME_CTRL_ONCS_WRITE_ZEROES);
    /* VWC is present and a flush of all namespaces is supported. */
    id->vwc = cfg->no_volatile_cache ? 0 : NVME_CTRL_VWC_PRESENT | NVME_CTRL_VWC_FLUSH;
    id->oaes = htole32(NVME_EVENT_NS_CHANGED);
    id->sgls = htole32(cfg->no_sgl ? 0 : 1); /* no alignment or granularity required */
    snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2024-01.org.gpunvmefs:sim");
}

static void put_nguid(struct sim *s, uint32_t nsid, __u8 *nguid)
{
    memcpy(nguid, "gpunvmefs", 9);
    nguid[14] = (__u8)sim_ns_get(s, nsid)->identity;
    nguid[15] = (__u8)nsid;
}

static void identify_ns(struct sim *s, uint32_t nsid, struct nvme_id_ns *id)
{
    struct sim_ns *ns = sim_ns_get(s, nsid);

    (void)sim_tail_begin(ns, 0, ns->lbas); /* true: all LBAs */
    sim_media_refresh(ns);
    sim_tail_end(ns);
    id->nsze = id->ncap = id->nuse = htole64(ns->lbas);
    id->lbaf[0].ds = (__u8)ns->lba_shift;
    id->lbaf[0].ms = htole16(s->cfg.ns[nsid - 1].metadata);
    id->dlfeat = 1 | 1 << 3; /* deallocated LBAs read as zeros; DEAC in Write Zeroes */
    id->nsattr = ns->read_only ? 1 : 0;
    put_nguid(s, nsid, id->nguid);
}

static void identify_ns_desc(struct sim *s, uint32_t nsid, struct nvme_ns_id_desc *d)
{
    d->nidt = NVME_NIDT_NGUID;
    d->nidl = 16;
    put_nguid(s, nsid, d->nid);
    if (!s->cfg.ns[nsid - 1].zoned)
        return;
    d = (struct nvme_ns_id_desc *)(d->nid + d->nidl);
    d->nidt = NVME_NIDT_CSI;
    d->nidl = 1;
    d->nid[0] = NVME_CSI_ZNS;
}

static uint16_t admin_identify(struct admin *a)
{
    _Alignas(64) unsigned char page[NVME_PAGE_SIZE] = {0};
    uint32_t nsid = a->sqe->nsid, cns = a->sqe->cdw10 & 0xff;
    bool of_ns = cns == NVME_CNS_NS || cns == NVME_CNS_NS_DESCRIPTORS;

    if ((of_ns && !sim_ns_get(a->s, nsid)) ||
        (cns == NVME_CNS_ACTIVE_NS_LIST && nsid >= 0xfffffffeu))
        return admin_flagged(a, SIM_EV_BAD_NSID, NVME_ERR_INVALID_NS);
    switch (cns) {
    case NVME_CNS_CTRL:
        identify_ctrl(&a->s->cfg, (struct nvme_id_ctrl *)page);
        break;
    case NVME_CNS_NS:
        identify_ns(a->s, nsid, (struct nvme_id_ns *)page);
        break;
    case NVME_CNS_ACTIVE_NS_LIST:
        for (uint32_t n = nsid; n < a->s->cfg.namespaces; n++)
            ((__le32 *)page)[n - nsid] = htole32(n + 1);
        break;
    case NVME_CNS_NS_DESCRIPTORS:
        identify_ns_desc(a->s, nsid, (struct nvme_ns_id_desc *)page);
        break;
    default:
        return NVME_ERR_INVALID_FIELD;
    }
    return give_page(a, page);
}

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
        return admin_flagged(a, SIM_EV_BAD_QUEUE_CREATE, st);
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
        return admin_flagged(a, SIM_EV_BAD_QUEUE_CREATE, st);
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
        return admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QID_INVALID);
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
        return admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QID_INVALID);
    if (s->cqs[id].users)
        return admin_flagged(a, SIM_EV_BAD_QUEUE_DELETE, NVME_ERR_QUEUE_DELETION);
    s->cqs[id].ring = NULL;
    sim_doorbells_reset(s, (uint16_t)id, true);
    note_top_queue(s);
    return NVME_OK;
}

static bool any_io_queue(const struct sim *s)
{
    for (unsigned q = 1; q <= s->cfg.io_queues; q++)
        if (s->cqs[q].ring || s->cqs[q].kept)
            return true;
    return false;
}

static uint16_t set_queues(struct admin *a)
{
    uint32_t sqs = a->sqe->cdw11 & 0xffff, cqs = a->sqe->cdw11 >> 16;

    if (sqs == 0xffff || cqs == 0xffff)
        return NVME_ERR_INVALID_FIELD;
    if (any_io_queue(a->s))
        return NVME_ERR_SEQUENCE;
    uint32_t want = (sqs < cqs ? sqs : cqs) + 1;
    a->s->granted = want < a->s->cfg.io_queues ? want : a->s->cfg.io_queues;
    a->result = (a->s->granted - 1) | (a->s->granted - 1) << 16;
    return NVME_OK;
}

static uint16_t admin_set_features(struct admin *a)
{
    switch (a->sqe->cdw10 & 0xff) {
    case NVME_FEAT_NUM_QUEUES:
        return set_queues(a);
    case NVME_FEAT_VOLATILE_WRITE_CACHE:
        if (a->s->cfg.no_volatile_cache)
            return NVME_ERR_INVALID_FIELD;
        a->s->wce = a->sqe->cdw11 & 1;
        return a->s->wce ? NVME_OK : sim_flush_now(a->s);
    case NVME_FEAT_ASYNC_EVENTS:
        a->s->events_wanted = a->sqe->cdw11;
        return NVME_OK;
    default:
        return NVME_ERR_INVALID_FIELD;
    }
}

static uint16_t get_features(struct admin *a)
{
    switch (a->sqe->cdw10 & 0xff) {
    case NVME_FEAT_NUM_QUEUES:
        a->result = (a->s->granted - 1) | (a->s->granted - 1) << 16;
        return NVME_OK;
    case NVME_FEAT_VOLATILE_WRITE_CACHE:
        if (a->s->cfg.no_volatile_cache)
            return NVME_ERR_INVALID_FIELD;
        a->result = a->s->wce;
        return NVME_OK;
    case NVME_FEAT_ASYNC_EVENTS:
        a->result = a->s->events_wanted;
        return NVME_OK;
    default:
        return NVME_ERR_INVALID_FIELD;
    }
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
        return admin_flagged(a, SIM_EV_ABORT_LIMIT, NVME_ERR_ABORT_LIMIT);
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
        !(s->events_wanted & NVME_EVENT_NS_CHANGED))
        return;
    s->change_told = true;
    sim_post(sq, s->aer_cids[--s->aers], NVME_OK,
             NVME_LOG_CHANGED_NS << 16 | NVME_AER_NS_CHANGED | NVME_AER_TYPE_NOTICE);
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
    return SIM_HELD;
}

/* Fills the page of the Changed Namespace List, and ends the event. */
static uint16_t get_changed(struct admin *a)
{
    _Alignas(64) uint32_t ids[NVME_PAGE_SIZE / sizeof(uint32_t)] = {0};
    unsigned n = 0;

    for (unsigned i = 0; i < a->s->cfg.namespaces; i++) {
        if (a->s->changed & 1u << i)
            ids[n++] = i + 1;
    }
    uint16_t st = give_page(a, ids);
    if (st == NVME_OK) {
        a->s->changed = 0;
        a->s->change_told = false;
    }
    return st;
}

static uint16_t get_log_page(struct admin *a)
{
    uint32_t dwords = (a->sqe->cdw10 >> 16) + 1;

    if ((a->sqe->cdw10 & 0xff) != NVME_LOG_CHANGED_NS)
        return SIM_ERR_INVALID_LOG_PAGE;
    if (dwords != NVME_PAGE_SIZE / sizeof(uint32_t) || a->sqe->cdw11 || a->sqe->cdw12)
        return NVME_ERR_INVALID_FIELD;
    return get_changed(a);
}

static uint16_t admin_run(struct admin *a)
{
    const struct nvme_sqe *q = a->sqe;

    if (q->flags || q->cdw2 || q->cdw3 || q->mptr)
        return admin_flagged(a, SIM_EV_RESERVED_FIELD, NVME_ERR_INVALID_FIELD);
    switch (q->opcode) {
    case NVME_ADMIN_IDENTIFY:
        return admin_identify(a);
    case NVME_ADMIN_CREATE_CQ:
        return admin_create_cq(a);
    case NVME_ADMIN_CREATE_SQ:
        return admin_create_sq(a);
    case NVME_ADMIN_DELETE_SQ:
        return delete_sq(a);
    case NVME_ADMIN_DELETE_CQ:
        return delete_cq(a);
    case NVME_ADMIN_SET_FEATURES:
        return admin_set_features(a);
    case NVME_ADMIN_GET_FEATURES:
        return get_features(a);
    case NVME_ADMIN_ABORT:
        return admin_abort_command(a);
    case NVME_ADMIN_ASYNC_EVENT:
        return async_event(a);
    case NVME_ADMIN_GET_LOG_PAGE:
        return get_log_page(a);
    default:
        return admin_flagged(a, SIM_EV_BAD_OPCODE, NVME_ERR_INVALID_OPCODE);
    }
}

/* Flips one bit of Identify's data, drawn from the seed. */
static void admin_flip_bit(struct admin *a)
{
    uint64_t at = sim_random(&a->th->rng) % NVME_PAGE_SIZE;

    if (a->sqe->opcode != NVME_ADMIN_IDENTIFY)
        return;
    for (unsigned i = 0; i < a->th->n_spans; at -= a->th->spans[i++].len) {
        if (at < a->th->spans[i].len) {
            a->th->spans[i].host[at] ^= (unsigned char)(1u << (sim_random(&a->th->rng) % 8));
            return;
        }
    }
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
    bool worked = run_held(s, th);
    worked |= run_all(s, th);
    swap_spans(s, th, n);
    return worked;
}
