/* Who has which queue: leases, quarantine, and the way back into service. */
#include <errno.h>
#include <time.h>

#include "cuda/gq_internal.h"

#define NS_PER_SEC   1000000000u
#define WAIT_STEP_NS 1000000u /* how soon a waiting transfer notices its cancel flag */
#define FRESH_QUEUE  ((struct gq_state){.phase = 1, .outcome = GQ_OUT_DONE})

uint64_t gq_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static int free_slot(const struct gq_engine *e)
{
    for (unsigned i = 0; i < e->n_slots; i++) {
        if (!e->slots[i].leased && !e->slots[i].holds)
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

/* Will waiting help? Not when everything that could be given back is quarantined. */
static bool all_lost(const struct gq_engine *e)
{
    bool slots_lost = true;

    for (unsigned i = 0; i < e->n_slots; i++)
        slots_lost = slots_lost && !e->slots[i].leased && e->slots[i].holds;
    return e->failed || slots_lost || count_queues(e, GQ_QUEUE_QUARANTINED) == e->n_queues;
}

static void take(struct gq_engine *e, uint64_t want, unsigned slot, struct gq_lease *out)
{
    /* Small transfers find queues beside a large one. */
    unsigned limit = e->n_queues - e->n_queues / 4;

    out->slot = slot;
    out->n = 0;
    e->slots[slot].leased = true;
    for (unsigned i = 0; i < e->n_queues && out->n < limit && out->n < want; i++) {
        if (e->queues[i].use == GQ_QUEUE_FREE) {
            e->queues[i].use = GQ_QUEUE_LEASED;
            out->queues[out->n++] = (uint16_t)i;
        }
    }
}

/* Under e->lock. Returns 0 or why waiting must end. */
static int wait_a_little(struct gq_engine *e, uint64_t deadline_ns, const volatile uint32_t *cancel)
{
    uint64_t now = gq_now_ns(), until = now + WAIT_STEP_NS;
    struct timespec ts;

    if (all_lost(e))
        return -ENODEV;
    if (cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED))
        return -ECANCELED;
    if (now >= deadline_ns)
        return -ETIMEDOUT;
    ts = (struct timespec){.tv_sec = (time_t)(until / NS_PER_SEC),
                           .tv_nsec = (long)(until % NS_PER_SEC)};
    pthread_cond_timedwait(&e->changed, &e->lock, &ts);
    return 0;
}

int gq_lease_take(struct gq_engine *e, uint64_t want, uint64_t deadline_ns,
                  const volatile uint32_t *cancel, struct gq_lease *out)
{
    int err = 0, slot = -1;

    pthread_mutex_lock(&e->lock);
    while (!err) {
        slot = free_slot(e);
        if (!e->failed && slot >= 0 && count_queues(e, GQ_QUEUE_FREE))
            break;
        err = wait_a_little(e, deadline_ns, cancel);
    }
    if (!err)
        take(e, want ? want : 1, (unsigned)slot, out);
    pthread_mutex_unlock(&e->lock);
    return err;
}

static void quarantine(struct gq_engine *e, struct gq_queue *q, unsigned slot, struct gq_buffer *b)
{
    q->use = GQ_QUEUE_QUARANTINED;
    q->held_buffer = b;
    q->held_slot = slot;
    b->holds++;
    e->slots[slot].holds++;
}

bool gq_lease_give(struct gq_engine *e, const struct gq_lease *l, struct gq_buffer *b)
{
    bool unsettled = false;

    pthread_mutex_lock(&e->lock);
    for (unsigned i = 0; i < l->n; i++) {
        struct gq_queue *q = &e->queues[l->queues[i]];

        if (q->state.in_flight || q->state.outcome == GQ_OUT_BROKEN) {
            quarantine(e, q, l->slot, b);
            unsettled = true;
        } else {
            q->use = GQ_QUEUE_FREE;
        }
    }
    e->slots[l->slot].leased = false;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return unsettled;
}

static void back_in_service(struct gq_engine *e, struct gq_queue *q)
{
    q->use = GQ_QUEUE_FREE;
    q->state = FRESH_QUEUE;
    if (q->held_buffer)
        q->held_buffer->holds--;
    q->held_buffer = NULL;
    e->slots[q->held_slot].holds--;
}

/*
 * Deleting the submission queue ends its commands, be they lost or merely late (an Abort for each
 * would only ask for the same), so after recreate nothing of the old queue can move data.
 */
int gq_engine_recover(struct gq_engine *e)
{
    int first = 0;

    pthread_mutex_lock(&e->recover_lock);
    for (unsigned i = 0; i < e->n_queues; i++) {
        struct gq_queue *q = &e->queues[i];
        bool mine;
        int err;

        pthread_mutex_lock(&e->lock);
        mine = q->use == GQ_QUEUE_QUARANTINED;
        if (mine)
            q->use = GQ_QUEUE_RECOVERING;
        pthread_mutex_unlock(&e->lock);
        if (!mine)
            continue;
        /* A pair that could not be recreated once is gone, and cannot be tried again. */
        err = q->qp.sq ? nvme_qpair_recreate(e->ctrlr, &q->qp) : -EIO;
        pthread_mutex_lock(&e->lock);
        if (err)
            q->use = GQ_QUEUE_QUARANTINED;
        else
            back_in_service(e, q);
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
        first = first ? first : err;
    }
    pthread_mutex_unlock(&e->recover_lock);
    return first;
}
