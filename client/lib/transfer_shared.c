/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers data to and from registered memory by ioctls of the mount. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "client/lib/client_internal.h"

#define MAX_CALL_RETRIES 100u

/*
 * Signals that are never blocked: faults, which would end the process without their handler, and
 * the signals by which users end or stop a program.
 */
static const int passed[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL, SIGTRAP, SIGSYS,  SIGABRT,
                             SIGINT,  SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU};

static int call_with_few_signals(int fd, unsigned long request, void *arg, uint32_t size)
{
    sigset_t held, before;

    sigfillset(&held);
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        sigdelset(&held, passed[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    int err = gpunvme_ioctl(fd, request, arg, size);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

int gpunvme_call(const struct connection *g, int fd, unsigned long request, void *arg,
                 uint32_t size, unsigned retries)
{
    struct stat st;
    int err = retries ? call_with_few_signals(fd, request, arg, size)
                      : gpunvme_ioctl(fd, request, arg, size);

    return err == -ENOENT && fstat(fd, &st) == 0 && st.st_dev != g->dev ? -ENOTTY : err;
}

bool gpunvme_was_interrupted(int err, unsigned *retries)
{
    return err == -EINTR && ++*retries < MAX_CALL_RETRIES;
}

static int transfer_failed(int err, const struct gpunvme_ioc_rw *rw)
{
    if (err == -ENOTTY)
        return gpunvme_fail(err, "not a file of the buffer's mount");
    if (err == -EIO && rw->nvme_status)
        return gpunvme_fail(err, "the drive answered NVMe status 0x%x", rw->nvme_status);
    if (err == -ERANGE)
        return gpunvme_fail(err, "transfer past the end of the buffer");
    if (err == -EREMOTEIO)
        return gpunvme_fail(err, "the GPU path cannot serve this transfer");
    return gpunvme_fail(err, "transfer: %s", strerror(-err));
}

void gpunvme_add_result(struct gpunvme_result *sum, uint32_t path, uint64_t commands,
                        uint32_t nvme_status, bool staged)
{
    sum->commands += commands;
    sum->staged |= staged;
    if (path)
        sum->path = !sum->path || sum->path == path ? path : GPUNVME_PATH_MIXED;
    if (!sum->nvme_status)
        sum->nvme_status = nvme_status;
}

/* Calls the mount once for the rest of the range. Returns 0 or -errno. */
static int call_mount(const struct gpunvme_buffer *b, const struct range *r, size_t done,
                      struct gpunvme_ioc_rw *rw, unsigned retries)
{
    unsigned long request = r->write ? GPUNVME_IOC_WRITE : GPUNVME_IOC_READ;

    rw->id = b->id;
    rw->key = b->key;
    rw->file_offset = r->file_offset + done;
    rw->buffer_offset = r->buffer_offset + done;
    rw->len = r->len - done;
    return gpunvme_call(b->owner, r->fd, request, rw, sizeof(*rw), retries);
}

size_t gpunvme_transfer_shared(struct gpunvme_buffer *b, const struct range *r, uint32_t flags,
                               struct gpunvme_result *result, int *err)
{
    size_t done = 0;
    unsigned retries = 0;

    *err = 0;
    while (done < r->len && !*err) {
        struct gpunvme_ioc_rw rw = {.flags = flags};
        *err = call_mount(b, r, done, &rw, retries);
        gpunvme_add_result(result, rw.path, rw.commands, rw.nvme_status, rw.flags & GPUNVME_STAGED);
        if (gpunvme_was_interrupted(*err, &retries))
            *err = 0;
        else if (*err)
            *err = transfer_failed(*err, &rw);
        else if (!rw.bytes)
            break;
        else
            retries = 0;
        done += rw.bytes;
    }
    return done;
}
