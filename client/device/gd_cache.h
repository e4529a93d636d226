/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements a set-associative cache of one leased file. Groups read parts of
 * lines. A line that is not in its set is read through the shared queues
 * (gd_lone.h) by the group that claims it:
 *
 *   gd_cache_find     looks for the line among the words of its set
 *   gd_cache_pin      counts the group as a reader of a valid line
 *   gd_cache_claim    takes a way for the line, by CLOCK, under the set's lock
 *   gd_cache_fill     reads a claimed line and makes it valid
 *   gd_cache_bypass   reads only the wanted bytes, through a slot
 *   gd_cache_insert   keeps a line whose bytes the caller has read
 *
 * The word of a line changes by atomics only, which preserve the number of its
 * readers. Only a word without readers is claimed, so a line does not change
 * while it is copied. The lock of a set is held for a few loads and atomics,
 * never during a wait. A group that waits for another group's fill bypasses the
 * cache at the deadline of a command. A group that finds no way to claim does so
 * at once. No group depends on another one.
 *
 * A command that was lost may still write to its line or slot. Neither is used
 * again before the host has renewed the leases and cleared all words.
 *
 * Every function is called by all lanes of a group together unless noted
 * otherwise.
 */
#ifndef CLIENT_DEVICE_GD_CACHE_H
#define CLIENT_DEVICE_GD_CACHE_H

#include "client/device/gd_cache_types.h"
#include "client/device/gd_lone.h"

/* Reads are not inlined, because every hit would then need their registers. */
#ifdef __CUDACC__
#define GD_CACHE_CALL static inline __device__ __noinline__
#else
#define GD_CACHE_CALL GQ_FN
#endif

#define GD_CACHE_NONE  UINT32_MAX /* no way, or no slot */
#define GD_CACHE_ALL   UINT32_MAX /* instead of a lane: all of them */
#define GD_CACHE_RESTS 16u        /* short pauses of a wait before longer ones */

struct gd_cache_reader {
    struct gq_group group;
    const struct gpunvme_device_cache *cache;
    uint64_t generation; /* in its place in a word; 0: the cache keeps no line */
    uint64_t end;        /* of the file */
};

/* Describes the place of a line. */
struct gd_cache_line {
    uint64_t number;
    uint64_t tag;   /* in its place in a word, if it fits */
    uint64_t first; /* number of its set's first word */
    uint32_t set;
    uint32_t way;
    bool fits;
};

enum gd_cache_found { GD_CACHE_HIT, GD_CACHE_CLAIMED, GD_CACHE_AROUND, GD_CACHE_AGAIN };

/* --- Words ----------------------------------------------------------------------------------- */

GQ_FN struct gd_cache_line gd_cache_line_of(const struct gpunvme_device_cache *c, uint64_t offset)
{
    uint64_t number = offset >> c->line_shift, tag = number >> c->set_shift;
    uint32_t set = (uint32_t)(number ^ tag) & ((1u << c->set_shift) - 1u);

    return (struct gd_cache_line){.number = number,
                                  .tag = tag << GD_CACHE_TAG_SHIFT,
                                  .first = (uint64_t)set * c->ways,
                                  .set = set,
                                  .way = GD_CACHE_NONE,
                                  .fits = tag < GD_CACHE_TAGS};
}

GQ_FN uint32_t gd_cache_state(uint64_t word)
{
    return (uint32_t)word & GD_CACHE_STATE;
}

/*
 * Returns true if a word is that of the line, in a state other than free. A
 * failed line stays failed in later generations.
 */
GQ_FN bool gd_cache_is(const struct gd_cache_reader *w, uint64_t word, uint64_t tag)
{
    uint32_t state = gd_cache_state(word);
    bool is_current = (word & GD_CACHE_GENERATION_MASK) == w->generation;

    return word >> GD_CACHE_TAG_SHIFT == tag >> GD_CACHE_TAG_SHIFT && state != GD_CACHE_FREE &&
           (is_current || state == GD_CACHE_FAILED);
}

