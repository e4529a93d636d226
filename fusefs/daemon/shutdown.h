/*
 * The end of a session by signal, or because the system asks for the drive back.
 */
#ifndef FUSEFS_DAEMON_SHUTDOWN_H
#define FUSEFS_DAEMON_SHUTDOWN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct daemon;

/*
 * A thread waits for SIGTERM, SIGINT and SIGHUP, which all other threads block. Unmounting is
 * asked of the kernel while the session still serves, so that pages written through mappings
 * reach the file; only when files are open on the mount is the session ended under them. When the
 * system asks for the drive (hot unplug), the mount is taken away lazily and the session ended.
 */
struct shutdown {
    struct daemon *daemon;
    pthread_t thread, main;
    int signals; /* signalfd */
    int stop;    /* eventfd: the session has ended */
};

/* For the thread that will run the session's loop, with the signals blocked. */
int shutdown_watch(struct shutdown *s, struct daemon *d);
/* The loop has returned. */
void shutdown_unwatch(struct shutdown *s);
void shutdown_block_signals(void);

#endif
