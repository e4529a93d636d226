/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads elements of lanes through a cache (gd_cache.h), and fills several lines
 * at a time. All lanes of a group look up and copy together.
 *
 * Every function is called by all lanes of a group together unless noted
 * otherwise.
 */
#ifndef CLIENT_DEVICE_GD_CACHE_ELEMENTS_H
#define CLIENT_DEVICE_GD_CACHE_ELEMENTS_H

#include "client/device/gd_cache.h"

/* --- Reads of lanes -------------------------------------------------------------------------- */

/*
 * Each lane reads one element of `size` bytes. Only the lane itself needs to
 * reach its destination.
 */
struct gd_cache_elements {
    uint32_t size;
    GQ_LANE_MEMBER(uint64_t, dst);
    GQ_LANE_MEMBER(uint64_t, offset);
    GQ_LANE_MEMBER(uint32_t, left); /* 1 until the element is read */
    GQ_LANE_MEMBER(int32_t, err);   /* the result: 0 or -errno */
};

/* Describes elements of lanes, whose lines are not replaced meanwhile. */
struct gd_cache_pins {
    GQ_LANE_MEMBER(uint64_t, src);    /* address of the lane's element, or 0 */
    GQ_LANE_MEMBER(uint64_t *, word); /* of the line that this lane has pinned; NULL: none */
    GQ_LANE_MEMBER(uint32_t, n);      /* readers that it has counted */
};

/* Returns the lanes whose element is not read yet, as bits. */
GQ_FN uint32_t gd_cache_left(const struct gd_cache_reader *w, const struct gd_cache_elements *e)
{
    (void)w;
    return GQ_BALLOT(e->left);
}

/* Called by one lane. Returns true if an element lies in one line that can be cached. */
GQ_FN bool gd_cache_is_inside(const struct gd_cache_reader *w, uint64_t offset, uint32_t size)
{
    uint64_t line = (uint64_t)1 << w->cache->line_shift;

    return w->generation && (offset & (line - 1)) + size <= line;
}

/*
 * Called by one lane. Looks for a line among GD_CACHE_LOOKS words, all of which
 * are loaded before one is compared. The words are loaded in pairs, because a
 * GPU serves one load of a word after another where many warps look for one
 * line.
 */
GQ_FN void gd_cache_look(const struct gd_cache_reader *w, struct gd_cache_line *l, uint32_t first)
{
    const uint64_t *at = &w->cache->words[l->first + first];
    uint64_t words[GD_CACHE_LOOKS];

    if (!l->fits)
        return;
    GQ_UNROLL
    for (uint32_t i = 0; i < GD_CACHE_LOOKS; i += 2)
        gd_load_pair(&at[i], &words[i]);
    GQ_UNROLL
    for (uint32_t i = 0; i < GD_CACHE_LOOKS; i++) {
        if (first + i < w->cache->ways && gd_cache_is_valid(w, words[i], l->tag))
            l->way = first + i;
    }
}

/* Stores the first lane that has the same value, and how many lanes have it. */
#ifdef __CUDACC__
GQ_FN void gd_cache_match(const struct gd_cache_reader *w, uint64_t value, uint32_t &first,
                          uint32_t &n)
{
    uint32_t same = __match_any_sync(w->group.mask, (unsigned long long)value);

    first = __popc(w->group.mask & ((same & -same) - 1));
    n = __popc(same);
}
#else
GQ_FN void gd_cache_match(const struct gd_cache_reader *w, const uint64_t *value, uint32_t *first,
                          uint32_t *n)
{
    GQ_FOR_LANES(lane)
    {
        n[lane] = 0;
        for (uint32_t i = GQ_LANES; i-- > 0;) {
            if (value[i] == value[lane]) {
                first[lane] = i;
                n[lane]++;
            }
        }
    }
}
#endif

/*
 * Stores the address of each lane's element if its line is valid, otherwise 0.
 * All lanes look up at the same time. The first lane of those with the same line
 * counts all of them as its readers, because many lanes may have one line, and
 * the GPU makes additions to one word one after another.
 */
