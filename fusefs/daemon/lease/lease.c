/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the table of leases, which creates, removes and revokes leases.
 * Creates and deletes leased queue pairs, and passes their descriptors and
 * doorbells to the holder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/lease/lease_internal.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/state/daemon.h"
#include "support/clock.h"

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
 * the executors or the engine are closed. A bounce engine with one pair uses a
 * pair that is never leased, so that a controller with few pairs has some to
 * lease.
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
 * cannot reach them either.
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

/* The loop ends: there are as many proxied doorbells as queues that may be leased. */
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
 * Returns the number of commands of a pair, or GPUNVME_COMMANDS_UNKNOWN if they
 * are not counted. The lease has been started, and the caller holds the lock.
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
 * If a reset has deleted a pair, only the memory of the pair is released. A
 * pair that cannot be deleted may have commands in flight. The reset ends these
 * commands, unless the controller has failed for good.
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

#define DEFAULT_DEPTH 64u

/* --- The table ------------------------------------------------------------------------------- */

static struct lease *lease_find(const struct leases *t, uint64_t id)
{
    struct lease *l = LIST_FIRST(&t->all);

    while (l && l->id != id)
        l = LIST_NEXT(l, entry);
    return l;
}

static int lease_check(const struct lease *l, uint64_t key, uid_t uid)
{
    return l->key == key && l->uid == uid ? 0 : -EACCES;
}

/*
 * The limits are charged before the lease is made, so that concurrent calls
 * cannot exceed them.
 */
static int lease_reserve(struct leases *t, uid_t uid, unsigned queues, unsigned *granted)
{
    int err = 0;

    pthread_mutex_lock(&t->lock);
    uint64_t left = ledger_left(&t->queues, uid);
    *granted = queues < left ? queues : (unsigned)left;
    if (queues && !*granted)
        err = -EBUSY;
    else if (!ledger_take(&t->count, uid, 1))
        err = -EMFILE;
    else
        ledger_take(&t->queues, uid, *granted);
    pthread_mutex_unlock(&t->lock);
    return err;
}

/*
 * Ends the charge of a lease. l is freed separately from its queues; it is NULL
 * if it was never created.
 */
static void lease_unreserve(struct leases *t, struct lease *l, uid_t uid, unsigned queues)
{
    pthread_mutex_lock(&t->lock);
    ledger_give(&t->count, uid, 1);
    ledger_give(&t->queues, uid, queues);
    if (l)
        lease_extents_forget(t, l);
    pthread_mutex_unlock(&t->lock);
}

static int lease_draw(struct lease *l)
{
    uint64_t value[2];

    if (getrandom(value, sizeof(value), 0) != (ssize_t)sizeof(value))
        return -EIO;
    l->id = value[0];
    l->key = value[1];
    return 0;
}

static struct lease *new_lease(struct open_file *file, uid_t uid)
{
    struct lease *l = calloc(1, sizeof(*l));

    if (l)
        *l = (struct lease){.uid = uid, .owner = file, .page_fd = -1};
    return l;
}

/*
 * The caller holds the lock. Returns -EAGAIN if a reset has deleted the queues
 * since their creation, and -ETXTBSY if the file is open for writing. A writer
 * that opens it later finds the lease in the table (leases_revoke_file()).
 */
static int lease_check_current(const struct leases *t, const struct lease *l)
{
    if (l->n_pairs && l->resets_seen != t->resets)
        return -EAGAIN;
    return l->inode && file_has_writer(t->d, l->inode) ? -ETXTBSY : 0;
}

/*
 * Adds a lease to the table, with an id that is not 0. Returns the errors of
 * lease_check_current().
 */
