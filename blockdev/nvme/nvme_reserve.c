/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves a namespace for one host (BASE 8.19). The commands are I/O commands,
 * and run on a queue pair that exists only for them.
 *
 * The type is Write Exclusive. A mount is one writer, and with Write Exclusive -
 * Registrants Only any host that registers could write, too.
 */
#include <endian.h>
#include <errno.h>
#include <nvme/types.h>
#include <string.h>

#include "blockdev/nvme/nvme_internal.h"
#include "support/clock.h"
#include "support/wait.h"

#define RESERVE_DEPTH 2u
#define RESERVE_TYPE  NVME_RESERVATION_RTYPE_WE
#define RESERVE_STEPS 8u   /* commands that change something, more than any way needs */
#define RESERVE_LOGS  256u /* entries of the log at most */
#define HOLDS         1u   /* of RCSTS */

/* Reservation commands use this queue pair and this data page. */
struct reserve {
    struct nvme_ctrlr *c;
    uint32_t nsid;
    uint64_t key; /* of this host */
    struct nvme_qpair qp;
    struct nvme_ring ring;
    struct nvme_dma page;
};

/* This struct has the fields of a Reservation Status data structure that are used here. */
struct reserve_state {
    uint8_t type;          /* 0: not reserved */
    bool registered, mine; /* this host is registered; it holds the reservation */
    uint64_t key;          /* of this host, if registered */
    bool others;           /* another host holds the reservation */
    struct nvme_holder other;
};

/* --- Host identifier ------------------------------------------------------------------------- */

static size_t reserve_id_len(const struct nvme_ctrlr *c)
{
    return c->info.long_host_id ? sizeof(c->t->host_id) : sizeof(uint64_t);
}

static bool reserve_is_me(const struct nvme_ctrlr *c, const void *id)
{
    return memcmp(id, c->t->host_id, reserve_id_len(c)) == 0;
}

static int reserve_feature(struct nvme_ctrlr *c, uint8_t opcode, void *id)
{
    struct nvme_sqe sqe = {.opcode = opcode,
                           .cdw10 = NVME_FEAT_HOST_ID,
                           .cdw11 = c->info.long_host_id ? NVME_HOST_ID_LONG : 0};

    return nvme_admin_locked(c, &sqe, id, reserve_id_len(c), opcode == NVME_ADMIN_SET_FEATURES,
                             NULL);
}

/*
 * Sets the host identifier. A controller refuses it if it has kept another one
 * over a reset, or has received one with the connection. The identifier that the
 * controller reports then counts. Returns -ENOTSUP if the controller does not
 * know this host, or an error if the admin queue does not work. The caller holds
 * admin_lock.
 */
static int reserve_set_host(struct nvme_ctrlr *c)
{
    static const uint8_t none[sizeof(c->t->host_id)];
    uint8_t id[sizeof(c->t->host_id)];

    if (!c->info.reservations || reserve_is_me(c, none))
        return -ENOTSUP;
    memcpy(id, c->t->host_id, sizeof(id));
    int rc = reserve_feature(c, NVME_ADMIN_SET_FEATURES, id);
    if (rc && nvme_ctrlr_healthy(c))
        rc = reserve_feature(c, NVME_ADMIN_GET_FEATURES, id);
    if (!nvme_ctrlr_healthy(c))
        return rc;
    return !rc && reserve_is_me(c, id) ? 0 : -ENOTSUP;
}

/* A controller that no longer knows this host refuses its writes, which ends the mount. */
int nvme_reserve_resume(struct nvme_ctrlr *c)
{
    int rc = c->reserved_nsid ? reserve_set_host(c) : 0;

    return rc == -ENOTSUP ? 0 : rc;
}

/* --- Commands -------------------------------------------------------------------------------- */

static int reserve_open(struct reserve *r, struct nvme_ctrlr *c, uint32_t nsid)
{
    *r = (struct reserve){.c = c, .nsid = nsid};
    memcpy(&r->key, c->t->host_id, sizeof(r->key));
    r->key += r->key == 0;
    int rc = nvme_dma_alloc(c, NVME_PAGE_SIZE, &r->page);
    if (rc)
        return rc;
    rc = nvme_qpair_create(c, RESERVE_DEPTH, &r->qp);
    if (rc)
        nvme_dma_free(c, &r->page);
    else
        nvme_ring_init(&r->ring, &r->qp);
    return rc;
}

/* A queue that was not deleted may still have a command, which uses the page. */
static void reserve_close(struct reserve *r)
{
    if (nvme_qpair_delete(r->c, &r->qp))
        nvme_dma_orphan(r->c, &r->page);
    else
        nvme_dma_free(r->c, &r->page);
}

