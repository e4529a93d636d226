/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs the FUSE session: mount, negotiation of capabilities, services, and
 * loop.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/session/fuse_session.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/base/metrics_server.h"
#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/fuse/session_init.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/session/session_loop.h"
#include "fusefs/daemon/session/shutdown.h"
#include "fusefs/daemon/start/background.h"
#include "fusefs/daemon/state/buffers.h"
#include "fusefs/metrics.h"
#include "support/trace.h"

/* --- INIT ------------------------------------------------------------------------------------ */

/* The kernel queues INIT before mount(2) returns. */
#define INIT_MS 10000
/*
 * A request fits; the kernel demands room for at least 4 KiB of data and the
 * headers.
 */
#define REQUEST_ROOM (128u << 10)

struct init_reply {
    struct fuse_out_header head;
    struct fuse_init_out body;
};

/* Returns the flags that the kernel offers. */
static uint32_t offer_of(const char *request, size_t len)
{
    const struct fuse_init_in *init = (const void *)(request + sizeof(struct fuse_in_header));
    size_t needed =
        sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, flags) + sizeof(init->flags);

    return len >= needed ? init->flags : 0;
}

/*
 * Accepts HANDLE_KILLPRIV_V2: this file system clears set-id bits when a file
 * is written or truncated, so that the kernel need not ask for
 * security.capability before each write.
 */
static void handshake_complete(struct init_reply *reply, size_t len, uint32_t offer)
{
    if (len == sizeof(*reply))
        reply->body.flags |= offer & FUSE_HANDLE_KILLPRIV_V2;
}

/* Reads INIT. Returns its length, or -errno. */
static ssize_t handshake_receive(int fd, char *request)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, INIT_MS);

    if (ready <= 0)
        return ready == 0 ? -ETIMEDOUT : -errno;
    ssize_t n = read(fd, request, REQUEST_ROOM);
    return n < 0 ? -errno : n;
}

/*
 * Lets libfuse serve INIT, reads its reply from the pipe, completes it and
 * sends it to the kernel.
 */
static int handshake_answer(struct fuse_session *session, int fd, int replies, char *request)
{
    struct init_reply reply;
    ssize_t len = handshake_receive(fd, request);

    if (len < 0)
        return (int)len;
    uint32_t offer = offer_of(request, (size_t)len);
    fuse_session_process_buf(session, &(struct fuse_buf){.mem = request, .size = (size_t)len});
    ssize_t n = read(replies, &reply, sizeof(reply));
    if (n <= 0)
        return -EPROTO;
    handshake_complete(&reply, (size_t)n, offer);
    if (write(fd, &reply, (size_t)n) != n)
        return -errno;
    return reply.head.error;
}

/* Gives the session the write end of a pipe. The session closes it. */
static int give_pipe(struct fuse_session *session, int *replies)
{
    char name[32];
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return -errno;
    snprintf(name, sizeof(name), "/dev/fd/%d", ends[1]);
    if (fuse_session_mount(session, name) != 0) {
        close(ends[0]);
        close(ends[1]);
        return -ENOTSUP;
    }
    *replies = ends[0];
    return 0;
}

/*
 * Gives the session a connection that the kernel has mounted, and answers INIT.
 * No thread may serve the session yet. The session, or this function after an
 * error, closes fd. Returns 0, or -errno if the connection cannot be served.
 */
static int handshake_run(struct fuse_session *session, int fd)
{
    char *request = calloc(1, REQUEST_ROOM);
    int replies = -1;
    int err = request ? give_pipe(session, &replies) : -ENOMEM;

    if (!err)
        err = handshake_answer(session, fd, replies, request);
    if (!err && dup3(fd, fuse_session_fd(session), O_CLOEXEC) < 0)
        err = -errno;
    if (replies >= 0)
        close(replies);
    close(fd);
    free(request);
    return err;
}

/* --- The session ----------------------------------------------------------------------------- */

#define TRANSFER_THREADS 12 /* eight for one user, see workers.h */
/*
 * Four requests. The kernel requests a window when the program starts to read
 * the previous one, so the data of the next read is already there.
 */
#define READ_AHEAD (4 * MAX_IO)

/*
 * Removes the mount of a dead daemon, which fails every request with ENOTCONN.
 */
static int clean_stale_mount(const char *path)
{
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) != 0)
        return -ENOTCONN;
    log_line(LOG_NOTICE, "%s: removed the mount of a dead daemon", path);
    return 0;
}

/*
 * FORCE_SYNC is needed, since cached attributes of a dead daemon's root would
 * hide its death.
 */
static int force_statx(const char *path, struct statx *st)
{
    int flags = AT_NO_AUTOMOUNT | AT_STATX_FORCE_SYNC;

    return statx(AT_FDCWD, path, flags, STATX_TYPE, st) == 0 ? 0 : -errno;
}

