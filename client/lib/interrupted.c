/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls of the mount that signals end, as they do with any FUSE file system's ioctls. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "client/lib/client_internal.h"

#define MAX_CALL_RETRIES 100u

/* Blocked, these would kill without a word instead of being handled. */
static bool is_fault(int sig)
{
    return sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE || sig == SIGILL || sig == SIGTRAP ||
           sig == SIGSYS;
}

/* Not those that kill: they are to end a call at once. */
static void handled(sigset_t *out)
{
    sigemptyset(out);
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        struct sigaction a;
        if (!is_fault(sig) && sigaction(sig, NULL, &a) == 0 && a.sa_handler != SIG_DFL &&
            a.sa_handler != SIG_IGN)
            sigaddset(out, sig);
    }
}

int gpunvme_call(int fd, unsigned long request, void *arg, uint32_t size, unsigned retries)
{
    sigset_t held, before;

    if (!retries)
        return gpunvme_ioctl(fd, request, arg, size);
    handled(&held);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    int err = gpunvme_ioctl(fd, request, arg, size);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

bool gpunvme_was_interrupted(const struct gpunvme_buffer *b, int err, unsigned *retries)
{
    return err == -EINTR && !atomic_load_explicit(&b->ending, memory_order_relaxed) &&
           ++*retries < MAX_CALL_RETRIES;
}
