/* SPDX-License-Identifier: BSD-2-Clause */
/* Takes and gives back the queue that a device lends (gq_lent.h). */
#include "cuda/engine/gq_lent.h"

struct waiting {
    struct bd_leave leave;
    const struct gq_engine *e;
    uint64_t deadline_ns;
    const volatile uint32_t *cancel;
};

static bool lent_leaves(struct bd_leave *leave)
{
    const struct waiting *w = (const struct waiting *)leave;

    return __atomic_load_n(&w->e->exec->flags, __ATOMIC_RELAXED) & GQ_FLAG_LEAVE ||
           (w->cancel && __atomic_load_n(w->cancel, __ATOMIC_RELAXED)) ||
           (w->deadline_ns && now_ns() >= w->deadline_ns);
}

int gq_lent_take(struct gq_engine *e, uint64_t deadline_ns, const volatile uint32_t *cancel)
{
    struct waiting w = {
        .leave = {.now = lent_leaves}, .e = e, .deadline_ns = deadline_ns, .cancel = cancel};
    struct gq_queue *q = &e->queues[0];

    if (!e->opts.lender)
        return 0;
    int rc = bd_lend_take(e->opts.lender, &q->qp, &w.leave);
    if (rc < 0)
        return rc;
    if (rc) {
        q->state = (struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE};
        gq_doorbell_proxy_set(e->proxy, 0, 0, 0);
    }
    gq_doorbell_proxy_hold(e->proxy, 0, false);
    return 0;
}

void gq_lent_give(struct gq_engine *e)
{
    struct gq_queue *q = &e->queues[0];

    if (!e->opts.lender)
        return;
    bool end = q->state.in_flight || q->state.outcome == GQ_OUT_BROKEN;
    gq_doorbell_proxy_hold(e->proxy, 0, true);
    if (bd_lend_give(e->opts.lender, &q->qp, end) || !end)
        return;
    /* The other members are the result of the run. */
    q->state.in_flight = 0;
    q->state.outcome = GQ_OUT_DONE;
}

int gq_lent_recover(struct gq_engine *e)
{
    struct gq_queue *q = &e->queues[0];
    int err = nvme_ctrlr_reset(e->ctrlr, q->qp.epoch);

    if (!err)
        q->state = (struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE};
    return err;
}
