/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers few rows by one launch. Each group has adjacent rows, one for each lane. The lane of the
 * first row that touches a range of units reads the range for all rows that touch it. A group sends
 * the commands of its lanes at once (gd_burst.h) and copies the rows out of the staging of their
 * CIDs. Groups do not wait for each other.
 *
 * Every function is called by all lanes of a group together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_TABLE_FEW_H
#define CLIENT_DEVICE_GD_TABLE_FEW_H

#include "client/device/gd_burst.h"
#include "client/device/gd_table.h"

/* No key has this bit. It marks rows that reach into one unit more than the shortest range has. */
#define GD_TABLE_LONGER ((uint64_t)1 << 62)
static_assert(GD_TABLE_UNIT_BITS + GD_TABLE_FILE_BITS <= 62, "the bit is unused");

/* Stores the keys of all ids of a gather. of[i] is the key of id number i * lanes + lane. */
struct gd_table_few_keys {
    GQ_LANE_MEMBER(uint64_t, of[GD_TABLE_FEW / GQ_LANES]);
};

/* Describes the rows of a group, and the ranges that they touch. */
struct gd_table_few {
    uint32_t first, n;                          /* number of the first one among the ids */
    GQ_LANE_MEMBER(uint64_t, key);              /* 0: the row touches no range */
    GQ_LANE_MEMBER(uint32_t, within);           /* byte of its unit at which the row begins */
    GQ_LANE_MEMBER(uint32_t, head);             /* number of the first row that touches the range */
    GQ_LANE_MEMBER(uint32_t, rows);             /* number of rows that touch it */
    GQ_LANE_MEMBER(uint32_t, more);             /* 1: one of them is longer */
    GQ_LANE_MEMBER(struct gq_read_desc, piece); /* the range, after it was read */
};

/* --- Ranges ---------------------------------------------------------------------------------- */

/*
 * Called by one lane. Returns the key of number i of the ids, or 0 if it touches no range. Stores
 * the byte of its unit at which the row begins.
 */
GQ_FN uint64_t gd_table_few_key(const struct gd_table_launch *l, uint32_t i, uint32_t *within)
{
    const struct gd_row_table *t = &l->table;
    int64_t id = i < l->n ? gd_table_id(l, i) : -1;
    uint32_t more, file;
    uint64_t offset, key;

    *within = 0;
    if (id < 0 || (uint64_t)id >= t->rows)
        return 0;
    offset = gd_table_offset(t, (uint64_t)id, &file);
    *within = (uint32_t)offset & ((1u << t->unit_shift) - 1);
    key = gd_table_key_at(t, offset, file, &more);
    return more ? key | GD_TABLE_LONGER : key;
}

/* Sets the keys of all ids, and of the group's rows. */
GQ_FN void gd_table_few_look(const struct gd_table_worker *w, struct gd_table_few *f,
                             struct gd_table_few_keys *keys)
{
    const struct gd_table_launch *l = w->l;

    GQ_FOR_LANES(lane)
    {
        uint64_t key = lane < f->n ? gd_table_few_key(l, f->first + lane, &GQ_AT(f->within)) : 0;

        GQ_AT(f->key) = key & ~GD_TABLE_LONGER;
    }
    GD_ROLLED
    for (uint32_t k = 0; k * GQ_LANES < l->n; k++) {
        GQ_FOR_LANES(lane)
        {
            uint32_t within;

            GQ_AT(keys->of[k]) = gd_table_few_key(l, k * GQ_LANES + lane, &within);
        }
    }
}

