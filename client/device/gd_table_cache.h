/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gathers through caches of the files of a table (gd_cache.h). A gather first
 * copies the rows that lie in lines, and keeps lines of the ranges that it has
 * read for the other rows. No line is in use between two passes, so a gather
 * whose later launches fail leaves all caches as they were.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_TABLE_CACHE_H
#define CLIENT_DEVICE_GD_TABLE_CACHE_H

#include "client/device/gd_cache_elements.h"
#include "client/device/gd_table_place.h"
#include "cuda/queue/gq_bytes.h"

/* --- Rows in lines --------------------------------------------------------------------------- */

/* Each lane searches the lines for one row, part by part. */
struct gd_table_hits {
    GQ_LANE_MEMBER(uint64_t, offset); /* of the row in its file */
    GQ_LANE_MEMBER(uint32_t, file);
    GQ_LANE_MEMBER(uint32_t, at);    /* bytes that are copied */
    GQ_LANE_MEMBER(uint32_t, looks); /* 1 until the row is copied, or a part was not found */
};

/*
 * Copies the next part of each row that e->left selects, if its line is valid.
 * Ends the search for the others.
 */
GQ_FN void gd_table_hit_parts(const struct gd_table_worker *w, const struct gd_cache_reader *reader,
                              struct gd_table_hits *h, struct gd_cache_elements *e, uint32_t first)
{
    const struct gd_table_launch *l = w->l;
    uint64_t line = (uint64_t)1 << reader->cache->line_shift;
    struct gd_cache_pins p;
    struct gd_table_copies c;
    uint32_t found;
    GQ_LANE_VAR(uint32_t, is);

    GQ_FOR_LANES(lane)
    {
        uint32_t left = l->table.row_bytes - GQ_AT(h->at);

        GQ_AT(e->offset) = GQ_AT(h->offset) + GQ_AT(h->at);
        GQ_AT(c.len) = (uint32_t)(line - (GQ_AT(e->offset) & (line - 1)));
        GQ_AT(c.len) = GQ_AT(c.len) < left ? GQ_AT(c.len) : left;
        GQ_AT(c.to) = l->out + (first + lane) * l->out_stride + GQ_AT(h->at);
    }
    gd_cache_pin_elements(reader, e, &p);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(c.from) = GQ_AT(p.src);
        GQ_AT(is) = GQ_AT(p.src) != 0;
    }
    found = GQ_BALLOT(is);
    gd_table_copy(w, &c, found);
    gd_cache_unpin_elements(reader, &p);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(h->at) += GQ_AT(p.src) ? GQ_AT(c.len) : 0;
        GQ_AT(e->left) = GQ_AT(p.src) && GQ_AT(h->at) < l->table.row_bytes;
    }
    gd_cache_count(reader, &reader->cache->counts->hits, gq_count_ones(found));
}

/*
 * Copies the rows of one file that lie in lines. The search for all rows of the
 * file ends. A row that does not end before the file does is left to be read.
 */
GQ_FN void gd_table_hit_file(const struct gd_table_worker *w, struct gd_table_hits *h,
                             uint32_t first, uint32_t file)
{
    const struct gd_row_table *t = &w->l->table;
    const struct gpunvme_device_cache *cache = t->caches[file].cache;
    struct gd_cache_elements e = {.size = 1};
    struct gd_cache_reader reader = {0};
    bool is_valid = cache && gd_cache_begin(&reader, w->group, cache) == 0;

    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(h->looks) && GQ_AT(h->file) == file) {
            GQ_AT(h->looks) = 0;
            GQ_AT(e.left) = is_valid && GQ_AT(h->offset) <= reader.end &&
                            t->row_bytes <= reader.end - GQ_AT(h->offset);
        }
    }
    while (GQ_BALLOT(e.left))
        gd_table_hit_parts(w, &reader, h, &e, first);
}

/*
 * Copies those of n rows from number `first` on that lie in lines. Their place
 * becomes GD_TABLE_COPIED. The others have the place 0 before and after.
 */
