/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the registers in BAR0 below the doorbells. BASE section 3.1. */
#include <nvme/types.h>
#include <string.h>

#include "sim/sim_internal.h"

#define CRMS_SHIFT 59 /* CAP.CRMS.CRWMS: ready means that the media is ready */
#define CC_FIXED_WHILE_ENABLED \
    ((7u << NVME_CC_CSS_SHIFT) | (0xfu << NVME_CC_MPS_SHIFT) | (7u << NVME_CC_AMS_SHIFT))

/* CAP.TO and CRTO.CRWMT have units of 500 ms; there is a margin for a loaded machine. */
static uint64_t regs_timeout(const struct sim *s)
{
    return s->cfg.ready_ms / 500 + 4;
}

static uint64_t regs_capabilities(const struct sim *s)
{
    uint64_t to = regs_timeout(s);
    uint64_t sets = 1; /* CSS: NVM */
    uint64_t ready_with_media = 1;

    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        sets |= s->cfg.ns[i].zoned ? NVME_CAP_CSS_SEVERAL : 0;

    return (uint64_t)(s->cfg.max_depth - 1) | 1u << 16 | (to > 255 ? 255 : to) << 24 |
           (uint64_t)s->cfg.doorbell_stride << 32 | sets << 37 | ready_with_media << CRMS_SHIFT;
}

static uint32_t ready(struct sim *s)
{
    bool enabled = atomic_load(&s->cc) & NVME_CC_ENABLE;

    if (s->stuck)
        return s->stuck_rdy;
    /* After a disable CSTS.RDY stays 1 until the last copy has ended. */
    if (enabled ? now_ns() >= s->ready_at && s->running : !sim_drained(s))
        return NVME_CSTS_READY;
    return 0;
}

static uint32_t status(struct sim *s)
{
    return s->shst | ready(s) | (atomic_load(&s->halted) ? NVME_CSTS_FATAL : 0);
}

static uint64_t read_reg(struct sim *s, uint32_t offset)
{
    switch (offset) {
    case NVME_REG_CAP:
        return regs_capabilities(s);
    case NVME_REG_VS:
        return SIM_VERSION;
    case NVME_REG_CRTO:
        return regs_timeout(s);
    case NVME_REG_CC:
        return atomic_load(&s->cc);
    case NVME_REG_CSTS:
        return status(s);
    case NVME_REG_AQA:
        return s->aqa;
    case NVME_REG_ASQ:
        return s->asq;
    case NVME_REG_ACQ:
        return s->acq;
    default:
        return 0;
    }
}

static uint64_t locked_read(struct nvme_transport *t, uint32_t offset)
{
    struct sim *s = sim_of(t);

    if (atomic_load(&s->gone))
        return UINT64_MAX;
    pthread_mutex_lock(&s->reg_lock);
    uint64_t v = read_reg(s, offset);
    pthread_mutex_unlock(&s->reg_lock);
    return v;
}

static uint32_t regs_read_half(struct nvme_transport *t, uint32_t offset)
{
    bool high =
        offset == NVME_REG_CAP + 4 || offset == NVME_REG_ASQ + 4 || offset == NVME_REG_ACQ + 4;

    return high ? (uint32_t)(locked_read(t, offset - 4) >> 32) : (uint32_t)locked_read(t, offset);
}

uint64_t sim_reg_read(struct nvme_transport *t, uint32_t offset, unsigned bytes)
{
    uint64_t low = regs_read_half(t, offset);

    return bytes == 8 ? low | (uint64_t)regs_read_half(t, offset + 4) << 32 : low;
}

static bool enable_values_valid(struct sim *s, uint32_t cc)
{
    uint32_t sqes = cc >> NVME_CC_IOSQES_SHIFT & 0xf, cqes = cc >> NVME_CC_IOCQES_SHIFT & 0xf;
    uint32_t asqs = (s->aqa & 0xfff) + 1, acqs = (s->aqa >> 16 & 0xfff) + 1;

    if ((cc & CC_FIXED_WHILE_ENABLED) || (sqes != 6 && sqes != 0) || (cqes != 4 && cqes != 0))
        return false;
    if (asqs < 2 || acqs < 2 || ((s->asq | s->acq) & (NVME_PAGE_SIZE - 1)))
        return false;
    struct sim_thread *th = &s->threads[0];
    s->sqs[0].ring = sim_host_at(th, s->asq, asqs * sizeof(struct nvme_sqe));
    s->cqs[0].ring = sim_host_at(th, s->acq, acqs * sizeof(struct nvme_cqe));
    return s->sqs[0].ring && s->cqs[0].ring;
}

static void admin_queue_start(struct sim *s)
{
    struct sim_sq *sq = &s->sqs[0];
    struct sim_cq *cq = &s->cqs[0];

    sim_doorbells_reset(s, 0, false);
    sim_doorbells_reset(s, 0, true);
    sq->size = (s->aqa & 0xfff) + 1;
    sq->iova = s->asq;
    sq->cq = cq;
    sq->head = sq->tail = sq->seen = sq->reported = sq->last = 0;
    sq->deleting = false;
    cq->size = (s->aqa >> 16 & 0xfff) + 1;
    cq->iova = s->acq;
    cq->head = cq->tail = cq->seen = 0;
    cq->phase = 1;
    cq->users = 1;
    cq->interrupts = s->cfg.vectors ? &s->interrupts : NULL; /* always, with vector 0 */
    cq->vector = 0;
}

