/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Leases of files: reads on queues of the mount, by kernels of this process. All leases of a mount
 * share one set of queues. A long read is launched in a stream of its own, of which there are
 * LANES; the persistent kernel of gpunvme_file_read() serves the rest.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/io.h"
#include "support/clock.h"

#define LANES     8
#define LONG      (1u << 20) /* bytes from which a read is launched */
#define WORDS_LEN 4096       /* a result for each lane */

struct io_queues {
    struct gpunvme_direct *direct;
    unsigned users;     /* leases: io->lock */
    _Atomic bool stale; /* revoked or lost: the next lease takes new queues */
    int64_t *words;     /* results of launched reads, in memory that the GPU reaches */
    uint64_t mapped;    /* the address of the words for the GPU */
    void *streams[LANES];
    _Atomic bool busy[LANES]; /* the reader that set it owns the lane */
};

struct gpunvme_io_lease {
    struct gpunvme_io_file *io_file;
    struct io_queues *queues;
    struct gpunvme_file *file;
};

static void queues_free(struct io_queues *q)
{
    struct memory_space *space = &q->direct->space;

    for (int i = 0; i < LANES; i++) {
        if (q->streams[i])
            cuda_driver_stream_free(space->cuda, space->device, q->streams[i]);
    }
    if (q->mapped)
        cuda_driver_unpin(space->cuda, space->device, q->words);
    if (q->words)
        munmap(q->words, WORDS_LEN);
    gpunvme_direct_close(q->direct);
    free(q);
}

