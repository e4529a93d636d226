/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the file operations OPEN, CREATE, READ, WRITE, FSYNC, FALLOCATE
 * and LSEEK.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"
#include "layout/format.h"

/* --- Direct writes --------------------------------------------------------------------------- */

/*
 * At most half of the initial session threads may run invalidations. The
 * remaining ones must stay free to serve the requests that unlock pages, except
 * one that may run a WRITE ioctl (ioctl_run()).
 */
#define INLINE_MAX (SESSION_THREADS / 2)
/*
 * At most this many replies are delayed. Each of them leaves a request of the
 * kernel unanswered.
 */
#define HELD_MAX 48

struct held_write {
    struct job job;
    struct daemon *daemon;
    fuse_req_t req; /* NULL after the reply */
    uint64_t ino, offset;
    size_t len;
};

/*
 * Returns true for a request that bypasses the page cache and whose caller
 * holds no page lock. The lock owner distinguishes it from the buffered
 * remainder of a short O_DIRECT write.
 */
static bool direct_write_applies(const struct fuse_file_info *fi)
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

/*
 * Replies, perhaps later, that n bytes at offset were written.
 *
 * The kernel invalidates its pages after a synchronous O_DIRECT write, but not
 * after an asynchronous one (io_submit, io_uring), and the request does not
 * show which it is. The daemon therefore invalidates them before the reply, so
 * that a buffered read after the completion returns the new data.
 */
static void direct_write_reply(fuse_req_t req, struct ffs_inode *inode, uint64_t offset, size_t n)
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

/* --- Open and close -------------------------------------------------------------------------- */

/*
 * keep_cache keeps pages valid across opens. All changes pass through the
 * kernel, except those of the WRITE ioctl and of O_DIRECT writes, which
 * invalidate the written range.
 */
static int open_inode(fuse_req_t req, struct ffs_inode *inode, struct fuse_file_info *fi)
{
    struct daemon *d = op_daemon(req);
    struct open_file *file;
    int err = file_new(d, inode, fi->flags, false, &file);

    if (err)
        return err;
    /*
     * The open file counts as a writer from now on. A lease that is not yet in
     * the table, so that this call does not find it, is therefore refused.
     */
    if (file_has_writer(d, inode) && file_writes(file) && ffs_watch_any(inode))
        leases_revoke_file(d->leases, inode);
    /* Requests in which the kernel writes pages back do not name a caller. */
    if (d->writeback_cache)
        activity_caller(&file->activity, fuse_req_ctx(req)->uid, fuse_req_ctx(req)->pid);
    fi->fh = (uintptr_t)file;
    /* With strictatime the first read after an open must reach the file system. */
    fi->keep_cache = !ffs_access_always(d->stack.fs);
    return 0;
}

/*
 * Refuses the open before anything is written, as Linux does for local files
 * with these flags. An append-only file excludes writeback_cache, because the
 * kernel rewrites its last page.
 */
static int check_open(struct daemon *d, struct ffs_inode *inode, int flags)
{
    struct ffs_attr attr;
    bool writes = (flags & O_ACCMODE) != O_RDONLY;

    if (!writes && !(flags & O_TRUNC))
        return 0;
    ffs_getattr(inode, &attr);
    if (attr.flags & LAY_INODE_IMMUTABLE)
        return -EPERM;
    if (!(attr.flags & LAY_INODE_APPEND))
        return 0;
    if ((flags & O_TRUNC) || !(flags & O_APPEND))
        return -EPERM;
    return d->writeback_cache ? -EOPNOTSUPP : 0;
}

/* Checks an open, and truncates the file as O_TRUNC asks. */
static int prepare_open(fuse_req_t req, struct ffs_inode *inode, int flags)
{
    struct ffs_attr attr = {.size = 0};
    int err = check_open(op_daemon(req), inode, flags);

    if (err || !(flags & O_TRUNC))
        return err;
    err = setid_before_change(req, inode, raw_clears_setid());
    return err ? err : ffs_setattr(inode, &attr, FFS_SET_SIZE, &attr);
}

/*
 * Records the use of a file in a cache directory, because the access times of
 * relatime are not recent enough for its choice of victims.
 */
static void note_use(struct daemon *d, struct ffs_inode *inode, int flags)
{
    struct ffs_attr attr;

    if (!caches_counts_use(inode) || (flags & O_NOATIME) || d->access == FFS_ACCESS_NEVER)
        return;
    (void)ffs_setattr(inode, &attr, FFS_SET_ATIME_NOW, &attr);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct daemon *d = op_daemon(req);
    struct ffs_inode *inode;
    int err = op_node(req, ino, &inode);

    if (err)
        goto reply;
    err = prepare_open(req, inode, fi->flags);
    if (err)
        ffs_iput(inode, 1);
    else
        err = open_inode(req, inode, fi);
    if (!err)
        note_use(d, inode, fi->flags);
reply:
    if (err) {
        op_reply(req, err);
        return;
    }
    if (fuse_reply_open(req, fi) != 0)
        file_free(d, op_file(fi));
}

