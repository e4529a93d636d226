/* SPDX-License-Identifier: BSD-2-Clause */
/* Notifies the kernel of changes that bypass its page cache. */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/request/fuse_notify.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"

/*
 * The kernel takes a file's size from replies to its own requests. An O_APPEND
 * write before the next such reply would use the old end. Storing the last byte
 * into the page cache moves the size at once. Until the page is invalidated, it
 * is read only if the stored byte is the first byte of the page, or if the
 * kernel had the page before. In the second case the bytes before the last one
 * are old, too.
 */
static void push_size(struct fuse_session *session, uint64_t ino, uint64_t size, char last)
{
    struct fuse_bufvec vec = FUSE_BUFVEC_INIT(1);

    vec.buf[0].mem = &last;
    fuse_lowlevel_notify_store(session, ino, (off_t)(size - 1), &vec, (enum fuse_buf_copy_flags)0);
}

static void notify_invalidate(struct fuse_session *session, uint64_t ino, off_t offset, off_t len)
{
    int err = fuse_lowlevel_notify_inval_inode(session, ino, offset, len);

    /*
     * -ENOENT means that the kernel has forgotten the inode and holds no page
     * of it.
     */
    if (err && err != -ENOENT && err != -ENODEV && err != -ENOTCONN)
        log_line(LOG_ERR, "inode %llu: the page cache was not invalidated after a write: %d",
                 (unsigned long long)ino, err);
}

void notify_pages(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len)
{
    notify_invalidate(session, ino, (off_t)offset, (off_t)len);
}

/*
 * The kernel writes dirty pages before it drops them, and waits for writes in
 * progress. A dirty page behind the range can move the end of the file, and
 * with it the content of the range.
 */
void notify_flush(struct daemon *d, struct ffs_inode *inode, uint64_t offset, uint64_t len)
{
    struct ffs_attr attr;

    if (!kernel_cache_is_newer(d, inode))
        return;
    ffs_getattr(inode, &attr);
    bool inside = offset < attr.size && len <= attr.size - offset;
    notify_pages(d->session, ffs_ino(inode), offset, inside ? len : 0);
}

/* A negative offset invalidates no pages. */
void notify_attr(struct fuse_session *session, uint64_t ino)
{
    notify_invalidate(session, ino, -1, 0);
}

void notify_written(struct fuse_session *session, struct ffs_inode *inode, uint64_t offset,
                    uint64_t len, bool grew, char last)
{
    uint64_t ino = ffs_ino(inode);

    if (grew) {
        kernel_cache_add(inode, KERNEL_PAGES);
        push_size(session, ino, offset + len, last);
    }
    if (kernel_cache_has(inode, KERNEL_PAGES))
        notify_pages(session, ino, offset, len);
    else
        notify_attr(session, ino);
}

/*
 * The result may be -ENOENT: the kernel does not know the name, or knows it as
 * another inode's.
 */
void notify_removed(struct fuse_session *session, uint64_t dir, uint64_t ino, const char *name)
{
    (void)fuse_lowlevel_notify_delete(session, dir, ino, name, strlen(name));
}
