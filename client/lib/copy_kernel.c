/* SPDX-License-Identifier: BSD-2-Clause */
/* The keeper of an application's copy kernel on a simulated drive. */
#include "client/lib/copy_kernel.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/device/device_image.h"
#include "client/lib/socket.h"
#include "client/lib/thread.h"
#include "sim/gpu/sim_copy_ioctl.h"
#include "sim/gpu/sim_mailbox.h"
#include "support/clock.h"

#define KERNEL   "sim_copy_kernel_kernel"
#define MAX_SETS 64u
#define AWAKE_NS 100000u /* polling time after the last launch */
/*
 * A block that has ended finds no room on a GPU filled by other kernels of the
 * application until one of them ends, after a millisecond or so.
 */
#define IDLE_NS     2000000u
#define SLEEP_S     1 /* maximum, then work is checked again */
#define INITIAL_MAX 16u

/* One mailbox; one thread of the drive posts to it. */
struct set {
    struct copy_kernel *copy_kernel;
    struct sim_keeper keeper;
    void *streams[SIM_KEEPER_STREAMS];
};

/* A buffer, announced to the mount for each lease. */
struct known {
    uint64_t id, key, base;
};

struct copy_kernel {
    struct gpunvme *g;
    struct memory_space space;
    struct cuda_kernel kernel;

    /* While attached. */
    uint64_t lease_id, lease_key;
    struct memory_space_map mailboxes, media;
    struct sim_mailbox_head *head;
    struct set *sets;
    unsigned n_sets;
    pthread_t thread;
    _Atomic bool stopping;

    pthread_mutex_t lock; /* protects the fields below */
    bool attached;
    struct known *known;
    size_t n_known, max_known;
};

