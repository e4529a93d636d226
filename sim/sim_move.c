/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes commands on device memory. Their copies are batched into submissions
 * to the DMA engine, with one channel for each thread and device. Media that
 * the DMA engine could pin is copied directly. Other media is copied through
 * rings of pinned bounce memory, one for each direction, which is freed in the
 * order of submission.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "blockdev/transport.h"
#include "sim/sim_internal.h"

#define AHEAD         6u  /* distance of the prefetch */
#define FLYING_LARGE  2u  /* submissions in flight with large copies */
#define FLYING_SMALL  4u  /* with copies of at most COPY_SMALL */
#define FLYING_MOST   16u /* with COPIES_ENOUGH or more small copies */
#define COPIES_ENOUGH 32u
#define COPY_SMALL    (32u << 10) /* bytes */
#define MAX_COPIES    4096u
#define RING_BYTES    (2u << 20) /* bounce memory per thread and direction */
#define RING_ALIGN    64u
#define RING_LEAST    (16u << 10) /* shorter pieces are not worth a copy */
#define SIM_SUBS      32u         /* submissions per thread, filled or in flight */

struct sim_copy_ref {
    struct sim_cmd *cmd;
    void *media; /* final destination of a bounced write */
};

struct sim_sub {
    struct sim_copy *copies;
    struct sim_copy_ref *refs;
    uint64_t ticket, ring_end, bytes;
    unsigned n;
    bool to_device, refused;
    bool failed; /* result of an ended submission */
};

struct sim_ring {
    unsigned char *base;
    uint64_t head, tail; /* total bytes allocated and freed */
};

/* Each thread has submissions for each device. */
struct sim_move {
    const struct sim_dma_engine *dma_engine;
    pthread_mutex_t *channel_lock; /* NULL if only this thread uses the channel */
    unsigned channel, max_copies;
    struct sim_sub subs[SIM_SUBS];
    struct sim_sub *fill[2]; /* being filled, by to_device */
    struct sim_sub *free[SIM_SUBS];
    unsigned n_free;
    struct sim_sub *flying[SIM_SUBS]; /* FIFO */
    unsigned first, n_flying;
    unsigned n_ended; /* number of first ones that sim_move_poll() has seen end */
    struct sim_ring ring[2];
    void *bounce;
    bool pinned;
    struct sim_move *next; /* in a list of submissions to be freed */
};

/* The store releases, so that the data of the copies is visible before the count 0. */
static void move_count(struct sim_thread *th, unsigned change)
{
    unsigned now = atomic_load_explicit(&th->moving, memory_order_relaxed) + change;

    atomic_store_explicit(&th->moving, now, memory_order_release);
}

/*
 * Returns the region of a copy: one mapping on the device's side, and on the
 * host's side the media of one namespace or the bounce memory.
 */
static uint64_t move_region(uint64_t mapping, uint32_t nsid, bool bounced)
{
    static_assert(2 * (SIM_MAX_NAMESPACES + 1) < NVME_PAGE_SIZE, "fits below a mapping's address");

    return mapping + (bounced ? 1 : 2 * nsid);
}

/* Ends a write whose bytes are on the media: a status, or SIM_MOVING. */
static uint16_t written(struct sim_thread *th, struct sim_cmd *cmd)
{
    struct sim_ns *ns = sim_ns_get(th->s, cmd->sqe.nsid);

    if (cmd->corrupt)
        ns->base[sim_slba(&cmd->sqe) << ns->lba_shift] ^= 1;
    return sim_flush_write(th, cmd, ns);
}

static SIM_HOT void move_complete(struct sim_thread *th, struct sim_cmd *cmd, bool idle)
{
    if (cmd->sqe.opcode == NVME_IO_WRITE && !cmd->dead && cmd->status == NVME_OK)
        cmd->status = written(th, cmd);
    if (cmd->status != SIM_MOVING)
        sim_finish_knowing(th, cmd, cmd->status, idle);
}

static void move_note(struct sim_cmd *cmd, uint16_t status)
{
    if (status != NVME_OK)
        cmd->status = status;
}

/* Ends commands whose copies failed, and copies bounced writes to the media. */
static SIM_APART void move_hand_over(struct sim *s, const struct sim_sub *sub, bool ok)
{
    for (unsigned i = 0; i < sub->n; i++) {
        const struct sim_copy_ref *ref = &sub->refs[i];
        struct sim_cmd *cmd = ref->cmd;

        if (!ok)
            cmd->status = NVME_ERR_DATA_TRANSFER;
        else if (ref->media && !cmd->dead)
            move_note(cmd, sim_media_write(sim_ns_get(s, cmd->sqe.nsid), ref->media,
                                           sub->copies[i].host, sub->copies[i].len));
    }
}

