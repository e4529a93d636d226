/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Detects that a namespace in use was replaced: an administrator of a fabric or
 * of a virtual machine may assign another one to the same ID. Another host may
 * also have taken it.
 */
#include <errno.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"

/* The list has up to 1,024 IDs. */
#define WATCH_LIST_DWORDS (NVME_IDENTIFY_LEN / 4)

/* Ends the event, so that the controller reports the next one. */
static int watch_read_list(struct nvme_ctrlr *c)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_GET_LOG_PAGE,
                           .nsid = NVME_NSID_BROADCAST,
                           .cdw10 = NVME_LOG_CHANGED_NS | NVME_LOG_DWORDS(WATCH_LIST_DWORDS)};
    uint32_t ids[WATCH_LIST_DWORDS];
    int rc = nvme_admin_locked(c, &sqe, ids, sizeof(ids), false, NULL);

    /* All namespaces in use are compared, so a list that is refused does no harm. */
    return nvme_ctrlr_healthy(c) ? 0 : rc;
}

/* A change of reservations is another event, which has a log page of its own. */
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
     * ones.
     */
    if (!rc)
        rc = watch_read_logs(c);
    if (!rc)
        nvme_admin_request_event(c);
    return nvme_ctrlr_healthy(c) ? 0 : rc;
}

int nvme_watch_verify(struct nvme_ctrlr *c)
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
     * reads it again under the lock.
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
 * Requests the next event before the comparison, so that no change is missed in
 * between.
 */
static int watch_compare(struct nvme_ctrlr *c)
{
    int rc = nvme_ctrlr_healthy(c) ? watch_read_logs(c) : -EIO;

    if (!rc && !c->watch.posted)
        nvme_admin_request_event(c);
    if (!rc && nvme_ctrlr_taken(c))
        rc = -EACCES;
    return rc ? rc : nvme_watch_verify(c);
}

/*
 * The completion is checked first. The thread that takes it counts the event
 * before it stores the place of the next completion, so one of the two is seen.
 */
static bool watch_has_news(const struct nvme_ctrlr *c)
{
    return watch_has_completion(c) || watch_has_event(c);
}

int nvme_watch_look(struct nvme_ctrlr *c)
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
