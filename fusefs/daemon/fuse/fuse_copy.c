/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * COPY_FILE_RANGE copies bytes between files of the mount through a bounce
 * buffer.
 */
#include <errno.h>

#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/request/setid.h"
#include "fusefs/daemon/state/open_file.h"

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
