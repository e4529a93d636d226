/* SPDX-License-Identifier: BSD-2-Clause */
/* Peers, their windows, and copies posted to them. */
#include "sim/gpu/sim_peer_window.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/clock.h"

#define NO_PEER        UINT8_MAX
#define MOST_FRAGMENTS (2 * SIM_PEER_WINDOW_COPIES) /* of a submission, cut to powers of two */

enum state { FREE, LIVE, DROPPED };

struct sim_peer {
    struct sim_peer_windows *windows;
    uint32_t state;      /* atomic; LIVE becomes DROPPED under the lock of one channel */
    uint32_t generation; /* number of peers that have used this entry */
    struct sim_peer_options opts;
    struct sim_mailbox_head *head;
    int fd;
    struct sim_poster *posters; /* one for each channel, used under its lock */
};

struct channel {
    pthread_mutex_t lock;
    unsigned hint; /* index of the peer window used last */
    uint8_t owner[SIM_PEER_WINDOW_COPIES];
    struct sim_gather moved[SIM_PEER_WINDOW_COPIES];  /* in addresses of the peer */
    struct sim_gather sorted[SIM_PEER_WINDOW_COPIES]; /* copies in the order of their owners */
    /* Fragments to post, grouped by peer. */
    struct sim_gather fragments[MOST_FRAGMENTS];
    unsigned n_fragments;
    unsigned part_fragments[SIM_PEERS]; /* of each part */
    uint64_t full_since[SIM_PEERS]; /* time from which a peer has had no room, ns; 0: it has room */
} SIM_OWN_LINES;

struct peer_window {
    struct sim_peer_window window;
    uint8_t peer;
};

/* Peers and windows change under the locks of all channels, taken in order. */
struct sim_peer_windows {
    unsigned n_channels;
    struct channel *channels;
    struct sim_peer peers[SIM_PEERS];
    struct peer_window windows[SIM_PEER_WINDOWS];
    unsigned n_windows; /* atomic */
};

static uint32_t state_of(const struct sim_peer *m)
{
    return __atomic_load_n(&m->state, __ATOMIC_ACQUIRE);
}

int sim_peer_windows_open(unsigned channels, struct sim_peer_windows **out)
{
    struct sim_peer_windows *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->n_channels = channels;
    r->channels = aligned_alloc(_Alignof(struct channel), channels * sizeof(*r->channels));
    if (!r->channels) {
        free(r);
        return -ENOMEM;
    }
    memset(r->channels, 0, channels * sizeof(*r->channels));
    for (unsigned i = 0; i < channels; i++)
        pthread_mutex_init(&r->channels[i].lock, NULL);
    *out = r;
    return 0;
}

void sim_peer_windows_close(struct sim_peer_windows *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < SIM_PEERS; i++)
        assert(r->peers[i].state == FREE);
    for (unsigned i = 0; i < r->n_channels; i++)
        pthread_mutex_destroy(&r->channels[i].lock);
    free(r->channels);
    free(r);
}

void sim_peer_windows_lock(struct sim_peer_windows *r, unsigned channel)
{
    pthread_mutex_lock(&r->channels[channel].lock);
}

void sim_peer_windows_unlock(struct sim_peer_windows *r, unsigned channel)
{
    pthread_mutex_unlock(&r->channels[channel].lock);
}

static void lock_all(struct sim_peer_windows *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_peer_windows_lock(r, i);
}

static void unlock_all(struct sim_peer_windows *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_peer_windows_unlock(r, i);
}

