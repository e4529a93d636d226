/* SPDX-License-Identifier: BSD-2-Clause */
/* Ends a session on a signal or on removal of the drive. */
#ifndef FUSEFS_DAEMON_SESSION_SHUTDOWN_H
#define FUSEFS_DAEMON_SESSION_SHUTDOWN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct daemon;

/*
 * A thread waits for SIGTERM, SIGINT and SIGHUP, which all other threads block.
 * It unmounts while the session still serves, so that pages written through
 * mappings reach the file. If files are open on the mount, the session ends in
 * spite of them. On removal of the drive (hot unplug) the thread detaches the
 * mount lazily and ends the session.
 */
struct shutdown {
    struct daemon *daemon;
    pthread_t thread;
    int signals; /* signalfd */
    int stage;   /* eventfd: the loop has returned; the transfers have ended */
};

/*
 * Called by the thread that runs the session's loop, with the signals blocked.
 * Returns 0 or -errno.
 */
int shutdown_watch(struct shutdown *s, struct daemon *d);
/*
 * Called after the loop has returned, so that no more requests are received.
 * Threads that still wait for a request (a page cache invalidation), including
 * those of the session, are released by an abort of the connection after some
 * seconds.
 */
void shutdown_loop_ended(struct shutdown *s);
/* Called after the transfers have ended. */
void shutdown_unwatch(struct shutdown *s);
void shutdown_block_signals(void);

/*
 * Runs while the stack is opened, which may replay a long log. A signal ends
 * the process at once, as a crash would; recovery starts again at the next
 * mount.
 */
struct startup {
    pthread_t thread;
    int signals; /* signalfd */
    int stop;    /* eventfd: the stack is open */
    int status_fd;
    const char *device;
};

/*
 * Called with the signals blocked. status_fd is that of struct daemon. Returns
 * 0 or -errno.
 */
int shutdown_watch_startup(struct startup *s, const char *device, int status_fd);
void shutdown_unwatch_startup(struct startup *s);

#endif