GQ_FN void gd_cache_pin_elements(const struct gd_cache_reader *w, const struct gd_cache_elements *e,
                                 struct gd_cache_pins *p)
{
    const struct gpunvme_device_cache *c = w->cache;
    GQ_LANE_VAR(struct gd_cache_line, line);
    GQ_LANE_VAR(uint64_t, place);
    GQ_LANE_VAR(uint32_t, first);
    GQ_LANE_VAR(uint32_t, is);
    uint32_t valid;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(line) = gd_cache_line_of(c, GQ_AT(e->offset));
        if (!GQ_AT(e->left) || !gd_cache_is_inside(w, GQ_AT(e->offset), e->size))
            GQ_AT(line).fits = false;
    }
    for (uint32_t way = 0; way < c->ways; way += GD_CACHE_LOOKS) {
        GQ_FOR_LANES(lane)
        {
            gd_cache_look(w, &GQ_AT(line), way);
        }
    }
    GQ_FOR_LANES(lane)
    {
        const struct gd_cache_line *l = &GQ_AT(line);

        GQ_AT(place) =
            l->way == GD_CACHE_NONE ? UINT64_MAX : l->number * 2 * GD_CACHE_WAYS + l->way;
    }
    gd_cache_match(w, place, first, p->n);
    GQ_FOR_LANES(lane)
    {
        const struct gd_cache_line *l = &GQ_AT(line);

        GQ_AT(p->word) = NULL;
        if (l->way != GD_CACHE_NONE && GQ_AT(first) == lane &&
            gd_cache_pin_word(w, gd_cache_word(w, l), l->tag, GQ_AT(p->n)))
            GQ_AT(p->word) = gd_cache_word(w, l);
        GQ_AT(is) = GQ_AT(p->word) != NULL;
    }
    valid = GQ_BALLOT(is);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(p->src) = valid >> GQ_AT(first) & 1u
                            ? gd_cache_address(w, &GQ_AT(line)) +
                                  (GQ_AT(e->offset) & (((uint64_t)1 << c->line_shift) - 1))
                            : 0;
    }
    gq_fence_device(); /* acquires the bytes */
}

/* Ends what gd_cache_pin_elements() has begun. The fence is as in gd_cache_unpin(). */
GQ_FN void gd_cache_unpin_elements(const struct gd_cache_reader *w, const struct gd_cache_pins *p)
{
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(p->word))
            (void)gd_add64(GQ_AT(p->word), -(GQ_AT(p->n) * GD_CACHE_PIN));
    }
}

/* Copies the elements that have a source; every lane copies its own. */
GQ_FN void gd_cache_copy_elements(const struct gd_cache_reader *w,
                                  const struct gd_cache_elements *e, GQ_LANE_PARAM(uint64_t, src))
{
    GQ_LANE_VAR(uint32_t, odd);
    uint32_t unit;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(odd) = GQ_AT(src) && ((GQ_AT(src) | GQ_AT(e->dst) | e->size) & 3);
    }
    unit = GQ_BALLOT(odd) ? 1 : 4;
    for (uint32_t at = 0; at < e->size; at += unit) {
        GQ_FOR_LANES(lane)
        {
            if (GQ_AT(src) && unit == 4)
                *(uint32_t *)(GQ_AT(e->dst) + at) = *(const volatile uint32_t *)(GQ_AT(src) + at);
            else if (GQ_AT(src))
                *(unsigned char *)(GQ_AT(e->dst) + at) =
                    *(const volatile unsigned char *)(GQ_AT(src) + at);
        }
    }
}

/* Reads the elements whose lines are valid, for all lanes at a time. */
GQ_FN void gd_cache_hit_elements(const struct gd_cache_reader *w, struct gd_cache_elements *e)
{
    uint32_t before = gd_cache_left(w, e);
    struct gd_cache_pins p;

    gd_cache_pin_elements(w, e, &p);
    gd_cache_copy_elements(w, e, p.src);
    gd_cache_unpin_elements(w, &p);
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(p.src))
            GQ_AT(e->left) = 0;
    }
    gd_cache_count(w, &w->cache->counts->hits, gq_count_ones(before & ~gd_cache_left(w, e)));
}

