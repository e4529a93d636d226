/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Recovers commands that do not complete (nvme.h). The owner of their queue
 * calls these functions.
 *
 * No command is reported as ended while the controller may still transfer its
 * data. A command ends by its completion, by the deletion of its queue, or by a
 * reset.
 */
#include <errno.h>

#include "blockdev/bd_nvme.h"
#include "support/clock.h"
#include "support/trace.h"
#include "support/wait.h"

uint64_t bd_nvme_command_ms(const struct bd_dev *dev)
{
    const struct nvme_bdev *d = (const struct nvme_bdev *)dev;

    return (1 + BD_RETRIES) * (d->c->io_timeout_ms + d->c->t->durable_ms + bd_recover_ms(d));
}

/*
 * Sends Aborts for commands expired by `now`. Returns false if there is no
 * admin queue.
 */
static bool send_aborts(struct bd_queue *q, uint64_t now)
{
    uint64_t until = deadline_after_ms(q->d->c->admin_timeout_ms);

    for (unsigned i = 0; i < q->ntrackers; i++) {
        int rc;

        if (!q->trackers[i].busy || q->trackers[i].deadline > now)
            continue;
        if (bd_must_park(q->d) || now_ns() >= until)
            break;
        /* Whether or not the Abort is refused, the completion may be on its way. */
        rc = nvme_abort(q->d->c, q->qp.qid, q->trackers[i].sqe.cid);
        if (rc && !nvme_ctrlr_healthy(q->d->c))
            return false;
        if (!rc)
            nvme_count(&q->d->c->counters.aborts);
    }
    return true;
}

/* Waits BD_LATE_MS; true if all that had expired have completed. */
static bool late_completions(struct bd_queue *q, uint64_t now)
{
    unsigned io_ms = q->d->c->io_timeout_ms;
    uint64_t until = deadline_after_ms(io_ms < BD_LATE_MS ? io_ms : BD_LATE_MS);
    struct poll_wait wait = {0};

    while (bd_any_expired(q, now)) {
        if (bd_must_park(q->d) || now_ns() >= until)
            return false;
        if (!bd_poll(q))
            poll_wait_once(&wait);
    }
    return true;
}

static bool recover_any_changes(const struct bd_queue *q)
{
    for (unsigned i = 0; i < q->ntrackers; i++) {
        if (q->trackers[i].busy && bd_io_changes(q->trackers[i].io))
            return true;
    }
    return false;
}

/*
 * Asks whether commands in flight that change the device may be sent again,
 * since the right to do so can have ended during the recovery. Waits for the
 * answer, which may need commands of another queue; returns -EAGAIN if the
 * thread must park for a reset first.
 */
static int recover_ask_permit(const struct bd_queue *q)
{
    int rc = 0;

    while (recover_any_changes(q) && (rc = bd_may_write(&q->d->dev, false)) == -EAGAIN &&
           !bd_must_park(q->d))
        wait_ms(1);
    return rc;
}

/*
 * Sends the commands of a deleted queue again. All can be repeated because the
 * first attempt has ended. The command that caused the failure is not known, so
 * each command uses up one try.
 */
static void send_again(struct bd_queue *q)
{
    int permit = recover_ask_permit(q);

    q->again = permit == -EAGAIN;
    for (unsigned i = 0; i < q->ntrackers; i++) {
        struct bd_tracker *tracker = &q->trackers[i];

        if (!tracker->busy || q->again)
            continue;
        if (permit && bd_io_changes(tracker->io)) {
            bd_io_fail(tracker->io, permit, 0);
            bd_tracker_put(q, tracker);
        } else if (tracker->tries < BD_RETRIES) {
            tracker->tries++;
            bd_post(q, tracker);
        } else {
            bd_io_fail(tracker->io, -ETIMEDOUT, 0);
            bd_tracker_put(q, tracker);
        }
    }
}

static void end_all(struct bd_queue *q)
{
    q->dead = true;
    for (unsigned i = 0; i < q->ntrackers; i++) {
        if (q->trackers[i].busy) {
            bd_io_lose(q->d, q->trackers[i].io, -EIO);
            bd_tracker_put(q, &q->trackers[i]);
        }
    }
}

/* Counts a command once for each time that it was sent. */
static void count_expired(struct bd_queue *q, uint64_t now)
{
    for (unsigned i = 0; i < q->ntrackers; i++) {
        if (!q->trackers[i].busy || q->trackers[i].late || q->trackers[i].deadline > now)
            continue;
        q->trackers[i].late = true;
        nvme_count(&q->d->c->counters.timeouts);
    }
}

/*
 * Aborts the expired commands, or creates the queue again. A queue without any
 * completion since its creation would not work better when created once more.
 */
static bool recover_by_renewal(struct bd_queue *q)
{
    uint64_t now = now_ns();

    count_expired(q, now);
    if (!nvme_ctrlr_alive(q->d->c))
        return false;
    if (send_aborts(q, now) && late_completions(q, now))
        return true;
    bd_progress(q->d);
    if (!q->proven || bd_must_park(q->d) || !bd_queue_renew(q))
        return false;
    nvme_count(&q->d->c->counters.recreates);
    send_again(q);
    return true;
}

/* Parks for a reset. If resets never repair the queue, it has failed. */
static int recover_by_reset(struct bd_queue *q)
{
    if (q->broken > BD_RETRIES)
        return -EIO;
    return bd_park(q->d, !bd_must_park(q->d), q->qp.epoch);
}

static int nvme_recover_recover_queue(struct bd_queue *q)
{
    bd_progress(q->d);
    if (!bd_must_park(q->d) && !q->broken && recover_by_renewal(q))
        return 0;
    int err = recover_by_reset(q);
    if (err) {
        bd_fail(q->d);
        end_all(q);
    } else if (q->again) {
        send_again(q);
    }
    return err;
}

void bd_recover(struct bd_queue *q)
{
    trace(TRACE_RECOVERY, TRACE_RECOVER_QUEUE, q->qp.qid, 0, 0, 0);
    int err = nvme_recover_recover_queue(q);
    trace(TRACE_RECOVERY_DONE, TRACE_RECOVER_QUEUE, q->qp.qid, 0, 0, err);
}
