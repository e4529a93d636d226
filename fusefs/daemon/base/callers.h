/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds out what the kernel does not report about a caller: its supplementary
 * groups, and whether a caller with UID 0 is privileged. /proc has both, but
 * the sandbox hides it, so the daemon asks its mounter.
 */
#ifndef FUSEFS_DAEMON_BASE_CALLERS_H
#define FUSEFS_DAEMON_BASE_CALLERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

__BEGIN_DECLS

struct callers {
    int socket;
    pthread_mutex_t lock; /* held from a question to its answer */
    uint64_t asked;       /* number of the last question; protected by lock */
};

/* Opens both ends of a connection. Returns 0 or -errno. */
int callers_open(struct callers *c, int *server);
void callers_close(struct callers *c);
/* Answers questions until the other end is closed. */
void callers_serve(int server);

/*
 * Return true if the thread pid has the group as a supplementary one, or has
 * CAP_SYS_ADMIN in the user namespace of the mounter. The thread waits for a
 * reply of the mount. Return false if the answer is unknown, as for a thread in
 * another PID namespace (pid 0), or takes more than a few seconds. Thread-safe.
 */
bool callers_is_member(struct callers *c, pid_t pid, gid_t group);
bool callers_is_admin(struct callers *c, pid_t pid);

__END_DECLS

#endif
