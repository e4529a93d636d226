/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Leases queue pairs: creation, descriptors for the holder, deletion, and
 * doorbells.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fusefs/daemon/lease/lease_internal.h"

#define DOORBELLS_LEN (GQ_MAX_QUEUES * sizeof(struct gq_proxied_doorbell))
/* 1/SPARE of the free queue pairs is never leased. */
#define SPARE 8u

static struct nvme_transport *transport_of(const struct leases *t)
{
    return nvme_ctrlr_transport(t->ctrlr);
}

static int map_proxied(struct leases *t)
{
    t->proxied_fd = memfd_create("gpunvme-doorbells", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (t->proxied_fd < 0)
        return -errno;
    if (ftruncate(t->proxied_fd, DOORBELLS_LEN) != 0 ||
        fcntl(t->proxied_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return -errno;
    void *at = mmap(NULL, DOORBELLS_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, t->proxied_fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    t->proxied_doorbells = at;
    return 0;
}

/*
 * Queue pairs of executors and of the bounce engine are not leased even while
 * these are closed. A bounce engine with one pair takes one of those that are
 * never leased, so that a controller with few pairs has some to lease.
 */
static unsigned count_free(const struct leases *t)
{
    const struct stack *s = &t->d->stack;
    unsigned all = nvme_ctrlr_info(t->ctrlr)->io_queues;
    unsigned used = stack_cpu_queues(s) + (s->gpus ? gpus_queue_pairs(s->gpus) : 0);

    if (s->bounce.ctrlr && s->bounce.options.queues > 1)
        used += s->bounce.options.queues;
    unsigned left = all > used ? all - used : 0;

    left -= (left + SPARE - 1) / SPARE;
    return left < GQ_MAX_QUEUES ? left : GQ_MAX_QUEUES;
}

/*
 * On tier 0 the executor cannot reach the doorbells, so a GPU of a holder
 * cannot either.
 */
static bool hands_out_doorbells(const struct leases *t)
{
    const struct stack *s = &t->d->stack;

    return transport_of(t)->doorbells_fd >= 0 && !(s->gpus && s->engine_info.tier == 0);
}

int lease_queues_open(struct leases *t)
{
    if (!t->ctrlr)
        return 0;
    t->queues.total = count_free(t);
    t->queues.for_root = t->queues.total / LEASES_ROOT_PART;
    if (hands_out_doorbells(t))
        return 0;
    int err = map_proxied(t);
    return err ? err : gq_doorbell_proxy_open(transport_of(t), t->proxied_doorbells, &t->proxy);
}

void lease_queues_close(struct leases *t)
{
    if (t->proxy)
        gq_doorbell_proxy_close(t->proxy);
    if (t->proxied_doorbells)
        munmap(t->proxied_doorbells, DOORBELLS_LEN);
    if (t->proxied_fd >= 0)
        close(t->proxied_fd);
}

int lease_queues_make(struct leases *t, struct lease *l, unsigned n, uint32_t depth)
{
    struct nvme_share share = nvme_share_new(t->ctrlr, n);
    int err = 0;

    l->pairs = calloc(n, sizeof(*l->pairs));
    if (!l->pairs)
        return -ENOMEM;
    while (l->n_pairs < n && !err) {
        l->pairs[l->n_pairs].proxied = LEASE_NOT_PROXIED;
        err = nvme_qpair_create_shared(t->ctrlr, depth, share, &l->pairs[l->n_pairs].qp);
        l->n_pairs += !err;
    }
    if (!l->n_pairs)
        return err == -ENOSPC ? -EBUSY : err;
    if (err == -ENOSPC) /* the drive has fewer queues than it reported */
        err = 0;
    nvme_keep_polling(transport_of(t), 1);
    if (t->proxy)
        gq_doorbell_proxy_begin(t->proxy);
    return err;
}

/* There are as many proxied doorbells as queues that may be leased. */
static unsigned take_proxied(struct leases *t)
{
    unsigned i = 0;

    while (t->proxied_taken[i])
        i++;
    t->proxied_taken[i] = true;
    return i;
}

void lease_queues_start(struct leases *t, struct lease *l)
{
    for (unsigned i = 0; i < l->n_pairs && t->proxy; i++) {
        l->pairs[i].proxied = take_proxied(t);
        gq_doorbell_proxy_add(t->proxy, l->pairs[i].proxied, &l->pairs[i].qp);
    }
}

/*
 * The caller holds the lock, for a lease that has been started. Returns
 * GPUNVME_COMMANDS_UNKNOWN if the commands are not counted.
 */
static uint64_t commands_of(const struct leases *t, const struct lease_pair *p)
{
    static_assert(GPUNVME_COMMANDS_UNKNOWN == UINT64_MAX, "as of nvme_submitted()");

    if (p->stopped)
        return p->commands;
    return t->proxy ? gq_doorbell_proxy_submitted(t->proxy, p->proxied)
                    : nvme_submitted(transport_of(t), p->qp.qid);
}

/* Returns 0 for an unknown number. */
static uint64_t known(uint64_t commands)
{
    return commands == GPUNVME_COMMANDS_UNKNOWN ? 0 : commands;
}

/*
 * The id of a deleted queue may be reused by another lease, so the number of
 * its commands is kept from now on.
 */
void lease_queues_stop(struct leases *t, struct lease *l)
{
    for (unsigned i = 0; i < l->n_pairs; i++) {
        struct lease_pair *p = &l->pairs[i];
        if (p->stopped)
            continue;
        if (t->proxy)
            gq_doorbell_proxy_remove(t->proxy, p->proxied);
        p->commands = commands_of(t, p);
        p->stopped = true;
        t->commands += known(p->commands);
    }
}

uint64_t leases_commands(struct leases *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t sum = t->commands;
    for (const struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        for (unsigned i = 0; i < l->n_pairs; i++)
            sum += l->pairs[i].stopped ? 0 : known(commands_of(t, &l->pairs[i]));
    }
    pthread_mutex_unlock(&t->lock);
    return sum;
}

void lease_queues_forget(struct leases *t, struct lease *l)
{
    for (unsigned i = 0; i < l->n_pairs; i++) {
        if (l->pairs[i].proxied != LEASE_NOT_PROXIED)
            t->proxied_taken[l->pairs[i].proxied] = false;
    }
    ledger_give(&t->queues, l->uid, l->n_pairs);
    l->n_pairs = 0;
}

/*
 * Pairs that a reset has deleted only release their memory. A pair that cannot
 * be deleted may have commands in flight: the reset ends them, or the
 * controller has failed for good.
 */
void lease_queues_delete(struct leases *t, struct lease *l)
{
    unsigned epoch = nvme_ctrlr_epoch(t->ctrlr);
    int failed = 0;

    for (unsigned i = 0; i < l->n_pairs; i++) {
        int err = nvme_qpair_delete(t->ctrlr, &l->pairs[i].qp);
        failed = err ? err : failed;
    }
    if (failed)
        nvme_ctrlr_reset(t->ctrlr, epoch);
    if (t->proxy)
        gq_doorbell_proxy_end(t->proxy);
    nvme_keep_polling(transport_of(t), -1);
}

static uint64_t doorbell_at(const struct nvme_transport *transport, const volatile uint32_t *bell)
{
    const volatile char *first = (const volatile char *)transport->doorbells;

    return transport->doorbells_fd_offset + (uint64_t)((const volatile char *)bell - first);
}

static void reply_doorbells(const struct leases *t, const struct lease_pair *p,
                            struct gpunvme_reply *reply, int *fd)
{
    const struct nvme_transport *transport = transport_of(t);

    if (t->proxy) {
        *fd = t->proxied_fd;
        reply->doorbells_len = DOORBELLS_LEN;
        reply->sq_doorbell = p->proxied * sizeof(struct gq_proxied_doorbell) +
                             offsetof(struct gq_proxied_doorbell, sq_tail);
        reply->cq_doorbell = p->proxied * sizeof(struct gq_proxied_doorbell) +
                             offsetof(struct gq_proxied_doorbell, cq_head);
    } else {
        *fd = transport->doorbells_fd;
        reply->doorbells_len = transport->doorbells_fd_offset + transport->doorbells_len;
        reply->sq_doorbell = doorbell_at(transport, p->qp.sq_doorbell);
        reply->cq_doorbell = doorbell_at(transport, p->qp.cq_doorbell);
    }
}

int lease_queues_reply(const struct leases *t, const struct lease *l, uint64_t index,
                       struct gpunvme_reply *reply, int fds[2])
{
    int doorbells;

    if (index >= l->n_pairs || l->revoked)
        return -ENOENT;
    const struct lease_pair *p = &l->pairs[index];
    *reply = (struct gpunvme_reply){.len = p->qp.fd_offset + p->qp.sq_len + p->qp.cq_len,
                                    .sq_offset = p->qp.fd_offset,
                                    .cq_offset = p->qp.fd_offset + p->qp.sq_len};
    reply_doorbells(t, p, reply, &doorbells);
    fds[0] = fcntl(p->qp.fd, F_DUPFD_CLOEXEC, 0);
    if (fds[0] < 0)
        return -errno;
    fds[1] = fcntl(doorbells, F_DUPFD_CLOEXEC, 0);
    if (fds[1] >= 0)
        return 2;
    int err = -errno;
    close(fds[0]);
    return err;
}

static struct gpunvme_queue lease_queues_describe(const struct leases *t, const struct lease *l,
                                                  unsigned i)
{
    uint64_t caller = atomic_load_explicit(&l->owner->activity.caller, memory_order_relaxed);

    return (struct gpunvme_queue){.qid = l->pairs[i].qp.qid,
                                  .use = GPUNVME_QUEUE_LEASED,
                                  .uid = l->uid,
                                  .pid = (uint32_t)caller,
                                  .commands = commands_of(t, &l->pairs[i])};
}

unsigned leases_list(struct leases *t, struct gpunvme_queue *out, unsigned max)
{
    unsigned n = 0;

    pthread_mutex_lock(&t->lock);
    for (const struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        for (unsigned i = 0; i < l->n_pairs && n < max; i++)
            out[n++] = lease_queues_describe(t, l, i);
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}