GQ_FN bool gd_cache_is_valid(const struct gd_cache_reader *w, uint64_t word, uint64_t tag)
{
    return gd_cache_is(w, word, tag) && gd_cache_state(word) == GD_CACHE_VALID;
}

GQ_FN uint64_t *gd_cache_word(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    return &w->cache->words[l->first + l->way];
}

GQ_FN uint64_t gd_cache_address(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    return w->cache->lines + ((l->first + l->way) << w->cache->line_shift);
}

/* Returns the bytes of a line, which are fewer at the end of the file. */
GQ_FN uint64_t gd_cache_line_bytes(const struct gd_cache_reader *w, uint64_t number)
{
    uint64_t from = number << w->cache->line_shift, len = (uint64_t)1 << w->cache->line_shift;

    return w->end - from < len ? w->end - from : len;
}

/*
 * Adds n events to one of the counters. `at` is this counter in the first copy
 * of the counters.
 */
GQ_FN void gd_cache_count(const struct gd_cache_reader *w, const uint64_t *at, uint32_t n)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && n)
            (void)gd_add64((uint64_t *)(uintptr_t)at +
                               (gd_seed() & (GD_CACHE_COUNTERS - 1)) *
                                   (sizeof(struct gd_cache_counts) / sizeof(uint64_t)),
                           n);
    }
}

/* --- Begin ----------------------------------------------------------------------------------- */

/*
 * Begins reads of a group. Returns 0, or -ESTALE if the leases have ended,
 * which may be noticed GD_CHECK_MOST_NS late, as by other reads.
 */
GQ_FN int gd_cache_begin(struct gd_cache_reader *w, struct gq_group group,
                         const struct gpunvme_device_cache *cache)
{
    const struct gpunvme_device_file *f = cache->file;
    GQ_LANE_VAR(uint32_t, stale);
    GQ_LANE_VAR(uint64_t, generation);
    GQ_LANE_VAR(uint64_t, end);

    w->group = group;
    w->cache = cache;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(f->checked_ns);

            GQ_AT(generation) = gd_load64(&cache->generation);
            GQ_AT(end) = gd_load64(&f->map.end);
            GQ_AT(stale) = gd_load32(&f->set.n_queues) == 0 ||
                           gd_shared_lease_ended(f, gq_clock_ns(), checked);
        }
    }
    w->generation = GQ_FROM64(generation, 0) << GD_CACHE_GENERATION_SHIFT;
    w->end = GQ_FROM64(end, 0);
    return GQ_FROM32(stale, 0) ? -ESTALE : 0;
}

/* --- Lookups --------------------------------------------------------------------------------- */

/* Stores the way of the line, or GD_CACHE_NONE. Returns its state. */
GQ_FN uint32_t gd_cache_find(const struct gd_cache_reader *w, struct gd_cache_line *l)
{
    const struct gpunvme_device_cache *c = w->cache;

    for (uint32_t first = 0; first < c->ways; first += w->group.lanes) {
        GQ_LANE_VAR(uint64_t, word);
        GQ_LANE_VAR(uint32_t, is);
        uint32_t mask;

        GQ_FOR_LANES(lane)
        {
            if (first + lane < c->ways) {
                GQ_AT(word) = gd_load64(&c->words[l->first + first + lane]);
                GQ_AT(is) = gd_cache_is(w, GQ_AT(word), l->tag);
            }
        }
        mask = GQ_BALLOT(is);
        if (mask) {
            uint32_t i = gq_take_one(&mask);

            l->way = first + i;
            return gd_cache_state(GQ_FROM64(word, i));
        }
    }
    l->way = GD_CACHE_NONE;
    return GD_CACHE_FREE;
}

/*
 * Called by one lane. Counts n readers of the line in a word, and returns true
 * if the word is still that of the valid line.
 */
