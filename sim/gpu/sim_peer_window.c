/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies posted to peers. */
#include <errno.h>
#include <string.h>

#include "sim/gpu/sim_peer_internal.h"
#include "support/clock.h"

#define NO_PEER UINT8_MAX

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
static inline bool leads(const struct sim_peer *m, const struct sim_peer_window_entry *w,
                         const struct sim_gather *g)
{
    return lies_in(g->dst, g->len, w->window.device, w->window.len) &&
           lies_in(g->src, g->len, (uint64_t)(uintptr_t)m->opts.media, m->opts.media_len);
}

static bool takes(const struct sim_peer_windows *r, const struct sim_peer_window_entry *w,
                  const struct sim_gather *g)
{
    const struct sim_peer *m = &r->peers[w->peer];

    return leads(m, w, g) && sim_peer_state(m) == SIM_PEER_LIVE;
}

/* The copy in addresses of the peer. */
static inline struct sim_gather
move(const struct sim_peer *m, const struct sim_peer_window_entry *w, const struct sim_gather *g)
{
    return (struct sim_gather){
        .dst = w->window.there + (g->dst - w->window.device),
        .src = w->window.media_there + (g->src - (uint64_t)(uintptr_t)m->opts.media),
        .len = g->len,
    };
}

/* The peer that makes the copy, and the copy in its addresses; NO_PEER. */
static uint8_t find_owner(const struct sim_peer_windows *r, struct sim_peer_channel *ch,
                          const struct sim_gather *g, struct sim_gather *moved)
{
    for (unsigned i = 0; i < r->n_windows; i++) {
        unsigned at = (ch->hint + i) % r->n_windows;
        const struct sim_peer_window_entry *w = &r->windows[at];

        if (!takes(r, w, g))
            continue;
        ch->hint = at;
        *moved = move(&r->peers[w->peer], w, g);
        return can_split(moved) ? w->peer : NO_PEER;
    }
    return NO_PEER;
}

/* Cuts a copy into powers of two, at most 64 KiB. False: too many fragments. */
static bool add_fragments(struct sim_peer_channel *ch, struct sim_gather g)
{
    while (g.len) {
        uint64_t part = 1ull << (63 - __builtin_clzll(g.len));

        part = part < 64u << 10 ? part : 64u << 10;
        if (ch->n_fragments == SIM_PEER_FRAGMENTS)
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
    uint32_t live = SIM_PEER_LIVE;

    if (__atomic_compare_exchange_n(&m->state, &live, SIM_PEER_DROPPED, false, __ATOMIC_ACQ_REL,
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
 * Called while batches are under way. Passes the peer over if none of them has
 * ended for its pause_ms.
 */
static void judge(struct sim_peer *m, unsigned channel)
{
    struct sim_peer_standing *s = &m->windows->channels[channel].standing[sim_peer_index(m)];
    struct sim_poster *p = &m->posters[channel];
    uint32_t total = sim_poster_total(p);
    uint64_t now = now_ns();

    if (!s->still_since || s->total != total) {
        s->total = total;
        s->still_since = now;
    }
    if (now - s->still_since < m->opts.pause_ms * 1000000ull || sim_poster_is_wrong(p))
        return;
    sim_poster_cancel(p);
    s->passed_over = true;
    s->still_since = 0;
}

/* The peer gets copies again when a kernel has counted all cancelled batches. */
static bool is_passed_over(struct sim_peer *m, unsigned channel)
{
    struct sim_peer_standing *s = &m->windows->channels[channel].standing[sim_peer_index(m)];
    const struct sim_poster *p = &m->posters[channel];

    s->passed_over = s->passed_over && !sim_poster_is_empty(p);
    if (s->passed_over)
        sim_mailbox_ring(m->head, p);
    return s->passed_over;
}

static int leave_here(struct sim_peer_channel *ch)
{
    ch->by_engine = true;
    return -ENOSPC;
}

/*
 * Room for n fragments, as sim_poster_room(); -ENOSPC of a peer that is passed
 * over. The time without room is bounded, as counts of a peer are not trusted.
 */
static int find_room(struct sim_peer_windows *r, unsigned channel, uint8_t peer,
                     const struct sim_gather *fragments, unsigned n)
{
    struct sim_peer *m = &r->peers[peer];
    struct sim_peer_channel *ch = &r->channels[channel];
    uint64_t *since = &ch->standing[peer].full_since;
    int err;

    if (is_passed_over(m, channel))
        return leave_here(ch);
    err = sim_poster_room(&m->posters[channel], fragments, n);
    if (err != -EAGAIN) {
        *since = 0;
        return err;
    }
    sim_mailbox_ring(m->head, &m->posters[channel]);
    judge(m, channel);
    if (is_passed_over(m, channel))
        return leave_here(ch);
    if (!is_overdue(since))
        return -EAGAIN;
    drop(m);
    return -ENOSPC;
}

/* Plans the fragments of one peer: 0, -EAGAIN, or -ENOSPC without any fragment. */
static int plan_peer(struct sim_peer_windows *r, unsigned channel, unsigned n, uint8_t peer)
{
    struct sim_peer_channel *ch = &r->channels[channel];
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
static void sort_owner(struct sim_peer_channel *ch, const struct sim_gather *copies, unsigned n,
                       uint8_t owner, unsigned *at)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == owner)
            ch->sorted[(*at)++] = copies[i];
    }
}

static void disown(struct sim_peer_channel *ch, unsigned n, uint8_t peer)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == peer)
            ch->owner[i] = NO_PEER;
    }
}

