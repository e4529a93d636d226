/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The table of leases: creation, removal, revocation at a reset, and the thread
 * that deletes queues.
 */
#include "fusefs/daemon/lease/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/lease/lease_internal.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/state/daemon.h"
#include "support/clock.h"

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
static void revoke(struct leases *t, struct lease *l)
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
        revoke(t, l);
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
        revoke(t, l);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void leases_revoke_file(struct leases *t, const struct ffs_inode *inode)
{
    pthread_mutex_lock(&t->lock);
    for (struct lease *l = LIST_FIRST(&t->all); l; l = LIST_NEXT(l, entry)) {
        if (l->inode == inode)
            revoke(t, l);
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