GQ_FN bool gd_cache_pin_word(const struct gd_cache_reader *w, uint64_t *word, uint64_t tag,
                             uint32_t n)
{
    uint64_t old = gd_add64(word, n * GD_CACHE_PIN);

    if (!gd_cache_is_valid(w, old, tag)) {
        (void)gd_add64(word, -(n * GD_CACHE_PIN));
        return false;
    }
    if (!(old & GD_CACHE_TOUCHED))
        (void)gd_or64(word, GD_CACHE_TOUCHED);
    return true;
}

/*
 * Counts the group as a reader of the line. The fence acquires the bytes, which
 * the group that has filled the line has released.
 */
GQ_FN bool gd_cache_pin(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    GQ_LANE_VAR(uint32_t, is);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(is) = gd_cache_pin_word(w, gd_cache_word(w, l), l->tag, 1);
    }
    if (!GQ_FROM32(is, 0))
        return false;
    gq_fence_device();
    return true;
}

/* The fence orders the loads of the line before the next claim of its word. */
GQ_FN void gd_cache_unpin(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            (void)gd_add64(gd_cache_word(w, l), -GD_CACHE_PIN);
    }
}

/* --- Insertion ------------------------------------------------------------------------------- */

/*
 * Returns the address of the word that remembers a line. The tag selects one
 * word of the set. The word remembers the line until it remembers another one.
 */
GQ_FN uint32_t *gd_cache_recent(const struct gpunvme_device_cache *c, const struct gd_cache_line *l)
{
    const uint32_t golden_ratio = 0x9e3779b9u; /* the fraction times 2^32 */
    uint32_t hash = (uint32_t)(l->tag >> GD_CACHE_TAG_SHIFT) * golden_ratio;

    return &c->recent[l->first + (hash >> 16) % c->ways];
}

/* Returns the value that the word has while it remembers the line. */
GQ_FN uint32_t gd_cache_mark(const struct gd_cache_line *l)
{
    return (uint32_t)(l->tag >> GD_CACHE_TAG_SHIFT) + 1;
}

/*
 * Returns true if a line that was missed is to be kept. Otherwise remembers the
 * line, which is kept when it is missed again soon.
 */
GQ_FN bool gd_cache_keeps(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    GQ_LANE_VAR(uint32_t, is);

    if (!w->cache->second_touch)
        return true;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t *word = gd_cache_recent(w->cache, l), mark = gd_cache_mark(l);

            GQ_AT(is) = gq_atomic_load(word) == mark;
            if (!GQ_AT(is))
                gq_atomic_store(word, mark);
        }
    }
    return GQ_FROM32(is, 0) != 0;
}

/* --- Claims ---------------------------------------------------------------------------------- */

/* Ways of a set, one bit each. */
struct gd_cache_ways {
    uint32_t found;  /* the line is there */
    uint32_t unused; /* free, or valid in an earlier generation */
    uint32_t cold;   /* valid, without readers, and not touched */
    uint32_t warm;   /* the same, and touched */
};

/* Returns true if a word has no readers and may be claimed. */
GQ_FN bool gd_cache_is_idle(uint64_t word)
{
    uint32_t state = gd_cache_state(word);

    return (word & GD_CACHE_PINS) == 0 && (state == GD_CACHE_FREE || state == GD_CACHE_VALID);
}

