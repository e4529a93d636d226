/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Resets a controller that is in use. Stops the controller's users first, and
 * accepts only the same drive afterwards.
 *
 * An administrator of a fabric or of a virtual machine may replace a namespace
 * in use by another one with the same ID. Another host may take the namespace
 * over. The controller reports both by events, and a reset follows.
 */
#include <errno.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"
#include "support/clock.h"
#include "support/trace.h"

/* The list of changed namespaces has up to 1,024 IDs. */
#define WATCH_LIST_DWORDS (NVME_IDENTIFY_LEN / 4)

/*
 * Reads the list of changed namespaces, so that the controller reports the next
 * change.
 */
static int watch_read_list(struct nvme_ctrlr *c)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_GET_LOG_PAGE,
                           .nsid = NVME_NSID_BROADCAST,
                           .cdw10 = NVME_LOG_CHANGED_NS | NVME_LOG_DWORDS(WATCH_LIST_DWORDS)};
    uint32_t ids[WATCH_LIST_DWORDS];
    int rc = nvme_admin_locked(c, &sqe, ids, sizeof(ids), false, NULL);

    /* The driver compares all namespaces in use and needs no list, so a refusal does no harm. */
    return nvme_ctrlr_healthy(c) ? 0 : rc;
}

/* Reads the logs of both events. Changes of reservations have their own event and log page. */
static int watch_read_logs(struct nvme_ctrlr *c)
{
    int rc = watch_read_list(c);

    return rc ? rc : nvme_reserve_read_events(c);
}

int nvme_watch_start(struct nvme_ctrlr *c)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_SET_FEATURES,
                           .cdw10 = NVME_FEAT_ASYNC_EVENTS,
                           .cdw11 = NVME_EVENT_NS_CHANGED};

    if (!c->watch.offered)
        return 0;
    int rc = nvme_admin_locked(c, &sqe, NULL, 0, false, NULL);
    if (!nvme_ctrlr_healthy(c))
        return rc;
    /*
     * A change from before the enable may still be pending and would mask later
     * changes.
     */
    if (!rc)
        rc = watch_read_logs(c);
    if (!rc)
        nvme_admin_request_event(c);
    return nvme_ctrlr_healthy(c) ? 0 : rc;
}

/*
 * Calls nvme_ns_recheck() and returns its result. After success, the events
 * seen before the call count as compared.
 */
static int watch_verify(struct nvme_ctrlr *c)
{
    uint64_t seen = __atomic_load_n(&c->watch.seen, __ATOMIC_ACQUIRE);
    int rc = nvme_ns_recheck(c);

    if (!rc)
        __atomic_store_n(&c->watch.done, seen, __ATOMIC_RELEASE);
    return rc;
}

/* Returns true if the admin queue holds a completion that no thread has taken yet. */
static bool watch_has_completion(const struct nvme_ctrlr *c)
{
    uint32_t next = __atomic_load_n(&c->watch.next, __ATOMIC_ACQUIRE);

    /*
     * A relaxed load is enough, because the thread that takes the completion
     * reads the entry again under the lock.
     */
    return NVME_CQE_PHASE(__atomic_load_n(nvme_admin_cqe(c, next >> 1), __ATOMIC_RELAXED) >> 16) ==
           (next & 1);
}

static bool watch_has_event(const struct nvme_ctrlr *c)
{
    return __atomic_load_n(&c->watch.seen, __ATOMIC_ACQUIRE) !=
           __atomic_load_n(&c->watch.done, __ATOMIC_ACQUIRE);
}

/*
 * Requests the next event before the comparison, so that no change in between
 * is missed.
 */
static int watch_compare(struct nvme_ctrlr *c)
{
    int rc = nvme_ctrlr_healthy(c) ? watch_read_logs(c) : -EIO;

    if (!rc && !c->watch.posted)
        nvme_admin_request_event(c);
    if (!rc && nvme_ctrlr_taken(c))
        rc = -EACCES;
    return rc ? rc : watch_verify(c);
}

/*
 * Checks for a completion first. The thread that takes a completion counts the
 * event and then stores the place of the next completion. So at least one of
 * the two checks sees the event.
 */
static bool watch_has_news(const struct nvme_ctrlr *c)
{
    return watch_has_completion(c) || watch_has_event(c);
}

/*
 * Compares the namespaces in use for nvme_ctrlr_watch() after an event. Returns
 * an error if the namespaces in use were replaced or could not be compared.
 */
static int watch_look(struct nvme_ctrlr *c)
{
    if (nvme_ctrlr_taken(c))
        return -EACCES;
    if (!c->watch.offered || !watch_has_news(c))
        return 0;
    nvme_admin_begin(c);
    nvme_admin_drain(c);
    int rc = watch_has_event(c) ? watch_compare(c) : 0;
    nvme_admin_end(c);
    return rc;
}