/* Finds the rows that touch the ranges of the lanes in `of`. */
GQ_FN void gd_table_few_find(const struct gd_table_worker *w, struct gd_table_few *f,
                             const struct gd_table_few_keys *keys, uint32_t of)
{
    while (of) {
        uint32_t own = gq_take_one(&of), head = UINT32_MAX, rows = 0, more = 0;
        uint64_t wanted = GQ_FROM64(f->key, own);

        GD_ROLLED
        for (uint32_t k = 0; k * GQ_LANES < w->l->n; k++) {
            uint32_t same;
            GQ_LANE_VAR(uint32_t, is);
            GQ_LANE_VAR(uint32_t, is_longer);

            GQ_FOR_LANES(lane)
            {
                GQ_AT(is) = (GQ_AT(keys->of[k]) & ~GD_TABLE_LONGER) == wanted;
                GQ_AT(is_longer) = GQ_AT(is) && (GQ_AT(keys->of[k]) & GD_TABLE_LONGER);
            }
            same = GQ_BALLOT(is);
            more |= GQ_BALLOT(is_longer);
            head = same && !rows ? k * GQ_LANES + gq_prefix_ones(~same) : head;
            rows += gq_count_ones(same);
        }
        GQ_FOR_LANES(lane)
        {
            if (lane == own) {
                GQ_AT(f->head) = head;
                GQ_AT(f->rows) = rows;
                GQ_AT(f->more) = more != 0;
            }
        }
    }
}

/* --- Reads ----------------------------------------------------------------------------------- */

/*
 * Sets the parts for the ranges of the lanes in `of`, all of which are in one file. Returns the
 * lanes whose range begins before the file ends.
 */
GQ_FN uint32_t gd_table_few_cut(const struct gd_table_worker *w, struct gd_share *s,
                                const struct gd_known *k, struct gd_table_few *f, uint32_t of)
{
    const struct gd_row_table *t = &w->l->table;
    GQ_LANE_VAR(uint32_t, has);

    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u) {
            struct gq_read_desc *p = &GQ_AT(f->piece);
            struct gd_part *part = &GQ_AT(s->part);
            uint64_t unit = GQ_AT(f->key) & (((uint64_t)1 << GD_TABLE_UNIT_BITS) - 1), left;

            p->file_offset = unit << t->unit_shift;
            p->at = (uint64_t)GQ_AT(f->head) * t->slot_bytes;
            p->len = (gd_table_least_units(t) + GQ_AT(f->more)) << t->unit_shift;
            left = k->end > p->file_offset ? k->end - p->file_offset : 0;
            p->result = (int32_t)(left < p->len ? left : p->len);
            part->dst = t->staging + p->at;
            part->offset = p->file_offset;
            part->left = (uint64_t)p->result;
            GQ_AT(has) = p->result != 0;
        }
    }
    return GQ_BALLOT(has);
}

/*
 * Reads the ranges of the lanes in `of`. All ranges are in one file. If this is the last file, the
 * queue is released.
 */
GQ_FN void gd_table_few_read(const struct gd_table_worker *w, struct gd_share *s,
                             const struct gd_known *k, struct gd_burst *b, struct gd_table_few *f,
                             uint32_t of, bool is_last)
{
    bool is_in_cids;

    of = gd_table_few_cut(w, s, k, f, of);
    is_in_cids = of && gd_burst_read(s, k, b, of);
    if (of && !is_in_cids)
        gd_burst_end(s, k, b);
    if (s->leads && is_last)
        gd_burst_unlock(s);
    GQ_FOR_LANES(lane)
    {
        if (is_in_cids && of >> lane & 1u)
            GQ_AT(f->piece).at = GQ_AT(s->part).staged - w->l->table.staging;
        else if (GQ_AT(s->part).err)
            GQ_AT(f->piece).result = GQ_AT(s->part).err;
    }
}

/* --- Rows ------------------------------------------------------------------------------------ */

