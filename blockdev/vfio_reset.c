/*
 * Function level reset with an end: the kernel waits up to a minute for a device to come back, and
 * no signal gets a thread out of there. So a thread of its own waits, and is left behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "blockdev/nvme.h"
#include "blockdev/vfio_internal.h"
#include "blockdev/wait.h"

#define BUSY_MS 1000u /* how long the kernel may refuse because others hold the device's lock */
#define POLL_NS 1000000

struct reset {
    int device;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t ended;
    bool over, left; /* whoever of the two is last frees it */
    int rc;
};

/* NULL with errno. */
static struct reset *create(int device)
{
    struct reset *r = calloc(1, sizeof(*r));
    pthread_condattr_t attr;

    if (!r)
        return NULL;
    /* A descriptor of its own: the transport may be closed before the kernel lets go. */
    r->device = fcntl(device, F_DUPFD_CLOEXEC, 0);
    if (r->device < 0) {
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ended, &attr);
    pthread_condattr_destroy(&attr);
    return r;
}

static void destroy(struct reset *r)
{
    close(r->device);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int reset_function(int device)
{
    struct timespec pause = {.tv_sec = 0, .tv_nsec = POLL_NS};
    uint64_t deadline = nvme_deadline_ms(BUSY_MS);

    while (ioctl(device, VFIO_DEVICE_RESET)) {
        if (errno != EAGAIN || nvme_now_ns() > deadline)
            return -EIO;
        nanosleep(&pause, NULL);
    }
    return 0;
}

static void *run(void *arg)
{
    struct reset *r = arg;
    int rc = reset_function(r->device);
    bool left;

    pthread_mutex_lock(&r->lock);
    r->rc = rc;
    r->over = true;
    left = r->left;
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->lock);
    if (left)
        destroy(r);
    return NULL;
}

/* Without signals: those are for the threads of the program. */
static int start(struct reset *r)
{
    pthread_t thread;
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        pthread_detach(thread);
    return -rc;
}

static int wait_for_end(struct reset *r)
{
    uint64_t ns = nvme_deadline_ms(VFIO_FUNCTION_RESET_MS);
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
    int rc = 0;
    bool over;

    pthread_mutex_lock(&r->lock);
    while (!r->over && rc == 0)
        rc = pthread_cond_timedwait(&r->ended, &r->lock, &until);
    over = r->over;
    r->left = true;
    rc = over ? r->rc : -ETIMEDOUT;
    pthread_mutex_unlock(&r->lock);
    if (over)
        destroy(r);
    return rc;
}

int vfio_reset_function(int device)
{
    struct reset *r = create(device);
    int rc;

    if (!r)
        return -errno;
    rc = start(r);
    if (rc) {
        destroy(r);
        return rc;
    }
    return wait_for_end(r);
}