/* Prefetches a command that has left the cache since its fetch. */
static void prefetch_cmd(const struct sim_cmd *cmd)
{
    __builtin_prefetch(&cmd->sqe, 1);
    __builtin_prefetch(&cmd->sq, 1);
}

static void sub_done(struct sim_thread *th, struct sim_move *m, struct sim_sub *sub, bool ok)
{
    bool idle = sim_idle(th->s);
    unsigned over = 0;

    if (atomic_load_explicit(&th->s->stalled, memory_order_relaxed))
        atomic_store(&th->s->stalled, false);
    if (ok)
        sim_count(&th->count.device_bytes, sub->bytes);
    if (!ok || !sub->to_device)
        move_hand_over(th->s, sub, ok);
    for (unsigned i = 0; i < sub->n && i < AHEAD; i++)
        prefetch_cmd(sub->refs[i].cmd);
    for (unsigned i = 0; i < sub->n; i++) {
        struct sim_cmd *cmd = sub->refs[i].cmd;

        if (i + AHEAD < sub->n)
            prefetch_cmd(sub->refs[i + AHEAD].cmd);
        if (--cmd->subs == 0 && cmd->queued) {
            move_complete(th, cmd, idle);
            over++;
        }
    }
    move_count(th, -over);
    if (sub->ring_end)
        m->ring[sub->to_device].tail = sub->ring_end;
    m->free[m->n_free++] = sub;
}

/* Returns false if another thread uses the channel. */
static bool enter_channel(struct sim_move *m)
{
    return !m->channel_lock || pthread_mutex_trylock(m->channel_lock) == 0;
}

static void leave_channel(struct sim_move *m)
{
    if (m->channel_lock)
        pthread_mutex_unlock(m->channel_lock);
}

static int move_dma_engine_submit(struct sim_move *m, struct sim_sub *sub)
{
    const struct sim_dma_engine *mv = m->dma_engine;

    if (!enter_channel(m))
        return -EAGAIN;
    int rc =
        mv->ops->submit(mv->ctx, m->channel, sub->to_device, sub->copies, sub->n, &sub->ticket);
    leave_channel(m);
    return rc;
}

static int move_dma_engine_poll(struct sim_move *m, const struct sim_sub *sub)
{
    const struct sim_dma_engine *mv = m->dma_engine;

    if (!enter_channel(m))
        return 0;
    int rc = mv->ops->poll(mv->ctx, m->channel, sub->ticket);
    leave_channel(m);
    return rc;
}

/* Submits. Returns false if the DMA engine has too many in flight. */
static bool move_send(struct sim_move *m, bool to_device)
{
    struct sim_sub *sub = m->fill[to_device];

    if (!sub || !sub->n)
        return true;
    int rc = move_dma_engine_submit(m, sub);
    if (rc == -EAGAIN)
        return false;
    m->fill[to_device] = NULL;
    sub->refused = rc != 0; /* ends in order, since bounce memory is freed in order */
    m->flying[(m->first + m->n_flying++) % SIM_SUBS] = sub;
    return true;
}

/*
 * Returns the number of submissions in flight at which this one must wait. The
 * DMA engine may execute submissions of small copies concurrently, so more of
 * them are sent. A submission with few copies waits earlier, since more copies
 * may be added meanwhile.
 */
static unsigned most_flying(const struct sim_sub *sub)
{
    if (!sub || !sub->n || sub->copies[0].len > COPY_SMALL)
        return FLYING_LARGE;
    return sub->n < COPIES_ENOUGH ? FLYING_SMALL : FLYING_MOST;
}

/*
 * With large copies, one submission is executed and a second one waits while
 * the next one is filled. Submissions therefore grow with the load, and
 * adjacent copies of one submission are joined.
 */
void sim_move_submit(struct sim_thread *th)
{
    for (unsigned d = 0; d < th->n_moves; d++) {
        struct sim_move *m = th->moves[d];

        for (unsigned i = 0; m && i < 2; i++) {
            if (m->n_flying < most_flying(m->fill[i]))
                move_send(m, i);
        }
    }
}

/* Returns a submission with room for one more copy, or NULL. */
static struct sim_sub *filling(struct sim_move *m, bool to_device)
{
    struct sim_sub *sub = m->fill[to_device];

    if (sub && sub->n < m->max_copies)
        return sub;
    if ((sub && !move_send(m, to_device)) || !m->n_free)
        return NULL;
    sub = m->free[--m->n_free];
    sub->n = 0;
    sub->ring_end = sub->bytes = 0;
    sub->to_device = to_device;
    m->fill[to_device] = sub;
    return sub;
}

