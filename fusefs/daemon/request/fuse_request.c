/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the common parts of FUSE operations. */
#include "fusefs/daemon/request/fuse_request.h"

#include <assert.h>
#include <errno.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

#include "fusefs/daemon/base/callers.h"
#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"

struct daemon *op_daemon(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

int op_node(fuse_req_t req, fuse_ino_t ino, struct ffs_inode **out)
{
    return ffs_iget(op_daemon(req)->stack.fs, ino, out);
}

struct open_file *op_file(const struct fuse_file_info *fi)
{
    return (struct open_file *)(uintptr_t)fi->fh;
}

struct ffs_cred op_cred(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    return (struct ffs_cred){.uid = ctx->uid, .gid = ctx->gid, .umask = ctx->umask};
}

void op_reply(fuse_req_t req, int err)
{
    fuse_reply_err(req, -err);
}

void op_stat(const struct ffs_attr *attr, struct stat *st)
{
    *st = (struct stat){.st_ino = attr->ino,
                        .st_mode = attr->mode,
                        .st_nlink = attr->nlink,
                        .st_uid = attr->uid,
                        .st_gid = attr->gid,
                        .st_rdev = attr->rdev,
                        .st_size = (off_t)attr->size,
                        .st_blksize = 4096,
                        .st_blocks = (blkcnt_t)attr->blocks,
                        .st_atim = attr->atime,
                        .st_mtim = attr->mtime,
                        .st_ctim = attr->ctime};
}

void op_entry(struct daemon *d, struct ffs_inode *inode, struct fuse_entry_param *e)
{
    struct ffs_attr attr;

    kernel_cache_add(inode, KERNEL_ATTR);
    ffs_getattr(inode, &attr);
    *e = (struct fuse_entry_param){.ino = attr.ino,
                                   .generation = attr.generation,
                                   .attr_timeout = d->opts->attr_timeout_s,
                                   .entry_timeout = d->opts->entry_timeout_s};
    op_stat(&attr, &e->attr);
}

/*
 * If the kernel does not accept the reply because the process was killed, the
 * lookup does not count.
 */
void op_reply_entry(fuse_req_t req, int err, struct ffs_inode *inode)
{
    struct fuse_entry_param e;

    if (err) {
        op_reply(req, err);
        return;
    }
    op_entry(op_daemon(req), inode, &e);
    if (fuse_reply_entry(req, &e) != 0)
        ffs_iput(inode, 1);
}

/* --- Requests without an operation of libfuse ------------------------------------------------ */

/* <linux/fuse.h> of Linux 6.1 does not define STATX. */
#define RAW_STATX 52u

/* The fields of struct fuse_statx are those of struct statx. */
struct raw_statx_out {
    uint64_t attr_valid;
    uint32_t attr_valid_nsec, flags;
    uint64_t spare[2];
    struct statx stat;
};
static_assert(sizeof(struct raw_statx_out) == 288, "struct fuse_statx_out is 288 bytes");

static struct statx_timestamp raw_time(struct timespec t)
{
    return (struct statx_timestamp){.tv_sec = t.tv_sec, .tv_nsec = (uint32_t)t.tv_nsec};
}

static void raw_requests_fill(const struct ffs_attr *a, struct statx *out)
{
    *out = (struct statx){.stx_mask = STATX_BASIC_STATS | STATX_BTIME,
                          .stx_blksize = 4096,
                          .stx_nlink = a->nlink,
                          .stx_uid = a->uid,
                          .stx_gid = a->gid,
                          .stx_mode = (uint16_t)a->mode,
                          .stx_ino = a->ino,
                          .stx_size = a->size,
                          .stx_blocks = a->blocks,
                          .stx_atime = raw_time(a->atime),
                          .stx_btime = raw_time(a->btime),
                          .stx_ctime = raw_time(a->ctime),
                          .stx_mtime = raw_time(a->mtime),
                          .stx_rdev_major = major(a->rdev),
                          .stx_rdev_minor = minor(a->rdev)};
}

static int do_statx(struct daemon *d, uint64_t node, struct raw_statx_out *out)
{
    struct ffs_inode *inode;
    struct ffs_attr attr;
    int err = ffs_iget(d->stack.fs, node, &inode);

    if (err)
        return err;
    kernel_cache_add(inode, KERNEL_ATTR);
    ffs_getattr(inode, &attr);
    ffs_iput(inode, 1);
    *out = (struct raw_statx_out){.attr_valid = d->opts->attr_timeout_s};
    raw_requests_fill(&attr, &out->stat);
    return 0;
}

/* If the kernel does not accept a reply, it has abandoned the request. */
static void raw_requests_answer(int fd, const struct fuse_in_header *in, int err, void *body,
                                size_t len)
{
    size_t used = err ? 0 : len;
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof(head) + used), .error = err, .unique = in->unique};
    struct iovec iov[2] = {{&head, sizeof(head)}, {body, used}};
    ssize_t n = writev(fd, iov, 2);

    (void)n;
}

/* The body of both requests is struct fuse_create_in followed by a name. */
static void make_create(struct fuse_in_header *in, char *body, size_t len)
{
    if (len <= sizeof(struct fuse_create_in))
        return;
    in->opcode = FUSE_CREATE;
    body[sizeof(struct fuse_create_in)] = '\0';
}

