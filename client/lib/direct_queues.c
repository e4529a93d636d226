/* SPDX-License-Identifier: BSD-2-Clause */
/* Leases queue pairs, and places their rings, doorbells and states in the memory space. */
#include "client/lib/direct.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/socket.h"
#include "support/clock.h"

#define ALIGNMENT  256u
#define IDLE_MS    1000u /* added to the deadline of a command */
#define DOORBELL   sizeof(uint32_t)
#define STATE_SIZE sizeof(struct gpunvme_lease_page)

static_assert(GD_MAX_QUEUES == GPUNVME_LEASE_MAX, "a lease fits");
static_assert(GD_LEASE_VALID == GPUNVME_LEASE_VALID && GD_LEASE_REVOKED == GPUNVME_LEASE_REVOKED,
              "kernels read the state as the daemon writes it");

void direct_lease_end(int fd, uint64_t id, uint64_t key)
{
    struct gpunvme_ioc_lease_end end = {.id = id, .key = key};

    if (id)
        (void)gpunvme_ioctl(fd, GPUNVME_IOC_LEASE_END, &end, sizeof(end)); /* fails once revoked */
}

int direct_share_page(struct gpunvme_direct *d, uint64_t id, uint64_t key, size_t len,
                      struct memory_space_map *out)
{
    struct gpunvme_request request = {.what = GPUNVME_ASK_PAGE, .id = id, .key = key};
    struct gpunvme_reply reply;
    int fd;
    int err = socket_request(d->g, &request, &reply, &fd, 1);

    if (err)
        return err;
    if (reply.len < len)
        err = gpunvme_fail(-EPROTO, "a lease's page is too short");
    if (!err)
        err = memory_space_share(&d->space, fd, 0, len, MEMORY_SPACE_READ_ONLY, out);
    close(fd);
    return err;
}

static int direct_queues_lease_failed(const struct gpunvme_direct *d, int err)
{
    if (err == -EPERM)
        return gpunvme_fail(err, "the mount trusts others with the direct path (-o direct=)");
    if (err == -ENOTSUP || err == -ENOTTY)
        return gpunvme_fail(-ENOTSUP, "this mount has no drive whose queues could be leased");
    if (err == -EBUSY && d->g->info.lease_queues == 0)
        return gpunvme_fail(err, "the mount leaves no queues of the drive for leases (-o queues=)");
    if (err == -EBUSY)
        return gpunvme_fail(err, "all queues of the drive that this user may lease are leased");
    if (err == -EAGAIN)
        return gpunvme_fail(err, "the drive was reset meanwhile: try again");
    return gpunvme_fail(err, "QUEUE_LEASE: %s", strerror(-err));
}

static int check_lease(const struct gpunvme_direct *d)
{
    const struct gpunvme_ioc_queue_lease *l = &d->lease;

    if (l->queues == 0 || l->queues > d->want_queues || l->depth < 2 || l->depth > NVME_MAX_DEPTH)
        return gpunvme_fail(-EPROTO, "the mount leased %u queues of %u entries", l->queues,
                            l->depth);
    if (l->lba_size != d->g->info.lba_size || l->lba_size < sizeof(uint32_t) ||
        (l->lba_size & (l->lba_size - 1)) || l->max_command < l->lba_size ||
        l->max_command < GD_STAGED_ALL)
        return gpunvme_fail(-EPROTO, "the mount leased queues of LBAs of %u bytes, commands of %u",
                            l->lba_size, l->max_command);
    return 0;
}

static int take_lease(struct gpunvme_direct *d)
{
    struct gpunvme_ioc_queue_lease lease = {.queues = d->want_queues, .depth = d->want_depth};
    int err = gpunvme_ioctl(d->g->fd, GPUNVME_IOC_QUEUE_LEASE, &lease, sizeof(lease));

    if (err)
        return direct_queues_lease_failed(d, err);
    d->lease = lease;
    return check_lease(d);
}

/* Maps the rings of the lease. The file has rings of other queues before *first. */
static int share_rings(struct gpunvme_direct *d, const struct gpunvme_reply *reply, int fd,
                       struct memory_space_map *out, uint64_t *first)
{
    *first = reply->sq_offset < reply->cq_offset ? reply->sq_offset : reply->cq_offset;
    return memory_space_share(&d->space, fd, *first, reply->len - *first, MEMORY_SPACE_MEMORY, out);
}

/* Maps both doorbells together, because they are adjacent. */
static int share_doorbells(struct gpunvme_direct *d, const struct gpunvme_reply *reply, int fd,
                           struct memory_space_map *out, uint64_t *first)
{
    uint64_t low = reply->sq_doorbell, high = reply->cq_doorbell;

