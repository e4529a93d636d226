#include "cuda/gq_route.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NO_REMOTE   UINT8_MAX
#define MOST_PIECES (2 * GQ_ROUTE_COPIES) /* of a submission, once they are powers of two */

enum state { FREE, LIVE, DROPPED };

struct gq_remote {
    struct gq_routes *routes;
    uint32_t state;      /* atomic; a channel's thread may drop it under its own lock only */
    uint32_t generation; /* of those that had this slot */
    struct gq_remote_options opts;
    struct gq_mailbox_head *head;
    int fd;
    struct gq_poster *posters; /* by channel, each its thread's */
};

struct channel {
    pthread_mutex_t lock;
    unsigned hint; /* the route that was taken last */
    uint8_t owner[GQ_ROUTE_COPIES];
    struct gq_gather moved[GQ_ROUTE_COPIES];  /* as the owner has it */
    struct gq_gather sorted[GQ_ROUTE_COPIES]; /* while they are sorted */
    /* What is to be posted, each remote's together. */
    struct gq_gather pieces[MOST_PIECES];
    unsigned n_pieces;
    unsigned part_pieces[GQ_REMOTES]; /* of each part */
    uint64_t full_since[GQ_REMOTES];  /* since when a remote has no room; 0: it has */
} GQ_APART;

struct way {
    struct gq_route route;
    uint8_t remote;
};

/* Remotes and ways change under the locks of all channels, taken in order. */
struct gq_routes {
    unsigned n_channels;
    struct channel *channels;
    struct gq_remote remotes[GQ_REMOTES];
    struct way ways[GQ_ROUTES];
    unsigned n_ways; /* atomic */
};

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint32_t state_of(const struct gq_remote *m)
{
    return __atomic_load_n(&m->state, __ATOMIC_ACQUIRE);
}

int gq_routes_open(unsigned channels, struct gq_routes **out)
{
    struct gq_routes *r = calloc(1, sizeof(*r));

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

void gq_routes_close(struct gq_routes *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < GQ_REMOTES; i++)
        assert(r->remotes[i].state == FREE);
    for (unsigned i = 0; i < r->n_channels; i++)
        pthread_mutex_destroy(&r->channels[i].lock);
    free(r->channels);
    free(r);
}

void gq_routes_lock(struct gq_routes *r, unsigned channel)
{
    pthread_mutex_lock(&r->channels[channel].lock);
}

void gq_routes_unlock(struct gq_routes *r, unsigned channel)
{
    pthread_mutex_unlock(&r->channels[channel].lock);
}

static void lock_all(struct gq_routes *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        gq_routes_lock(r, i);
}

static void unlock_all(struct gq_routes *r)
{
    for (unsigned i = 0; i < r->n_channels; i++)
        gq_routes_unlock(r, i);
}

/* A memfd that cannot be cut: the other process would end this one by it. */
static int make_memory(struct gq_remote *m, size_t len)
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

static int fill_in(struct gq_remote *m, const struct gq_remote_options *o)
{
    struct gq_routes *r = m->routes;
    int err;

    m->opts = *o;
    m->posters = aligned_alloc(_Alignof(struct gq_poster), r->n_channels * sizeof(*m->posters));
    if (!m->posters)
        return -ENOMEM;
    err = make_memory(m, gq_remote_len(m));
    if (err) {
        free(m->posters);
        return err;
    }
    for (unsigned i = 0; i < r->n_channels; i++) {
        r->channels[i].full_since[m - r->remotes] = 0;
        m->posters[i] = (struct gq_poster){.m = gq_mailbox_set(m->head, i), .blocks = o->blocks};
    }
    return 0;
}