/* Stores the rows that touch the range of lane `own`, except the first one. */
GQ_FN void gd_table_few_repeat(const struct gd_table_worker *w, const struct gd_table_few *f,
                               uint32_t own)
{
    const struct gd_table_launch *l = w->l;
    const uint64_t wanted = GQ_FROM64(f->key, own);
    const struct gq_read_desc piece = {
        .file_offset = GQ_PART_FROM64(f->piece, own, file_offset),
        .at = GQ_PART_FROM64(f->piece, own, at),
        .len = (uint32_t)GQ_PART_FROM64(f->piece, own, len),
        .result = (int32_t)(uint32_t)GQ_PART_FROM64(f->piece, own, result)};

    for (uint32_t first = 0; first < l->n; first += w->group.lanes) {
        struct gd_table_copies c = {0};
        GQ_LANE_VAR(uint32_t, is);
        GQ_LANE_VAR(uint32_t, error);

        GQ_FOR_LANES(lane)
        {
            uint32_t i = first + lane, within;
            uint64_t key = gd_table_few_key(l, i, &within) & ~GD_TABLE_LONGER;

            GQ_AT(is) = key == wanted && i != f->first + own;
            if (GQ_AT(is)) {
                struct gd_table_row row = gd_table_row_in(&l->table, &piece, within);

                GQ_AT(c.to) = l->out + i * l->out_stride;
                GQ_AT(c.from) = row.from;
                GQ_AT(c.len) = l->table.row_bytes;
                GQ_AT(error) = row.error;
            }
        }
        gd_table_store(w, &c, GQ_BALLOT(is));
        gd_table_fail(w, first, error);
    }
}

/* Stores the rows of the lanes in `of`, then other rows that touch their ranges. */
GQ_FN void gd_table_few_pick(const struct gd_table_worker *w, struct gd_table_few *f, uint32_t of)
{
    const struct gd_table_launch *l = w->l;
    struct gd_table_copies c = {0};
    uint32_t repeated;
    GQ_LANE_VAR(uint32_t, is_repeated);
    GQ_LANE_VAR(uint32_t, error);

    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u) {
            struct gd_table_row row =
                gd_table_row_in(&l->table, &GQ_AT(f->piece), GQ_AT(f->within));

            GQ_AT(c.to) = l->out + (f->first + lane) * l->out_stride;
            GQ_AT(c.from) = row.from;
            GQ_AT(c.len) = l->table.row_bytes;
            GQ_AT(error) = row.error;
            GQ_AT(is_repeated) = GQ_AT(f->rows) > 1;
        }
    }
    gd_table_store(w, &c, of);
    gd_table_fail(w, f->first, error);
    if (GQ_BALLOT(error))
        gd_table_note_lost(w);
    repeated = GQ_BALLOT(is_repeated);
    while (repeated)
        gd_table_few_repeat(w, f, gq_take_one(&repeated));
}

/*
 * Returns true if a command that was lost in an earlier gather may still write to
 * the staging.
 */
GQ_FN bool gd_table_few_is_late(const struct gd_table_worker *w)
{
    const struct gd_row_table *t = &w->l->table;
    const struct gd_table_words *words = t->words;

    if (GQ_SAME32(gq_atomic_load(&words->late)) &&
        GQ_SAME32(gd_load32(&words->number)) == GQ_SAME32(gd_load32(&t->file->set.number)))
        return true;
    return GQ_SAME32(gd_load32(&words->begun)) && gd_cache_lost_any(w->group, t->file);
}

/* Stores zeros for the rows of the lanes in `of` from number `first` on, which are not read. */
GQ_FN void gd_table_few_skip(const struct gd_table_worker *w, uint32_t first, uint32_t of)
{
    const struct gd_table_launch *l = w->l;
    struct gd_table_copies c = {0};
    GQ_LANE_VAR(uint32_t, error);

    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u) {
            uint32_t special = gd_table_special(l, gd_table_id(l, first + lane));

            GQ_AT(c.to) = l->out + (first + lane) * l->out_stride;
            GQ_AT(error) = special == GD_TABLE_BAD ? ERANGE : special ? 0 : ESTALE;
        }
    }
    gd_table_store(w, &c, of);
    gd_table_fail(w, first, error);
}

/* --- Groups ---------------------------------------------------------------------------------- */