GQ_FN struct gd_cache_ways gd_cache_load_ways(const struct gd_cache_reader *w,
                                              const struct gd_cache_line *l)
{
    const struct gpunvme_device_cache *c = w->cache;
    struct gd_cache_ways ways = {0, 0, 0, 0};

    for (uint32_t first = 0; first < c->ways; first += w->group.lanes) {
        GQ_LANE_VAR(uint32_t, found);
        GQ_LANE_VAR(uint32_t, unused);
        GQ_LANE_VAR(uint32_t, cold);
        GQ_LANE_VAR(uint32_t, warm);

        GQ_FOR_LANES(lane)
        {
            if (first + lane < c->ways) {
                uint64_t word = gd_load64(&c->words[l->first + first + lane]);
                bool idle = gd_cache_is_idle(word);
                bool valid = gd_cache_state(word) == GD_CACHE_VALID &&
                             (word & GD_CACHE_GENERATION_MASK) == w->generation;

                GQ_AT(found) = gd_cache_is(w, word, l->tag);
                GQ_AT(unused) = idle && !valid;
                GQ_AT(cold) = idle && valid && !(word & GD_CACHE_TOUCHED);
                GQ_AT(warm) = idle && valid && (word & GD_CACHE_TOUCHED);
            }
        }
        ways.found |= GQ_BALLOT(found) << first;
        ways.unused |= GQ_BALLOT(unused) << first;
        ways.cold |= GQ_BALLOT(cold) << first;
        ways.warm |= GQ_BALLOT(warm) << first;
    }
    return ways;
}

/* Returns the first way of a mask, which is not 0, from `hand` on. */
GQ_FN uint32_t gd_cache_from_hand(uint32_t mask, uint32_t hand)
{
    uint32_t ahead = mask & (UINT32_MAX << hand);

    mask = ahead ? ahead : mask;
    return gq_take_one(&mask);
}

/* Returns the ways from `hand` on that come before `way`, cyclically. */
GQ_FN uint32_t gd_cache_passed(uint32_t hand, uint32_t way)
{
    uint32_t from = UINT32_MAX << hand, to = (1u << way) - 1u;

    return way >= hand ? from & to : from | to;
}

/*
 * Clears the bit TOUCHED of the warm ways that CLOCK has passed on its way to
 * one that is not warm.
 */
GQ_FN void gd_cache_cool(const struct gd_cache_reader *w, const struct gd_cache_line *l,
                         uint32_t passed)
{
    const struct gpunvme_device_cache *c = w->cache;

    for (uint32_t first = 0; first < c->ways && passed; first += w->group.lanes) {
        GQ_FOR_LANES(lane)
        {
            if (first + lane < c->ways && (passed >> (first + lane) & 1u))
                (void)gd_and64(&c->words[l->first + first + lane], ~(uint64_t)GD_CACHE_TOUCHED);
        }
    }
}

/*
 * Called by one lane with the set's lock. Takes an idle way. The word then has
 * no readers, except those that find out that they came too late.
 */
GQ_FN bool gd_cache_take_way(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    uint64_t *word = gd_cache_word(w, l), old = gd_load64(word);

    return gd_cache_is_idle(old) &&
           gd_replace64(word, old, l->tag | w->generation | GD_CACHE_FILLING) == old;
}

/*
 * Called with the set's lock. Takes a way that is unused or that CLOCK selects,
 * and moves *hand behind the latter.
 */
GQ_FN enum gd_cache_found gd_cache_select(const struct gd_cache_reader *w, struct gd_cache_line *l,
                                          uint32_t *hand)
{
    struct gd_cache_ways ways = gd_cache_load_ways(w, l);
    uint32_t others = ways.cold ? ways.cold : ways.warm;
    GQ_LANE_VAR(uint32_t, taken);

    if (ways.found)
        return GD_CACHE_AGAIN;
    if (!(ways.unused | others))
        return GD_CACHE_AROUND;
    if (ways.unused) {
        l->way = gd_cache_from_hand(ways.unused, *hand);
    } else {
        l->way = gd_cache_from_hand(others, *hand);
        gd_cache_cool(w, l, ways.cold ? ways.warm & gd_cache_passed(*hand, l->way) : ways.warm);
        *hand = l->way + 1 < w->cache->ways ? l->way + 1 : 0;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(taken) = gd_cache_take_way(w, l);
    }
    return GQ_FROM32(taken, 0) ? GD_CACHE_CLAIMED : GD_CACHE_AGAIN;
}