int gq_remote_open(struct gq_routes *r, const struct gq_remote_options *o, struct gq_remote **out)
{
    struct gq_remote *m = NULL;
    int err = -EMFILE;

    lock_all(r);
    for (unsigned i = 0; i < GQ_REMOTES && !m; i++)
        m = r->remotes[i].state == FREE ? &r->remotes[i] : NULL;
    if (m) {
        m->routes = r;
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

static unsigned index_of(const struct gq_remote *m)
{
    return (unsigned)(m - m->routes->remotes);
}

/* Under all locks. */
static void remove_way(struct gq_routes *r, unsigned i)
{
    unsigned last = r->n_ways - 1;

    r->ways[i] = r->ways[last];
    __atomic_store_n(&r->n_ways, last, __ATOMIC_RELAXED);
}

void gq_remote_close(struct gq_remote *m)
{
    struct gq_routes *r = m->routes;

    lock_all(r);
    for (unsigned i = r->n_ways; i-- > 0;) {
        if (r->ways[i].remote == index_of(m))
            remove_way(r, i);
    }
    for (unsigned i = 0; i < r->n_channels; i++)
        gq_poster_take_back(&m->posters[i]);
    munmap(m->head, gq_remote_len(m));
    close(m->fd);
    free(m->posters);
    m->state = FREE;
    unlock_all(r);
}

int gq_remote_fd(const struct gq_remote *m)
{
    return m->fd;
}

size_t gq_remote_len(const struct gq_remote *m)
{
    return GQ_MAILBOX_BYTES(m->routes->n_channels);
}

unsigned gq_remote_sets(const struct gq_remote *m)
{
    return m->routes->n_channels;
}

unsigned gq_remote_blocks(const struct gq_remote *m)
{
    return m->opts.blocks;
}

/* Addresses must leave room for a mailbox's tags. */
static bool can_be(uint64_t at, uint64_t len)
{
    return at <= GQ_COPIER_VALUE && len <= GQ_COPIER_VALUE - at;
}

/* The way of m to the same buffer, else a new one's place. Under all locks. */
static unsigned place_of(const struct gq_remote *m, const struct gq_route *route)
{
    const struct gq_routes *r = m->routes;
    unsigned i = 0;

    while (i < r->n_ways &&
           (r->ways[i].remote != index_of(m) || r->ways[i].route.owner != route->owner))
        i++;
    return i;
}

int gq_route_add(struct gq_remote *m, const struct gq_route *route)
{
    struct gq_routes *r = m->routes;
    int err = -ENOSPC;
    unsigned at;

    if (!can_be(route->there, route->len) || !can_be(route->media_there, m->opts.media_len))
        return -EINVAL;
    lock_all(r);
    at = place_of(m, route);
    if (at < GQ_ROUTES) {
        r->ways[at] = (struct way){.route = *route, .remote = (uint8_t)index_of(m)};
        if (at == r->n_ways)
            __atomic_store_n(&r->n_ways, at + 1, __ATOMIC_RELAXED);
        err = 0;
    }
    unlock_all(r);
    return err;
}

void gq_route_remove(struct gq_routes *r, const void *owner)
{
    if (!gq_routes_exist(r))
        return;
    lock_all(r);
    for (unsigned i = r->n_ways; i-- > 0;) {
        if (r->ways[i].route.owner == owner)
            remove_way(r, i);
    }
    for (unsigned i = 0; i < r->n_channels; i++) /* whoever had no room may not come again */
        memset(r->channels[i].full_since, 0, sizeof(r->channels[i].full_since));
    unlock_all(r);
}

/* Relaxed: whoever adds a route tells its user afterwards, and copies into it come later still. */
bool gq_routes_exist(const struct gq_routes *r)
{
    return __atomic_load_n(&r->n_ways, __ATOMIC_RELAXED) != 0;
}

static bool lies_in(uint64_t at, uint64_t len, uint64_t start, uint64_t all)
{
    return at >= start && at - start <= all && len <= all - (at - start);
}

/* Can it be said in powers of two of a mailbox's kind? */
static bool can_split(const struct gq_gather *g)
{
    return g->len && g->len % 512 == 0 && ((g->dst | g->src) & 15) == 0;
}

/* Of a remote that is live. */
static inline bool leads(const struct gq_remote *m, const struct way *w, const struct gq_gather *g)
{
    return lies_in(g->dst, g->len, w->route.device, w->route.len) &&
           lies_in(g->src, g->len, (uint64_t)(uintptr_t)m->opts.media, m->opts.media_len);
}

static bool takes(const struct gq_routes *r, const struct way *w, const struct gq_gather *g)
{
    const struct gq_remote *m = &r->remotes[w->remote];

    return leads(m, w, g) && state_of(m) == LIVE;
}

/* As the owner has it. */
static inline struct gq_gather move(const struct gq_remote *m, const struct way *w,
                                    const struct gq_gather *g)
{
    return (struct gq_gather){
        .dst = w->route.there + (g->dst - w->route.device),
        .src = w->route.media_there + (g->src - (uint64_t)(uintptr_t)m->opts.media),
        .len = g->len,
    };
}

/* The remote that copy i goes to, and how that one sees it; NO_REMOTE. */
static uint8_t find_owner(const struct gq_routes *r, struct channel *ch, const struct gq_gather *g,
                          struct gq_gather *moved)
{
    for (unsigned i = 0; i < r->n_ways; i++) {
        unsigned at = (ch->hint + i) % r->n_ways;
        const struct way *w = &r->ways[at];

        if (!takes(r, w, g))
            continue;
        ch->hint = at;
        *moved = move(&r->remotes[w->remote], w, g);
        return can_split(moved) ? w->remote : NO_REMOTE;
    }
    return NO_REMOTE;
}

/* Adds a copy to the pieces, in powers of two of up to 64 KiB. False: there are too many. */
static bool add_pieces(struct channel *ch, struct gq_gather g)
{
    while (g.len) {
        uint64_t part = 1ull << (63 - __builtin_clzll(g.len));

        part = part < 64u << 10 ? part : 64u << 10;
        if (ch->n_pieces == MOST_PIECES)
            return false;
        ch->pieces[ch->n_pieces++] = (struct gq_gather){g.dst, g.src, part};
        g.dst += part;
        g.src += part;
        g.len -= part;
    }
    return true;
}

static void drop(struct gq_remote *m)
{
    uint32_t live = LIVE;

    if (__atomic_compare_exchange_n(&m->state, &live, DROPPED, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE) &&
        m->opts.dropped)
        m->opts.dropped(m->opts.ctx);
}

/* Is the waiting that began at *since (0: now) too long? */
static bool is_overdue(uint64_t *since)
{
    uint64_t now = now_ns();

    if (!*since)
        *since = now;
    return now - *since >= GQ_REMOTE_PATIENCE_MS * 1000000ull;
}

/* Room for n pieces: as gq_poster_room(). A remote may claim for ever that it has none. */
static int find_room(struct gq_routes *r, unsigned channel, uint8_t remote,
                     const struct gq_gather *pieces, unsigned n)
{
    struct gq_remote *m = &r->remotes[remote];
    uint64_t *since = &r->channels[channel].full_since[remote];
    int err = gq_poster_room(&m->posters[channel], pieces, n);

    if (err != -EAGAIN) {
        *since = 0;
        return err;
    }
    gq_mailbox_ring(m->head, &m->posters[channel]);
    if (!is_overdue(since))
        return -EAGAIN;
    drop(m);
    return -ENOSPC;
}

/* The pieces of one remote: 0, -EAGAIN, or -ENOSPC and none. */
static int plan_remote(struct gq_routes *r, unsigned channel, unsigned n, uint8_t remote)
{
    struct channel *ch = &r->channels[channel];
    unsigned before = ch->n_pieces;
    bool fits = true;
    int err = -ENOSPC;

    for (unsigned i = 0; i < n && fits; i++) {
        if (ch->owner[i] == remote)
            fits = add_pieces(ch, ch->moved[i]);
    }
    if (fits)
        err = find_room(r, channel, remote, ch->pieces + before, ch->n_pieces - before);
    if (err)
        ch->n_pieces = before;
    return err;
}

/* Moves the copies of one owner, in order, behind the *at that are sorted already. */
static void sort_owner(struct channel *ch, const struct gq_gather *copies, unsigned n,
                       uint8_t owner, unsigned *at)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == owner)
            ch->sorted[(*at)++] = copies[i];
    }
}