/*
 * Replies with an entry and an open file. The inode carries the entry's
 * reference.
 */
static void reply_create(fuse_req_t req, int err, struct ffs_inode *inode,
                         struct fuse_file_info *fi)
{
    struct daemon *d = op_daemon(req);
    struct fuse_entry_param e;

    if (!err) {
        ffs_iref(inode, 1);
        err = open_inode(req, inode, fi);
        if (err)
            ffs_iput(inode, 1);
    }
    if (err) {
        op_reply(req, err);
        return;
    }
    op_entry(d, inode, &e);
    if (fuse_reply_create(req, &e, fi) != 0) {
        file_free(d, op_file(fi));
        ffs_iput(inode, 1);
    }
}

/*
 * Serves a CREATE whose name exists by now: opens that file, unless O_EXCL is
 * set.
 */
static int open_existing(fuse_req_t req, struct ffs_inode *dir, const char *name, int flags,
                         struct ffs_inode **out)
{
    int err = ffs_lookup(dir, name, out);

    if (err)
        return err;
    err = prepare_open(req, *out, flags);
    if (err)
        ffs_iput(*out, 1);
    return err;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    struct ffs_cred cred = op_cred(req);
    struct ffs_inode *dir;
    struct ffs_inode *inode = NULL;
    int err = op_node(req, parent, &dir);

    mode = (mode & ~(mode_t)S_IFMT) | S_IFREG;
    if (!err) {
        err = *name ? ffs_mknod(dir, name, mode, 0, &cred, &inode)
                    : ffs_tmpfile(dir, mode, &cred, &inode);
        if (err == -EEXIST && !(fi->flags & O_EXCL))
            err = open_existing(req, dir, name, fi->flags, &inode);
        if (!err)
            caches_adopt(op_daemon(req)->caches, dir, inode);
        ffs_iput(dir, 1);
    }
    reply_create(req, err, inode, fi);
}

/* Writes within the limit of a cache directory. */
static ssize_t write_inode(struct daemon *d, struct ffs_inode *inode, uint64_t offset,
                           const char *data, size_t size)
{
    struct caches_charge charge;
    ssize_t n = caches_charge_begin(d->caches, inode, offset, size, &charge);

    if (n == 0) {
        n = ffs_write(inode, offset, data, size);
        caches_charge_end(d->caches, inode, &charge);
    }
    return n;
}

/*
 * Writes pages that the kernel writes back. The kernel treats a short reply as
 * complete, so the bytes after a partial write get an error of their own.
 */
static ssize_t file_write_pages(struct daemon *d, struct ffs_inode *inode, uint64_t offset,
                                const char *data, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = write_inode(d, inode, offset + done, data + done, size - done);
        if (n <= 0)
            return n < 0 ? n : -EIO;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static int fuse_file_allocate(struct daemon *d, struct ffs_inode *inode, int mode, uint64_t offset,
                              uint64_t len)
{
    struct caches_charge charge;
    uint64_t grows = mode & FALLOC_FL_PUNCH_HOLE ? 0 : len;
    int err = caches_charge_begin(d->caches, inode, offset, grows, &charge);

    if (!err) {
        err = ffs_fallocate(inode, (uint32_t)mode, offset, len);
        caches_charge_end(d->caches, inode, &charge);
    }
    return err;
}

static struct op file_op_begin(fuse_req_t req, struct open_file *file, unsigned kind, off_t offset,
                               size_t size)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    struct op op = {.totals = &op_daemon(req)->totals,
                    .activity = &file->activity,
                    .kind = kind,
                    .ino = ffs_ino(file->inode),
                    .offset = (uint64_t)offset,
                    .len = size};

    activity_caller(&file->activity, ctx->uid, ctx->pid);
    op_begin(&op);
    return op;
}

/*
 * Ends the record of a read or write. n is the number of bytes moved, or
 * -errno.
 */
static void file_op_end(struct op *op, ssize_t n)
{
    op->bytes = n > 0 ? (uint64_t)n : 0;
    op->error = n < 0 ? (int)n : 0;
    op_end(op);
}