static int reserve_await(struct reserve *r, uint16_t cid, uint64_t deadline, uint16_t *status)
{
    struct poll_wait wait = {0};
    struct nvme_cqe cqe;

    for (;;) {
        if (nvme_ring_poll(&r->ring, &cqe)) {
            nvme_ring_release(&r->ring);
            if (cqe.cid != cid)
                continue;
            *status = NVME_STATUS(cqe.status);
            return 0;
        }
        if (poll_wait_once(&wait) && now_ns() >= deadline)
            return -ETIMEDOUT;
    }
}

/* Runs one command with the page as its data. Returns 0 or -errno. */
static int reserve_run(struct reserve *r, struct nvme_sqe sqe)
{
    uint64_t deadline = deadline_after_ms(r->c->io_timeout_ms);
    uint16_t status = NVME_OK;
    int rc;

    sqe.nsid = r->nsid;
    sqe.prp1 = r->page.iova;
    for (;;) {
        sqe.cid++;
        nvme_ring_post(&r->ring, &sqe);
        nvme_ring_doorbell(&r->ring);
        nvme_kick(r->c->t, r->qp.qid);
        rc = reserve_await(r, sqe.cid, deadline, &status);
        if (rc || !nvme_status_not_yet(status) || deadline_after_ms(NVME_PATIENCE_MS) >= deadline)
            break;
        wait_ms(NVME_PATIENCE_MS);
    }
    return rc ? rc : nvme_status_errno(status);
}

static int reserve_with_keys(struct reserve *r, uint8_t opcode, uint32_t cdw10, uint64_t current,
                             uint64_t other)
{
    const uint64_t keys[] = {htole64(current), htole64(other)};

    memcpy(r->page.addr, keys, sizeof(keys));
    return reserve_run(r, (struct nvme_sqe){.opcode = opcode, .cdw10 = cdw10});
}

static int reserve_register(struct reserve *r, const struct nvme_ns_info *ns, bool replace)
{
    uint32_t action = replace ? NVME_RESV_REPLACE_KEY | NVME_RESV_ANY_KEY : NVME_RESV_REGISTER_KEY;

    return reserve_with_keys(r, NVME_IO_RESV_REGISTER,
                             action | (ns->keeps_reserved ? NVME_RESV_KEEP : NVME_RESV_LOSE_POWER),
                             0, r->key);
}

static int reserve_unregister(struct reserve *r)
{
    return reserve_with_keys(r, NVME_IO_RESV_REGISTER, NVME_RESV_UNREGISTER, r->key, 0);
}

/* --- Report ---------------------------------------------------------------------------------- */

static void reserve_add(const struct reserve *r, struct reserve_state *s, const uint8_t *id,
                        uint64_t key, uint8_t rcsts)
{
    bool me = reserve_is_me(r->c, id), holds = rcsts & HOLDS;

    if (me) {
        s->registered = true;
        s->key = key;
        s->mine |= holds;
    } else if (holds) {
        s->others = true;
        s->other = (struct nvme_holder){.key = key};
        memcpy(s->other.host_id, id, reserve_id_len(r->c));
    }
}

/*
 * The controller has written the number of entries, so the size of the page
 * limits how many are read.
 */
static void reserve_parse(const struct reserve *r, struct reserve_state *s)
{
    const struct nvme_resv_status *report = r->page.addr;
    unsigned n = report->regctl[0] | (unsigned)report->regctl[1] << 8;
    const char *end = (const char *)r->page.addr + NVME_PAGE_SIZE;

    *s = (struct reserve_state){.type = report->rtype};
    for (unsigned i = 0; i < n && r->c->info.long_host_id; i++) {
        const struct nvme_registered_ctrl_ext *e = &report->regctl_eds[i];
        if ((const char *)(e + 1) > end)
            break;
        reserve_add(r, s, e->hostid, le64toh(e->rkey), e->rcsts);
    }
    for (unsigned i = 0; i < n && !r->c->info.long_host_id; i++) {
        const struct nvme_registered_ctrl *e = &report->regctl_ds[i];
        if ((const char *)(e + 1) > end)
            break;
        reserve_add(r, s, (const uint8_t *)&e->hostid, le64toh(e->rkey), e->rcsts);
    }
    if (s->type && !s->mine)
        s->others = true; /* also if its entry does not fit */
}

static int reserve_report(struct reserve *r, struct reserve_state *s)
{
    memset(r->page.addr, 0, NVME_PAGE_SIZE);
    int rc = reserve_run(
        r, (struct nvme_sqe){.opcode = NVME_IO_RESV_REPORT,
                             .cdw10 = NVME_PAGE_SIZE / 4 - 1,
                             .cdw11 = r->c->info.long_host_id ? NVME_RESV_LONG_IDS : 0});

    if (!rc)
        reserve_parse(r, s);
    return rc;
}

/* --- Taking and ending it -------------------------------------------------------------------- */

/* One key stands for all hosts if all registrants hold the reservation. */
static uint64_t reserve_victim(const struct reserve_state *s)
{
    return s->type == NVME_RESERVATION_RTYPE_WEAR || s->type == NVME_RESERVATION_RTYPE_EAAR
               ? 0
               : s->other.key;
}

