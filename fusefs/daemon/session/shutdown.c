/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs the thread that ends the session on a signal or on removal of the drive.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/session/shutdown.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <syslog.h>
#include <unistd.h>

#include "blockdev/nvme/nvme.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/session/session_loop.h"
#include "fusefs/daemon/start/background.h"
#include "fusefs/daemon/state/daemon.h"

/* Polling interval at the end of the session. */
#define WAKE_MS 50
/*
 * Interval between checks for a replaced namespace. Every request makes the
 * check too, except reads on leased queues.
 */
#define CHANGED_MS 1000
/* Polls until the connection is aborted: 3 s. */
#define ABORT_ROUNDS 60u
/* The eventfd holds the sum of these values. */
#define LOOP_ENDED      1u
#define TRANSFERS_ENDED 2u
/* Time limit of the write-back of mappings before a removal, in seconds. */
#define REMOVAL_S 10

static sigset_t watched(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

void shutdown_block_signals(void)
{
    sigset_t set = watched();

    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/*
 * Unmounts. The unmount of a fuseblk mount ends with the connection, which is
 * closed after the end of this thread. Therefore the function does not wait for
 * the mounter's answer once DESTROY was received. Returns 0 or -errno.
 */
static int shutdown_unmount(struct shutdown *s, bool lazily)
{
    struct daemon *d = s->daemon;
    struct pollfd p[2] = {{.fd = d->mounter->socket, .events = POLLIN},
                          {.fd = s->stage, .events = POLLIN}};
    int err = mounter_unmount_begin(d->mounter, lazily);

    while (!err && !p[0].revents) {
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            err = -errno;
        if (p[0].revents || !p[1].revents)
            continue;
        if (atomic_load(&d->destroyed))
            return 0;
        p[1].fd = -1; /* remains readable */
    }
    return err ? err : mounter_unmount_end(d->mounter);
}

static void shutdown_end_session(struct shutdown *s)
{
    struct daemon *d = s->daemon;
    int err = shutdown_unmount(s, false);

    if (!err)
        return; /* the kernel aborts the connection, which ends the loop */
    log_line(LOG_WARNING, "%s: %s, files open there are cut off", d->opts->mountpoint,
             strerror(-err));
    mounter_write_back_files(d, 0);
    session_loop_end(d->loop);
}

/* The system waits for the drive, so open files are not waited for. */
static void hand_drive_back(struct shutdown *s)
{
    struct daemon *d = s->daemon;

    log_line(LOG_WARNING, "%s: the system requests the drive, unmounting %s", d->opts->device,
             d->opts->mountpoint);
    mounter_write_back_files(d, REMOVAL_S);
    shutdown_unmount(s, true);
    session_loop_end(d->loop);
}

/*
 * A removed drive is declared failed at once, so that requests end. A vfio-user
 * drive is not handed back: no process waits for it, and a mount that returns
 * EIO hides the directory below, which would be mistaken for the file system. A
 * PCI drive is handed back, since its removal waits.
 */
static void lose_drive(struct shutdown *s, const struct nvme_transport *t)
{
    struct nvme_ctrlr *c = s->daemon->stack.ctrlr;

    if (!nvme_ctrlr_alive(c))
        nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c));
    if (nvme_ctrlr_alive(c) || t->doorbells_are_mmio)
        hand_drive_back(s);
}

static void shutdown_take_signal(struct shutdown *s)
{
    struct signalfd_siginfo info;

    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    log_line(LOG_INFO, "%s: %s, unmounting", s->daemon->opts->mountpoint,
             strsignal((int)info.ssi_signo));
    shutdown_end_session(s);
}

/*
 * Ends every request with ECONNABORTED. This releases the page locks that a
 * thread of this process may wait for.
 */
static void abort_connection(const struct shutdown *s)
{
    log_line(LOG_WARNING, "%s: requests are still pending, the connection is aborted",
             s->daemon->opts->mountpoint);
    mounter_abort(s->daemon->mounter);
}

static uint64_t stage_of(const struct shutdown *s)
{
    uint64_t stage = 0;
    ssize_t n = read(s->stage, &stage, sizeof(stage));

    return n == (ssize_t)sizeof(stage) ? stage : 0;
}