static void disown(struct channel *ch, unsigned n, uint8_t remote)
{
    for (unsigned i = 0; i < n; i++) {
        if (ch->owner[i] == remote)
            ch->owner[i] = NO_REMOTE;
    }
}

static unsigned find_owners(struct gq_routes *r, struct channel *ch, const struct gq_gather *copies,
                            unsigned n)
{
    unsigned wanted = 0;

    for (unsigned i = 0; i < n; i++) {
        ch->owner[i] = find_owner(r, ch, &copies[i], &ch->moved[i]);
        if (ch->owner[i] != NO_REMOTE)
            wanted |= 1u << ch->owner[i];
    }
    return wanted;
}

/*
 * Most submissions go where the last one went, and each copy is one piece: these are made in one
 * pass, and there is nothing to sort. False: it is none of those.
 */
static bool move_whole(const struct gq_routes *r, struct channel *ch,
                       const struct gq_gather *copies, unsigned n)
{
    const struct way *w = &r->ways[ch->hint];
    const struct gq_remote *m = &r->remotes[w->remote];

    if (ch->hint >= r->n_ways || state_of(m) != LIVE)
        return false;
    for (unsigned i = 0; i < n; i++) {
        ch->pieces[i] = move(m, w, &copies[i]);
        if (!leads(m, w, &copies[i]) || !gq_copier_takes(&ch->pieces[i]))
            return false;
    }
    ch->n_pieces = n;
    return true;
}

