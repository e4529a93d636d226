/* SPDX-License-Identifier: BSD-2-Clause */
/* Calls of the mount that signals interrupt, like the ioctls of any FUSE file system. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "client/lib/client_internal.h"

#define MAX_CALL_RETRIES 100u

/*
 * Signals that are never blocked: faults, which would end the process without their handler, and
 * the signals by which users end or stop a program.
 */
static const int passed[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL, SIGTRAP, SIGSYS,  SIGABRT,
                             SIGINT,  SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU};

int gpunvme_call(int fd, unsigned long request, void *arg, uint32_t size, unsigned retries)
{
    sigset_t held, before;

    if (!retries)
        return gpunvme_ioctl(fd, request, arg, size);
    sigfillset(&held);
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        sigdelset(&held, passed[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    int err = gpunvme_ioctl(fd, request, arg, size);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

bool gpunvme_was_interrupted(int err, unsigned *retries)
{
    return err == -EINTR && ++*retries < MAX_CALL_RETRIES;
}