    if (low > high) {
        low = reply->cq_doorbell;
        high = reply->sq_doorbell;
    }
    *first = low;
    return memory_space_share(&d->space, fd, low, high + DOORBELL - low, MEMORY_SPACE_DOORBELLS,
                              out);
}

/*
 * Returns true if an aligned array of n elements of `size` bytes fits at this
 * offset of a len-byte region.
 */
static bool direct_queues_fits(uint64_t offset, uint64_t n, uint64_t size, uint64_t len)
{
    return offset % size == 0 && n * size <= len && offset <= len - n * size;
}

static int check_reply(const struct gpunvme_reply *t, uint32_t depth)
{
    if (!direct_queues_fits(t->sq_offset, depth, sizeof(struct nvme_sqe), t->len) ||
        !direct_queues_fits(t->cq_offset, depth, sizeof(struct nvme_cqe), t->len))
        return gpunvme_fail(-EPROTO, "the rings of a leased queue are not where they may be");
    if (!direct_queues_fits(t->sq_doorbell, 1, DOORBELL, t->doorbells_len) ||
        !direct_queues_fits(t->cq_doorbell, 1, DOORBELL, t->doorbells_len))
        return gpunvme_fail(-EPROTO, "the doorbells of a leased queue are not where they may be");
    return 0;
}

static int share_queue(struct gpunvme_direct *d, uint32_t index, struct gq_port *port)
{
    struct direct_queue *q = &d->queues[index];
    struct gpunvme_request request = {
        .what = GPUNVME_ASK_QUEUE, .id = d->lease.id, .key = d->lease.key, .index = index};
    struct gpunvme_reply reply;
    uint64_t ring = 0, doorbell = 0;
    int fds[SOCKET_FDS];
    int err = socket_request(d->g, &request, &reply, fds, 2);

    if (err)
        return err;
    err = check_reply(&reply, d->lease.depth);
    if (!err)
        err = share_rings(d, &reply, fds[0], &q->rings, &ring);
    if (!err)
        err = share_doorbells(d, &reply, fds[1], &q->doorbells, &doorbell);
    close(fds[0]);
    close(fds[1]);
    if (err)
        return err;
    port->sq = (struct nvme_sqe *)(uintptr_t)(q->rings.at + reply.sq_offset - ring);
    port->cq = (struct nvme_cqe *)(uintptr_t)(q->rings.at + reply.cq_offset - ring);
    port->sq_doorbell = (uint32_t *)(uintptr_t)(q->doorbells.at + reply.sq_doorbell - doorbell);
    port->cq_doorbell = (uint32_t *)(uintptr_t)(q->doorbells.at + reply.cq_doorbell - doorbell);
    port->depth = d->lease.depth;
    return 0;
}

/*
 * Describes one allocation in the memory space. The allocation has the locks, the queues, the
 * trackers and free CIDs of each queue, and the CIDs of each queue with their commands and states.
 */
struct arena {
    uint64_t queues, trackers, free_cids, cids, cmds, states, len; /* offsets; bytes of all */
    uint32_t n, depth, n_cids;
};

static struct arena arena_of(const struct gpunvme_direct *d)
{
    struct arena a = {.n = d->lease.queues, .depth = d->lease.depth};