int copy_kernel_open(struct gpunvme *g, const struct memory_space *p, struct copy_kernel **out)
{
    *out = NULL;
    if (!p->cuda || !copy_kernel_image() || strcmp(g->info.transport, "sim") != 0)
        return 0;
    struct copy_kernel *c = calloc(1, sizeof(*c));
    if (!c)
        return gpunvme_fail(-ENOMEM, "out of memory");
    c->g = g;
    c->space = *p;
    int err = cuda_driver_load(p->cuda, p->device, copy_kernel_image(), KERNEL, &c->kernel);
    if (err) {
        free(c);
        return err;
    }
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

void copy_kernel_close(struct copy_kernel *c)
{
    if (!c)
        return;
    copy_kernel_detach(c);
    cuda_driver_unload(c->space.cuda, c->space.device, &c->kernel);
    pthread_mutex_destroy(&c->lock);
    free(c->known);
    free(c);
}

/* --- The thread ------------------------------------------------------------------------------ */

static int launch(void *ctx, const struct sim_copy_kernel_launch *l, unsigned blocks,
                  unsigned stream)
{
    struct set *s = ctx;
    const struct memory_space *p = &s->copy_kernel->space;
    void *args[] = {(void *)l};

    return cuda_driver_launch_blocks(p->cuda, p->device, &s->copy_kernel->kernel, blocks,
                                     SIM_COPY_KERNEL_THREADS, s->streams[stream], args);
}

static bool is_needed(const struct copy_kernel *c)
{
    for (unsigned i = 0; i < c->n_sets; i++) {
        if (sim_keeper_is_needed(&c->sets[i].keeper))
            return true;
    }
    return false;
}

/*
 * The exchange precedes the last check: a post after the check wakes this
 * thread.
 */
static void sleep_until_rung(struct copy_kernel *c)
{
    const struct timespec bound = {.tv_sec = SLEEP_S};

    __atomic_exchange_n(&c->head->asleep, 1, __ATOMIC_ACQ_REL);
    if (!is_needed(c) && !atomic_load(&c->stopping))
        syscall(SYS_futex, &c->head->asleep, FUTEX_WAIT, 1, &bound, NULL, 0);
    __atomic_exchange_n(&c->head->asleep, 0, __ATOMIC_ACQ_REL);
}

/* Ends if the GPU fails: the daemon makes the copies after one second. */
static void *serve(void *arg)
{
    struct copy_kernel *c = arg;
    uint64_t awake_until = 0;
    int err = 0;

    while (!err && !atomic_load_explicit(&c->stopping, memory_order_relaxed)) {
        if (is_needed(c))
            awake_until = now_ns() + AWAKE_NS;
        else if (now_ns() >= awake_until)
            sleep_until_rung(c);
        for (unsigned i = 0; i < c->n_sets && !err; i++)
            err = sim_keeper_peek(&c->sets[i].keeper);
    }
    return NULL;
}

static void stop(struct copy_kernel *c)
{
    atomic_store(&c->stopping, true);
    if (__atomic_exchange_n(&c->head->asleep, 0, __ATOMIC_ACQ_REL))
        syscall(SYS_futex, &c->head->asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
    pthread_join(c->thread, NULL);
}

/* --- A lease --------------------------------------------------------------------------------- */

static int check_reply(const struct gpunvme_reply_copy_kernel *t)
{
    if (t->layout != GPUNVME_COPY_KERNEL_LAYOUT)
        return gpunvme_fail(-EPROTO, "the mount's mailboxes have another layout");
    if (t->sets == 0 || t->sets > MAX_SETS || t->blocks == 0 ||
        t->blocks > SIM_COPY_KERNEL_BLOCKS || t->len < SIM_MAILBOX_BYTES(t->sets))
        return gpunvme_fail(-EPROTO, "the mount has %u x %u mailboxes in %llu bytes", t->sets,
                            t->blocks, (unsigned long long)t->len);
    return 0;
}

/* The socket has closed instead of a reply; the ioctl returns the reason. */
static int refused(const struct copy_kernel *c, int err)
{
    struct gpunvme_ioc_copy_kernel arg = {.lease_id = c->lease_id, .lease_key = c->lease_key};
    int why = gpunvme_ioctl(c->g->fd, GPUNVME_IOC_COPY_KERNEL, &arg, sizeof(arg));

    if (why != -EDQUOT && why != -EBUSY)
        return err;
    (void)gpunvme_fail(why, why == -EDQUOT
                                ? "this user has the maximum of copy kernels on the mount"
                                : "all copy kernels of the mount are in use");
    return why;
}

static int share(struct copy_kernel *c, struct gpunvme_reply_copy_kernel *t)
{
    const struct gpunvme_request request = {
        .what = GPUNVME_ASK_COPY_KERNEL, .id = c->lease_id, .key = c->lease_key};
    struct gpunvme_reply reply;
    int fds[SOCKET_FDS];
    int err = socket_request(c->g, &request, &reply, fds, 2);

    if (err)
        return refused(c, err);
    memcpy(t, &reply, sizeof(*t));
    err = check_reply(t);
    if (!err)
        err = memory_space_share(&c->space, fds[0], 0, t->len, MEMORY_SPACE_MEMORY, &c->mailboxes);
    if (!err)
        err = memory_space_share(&c->space, fds[1], 0, t->media_len, MEMORY_SPACE_READ_ONLY,
                                 &c->media);
    close(fds[0]);
    close(fds[1]);
    return err;
}

static int open_set(struct copy_kernel *c, unsigned i, unsigned blocks)
{
    struct set *s = &c->sets[i];
    struct sim_mailboxes *m = sim_mailbox_set(c->head, i);
    uint64_t there = c->mailboxes.at + (uint64_t)((char *)m - (char *)c->head);
    int err = 0;

    s->copy_kernel = c;
    sim_keeper_init(&s->keeper, m, there, blocks, IDLE_NS);
    s->keeper.run = launch;
    s->keeper.ctx = s;
    for (unsigned k = 0; k < SIM_KEEPER_STREAMS && !err; k++)
        err = cuda_driver_stream_urgent(c->space.cuda, c->space.device, &s->streams[k]);
    return err;
}

static int open_sets(struct copy_kernel *c, const struct gpunvme_reply_copy_kernel *t)
{
    int err = 0;

    c->head = c->mailboxes.addr;
    c->sets = calloc(t->sets, sizeof(*c->sets));
    if (!c->sets)
        return gpunvme_fail(-ENOMEM, "out of memory");
    while (c->n_sets < t->sets && !err)
        err = open_set(c, c->n_sets++, t->blocks);
    return err;
}

/* The kernels end after their idle time: no copies are posted any more. */
static void close_sets(struct copy_kernel *c)
{
    const struct memory_space *p = &c->space;

    for (unsigned i = 0; i < c->n_sets; i++) {
        for (unsigned k = 0; k < SIM_KEEPER_STREAMS && c->sets[i].streams[k]; k++) {
            (void)cuda_driver_copy_wait(p->cuda, p->device, c->sets[i].streams[k]);
            cuda_driver_stream_free(p->cuda, p->device, c->sets[i].streams[k]);
        }
    }
    free(c->sets);
    c->sets = NULL;
    c->n_sets = 0;
    memory_space_unshare(p, &c->media);
    memory_space_unshare(p, &c->mailboxes);
}

/*
 * Under the lock. Copies into a buffer that the mount refuses are made by the
 * daemon.
 */
static void announce(const struct copy_kernel *c, const struct known *k)
{
    struct gpunvme_ioc_copy_kernel arg = {.lease_id = c->lease_id,
                                          .lease_key = c->lease_key,
                                          .id = k->id,
                                          .key = k->key,
                                          .addr = k->base,
                                          .media = c->media.at};

    (void)gpunvme_ioctl(c->g->fd, GPUNVME_IOC_COPY_KERNEL, &arg, sizeof(arg));
}

int copy_kernel_attach(struct copy_kernel *c, uint64_t id, uint64_t key)
{
    struct gpunvme_reply_copy_kernel reply = {0};

    c->lease_id = id;
    c->lease_key = key;
    atomic_store(&c->stopping, false);
    int err = share(c, &reply);
    if (!err)
        err = open_sets(c, &reply);
    if (!err && thread_start(&c->thread, serve, c) != 0)
        err = gpunvme_fail(-EAGAIN, "no thread for copies");
    if (err) {
        close_sets(c);
        return err;
    }
    pthread_mutex_lock(&c->lock);
    c->attached = true;
    for (size_t i = 0; i < c->n_known; i++)
        announce(c, &c->known[i]);
    pthread_mutex_unlock(&c->lock);
    return 0;
}

void copy_kernel_detach(struct copy_kernel *c)
{
    pthread_mutex_lock(&c->lock);
    bool attached = c->attached;
    c->attached = false;
    pthread_mutex_unlock(&c->lock);
    if (!attached)
        return;
    stop(c);
    close_sets(c);
}

/* --- Buffers --------------------------------------------------------------------------------- */

/* Under the lock. Makes room for one more entry; false: no memory. */
static bool has_room(struct copy_kernel *c)
{
    if (c->n_known < c->max_known)
        return true;
    size_t max = c->max_known ? 2 * c->max_known : INITIAL_MAX;
    struct known *more = realloc(c->known, max * sizeof(*more));
    if (!more)
        return false;
    c->known = more;
    c->max_known = max;
    return true;
}

void copy_kernel_add(struct copy_kernel *c, const struct gpunvme_buffer *b, uint64_t base)
{
    const struct known k = {.id = b->id, .key = b->key, .base = base};

    pthread_mutex_lock(&c->lock);
    if (has_room(c)) {
        c->known[c->n_known++] = k;
        if (c->attached)
            announce(c, &k);
    }
    pthread_mutex_unlock(&c->lock);
}

void copy_kernel_remove(struct copy_kernel *c, const struct gpunvme_buffer *b)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = c->n_known; i-- > 0;) {
        if (c->known[i].id == b->id)
            c->known[i] = c->known[--c->n_known];
    }
    pthread_mutex_unlock(&c->lock);
}