static unsigned find_owners(struct sim_peer_windows *r, struct sim_peer_channel *ch,
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
static bool move_whole(const struct sim_peer_windows *r, struct sim_peer_channel *ch,
                       const struct sim_gather *copies, unsigned n)
{
    const struct sim_peer_window_entry *w = &r->windows[ch->hint];
    const struct sim_peer *m = &r->peers[w->peer];

    if (ch->hint >= r->n_windows || sim_peer_state(m) != SIM_PEER_LIVE)
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
    struct sim_peer_channel *ch = &r->channels[channel];
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
    struct sim_peer_channel *ch = &r->channels[channel];
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
    struct sim_peer_channel *ch = &r->channels[channel];

    assert(n <= SIM_PEER_WINDOW_COPIES);
    ch->by_engine = false;
    int err = plan_whole(r, channel, copies, n, out);

    if (err == -ENOSPC)
        err = plan_parts(r, channel, copies, n, out);
    out->by_engine = ch->by_engine;
    return err;
}

void sim_peer_windows_post(struct sim_peer_windows *r, unsigned channel,
                           struct sim_peer_copy *peer_copy)
{
    struct sim_peer_channel *ch = &r->channels[channel];
    const struct sim_gather *fragments = ch->fragments;

    for (unsigned i = 0; i < peer_copy->n_parts; i++) {
        struct sim_peer *m = &r->peers[peer_copy->parts[i].peer];

        if (sim_poster_is_empty(&m->posters[channel]))
            ch->standing[peer_copy->parts[i].peer].still_since = 0;
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

    if (m->generation != part->generation || sim_peer_state(m) == SIM_PEER_FREE)
        return -ESTALE;
    p = &m->posters[channel];
    if (!sim_poster_is_cancelled(p, &part->ticket)) {
        if (sim_poster_done(p, &part->ticket))
            return 1;
        judge(m, channel);
    }
    if (sim_poster_is_cancelled(p, &part->ticket) && sim_poster_is_settled(p, &part->ticket))
        return -ESTALE;
    sim_mailbox_ring(m->head, p);
    if (sim_peer_state(m) == SIM_PEER_LIVE && !is_overdue(&part->waited_ns))
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