/* Admin timeouts for Identify and Set Features together. */
#define VERIFY_TIMEOUTS 2u

unsigned nvme_ctrlr_reset_ms(const struct nvme_ctrlr *c)
{
    return 7 * nvme_ready_ms(c) + (2 + 2 * VERIFY_TIMEOUTS) * c->admin_timeout_ms +
           2 * (NVME_DEVICE_RESET_MS + NVME_GONE_MS);
}

void nvme_ctrlr_add_user(struct nvme_ctrlr *c, struct nvme_user *u)
{
    pthread_mutex_lock(&c->reset_lock);
    LIST_INSERT_HEAD(&c->users, u, entry);
    pthread_mutex_unlock(&c->reset_lock);
}

void nvme_ctrlr_remove_user(struct nvme_ctrlr *c, struct nvme_user *u)
{
    pthread_mutex_lock(&c->reset_lock);
    LIST_REMOVE(u, entry);
    pthread_mutex_unlock(&c->reset_lock);
}

static void stop_users(struct nvme_ctrlr *c)
{
    for (struct nvme_user *u = LIST_FIRST(&c->users); u; u = LIST_NEXT(u, entry))
        u->stop(u);
}

static void resume_users(struct nvme_ctrlr *c, int err)
{
    for (struct nvme_user *u = LIST_FIRST(&c->users); u; u = LIST_NEXT(u, entry))
        u->resume(u, err);
}

/* Returns true if nothing that was decided at open has changed. */
static bool same_ctrlr(const struct nvme_ctrlr *c, const struct nvme_ctrlr_info *now,
                       const struct nvme_id_facts *facts)
{
    return strcmp(now->serial, c->info.serial) == 0 && strcmp(now->model, c->info.model) == 0 &&
           (facts->mdts == 0 || facts->mdts >= c->info.max_transfer) &&
           now->namespaces >= c->info.namespaces && now->volatile_cache <= c->info.volatile_cache;
}

static int verify_ctrlr(struct nvme_ctrlr *c)
{
    struct nvme_ctrlr_info now;
    struct nvme_id_facts facts;
    const char *what;
    int rc = nvme_admin_identify_ctrlr(c, &now, &facts, &what);

    if (rc)
        return what ? -ENXIO : rc;
    return same_ctrlr(c, &now, &facts) ? 0 : -ENXIO;
}

/*
 * Requests the queues. If they are refused as out of sequence, queues have
 * outlived the reset for lack of an admin queue before it, and are deleted
 * first.
 */
static int verify_queues(struct nvme_ctrlr *c)
{
    unsigned granted;
    int rc = nvme_admin_set_queues(c, c->queues_requested, &granted);

    if (rc && c->admin_status == NVME_ERR_SEQUENCE) {
        c->keeps_queues = true;
        nvme_qpair_delete_all(c);
        rc = nvme_admin_set_queues(c, c->queues_requested, &granted);
    }
    return !rc && granted < c->info.io_queues ? -ENXIO : rc;
}

/* Returns 0, -ENXIO for another controller, or a temporary error. */
static int reset_verify(struct nvme_ctrlr *c)
{
    int rc;

    c->admin_until = deadline_after_ms((uint64_t)VERIFY_TIMEOUTS * c->admin_timeout_ms);
    rc = verify_ctrlr(c);
    if (!rc)
        rc = nvme_reserve_resume(c);
    if (!rc)
        rc = nvme_watch_start(c);
    if (!rc)
        rc = watch_verify(c);
    if (!rc)
        rc = verify_queues(c);
    c->admin_until = 0;
    return rc;
}

/* Enables a disabled controller and verifies it. */
static int come_back(struct nvme_ctrlr *c)
{
    uint64_t cap = nvme_cap(c);
    int rc;

    if (cap != c->cap)
        return nvme_cap_answered(cap) ? -ENXIO : -EIO;
    nvme_admin_renew(c);
    rc = nvme_enable(c);
    return rc ? rc : reset_verify(c);
}

static int try_registers(struct nvme_ctrlr *c, int (*disable)(struct nvme_ctrlr *))
{
    int rc;

    nvme_answered(c);
    rc = disable(c);
    return rc ? rc : come_back(c);
}

/*
 * Resets the controller by its registers. Returns -ENODEV if it is gone. If
 * resets from outside interfere, it starts again, but for no longer than a
 * single try may take. The wait for a silent controller does not count.
 */
