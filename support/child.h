/* SPDX-License-Identifier: BSD-2-Clause */
/* Waits for child processes for a limited time. */
#ifndef SUPPORT_CHILD_H
#define SUPPORT_CHILD_H

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/wait.h"

#define CHILD_POLL_MS   5
#define CHILD_KILLED_MS 100u /* from SIGKILL to the end of a process that no device holds up */

/*
 * Returns 0 and stores the status if the child ends within ms milliseconds,
 * otherwise -ETIMEDOUT or another -errno. `status` may be NULL.
 */
static inline int child_wait(pid_t pid, unsigned ms, int *status)
{
    const uint64_t end = now_ms() + ms;
    pid_t ended;

    while ((ended = waitpid(pid, status, WNOHANG)) == 0) {
        if (now_ms() >= end)
            return -ETIMEDOUT;
        wait_ms(CHILD_POLL_MS);
    }
    return ended < 0 ? -errno : 0;
}

/*
 * Kills the child. A process that waits for a device ends later. Nothing waits for such a process,
 * so it keeps its process id until the caller ends.
 */
static inline void child_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    child_wait(pid, CHILD_KILLED_MS, NULL);
}

/*
 * Runs a program of PATH. Returns its exit status, -ETIMEDOUT if it was killed
 * because it had not ended after ms milliseconds, -ECANCELED if a signal ended
 * it, or another -errno.
 */
static inline int child_run(char *const argv[], unsigned ms)
{
    int status, err;
    pid_t pid;

    err = -posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
    if (err)
        return err;
    err = child_wait(pid, ms, &status);
    if (err == -ETIMEDOUT)
        child_kill(pid);
    if (err)
        return err;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -ECANCELED;
}

#endif
