/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves queues for transfers, and quarantines them. Borrows and returns the
 * queue that a device lends (gq_lent.h).
 */
#include <errno.h>
#include <time.h>

#include "cuda/engine/gq_internal.h"
#include "cuda/engine/gq_lent.h"
#include "support/clock.h"

#define WAIT_STEP_NS 1000000u /* interval at which a waiting transfer checks its cancel flag */

static int free_workspace(const struct gq_engine *e)
{
    for (unsigned i = 0; i < e->n_workspaces; i++) {
        if (!e->workspaces[i].reserved)
            return (int)i;
    }
    return -1;
}

static unsigned count_queues(const struct gq_engine *e, enum gq_queue_use use)
{
    unsigned n = 0;

    for (unsigned i = 0; i < e->n_queues; i++)
        n += e->queues[i].use == use;
    return n;
}

/*
 * Returns the error if waiting is useless, because all queues are out of
 * service; else 0.
 */
static int lost(const struct gq_engine *e)
{
    if (e->dead)
        return -EIO;
    if (e->failed)
        return -ENODEV;
    return !e->stopped && count_queues(e, GQ_QUEUE_QUARANTINED) == e->n_queues ? -ENODEV : 0;
}

static void reservation_take(struct gq_engine *e, uint64_t want, unsigned workspace,
                             struct gq_reservation *out)
{
    /* A quarter of the queues stays free for small transfers. */
    unsigned limit = e->n_queues - e->n_queues / 4;

    out->workspace = workspace;
    out->n = 0;
    e->workspaces[workspace].reserved = true;
    e->driving++;
    for (unsigned i = 0; i < e->n_queues && out->n < limit && out->n < want; i++) {
        if (e->queues[i].use == GQ_QUEUE_FREE) {
            e->queues[i].use = GQ_QUEUE_RESERVED;
            out->queues[out->n++] = (uint16_t)i;
        }
    }
}

/* Called under e->lock. Returns 0, or the reason why waiting must end. */
static int wait_a_little(struct gq_engine *e, uint64_t deadline_ns, const volatile uint32_t *cancel)
{
    uint64_t now = now_ns(), until = now + WAIT_STEP_NS;
    int err = lost(e);

    if (err)
        return err;
    if (cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED))
        return -ECANCELED;
    if (now >= deadline_ns)
        return -ETIMEDOUT;
    cond_wait_until(&e->changed, &e->lock, until);
    return 0;
}

static uint64_t own_deadline(const struct gq_engine *e)
{
    return now_ns() + (uint64_t)e->opts.deadline_ms * NS_PER_MS;
}

static bool is_available(const struct gq_engine *e, int workspace)
{
    return !e->stopped && !e->failed && !e->dead && workspace >= 0 &&
           count_queues(e, GQ_QUEUE_FREE);
}

int gq_reservation_take(struct gq_engine *e, uint64_t want, uint64_t deadline_ns,
                        const volatile uint32_t *cancel, struct gq_reservation *out)
{
    uint64_t patience = own_deadline(e);
    int err = 0, workspace = -1;

    pthread_mutex_lock(&e->lock);
    while (!err) {
        workspace = free_workspace(e);
        if (is_available(e, workspace))
            break;
        if (e->stopped)
            patience = own_deadline(e);
        err = wait_a_little(e, deadline_ns ? deadline_ns : patience, cancel);
    }
    if (!err)
        reservation_take(e, want ? want : 1, (unsigned)workspace, out);
    pthread_mutex_unlock(&e->lock);
    return err;
}

static void quarantine(struct gq_queue *q, struct gq_buffer *b)
{
    q->use = GQ_QUEUE_QUARANTINED;
    q->holds = true;
    q->held_buffer = b;
    b->holds++;
}

bool gq_reservation_release(struct gq_engine *e, const struct gq_reservation *r,
                            struct gq_buffer *b)
{
    bool unsettled = false;

    pthread_mutex_lock(&e->lock);
    for (unsigned i = 0; i < r->n; i++) {
        struct gq_queue *q = &e->queues[r->queues[i]];

        if (q->state.in_flight || q->state.outcome == GQ_OUT_BROKEN) {
            quarantine(q, b);
            unsettled = true;
        } else {
            q->use = GQ_QUEUE_FREE;
        }
    }
    e->workspaces[r->workspace].reserved = false;
    e->driving--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return unsettled;
}

void gq_queue_settle(struct gq_queue *q)
{
    if (!q->holds)
        return;
    q->holds = false;
    if (q->held_buffer)
        q->held_buffer->holds--;
    q->held_buffer = NULL;
}

void gq_queue_renew(struct gq_queue *q)
{
    gq_queue_settle(q);
    q->state = (struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE};
    q->use = GQ_QUEUE_FREE;
}

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
    /* The other members of the state remain: they are the result of the run. */
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