/* A sealed memfd: a truncation by the peer would raise SIGBUS here. */
static int make_memory(struct sim_peer *m, size_t len)
{
    void *at;
    int err;

    m->fd = memfd_create("gq-mailboxes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0)
        return -errno;
    if (ftruncate(m->fd, (off_t)len) ||
        fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        err = -errno;
        goto close_fd;
    }
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (at == MAP_FAILED) {
        err = -errno;
        goto close_fd;
    }
    m->head = at;
    return 0;

close_fd:
    close(m->fd);
    return err;
}

static int fill_in(struct sim_peer *m, const struct sim_peer_options *o)
{
    struct sim_peer_windows *r = m->windows;
    int err;

    m->opts = *o;
    m->posters = aligned_alloc(_Alignof(struct sim_poster), r->n_channels * sizeof(*m->posters));
    if (!m->posters)
        return -ENOMEM;
    err = make_memory(m, sim_peer_len(m));
    if (err) {
        free(m->posters);
        return err;
    }
    for (unsigned i = 0; i < r->n_channels; i++) {
        r->channels[i].full_since[m - r->peers] = 0;
        m->posters[i] = (struct sim_poster){.m = sim_mailbox_set(m->head, i), .blocks = o->blocks};
    }
    return 0;
}

int sim_peer_open(struct sim_peer_windows *r, const struct sim_peer_options *o,
                  struct sim_peer **out)
{
    struct sim_peer *m = NULL;
    int err = -EMFILE;

    lock_all(r);
    for (unsigned i = 0; i < SIM_PEERS && !m; i++)
        m = r->peers[i].state == FREE ? &r->peers[i] : NULL;
    if (m) {
        m->windows = r;
        err = fill_in(m, o);
    }
    if (!err) {
        m->generation++;
        m->state = LIVE;
        *out = m;
    }
    unlock_all(r);
    return err;
}

static unsigned index_of(const struct sim_peer *m)
{
    return (unsigned)(m - m->windows->peers);
}

/* Under all locks. */
static void remove_window(struct sim_peer_windows *r, unsigned i)
{
    unsigned last = r->n_windows - 1;

    r->windows[i] = r->windows[last];
    __atomic_store_n(&r->n_windows, last, __ATOMIC_RELAXED);
}

void sim_peer_close(struct sim_peer *m)
{
    struct sim_peer_windows *r = m->windows;

    lock_all(r);
    for (unsigned i = r->n_windows; i-- > 0;) {
        if (r->windows[i].peer == index_of(m))
            remove_window(r, i);
    }
    for (unsigned i = 0; i < r->n_channels; i++)
        sim_poster_take_back(&m->posters[i]);
    munmap(m->head, sim_peer_len(m));
    close(m->fd);
    free(m->posters);
    m->state = FREE;
    unlock_all(r);
}

int sim_peer_fd(const struct sim_peer *m)
{
    return m->fd;
}

size_t sim_peer_len(const struct sim_peer *m)
{
    return SIM_MAILBOX_BYTES(m->windows->n_channels);
}

unsigned sim_peer_sets(const struct sim_peer *m)
{
    return m->windows->n_channels;
}

unsigned sim_peer_blocks(const struct sim_peer *m)
{
    return m->opts.blocks;
}

/* Addresses must fit below the tag bits of a slot. */
static bool can_be(uint64_t at, uint64_t len)
{
    return at <= SIM_COPY_KERNEL_VALUE && len <= SIM_COPY_KERNEL_VALUE - at;
}

/* Index of the peer's window of this buffer, or a new one. Under all locks. */
static unsigned place_of(const struct sim_peer *m, const struct sim_peer_window *window)
{
    const struct sim_peer_windows *r = m->windows;
    unsigned i = 0;

    while (i < r->n_windows &&
           (r->windows[i].peer != index_of(m) || r->windows[i].window.owner != window->owner))
        i++;
    return i;
}

int sim_peer_window_add(struct sim_peer *m, const struct sim_peer_window *window)
{
    struct sim_peer_windows *r = m->windows;
    int err = -ENOSPC;
    unsigned at;

    if (!can_be(window->there, window->len) || !can_be(window->media_there, m->opts.media_len))
        return -EINVAL;
    lock_all(r);
    at = place_of(m, window);
    if (at < SIM_PEER_WINDOWS) {
        r->windows[at] = (struct peer_window){.window = *window, .peer = (uint8_t)index_of(m)};
        if (at == r->n_windows)
            __atomic_store_n(&r->n_windows, at + 1, __ATOMIC_RELAXED);
        err = 0;
    }
    unlock_all(r);
    return err;
}

void sim_peer_window_remove(struct sim_peer_windows *r, const void *owner)
{
    if (!sim_peer_windows_exist(r))
        return;
    lock_all(r);
    for (unsigned i = r->n_windows; i-- > 0;) {
        if (r->windows[i].window.owner == owner)
            remove_window(r, i);
    }
    for (unsigned i = 0; i < r->n_channels;
         i++) /* copies that had no room may not be submitted again */
        memset(r->channels[i].full_since, 0, sizeof(r->channels[i].full_since));
    unlock_all(r);
}

/* Relaxed: copies into a new window come after its owner was notified. */
bool sim_peer_windows_exist(const struct sim_peer_windows *r)
{
    return __atomic_load_n(&r->n_windows, __ATOMIC_RELAXED) != 0;
}

static bool lies_in(uint64_t at, uint64_t len, uint64_t start, uint64_t all)
{
    return at >= start && at - start <= all && len <= all - (at - start);
}

/* True if the copy can be cut into powers of two that slots encode. */
static bool can_split(const struct sim_gather *g)
{
    return g->len && g->len % 512 == 0 && ((g->dst | g->src) & 15) == 0;
}

/* True if the copy lies in window and media. Precondition: live peer. */
static inline bool leads(const struct sim_peer *m, const struct peer_window *w,
                         const struct sim_gather *g)
{
    return lies_in(g->dst, g->len, w->window.device, w->window.len) &&
           lies_in(g->src, g->len, (uint64_t)(uintptr_t)m->opts.media, m->opts.media_len);
}

static bool takes(const struct sim_peer_windows *r, const struct peer_window *w,
                  const struct sim_gather *g)
{
    const struct sim_peer *m = &r->peers[w->peer];

    return leads(m, w, g) && state_of(m) == LIVE;
}

/* The copy in addresses of the peer. */
static inline struct sim_gather move(const struct sim_peer *m, const struct peer_window *w,
                                     const struct sim_gather *g)
{
    return (struct sim_gather){
        .dst = w->window.there + (g->dst - w->window.device),
        .src = w->window.media_there + (g->src - (uint64_t)(uintptr_t)m->opts.media),
        .len = g->len,
    };
}

/* The peer that makes the copy, and the copy in its addresses; NO_PEER. */
static uint8_t find_owner(const struct sim_peer_windows *r, struct channel *ch,
                          const struct sim_gather *g, struct sim_gather *moved)
{
    for (unsigned i = 0; i < r->n_windows; i++) {
        unsigned at = (ch->hint + i) % r->n_windows;
        const struct peer_window *w = &r->windows[at];

        if (!takes(r, w, g))
            continue;
        ch->hint = at;
        *moved = move(&r->peers[w->peer], w, g);
        return can_split(moved) ? w->peer : NO_PEER;
    }
    return NO_PEER;
}

/* Cuts a copy into powers of two, at most 64 KiB. False: too many fragments. */
static bool add_fragments(struct channel *ch, struct sim_gather g)
{
    while (g.len) {
        uint64_t part = 1ull << (63 - __builtin_clzll(g.len));

        part = part < 64u << 10 ? part : 64u << 10;
        if (ch->n_fragments == MOST_FRAGMENTS)
            return false;
        ch->fragments[ch->n_fragments++] = (struct sim_gather){g.dst, g.src, part};
        g.dst += part;
        g.src += part;
        g.len -= part;
    }
    return true;
}

static void drop(struct sim_peer *m)
{
    uint32_t live = LIVE;

    if (__atomic_compare_exchange_n(&m->state, &live, DROPPED, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE) &&
        m->opts.dropped)
        m->opts.dropped(m->opts.ctx);
}

/* True if a wait that began at *since (0: now) exceeds SIM_PEER_PATIENCE_MS. */
static bool is_overdue(uint64_t *since)
{
    uint64_t now = now_ns();

    if (!*since)
        *since = now;
    return now - *since >= SIM_PEER_PATIENCE_MS * 1000000ull;
}

/*
 * Room for n fragments, as sim_poster_room(). The time without room is bounded, as
 * counts of a peer are not trusted.
 */
static int find_room(struct sim_peer_windows *r, unsigned channel, uint8_t peer,
                     const struct sim_gather *fragments, unsigned n)
{
    struct sim_peer *m = &r->peers[peer];
    uint64_t *since = &r->channels[channel].full_since[peer];
    int err = sim_poster_room(&m->posters[channel], fragments, n);

    if (err != -EAGAIN) {
        *since = 0;
        return err;
    }
    sim_mailbox_ring(m->head, &m->posters[channel]);
    if (!is_overdue(since))
        return -EAGAIN;
    drop(m);
    return -ENOSPC;
}

/* Plans the fragments of one peer: 0, -EAGAIN, or -ENOSPC without any fragment. */
static int plan_peer(struct sim_peer_windows *r, unsigned channel, unsigned n, uint8_t peer)
{
    struct channel *ch = &r->channels[channel];
    unsigned before = ch->n_fragments;
    bool fits = true;
    int err = -ENOSPC;

    for (unsigned i = 0; i < n && fits; i++) {
        if (ch->owner[i] == peer)
            fits = add_fragments(ch, ch->moved[i]);
    }
    if (fits)
        err = find_room(r, channel, peer, ch->fragments + before, ch->n_fragments - before);
    if (err)
        ch->n_fragments = before;
    return err;
}

/* Appends the copies of one owner, in order, to those sorted before. */
static void sort_owner(struct channel *ch, const struct sim_gather *copies, unsigned n,
                       uint8_t owner, unsigned *at)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == owner)
            ch->sorted[(*at)++] = copies[i];
    }
}