static int stat_mountpoint(const char *path, struct statx *st)
{
    int err = force_statx(path, st);

    if (err == -ECONNABORTED) /* the daemon died while the call waited for it */
        err = force_statx(path, st);
    if (err != -ENOTCONN)
        return err;
    err = clean_stale_mount(path);
    return err ? err : force_statx(path, st);
}

int session_check_mountpoint(struct options *opts, struct reason *why)
{
    struct statx st;
    const char *hint = "";
    int err = stat_mountpoint(opts->mountpoint, &st);

    if (!err && !S_ISDIR(st.stx_mode))
        err = -ENOTDIR;
    if (!err && (st.stx_attributes_mask & st.stx_attributes & STATX_ATTR_MOUNT_ROOT)) {
        err = -EBUSY;
        hint = ": something is mounted there, unmount it or choose another directory";
    }
    if (err == -ENOENT)
        hint = ", make the directory first";
    if (err == -ENOTCONN)
        hint = ": the mount of a dead daemon, unmount it first";
    char *path = err ? NULL : realpath(opts->mountpoint, NULL);
    if (!err && !path)
        err = -errno;
    if (err)
        return reason_set(why, err, "%s: %s%s", opts->mountpoint, strerror(-err), hint);
    free(opts->mountpoint);
    opts->mountpoint = path;
    return 0;
}

int session_listen(struct options *opts)
{
    opts->descriptor_listener = fdsocket_listen();
    if (opts->descriptor_listener < 0) {
        log_line(LOG_ERR, "%s: no socket for descriptors: %s", opts->device,
                 strerror(-opts->descriptor_listener));
        return opts->descriptor_listener;
    }
    opts->metrics_listener = opts->metrics.len ? metrics_listen(&opts->metrics) : -1;
    if (opts->metrics_listener >= 0 || !opts->metrics.len)
        return 0;
    log_line(LOG_ERR, "metrics: the port cannot be bound: %s", strerror(-opts->metrics_listener));
    return opts->metrics_listener;
}

static void print_metrics(void *context, FILE *to)
{
    struct daemon *d = context;
    struct gpunvme_ioc_stats stats = {.abi = {0}};
    struct gpunvme_ioc_gpus gpus = {.abi = {0}};
    const struct metrics_mount mount = {d->opts->mountpoint, &stats, &gpus};

    ioctl_fill_stats(d, &stats);
    ioctl_fill_gpus(d, &gpus);
    metrics_print(&mount, 1, to);
}

static int start_metrics(struct daemon *d)
{
    const struct options *opts = d->opts;

    if (!opts->metrics.len)
        return 0;
    return metrics_server_open(opts->metrics_listener, print_metrics, d, &d->metrics);
}

static int start_services(struct daemon *d)
{
    int err = buffers_open(d->opts->max_buffers, d->stack.gpus, &d->stack.bounce, &d->buffers);

    if (!err)
        err = leases_open(d, &d->leases);
    if (!err)
        err = fdsocket_open(d->opts->descriptor_listener,
                            &(struct fdsocket_handler){leases_serve, d->leases}, &d->socket);
    if (!err)
        err = workers_open(TRANSFER_THREADS, &d->workers);
    if (!err)
        err = caches_open(d->stack.fs, d->opts->mountinfo, &d->caches);
    if (!err)
        err = start_metrics(d);
    if (err)
        log_line(LOG_ERR, "%s: the daemon does not start: %s", d->opts->device, strerror(-err));
    return err;
}

/*
 * Transfers end first, since they use buffers, and their replies need the
 * session.
 */
static void stop_transfers(struct daemon *d)
{
    if (d->caches)
        caches_stop(d->caches);
    if (d->leases)
        leases_revoke_all(d->leases);
    if (d->buffers)
        buffers_cancel_all(d->buffers);
    if (d->workers)
        workers_close(d->workers);
}

static void stop_services(struct daemon *d)
{
    metrics_server_close(d->metrics);
    files_free_all(d);
    caches_close(d->caches);
    if (d->socket)
        fdsocket_close(d->socket);
    if (d->leases)
        leases_close(d->leases);
    if (d->buffers)
        buffers_close(d->buffers);
    bounce_pool_free(&d->bounces);
}

/* Serves until the end of the session. Ends the transfers in any case. */
static int loop(struct daemon *d)
{
    struct shutdown shutdown;
    int err = session_loop_new(d, &d->loop);

    if (!err)
        err = shutdown_watch(&shutdown, d);
    if (err) {
        stop_transfers(d);
    } else {
        err = session_loop_run(d->loop);
        shutdown_loop_ended(&shutdown);
        session_loop_join(d->loop);
        stop_transfers(d);
        shutdown_unwatch(&shutdown);
    }
    if (d->loop)
        session_loop_free(d->loop);
    return err;
}