/*
 * Finds the ranges that rows of the group touch first. Returns their lanes. Rows that are not read
 * are stored.
 */
GQ_FN uint32_t gd_table_few_begin(const struct gd_table_worker *w, struct gd_table_few *f)
{
    bool is_late = w->l->table.file && gd_table_few_is_late(w);
    struct gd_table_few_keys keys;
    uint32_t of, rest;
    GQ_LANE_VAR(uint32_t, is);

    gd_table_few_look(w, f, &keys);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = GQ_AT(f->key) && !is_late;
    }
    of = GQ_BALLOT(is);
    rest = gq_some_bits(f->n, 0) & ~of;
    if (rest)
        gd_table_few_skip(w, f->first, rest);
    gd_table_few_find(w, f, &keys, of);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = (of >> lane & 1u) && GQ_AT(f->head) == f->first + lane;
    }
    return GQ_BALLOT(is);
}

/*
 * Gathers the rows of the group, and others that touch the same ranges, file by file. All files
 * have the same queues. Returns the number of ranges. The caller releases the CIDs of the burst.
 */
GQ_FN uint32_t gd_table_few_rows(const struct gd_table_worker *w, struct gd_table_few *f,
                                 struct gd_share *s, struct gd_burst *b)
{
    const struct gd_row_table *t = &w->l->table;
    struct gd_known k = gd_load_known(t->first_file);
    uint32_t of, last = 0, n;

    gd_share_open(s, w->group, t->first_file, &k, 1);
    gd_burst_begin(s, &k, b, w->rank, gq_some_bits(f->n, 0));
    of = gd_table_few_begin(w, f);
    gd_burst_claim(s, b);
    n = gq_count_ones(of);
    while (of) {
        uint32_t same = of, number = gd_table_file(GQ_FROM64(f->key, gq_take_one(&same)));
        GQ_LANE_VAR(uint32_t, is);

        GQ_FOR_LANES(lane)
        {
            GQ_AT(is) = (of >> lane & 1u) && gd_table_file(GQ_AT(f->key)) == number;
        }
        same = GQ_BALLOT(is);
        of &= ~same;
        if (number != last) {
            k = gd_load_known(t->files[number]);
            gd_burst_change_file(s, &k, b, t->files[number]);
            last = number;
        }
        gd_table_few_read(w, s, &k, b, f, same, of == 0);
        gd_table_few_pick(w, f, same);
    }
    if (s->leads)
        gd_burst_unlock(s);
    return n;
}

/*
 * Counts the group, which has read n ranges, as finished. Returns 0, or in the last group the sum
 * of all groups. The fence also orders loads from the staging of CIDs before their release.
 */
GQ_FN uint32_t gd_table_few_leave(const struct gd_table_worker *w, uint32_t n)
{
    uint32_t *word = &w->l->table.words->few_left, own = n << 16 | 1, all;
    GQ_LANE_VAR(uint32_t, was);

    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(was) = gq_atomic_fetch_add(word, own);
    }
    all = GQ_FROM32(was, 0) + own;
    if ((all & 0xffffu) != w->groups)
        return 0;
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_atomic_store(word, 0);
    }
    return all;
}

/* Gathers the rows of the group, at most one for each lane. The last group reports. */
GQ_FN void gd_table_few(const struct gd_table_worker *w)
{
    uint32_t n = w->l->n, each = (n + w->groups - 1) / w->groups, ranges = 0, all;
    struct gd_table_few f = {.first = w->rank * each};
    struct gd_burst b = {.of = 0};
    struct gd_share s;

    if (f.first < n) {
        f.n = n - f.first < each ? n - f.first : each;
        ranges = gd_table_few_rows(w, &f, &s, &b);
    }
    all = gd_table_few_leave(w, ranges);
    if (b.of)
        gd_burst_release(&s, &b, b.of);
    if (all)
        gd_table_report(w, all >> 16);
}

#endif