static void disown(struct channel *ch, unsigned n, uint8_t peer)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == peer)
            ch->owner[i] = NO_PEER;
    }
}

static unsigned find_owners(struct sim_peer_windows *r, struct channel *ch,
                            const struct sim_gather *copies, unsigned n)
{
    unsigned wanted = 0;

    for (unsigned i = 0; i < n; i++) {
        ch->owner[i] = find_owner(r, ch, &copies[i], &ch->moved[i]);
        if (ch->owner[i] != NO_PEER)
            wanted |= 1u << ch->owner[i];
    }
    return wanted;
}

/*
 * Fast path: all copies go to the peer window used last, and each one is one
 * fragment. One pass, without sorting. False: not applicable.
 */
static bool move_whole(const struct sim_peer_windows *r, struct channel *ch,
                       const struct sim_gather *copies, unsigned n)
{
    const struct peer_window *w = &r->windows[ch->hint];
    const struct sim_peer *m = &r->peers[w->peer];

    if (ch->hint >= r->n_windows || state_of(m) != LIVE)
        return false;
    for (unsigned i = 0; i < n; i++) {
        ch->fragments[i] = move(m, w, &copies[i]);
        if (!leads(m, w, &copies[i]) || !sim_copy_kernel_takes(&ch->fragments[i]))
            return false;
    }
    ch->n_fragments = n;
    return true;
}

