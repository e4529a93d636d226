/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers rows of a table by their numbers. A list of reads (gd_list.h) runs
 * between the passes:
 *
 *   clear   empties the hash table
 *   claim   copies the rows that lie in lines of a cache (gd_table_cache.h), and
 *           looks up the range of units that each other row touches; the first row
 *           that touches a range adds it, so a range is read once, however
 *           many rows lie in it
 *   place   writes the list, in which the pieces of a file follow each other
 *   pick    copies the rows out of the pieces, keeps lines of them in a cache, and
 *           counts the failed rows
 *
 * A pass sees the stores of the previous pass, because a stream executes them
 * in order. Within a pass the groups of a launch communicate only by atomics on
 * slots, counts and words.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_TABLE_H
#define CLIENT_DEVICE_GD_TABLE_H

#include "client/device/gd_sync.h"
#include "client/device/gd_table_cache.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

/*
 * Counts the group as finished. Returns true in the last group, which sees the
 * stores of all others.
 */
GQ_FN bool gd_table_is_last(const struct gd_table_worker *w)
{
    struct gd_table_words *words = w->l->table.words;
    GQ_LANE_VAR(uint32_t, left);

    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(left) = gq_atomic_fetch_add(&words->left, 1) + 1;
    }
    if (GQ_FROM32(left, 0) != w->groups)
        return false;
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_atomic_store(&words->left, 0);
    }
    return true;
}

/*
 * Returns the number of rows that a group copies in a turn: several only where
 * there are more rows than groups.
 */
GQ_FN uint32_t gd_table_turn(const struct gd_table_worker *w)
{
    uint32_t turn = w->l->n / w->groups + 1;

    return turn < w->group.lanes ? turn : w->group.lanes;
}

/* --- Clear ----------------------------------------------------------------------------------- */

/*
 * Called by one lane. Stores the generation that the cache has before the
 * gather reads.
 */
GQ_FN void gd_table_clear_file(const struct gd_row_table *t, uint32_t i)
{
    t->counts[i] = 0;
    if (t->caches && t->caches[i].cache)
        t->caches[i].generation = gd_load64(&t->caches[i].cache->generation);
}

/*
 * Called by one lane. Keeps `late` if an earlier gather under the same leases
 * has lost a command, and sets it if one may have (`lost`).
 */
GQ_FN void gd_table_clear_words(const struct gd_row_table *t, bool lost)
{
    struct gd_table_words *words = t->words;
    uint32_t number = t->file ? gd_load32(&t->file->set.number) : 0;

    words->late = lost || (words->late && words->number == number);
    words->number = number;
    words->begun = 1;
    words->first = UINT64_MAX;
    words->failed = words->copied = 0;
}

GQ_FN void gd_table_clear(const struct gd_table_worker *w)
{
    const struct gd_row_table *t = &w->l->table;
    uint32_t slots = w->l->mask + 1, n = slots > t->n_files ? slots : t->n_files;
    bool lost = w->rank == 0 && t->file && GQ_SAME32(gd_load32(&t->words->begun)) &&
                gd_cache_lost_any(w->group, t->file);

    for (uint64_t first = (uint64_t)w->rank * w->group.lanes; first < n;
         first += (uint64_t)w->groups * w->group.lanes) {
        GQ_FOR_LANES(lane)
        {
            if (first + lane < slots)
                t->slots[first + lane] = (struct gd_table_slot){0};
            if (first + lane < t->n_files)
                gd_table_clear_file(t, (uint32_t)(first + lane));
            if (first + lane == 0)
                gd_table_clear_words(t, lost);
        }
    }
}

/* --- Claim ----------------------------------------------------------------------------------- */

/* Returns the fewest units that a row touches. */
GQ_FN uint32_t gd_table_least_units(const struct gd_row_table *t)
{
    return ((t->row_bytes - 1) >> t->unit_shift) + 1;
}

/*
 * Returns the key of the range that a row at this offset touches. Stores 1 to
 * *more if the row reaches into one unit more than the shortest range has,
 * otherwise 0.
 */