/* --- Lines that are not kept ----------------------------------------------------------------- */

/*
 * Returns the lanes whose elements lie in lines that are not kept, as bits, and
 * remembers these lines. All lanes look before one remembers its line, so a line
 * that several of them touch is touched once.
 */
GQ_FN uint32_t gd_cache_first_touched(const struct gd_cache_reader *w,
                                      const struct gd_cache_elements *e)
{
    GQ_LANE_VAR(uint32_t, first);
    GQ_LANE_VAR(struct gd_cache_line, line);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(line) = gd_cache_line_of(w->cache, GQ_AT(e->offset));
        if (GQ_AT(e->left) && GQ_AT(line).fits && gd_cache_is_inside(w, GQ_AT(e->offset), e->size))
            GQ_AT(first) = gq_atomic_load(gd_cache_recent(w->cache, &GQ_AT(line))) !=
                           gd_cache_mark(&GQ_AT(line));
    }
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(first))
            gq_atomic_store(gd_cache_recent(w->cache, &GQ_AT(line)), gd_cache_mark(&GQ_AT(line)));
    }
    return GQ_BALLOT(first);
}

/* Each lane has a slot. Lanes whose elements lie in one line share it. */
struct gd_cache_taken {
    GQ_LANE_MEMBER(uint32_t, slot); /* GD_CACHE_NONE: none */
    GQ_LANE_MEMBER(uint64_t, src);  /* address of the lane's element in its slot, or 0 */
};

/*
 * Gives a slot to the lanes in `of` whose elements lie in line `number`, and
 * prepares the read of the line by lane i. Returns these lanes, as bits.
 */
GQ_FN uint32_t gd_cache_share_slot(const struct gd_cache_reader *w,
                                   const struct gd_cache_elements *e, uint32_t of, uint32_t i,
                                   uint32_t slot, struct gd_cache_reads *r,
                                   struct gd_cache_taken *t)
{
    uint32_t shift = w->cache->line_shift;
    uint64_t number = GQ_FROM64(e->offset, i) >> shift;
    uint64_t at = w->cache->slots_at + ((uint64_t)slot << shift);
    GQ_LANE_VAR(uint32_t, is);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = (of >> lane & 1u) && GQ_AT(e->offset) >> shift == number;
        if (GQ_AT(is)) {
            GQ_AT(t->slot) = slot;
            GQ_AT(t->src) = at + (GQ_AT(e->offset) & (((uint64_t)1 << shift) - 1));
        }
        if (lane == i) {
            GQ_AT(r->dst) = at;
            GQ_AT(r->offset) = number << shift;
            GQ_AT(r->len) = gd_cache_line_bytes(w, number);
        }
    }
    return GQ_BALLOT(is);
}

/*
 * Reserves a slot for each line of the lanes in `of` until no slot is free, and
 * prepares the reads. Returns the lanes that have a slot, as bits.
 */
GQ_FN uint32_t gd_cache_take_slots(const struct gd_cache_reader *w,
                                   const struct gd_cache_elements *e, uint32_t of,
                                   struct gd_cache_reads *r, struct gd_cache_taken *t)
{
    uint32_t all = 0, slot = 0;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(t->slot) = GD_CACHE_NONE;
        GQ_AT(t->src) = 0;
    }
    while (of & ~all) {
        uint32_t rest = of & ~all, i = gq_take_one(&rest);

        slot = gd_cache_take_slot(w, false);
        if (slot == GD_CACHE_NONE)
            break;
        all |= gd_cache_share_slot(w, e, of, i, slot, r, t);
    }
    return all;
}

/*
 * Gives back the slot that lane i has read with the result err, unless a lost
 * command may still write to it. After an error its lanes have no source.
 */