/*
 * Claims a way for a line that was not found. Returns GD_CACHE_AGAIN if another
 * group claims a line of this set, or has claimed this line. The fence orders
 * the loads of earlier readers, which their changes of the word have released,
 * before the writes of the fill.
 */
GQ_FN enum gd_cache_found gd_cache_claim(const struct gd_cache_reader *w, struct gd_cache_line *l)
{
    uint32_t *lock = &w->cache->locks[l->set], was, hand;
    enum gd_cache_found found;
    GQ_LANE_VAR(uint32_t, word);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(word) = gd_take_lock(lock);
    }
    was = GQ_FROM32(word, 0);
    if (was & GD_TAKEN)
        return GD_CACHE_AGAIN;
    hand = was >> 1;
    found = gd_cache_select(w, l, &hand);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock(lock, hand << 1);
    }
    if (found == GD_CACHE_CLAIMED)
        gq_fence_device();
    return found;
}

/* --- Waits ----------------------------------------------------------------------------------- */

/*
 * Pauses between two tries of a wait. Returns false once the wait has lasted
 * for the deadline of a command.
 */
GQ_FN bool gd_cache_wait(const struct gd_cache_reader *w, uint64_t start, uint32_t tries)
{
    uint64_t limit = GQ_SAME64(gd_load64(&w->cache->file->set.command_ns));

    if (tries < GD_CACHE_RESTS)
        gd_rest();
    else
        gd_pause();
    return GQ_SAME64(gq_clock_ns()) - start < limit;
}

/*
 * Finds the line and counts the group as its reader, or claims a way for it.
 * Returns GD_CACHE_AROUND if there is no way, or if the line is not to be kept.
 * Waits while another group fills the line.
 */
GQ_FN enum gd_cache_found gd_cache_seek(const struct gd_cache_reader *w, struct gd_cache_line *l)
{
    uint64_t start = 0;
    bool keeps = false;

    if (!l->fits || w->generation == 0)
        return GD_CACHE_AROUND;
    for (uint32_t tries = 0;; tries++) {
        uint32_t state = gd_cache_find(w, l);

        if (state == GD_CACHE_FAILED)
            return GD_CACHE_AROUND;
        if (state == GD_CACHE_VALID && gd_cache_pin(w, l))
            return GD_CACHE_HIT;
        if (state == GD_CACHE_FREE) {
            enum gd_cache_found found = GD_CACHE_AROUND;

            keeps = keeps || gd_cache_keeps(w, l);
            if (keeps)
                found = gd_cache_claim(w, l);
            if (found != GD_CACHE_AGAIN)
                return found;
        }
        if (tries == 0)
            start = GQ_SAME64(gq_clock_ns());
        if (!gd_cache_wait(w, start, tries))
            return GD_CACHE_AROUND;
    }
}

/* --- Reads ----------------------------------------------------------------------------------- */

/* Called by a whole warp. Reads to memory of the cache. Returns 0 or -errno. */
GQ_FN int gd_cache_read_whole(const struct gd_cache_reader *w, uint64_t dst, uint64_t len,
                              uint64_t offset)
{
    const struct gd_known k = gd_load_known(w->cache->file);
    struct gd_share s;

    return gd_read_warp(&s, w->cache->file, &k, dst, len, offset);
}

/* Describes the lanes' reads to memory of the cache. A lane reads `len` bytes, which may be 0. */
struct gd_cache_reads {
    GQ_LANE_MEMBER(uint64_t, dst);
    GQ_LANE_MEMBER(uint64_t, offset);
    GQ_LANE_MEMBER(uint64_t, len);
    GQ_LANE_MEMBER(int32_t, err); /* the result: 0 or -errno */
};

GQ_FN void gd_cache_set_parts(struct gd_share *s, const struct gd_cache_reads *r)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(s->part).dst = GQ_AT(r->dst);
        GQ_AT(s->part).offset = GQ_AT(r->offset);
        GQ_AT(s->part).left = GQ_AT(r->len);
    }
}

