/* SPDX-License-Identifier: BSD-2-Clause */
/* Decodes and checks the READV ioctl, and replies to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/transfer/buffer_readv.h"

struct readv_job {
    struct job job;
    fuse_req_t req;
    struct readv readv;
};

static void cancel(fuse_req_t req, void *data)
{
    struct readv *r = data;

    (void)req;
    atomic_store_explicit(&r->t.cancel, 1, memory_order_relaxed);
}

/*
 * The reply carries the struct even with an error, since it has the bytes read.
 */
static void ioctl_readv_run(struct job *job)
{
    struct readv_job *rj = (struct readv_job *)job;
    struct readv *r = &rj->readv;
    struct daemon *d = r->t.daemon;

    notify_flush(d, r->t.inode, 0, 0);
    readv_run(r);
    /*
     * Waits for the delivery of an interrupt. Nothing refers to the batch
     * afterwards.
     */
    fuse_req_interrupt_func(rj->req, NULL, NULL);
    fuse_reply_ioctl(rj->req, r->t.error, &r->v, sizeof(r->v));
    if (r->t.needs_recovery)
        transfer_recover(d);
    free(rj);
}

static int ioctl_readv_check(const struct open_file *file, const struct gpunvme_ioc_readv *v)
{
    int err = ioctl_check_abi(&v->abi, sizeof(*v));

    if (err)
        return err;
    if (v->flags & ~(GPUNVME_NO_FALLBACK | GPUNVME_STAGED))
        return -EINVAL;
    if (file->directory)
        return -EISDIR;
    return (file->flags & O_ACCMODE) == O_WRONLY ? -EBADF : 0;
}

void ioctl_readv(struct fuse_req *req, struct open_file *file, const void *in)
{
    struct readv_job *job = calloc(1, sizeof(*job));
    int err = job ? 0 : -ENOMEM;

    if (!err) {
        memcpy(&job->readv.v, in, sizeof(job->readv.v));
        err = ioctl_readv_check(file, &job->readv.v);
    }
    if (err) {
        free(job);
        op_reply(req, err);
        return;
    }
    job->job.run = ioctl_readv_run;
    job->job.uid = fuse_req_ctx(req)->uid;
    job->req = req;
    job->readv.t.daemon = op_daemon(req);
    job->readv.t.inode = file->inode;
    job->readv.t.op.activity = &file->activity;
    job->readv.t.uid = fuse_req_ctx(req)->uid;
    fuse_req_interrupt_func(req, cancel, &job->readv);
    ioctl_run(op_daemon(req), file->inode, &job->job, false);
}