static void look_at_controller(const struct stack *s)
{
    nvme_ctrlr_watch(s->ctrlr);
    nvme_dma_unmap_late(s->ctrlr);
    if (s->gpus)
        gpus_tend(s->gpus);
    bounce_engine_tend(&s->bounce);
}

static void *session_shutdown_watch(void *arg)
{
    struct shutdown *s = arg;
    struct nvme_transport *t = s->daemon->stack.drive.transport;
    struct nvme_ctrlr *c = s->daemon->stack.ctrlr;
    struct pollfd p[3] = {{.fd = s->stage, .events = POLLIN},
                          {.fd = s->signals, .events = POLLIN},
                          {.fd = t ? t->removal_fd : -1, .events = POLLIN}};
    uint64_t stage = 0;

    for (unsigned round = 0; stage < TRANSFERS_ENDED;) {
        bool ending = stage || fuse_session_exited(s->daemon->session);
        int n = poll(p, ending ? 1 : 3, ending ? WAKE_MS : c ? CHANGED_MS : -1);
        if (n < 0 && errno != EINTR)
            return NULL;
        if (n == 0 && !ending)
            look_at_controller(&s->daemon->stack);
        if (p[0].revents)
            stage += stage_of(s);
        if (ending) {
            if (++round == ABORT_ROUNDS && !atomic_load(&s->daemon->destroyed))
                abort_connection(s);
            continue;
        }
        if (p[1].revents)
            shutdown_take_signal(s);
        if (t && p[2].revents) {
            p[2].fd = -1; /* remains readable */
            lose_drive(s, t);
        }
    }
    return NULL;
}

/*
 * Starts a thread, run(s), with an eventfd and the watched signals. Returns 0,
 * or -errno with everything closed.
 */
static int start_watch(int *event, int *signals, pthread_t *thread, void *(*run)(void *), void *s)
{
    sigset_t set = watched();

    *event = eventfd(0, EFD_CLOEXEC);
    if (*event < 0)
        return -errno;
    *signals = signalfd(-1, &set, SFD_CLOEXEC);
    int err = *signals < 0 ? -errno : -pthread_create(thread, NULL, run, s);
    if (!err)
        return 0;
    if (*signals >= 0)
        close(*signals);
    close(*event);
    return err;
}

int shutdown_watch(struct shutdown *s, struct daemon *d)
{
    *s = (struct shutdown){.daemon = d};
    return start_watch(&s->stage, &s->signals, &s->thread, session_shutdown_watch, s);
}

static void shutdown_advance(struct shutdown *s, uint64_t stages)
{
    ssize_t n = write(s->stage, &stages, sizeof(stages));

    (void)n; /* cannot fail: the counter is far from its limit */
}

void shutdown_loop_ended(struct shutdown *s)
{
    shutdown_advance(s, LOOP_ENDED);
}

void shutdown_unwatch(struct shutdown *s)
{
    shutdown_advance(s, TRANSFERS_ENDED);
    pthread_join(s->thread, NULL);
    close(s->signals);
    close(s->stage);
}

static void *watch_startup(void *arg)
{
    const struct startup *s = arg;
    struct signalfd_siginfo info;
    struct pollfd p[2] = {{.fd = s->stop, .events = POLLIN}, {.fd = s->signals, .events = POLLIN}};

    TEMP_FAILURE_RETRY(poll(p, 2, -1));
    if (p[0].revents || read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return NULL;
    log_line(LOG_ERR, "%s: %s during the mount, nothing is lost", s->device,
             strsignal((int)info.ssi_signo));
    if (s->status_fd >= 0)
        background_failed(s->status_fd, EXIT_MOUNT);
    _exit(EXIT_MOUNT);
}

int shutdown_watch_startup(struct startup *s, const char *device, int status_fd)
{
    *s = (struct startup){.device = device, .status_fd = status_fd};
    return start_watch(&s->stop, &s->signals, &s->thread, watch_startup, s);
}

/* An unread signal stays pending for shutdown_watch(). */
void shutdown_unwatch_startup(struct startup *s)
{
    eventfd_write(s->stop, 1); /* cannot fail: the counter is far from its limit */
    pthread_join(s->thread, NULL);
    close(s->signals);
    close(s->stop);
}
