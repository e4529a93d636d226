/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies to WRITE requests of O_DIRECT files. */
#include "fusefs/daemon/fuse/direct_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"

/*
 * At most half of the initial session threads may run invalidations. The
 * remaining ones must stay free to serve the requests that unlock pages, except
 * one that may run a WRITE ioctl (ioctl_run()).
 */
#define INLINE_MAX (SESSION_THREADS / 2)
/*
 * Maximum number of delayed replies. Each leaves one of the kernel's
 * BACKGROUND_MAX requests unanswered, and so does the READ that unlocks the
 * page.
 */
#define HELD_MAX (BACKGROUND_MAX * 3 / 4)

struct held_write {
    struct job job;
    struct daemon *daemon;
    fuse_req_t req; /* NULL after the reply */
    uint64_t ino, offset;
    size_t len;
};

bool direct_write_applies(const struct fuse_file_info *fi)
{
    return (fi->flags & O_DIRECT) && fi->lock_owner;
}

static void direct_write_invalidate(struct job *job)
{
    struct held_write *h = (struct held_write *)job;

    notify_pages(h->daemon->session, h->ino, h->offset, h->len);
    if (h->req) {
        fuse_reply_write(h->req, h->len);
        atomic_fetch_sub(&h->daemon->held_writes, 1);
    }
    free(h);
}

/*
 * Invalidates here or in a worker, and then replies. Beyond HELD_MAX the reply
 * comes first, so that stale data is visible until the invalidation.
 */
static void direct_write_hold(struct daemon *d, struct held_write *h)
{
    unsigned held = atomic_fetch_add(&d->held_writes, 1);

    if (held < INLINE_MAX) {
        direct_write_invalidate(&h->job);
        return;
    }
    if (held >= HELD_MAX) {
        atomic_fetch_sub(&d->held_writes, 1);
        fuse_reply_write(h->req, h->len);
        h->req = NULL;
    }
    workers_add(d->workers, WORK_CACHE, &h->job);
}

void direct_write_reply(fuse_req_t req, struct ffs_inode *inode, uint64_t offset, size_t n)
{
    struct daemon *d = op_daemon(req);

    if (!kernel_cache_has(inode, KERNEL_PAGES)) {
        if (kernel_cache_take(inode, KERNEL_ATTR))
            notify_attr(d->session, ffs_ino(inode));
        fuse_reply_write(req, n);
        return;
    }
    struct held_write *h = malloc(sizeof(*h));
    if (!h) {
        op_reply(req, -ENOMEM);
        return;
    }
    *h = (struct held_write){.job.run = direct_write_invalidate,
                             .daemon = d,
                             .req = req,
                             .ino = ffs_ino(inode),
                             .offset = offset,
                             .len = n};
    direct_write_hold(d, h);
}