    a.queues = GD_MAX_QUEUES * sizeof(uint32_t);
    a.trackers = a.queues + a.n * sizeof(struct gd_queue);
    a.trackers = (a.trackers + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    a.free_cids = a.trackers + (uint64_t)a.n * a.depth * sizeof(struct gq_tracker);
    a.cids = a.free_cids + (uint64_t)a.n * a.depth * sizeof(uint32_t);
    a.cids = (a.cids + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    a.cmds = a.cids + a.n * sizeof(struct gq_cids);
    a.n_cids = a.depth - 1 < GQ_MAX_CIDS ? a.depth - 1 : GQ_MAX_CIDS;
    a.states = a.cmds + (uint64_t)a.n * a.n_cids * sizeof(struct gq_cmd);
    a.len = a.states + (uint64_t)a.n * a.n_cids * sizeof(uint32_t);
    return a;
}

static int direct_queues_share_queues(struct gpunvme_direct *d, const struct arena *a,
                                      struct gd_queue *queues)
{
    int err = 0;

    for (uint32_t i = 0; i < a->n && !err; i++) {
        struct gq_port *port = &queues[i].port;
        uint64_t trackers =
            d->arena + a->trackers + (uint64_t)i * a->depth * sizeof(struct gq_tracker);
        uint64_t cids = d->arena + a->free_cids + (uint64_t)i * a->depth * sizeof(uint32_t);
        err = share_queue(d, i, port);
        port->trackers = (struct gq_tracker *)(uintptr_t)trackers;
        port->free_cids = (uint32_t *)(uintptr_t)cids;
    }
    return err;
}

static int put_queues(struct gpunvme_direct *d, const struct arena *a)
{
    struct gd_queue *queues = calloc(GD_MAX_QUEUES, sizeof(*queues));

    if (!queues)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = direct_queues_share_queues(d, a, queues);
    if (!err)
        err = memory_space_put(&d->space, d->arena + a->queues, queues, a->n * sizeof(*queues));
    free(queues);
    return err;
}

/* Stores the CIDs. Bits of CIDs that do not exist are claimed permanently. */
static int put_cids(struct gpunvme_direct *d, const struct arena *a)
{
    struct gq_cids *cids = calloc(a->n, sizeof(*cids));

    if (!cids)
        return gpunvme_fail(-ENOMEM, "out of memory");
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t first = (uint64_t)i * a->n_cids;

        for (uint32_t k = a->n_cids; k < GQ_MAX_CIDS; k++)
            cids[i].taken[k / 32] |= 1u << k % 32;
        cids[i].n_cids = a->n_cids;
        cids[i].cmds =
            (struct gq_cmd *)(uintptr_t)(d->arena + a->cmds + first * sizeof(struct gq_cmd));
        cids[i].states = (uint32_t *)(uintptr_t)(d->arena + a->states + first * sizeof(uint32_t));
    }
    int err = memory_space_put(&d->space, d->arena + a->cids, cids, a->n * sizeof(*cids));
    free(cids);
    return err;
}

static int build_arena(struct gpunvme_direct *d, const struct arena *a)
{
    int err = memory_space_alloc(&d->space, a->len, &d->arena);

    if (!err)
        err = put_queues(d, a);
    if (!err)
        err = put_cids(d, a);
    return err;
}

/*
 * Returns the staging of the lanes. It begins at the first multiple of a queue's part, for which
 * there is one spare part, so that the PRPs of a lane's part are never in two pages of their table.
 */
static struct gq_target staging_of(const struct gpunvme_direct *d, const struct gd_buffer *b)
{
    uint64_t part = GD_QUEUE_STAGING(d->staged_bytes);
    struct gq_target t = b->target;

    t.head = (t.head + part - 1) / part * part;
    return t;
}

/* Returns the staging of the CIDs, which is behind that of the lanes of all queues. */
static struct gq_target shared_staging_of(const struct gpunvme_direct *d, const struct gd_buffer *b)
{
    struct gq_target t = staging_of(d, b);
    uint64_t skip = t.head + (uint64_t)d->lease.queues * GD_QUEUE_STAGING(d->staged_bytes);