GQ_FN uint64_t gd_table_key_at(const struct gd_row_table *t, uint64_t offset, uint32_t file,
                               uint32_t *more)
{
    uint64_t unit = offset >> t->unit_shift;
    uint64_t units = ((offset + t->row_bytes - 1) >> t->unit_shift) - unit + 1;

    *more = units > gd_table_least_units(t);
    return GD_TABLE_USED | (uint64_t)file << GD_TABLE_UNIT_BITS | unit;
}

GQ_FN uint64_t gd_table_key(const struct gd_row_table *t, uint64_t row, uint32_t *more)
{
    uint32_t file;
    uint64_t offset = gd_table_offset(t, row, &file);

    return gd_table_key_at(t, offset, file, more);
}

/* Returns the number by which the search for a key begins. */
GQ_FN uint32_t gd_table_hash(uint64_t key)
{
    const uint64_t golden_ratio = 0x9e3779b97f4a7c15u; /* the fraction times 2^64 */

    key *= golden_ratio;
    return (uint32_t)((key >> 32) ^ (key >> 48));
}

/* Returns the place of a row that touches no range, otherwise 0. */
GQ_FN uint32_t gd_table_special(const struct gd_table_launch *l, int64_t id)
{
    if (id >= 0 && (uint64_t)id < l->table.rows)
        return 0;
    return l->zeros || (l->pads && id == -1) ? GD_TABLE_ZEROS : GD_TABLE_BAD;
}

/*
 * Looks for a key in one slot, and adds the key if the slot is unused. Returns
 * the place of a row if the slot has the key, otherwise GD_TABLE_BAD.
 */
GQ_FN uint32_t gd_table_try(const struct gd_row_table *t, uint32_t slot, uint64_t key)
{
    struct gd_table_slot *s = &t->slots[slot];
    uint64_t old = gd_load64(&s->key);

    if (!old)
        old = gd_replace64(&s->key, 0, key);
    if (old == key)
        return slot;
    return old ? GD_TABLE_BAD : slot | GD_TABLE_CLAIMED;
}

/*
 * Gives new ranges their numbers among those of their files. `claimed` is the
 * place of a lane that has added the range of a key, otherwise 0. One lane counts
 * all ranges of a file, because the GPU makes the additions to one word one after
 * another.
 */
GQ_FN void gd_table_number(const struct gd_table_worker *w, GQ_LANE_PARAM(uint32_t, claimed),
                           GQ_LANE_PARAM(uint64_t, key))
{
    const struct gd_row_table *t = &w->l->table;
    uint32_t of = GQ_BALLOT(claimed);
    GQ_LANE_VAR(uint32_t, is);
    GQ_LANE_VAR(uint32_t, was);

    while (of) {
        uint32_t rest = of, same, sum;
        uint32_t number = gd_table_file(GQ_FROM64(key, gq_take_one(&rest)));

        GQ_FOR_LANES(lane)
        {
            GQ_AT(is) = (of >> lane & 1u) && gd_table_file(GQ_AT(key)) == number;
        }
        same = GQ_BALLOT(is);
        of &= ~same;
        GQ_FOR_LANES(lane)
        {
            if (lane == 0)
                GQ_AT(was) = gq_atomic_fetch_add(&t->counts[number], gq_count_ones(same));
        }
        sum = GQ_FROM32(was, 0);
        GQ_FOR_LANES(lane)
        {
            if (GQ_AT(is))
                t->slots[GQ_AT(claimed) & ~GD_TABLE_CLAIMED].piece =
                    sum + gq_count_ones(same & ((1u << lane) - 1u));
        }
    }
}

/*
 * Claims the ranges of those of n ids from number `first` on whose place is 0.
 * The search for a slot ends, because half of the slots stay unused.
 */