/* Such a one: as gq_routes_plan(), or -ENOSPC: it has to be seen to in parts. */
static int plan_whole(struct gq_routes *r, unsigned channel, const struct gq_gather *copies,
                      unsigned n, struct gq_routed *out)
{
    struct channel *ch = &r->channels[channel];
    uint8_t remote = r->ways[ch->hint].remote;
    int err = -ENOSPC;

    if (move_whole(r, ch, copies, n))
        err = find_room(r, channel, remote, ch->pieces, n);
    if (err)
        return err;
    out->n_local = 0;
    out->n_parts = 1;
    out->parts[0] = (struct gq_route_part){
        .remote = remote, .n = (uint16_t)n, .generation = r->remotes[remote].generation};
    ch->part_pieces[0] = n;
    return 0;
}

/* Any submission: as gq_routes_plan(). */
static int plan_parts(struct gq_routes *r, unsigned channel, struct gq_gather *copies, unsigned n,
                      struct gq_routed *out)
{
    struct channel *ch = &r->channels[channel];
    unsigned wanted = find_owners(r, ch, copies, n), at = 0;

    out->n_parts = 0;
    out->n_local = n;
    ch->n_pieces = 0;
    for (uint8_t i = 0; wanted && i < GQ_REMOTES; i++) {
        unsigned before = ch->n_pieces;
        int err = wanted & 1u << i ? plan_remote(r, channel, n, i) : -ENOENT;

        if (err == -EAGAIN)
            return err;
        if (err == -ENOSPC)
            disown(ch, n, i);
        if (err)
            continue;
        ch->part_pieces[out->n_parts] = ch->n_pieces - before;
        out->parts[out->n_parts++] =
            (struct gq_route_part){.remote = i, .generation = r->remotes[i].generation};
    }
    if (!out->n_parts)
        return 0;
    sort_owner(ch, copies, n, NO_REMOTE, &at);
    out->n_local = at;
    for (unsigned i = 0; i < out->n_parts; i++) {
        out->parts[i].first = (uint16_t)at;
        sort_owner(ch, copies, n, (uint8_t)out->parts[i].remote, &at);
        out->parts[i].n = (uint16_t)(at - out->parts[i].first);
    }
    memcpy(copies, ch->sorted, n * sizeof(*copies));
    return 0;
}

int gq_routes_plan(struct gq_routes *r, unsigned channel, struct gq_gather *copies, unsigned n,
                   struct gq_routed *out)
{
    assert(n <= GQ_ROUTE_COPIES);
    int err = plan_whole(r, channel, copies, n, out);

    return err == -ENOSPC ? plan_parts(r, channel, copies, n, out) : err;
}

void gq_routes_post(struct gq_routes *r, unsigned channel, struct gq_routed *routed)
{
    struct channel *ch = &r->channels[channel];
    const struct gq_gather *pieces = ch->pieces;

    for (unsigned i = 0; i < routed->n_parts; i++) {
        struct gq_remote *m = &r->remotes[routed->parts[i].remote];

        gq_poster_post(&m->posters[channel], pieces, ch->part_pieces[i], &routed->parts[i].ticket);
        gq_mailbox_ring(m->head, &m->posters[channel]);
        pieces += ch->part_pieces[i];
    }
}

/* 1, 0, or -ESTALE. Its patience ends whatever the remote claims to be doing. */
static int poll_part(struct gq_remote *m, unsigned channel, struct gq_route_part *part)
{
    struct gq_poster *p;

    if (m->generation != part->generation || state_of(m) == FREE)
        return -ESTALE;
    p = &m->posters[channel];
    if (gq_poster_done(p, &part->ticket))
        return 1;
    gq_mailbox_ring(m->head, p);
    if (state_of(m) == LIVE && !is_overdue(&part->waited_ns))
        return 0;
    drop(m);
    gq_poster_take_back(p); /* or it were copied later, over what has been read since */
    return -ESTALE;
}

int gq_routes_poll(struct gq_routes *r, unsigned channel, struct gq_routed *routed, unsigned *lost)
{
    int all = 1;

    for (unsigned i = 0; i < routed->n_parts; i++) { /* each: their patience ends together */
        struct gq_route_part *part = &routed->parts[i];
        int rc = part->done ? 1 : poll_part(&r->remotes[part->remote], channel, part);

        part->done = rc != 0;
        if (rc < 0) {
            *lost = i;
            return rc;
        }
        all = all && rc;
    }
    return all;
}