/* Executes the reads of all lanes at the same time. */
GD_CACHE_CALL void gd_cache_read_lines(const struct gd_cache_reader *w, struct gd_cache_reads *r)
{
    const struct gd_known k = gd_load_known(w->cache->file);
    struct gd_share share, *s = &share;

    gd_share_open(s, w->group, w->cache->file, &k, (uint64_t)1 << w->cache->line_shift);
    gd_cache_set_parts(s, r);
    gd_share_begin(s, &k);
    gd_share_end(s);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->err) = GQ_AT(s->part).err;
    }
}

/* Executes one read by the group. Returns 0 or -errno. */
GD_CACHE_CALL int gd_cache_read_one(const struct gd_cache_reader *w, uint64_t dst, uint64_t len,
                                    uint64_t offset)
{
    struct gd_cache_reads r = {0};

    if (w->group.lanes == GD_GROUP)
        return gd_cache_read_whole(w, dst, len, offset);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r.dst) = dst;
        GQ_AT(r.offset) = offset;
        GQ_AT(r.len) = lane == 0 ? len : 0;
    }
    gd_cache_read_lines(w, &r);
    return (int)GQ_FROM32(r.err, 0);
}

/*
 * Returns true if commands of a queue were lost, or if the state of the queues
 * is no longer known.
 */
GQ_FN bool gd_cache_lost_any(struct gq_group group, const struct gpunvme_device_file *f)
{
    const struct gd_cache_reader self = {.group = group}, *w = &self;
    const struct gd_known k = gd_load_known(f);
    uint32_t lost = 0;

    if (k.n_queues == 0)
        return true;
    for (uint32_t first = 0; first < k.n_queues; first += w->group.lanes) {
        GQ_LANE_VAR(uint32_t, is);

        GQ_FOR_LANES(lane)
        {
            if (first + lane < k.n_queues)
                GQ_AT(is) = gq_atomic_load(&k.cids[first + lane].lost) ||
                            (gd_load32(&k.locks[first + lane]) & GD_LOST);
        }
        lost |= GQ_BALLOT(is);
    }
    return lost != 0;
}

/*
 * Returns true if a command of a read that has failed may still write to memory.
 * -EIO is the error of a command that has ended unless a queue is lost.
 */
GQ_FN bool gd_cache_is_in_reach(const struct gd_cache_reader *w, int err)
{
    return err != -EIO || gd_cache_lost_any(w->group, w->cache->file);
}

/*
 * Called by one lane. Ends the fill of a word: the line is valid, or failed, or
 * the word becomes free. `pins` is GD_CACHE_PIN for a reader of a valid line,
 * otherwise 0.
 */
GQ_FN void gd_cache_end_fill(uint64_t *word, int err, bool in_reach, uint64_t pins)
{
    if (!err)
        (void)gd_add64(word, GD_CACHE_VALID - GD_CACHE_FILLING + pins);
    else if (in_reach)
        (void)gd_add64(word, GD_CACHE_FAILED - GD_CACHE_FILLING);
    else
        (void)gd_add64(word, -(uint64_t)GD_CACHE_FILLING);
}

/*
 * Reads a claimed line. Returns 0, and the group is its reader, or -errno. The
 * fence releases the bytes, which all lanes have stored or seen.
 */
GQ_FN int gd_cache_fill(const struct gd_cache_reader *w, const struct gd_cache_line *l)
{
    int err = gd_cache_read_one(w, gd_cache_address(w, l), gd_cache_line_bytes(w, l->number),
                                l->number << w->cache->line_shift);
    bool in_reach = err && gd_cache_is_in_reach(w, err);

    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_cache_end_fill(gd_cache_word(w, l), err, in_reach, GD_CACHE_PIN);
    }
    return err;
}

/*
 * Copies n bytes by all lanes, or only by lane `who`, if other lanes may be
 * unable to address its destination. Other groups may have stored the bytes, so
 * they are not loaded from the cache of an SM.
 */