/* Plans with the fast path; -ENOSPC: not applicable. */
static int plan_whole(struct sim_peer_windows *r, unsigned channel, const struct sim_gather *copies,
                      unsigned n, struct sim_peer_copy *out)
{
    struct channel *ch = &r->channels[channel];
    uint8_t peer = r->windows[ch->hint].peer;
    int err = -ENOSPC;

    if (move_whole(r, ch, copies, n))
        err = find_room(r, channel, peer, ch->fragments, n);
    if (err)
        return err;
    out->n_local = 0;
    out->n_parts = 1;
    out->parts[0] = (struct sim_peer_window_part){
        .peer = peer, .n = (uint16_t)n, .generation = r->peers[peer].generation};
    ch->part_fragments[0] = n;
    return 0;
}

/* Plans any submission, as sim_peer_windows_plan(). */
static int plan_parts(struct sim_peer_windows *r, unsigned channel, struct sim_gather *copies,
                      unsigned n, struct sim_peer_copy *out)
{
    struct channel *ch = &r->channels[channel];
    unsigned wanted = find_owners(r, ch, copies, n), at = 0;

    out->n_parts = 0;
    out->n_local = n;
    ch->n_fragments = 0;
    for (uint8_t i = 0; wanted && i < SIM_PEERS; i++) {
        unsigned before = ch->n_fragments;
        int err = wanted & 1u << i ? plan_peer(r, channel, n, i) : -ENOENT;

        if (err == -EAGAIN)
            return err;
        if (err == -ENOSPC)
            disown(ch, n, i);
        if (err)
            continue;
        ch->part_fragments[out->n_parts] = ch->n_fragments - before;
        out->parts[out->n_parts++] =
            (struct sim_peer_window_part){.peer = i, .generation = r->peers[i].generation};
    }
    if (!out->n_parts)
        return 0;
    sort_owner(ch, copies, n, NO_PEER, &at);
    out->n_local = at;
    for (unsigned i = 0; i < out->n_parts; i++) {
        out->parts[i].first = (uint16_t)at;
        sort_owner(ch, copies, n, (uint8_t)out->parts[i].peer, &at);
        out->parts[i].n = (uint16_t)(at - out->parts[i].first);
    }
    memcpy(copies, ch->sorted, n * sizeof(*copies));
    return 0;
}