GQ_FN void gd_table_claim_ranges(const struct gd_table_worker *w, uint32_t first, uint32_t n)
{
    const struct gd_table_launch *l = w->l;
    GQ_LANE_VAR(uint32_t, searches);
    GQ_LANE_VAR(uint32_t, slot);
    GQ_LANE_VAR(uint32_t, more);
    GQ_LANE_VAR(uint32_t, claimed);
    GQ_LANE_VAR(uint64_t, key);

    GQ_FOR_LANES(lane)
    {
        if (lane < n && l->table.places[first + lane] == 0) {
            uint64_t row = (uint64_t)gd_table_id(l, first + lane);

            GQ_AT(searches) = 1;
            GQ_AT(key) = gd_table_key(&l->table, row, &GQ_AT(more));
            GQ_AT(slot) = gd_table_hash(GQ_AT(key)) & l->mask;
        }
    }
    while (GQ_BALLOT(searches)) {
        GQ_FOR_LANES(lane)
        {
            if (GQ_AT(searches)) {
                uint32_t place = gd_table_try(&l->table, GQ_AT(slot), GQ_AT(key));

                l->table.places[first + lane] = place;
                GQ_AT(searches) = place == GD_TABLE_BAD;
                GQ_AT(claimed) = place & GD_TABLE_CLAIMED ? place : 0;
                if (!GQ_AT(searches) && GQ_AT(more))
                    gq_atomic_store(&l->table.slots[GQ_AT(slot)].more, 1);
                GQ_AT(slot) = (GQ_AT(slot) + 1) & l->mask;
            }
        }
    }
    gd_table_number(w, claimed, key);
}

/* Places the rows of n ids from number `first` on: those in lines, then the others. */
GQ_FN void gd_table_claim_turn(const struct gd_table_worker *w, uint32_t first, uint32_t n)
{
    const struct gd_table_launch *l = w->l;

    GQ_FOR_LANES(lane)
    {
        if (lane < n)
            l->table.places[first + lane] = gd_table_special(l, gd_table_id(l, first + lane));
    }
    if (l->table.caches)
        gd_table_hit(w, first, n);
    gd_table_claim_ranges(w, first, n);
}

/* One group calls this. Stores the number of each file's first piece. */
GQ_FN void gd_table_bound(const struct gd_table_worker *w)
{
    const struct gd_row_table *t = &w->l->table;
    uint32_t sum = 0;
    GQ_LANE_VAR(uint32_t, count);

    for (uint32_t first = 0; first < t->n_files; first += w->group.lanes) {
        GQ_FOR_LANES(lane)
        {
            GQ_AT(count) = first + lane < t->n_files ? gq_atomic_load(&t->counts[first + lane]) : 0;
        }
        for (uint32_t i = 0; i < w->group.lanes && first + i < t->n_files; i++) {
            uint32_t of_file = GQ_FROM32(count, i);

            GQ_FOR_LANES(lane)
            {
                if (lane == i)
                    t->bounds[first + i] = sum;
            }
            sum += of_file;
        }
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            t->bounds[t->n_files] = sum;
    }
}

GQ_FN void gd_table_claim(const struct gd_table_worker *w)
{
    uint32_t n = w->l->n, turn = w->l->table.caches ? gd_table_turn(w) : w->group.lanes;

    for (uint64_t first = (uint64_t)w->rank * turn; first < n; first += (uint64_t)w->groups * turn)
        gd_table_claim_turn(w, (uint32_t)first, n - first < turn ? n - (uint32_t)first : turn);
    if (gd_table_is_last(w))
        gd_table_bound(w);
}

/* --- Place ----------------------------------------------------------------------------------- */

/* Writes the piece for the range in a slot. */
GQ_FN void gd_table_place_piece(const struct gd_row_table *t, struct gd_table_slot *s)
{
    uint32_t piece = t->bounds[gd_table_file(s->key)] + s->piece;
    uint64_t unit = s->key & (((uint64_t)1 << GD_TABLE_UNIT_BITS) - 1);
    uint32_t units = gd_table_least_units(t) + s->more;

    s->piece = piece;
    t->pieces[piece] = (struct gq_read_desc){.file_offset = unit << t->unit_shift,
                                             .at = (uint64_t)(piece % t->turn) * t->slot_bytes,
                                             .len = units << t->unit_shift,
                                             .result = 0};
}

GQ_FN void gd_table_place(const struct gd_table_worker *w)
{
    const struct gd_table_launch *l = w->l;

    for (uint64_t first = (uint64_t)w->rank * w->group.lanes; first < l->n;
         first += (uint64_t)w->groups * w->group.lanes) {
        GQ_FOR_LANES(lane)
        {
            uint32_t place = first + lane < l->n ? l->table.places[first + lane] : 0;

            if (place & GD_TABLE_CLAIMED)
                gd_table_place_piece(&l->table, &l->table.slots[place & ~GD_TABLE_CLAIMED]);
        }
    }
}