GQ_FN void gd_table_hit(const struct gd_table_worker *w, uint32_t first, uint32_t n)
{
    const struct gd_row_table *t = &w->l->table;
    struct gd_table_hits h = {0};
    GQ_LANE_VAR(uint32_t, is);
    uint32_t left, copied;

    GQ_FOR_LANES(lane)
    {
        if (lane < n && t->places[first + lane] == 0) {
            GQ_AT(h.looks) = 1;
            GQ_AT(h.offset) =
                gd_table_offset(t, (uint64_t)gd_table_id(w->l, first + lane), &GQ_AT(h.file));
        }
    }
    while ((left = GQ_BALLOT(h.looks)) != 0)
        gd_table_hit_file(w, &h, first, GQ_FROM32(h.file, gq_take_one(&left)));
    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = GQ_AT(h.at) == t->row_bytes;
        if (GQ_AT(is))
            t->places[first + lane] = GD_TABLE_COPIED;
    }
    copied = GQ_BALLOT(is);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && copied)
            gq_atomic_add(&t->words->copied, gq_count_ones(copied));
    }
}

/* --- Lines of ranges that were read ---------------------------------------------------------- */

/*
 * Inserts the lines that a piece contains as a whole. The last line of a file
 * may be shorter than other lines.
 */
GQ_FN void gd_table_keep_piece(const struct gd_cache_reader *w, uint64_t staging,
                               const struct gq_read_desc *piece)
{
    const struct gq_read_desc p = *piece;
    uint64_t end = p.file_offset + (p.result > 0 ? (uint64_t)p.result : 0);
    uint32_t shift = w->cache->line_shift, kept = 0, lines = 0;

    for (uint64_t k = p.file_offset >> shift; k << shift < end; k++) {
        uint64_t at = k << shift;

        if (at + gd_cache_line_bytes(w, k) > end)
            break;
        kept += gd_cache_insert(w, k, staging + p.at + (at - p.file_offset));
        lines++;
    }
    gd_cache_count(w, &w->cache->counts->misses, kept);
    gd_cache_count(w, &w->cache->counts->bypasses, lines - kept);
}

/*
 * Begins to keep lines of one file. Returns false if none may be kept, because
 * the leases have ended, the cache has a newer generation than the gather, or a
 * lost command may still write to the staging.
 */
GQ_FN bool gd_table_begin_keeping(const struct gd_table_worker *w, struct gd_cache_reader *reader,
                                  uint32_t file)
{
    const struct gd_table_cache *c = &w->l->table.caches[file];

    return c->cache && gd_cache_begin(reader, w->group, c->cache) == 0 && reader->generation &&
           reader->generation == GQ_SAME64(c->generation) << GD_CACHE_GENERATION_SHIFT &&
           !gd_cache_is_in_reach(reader, -EIO);
}

/*
 * Inserts lines of the ranges in `of`, which has one bit for each lane. All
 * these ranges were read in this turn.
 */
GQ_FN void gd_table_keep(const struct gd_table_worker *w, uint32_t first, uint32_t of)
{
    const struct gd_row_table *t = &w->l->table;
    GQ_LANE_VAR(uint32_t, file);
    GQ_LANE_VAR(uint32_t, piece);
    GQ_LANE_VAR(uint32_t, is);

    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u) {
            const struct gd_table_slot *s = &t->slots[t->places[first + lane] & ~GD_TABLE_CLAIMED];

            GQ_AT(file) = gd_table_file(s->key);
            GQ_AT(piece) = s->piece;
        }
    }
    while (of) {
        uint32_t rest = of, number = GQ_FROM32(file, gq_take_one(&rest)), same;
        struct gd_cache_reader reader = {0};
        bool keeps = gd_table_begin_keeping(w, &reader, number);

        GQ_FOR_LANES(lane)
        {
            GQ_AT(is) = (of >> lane & 1u) && GQ_AT(file) == number;
        }
        same = GQ_BALLOT(is);
        of &= ~same;
        while (same && keeps)
            gd_table_keep_piece(&reader, t->staging,
                                &t->pieces[GQ_FROM32(piece, gq_take_one(&same))]);
    }
}

#endif