/* Sends the next command on the way to the reservation. */
static int reserve_advance(struct reserve *r, const struct nvme_ns_info *ns,
                           const struct reserve_state *s)
{
    if (!s->registered || s->key != r->key)
        return reserve_register(r, ns, s->registered);
    if (s->others)
        return reserve_with_keys(r, NVME_IO_RESV_ACQUIRE,
                                 NVME_RESV_PREEMPT_ABORT | NVME_RESV_TYPE(RESERVE_TYPE), r->key,
                                 reserve_victim(s));
    if (s->mine)
        return reserve_with_keys(r, NVME_IO_RESV_RELEASE,
                                 NVME_RESV_RELEASE | NVME_RESV_TYPE((uint32_t)s->type), r->key, 0);
    return reserve_with_keys(r, NVME_IO_RESV_ACQUIRE,
                             NVME_RESV_ACQUIRE | NVME_RESV_TYPE(RESERVE_TYPE), r->key, 0);
}

/*
 * Each step begins with a report, because another host may have changed the
 * state since the last one. A conflict is then seen as a holder. A controller
 * whose commands succeed without an effect has no holder, and fails.
 */
static int reserve_take(struct reserve *r, const struct nvme_ns_info *ns, bool preempt,
                        struct nvme_holder *holder)
{
    struct reserve_state s = {0};
    int rc = 0;

    for (unsigned i = 0; i < RESERVE_STEPS && (!rc || rc == -EACCES); i++) {
        rc = reserve_report(r, &s);
        if (rc || (s.type == RESERVE_TYPE && s.mine && !s.others))
            return rc;
        *holder = s.other;
        rc = s.others && !preempt ? -EBUSY : reserve_advance(r, ns, &s);
    }
    if (s.registered && rc != -ETIMEDOUT)
        reserve_unregister(r);
    if (rc && rc != -EACCES)
        return rc;
    return s.others ? -EBUSY : -EIO;
}

/* Reads the oldest event. `kind` is 0 if there is none. */
static int reserve_read_event(struct nvme_ctrlr *c, uint8_t *kind, uint32_t *nsid)
{
    struct nvme_resv_notification_log log = {0};
    struct nvme_sqe sqe = {.opcode = NVME_ADMIN_GET_LOG_PAGE,
                           .nsid = NVME_NSID_BROADCAST,
                           .cdw10 = NVME_LOG_RESERVATION | NVME_LOG_DWORDS(sizeof(log) / 4)};
    int rc = nvme_admin_locked(c, &sqe, &log, sizeof(log), false, NULL);

    *kind = rc ? 0 : log.rnlpt;
    *nsid = le32toh(log.nsid);
    return nvme_ctrlr_healthy(c) ? 0 : rc;
}

static int reserve_drain(struct nvme_ctrlr *c, uint32_t reserved)
{
    uint8_t kind = 1;
    uint32_t nsid;
    int rc = 0;

    for (unsigned i = 0; i < RESERVE_LOGS && kind && !rc; i++) {
        rc = reserve_read_event(c, &kind, &nsid);
        if (kind && nsid == reserved)
            nvme_ctrlr_set_taken(c);
    }
    return rc;
}

int nvme_reserve_read_events(struct nvme_ctrlr *c)
{
    return c->reserved_nsid ? reserve_drain(c, c->reserved_nsid) : 0;
}

static void reserve_forget(struct nvme_ctrlr *c)
{
    nvme_admin_begin(c);
    c->reserved_nsid = 0;
    nvme_admin_end(c);
}

int nvme_reserve(struct nvme_ctrlr *c, uint32_t nsid, bool preempt, struct nvme_holder *holder)
{
    struct nvme_ns_info ns;
    struct reserve r;
    int rc = nvme_ns_info(c, nsid, &ns);

    if (rc)
        return rc;
    if (!ns.reserves)
        return -ENOTSUP;
    nvme_admin_begin(c);
    rc = reserve_set_host(c);
    if (!rc)
        rc = reserve_drain(c, 0); /* events of an earlier registration */
    /* From now on a reset sets the identifier again. */
    c->reserved_nsid = rc ? 0 : nsid;
    nvme_admin_end(c);
    if (rc)
        return rc;
    rc = reserve_open(&r, c, nsid);
    if (!rc) {
        rc = reserve_take(&r, &ns, preempt, holder);
        reserve_close(&r);
    }
    if (rc)
        reserve_forget(c);
    return rc;
}

void nvme_unreserve(struct nvme_ctrlr *c, uint32_t nsid)
{
    struct reserve r;

    if (!nvme_ctrlr_alive(c) || reserve_open(&r, c, nsid) != 0)
        return;
    (void)reserve_unregister(&r);
    reserve_close(&r);
    reserve_forget(c);
}