    return (struct gq_target){.base = t.base + skip, .iova = t.iova + skip};
}

static void build_set(struct gpunvme_direct *d, const struct arena *a,
                      const struct gd_buffer *staging)
{
    d->set = (struct gd_set){
        .queues = (struct gd_queue *)(uintptr_t)(d->arena + a->queues),
        .locks = (uint32_t *)(uintptr_t)d->arena,
        .buffers = (const struct gd_buffer *)(uintptr_t)(d->buffers_at + ALIGNMENT),
        .n_buffers = (const uint32_t *)(uintptr_t)d->buffers_at,
        .lease = (const uint32_t *)(uintptr_t)d->page.at,
        .staging = staging_of(d, staging),
        .command_ns = (uint64_t)d->lease.deadline_ms * NS_PER_MS,
        .n_queues = d->lease.queues,
        .nsid = d->lease.nsid,
        .max_command = d->lease.max_command,
        .lane_bytes = d->staged_bytes,
        .cids = (struct gq_cids *)(uintptr_t)(d->arena + a->cids),
        .shared_staging = shared_staging_of(d, staging),
        .shared_bytes = d->staged_bytes,
        .staged_cids = GD_STAGED_CIDS,
        .shared_inverse = gd_inverse(gd_shared_queues(d->lease.queues)),
        .number = ++d->leases,
    };
}

/* Publishes the locks and queues of the arena. NULL means that there are no queues any more. */
static void set_locks_at(struct gpunvme_direct *d, const struct arena *a)
{
    pthread_mutex_lock(&d->lock);
    d->locks_at = a ? d->arena : 0;
    d->cids_at = a ? d->arena + a->cids : 0;
    d->n_cids = a ? a->n : 0;
    pthread_mutex_unlock(&d->lock);
}

int direct_queues_lease(struct gpunvme_direct *d)
{
    struct gd_buffer staging = {0};
    int err = direct_locate(d->g, d->staging, &staging);

    if (!err && staging.target.iova == GD_UNREACHABLE)
        err = gpunvme_fail(-ENOTSUP, "the drive does not reach memory for staging; where all its "
                                     "DMA regions are in use (gpunvme info), unregister buffers");
    if (!err)
        err = take_lease(d);
    if (!err)
        err = direct_share_page(d, d->lease.id, d->lease.key, STATE_SIZE, &d->page);
    struct arena a = arena_of(d);
    if (!err)
        err = build_arena(d, &a);
    if (err) {
        direct_queues_end(d);
        return err;
    }
    build_set(d, &a, &staging);
    set_locks_at(d, &a);
    return 0;
}

/* Loads the locks, to which threads of this process or kernels may be storing. */
static int load_locks(const struct gpunvme_direct *d, uint32_t locks[GD_MAX_QUEUES])
{
    const uint32_t *words = (const uint32_t *)(uintptr_t)d->locks_at;

    if (d->space.cuda)
        return memory_space_get(&d->space, locks, d->locks_at, GD_MAX_QUEUES * sizeof(*locks));
    for (uint32_t i = 0; i < GD_MAX_QUEUES; i++)
        locks[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
    return 0;
}

/*
 * Loads whether queue i has lost commands. A shared queue counts them immediately; its lock shows
 * them when no other command is left.
 */
static int load_lost(const struct gpunvme_direct *d, uint32_t i, uint32_t *lost)
{
    uint64_t at = d->cids_at + i * sizeof(struct gq_cids) + offsetof(struct gq_cids, lost);

    if (d->space.cuda)
        return memory_space_get(&d->space, lost, at, sizeof(*lost));
    *lost = __atomic_load_n((const uint32_t *)(uintptr_t)at, __ATOMIC_RELAXED);
    return 0;
}

/*
 * Called under d->lock. Returns true if a queue has lost commands; false if the GPU has failed,
 * because nothing is known then.
 */
static bool has_lost(const struct gpunvme_direct *d)
{
    uint32_t locks[GD_MAX_QUEUES] = {0}, count = 0;
    bool lost = load_locks(d, locks) != 0;

    for (uint32_t i = 0; i < GD_MAX_QUEUES && !lost; i++)
        lost = (locks[i] & GD_LOST) != 0;
    for (uint32_t i = 0; i < d->n_cids && !lost; i++)
        lost = load_lost(d, i, &count) || count != 0;
    return lost;
}

bool direct_queues_lost(struct gpunvme_direct *d)
{
    pthread_mutex_lock(&d->lock);
    bool lost = d->locks_at && has_lost(d);
    pthread_mutex_unlock(&d->lock);
    return lost;
}

static bool direct_queues_idle(struct gpunvme_direct *d)
{
    uint32_t locks[GD_MAX_QUEUES];

    if (memory_space_get(&d->space, locks, d->arena, sizeof(locks)))
        return true; /* a failed GPU drives nothing */
    for (uint32_t i = 0; i < GD_MAX_QUEUES; i++) {
        if (!GD_FREE(locks[i]) && !(locks[i] & GD_LOST))
            return false;
    }
    return direct_service_has_left(d->service); /* otherwise it may be about to take a queue */
}

/*
 * Waits until no kernel or thread drives a queue. A running kernel ends within its deadline for a
 * queue and the deadline of a command. The wait is no longer for a kernel that a debugger holds, or
 * that ended with its queue.
 */
static void await_idle(struct gpunvme_direct *d)
{
    const struct timespec step = {.tv_nsec = NS_PER_MS};

    for (uint64_t ms = 0;
         ms < 2 * (uint64_t)d->lease.deadline_ms + IDLE_MS && !direct_queues_idle(d); ms++)
        nanosleep(&step, NULL);
}

/*
 * Ends the leases of the queues first: then the drive reaches none of the memory that is freed
 * after them. The arena is next, because freeing memory on a GPU waits for kernels, which may be
 * loading words of the page and of the rings. await_idle() waits only for kernels that have a
 * queue, and for a limited time.
 */
void direct_queues_end(struct gpunvme_direct *d)
{
    if (d->arena)
        await_idle(d);
    direct_lease_end(d->g->fd, d->lease.id, d->lease.key);
    set_locks_at(d, NULL);
    memory_space_free(&d->space, d->arena);
    d->arena = 0;
    for (uint32_t i = 0; i < GD_MAX_QUEUES; i++) {
        memory_space_unshare(&d->space, &d->queues[i].rings);
        memory_space_unshare(&d->space, &d->queues[i].doorbells);
    }
    memory_space_unshare(&d->space, &d->page);
    d->set = (struct gd_set){0}; /* for files that are opened before there are queues again */
    d->lease = (struct gpunvme_ioc_queue_lease){0};
}