static void regs_enable(struct sim *s, uint32_t cc)
{
    sim_pause(s);
    sim_controller_stop(s);
    if (enable_values_valid(s, cc)) {
        admin_queue_start(s);
        s->ready_at = now_ns() + s->cfg.ready_ms * 1000000ull;
        s->running = true;
    } else {
        s->sqs[0].ring = NULL;
        s->cqs[0].ring = NULL;
        atomic_store(&s->halted, true);
        sim_flag(s, SIM_EV_BAD_ENABLE, "CC %#x, AQA %#x, ASQ %#llx, ACQ %#llx", cc, s->aqa,
                 (unsigned long long)s->asq, (unsigned long long)s->acq);
    }
    sim_resume(s);
}

void sim_disable(struct sim *s)
{
    sim_pause(s);
    sim_controller_stop(s);
    sim_resume(s);
    s->shst = 0;
}

void sim_keep_queues(struct sim *s, bool keep)
{
    for (unsigned q = 1; q <= s->cfg.io_queues; q++) {
        s->sqs[q].kept = keep && (s->sqs[q].kept || s->sqs[q].ring);
        s->cqs[q].kept = keep && (s->cqs[q].kept || s->cqs[q].ring);
    }
}

static void regs_shut_down(struct sim *s)
{
    sim_flush_now(s);
    s->shst = NVME_CSTS_SHST_COMPLETE;
}

static void regs_write_cc(struct sim *s, uint32_t cc)
{
    uint32_t old = atomic_load(&s->cc);

    if ((old & cc & NVME_CC_ENABLE) && ((old ^ cc) & CC_FIXED_WHILE_ENABLED))
        sim_flag(s, SIM_EV_REG_MISUSE, "CC %#x to %#x while enabled", old, cc);
    atomic_store(&s->cc, cc);
    if (s->stuck)
        return;
    if ((cc & ~old) & NVME_CC_ENABLE) {
        regs_enable(s, cc);
    } else if ((old & ~cc) & NVME_CC_ENABLE) {
        sim_pause(s);
        sim_keep_queues(s, s->cfg.keeps_queues);
        sim_resume(s);
        sim_disable(s);
    }
    if ((cc & NVME_CC_SHN_BITS) && !(old & NVME_CC_SHN_BITS) && !sim_hung(s))
        regs_shut_down(s);
}

static void write_admin_reg(struct sim *s, uint32_t offset, uint64_t value, uint64_t mask)
{
    if (atomic_load(&s->cc) & NVME_CC_ENABLE) {
        sim_flag(s, SIM_EV_REG_MISUSE, "register %#x written while enabled", offset);
        return;
    }
    if (offset == NVME_REG_AQA)
        s->aqa = (uint32_t)value;
    else if (offset == NVME_REG_ASQ)
        s->asq = (s->asq & ~mask) | (value & mask);
    else
        s->acq = (s->acq & ~mask) | (value & mask);
}

static void write_reg32(struct sim *s, uint32_t offset, uint32_t value)
{
    const uint64_t low = UINT32_MAX, high = low << 32;

    switch (offset) {
    case NVME_REG_CC:
        regs_write_cc(s, value);
        break;
    case NVME_REG_AQA:
    case NVME_REG_ASQ:
    case NVME_REG_ACQ:
        write_admin_reg(s, offset, value, low);
        break;
    case NVME_REG_ASQ + 4:
    case NVME_REG_ACQ + 4:
        write_admin_reg(s, offset - 4, (uint64_t)value << 32, high);
        break;
    case NVME_REG_INTMS:
    case NVME_REG_INTMC:
        break; /* there are no interrupts to mask */
    default:
        sim_flag(s, SIM_EV_REG_MISUSE, "write of %#x to register %#x", value, offset);
    }
}

void sim_reg_write(struct nvme_transport *t, uint32_t offset, uint64_t value, unsigned bytes)
{
    struct sim *s = sim_of(t);

    if (atomic_load(&s->gone))
        return;
    pthread_mutex_lock(&s->reg_lock);
    if (bytes == 4)
        write_reg32(s, offset, (uint32_t)value);
    else if (offset == NVME_REG_ASQ || offset == NVME_REG_ACQ)
        write_admin_reg(s, offset, value, UINT64_MAX);
    else
        sim_flag(s, SIM_EV_REG_MISUSE, "64-bit write to register %#x", offset);
    pthread_mutex_unlock(&s->reg_lock);
    sim_wake_all(s);
}

static void queues_clear(struct sim *s)
{
    for (unsigned q = 0; q <= s->cfg.io_queues; q++) {
        struct sim_sq *sq = &s->sqs[q];

        memset(sq->cids, 0, 65536 / 8);
        sq->ring = NULL;
        s->cqs[q].ring = NULL;
        s->cqs[q].users = 0;
        sim_doorbells_reset(s, (uint16_t)q, false);
        sim_doorbells_reset(s, (uint16_t)q, true);
        atomic_store(&s->owner[2 * q], 0);
        atomic_store(&s->owner[2 * q + 1], 0);
    }
}

void sim_controller_stop(struct sim *s)
{
    for (unsigned i = 0; i < s->n_threads; i++) {
        sim_forget_all(&s->threads[i]);
        s->threads[i].n_sqs = 0;
    }
    queues_clear(s);
    s->running = false;
    atomic_store(&s->top_queue, 0);
    s->aers = 0;
    sim_features_reset(&s->features);
    sim_reserve_host_changed(s);
    s->change_told = false;
    s->wce = !s->cfg.no_volatile_cache;
    s->granted = s->cfg.io_queues;
    s->delete_deadline = 0;
    s->admin_due = UINT64_MAX;
    atomic_store(&s->halted, false);
    atomic_store(&s->hung_until, 0);
    atomic_store(&s->bandwidth_free_at, 0);
}

void sim_stick(struct sim *s)
{
    pthread_mutex_lock(&s->reg_lock);
    s->stuck_rdy = ready(s);
    s->stuck = true;
    pthread_mutex_unlock(&s->reg_lock);
}