/* Only a GPU needs words: without one every read has ended when its call returns. */
static int words_map(struct io_queues *q)
{
    struct memory_space *space = &q->direct->space;

    if (!space->cuda)
        return 0;
    void *words = mmap(NULL, WORDS_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return gpunvme_fail(-ENOMEM, "out of memory");
    q->words = words;
    return cuda_driver_map(space->cuda, space->device, words, WORDS_LEN, CUDA_HOST_MEMORY,
                           &q->mapped);
}

static int queues_new(struct gpunvme *g, struct io_queues **out)
{
    struct io_queues *q = calloc(1, sizeof(*q));

    if (!q)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = gpunvme_direct_open(g, NULL, &q->direct);
    if (err) {
        free(q);
        return err;
    }
    err = words_map(q);
    if (err)
        queues_free(q);
    else
        *out = q;
    return err;
}

/* The queues of the file's mount, with one more user. */
static int queues_get(struct gpunvme_io_file *f, struct io_queues **out)
{
    struct io_mount *m = f->mount;
    int err = 0;

    pthread_mutex_lock(&f->io->lock);
    struct io_queues *q = m->queues;
    if (!q || q->stale) {
        q = NULL;
        err = queues_new(m->g, &q);
    }
    if (q) {
        m->queues = q;
        q->users++;
    }
    pthread_mutex_unlock(&f->io->lock);
    *out = q;
    return err;
}

static void queues_put(struct gpunvme_io_file *f, struct io_queues *q)
{
    pthread_mutex_lock(&f->io->lock);
    bool last = --q->users == 0;
    if (last && f->mount->queues == q)
        f->mount->queues = NULL;
    pthread_mutex_unlock(&f->io->lock);
    if (last)
        queues_free(q);
}

static void lease_free(struct gpunvme_io_lease *l)
{
    gpunvme_file_close(l->file);
    if (l->queues)
        queues_put(l->io_file, l->queues);
    io_file_put(l->io_file);
    free(l);
}

int gpunvme_io_lease_open(struct gpunvme_io_file *f, struct gpunvme_io_lease **out)
{
    int err = io_check_process(f->io);

    if (err)
        return err;
    if (f->why[0])
        return gpunvme_fail(-ENOTTY, "%s", f->why);
    if (f->io->options.path == GPUNVME_PATH_BOUNCE)
        return gpunvme_fail(-ENOTSUP, "the options ask for the bounce path");
    struct gpunvme_io_lease *l = calloc(1, sizeof(*l));
    if (!l)
        return gpunvme_fail(-ENOMEM, "out of memory");
    l->io_file = f;
    io_file_get(f);
    err = queues_get(f, &l->queues);
    if (l->queues)
        err = leased_file_open(l->queues->direct, f->fd, false, &l->file);
    if (err)
        lease_free(l);
    else
        *out = l;
    return err;
}

void gpunvme_io_lease_close(struct gpunvme_io_lease *l)
{
    if (!l || io_check_process(l->io_file->io)) /* the parent's lease stays as it is */
        return;
    lease_free(l);
}

/* --- Reads ----------------------------------------------------------------------------------- */

/* The number of a lane that is this caller's until it clears busy; -1 if there is none. */
static int lane_take(struct io_queues *q)
{
    for (int i = 0; i < LANES; i++) {
        bool idle = false;
        if (atomic_compare_exchange_strong(&q->busy[i], &idle, true))
            return i;
    }
    return -1;
}

static ssize_t lane_read(const struct gpunvme_io_lease *l, int lane, void *addr, size_t len,
                         uint64_t offset)
{
    struct io_queues *q = l->queues;
    struct memory_space *space = &q->direct->space;
    int64_t *for_gpu = (int64_t *)(uintptr_t)(q->mapped + (size_t)lane * sizeof(*q->words));
    int err = 0;

    if (!q->streams[lane])
        err = cuda_driver_stream_urgent(space->cuda, space->device, &q->streams[lane]);
    if (!err)
        err = direct_read_launch(l->file, addr, len, offset, q->streams[lane], for_gpu);
    if (!err)
        err = cuda_driver_copy_wait(space->cuda, space->device, q->streams[lane]);
    if (err)
        return err;
    int64_t n = __atomic_load_n(&q->words[lane], __ATOMIC_ACQUIRE);
    return n < 0 ? gpunvme_fail((int)n, "direct path: %s", strerror((int)-n)) : (ssize_t)n;
}

static ssize_t lease_move(const struct gpunvme_io_lease *l, void *addr, size_t len, uint64_t offset)
{
    int lane = l->queues->mapped && len >= LONG ? lane_take(l->queues) : -1;
    uint64_t begun = now_ns();
    ssize_t n = lane < 0 ? gpunvme_file_read(l->file, addr, len, offset)
                         : lane_read(l, lane, addr, len, offset);

    if (lane >= 0)
        call_stats_count(l->queues->direct->g, GPUNVME_OP_READ, GPUNVME_CALLS_DIRECT,
                         n > 0 ? (uint64_t)n : 0, begun);
    /* After -ETIMEDOUT the stream may still write to its word: the lane stays taken. */
    if (lane >= 0 && n != -ETIMEDOUT)
        atomic_store(&l->queues->busy[lane], false);
    if (n == -ESTALE || n == -ETIMEDOUT)
        l->queues->stale = true;
    return n;
}

static int check_reach(const struct gpunvme_io_lease *l, const struct gpunvme_buffer *b)
{
    if (b->owner == l->io_file->mount->g && b->shared)
        return 0;
    return gpunvme_fail(-EFAULT,
                        "leased queues do not reach this memory%s%s: take memory of "
                        "alloc_host()",
                        b->why_not[0] ? ": " : "", b->why_not);
}

ssize_t gpunvme_io_lease_read(struct gpunvme_io_lease *l, void *addr, size_t len,
                              uint64_t file_offset, struct gpunvme_result *result)
{
    struct region_use u;

    if (result)
        *result = (struct gpunvme_result){.path = GPUNVME_CALLS_DIRECT, .why = ""};
    ssize_t n = io_check_process(l->io_file->io);
    if (!n && len)
        n = io_use(l->io_file, addr, len, &u);
    if (!len || n)
        return n;
    n = check_reach(l, u.buffer);
    if (!n)
        n = lease_move(l, addr, len, file_offset);
    regions_release(l->io_file->io->regions, &u);
    return n;
}