/* --- Pick ------------------------------------------------------------------------------------ */

/* Describes a row of `out`. `from` is the address of its bytes, or 0 for zeros. */
struct gd_table_row {
    uint64_t from;
    uint32_t error; /* errno if the row has failed, which is zeros then */
    bool is_due;    /* its piece was read in this turn, or it has none */
    bool is_unread; /* the read of its piece has failed */
};

/*
 * Returns true if a command that was lost in an earlier turn may still write to
 * the staging, over what this turn has read.
 */
GQ_FN bool gd_table_is_late(const struct gd_table_launch *l)
{
    uint32_t late = gq_atomic_load(&l->table.words->late);

    return late && l->first + 1 >= late;
}

/*
 * Called after the read of a piece has failed. If a command was lost, all groups
 * store the same word, which concerns the turns after this one.
 */
GQ_FN void gd_table_note_lost(const struct gd_table_worker *w)
{
    const struct gd_table_launch *l = w->l;
    const struct gd_row_table *t = &l->table;

    if (!t->file || !gd_cache_lost_any(w->group, t->file))
        return;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_atomic_store(&t->words->number, gd_load32(&t->file->set.number));
            gq_atomic_store(&t->words->late, l->first + t->turn + 1);
        }
    }
}

/*
 * Returns a row that begins `within` bytes behind the begin of its piece, which was read. If the
 * piece ends before the row does, the file ends there.
 */
GQ_FN struct gd_table_row gd_table_row_in(const struct gd_row_table *t,
                                          const struct gq_read_desc *p, uint64_t within)
{
    struct gd_table_row row = {0};

    row.is_due = true;
    row.is_unread = p->result < 0;
    if (row.is_unread)
        row.error = (uint32_t)-p->result;
    else if ((uint32_t)p->result < within + t->row_bytes)
        row.error = ENODATA;
    else
        row.from = t->staging + p->at + within;
    return row;
}

GQ_FN struct gd_table_row gd_table_read_row(const struct gd_row_table *t,
                                            const struct gq_read_desc *p, int64_t id)
{
    uint32_t file;
    uint64_t offset = gd_table_offset(t, (uint64_t)id, &file);

    return gd_table_row_in(t, p, offset - p->file_offset);
}

GQ_FN struct gd_table_row gd_table_row(const struct gd_table_launch *l, uint32_t i, bool is_late)
{
    const struct gd_row_table *t = &l->table;
    struct gd_table_row row = {0};
    uint32_t place = t->places[i], piece;

    if (place == GD_TABLE_COPIED)
        return row;
    if (place == GD_TABLE_ZEROS || place == GD_TABLE_BAD) {
        row.is_due = l->first == 0;
        row.error = row.is_due && place == GD_TABLE_BAD ? ERANGE : 0;
        return row;
    }
    piece = t->slots[place & ~GD_TABLE_CLAIMED].piece;
    if (piece < l->first || piece - l->first >= t->turn)
        return row;
    if (is_late)
        return (struct gd_table_row){.error = ESTALE, .is_due = true};
    return gd_table_read_row(t, &t->pieces[piece], gd_table_id(l, i));
}

/* Counts the rows from number `from` on that have an error. */
GQ_FN void gd_table_fail(const struct gd_table_worker *w, uint32_t from,
                         GQ_LANE_PARAM(uint32_t, error))
{
    struct gd_table_words *words = w->l->table.words;
    uint32_t failed = GQ_BALLOT(error), rest = failed, done = !failed, i;
    uint64_t first;
    GQ_LANE_VAR(uint32_t, is_stored);

    if (!failed)
        return;
    i = gq_take_one(&rest);
    first = (uint64_t)(from + i) << 32 | GQ_FROM32(error, i);
    while (!done) {
        GQ_FOR_LANES(lane)
        {
            if (lane == 0) {
                uint64_t was = gd_load64(&words->first);

                GQ_AT(is_stored) = was <= first || gd_replace64(&words->first, was, first) == was;
            }
        }
        done = GQ_FROM32(is_stored, 0);
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_atomic_add(&words->failed, gq_count_ones(failed));
    }
}