GQ_FN void gd_cache_end_slot(const struct gd_cache_reader *w, struct gd_cache_taken *t,
                             uint32_t slot, int err)
{
    if (!err || !gd_cache_is_in_reach(w, err))
        gd_cache_give_slot(w, slot);
    GQ_FOR_LANES(lane)
    {
        if (err && GQ_AT(t->slot) == slot)
            GQ_AT(t->src) = 0;
    }
}

/* Copies the elements out of the slots that were read, and ends the use of all. */
GQ_FN void gd_cache_empty_slots(const struct gd_cache_reader *w, struct gd_cache_elements *e,
                                const struct gd_cache_reads *r, struct gd_cache_taken *t)
{
    GQ_LANE_VAR(uint32_t, is);
    uint32_t failed, reads;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = GQ_AT(r->len) != 0 && GQ_AT(r->err) != 0;
    }
    failed = GQ_BALLOT(is);
    while (failed) {
        uint32_t i = gq_take_one(&failed);

        gd_cache_end_slot(w, t, GQ_FROM32(t->slot, i), (int)GQ_FROM32(r->err, i));
    }
    gd_cache_copy_elements(w, e, t->src);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = GQ_AT(r->len) != 0 && GQ_AT(r->err) == 0;
        if (GQ_AT(t->src))
            GQ_AT(e->left) = 0;
    }
    reads = GQ_BALLOT(is);
    while (reads)
        gd_cache_end_slot(w, t, GQ_FROM32(t->slot, gq_take_one(&reads)), 0);
}

/*
 * Reads the elements of the lanes in `of` through the slots that are free. Each
 * line is read once, and all are read at the same time. Returns the lanes that
 * had a slot, as bits. Their elements are left if their lines were not read.
 */
GD_CACHE_CALL uint32_t gd_cache_read_slots(const struct gd_cache_reader *w,
                                           struct gd_cache_elements *e, uint32_t of)
{
    struct gd_cache_reads r = {0};
    struct gd_cache_taken t;
    uint32_t got = gd_cache_take_slots(w, e, of, &r, &t);

    if (!got)
        return 0;
    gd_cache_count(w, &w->cache->counts->bypasses, gq_count_ones(got));
    gd_cache_read_lines(w, &r);
    gd_cache_empty_slots(w, e, &r, &t);
    return got;
}

/*
 * Reads elements in lines that are not kept. No slot is held while the group
 * waits for another one.
 */
GQ_FN void gd_cache_read_around(const struct gd_cache_reader *w, struct gd_cache_elements *e)
{
    uint32_t of = gd_cache_first_touched(w, e);

    while (of) {
        uint32_t got = gd_cache_read_slots(w, e, of), i;

        of &= ~got;
        if (got)
            continue;
        i = gq_take_one(&of);
        int err = gd_cache_bypass(w, i, GQ_FROM64(e->dst, i), e->size, GQ_FROM64(e->offset, i));
        GQ_FOR_LANES(lane)
        {
            if (lane == i) {
                GQ_AT(e->err) = err;
                GQ_AT(e->left) = 0;
            }
        }
    }
}

/* --- Fills of several lines ------------------------------------------------------------------ */

/*
 * Claims the lines at the offsets of the lanes in `of`, except those that other
 * groups have claimed. Does not wait. Prepares their reads, and stores their
 * words. Returns the lanes whose lines were claimed, as bits.
 */
GQ_FN uint32_t gd_cache_claim_lines(const struct gd_cache_reader *w,
                                    GQ_LANE_PARAM(uint64_t, offset), uint32_t of,
                                    struct gd_cache_reads *r, GQ_LANE_OUT(uint64_t *, word))
{
    uint32_t claimed = 0;

