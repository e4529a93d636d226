/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers over a mount that the test plays, whose calls signals end. */
#include "tests/client/lib/signal_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include "client/lib/shared_list.h"

static struct signal_rig *rig; /* one at a time */
static struct connection mount = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                  .unused = PTHREAD_COND_INITIALIZER};
static struct gpunvme_buffer buffer;
static struct shared_list list;

static void start(struct signal_rig *r)
{
    rig = r;
    r->calls = r->held = r->bounced = 0;
    r->faults_held = false;
    buffer.owner = &mount;
    buffer.shared = true;
    atomic_store(&buffer.ending, false);
    mount.options.path = r->bounces ? 0 : GPUNVME_PATH_GPU;
}

/* Returns a file that is open without O_DIRECT. */
static int cached_file(void)
{
    static int fd = -1;

    if (fd < 0)
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd;
}

ssize_t signal_rig_read(struct signal_rig *r, size_t len, struct gpunvme_result *result)
{
    start(r);
    return transfer_read(&buffer, cached_file(), 0, 0, len, result);
}

int signal_rig_readv(struct signal_rig *r, struct gpunvme_piece *pieces, size_t n,
                     struct gpunvme_result *result)
{
    start(r);
    list.room = n;
    list.pieces = r->in_place ? pieces : calloc(n, sizeof(*pieces));
    if (!list.pieces)
        abort();
    int err = readv_buffer(&buffer, cached_file(), pieces, n, result);
    if (!r->in_place)
        free(list.pieces);
    return err;
}

/* --- The mount ------------------------------------------------------------------------------- */

static void read_some(struct gpunvme_ioc_rw *rw)
{
    rw->bytes = rw->len < SIGNAL_RIG_STEP ? rw->len : SIGNAL_RIG_STEP;
    rw->path = GPUNVME_PATH_GPU;
    rw->commands = 1;
}

/* Behind the first ones every other is read, too, as by an executor with several queues. */
static int read_some_of_list(struct gpunvme_ioc_readv *v)
{
    bool whole = true;

    for (uint64_t i = 0; i < v->count; i++) {
        struct gpunvme_piece *p = &list.pieces[v->first + i];
        bool read = i < SIGNAL_RIG_STEP || i % 2;
        p->result = read ? (int32_t)p->len : -ECANCELED;
        whole &= read;
    }
    v->bytes = v->commands = 1;
    v->path = GPUNVME_PATH_GPU;
    return whole ? 0 : -EINTR;
}

static void read_nothing_of_list(struct gpunvme_ioc_readv *v)
{
    for (uint64_t i = 0; i < v->count; i++)
        list.pieces[v->first + i].result = -ECANCELED;
    v->bytes = 0;
}

static void look_at_mask(void)
{
    sigset_t mask;

    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    rig->held += sigismember(&mask, SIGUSR1) == 1;
    rig->faults_held |= sigismember(&mask, SIGSEGV) == 1 || sigismember(&mask, SIGTERM) == 1;
}

int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size)
{
    bool interrupted = ++rig->calls % (rig->interrupted + 1ull) != 0;

    look_at_mask();
    (void)fd, (void)size;
    if (rig->calls == rig->ends_with)
        atomic_store(&buffer.ending, true);
    if (rig->calls == rig->ends_with && rig->ended)
        return -ENOENT;
    if (request == GPUNVME_IOC_READV && !interrupted)
        return read_some_of_list(arg);
    if (request == GPUNVME_IOC_READV)
        read_nothing_of_list(arg);
    else if (!interrupted)
        read_some(arg);
    return interrupted ? -EINTR : 0;
}

/* --- What else the library has ---------------------------------------------------------------- */

struct shared_list *shared_list_of(struct connection *g, const struct gpunvme_piece *pieces,
                                   size_t n)
{
    (void)g, (void)pieces, (void)n;
    return rig->in_place ? &list : NULL;
}

int shared_list_get(struct connection *g, size_t n, struct shared_list **out)
{
    (void)g, (void)n;
    *out = &list;
    return 0;
}

void shared_list_put(struct connection *g, struct shared_list *l)
{
    (void)g, (void)l;
}

int gpunvme_readv_bounced(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                          struct gpunvme_result *result)
{
    (void)b, (void)fd, (void)result;
    rig->bounced++;
    for (size_t i = 0; i < n; i++)
        pieces[i].result = i + 1 == n && rig->bounce_err ? rig->bounce_err : (int32_t)pieces[i].len;
    return rig->ends_list ? rig->bounce_err : 0;
}

size_t gpunvme_transfer_bounced(struct gpunvme_buffer *b, const struct range *r,
                                struct gpunvme_result *result, int *err)
{
    (void)b, (void)result;
    rig->bounced++;
    *err = rig->bounce_err;
    return *err ? 0 : r->len;
}
