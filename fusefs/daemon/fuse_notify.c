/*
 * Notifications to the kernel about changes behind its page cache.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/fuse_notify.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <syslog.h>

#include "fusefs/daemon/daemon_log.h"

/*
 * The kernel learns a file's size from replies to its own requests; an O_APPEND
 * write before the next such reply would use the old end. Storing the last byte
 * into the page cache moves the size at once.
 */
static void push_size(struct fuse_session *session, uint64_t ino, uint64_t size, char last)
{
    struct fuse_bufvec vec = FUSE_BUFVEC_INIT(1);
    vec.buf[0].mem = &last;
    fuse_lowlevel_notify_store(session, ino, (off_t)(size - 1), &vec, (enum fuse_buf_copy_flags)0);
}

void notify_written(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len,
                    bool grew, char last)
{
    if (grew)
        push_size(session, ino, offset + len, last);
    int err = fuse_lowlevel_notify_inval_inode(session, ino, (off_t)offset, (off_t)len);
    /* -ENOENT: the kernel has forgotten the inode and holds no page of it. */
    if (err && err != -ENOENT && err != -ENODEV && err != -ENOTCONN)
        log_line(LOG_ERR, "inode %llu: the page cache was not invalidated after a GPU write: %d",
                 (unsigned long long)ino, err);
}
