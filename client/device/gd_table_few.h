/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers few rows by one launch, in which each group has one row. The group of
 * the first row that touches a range of units reads the range, and copies all
 * rows that touch it. Groups do not wait for each other.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_TABLE_FEW_H
#define CLIENT_DEVICE_GD_TABLE_FEW_H

#include "client/device/gd_table.h"

/* Describes the rows that touch a range, and the range as a piece that was read. */
struct gd_table_few {
    uint64_t key;
    uint32_t rows, first; /* number of rows, and the number of the first one among the ids */
    bool more;            /* one of them reaches into one unit more than the shortest range has */
    struct gq_read_desc piece;
};

/*
 * Returns a bit for each of the 32 rows from number `first` on, which is set if
 * the row touches the range.
 */
GQ_FN uint32_t gd_table_few_of(const struct gd_table_worker *w, struct gd_table_few *f,
                               uint32_t first)
{
    const struct gd_table_launch *l = w->l;
    GQ_LANE_VAR(uint32_t, is);
    GQ_LANE_VAR(uint32_t, more);

    GQ_FOR_LANES(lane)
    {
        int64_t id = first + lane < l->n ? gd_table_id(l, first + lane) : -1;

        if (id >= 0 && (uint64_t)id < l->table.rows)
            GQ_AT(is) = gd_table_key(&l->table, (uint64_t)id, &GQ_AT(more)) == f->key;
        GQ_AT(more) = GQ_AT(more) && GQ_AT(is);
    }
    f->more = f->more || GQ_BALLOT(more);
    return GQ_BALLOT(is);
}

/* Finds the rows that touch the range of row i. */
GQ_FN void gd_table_few_find(const struct gd_table_worker *w, struct gd_table_few *f, uint64_t row)
{
    uint32_t unused;

    *f = (struct gd_table_few){.key = gd_table_key(&w->l->table, row, &unused)};
    for (uint32_t first = 0; first < w->l->n; first += w->group.lanes) {
        uint32_t of = gd_table_few_of(w, f, first), rest = of;

        if (of && f->rows == 0)
            f->first = first + gq_take_one(&rest);
        f->rows += gq_count_ones(of);
    }
}

/* Reads the range to the place of its first row in the staging. */
GQ_FN void gd_table_few_read(const struct gd_table_worker *w, struct gd_table_few *f)
{
    const struct gd_row_table *t = &w->l->table;
    const struct gpunvme_device_file *file = t->files[gd_table_file(f->key)];
    const struct gd_known known = gd_load_known(file);
    uint64_t unit = f->key & (((uint64_t)1 << GD_TABLE_UNIT_BITS) - 1);
    uint64_t end = GQ_SAME64(gd_load64(&file->map.end));
    struct gq_read_desc *p = &f->piece;
    struct gd_share s;
    int err = 0;

    *p = (struct gq_read_desc){.file_offset = unit << t->unit_shift,
                               .at = (uint64_t)f->first * t->slot_bytes,
                               .len = (gd_table_least_units(t) + f->more) << t->unit_shift};
    end = end > p->file_offset ? end - p->file_offset : 0;
    p->result = (int32_t)(end < p->len ? end : p->len);
    if (p->result)
        err =
            gd_read_warp(&s, file, &known, t->staging + p->at, (uint64_t)p->result, p->file_offset);
    if (err)
        p->result = err;
}

/* Stores all rows that touch the range. */
GQ_FN void gd_table_few_pick(const struct gd_table_worker *w, struct gd_table_few *f)
{
    const struct gd_table_launch *l = w->l;
    uint32_t lanes = w->group.lanes;

    for (uint32_t first = f->first / lanes * lanes, left = f->rows; left; first += lanes) {
        struct gd_table_copies c = {0};
        uint32_t of = gd_table_few_of(w, f, first);
        GQ_LANE_VAR(uint32_t, error);

        GQ_FOR_LANES(lane)
        {
            if (of >> lane & 1u) {
                struct gd_table_row row =
                    gd_table_read_row(&l->table, &f->piece, gd_table_id(l, first + lane));

                GQ_AT(c.to) = l->out + (first + lane) * l->out_stride;
                GQ_AT(c.from) = row.from;
                GQ_AT(c.len) = l->table.row_bytes;
                GQ_AT(error) = row.error;
            }
        }
        gd_table_store(w, &c, of);
        gd_table_fail(w, first, error);
        left -= gq_count_ones(of);
    }
}

/*
 * Returns true if a command that was lost in an earlier gather may still write to
 * the staging.
 */
GQ_FN bool gd_table_few_is_late(const struct gd_table_worker *w)
{
    const struct gd_row_table *t = &w->l->table;
    const struct gd_table_words *words = t->words;

    if (!t->file)
        return false;
    if (GQ_SAME32(gq_atomic_load(&words->late)) &&
        GQ_SAME32(gd_load32(&words->number)) == GQ_SAME32(gd_load32(&t->file->set.number)))
        return true;
    return GQ_SAME32(gd_load32(&words->begun)) && gd_cache_lost_any(w->group, t->file);
}

/* Stores zeros for row i. */
GQ_FN void gd_table_few_skip(const struct gd_table_worker *w, uint32_t i, uint32_t errnum)
{
    struct gd_table_copies c = {0};
    GQ_LANE_VAR(uint32_t, error);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(c.to) = w->l->out + i * w->l->out_stride;
        GQ_AT(error) = lane == 0 ? errnum : 0;
    }
    gd_table_store(w, &c, 1);
    gd_table_fail(w, i, error);
}

/* Gathers row i, if it touches no range or is the first one that touches its range. */
GQ_FN void gd_table_few_row(const struct gd_table_worker *w, uint32_t i)
{
    const struct gd_table_launch *l = w->l;
    int64_t id = gd_table_id(l, i);
    uint32_t special = gd_table_special(l, id);
    struct gd_table_few f;

    if (special || gd_table_few_is_late(w)) {
        gd_table_few_skip(w, i, special == GD_TABLE_ZEROS ? 0 : special ? ERANGE : ESTALE);
        return;
    }
    gd_table_few_find(w, &f, (uint64_t)id);
    if (f.first != i)
        return;
    gd_table_few_read(w, &f);
    gd_table_few_pick(w, &f);
    if (f.piece.result < 0)
        gd_table_note_lost(w);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_atomic_add(&l->table.words->reads_now, 1);
    }
}

/* Gathers the row of the group's rank. The last group reports. */
GQ_FN void gd_table_few(const struct gd_table_worker *w)
{
    if (w->rank < w->l->n)
        gd_table_few_row(w, w->rank);
    if (gd_table_is_last(w))
        gd_table_report(w, GQ_SAME32(gq_atomic_load(&w->l->table.words->reads_now)));
}

#endif