GQ_FN void gd_cache_copy(const struct gd_cache_reader *w, uint32_t who, uint64_t dst, uint64_t src,
                         uint64_t n)
{
    bool words = ((dst | src | n) & 3) == 0;
    uint64_t units = words ? n / 4 : n;

    if (who == GD_CACHE_ALL) {
        GQ_FOR_LANES(lane)
        {
            gq_copy_4k(dst, src, n, lane, w->group.lanes);
        }
        return;
    }
    for (uint64_t i = 0; i < units; i++) {
        GQ_FOR_LANES(lane)
        {
            if (lane == who && words)
                ((uint32_t *)dst)[i] = ((const volatile uint32_t *)src)[i];
            else if (lane == who)
                ((unsigned char *)dst)[i] = ((const volatile unsigned char *)src)[i];
        }
    }
}

/* --- Slots ----------------------------------------------------------------------------------- */

/*
 * Called by one lane. Takes a free slot among the 32 of a word. Returns its
 * number, or GD_CACHE_NONE.
 */
GQ_FN uint32_t gd_cache_try_slot(const struct gpunvme_device_cache *c, uint32_t word)
{
    uint32_t taken = gq_atomic_load(&c->slots[word]), i = gq_prefix_ones(taken);

    if (i == 32 || (gq_atomic_or(&c->slots[word], 1u << i) >> i & 1u))
        return GD_CACHE_NONE;
    return word * 32 + i;
}

/*
 * Reserves a slot and returns its number. If no slot is free, returns
 * GD_CACHE_NONE at once, or with `waits` after the deadline of a command.
 */
GQ_FN uint32_t gd_cache_take_slot(const struct gd_cache_reader *w, bool waits)
{
    uint32_t words = w->cache->n_slots / 32, seed = GQ_SAME32(gd_seed()), slot;
    uint64_t start = GQ_SAME64(gq_clock_ns());
    GQ_LANE_VAR(uint32_t, got);

    for (uint32_t tries = 0;; tries++) {
        GQ_FOR_LANES(lane)
        {
            if (lane == 0)
                GQ_AT(got) = gd_cache_try_slot(w->cache, (seed + tries) % words);
        }
        slot = GQ_FROM32(got, 0);
        if (slot != GD_CACHE_NONE ||
            (tries >= words && (!waits || !gd_cache_wait(w, start, tries))))
            break;
    }
    gq_fence_device(); /* orders the loads of the last user before the writes of this one */
    return slot;
}

/*
 * Makes a slot free after its last load, which the fence orders before the next
 * use.
 */
GQ_FN void gd_cache_give_slot(const struct gd_cache_reader *w, uint32_t slot)
{
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_atomic_clear(&w->cache->slots[slot / 32], 1u << slot % 32);
    }
}

/*
 * Reads n bytes of one line through a slot. The slot stays taken if a command
 * may still write to it.
 */
GQ_FN int gd_cache_bypass(const struct gd_cache_reader *w, uint32_t who, uint64_t dst, uint64_t n,
                          uint64_t offset)
{
    uint32_t slot = gd_cache_take_slot(w, true);
    uint64_t at = w->cache->slots_at + ((uint64_t)slot << w->cache->line_shift);
    int err;

    if (slot == GD_CACHE_NONE)
        return -ETIMEDOUT;
    gd_cache_count(w, &w->cache->counts->bypasses, 1);
    err = gd_cache_read_one(w, at, n, offset);
    if (!err)
        gd_cache_copy(w, who, dst, at, n);
    if (!err || !gd_cache_is_in_reach(w, err))
        gd_cache_give_slot(w, slot);
    return err;
}

/* --- Parts of lines -------------------------------------------------------------------------- */

/*
 * Makes the group a reader of the line. The group first reads the line if the cache does not
 * contain it. Returns 0, -EAGAIN if the bytes have to be read without the line, or another -errno.
 * If the drive cannot read the line, it may be able to read some of its bytes.
 */