static int lease_publish(struct leases *t, struct lease *l)
{
    int err;

    pthread_mutex_lock(&t->lock);
    do {
        err = lease_draw(l);
    } while (!err && (l->id == 0 || lease_find(t, l->id)));
    if (!err)
        err = lease_check_current(t, l);
    if (!err) {
        lease_queues_start(t, l);
        LIST_INSERT_HEAD(&t->all, l, entry);
        l->owner->leases = true;
    }
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* --- Removal --------------------------------------------------------------------------------- */

/*
 * Precondition: the lease has left the table or is marked deleting, so the
 * pairs are the caller's.
 */
static void lease_delete_queues(struct leases *t, struct lease *l)
{
    if (!l->n_pairs)
        return;
    lease_queues_delete(t, l);
    pthread_mutex_lock(&t->lock);
    lease_queues_forget(t, l);
    pthread_mutex_unlock(&t->lock);
}

/* Ends a lease that is not in the table. */
static void lease_end(struct leases *t, struct lease *l)
{
    lease_delete_queues(t, l);
    lease_extents_end(l);
    lease_page_end(l);
    lease_unreserve(t, l, l->uid, 0);
    free(l->pairs);
    free(l);
}

/*
 * The caller holds the lock. The release store orders REVOKED before every
 * later operation on the queues.
 */
static void set_revoked(struct lease *l)
{
    __atomic_store_n(&l->page->state, GPUNVME_LEASE_REVOKED, __ATOMIC_RELEASE);
}

/*
 * The caller holds the lock. Removes a lease from the table. Its proxied
 * doorbells are no longer forwarded.
 */
static void lease_take(struct leases *t, struct lease *l)
{
    LIST_REMOVE(l, entry);
    set_revoked(l);
    lease_queues_stop(t, l);
}

/*
 * Waits while the table's thread deletes the lease's queues. The deletion is
 * bounded by admin timeouts.
 */
int leases_end(struct leases *t, uint64_t id, uint64_t key, uid_t uid)
{
    struct lease *l;

    pthread_mutex_lock(&t->lock);
    while ((l = lease_find(t, id)) && l->deleting)
        pthread_cond_wait(&t->changed, &t->lock);
    int err = l ? lease_check(l, key, uid) : -ENOENT;
    if (!err)
        lease_take(t, l);
    pthread_mutex_unlock(&t->lock);
    if (!err)
        lease_end(t, l);
    return err;
}

bool leases_release(struct leases *t, struct open_file *file)
{
    if (!file->leases)
        return false;
    pthread_mutex_lock(&t->lock);
    LIST_INSERT_HEAD(&t->closed, file, entry);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return true;
}

/*
 * The caller holds the lock. Returns a lease that was taken through the file, or
 * NULL. Leases of queues come first, because their queues must be deleted before
 * the first block is unpinned.
 */
static struct lease *lease_of(const struct leases *t, const struct open_file *file)
{
    struct lease *found = NULL;

    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        if (l->owner == file && (!found || !l->inode))
            found = l;
    }
    return found;
}

/* --- Revocation ------------------------------------------------------------------------------ */

/* The caller holds the lock. */
static void lease_revoke(struct leases *t, struct lease *l)
{
    if (l->revoked)
        return;
    l->revoked = true;
    l->delete_at = deadline_after_ms(GPUNVME_LEASE_GRACE_MS);
    set_revoked(l);
    lease_queues_stop(t, l);
}

static void lease_stop(struct nvme_user *u)
{
    struct leases *t = (struct leases *)((char *)u - offsetof(struct leases, user));
    unsigned revoked = 0;

    pthread_mutex_lock(&t->lock);
    t->resets++;
    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        if (!l->n_pairs)
            continue;
        lease_revoke(t, l);
        revoked++;
    }
    pthread_mutex_unlock(&t->lock);
    if (revoked)
        log_line(LOG_WARNING, "%s: a reset ends %u leases of queues", t->d->opts->device, revoked);
}

/*
 * The table's thread frees the queues after the grace time: until then a late
 * doorbell store of the holder cannot reach another holder's queue.
 */
static void lease_resume(struct nvme_user *u, int err)
{
    struct leases *t = (struct leases *)((char *)u - offsetof(struct leases, user));

    (void)err;
    pthread_cond_broadcast(&t->changed);
}

void leases_revoke_all(struct leases *t)
{
    pthread_mutex_lock(&t->lock);
    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry))
        lease_revoke(t, l);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void leases_revoke_file(struct leases *t, const struct ffs_inode *inode)
{
    pthread_mutex_lock(&t->lock);
    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        if (l->inode == inode)
            lease_revoke(t, l);
    }
    pthread_mutex_unlock(&t->lock);
}

/*
 * The caller holds the lock. Returns the revoked lease with the earliest
 * delete_at.
 */
