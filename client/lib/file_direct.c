/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads direct files on leased queues of the mount, by kernels of this process.
 * All direct files of a mount share one set of queues. A long read for which
 * the host waits is launched in one of LANES streams. The persistent kernel of
 * direct_read_wait() serves the other reads.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/handle.h"
#include "client/lib/mount_gpu.h"
#include "support/clock.h"

#define LANES     8
#define LONG      (1u << 20) /* reads of this many bytes or more are launched */
#define WORDS_LEN 4096       /* one result for each lane */

struct file_queues {
    LIST_ENTRY(file_queues) entry; /* in the mount's queues */
    struct gpunvme_direct *direct;
    unsigned users;                /* number of files; under gpunvme.lock */
    _Atomic bool stale;            /* revoked or lost: the next direct file leases new queues */
    struct memory_space_map words; /* results of launched reads, in memory that the GPU reaches */
    void *streams[LANES];
    _Atomic bool busy[LANES]; /* the reader that set it uses the lane */
};

static void queues_free(struct file_queues *q)
{
    const struct memory_space space = q->direct->space;

    if (!direct_close(q->direct)) /* a kernel may still write to the words */
        return;
    for (int i = 0; i < LANES; i++) {
        if (q->streams[i])
            cuda_driver_stream_free(space.cuda, space.device, q->streams[i]);
    }
    memory_space_unshare(&space, &q->words);
    free(q);
}

static int queues_new(struct gpunvme_file *f, struct file_queues **out)
{
    const struct gpunvme_options *o = &f->g->options;
    struct direct_options want = {o->lease_queues, o->lease_depth, o->flags};
    struct file_queues *q = calloc(1, sizeof(*q));

    if (!q)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = direct_open(f->mount, &want, &q->direct);
    if (err) {
        free(q);
        return err;
    }
    /* Without a GPU every read has ended when its call returns. */
    if (q->direct->space.cuda)
        err = memory_space_alloc_host(&q->direct->space, WORDS_LEN, &q->words);
    if (err)
        queues_free(q);
    else
        *out = q;
    return err;
}

/*
 * The caller holds the lock. Returns NULL if the mount has no queues on this device, or only stale
 * ones, which their files keep.
 */
static struct file_queues *queues_find(const struct connection *m, int device)
{
    struct file_queues *q = LIST_FIRST(&m->queues);

    while (q && (q->stale || q->direct->space.device != device))
        q = LIST_NEXT(q, entry);
    return q;
}

/*
 * Returns the queues of the file's mount on the GPU that the calling thread uses, and counts one
 * more user of them.
 */
static int queues_get(struct gpunvme_file *f, struct file_queues **out)
{
    struct connection *m = f->mount;
    struct mount_gpu gpu;
    int err = mount_gpu_choose(m, &gpu);

    *out = NULL;
    if (err)
        return err;
    pthread_mutex_lock(&f->g->lock);
    struct file_queues *q = queues_find(m, gpu.device);
    if (!q)
        err = queues_new(f, &q);
    if (q && q->users++ == 0)
        LIST_INSERT_HEAD(&m->queues, q, entry);
    pthread_mutex_unlock(&f->g->lock);
    *out = q;
    return err;
}

static void queues_put(struct gpunvme_file *f, struct file_queues *q)
{
    pthread_mutex_lock(&f->g->lock);
    bool last = --q->users == 0;
    if (last)
        LIST_REMOVE(q, entry);
    pthread_mutex_unlock(&f->g->lock);
    if (last)
        queues_free(q);
}

/* Registers the caller's memory at the mount, for kernels that read without an earlier transfer. */
static int queues_reach_memory(struct gpunvme_file *f)
{
    return regions_reach(f->g->regions, handle_cuda(f->g), f->mount);
}

int file_direct_begin(struct gpunvme_file *f)
{
    if (f->why[0])
        return gpunvme_fail(-ENOTTY, "%s", f->why);
    if (f->g->options.path == GPUNVME_PATH_BOUNCE)
        return gpunvme_fail(-ENOTSUP, "the options ask for the bounce path");
    int err = queues_get(f, &f->queues);
    if (f->queues)
        err = leased_file_open(f->queues->direct, f->fd, false, &f->leased);
    return err ? err : queues_reach_memory(f);
}

void file_direct_end(struct gpunvme_file *f)
{
    leased_file_close(f->leased);
    if (f->queues)
        queues_put(f, f->queues);
    f->leased = NULL;
    f->queues = NULL;
}

int file_direct_device(const struct gpunvme_file *f)
{
    return f->queues ? f->queues->direct->space.device : CUDA_NO_DEVICE;
}

/* --- What a direct file is ------------------------------------------------------------------- */

const struct gpunvme_device_file *gpunvme_file_device(const struct gpunvme_file *f)
{
    return f->leased ? leased_file_device(f->leased) : NULL;
}

