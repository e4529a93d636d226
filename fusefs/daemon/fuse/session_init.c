/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates libfuse's session: its operations, its arguments, and the negotiation
 * of capabilities.
 */
#include "fusefs/daemon/fuse/session_init.h"

#include <errno.h>
#include <stdio.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/start/background.h"

/*
 * Some operations are absent on purpose: access (default_permissions checks
 * it), flush (close(2) need not wait), and locks (the kernel has them, since
 * there is one mount on one machine).
 */
static const struct fuse_lowlevel_ops daemon_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .statfs = op_statfs,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .symlink = op_symlink,
    .link = op_link,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_release,
    .fsyncdir = op_fsync,
    .open = op_open,
    .create = op_create,
    .read = op_read,
    .write = op_write,
    .release = op_release,
    .fsync = op_fsync,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
    .copy_file_range = op_copy_file_range,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .ioctl = op_ioctl,
};

/* libfuse consumes the arguments that it knows, so it gets a copy. */
struct fuse_session *session_new(const struct fuse_args *args, struct daemon *d)
{
    struct fuse_args copy = FUSE_ARGS_INIT(0, NULL);
    struct fuse_session *session = NULL;
    int err = 0;

    for (int i = 0; i < args->argc && !err; i++)
        err = fuse_opt_add_arg(&copy, args->argv[i]);
    if (!err)
        session = fuse_session_new(&copy, &daemon_ops, sizeof(daemon_ops), d);
    fuse_opt_free_args(&copy);
    return session;
}

int session_check_arguments(const struct fuse_args *args, struct reason *why)
{
    char text[256];

    log_capture();
    struct fuse_session *session = session_new(args, NULL);
    log_captured(text, sizeof(text));
    if (session) {
        fuse_session_destroy(session);
        return 0;
    }
    return reason_set(why, -EINVAL, "options: %s, see gpunvmefs -h",
                      text[0] ? text : "not understood");
}

static void session_init_want(struct fuse_conn_info *conn, unsigned capability)
{
    conn->want |= conn->capable & capability;
}

/*
 * By default a completed write(2) has reached the file system, so that a GPU
 * read sees it. With the option the kernel also maintains size, mtime and ctime
 * of regular files itself.
 */
static void configure_writeback(struct daemon *d, struct fuse_conn_info *conn)
{
    conn->want &= ~(unsigned)FUSE_CAP_WRITEBACK_CACHE;
    if (!d->opts->writeback_cache)
        return;
    session_init_want(conn, FUSE_CAP_WRITEBACK_CACHE);
    d->writeback_cache = conn->want & FUSE_CAP_WRITEBACK_CACHE;
    ffs_set_data_times(d->stack.fs, d->writeback_cache);
    if (!d->writeback_cache)
        log_line(LOG_WARNING, "%s: writeback_cache: this kernel does not offer it",
                 d->opts->mountpoint);
}

static void configure(struct fuse_conn_info *conn)
{
    conn->max_write = MAX_IO;
    conn->max_read = MAX_IO;
    conn->max_background = BACKGROUND_MAX;
    conn->congestion_threshold = BACKGROUND_BUSY;
    /* NFS file handles need LOOKUP of "." and "..". */
    session_init_want(conn, FUSE_CAP_EXPORT_SUPPORT);
    /*
     * Only this mount changes files, so neither a new mtime nor an open
     * invalidates pages.
     */
    if (conn->capable & FUSE_CAP_EXPLICIT_INVAL_DATA) {
        conn->want |= FUSE_CAP_EXPLICIT_INVAL_DATA;
        conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    }
    /* The target of a symbolic link never changes. */
    session_init_want(conn, FUSE_CAP_CACHE_SYMLINKS);
    session_init_want(conn, FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                                FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ASYNC_READ |
                                FUSE_CAP_ASYNC_DIO | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_IOCTL_DIR);
    /* The kernel checks access by ACLs; the file system applies the umask, or a default ACL. */
    session_init_want(conn, FUSE_CAP_POSIX_ACL | FUSE_CAP_DONT_MASK);
    /* Its second version is negotiated by handshake_run(). */
    conn->want &= ~(unsigned)FUSE_CAP_HANDLE_KILLPRIV;
    /* Replies are sent from memory; a pipe would add a copy. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
}

void session_warn_noiommu(const struct options *opts)
{
    log_line(LOG_WARNING,
             "%s: noiommu: the drive can write to any memory of this machine; a fault of it or of "
             "this program can destroy anything",
             opts->device);
}

/* Handles INIT, the kernel's first request. The mount is served from now on. */
void op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct daemon *d = userdata;
    const struct gq_info *gq = &d->stack.engine_info;

    configure(conn);
    configure_writeback(d, conn);
    if (d->readahead)
        conn->max_readahead = d->readahead;
    if (d->status_fd >= 0) {
        background_ready(d->status_fd);
        if (d->opts->noiommu) /* already printed on the terminal; repeated in the log */
            session_warn_noiommu(d->opts);
    }
    d->status_fd = -1;
    log_line(LOG_INFO, "%s on %s: %s%s%s%s%s", d->opts->device, d->opts->mountpoint,
             d->stack.gpus ? gq->device : d->stack.no_engine.text, gq->fallback.text[0] ? "; " : "",
             gq->fallback.text, gq->tier_note[0] ? "; " : "", gq->tier_note);
}