static _Thread_local bool clears_setid;

bool raw_clears_setid(void)
{
    return clears_setid;
}

/* Returns the body of a request, or NULL if it is too short. */
static const void *body_of(const struct fuse_in_header *in, size_t len, size_t body)
{
    return len >= sizeof(*in) + body ? in + 1 : NULL;
}

/*
 * With a new owner the flag is always set; the file system handles that case
 * itself.
 */
static bool truncates_and_clears(uint32_t valid)
{
    return (valid & FATTR_SIZE) && (valid & FATTR_KILL_SUIDGID);
}

static bool asks_to_clear(const struct fuse_in_header *in, size_t len)
{
    const struct fuse_write_in *write = body_of(in, len, sizeof(*write));
    const struct fuse_setattr_in *setattr = body_of(in, len, sizeof(*setattr));
    const struct fuse_open_in *open = body_of(in, len, sizeof(*open));
    const struct fuse_create_in *create = body_of(in, len, sizeof(*create));

    switch (in->opcode) {
    case FUSE_WRITE:
        return write && (write->write_flags & FUSE_WRITE_KILL_SUIDGID);
    case FUSE_SETATTR:
        return setattr && truncates_and_clears(setattr->valid);
    case FUSE_OPEN:
        return open && (open->open_flags & FUSE_OPEN_KILL_SUIDGID);
    case FUSE_CREATE:
        return create && (create->open_flags & FUSE_OPEN_KILL_SUIDGID);
    default:
        return false;
    }
}

/*
 * At most this many requests wait for a flush in session threads. They are
 * fewer than the share of one user (session_share.h), whose other threads serve
 * requests that need no flush, however slow the drive is.
 */
#define INLINE_SYNCS (SESSION_THREADS_MAX * 3u / 8u)

void request_sync(struct daemon *d, struct job *job)
{
    /* Relaxed: the counter limits threads and orders no memory. */
    bool here = atomic_fetch_add_explicit(&d->inline_syncs, 1, memory_order_relaxed) < INLINE_SYNCS;

    if (here)
        job->run(job);
    atomic_fetch_sub_explicit(&d->inline_syncs, 1, memory_order_relaxed);
    if (!here)
        workers_add(d->workers, WORK_SYNC, job);
}

struct syncfs_job {
    struct job job;
    struct daemon *daemon;
    int fd;
    struct fuse_in_header in;
};

static void syncfs_run(struct job *job)
{
    struct syncfs_job *s = (struct syncfs_job *)job;

    raw_requests_answer(s->fd, &s->in, ffs_sync(s->daemon->stack.fs), NULL, 0);
    free(s);
}

static void raw_syncfs(struct daemon *d, int fd, const struct fuse_in_header *in)
{
    struct syncfs_job *s = malloc(sizeof(*s));

    if (!s) {
        raw_requests_answer(fd, in, -ENOMEM, NULL, 0);
        return;
    }
    *s = (struct syncfs_job){
        .job = {.run = syncfs_run, .uid = in->uid}, .daemon = d, .fd = fd, .in = *in};
    request_sync(d, &s->job);
}

bool raw_request(struct daemon *d, int fd, void *buf, size_t len)
{
    struct fuse_in_header *in = buf;
    struct raw_statx_out statx;

    if (len < sizeof(*in))
        return false;
    atomic_fetch_add_explicit(&d->totals.requests, 1, memory_order_relaxed);
    clears_setid = asks_to_clear(in, len);
    switch (in->opcode) {
    case FUSE_TMPFILE:
        make_create(in, (char *)(in + 1), len - sizeof(*in));
        return false;
    case FUSE_SYNCFS:
        raw_syncfs(d, fd, in);
        return true;
    case RAW_STATX:
        raw_requests_answer(fd, in, do_statx(d, in->nodeid, &statx), &statx, sizeof(statx));
        return true;
    default:
        return false;
    }
}

/* --- The caller ------------------------------------------------------------------------------ */

bool caller_is_member(fuse_req_t req, gid_t group)
{
    const struct fuse_ctx *caller = fuse_req_ctx(req);

    return caller->gid == group || callers_is_member(op_daemon(req)->callers, caller->pid, group);
}

bool caller_is_admin(fuse_req_t req)
{
    const struct fuse_ctx *caller = fuse_req_ctx(req);

    return caller->uid == 0 && callers_is_admin(op_daemon(req)->callers, caller->pid);
}

/* --- Set-id bits ----------------------------------------------------------------------------- */

static bool has_bits(struct ffs_inode *inode, gid_t *group)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    *group = attr.gid;
    return S_ISREG(attr.mode) && (attr.mode & (S_ISUID | S_ISGID));
}

int setid_clear(struct daemon *d, struct ffs_inode *inode, bool outsider)
{
    gid_t group;

    if (!has_bits(inode, &group))
        return 0;
    int err = ffs_clear_setid(inode, outsider);
    /*
     * The kernel has cached the bits and would still honour them in execve(2).
     */
    if (!err)
        notify_attr(d->session, ffs_ino(inode));
    return err;
}

int setid_before_change(fuse_req_t req, struct ffs_inode *inode, bool clears)
{
    gid_t group;

    if (!clears || !has_bits(inode, &group))
        return 0;
    return setid_clear(op_daemon(req), inode, !caller_is_member(req, group));
}