    while (of) {
        uint32_t i = gq_take_one(&of);
        struct gd_cache_line line = gd_cache_line_of(w->cache, GQ_FROM64(offset, i));

        if (!line.fits || gd_cache_find(w, &line) != GD_CACHE_FREE ||
            gd_cache_claim(w, &line) != GD_CACHE_CLAIMED)
            continue;
        claimed |= 1u << i;
        GQ_FOR_LANES(lane)
        {
            if (lane == i) {
                GQ_AT(r->dst) = gd_cache_address(w, &line);
                GQ_AT(r->offset) = line.number << w->cache->line_shift;
                GQ_AT(r->len) = gd_cache_line_bytes(w, line.number);
                GQ_AT(word) = gd_cache_word(w, &line);
            }
        }
    }
    return claimed;
}

/*
 * Reads the lines at the offsets of the lanes in `of`, all at a time, except
 * those that other groups have. Returns the error of a line that was not read,
 * or 0.
 */
GQ_FN int gd_cache_fill_lines(const struct gd_cache_reader *w, GQ_LANE_PARAM(uint64_t, offset),
                              uint32_t of)
{
    struct gd_cache_reads r = {0};
    GQ_LANE_VAR(uint64_t *, word);
    GQ_LANE_VAR(uint32_t, failed);
    uint32_t claimed = w->generation ? gd_cache_claim_lines(w, offset, of, &r, word) : 0, failures;
    bool in_reach = false;
    int err = 0;

    if (!claimed)
        return 0;
    gd_cache_count(w, &w->cache->counts->misses, gq_count_ones(claimed));
    gd_cache_read_lines(w, &r);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(failed) = GQ_AT(r.err) != 0;
    }
    failures = GQ_BALLOT(failed);
    while (failures) {
        err = (int)GQ_FROM32(r.err, gq_take_one(&failures));
        in_reach = in_reach || gd_cache_is_in_reach(w, err);
    }
    gq_fence_device(); /* as in gd_cache_fill() */
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(word))
            gd_cache_end_fill(GQ_AT(word), GQ_AT(r.err), in_reach, 0);
    }
    return err;
}

/*
 * Reads an element for each lane. Elements in valid lines come first, then
 * those in lines that are not kept, then those in lines that the group fills.
 * Each of these steps serves all its lanes at once. The rest is read one by
 * one.
 */
GQ_FN void gd_cache_read_elements(const struct gd_cache_reader *w, struct gd_cache_elements *e)
{
    uint32_t left;

    gd_cache_hit_elements(w, e);
    left = gd_cache_left(w, e);
    if (left && w->cache->second_touch) {
        gd_cache_read_around(w, e);
        left = gd_cache_left(w, e);
    }
    if (left & (left - 1)) {
        (void)gd_cache_fill_lines(w, e->offset, left);
        gd_cache_hit_elements(w, e);
        left = gd_cache_left(w, e);
    }
    while (left) {
        uint32_t i = gq_take_one(&left);
        int err = gd_cache_read(w, i, GQ_FROM64(e->dst, i), e->size, GQ_FROM64(e->offset, i));

        GQ_FOR_LANES(lane)
        {
            if (lane == i)
                GQ_AT(e->err) = err;
        }
    }
}

/*
 * Reads the lines that contain some of n bytes from offset on and are not in
 * the cache. Returns 0, or the error of one of them.
 */
GQ_FN int gd_cache_prefetch(const struct gd_cache_reader *w, uint64_t n, uint64_t offset)
{
    uint64_t line = (uint64_t)1 << w->cache->line_shift,
             end = n < w->end - offset ? offset + n : w->end;
    int err = 0;

    if (offset >= w->end)
        return 0;
    for (uint64_t first = offset & ~(line - 1); first < end; first += line * w->group.lanes) {
        uint64_t lines = (end - first + line - 1) >> w->cache->line_shift;
        GQ_LANE_VAR(uint64_t, at);
        int found;

        lines = lines < w->group.lanes ? lines : w->group.lanes;
        GQ_FOR_LANES(lane)
        {
            GQ_AT(at) = first + lane * line;
        }
        found = gd_cache_fill_lines(w, at, lines == 32 ? UINT32_MAX : (1u << lines) - 1u);
        err = err ? err : found;
    }
    return err;
}

#endif
