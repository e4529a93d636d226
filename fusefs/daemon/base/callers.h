/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the kernel does not say of a caller: its supplementary groups, and
 * whether root's caller is privileged. /proc says it, which the sandbox hides, so
 * the daemon asks its mounter.
 */
#ifndef FUSEFS_DAEMON_BASE_CALLERS_H
#define FUSEFS_DAEMON_BASE_CALLERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

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
 * Return true if the thread pid, which waits for an answer of the mount, has the
 * group as a supplementary one, or has CAP_SYS_ADMIN in the user namespace of the
 * mounter. Return false if that cannot be said, as of a thread in another PID
 * namespace (pid 0), and after a wait of a few seconds. Thread-safe.
 */
bool callers_is_member(struct callers *c, pid_t pid, gid_t group);
bool callers_is_admin(struct callers *c, pid_t pid);

#ifdef __cplusplus
}
#endif

#endif
