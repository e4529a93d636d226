/* SPDX-License-Identifier: BSD-2-Clause */
/* Repeats failed runs of the executor that may succeed another time. */
#include <errno.h>

#include "blockdev/nvme/nvme_info.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "support/clock.h"
#include "support/wait.h"

/*
 * Limit of consecutive runs that moved nothing, so that a permanent fault ends
 * a transfer soon.
 */
#define REPEATS 2u
/* Limit of the time of all failed runs of a call, in deadlines of a command. */
#define DEADLINES 2u
/* Delay before the next run if the drive is not ready. */
#define PATIENCE_MS 10u

static bool may_succeed(const struct transfer *t, int err)
{
    unsigned left;

    switch (err) {
    case -EIO: /* without a status, controller or executor have failed for good */
        return nvme_status_retryable(t->status);
    case -ETIMEDOUT:
        return transfer_time_left(t, &left) == 0;
    case -ENODEV: /* all queues wait for recovery, perhaps beyond a deadline */
        return !t->deadline && gq_engine_recover(t->daemon->stack.engine) == 0;
    default:
        return false;
    }
}

void transfer_begin_run(struct transfer *t)
{
    t->run_ns = now_ns();
    t->status = 0;
}

bool transfer_repeat(struct transfer *t, int err)
{
    uint64_t most_ns = (uint64_t)DEADLINES * t->daemon->opts->deadline_ms * NS_PER_MS;
    bool not_yet = err == -EIO && nvme_status_not_yet(t->status);

    if (t->stuck || t->failures >= REPEATS || t->failed_ns >= most_ns || !may_succeed(t, err))
        return false;
    if (not_yet)
        wait_ms(PATIENCE_MS);
    else
        t->failures++;
    t->failed_ns += now_ns() - t->run_ns;
    return true;
}