/*
 * Mounts with the mounter. The connection's descriptor becomes that of the
 * session. Returns nonzero if it is not mounted.
 */
static int mount_session(struct daemon *d, struct reason *why)
{
    int fd;

    d->readahead = READ_AHEAD;
    int err = mounter_mount(d->mounter, d->stack.protected && !d->opts->read_only, &fd,
                            &d->readahead, why);
    if (err)
        return err;
    err = handshake_run(d->session, fd);
    if (err)
        mounter_unmount(d->mounter, true);
    return err;
}

/* Returns true if the kernel has ended the connection by an unmount. */
static bool is_unmounted(struct fuse_session *session)
{
    struct pollfd p = {.fd = fuse_session_fd(session)};

    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

static void close_session(struct daemon *d)
{
    if (d->session)
        fuse_session_destroy(d->session);
    d->session = NULL;
}

/*
 * Closes the connection and unmounts. An unmount waits for answers of the
 * session unless the connection is closed first. After DESTROY it waits for the
 * end of the connection, which session_run() closes after the last write.
 */
static void session_end_session(struct daemon *d)
{
    if (atomic_load(&d->destroyed))
        return;
    bool unmounted = is_unmounted(d->session);

    close_session(d);
    if (!unmounted)
        mounter_unmount(d->mounter, true);
}

struct removed_name {
    struct job job;
    struct fuse_session *session;
    uint64_t dir, ino;
    char name[];
};

static void forget_name(struct job *job)
{
    struct removed_name *n = (struct removed_name *)job;

    notify_removed(n->session, n->dir, n->ino, n->name);
    free(n);
}

/*
 * Passes the notification to a worker, which may wait for the kernel's lock of
 * the directory. Without memory the kernel keeps the name until it uses it:
 * opening the file then fails, and it looks the name up again.
 */
static void tell_removed(void *arg, uint64_t dir, uint64_t ino, const char *name)
{
    struct daemon *d = arg;
    size_t len = strlen(name) + 1;
    struct removed_name *n = malloc(sizeof(*n) + len);

    if (!n)
        return;
    *n = (struct removed_name){
        .job.run = forget_name, .session = d->session, .dir = dir, .ino = ino};
    memcpy(n->name, name, len);
    workers_add(d->workers, WORK_CACHE, &n->job);
}

static int mount_and_serve(struct daemon *d, const struct fuse_args *args)
{
    struct reason why = {0};

    d->session = session_new(args, d);
    int err = d->session ? mount_session(d, &why) : -ENOMEM;
    if (err) {
        log_line(LOG_ERR, "%s: cannot be mounted on: %s", d->opts->mountpoint,
                 why.text[0] ? why.text : strerror(-err));
        close_session(d);
        return EXIT_MOUNT;
    }
    err = caches_start(d->caches, tell_removed, d);
    int status = err || loop(d) ? EXIT_SYSTEM : 0;
    session_end_session(d);
    return status;
}

static int session_serve(struct daemon *d, const struct fuse_args *args)
{
    d->bounces.fs = d->stack.fs;
    int status = EXIT_MOUNT; /* the root may be damaged */
    if (start_services(d) == 0)
        status = mount_and_serve(d, args);
    else
        stop_transfers(d);
    stop_services(d);
    return status;
}

static int open_stack(struct daemon *d, const struct drive *drive, struct reason *why)
{
    struct startup startup;
    bool watched = shutdown_watch_startup(&startup, d->opts->device, d->status_fd) == 0;
    int err = stack_open(d->opts, drive, &d->stack, why);

    if (watched)
        shutdown_unwatch_startup(&startup);
    return err;
}

int session_run(const struct options *opts, const struct fuse_args *args, const struct drive *drive,
                struct mounter *mounter, int status_fd)
{
    struct reason why;
    struct daemon d = {.opts = opts,
                       .mounter = mounter,
                       .callers = &mounter->callers,
                       .status_fd = status_fd,
                       .access = opts->access,
                       .scrub_rate = opts->scrub_rate,
                       .bounces.lock = PTHREAD_MUTEX_INITIALIZER,
                       .files_lock = PTHREAD_MUTEX_INITIALIZER};
    int status = EXIT_MOUNT;

    if (opts->trace && trace_open() != 0) {
        log_line(LOG_ERR, "%s: trace: out of memory", opts->device);
        goto out;
    }
    if (open_stack(&d, drive, &why) != 0) {
        log_text(LOG_ERR, why.text);
        goto out;
    }
    status = session_serve(&d, args);
    int err = stack_close(&d.stack);
    if (err) {
        log_line(LOG_ERR, "%s: not unmounted in order: %s", opts->device, strerror(-err));
        status = status ? status : EXIT_SYSTEM;
    }
    close_session(&d);
out:
    mounter_end(mounter);
    if (d.status_fd >= 0)
        background_failed(d.status_fd, status);
    return status;
}
