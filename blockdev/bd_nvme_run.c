/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs a batch of transfers over one queue pair: cuts, posts, rings the
 * doorbell, polls.
 */
#include <errno.h>

#include "blockdev/bd_nvme.h"
#include "support/clock.h"
#include "support/wait.h"

#define SLEEPS_PER_CHECK 512u /* about 50 ms: a vfio-user register read takes milliseconds */
#define POLLS_PER_CHECK  64u

static bool nvme_run_idle(const struct bd_queue *q)
{
    return q->nfree == q->ntrackers;
}

static void nvme_run_fill(struct bd_queue *q, struct bd_batch *b)
{
    while (q->nfree > 0 && bd_cut(q, b, q->free[q->nfree - 1])) {
        q->nfree--;
        bd_post(q, &q->trackers[q->free[q->nfree]]);
    }
}

static void ring(struct bd_queue *q)
{
    if (q->rung)
        return;
    nvme_ring_doorbell(&q->ring);
    nvme_kick(nvme_ctrlr_transport(q->d->c), q->qp.qid);
    q->rung = true;
}

/* Slows down the retries of commands completed with "not yet". */
static void pause_if_early(struct bd_queue *q)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = NVME_PATIENCE_NS};

    if (q->early)
        nanosleep(&pause, NULL);
    q->early = false;
}

/*
 * Waits a little. Returns false if a command has expired or the controller is
 * not alive. The caller then polls once more, since completions may have
 * arrived if other work had the processor meanwhile.
 */
static bool wait_some(struct bd_queue *q, struct poll_wait *wait, unsigned *sleeps)
{
    if (!poll_wait_once(wait))
        return true;
    if (++*sleeps % SLEEPS_PER_CHECK == 0 && !nvme_ctrlr_alive(q->d->c))
        return false;
    return !bd_any_expired(q, now_ns());
}

/*
 * Checks for a lost command once in POLLS_PER_CHECK polls while other commands
 * complete.
 */
static bool has_expired(const struct bd_queue *q, unsigned *polls)
{
    return ++*polls % POLLS_PER_CHECK == 0 && bd_any_expired(q, now_ns());
}

/* Fails the commands not yet sent, as a dead queue has failed the sent ones. */
static void fail_rest(struct nvme_bdev *d, struct bd_batch *b)
{
    for (; b->at < b->n; b->at++)
        bd_io_lose(d, &b->ios[b->at], -EIO);
}

void bd_run(struct bd_queue *q, struct bd_batch *b)
{
    struct poll_wait wait = {0};
    unsigned sleeps = 0, polls = 0;

    while (!q->dead) {
        if (bd_must_park(q->d) || q->broken) {
            bd_recover(q);
            continue;
        }
        nvme_run_fill(q, b);
        if (nvme_run_idle(q))
            return;
        ring(q);
        if (bd_poll(q)) {
            poll_wait_reset(&wait);
            pause_if_early(q);
            if (has_expired(q, &polls))
                bd_recover(q);
        } else if (!wait_some(q, &wait, &sleeps) && !bd_poll(q)) {
            bd_recover(q);
        }
    }
    fail_rest(q->d, b);
}