/*
 * Refuses a request beyond MAX_IO: the kernel would treat a short reply as the
 * end of the file.
 */
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    char *data = bounce_own()->data;

    (void)ino;
    if (size > MAX_IO) {
        op_reply(req, -EINVAL);
        return;
    }
    struct ffs_inode *inode = op_file(fi)->inode;
    struct op op = file_op_begin(req, op_file(fi), OP_KERNEL_READ, offset, size);
    if (!direct_write_applies(fi))
        kernel_cache_add(inode, KERNEL_PAGES);
    ssize_t n = file_read(inode, (uint64_t)offset, data, size);
    /*
     * The kernel reads a page before it writes a part of it, also with
     * writeback_cache.
     */
    if (n > 0 && (op_file(fi)->flags & O_ACCMODE) != O_WRONLY)
        file_accessed(inode, fi->flags);
    file_op_end(&op, n);
    if (n < 0)
        op_reply(req, (int)n);
    else
        fuse_reply_buf(req, data, (size_t)n);
}

/*
 * With writeback_cache the kernel keeps size and times, but not the block
 * count. It must therefore request the count again after this write has
 * allocated blocks.
 */
static void refresh_blocks(struct daemon *d, struct ffs_inode *inode)
{
    if (d->writeback_cache && kernel_cache_take(inode, KERNEL_ATTR))
        notify_attr(d->session, ffs_ino(inode));
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t offset,
              struct fuse_file_info *fi)
{
    (void)ino;
    struct ffs_inode *inode = op_file(fi)->inode;
    struct op op = file_op_begin(req, op_file(fi), OP_KERNEL_WRITE, offset, size);
    bool direct = direct_write_applies(fi);
    if (!direct)
        kernel_cache_add(inode, KERNEL_PAGES);
    ssize_t n = setid_before_change(req, inode, raw_clears_setid());
    if (n == 0)
        n = (fi->writepage ? file_write_pages : write_inode)(op_daemon(req), inode,
                                                             (uint64_t)offset, data, size);
    file_op_end(&op, n);
    if (n > 0 && !direct)
        refresh_blocks(op_daemon(req), inode);
    if (n < 0)
        op_reply(req, (int)n);
    else if (direct)
        direct_write_reply(req, inode, (uint64_t)offset, (size_t)n);
    else
        fuse_reply_write(req, (size_t)n);
}

struct fsync_job {
    struct job job;
    fuse_req_t req;
    struct ffs_inode *inode; /* the open file holds a reference */
    fuse_ino_t ino;
    bool data_only;
};

static void run_fsync(struct job *job)
{
    struct fsync_job *f = (struct fsync_job *)job;
    int err = f->ino == FUSE_ROOT_ID ? ffs_sync(op_daemon(f->req)->stack.fs)
                                     : ffs_fsync(f->inode, f->data_only);

    op_reply(f->req, err);
    free(f);
}

/*
 * Also serves FSYNCDIR. On the root directory it makes all data durable, since
 * not every kernel passes on sync(2) and syncfs(2).
 */
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
    struct fsync_job *f = malloc(sizeof(*f));

    if (!f) {
        op_reply(req, -ENOMEM);
        return;
    }
    *f = (struct fsync_job){.job = {.run = run_fsync, .uid = fuse_req_ctx(req)->uid},
                            .req = req,
                            .inode = op_file(fi)->inode,
                            .ino = ino,
                            .data_only = data_only != 0};
    request_sync(op_daemon(req), &f->job);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t len,
                  struct fuse_file_info *fi)
{
    struct ffs_inode *inode = op_file(fi)->inode;
    /* This request does not show whether the caller has CAP_FSETID. */
    int err = setid_before_change(req, inode, fuse_req_ctx(req)->uid != 0);

    (void)ino;
    err = err ? err
              : fuse_file_allocate(op_daemon(req), inode, mode, (uint64_t)offset, (uint64_t)len);
    op_reply(req, err);
}

struct seek_job {
    struct job job;
    fuse_req_t req;
    struct ffs_inode *inode; /* the open file holds a reference */
    uint64_t offset;
    int whence;
};

static void seek(fuse_req_t req, struct ffs_inode *inode, uint64_t offset, int whence)
{
    int64_t found = ffs_seek(inode, offset, whence);

    if (found < 0)
        op_reply(req, (int)found);
    else
        fuse_reply_lseek(req, (off_t)found);
}

/* Limits the work for a file whose holes fill up meanwhile. */
#define SEEK_HOLES 64u

/*
 * Writes back what programs have stored, through mappings, into the hole that
 * the result depends on: the one at the offset, or for SEEK_HOLE the next one.
 * Pages of data need no look.
 */
