/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs slow device operations with a time limit. While the kernel resets a
 * device, for this process or another, it waits up to a minute for the device
 * to come back. No signal interrupts the reset or a concurrent access to config
 * space. A separate thread makes these calls and is abandoned after the time
 * limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "blockdev/vfio/vfio_internal.h"
#include "support/clock.h"
#include "support/thread.h"
#include "support/wait.h"

/* The kernel may refuse while another process holds the device's lock. */
#define BUSY_MS 1000u

struct call {
    struct vfio v; /* only the device's file and the offset of config space */
    vfio_work_fn work;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t ended;
    bool over, left; /* the last of the two threads frees the call */
    int rc;
};

/* Returns NULL with errno set on an error. */
static struct call *reset_create(const struct vfio *v, vfio_work_fn work)
{
    struct call *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    /* The transport may be closed before the kernel returns. */
    c->v.device = fcntl(v->device, F_DUPFD_CLOEXEC, 0);
    if (c->v.device < 0) {
        free(c);
        return NULL;
    }
    c->v.config = v->config;
    c->work = work;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->ended, NULL);
    return c;
}

static void reset_destroy(struct call *c)
{
    close(c->v.device);
    pthread_cond_destroy(&c->ended);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *reset_run(void *arg)
{
    struct call *c = arg;
    int rc = c->work(&c->v);
    bool left;

    pthread_mutex_lock(&c->lock);
    c->rc = rc;
    c->over = true;
    left = c->left;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    if (left)
        reset_destroy(c);
    return NULL;
}

static int wait_for_end(struct call *c, unsigned ms)
{
    uint64_t until = deadline_after_ms(ms);
    int rc = 0;
    bool over;

    pthread_mutex_lock(&c->lock);
    while (!c->over && rc == 0)
        rc = cond_wait_until(&c->ended, &c->lock, until);
    over = c->over;
    c->left = true;
    rc = over ? c->rc : -ETIMEDOUT;
    pthread_mutex_unlock(&c->lock);
    if (over)
        reset_destroy(c);
    return rc;
}

int vfio_bounded(const struct vfio *v, unsigned ms, vfio_work_fn work)
{
    struct call *c = reset_create(v, work);
    pthread_t thread;
    int err;

    if (!c)
        return -errno;
    err = thread_start(&thread, reset_run, c);
    if (err) {
        reset_destroy(c);
        return -err;
    }
    pthread_detach(thread);
    return wait_for_end(c, ms);
}

/* --- The reset ------------------------------------------------------------------------------- */

int vfio_reset_function(int device)
{
    uint64_t deadline = deadline_after_ms(BUSY_MS);

    while (ioctl(device, VFIO_DEVICE_RESET)) {
        if (errno != EAGAIN || now_ns() > deadline)
            return -EIO;
        wait_ms(1);
    }
    return 0;
}