/*
 * Allocates contiguous bounce memory for up to *len bytes, and shortens *len.
 * Returns NULL if there is too little.
 */
static unsigned char *move_ring_take(struct sim_ring *r, size_t *len)
{
    uint64_t at = r->head % RING_BYTES, to_end = RING_BYTES - at;
    uint64_t room = RING_BYTES - (r->head - r->tail);

    room = room < to_end ? room : to_end;
    if (room < *len && room < RING_LEAST && room < to_end)
        return NULL;
    if (!room)
        return NULL;
    *len = *len < room ? *len : (size_t)room;
    r->head += (*len + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
    return r->base + at;
}

/* Allocates bounce memory, and fills it with the bytes of a read. */
static unsigned char *bounce(struct sim_thread *th, struct sim_move *m, struct sim_cmd *cmd,
                             struct sim_sub *sub, const unsigned char *media, size_t *len)
{
    struct sim_ring *r = &m->ring[sub->to_device];
    unsigned char *host = move_ring_take(r, len);

    if (!host)
        return NULL;
    sub->ring_end = r->head;
    if (!sub->to_device)
        return host;
    move_note(cmd, sim_media_read(sim_ns_get(th->s, cmd->sqe.nsid), media, host, *len));
    if (cmd->corrupt) {
        host[sim_random(&th->rng) % *len] ^= 1;
        cmd->corrupt = false; /* the bit is flipped, so the rest is copied unchanged */
    }
    return host;
}

/* Adds a copy of the start of a span; sub has room. */
static SIM_HOT void move_add_copy(struct sim_sub *sub, struct sim_cmd *cmd,
                                  const struct sim_span *p, size_t len, unsigned char *host,
                                  unsigned char *media)
{
    bool bounced = host != media;

    sub->copies[sub->n] =
        (struct sim_copy){.host = host,
                          .device = p->device,
                          .len = len,
                          .region = move_region(p->mapping, cmd->sqe.nsid, bounced)};
    sub->refs[sub->n++] =
        (struct sim_copy_ref){.cmd = cmd, .media = bounced && !sub->to_device ? media : NULL};
    sub->bytes += len;
    cmd->subs++;
}

/* Queues a copy of the start of a span. Returns its length, 0: no room. */
static size_t queue_copy(struct sim_thread *th, struct sim_cmd *cmd, bool pinned,
                         const struct sim_span *p, unsigned char *media)
{
    struct sim_move *m = th->moves[p->dma];
    struct sim_sub *sub = filling(m, cmd->sqe.opcode != NVME_IO_WRITE);
    unsigned char *host = media;
    size_t len = p->len;

    if (!sub)
        return 0;
    if (!pinned || (cmd->corrupt && sub->to_device))
        host = bounce(th, m, cmd, sub, media, &len);
    if (!host)
        return 0;
    move_add_copy(sub, cmd, p, len, host, media);
    return len;
}

static size_t move_host_copy(struct sim_cmd *cmd, const struct sim_ns *ns, const struct sim_span *p,
                             unsigned char *media)
{
    move_note(cmd, cmd->sqe.opcode == NVME_IO_WRITE ? sim_media_write(ns, media, p->host, p->len)
                                                    : sim_media_read(ns, media, p->host, p->len));
    return p->len;
}

/* Returns the part of a span after its first `at` bytes. */
static struct sim_span from(const struct sim_span *p, size_t at)
{
    return (struct sim_span){.host = p->host ? p->host + at : NULL,
                             .device = p->device + at,
                             .len = p->len - at,
                             .mapping = p->mapping,
                             .dma = p->dma};
}

/* Queues copies from byte `queued` on. Returns false without room. */
static SIM_APART bool queue_copies(struct sim_thread *th, struct sim_cmd *cmd,
                                   const struct sim_ns *ns, size_t queued)
{
    unsigned char *media = ns->base + (sim_slba(&cmd->sqe) << ns->lba_shift);
    size_t start = 0; /* offset of the span */

    for (unsigned i = 0; i < th->n_spans && !cmd->dead; start += th->spans[i++].len) {
        while (queued < start + th->spans[i].len) {
            struct sim_span p = from(&th->spans[i], queued - start);
            size_t n = p.host ? move_host_copy(cmd, ns, &p, media + queued)
                              : queue_copy(th, cmd, ns->pinned, &p, media + queued);

            queued += n;
            if (!n) {
                th->blocked_cmd = cmd;
                th->blocked_queued = queued;
                return false;
            }
        }
    }
    cmd->queued = true;
    if (!cmd->subs) {
        move_complete(th, cmd, sim_idle(th->s));
        move_count(th, -1u);
    }
    return true;
}

static bool is_of_one_device(const struct sim_thread *th)
{
    for (unsigned i = 1; i < th->n_spans; i++) {
        if (th->spans[i].dma != th->spans[0].dma)
            return false;
    }
    return th->host_spans == 0;
}

/*
 * Queues all copies if each span is one copy of the same device, and there is
 * room.
 */
static SIM_HOT bool queue_straight(struct sim_thread *th, struct sim_cmd *cmd,
                                   const struct sim_ns *ns)
{
    unsigned char *media = ns->base + (sim_slba(&cmd->sqe) << ns->lba_shift);

    if (!is_of_one_device(th))
        return false;
    const struct sim_move *m = th->moves[th->spans[0].dma];
    struct sim_sub *sub = m->fill[cmd->sqe.opcode != NVME_IO_WRITE];
    if (!sub || th->n_spans > m->max_copies - sub->n || !ns->pinned || cmd->corrupt)
        return false;
    for (unsigned i = 0; i < th->n_spans; media += th->spans[i++].len)
        move_add_copy(sub, cmd, &th->spans[i], th->spans[i].len, media, media);
    cmd->queued = true;
    return true;
}

void sim_move_start(struct sim_thread *th, struct sim_cmd *cmd, const struct sim_ns *ns)
{
    cmd->state = SIM_CMD_MOVING;
    move_count(th, 1);
    if (!queue_straight(th, cmd, ns))
        th->blocked = !queue_copies(th, cmd, ns, 0);
}

/* Continues with the command that waits for room. */
static bool unblock(struct sim_thread *th)
{
    struct sim_cmd *cmd = th->blocked_cmd;
    size_t before = th->blocked_queued;

    th->blocked = !queue_copies(th, cmd, sim_ns_get(th->s, cmd->sqe.nsid), before);
    return !th->blocked || th->blocked_queued > before;
}

static void move_poll(struct sim_move *m)
{
    for (; m->n_ended < m->n_flying; m->n_ended++) {
        struct sim_sub *sub = m->flying[(m->first + m->n_ended) % SIM_SUBS];
        int rc = sub->refused ? -EIO : move_dma_engine_poll(m, sub);

        if (rc == 0)
            return;
        sub->failed = rc < 0;
    }
}

void sim_move_poll(struct sim_thread *th)
{
    for (unsigned d = 0; d < th->n_moves; d++) {
        if (th->moves[d])
            move_poll(th->moves[d]);
    }
}

static bool move_work(struct sim_thread *th, struct sim_move *m)
{
    bool worked = false;

    for (; m->n_ended; m->n_ended--) {
        struct sim_sub *sub = m->flying[m->first];

        m->first = (m->first + 1) % SIM_SUBS;
        m->n_flying--;
        sub_done(th, m, sub, !sub->failed);
        worked = true;
    }
    return worked;
}

bool sim_move_work(struct sim_thread *th)
{
    bool worked = false;

    for (unsigned d = 0; d < th->n_moves; d++)
        worked |= th->moves[d] && move_work(th, th->moves[d]);
    if (th->blocked)
        worked |= unblock(th);
    sim_move_submit(th);
    return worked;
}

static void move_free(struct sim_move *m)
{
    if (!m)
        return;
    if (m->pinned)
        m->dma_engine->ops->unpin(m->dma_engine->ctx, m->bounce);
    if (m->bounce)
        munmap(m->bounce, 2 * RING_BYTES);
    for (unsigned i = 0; i < SIM_SUBS; i++) {
        free(m->subs[i].copies);
        free(m->subs[i].refs);
    }
    free(m);
}

static int alloc_bounce(struct sim_move *m)
{
    void *p = mmap(NULL, 2 * RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return -ENOMEM;
    m->bounce = p;
    m->ring[0].base = p;
    m->ring[1].base = m->ring[0].base + RING_BYTES;
    int rc = m->dma_engine->ops->pin(m->dma_engine->ctx, p, 2 * RING_BYTES);
    m->pinned = rc == 0;
    return rc ? -EFAULT : 0;
}

static int move_new(struct sim *s, const struct sim_dma_engine *dma_engine, unsigned device,
                    unsigned index, struct sim_move **out)
{
    unsigned channel = index % dma_engine->channels;

    struct sim_move *m = calloc(1, sizeof(*m));

    if (!m)
        return -ENOMEM;
    m->dma_engine = dma_engine;
    m->channel = device * dma_engine->channels + channel;
    m->channel_lock = s->n_threads > dma_engine->channels ? &s->channel_locks[channel] : NULL;
    m->max_copies =
        dma_engine->ops->max_copies < MAX_COPIES ? dma_engine->ops->max_copies : MAX_COPIES;
    for (unsigned i = 0; i < SIM_SUBS; i++) {
        struct sim_sub *sub = &m->subs[i];

        sub->copies = calloc(m->max_copies, sizeof(*sub->copies));
        sub->refs = calloc(m->max_copies, sizeof(*sub->refs));
        if (!sub->copies || !sub->refs) {
            move_free(m);
            return -ENOMEM;
        }
        m->free[m->n_free++] = sub;
    }
    int rc = alloc_bounce(m);
    if (rc) {
        move_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

/* The media does not grow while it is pinned or being pinned. */
static void pin_media(struct sim *s, const struct sim_dma_engine *dma_engine)
{
    bool pinned[SIM_MAX_NAMESPACES] = {false};

    sim_pause(s);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        s->ns[i].fixed = true;
    sim_resume(s);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        pinned[i] = dma_engine->ops->pin(dma_engine->ctx, s->ns[i].base, s->ns[i].len) == 0;
    sim_pause(s);
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        s->ns[i].fixed = s->ns[i].pinned = pinned[i];
    sim_resume(s);
}

/* Gives the threads their submissions for a device. */
static void move_install(struct sim *s, unsigned device, struct sim_move *const *moves)
{
    sim_pause(s);
    for (unsigned i = 0; i < s->n_threads; i++) {
        struct sim_thread *th = &s->threads[i];

        th->moves[device] = moves[i];
        if (th->n_moves <= device)
            th->n_moves = device + 1;
    }
    sim_resume(s);
    s->has_moves[device] = true;
}

/* Takes the submissions of all devices from a paused thread. */
static void move_remove(struct sim_thread *th, struct sim_move **removed)
{
    for (unsigned d = 0; d < th->n_moves; d++) {
        if (!th->moves[d])
            continue;
        th->moves[d]->next = *removed;
        *removed = th->moves[d];
        th->moves[d] = NULL;
    }
    th->n_moves = 0;
    th->blocked = false;
}

int sim_set_dma_engine(struct sim *s, const struct sim_dma_engine *e)
{
    int rc = 0;

    pthread_mutex_lock(&s->map_lock);
    if (s->device_mappings)
        rc = -EBUSY;
    else
        s->dma_engine = e;
    pthread_mutex_unlock(&s->map_lock);
    return rc;
}

/* Creates the submissions of all threads for a device. */
static int move_open(struct sim *s, unsigned device)
{
    struct sim_move *moves[SIM_MAX_THREADS] = {NULL};
    int rc = 0;

    for (unsigned i = 0; i < s->n_threads && rc == 0; i++)
        rc = move_new(s, s->dma_engine, device, i, &moves[i]);
    if (rc == 0)
        move_install(s, device, moves);
    for (unsigned i = 0; i < s->n_threads && rc; i++)
        move_free(moves[i]);
    return rc;
}

int sim_dma_engine_attach(struct sim *s, uint64_t device)
{
    const struct sim_dma_engine *e = s->dma_engine;
    int d = 0, rc = 0;

    if (!e || !e->channels || !e->ops->max_copies)
        return -EFAULT;
    if (e->ops->open)
        d = e->ops->open(e->ctx, device);
    if (d < 0 || d >= (int)SIM_DMA_DEVICES)
        return -EFAULT;
    if (!s->has_moves[d])
        rc = move_open(s, (unsigned)d);
    if (rc)
        return rc;
    if (s->device_mappings++ == 0)
        pin_media(s, e);
    return d;
}

/*
 * The memory is unpinned while the threads run, because CUDA waits for kernels
 * meanwhile, and these may wait for the threads.
 */
void sim_dma_engine_detach(struct sim *s)
{
    const struct sim_dma_engine *e = s->dma_engine;
    struct sim_move *removed = NULL;
    bool pinned[SIM_MAX_NAMESPACES] = {false};

    if (--s->device_mappings)
        return;
    sim_pause(s);
    for (unsigned i = 0; i < s->n_threads; i++)
        move_remove(&s->threads[i], &removed);
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        pinned[i] = s->ns[i].pinned;
        s->ns[i].fixed = s->ns[i].pinned = false;
    }
    sim_resume(s);
    memset(s->has_moves, 0, sizeof(s->has_moves));
    while (removed) {
        struct sim_move *next = removed->next;

        move_free(removed);
        removed = next;
    }
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (pinned[i])
            e->ops->unpin(e->ctx, s->ns[i].base);
}