static int restart_by_registers(struct nvme_ctrlr *c)
{
    uint64_t until = deadline_after_ms(NVME_GONE_MS + nvme_ready_ms(c));
    int rc = nvme_gone(c) ? -ENODEV : try_registers(c, nvme_disable_any);

    while (rc && rc != -ENXIO && rc != -ENODEV) {
        bool silent = nvme_is_paused(c);
        uint64_t from = now_ns();

        if (nvme_gone(c))
            return -ENODEV;
        if (silent)
            until += now_ns() - from;
        if (!nvme_overtaken(c) || now_ns() >= until)
            return rc;
        rc = try_registers(c, nvme_disable);
    }
    return rc;
}

static int restart_from_outside(struct nvme_ctrlr *c)
{
    int rc = nvme_device_reset(c);

    return rc ? rc : come_back(c);
}

/*
 * Resets by the registers, else by the transport. The order is reversed if the
 * previous reset did not help. After a failure the controller's state is
 * unknown.
 */
static int restart(struct nvme_ctrlr *c, bool outside_first)
{
    int rc;

    if (outside_first && !nvme_silent(c)) {
        rc = restart_from_outside(c);
        if (!rc || rc == -ENXIO)
            return rc;
    }
    rc = restart_by_registers(c);
    if (!rc || rc == -ENXIO || rc == -ENODEV || outside_first)
        return rc;
    return restart_from_outside(c);
}

/*
 * No queue of an earlier epoch touches memory any more, unless the controller
 * keeps queues: one that it could not delete may still complete a command.
 */
static void next_epoch(struct nvme_ctrlr *c)
{
    __atomic_store_n(&c->epoch, c->epoch + 1, __ATOMIC_RELEASE);
    nvme_qpair_all_ended(c);
    if (!c->keeps_queues)
        nvme_dma_free_orphans(c);
}

/* Counts a reset and returns the number of earlier ones without progress. */
static unsigned resets_without_progress(struct nvme_ctrlr *c)
{
    return __atomic_fetch_add(&c->retries, 1, __ATOMIC_RELAXED);
}

/* Not all controllers end queues at CC.EN = 0 (BASE 3.7.2). */
static void reset_delete_queues(struct nvme_ctrlr *c)
{
    if (!nvme_ctrlr_healthy(c) || !nvme_ctrlr_alive(c) || nvme_is_paused(c))
        return;
    c->admin_until = deadline_after_ms(c->admin_timeout_ms);
    nvme_qpair_delete_all(c);
    c->admin_until = 0;
}

/*
 * Called with the users stopped. The admin lock keeps other threads' commands
 * out until the reset is over.
 */
static void restart_or_fail(struct nvme_ctrlr *c)
{
    unsigned retries = resets_without_progress(c);
    bool settled = true, again = retries < NVME_MAX_RESET_RETRIES && !nvme_ctrlr_taken(c);

    nvme_count(&c->counters.resets);
    pthread_mutex_lock(&c->admin_lock);
    if (again)
        reset_delete_queues(c);
    int rc = again ? restart(c, retries > 0) : -EIO;
    if (rc == -ENXIO)
        __atomic_store_n(&c->replaced, true, __ATOMIC_RELEASE);
    if (rc) {
        if (nvme_is_paused(c)) /* the controller may resume, with its earlier commands */
            nvme_gone(c);
        settled = nvme_quiesce(c);
        nvme_ctrlr_fail(c, settled);
    }
    if (settled)
        next_epoch(c);
    pthread_mutex_unlock(&c->admin_lock);
}

int nvme_ctrlr_reset(struct nvme_ctrlr *c, unsigned epoch)
{
    int rc;

    pthread_mutex_lock(&c->reset_lock);
    if (!nvme_ctrlr_failed(c) && nvme_ctrlr_epoch(c) == epoch) {
        trace(TRACE_RECOVERY, TRACE_RECOVER_CONTROLLER, epoch, 0, 0, 0);
        stop_users(c);
        restart_or_fail(c);
        resume_users(c, nvme_ctrlr_failed(c) ? -EIO : 0);
        trace(TRACE_RECOVERY_DONE, TRACE_RECOVER_CONTROLLER, epoch, 0, 0,
              nvme_ctrlr_failed(c) ? -EIO : 0);
    }
    rc = nvme_ctrlr_failed(c) ? -EIO : 0;
    pthread_mutex_unlock(&c->reset_lock);
    return rc;
}

int nvme_ctrlr_watch(struct nvme_ctrlr *c)
{
    unsigned epoch = nvme_ctrlr_epoch(c);

    /*
     * The reset compares again, and stops the controller if the namespaces
     * differ.
     */
    return watch_look(c) ? nvme_ctrlr_reset(c, epoch) : 0;
}