static void flush_hole(struct daemon *d, const struct seek_job *s)
{
    struct ffs_attr attr;
    int64_t hole = -1, last;

    ffs_getattr(s->inode, &attr);
    for (unsigned i = 0; i < SEEK_HOLES; i++) {
        last = hole;
        hole =
            s->whence == SEEK_DATA ? (int64_t)s->offset : ffs_seek(s->inode, s->offset, SEEK_HOLE);
        if (hole < 0 || hole == last || (uint64_t)hole >= attr.size)
            return;
        int64_t data = ffs_seek(s->inode, (uint64_t)hole, SEEK_DATA);
        if (data == hole)
            return;
        notify_pages(d->session, ffs_ino(s->inode), (uint64_t)hole,
                     data < 0 ? 0 : (uint64_t)(data - hole));
    }
}

static void run_seek(struct job *job)
{
    struct seek_job *s = (struct seek_job *)job;
    struct daemon *d = op_daemon(s->req);

    if (file_has_writer(d, s->inode))
        notify_flush(d, s->inode, 0, 0);
    else
        flush_hole(d, s);
    seek(s->req, s->inode, s->offset, s->whence);
    free(s);
}

/*
 * The kernel sends this request without writing back dirty pages, which are
 * data and not holes.
 */
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
    (void)ino;
    if (offset < 0 || (whence != SEEK_DATA && whence != SEEK_HOLE)) {
        op_reply(req, offset < 0 ? -ENXIO : -EINVAL);
        return;
    }
    struct ffs_inode *inode = op_file(fi)->inode;
    if (!file_may_be_dirty(inode)) {
        seek(req, inode, (uint64_t)offset, whence);
        return;
    }
    struct seek_job *s = malloc(sizeof(*s));
    if (!s) {
        op_reply(req, -ENOMEM);
        return;
    }
    *s = (struct seek_job){.job.run = run_seek,
                           .req = req,
                           .inode = inode,
                           .offset = (uint64_t)offset,
                           .whence = whence};
    workers_add(op_daemon(req)->workers, WORK_CACHE, &s->job);
}

/* --- Close ----------------------------------------------------------------------------------- */

void file_free(struct daemon *d, struct open_file *file)
{
    file_unlist(d, file);
    if (!leases_release(d->leases, file))
        file_end(d, file);
}

void files_free_all(struct daemon *d)
{
    while (!LIST_EMPTY(&d->files))
        file_free(d, LIST_FIRST(&d->files));
}

/* --- COPY_FILE_RANGE ------------------------------------------------------------------------- */

/*
 * Maximum bytes of one request, which limits the time that it occupies a
 * session thread. The caller requests the rest.
 */
#define COPY_MAX (64u << 20)

/*
 * Copies up to MAX_IO bytes. Returns 0 if from_offset is at the end of the
 * file.
 */
static ssize_t copy_some(struct ffs_inode *from, uint64_t from_offset, struct ffs_inode *to,
                         uint64_t to_offset, size_t len, void *buf)
{
    ssize_t n = file_read(from, from_offset, buf, len < MAX_IO ? len : MAX_IO);

    return n > 0 ? ffs_write(to, to_offset, buf, (size_t)n) : n;
}

/*
 * The kernel has checked limits, modes and overlap. It writes dirty pages of
 * both files back before the request, and drops those of the copied range after
 * it.
 */
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct bounce_pool *pool = &op_daemon(req)->bounces;
    struct bounce *b = flags == 0 ? bounce_get(pool) : NULL;
    struct caches *caches = op_daemon(req)->caches;
    struct ffs_inode *to = op_file(fi_out)->inode;
    struct caches_charge charge;
    ssize_t n = 1;
    size_t done = 0;

    (void)ino_in;
    (void)ino_out;
    if (!b) {
        op_reply(req, flags == 0 ? -ENOMEM : -EINVAL);
        return;
    }
    len = len < COPY_MAX ? len : COPY_MAX;
    /*
     * As for FALLOCATE, the kernel does not report whether the caller has
     * CAP_FSETID.
     */
    n = setid_before_change(req, to, fuse_req_ctx(req)->uid != 0) ?: 1;
    if (n > 0)
        n = caches_charge_begin(caches, to, (uint64_t)offset_out, len, &charge) ?: 1;
    bool charged = n > 0;
    while (done < len && n > 0) {
        n = copy_some(op_file(fi_in)->inode, (uint64_t)offset_in + done, to,
                      (uint64_t)offset_out + done, len - done, b->data);
        done += n > 0 ? (size_t)n : 0;
    }
    if (charged)
        caches_charge_end(caches, to, &charge);
    bounce_put(pool, b);
    if (done > 0)
        file_accessed(op_file(fi_in)->inode, op_file(fi_in)->flags);
    if (n < 0 && done == 0)
        op_reply(req, (int)n);
    else
        fuse_reply_write(req, done);
}