int sim_peer_windows_plan(struct sim_peer_windows *r, unsigned channel, struct sim_gather *copies,
                          unsigned n, struct sim_peer_copy *out)
{
    assert(n <= SIM_PEER_WINDOW_COPIES);
    int err = plan_whole(r, channel, copies, n, out);

    return err == -ENOSPC ? plan_parts(r, channel, copies, n, out) : err;
}

void sim_peer_windows_post(struct sim_peer_windows *r, unsigned channel,
                           struct sim_peer_copy *peer_copy)
{
    struct channel *ch = &r->channels[channel];
    const struct sim_gather *fragments = ch->fragments;

    for (unsigned i = 0; i < peer_copy->n_parts; i++) {
        struct sim_peer *m = &r->peers[peer_copy->parts[i].peer];

        sim_poster_post(&m->posters[channel], fragments, ch->part_fragments[i],
                        &peer_copy->parts[i].ticket);
        sim_mailbox_ring(m->head, &m->posters[channel]);
        fragments += ch->part_fragments[i];
    }
}

/* 1, 0, or -ESTALE. The wait is bounded whatever the peer stores. */
static int poll_part(struct sim_peer *m, unsigned channel, struct sim_peer_window_part *part)
{
    struct sim_poster *p;

    if (m->generation != part->generation || state_of(m) == FREE)
        return -ESTALE;
    p = &m->posters[channel];
    if (sim_poster_done(p, &part->ticket))
        return 1;
    sim_mailbox_ring(m->head, p);
    if (state_of(m) == LIVE && !is_overdue(&part->waited_ns))
        return 0;
    drop(m);
    sim_poster_take_back(p); /* a later copy would overwrite newer data */
    return -ESTALE;
}

int sim_peer_windows_poll(struct sim_peer_windows *r, unsigned channel,
                          struct sim_peer_copy *peer_copy, unsigned *lost)
{
    int all = 1;

    for (unsigned i = 0; i < peer_copy->n_parts;
         i++) { /* all parts are polled, so that their waits run concurrently */
        struct sim_peer_window_part *part = &peer_copy->parts[i];
        int rc = part->done ? 1 : poll_part(&r->peers[part->peer], channel, part);

        part->done = rc != 0;
        if (rc < 0) {
            *lost = i;
            return rc;
        }
        all = all && rc;
    }
    return all;
}
