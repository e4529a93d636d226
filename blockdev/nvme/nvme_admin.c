/* SPDX-License-Identifier: BSD-2-Clause */
/* Sends admin commands, one at a time, each with a deadline. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_identify.h"
#include "blockdev/nvme/nvme_internal.h"
#include "support/clock.h"
#include "support/trace.h"
#include "support/wait.h"

/* The SQ, the CQ and the data of the command have one page each. */
#define ADMIN_PAGES     3
#define ADMIN_DATA_PAGE 2

static_assert(NVME_ADMIN_DEPTH * sizeof(struct nvme_sqe) <= NVME_PAGE_SIZE, "admin SQ in a page");

/* Number of Queues accepts 1 to 65535, as 0-based values in both halves. */
#define MAX_QUEUES_ASKED 65535u

#define SLEEPS_PER_CHECK 64u

#define ABORT_NOT_DONE 1u /* dword 0 of Abort's completion */

/* Stores the place of the next completion for readers without the lock. */
static void admin_note_next(struct nvme_ctrlr *c)
{
    /*
     * Release: a reader of the new place sees the event that was counted before,
     * and the ring that nvme_admin_renew() has cleared.
     */
    __atomic_store_n(&c->watch.next, c->admin_ring.cq_head << 1 | c->admin_ring.phase,
                     __ATOMIC_RELEASE);
}

int nvme_admin_setup(struct nvme_ctrlr *c)
{
    int rc = nvme_dma_alloc(c, ADMIN_PAGES * NVME_PAGE_SIZE, &c->admin_mem);

    if (!rc)
        nvme_admin_renew(c);
    return rc;
}

/*
 * Clears the queue by atomic stores, because nvme_ctrlr_watch() reads entries
 * without the lock.
 */
static void admin_clear_cq(struct nvme_ctrlr *c)
{
    for (size_t i = 0; i < NVME_ADMIN_DEPTH * NVME_CQE_DWORDS; i++)
        __atomic_store_n(nvme_admin_cq(c) + i, 0, __ATOMIC_RELAXED);
}

void nvme_admin_renew(struct nvme_ctrlr *c)
{
    struct nvme_qpair qp = {.depth = NVME_ADMIN_DEPTH};

    memset(c->admin_mem.addr, 0, NVME_PAGE_SIZE);
    admin_clear_cq(c);
    qp.sq = c->admin_mem.addr;
    qp.cq = (struct nvme_cqe *)(void *)nvme_admin_cq(c);
    qp.sq_doorbell = nvme_ctrlr_doorbell(c, 0);
    qp.cq_doorbell = nvme_ctrlr_doorbell(c, 1);
    nvme_ring_init(&c->admin_ring, &qp);
    c->watch.posted = false;
    admin_note_next(c);
    __atomic_store_n(&c->health, NVME_HEALTHY, __ATOMIC_RELEASE);
}

void nvme_admin_teardown(struct nvme_ctrlr *c)
{
    nvme_dma_free(c, &c->admin_mem);
}

static void *data_page(struct nvme_ctrlr *c)
{
    return (char *)c->admin_mem.addr + ADMIN_DATA_PAGE * NVME_PAGE_SIZE;
}

static uint64_t command_deadline(const struct nvme_ctrlr *c)
{
    uint64_t deadline = deadline_after_ms(c->admin_timeout_ms);

    return c->admin_until && c->admin_until < deadline ? c->admin_until : deadline;
}

static void admin_note_event(struct nvme_ctrlr *c, const struct nvme_cqe *cqe)
{
    c->watch.posted = false;
    if (NVME_STATUS(cqe->status) == NVME_OK)
        __atomic_fetch_add(&c->watch.seen, 1, __ATOMIC_RELEASE);
}

/* Takes the next completion. Returns false if there is none. */
static bool admin_poll(struct nvme_ctrlr *c, struct nvme_cqe *cqe)
{
    if (!nvme_ring_poll(&c->admin_ring, cqe))
        return false;
    nvme_ring_release(&c->admin_ring);
    if (c->watch.posted && cqe->cid == c->watch.cid)
        admin_note_event(c, cqe);
    admin_note_next(c);
    return true;
}

void nvme_admin_drain(struct nvme_ctrlr *c)
{
    struct nvme_cqe cqe;

    while (admin_poll(c, &cqe)) {
    }
}

static uint16_t admin_next_cid(struct nvme_ctrlr *c)
{
    uint16_t cid = c->admin_cid++;

    return c->watch.posted && cid == c->watch.cid ? c->admin_cid++ : cid;
}

static void admin_send(struct nvme_ctrlr *c, struct nvme_sqe *sqe)
{
    sqe->cid = admin_next_cid(c);
    nvme_ring_post(&c->admin_ring, sqe);
    trace(TRACE_SUBMIT, sqe->cid, sqe->cdw10, 0, sqe->opcode, 0);
    nvme_ring_doorbell(&c->admin_ring);
    nvme_wake(c->t, 1);
}

void nvme_admin_request_event(struct nvme_ctrlr *c)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_ASYNC_EVENT};

    admin_send(c, &sqe);
    c->watch.cid = sqe.cid;
    c->watch.posted = true;
}

/*
 * Waits for the completion of cid. A completion with another CID belongs to an
 * Asynchronous Event Request or is dropped, because only one other command is
 * in flight. A command that misses its deadline may still write the data page
 * and complete later, so the queue is not used again before a reset has ended
 * it.
 */
static int wait_completion(struct nvme_ctrlr *c, uint16_t cid, uint64_t deadline,
                           struct nvme_cqe *cqe)
{
    struct poll_wait wait = {0};
    unsigned sleeps = 0;