static struct lease *next_to_delete(struct leases *t)
{
    struct lease *found = NULL;

    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        if (l->revoked && l->n_pairs && (!found || l->delete_at < found->delete_at))
            found = l;
    }
    return found;
}

/* The caller holds the lock, which is released during the deletion. */
static void delete_revoked(struct leases *t, struct lease *l)
{
    l->deleting = true;
    pthread_mutex_unlock(&t->lock);
    lease_delete_queues(t, l);
    pthread_mutex_lock(&t->lock);
    l->deleting = false;
    pthread_cond_broadcast(&t->changed);
}

static void end_closed(struct leases *t)
{
    struct open_file *file = LIST_FIRST(&t->closed);
    struct lease *l;

    LIST_REMOVE(file, entry);
    while ((l = lease_of(t, file))) {
        lease_take(t, l);
        pthread_mutex_unlock(&t->lock);
        lease_end(t, l);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    file_end(t->d, file);
    pthread_mutex_lock(&t->lock);
}

static void *lease_run(void *arg)
{
    struct leases *t = arg;

    pthread_mutex_lock(&t->lock);
    while (!t->stopping || !LIST_EMPTY(&t->closed)) {
        struct lease *l = next_to_delete(t);
        if (!LIST_EMPTY(&t->closed))
            end_closed(t);
        else if (l && l->delete_at <= now_ns())
            delete_revoked(t, l);
        else if (l)
            cond_wait_until(&t->changed, &t->lock, l->delete_at);
        else
            pthread_cond_wait(&t->changed, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* --- Creation -------------------------------------------------------------------------------- */

static int make_queues(struct leases *t, struct lease *l, unsigned n, uint32_t depth)
{
    pthread_mutex_lock(&t->lock);
    l->resets_seen = t->resets;
    pthread_mutex_unlock(&t->lock);
    int err = lease_page_make(l, 0, 0);
    if (!err)
        err = lease_queues_make(t, l, n, depth);
    pthread_mutex_lock(&t->lock);
    ledger_give(&t->queues, l->uid, n - l->n_pairs); /* the drive had fewer queues */
    pthread_mutex_unlock(&t->lock);
    return err ? err : lease_publish(t, l);
}

static int check_queues(const struct leases *t, const struct gpunvme_ioc_queue_lease *arg)
{
    if (arg->flags || arg->reserved || arg->queues == 0 || arg->queues > GPUNVME_LEASE_MAX ||
        arg->depth == 1)
        return -EINVAL;
    return t->ctrlr ? 0 : -ENOTSUP;
}

int leases_add_queues(struct leases *t, struct open_file *file, uid_t uid,
                      struct gpunvme_ioc_queue_lease *arg)
{
    unsigned granted;
    int err = check_queues(t, arg);

    if (!err)
        err = lease_reserve(t, uid, arg->queues, &granted);
    if (err)
        return err;
    const struct nvme_ctrlr_info *info = nvme_ctrlr_info(t->ctrlr);
    uint32_t depth = arg->depth ? arg->depth : DEFAULT_DEPTH;
    if (depth > info->max_queue_depth)
        depth = info->max_queue_depth;
    struct lease *l = new_lease(file, uid);
    if (!l) {
        lease_unreserve(t, NULL, uid, granted);
        return -ENOMEM;
    }
    err = make_queues(t, l, granted, depth);
    if (err) {
        lease_end(t, l);
        return err;
    }
    arg->queues = l->n_pairs;
    arg->depth = depth;
    arg->nsid = t->d->opts->name.nsid;
    arg->lba_size = t->d->stack.bdev->info.lba_size;
    arg->max_command = info->max_transfer;
    arg->deadline_ms = t->d->opts->deadline_ms;
    arg->id = l->id;
    arg->key = l->key;
    return 0;
}

static int lease_check_extents(const struct leases *t, const struct open_file *file,
                               const struct gpunvme_ioc_extent_lease *arg)
{
    if (arg->reserved || arg->flags > GPUNVME_LEASE_UNVERIFIED)
        return -EINVAL;
    if (file->directory)
        return -EISDIR;
    if ((file->flags & O_ACCMODE) == O_WRONLY)
        return -EBADF;
    if (t->d->stack.data_csum && !arg->flags)
        return -EOPNOTSUPP;
    return t->ctrlr ? 0 : -ENOTSUP;
}

int leases_add_extents(struct leases *t, struct open_file *file, uid_t uid,
                       struct gpunvme_ioc_extent_lease *arg)
{
    unsigned granted;
    uint64_t count = 0;
    bool with_sums = t->d->stack.data_csum && arg->flags == GPUNVME_LEASE_SUMS;
    int err = lease_check_extents(t, file, arg);

    if (!err)
        err = lease_reserve(t, uid, 0, &granted);
    if (err)
        return err;
    struct lease *l = new_lease(file, uid);
    if (!l) {
        lease_unreserve(t, NULL, uid, 0);
        return -ENOMEM;
    }
    err = lease_extents_make(l, file->inode, t, with_sums, &count);
    uint64_t size = l->map.len;
    if (!err)
        err = lease_publish(t, l);
    if (err) {
        lease_end(t, l);
        return err;
    }
    arg->size = size;
    arg->count = count;
    arg->flags = with_sums ? GPUNVME_LEASE_SUMS : 0;
    arg->generation = 1; /* the first generation of a watch */
    arg->id = l->id;
    arg->key = l->key;
    return 0;
}

int leases_serve(void *context, const struct gpunvme_request *request, uid_t uid,
                 struct gpunvme_reply *reply, int fds[2])
{
    struct leases *t = context;

    pthread_mutex_lock(&t->lock);
    struct lease *l = lease_find(t, request->id);
    int n = l ? lease_check(l, request->key, uid) : -ENOENT;
    if (!n && request->what == GPUNVME_ASK_PAGE && request->index == 0) {
        *reply = (struct gpunvme_reply){.len = l->page_len};
        fds[0] = fcntl(l->page_fd, F_DUPFD_CLOEXEC, 0);
        n = fds[0] < 0 ? -errno : 1;
    } else if (!n && request->what == GPUNVME_ASK_QUEUE) {
        n = lease_queues_reply(t, l, request->index, reply, fds);
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

unsigned leases_queues(const struct leases *t)
{
    return (unsigned)t->queues.total;
}

/* --- Opening and closing --------------------------------------------------------------------- */

/*
 * A controller with physical addresses would give a holder access to all memory
 * of the machine.
 */
static struct nvme_ctrlr *leasable(const struct daemon *d)
{
    struct nvme_ctrlr *c = d->opts->direct == DIRECT_NONE ? NULL : d->stack.ctrlr;

    return c && !nvme_ctrlr_transport(c)->physical ? c : NULL;
}

int leases_open(struct daemon *d, struct leases **out)
{
    struct leases *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    *t = (struct leases){.d = d, .ctrlr = leasable(d), .proxied_fd = -1};
    t->count = (struct ledger){.total = LEASES_MAX, .for_root = LEASES_MAX / LEASES_ROOT_PART};
    t->segments = (struct ledger){.total = LEASE_SEGMENTS_MAX,
                                  .for_root = LEASE_SEGMENTS_MAX / LEASES_ROOT_PART};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    int err = lease_queues_open(t);
    if (!err)
        err = -pthread_create(&t->thread, NULL, lease_run, t);
    if (err) {
        lease_queues_close(t);
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
        free(t);
        return err;
    }
    if (t->ctrlr) {
        t->user = (struct nvme_user){.stop = lease_stop, .resume = lease_resume};
        nvme_ctrlr_add_user(t->ctrlr, &t->user);
    }
    *out = t;
    return 0;
}

void leases_close(struct leases *t)
{
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    if (t->ctrlr)
        nvme_ctrlr_remove_user(t->ctrlr, &t->user);
    lease_queues_close(t);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* --- Authorization --------------------------------------------------------------------------- */

int leases_allow(const struct options *opts, struct fuse_req *req)
{
    switch (opts->direct) {
    case DIRECT_ALL:
        return 0;
    case DIRECT_GROUP:
        return caller_is_admin(req) || caller_is_member(req, opts->direct_group) ? 0 : -EPERM;
    case DIRECT_ROOT:
        return caller_is_admin(req) ? 0 : -EPERM;
    default:
        return -EPERM;
    }
}