/* Stores the rows of the lanes in `of`; those without a source are zeros. */
GQ_FN void gd_table_store(const struct gd_table_worker *w, const struct gd_table_copies *c,
                          uint32_t of)
{
    uint32_t have, zeros;
    GQ_LANE_VAR(uint32_t, has);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(has) = (of >> lane & 1u) && GQ_AT(c->from);
    }
    have = GQ_BALLOT(has);
    gd_table_copy(w, c, have);
    zeros = of & ~have;
    while (zeros) {
        uint64_t to = GQ_FROM64(c->to, gq_take_one(&zeros));

        GQ_FOR_LANES(lane)
        {
            gq_zero_bytes(to, w->l->table.row_bytes, lane, w->group.lanes);
        }
    }
}

/*
 * Stores the rows of n ids from number `first` on. n is at most the number of
 * lanes.
 */
GQ_FN void gd_table_pick_turn(const struct gd_table_worker *w, uint32_t first, uint32_t n)
{
    const struct gd_table_launch *l = w->l;
    bool is_late = gd_table_is_late(l);
    uint32_t due;
    struct gd_table_copies c = {0};
    GQ_LANE_VAR(uint32_t, is_due);
    GQ_LANE_VAR(uint32_t, is_unread);
    GQ_LANE_VAR(uint32_t, has_read);
    GQ_LANE_VAR(uint32_t, error);

    GQ_FOR_LANES(lane)
    {
        if (lane < n) {
            struct gd_table_row row = gd_table_row(l, first + lane, is_late);

            GQ_AT(c.to) = l->out + (first + lane) * l->out_stride;
            GQ_AT(c.from) = row.from;
            GQ_AT(c.len) = l->table.row_bytes;
            GQ_AT(is_due) = row.is_due;
            GQ_AT(is_unread) = row.is_unread;
            GQ_AT(error) = row.error;
            GQ_AT(has_read) = row.is_due && (l->table.places[first + lane] & GD_TABLE_CLAIMED);
        }
    }
    due = GQ_BALLOT(is_due);
    gd_table_fail(w, first, error);
    if (GQ_BALLOT(is_unread))
        gd_table_note_lost(w);
    gd_table_store(w, &c, due);
    if (l->table.caches)
        gd_table_keep(w, first, GQ_BALLOT(has_read));
}

/*
 * One group calls this at the end of a gather. Stores the status, adds to the
 * sums, and resets the words of the gather.
 */
GQ_FN void gd_table_report(const struct gd_table_worker *w, uint32_t reads)
{
    const struct gd_table_launch *l = w->l;
    struct gd_table_words *words = l->table.words;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t first = gd_load64(&words->first);
            uint32_t failed = gq_atomic_load(&words->failed);

            *l->status = (struct gd_table_status){
                .failed = failed,
                .first_id = failed ? gd_table_id(l, (uint32_t)(first >> 32)) : 0,
                .error = failed ? -(int32_t)(uint32_t)first : 0,
                .reads = reads,
            };
            words->gathers++;
            words->rows += l->n;
            words->reads += reads;
            words->all_failed += failed;
            words->hits += gq_atomic_load(&words->copied);
            words->first = UINT64_MAX;
            words->failed = words->copied = 0;
        }
    }
}

GQ_FN void gd_table_pick(const struct gd_table_worker *w)
{
    uint32_t n = w->l->n, turn = gd_table_turn(w);

    for (uint64_t first = (uint64_t)w->rank * turn; first < n; first += (uint64_t)w->groups * turn)
        gd_table_pick_turn(w, (uint32_t)first, n - first < turn ? n - (uint32_t)first : turn);
    if (w->l->is_last && gd_table_is_last(w)) {
        gd_table_report(w, w->l->table.bounds[w->l->table.n_files]);
        gq_atomic_store(&w->l->table.words->begun, 0);
    }
}

/* Executes the share that the group number `rank` has of a pass. */
GQ_FN void gd_table_run(const struct gd_table_worker *w)
{
    switch (w->l->pass) {
    case GD_TABLE_CLEAR:
        gd_table_clear(w);
        break;
    case GD_TABLE_CLAIM:
        gd_table_claim(w);
        break;
    case GD_TABLE_PLACE:
        gd_table_place(w);
        break;
    default:
        gd_table_pick(w);
        break;
    }
}

#endif