    for (;;) {
        bool late = now_ns() >= deadline;

        if (admin_poll(c, cqe) && cqe->cid == cid)
            return 0;
        /*
         * Check the controller before reporting a timeout, and otherwise rarely, since
         * reading a register may take milliseconds.
         */
        if ((late || (poll_wait_once(&wait) && ++sleeps % SLEEPS_PER_CHECK == 0)) &&
            !nvme_ctrlr_alive(c)) {
            nvme_ctrlr_mark_failed(c);
            return -EIO;
        }
        if (late) {
            nvme_ctrlr_mark_failed(c);
            return -ETIMEDOUT;
        }
    }
}

static int execute_once(struct nvme_ctrlr *c, struct nvme_sqe *sqe, uint64_t deadline,
                        struct nvme_cqe *cqe)
{
    int rc;

    if (!nvme_ctrlr_healthy(c))
        return -EIO;
    admin_send(c, sqe);
    rc = wait_completion(c, sqe->cid, deadline, cqe);
    if (!rc)
        trace(TRACE_COMPLETE, sqe->cid, sqe->cdw10, 0, sqe->opcode, NVME_STATUS(cqe->status));
    return rc ? rc : nvme_status_errno(NVME_STATUS(cqe->status));
}

static int execute(struct nvme_ctrlr *c, struct nvme_sqe *sqe, struct nvme_cqe *cqe)
{
    uint64_t deadline = command_deadline(c);
    int rc;

    *cqe = (struct nvme_cqe){0};
    for (;;) {
        rc = execute_once(c, sqe, deadline, cqe);
        if (!rc || !nvme_ctrlr_healthy(c) || !nvme_status_not_yet(NVME_STATUS(cqe->status)) ||
            deadline_after_ms(NVME_PATIENCE_MS) >= deadline)
            return rc;
        wait_ms(NVME_PATIENCE_MS);
    }
}

int nvme_admin_locked(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len,
                      bool to_device, struct nvme_cqe *cqe)
{
    struct nvme_cqe unused;
    int rc;

    assert(len <= NVME_PAGE_SIZE);
    if (data) {
        memset(data_page(c), 0, NVME_PAGE_SIZE);
        if (to_device)
            memcpy(data_page(c), data, len);
        sqe->prp1 = c->admin_mem.iova + ADMIN_DATA_PAGE * NVME_PAGE_SIZE;
    }
    if (!cqe)
        cqe = &unused;
    rc = execute(c, sqe, cqe);
    c->admin_status = NVME_STATUS(cqe->status);
    if (!rc && data && !to_device)
        memcpy(data, data_page(c), len);
    return rc;
}

void nvme_admin_begin(struct nvme_ctrlr *c)
{
    pthread_mutex_lock(&c->admin_lock);
    c->admin_until = deadline_after_ms(c->admin_timeout_ms);
}

void nvme_admin_end(struct nvme_ctrlr *c)
{
    c->admin_until = 0;
    pthread_mutex_unlock(&c->admin_lock);
}

int nvme_admin(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len, bool to_device,
               struct nvme_cqe *cqe)
{
    int rc;

    nvme_admin_begin(c);
    rc = nvme_admin_locked(c, sqe, data, len, to_device, cqe);
    nvme_admin_end(c);
    return rc;
}

int nvme_abort(struct nvme_ctrlr *c, uint16_t qid, uint16_t cid)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_ABORT, .cdw10 = (uint32_t)cid << 16 | qid};
    struct nvme_cqe cqe;
    int rc;

    if (c->quirks & NVME_QUIRK_NO_ABORT)
        return -EAGAIN;
    rc = nvme_admin(c, &sqe, NULL, 0, false, &cqe);
    if (rc)
        return rc;
    return cqe.result & ABORT_NOT_DONE ? -EAGAIN : 0;
}

int nvme_admin_identify_page(struct nvme_ctrlr *c, enum nvme_cns cns, uint32_t nsid, void *page)
{
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns};

    return nvme_admin_locked(c, &sqe, page, NVME_IDENTIFY_LEN, false, NULL);
}

int nvme_admin_identify_ctrlr(struct nvme_ctrlr *c, struct nvme_ctrlr_info *info,
                              struct nvme_id_facts *facts, const char **what)
{
    void *page = malloc(NVME_IDENTIFY_LEN);
    int rc;

    *what = NULL;
    if (!page)
        return -ENOMEM;
    rc = nvme_admin_identify_page(c, NVME_CNS_CTRL, 0, page);
    if (!rc)
        rc = nvme_parse_ctrlr(page, info, facts, what);
    free(page);
    return rc;
}

int nvme_admin_set_queues(struct nvme_ctrlr *c, unsigned wanted, unsigned *granted)
{
    unsigned ask = wanted < MAX_QUEUES_ASKED ? wanted : MAX_QUEUES_ASKED;
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_SET_FEATURES,
                           .cdw10 = NVME_FEAT_NUM_QUEUES,
                           .cdw11 = (ask - 1) << 16 | (ask - 1)};
    struct nvme_cqe cqe;
    unsigned sqs, cqs;
    int rc = nvme_admin_locked(c, &sqe, NULL, 0, false, &cqe);

    if (rc)
        return rc;
    sqs = (cqe.result & 0xffff) + 1;
    cqs = (cqe.result >> 16) + 1;
    *granted = sqs < cqs ? sqs : cqs;
    if (*granted > ask)
        *granted = ask;
    return 0;
}