int gpunvme_file_refresh(struct gpunvme_file *f)
{
    int err = handle_check_process(f->g);

    return err || !f->leased ? err : leased_file_refresh(f->leased);
}

int gpunvme_file_renew(struct gpunvme_file *f)
{
    int err = handle_check_process(f->g);

    if (err)
        return err;
    if (!f->leased)
        return gpunvme_fail(-EINVAL, "the file is not direct: it has no leases");
    err = direct_renew(f->queues->direct);
    if (!err)
        f->queues->stale = false;
    return err;
}

int gpunvme_file_bad_block(struct gpunvme_file *f, uint64_t *offset)
{
    int err = handle_check_process(f->g);

    return err || !f->leased ? err : direct_bad_block(f->leased, offset);
}

/* --- Reads ----------------------------------------------------------------------------------- */

/* Returns a lane that belongs to the caller until it clears busy, or -1 if there is none. */
static int lane_take(struct file_queues *q)
{
    for (int i = 0; i < LANES; i++) {
        bool idle = false;
        if (atomic_compare_exchange_strong(&q->busy[i], &idle, true))
            return i;
    }
    return -1;
}

static ssize_t lane_read(const struct gpunvme_file *f, int lane, void *addr, size_t len,
                         uint64_t offset)
{
    struct file_queues *q = f->queues;
    struct memory_space *space = &q->direct->space;
    const int64_t *word = (const int64_t *)q->words.addr + lane;
    int64_t *for_gpu = (int64_t *)(uintptr_t)q->words.at + lane;
    int err = 0;

    if (!q->streams[lane])
        err = cuda_driver_stream_new(space->cuda, space->device, true, &q->streams[lane]);
    if (!err)
        err = direct_read_launch(f->leased, addr, len, offset, q->streams[lane], for_gpu);
    if (!err)
        err = cuda_driver_copy_wait(space->cuda, space->device, q->streams[lane]);
    if (err)
        return err;
    int64_t n = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    return n < 0 ? gpunvme_fail((int)n, "direct path: %s", strerror((int)-n)) : (ssize_t)n;
}

static ssize_t file_direct_move(const struct gpunvme_file *f, void *addr, size_t len,
                                uint64_t offset)
{
    int lane = f->queues->words.addr && len >= LONG ? lane_take(f->queues) : -1;
    uint64_t begun = now_ns();
    ssize_t n = lane < 0 ? direct_read_wait(f->leased, addr, len, offset)
                         : lane_read(f, lane, addr, len, offset);

    if (lane >= 0)
        call_stats_count(f->queues->direct->g, GPUNVME_OP_READ, GPUNVME_CALLS_DIRECT,
                         n > 0 ? (uint64_t)n : 0, begun);
    /*
     * After -ETIMEDOUT the stream may still write to the word of the lane, which therefore stays
     * busy.
     */
    if (lane >= 0 && n != -ETIMEDOUT)
        atomic_store(&f->queues->busy[lane], false);
    if (n == -ESTALE || n == -ETIMEDOUT)
        f->queues->stale = true;
    return n;
}

static int file_direct_check_reach(const struct gpunvme_file *f, const struct gpunvme_buffer *b)
{
    if (b->owner == f->mount && b->shared)
        return 0;
    return gpunvme_fail(-EFAULT,
                        "leased queues do not reach this memory%s%s: take memory of "
                        "alloc_host()",
                        b->why_not[0] ? ": " : "", b->why_not);
}

ssize_t file_direct_read(struct gpunvme_file *f, const struct region_use *u, void *addr, size_t len,
                         uint64_t file_offset)
{
    int err = file_direct_check_reach(f, u->buffer);

    return err ? err : file_direct_move(f, addr, len, file_offset);
}

/* --- Launches in a stream of the caller's ---------------------------------------------------- */

static int file_direct_check_launch(const struct gpunvme_file *f, const struct region_use *u,
                                    const struct gpunvme_stream_transfer *t)
{
    if (t->write || t->done)
        return gpunvme_fail(-EINVAL, "a stream-ordered transfer of a direct file reads, and calls "
                                     "nothing");
    if (!u->held)
        return gpunvme_fail(-EFAULT, "kernels read into registered memory: gpunvme_register()");
    return file_direct_check_reach(f, u->buffer);
}

int file_direct_launch(struct gpunvme_file *f, const struct region_use *u, void *addr,
                       const struct gpunvme_stream_transfer *t, void *stream)
{
    int err = file_direct_check_launch(f, u, t);

    if (err)
        return err;
    if (t->pieces)
        return direct_readv_async(f->leased, addr, t->pieces, t->n_pieces, stream);
    if (*t->file_offset < 0)
        return gpunvme_fail(-EINVAL, "a negative offset");
    return direct_read_async(f->leased, addr, *t->len, (uint64_t)*t->file_offset, stream, t->bytes);
}