GQ_FN int gd_cache_enter(const struct gd_cache_reader *w, struct gd_cache_line *line)
{
    enum gd_cache_found found = gd_cache_seek(w, line);
    int err;

    gd_cache_count(w, &w->cache->counts->hits, found == GD_CACHE_HIT);
    gd_cache_count(w, &w->cache->counts->misses, found == GD_CACHE_CLAIMED);
    if (found != GD_CACHE_CLAIMED)
        return found == GD_CACHE_HIT ? 0 : -EAGAIN;
    err = gd_cache_fill(w, line);
    return err == -EIO ? -EAGAIN : err;
}

/* Reads n bytes of one line, for all lanes or for lane `who`. */
GQ_FN int gd_cache_read_part(const struct gd_cache_reader *w, uint32_t who, uint64_t dst,
                             uint64_t n, uint64_t offset)
{
    struct gd_cache_line line = gd_cache_line_of(w->cache, offset);
    int err = gd_cache_enter(w, &line);

    if (err)
        return err == -EAGAIN ? gd_cache_bypass(w, who, dst, n, offset) : err;
    gd_cache_copy(w, who, dst,
                  gd_cache_address(w, &line) + (offset - (line.number << w->cache->line_shift)), n);
    gd_cache_unpin(w, &line);
    return 0;
}

/* Reads n bytes, which end before the file does, line by line. Returns 0 or -errno. */
GQ_FN int gd_cache_read(const struct gd_cache_reader *w, uint32_t who, uint64_t dst, uint64_t n,
                        uint64_t offset)
{
    uint64_t line = (uint64_t)1 << w->cache->line_shift;

    for (uint64_t at = 0; at < n;) {
        uint64_t left = line - ((offset + at) & (line - 1));
        int err;

        left = left < n - at ? left : n - at;
        err = gd_cache_read_part(w, who, dst + at, left, offset + at);
        if (err)
            return err;
        at += left;
    }
    return 0;
}

/*
 * Inserts a line whose bytes at `from` were read in the current generation.
 * Does not insert a line that the cache contains already or should not keep, or
 * for which no way is idle. No command may still write to `from`. Returns true
 * if the line was inserted.
 */
GQ_FN bool gd_cache_insert(const struct gd_cache_reader *w, uint64_t number, uint64_t from)
{
    struct gd_cache_line line = gd_cache_line_of(w->cache, number << w->cache->line_shift);
    enum gd_cache_found found = GD_CACHE_AGAIN;

    if (!line.fits || w->generation == 0 || gd_cache_find(w, &line) != GD_CACHE_FREE ||
        !gd_cache_keeps(w, &line))
        return false;
    for (uint32_t tries = 0; tries < GD_CACHE_RESTS && found == GD_CACHE_AGAIN; tries++)
        found = gd_cache_claim(w, &line);
    if (found != GD_CACHE_CLAIMED)
        return false;
    gd_cache_copy(w, GD_CACHE_ALL, gd_cache_address(w, &line), from,
                  gd_cache_line_bytes(w, number));
    gq_fence_device(); /* as in gd_cache_fill() */
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_cache_end_fill(gd_cache_word(w, &line), 0, false, 0);
    }
    return true;
}

/*
 * Called by a whole warp. Reads any n bytes to memory that all its lanes
 * address. Returns the number of bytes, which is less than n only at the end of
 * the file, or -errno.
 */
GQ_FN int64_t gd_cache_pread_warp(const struct gpunvme_device_cache *cache, uint64_t dst,
                                  uint64_t n, uint64_t offset)
{
    struct gd_cache_reader self, *w = &self;
    int err = gd_cache_begin(w, gq_whole_group(), cache);
    uint64_t len = offset < w->end ? (n < w->end - offset ? n : w->end - offset) : 0;

    if (!err)
        err = gd_cache_read(w, GD_CACHE_ALL, dst, len, offset);
    return err ? err : (int64_t)len;
}

#endif
