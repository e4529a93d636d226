/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the chunk map and finds the chunks that it does not have.
 *
 * A chunk may be where a sound block of the map says, where a slot of a damaged
 * one says, or where a search finds its blocks: each names its own address. Of
 * several places for a chunk, and of several chunks at a place, the one with the
 * newest block of that address wins.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

#define MAP_PLACED 1u
#define MAP_KNOWN  2u
#define MAP_COPIED 4u /* the chunk has two places */

/* Describes a place where a chunk may be. */
struct fsck_chunk {
    uint64_t number, place; /* place: its first block */
    uint64_t tid;           /* the newest of its blocks there */
    uint32_t score;         /* blocks there that bear its addresses */
    bool mapped;            /* a sound block of the map says so */
    bool second;            /* a block of the map names it as the copy */
    bool empty;             /* found by a search, and no block of it is in use */
    bool won;               /* chosen as the place of the chunk, or of the copy */
};

/* Holds the state of the reconstruction of the map. */
struct chunk_map {
    struct fsck *f;
    struct fsck_list chunks; /* struct fsck_chunk: places where chunks may be */
    struct fsck_list blocks; /* uint64_t: blocks of the map to be written */
    uint8_t *taken;          /* per chunk: it has a place (MAP_PLACED), or is not sought */
    uint64_t found;          /* chunks that have a place */
    uint64_t empty;          /* chunks that were found without a block in use, and have none */
    uint64_t doubtful;       /* chunks of the map without a block at their place */
    uint64_t dropped;        /* chunks of the map that are lost */
};

/* Returns how many chunks the map can have. */
static uint64_t map_limit(const struct fsck *f)
{
    return lay_segments(&f->img.geo) >> f->img.geo.chunk_shift;
}

/* Returns true if the block is sealed for this address. */
static bool map_bears_address(const struct fsck *f, const union lay_block *b, uint64_t addr)
{
    return lay_get64(b->head.block) == addr &&
           lay_check_head(b, lay_get32(b->head.magic), f->img.geo.uuid, addr, LAY_ANY_OWNER,
                          NULL) == 0;
}

/* Fills a place from that of one segment. Returns false if no chunk can be there. */
static bool map_chunk_at(const struct fsck *f, uint64_t segment, uint64_t block,
                         struct fsck_chunk *out)
{
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t before = segment % lay_chunk_segments(geo) * LAY_SEGMENT_BLOCKS;

    *out = (struct fsck_chunk){.number = segment >> geo->chunk_shift, .place = block - before};
    return segment < lay_segments(geo) && block % LAY_SEGMENT_BLOCKS == 0 && block >= before &&
           lay_range_ok(geo, out->place, fsck_chunk_blocks(f));
}

/* --- Places of chunks ------------------------------------------------------------------------- */

/* Counts the block if its head states the address of its position in the chunk. */
static int map_weigh_block(struct fsck *f, struct fsck_chunk *c, uint64_t at)
{
    uint64_t first = c->number << f->img.geo.chunk_shift;
    union lay_block b;
    int err = image_read_raw(&f->img, c->place + at, &b);

    if (err)
        return err == -EIO ? 0 : err;
    if (map_bears_address(f, &b, LAY_ADDR_CHUNK(first, at))) {
        c->score++;
        c->tid = lay_get64(b.head.tid) > c->tid ? lay_get64(b.head.tid) : c->tid;
    }
    return 0;
}

/*
 * Counts the blocks of entries that the chunk has at the place, or all its
 * blocks if no block of entries is found. The blocks of a chunk that was mapped
 * just before a crash may be only in the log.
 */
static int map_weigh(struct fsck *f, struct fsck_chunk *c)
{
    uint64_t len = fsck_chunk_blocks(f), first = c->number << f->img.geo.chunk_shift;
    int err = 0;

    for (uint64_t at = 0; at < len && !err; at += LAY_SEGMENT_BLOCKS)
        err = map_weigh_block(f, c, at);
    for (uint64_t at = 0; at < len && !err && c->score == 0; at++)
        err = map_weigh_block(f, c, at);
    const struct image_patch *image = image_find_patch(&f->img, LAY_ADDR_CHUNK(first, 0));
    if (!err && c->score == 0 && image) {
        c->score = 1;
        c->tid = image->tid;
    }
    return err;
}

/*
 * Adds a place of a chunk from one of its slots. The slots of a chunk must be
 * added in order.
 */
static int map_add_place(struct chunk_map *m, uint64_t segment, uint64_t block, bool second,
                         bool mapped)
{
    struct fsck_chunk c, *known = m->chunks.items;

    if (!map_chunk_at(m->f, segment, block, &c))
        return 0;
    c.mapped = mapped;
    c.second = second;
    for (size_t i = m->chunks.count; i-- > 0 && known[i].number == c.number;) {
        if (known[i].place == c.place)
            return 0;
    }
    int err = map_weigh(m->f, &c);
    /* A slot of a damaged map block counts only if a block of the chunk confirms it. */
    if (err || (!mapped && (c.score == 0 || !fsck_in_use(m->f, c.place, fsck_chunk_blocks(m->f)))))
        return err;
    return fsck_append(&m->chunks, &c, sizeof(c));
}

/*
 * Adds the places in a slot. Without copies the slot's second place is not
 * valid.
 */
static int map_add_slot(struct chunk_map *m, const struct image_segment *s, bool mapped)
{
    int err = map_add_place(m, s->segment, s->block, false, mapped);

    return err || !lay_has_copies(&m->f->img.geo)
               ? err
               : map_add_place(m, s->segment, s->copy, true, mapped);
}

/* Adds what a damaged block of the map says. */
static int map_add_damaged(struct chunk_map *m, uint64_t index)
{
    struct image *img = &m->f->img;
    union lay_block b;
    int err = image_read(img, LAY_ADDR(LAY_KIND_MAP, index), &b);
    bool sealed =
        img->age != IMAGE_AGE_STALE && lay_check_head(&b, LAY_MAGIC_MAP, img->geo.uuid,
                                                      LAY_ADDR(LAY_KIND_MAP, index), 0, NULL) == 0;

    for (unsigned i = 0; i < LAY_MAP_SLOTS && !err; i++) {
        const struct lay_slot *slot = &b.map.slots[i];
        const struct image_segment s = {index * LAY_MAP_SLOTS + i, lay_get64(slot->places[0]),
                                        lay_get64(slot->places[1])};
        err = map_add_slot(m, &s, sealed);
    }
    return err;
}

/* Adds what the map says. */
static int find_chunks_collect(struct chunk_map *m)
{
    struct image *img = &m->f->img;
    int err = 0;

    for (size_t i = 0; i < img->segment_count && !err; i++)
        err = map_add_slot(m, &img->segments[i], true);
    for (size_t i = 0; i < img->bad_map_count && !err; i++)
        err = map_add_damaged(m, img->bad_maps[i].index);
    return err;
}

/* --- Search ----------------------------------------------------------------------------------- */

/*
 * Searches the device for chunks that the map lacks. A segment is where blocks
 * bear its addresses, in space that is in use and that no known chunk has.
 */
struct chunk_scan {
    struct chunk_map *m;
    struct fsck *f;
    union lay_block *blocks; /* of the segment */
    bool deep;
};

/* Describes what was found in a segment. */
struct scan_segment {
    uint64_t number, tid;
    uint32_t score; /* blocks that bear its addresses, entries aside */
    uint32_t used;  /* blocks that the entries mark as in use, or 0 */
};

/* Reads a segment; blocks that cannot be read are zero. */
static int scan_read(struct chunk_scan *s, uint64_t block)
{
    size_t len = LAY_SEGMENT_BLOCKS << LAY_BLOCK_SHIFT;
    int err = bd_read(s->f->img.dev, block << LAY_BLOCK_SHIFT, s->blocks, len);

    if (err != -EIO)
        return err;
    memset(s->blocks, 0, len);
    for (uint64_t i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        err = image_read_raw(&s->f->img, block + i, &s->blocks[i]);
        if (err && err != -EIO)
            return err;
    }
    return 0;
}

/*
 * Finds the segment from the first block whose stated address fits its
 * position.
 */
static bool scan_identify(const struct chunk_scan *s, uint64_t *segment)
{
    for (uint32_t i = 0; i < (s->deep ? LAY_SEGMENT_BLOCKS : 1); i++) {
        uint64_t addr = lay_get64(s->blocks[i].head.block);
        if (lay_addr_kind(addr) != LAY_KIND_CHUNK || lay_addr_index(addr) != i ||
            !map_bears_address(s->f, &s->blocks[i], addr))
            continue;
        *segment = lay_addr_segment(addr);
        return true;
    }
    return false;
}

/* Counts the blocks of the segment that were read. */
static void scan_count(const struct chunk_scan *s, struct scan_segment *found)
{
    const struct lay_entries *entries = &s->blocks[0].entries;
    bool sound = lay_check_entries(&s->f->img.geo, entries, found->number, NULL) == 0;

    for (uint32_t i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        bool used = sound && i > 0 && entries->used[i / 8] >> i % 8 & 1;
        uint64_t tid = lay_get64(s->blocks[i].head.tid);
        found->used += used;
        if (!map_bears_address(s->f, &s->blocks[i], LAY_ADDR_CHUNK(found->number, i)))
            continue;
        found->score += i > 0 && (used || !sound);
        found->tid = tid > found->tid ? tid : found->tid;
    }
}

/* Adds what was found to the chunk's place. */
static int scan_add(struct chunk_scan *s, const struct fsck_chunk *place,
                    const struct scan_segment *found)
{
    bool used =
        found->score > 0 || image_find_patch(&s->f->img, LAY_ADDR_CHUNK(found->number, 0)) != NULL;
    struct fsck_chunk *c = s->m->chunks.items;
    size_t i = 0;

    while (i < s->m->chunks.count && (c[i].number != place->number || c[i].place != place->place))
        i++;
    bool known = i < s->m->chunks.count;
    struct fsck_chunk *to = known ? &c[i] : fsck_grow(&s->m->chunks, sizeof(*to));
    if (!to)
        return -ENOMEM;
    if (!known) {
        *to = *place;
        to->empty = true;
    }
    to->empty = to->empty && !used;
    to->score += 1 + found->score;
    to->tid = found->tid > to->tid ? found->tid : to->tid;
    return 0;
}

/* Takes the segment at a place. Old blocks in space that data has taken are too few. */
static int scan_segment(struct chunk_scan *s, uint64_t block)
{
    struct scan_segment found = {0};
    struct fsck_chunk place;
    int err = s->deep ? scan_read(s, block) : image_read_raw(&s->f->img, block, s->blocks);

    if (err)
        return err == -EIO ? 0 : err;
    if (!scan_identify(s, &found.number) || !map_chunk_at(s->f, found.number, block, &place) ||
        s->m->taken[place.number])
        return 0;
    err = s->deep ? 0 : scan_read(s, block);
    if (err)
        return err;
    scan_count(s, &found);
    return found.score * 2 >= found.used ? scan_add(s, &place, &found) : 0;
}

/*
 * Returns true if a bitmap that is sound has a free block in the segment. A
 * segment is in one group.
 */
static bool scan_is_free(struct fsck *f, uint64_t block)
{
    const struct lay_bitmap *bm = fsck_bitmap_of(f, block);
    uint8_t used[LAY_SEGMENT_BLOCKS / 8];

    memset(used, 0xff, sizeof(used));
    return bm && memcmp(bm->bits + block % LAY_GROUP_BLOCKS / 8, used, sizeof(used)) != 0;
}

/*
 * Adds the places of chunks that are not taken, where the entries of a segment
 * are, or with `deep` any of its blocks.
 */
static int scan_chunks(struct chunk_map *m, bool deep)
{
    struct fsck *f = m->f;
    struct chunk_scan s = {.m = m, .f = f, .deep = deep};
    uint64_t end = f->img.geo.blocks / LAY_SEGMENT_BLOCKS;
    int err = 0;

    s.blocks = aligned_alloc(LAY_BLOCK_SIZE, LAY_SEGMENT_BLOCKS << LAY_BLOCK_SHIFT);
    if (!s.blocks)
        return -ENOMEM;
    for (uint64_t i = 0; i < end && !err; i++) {
        uint64_t block = i * LAY_SEGMENT_BLOCKS;
        if (!scan_is_free(f, block) && !fsck_any_claimed(f, block, LAY_SEGMENT_BLOCKS))
            err = scan_segment(&s, block);
        fsck_progress(f, "chunks", i + 1, end);
    }
    free(s.blocks);
    return err;
}

/* --- Decision --------------------------------------------------------------------------------- */

static int map_by_merit(const void *a, const void *b)
{
    const struct fsck_chunk *p = a, *q = b;

    if ((p->score > 0) != (q->score > 0))
        return p->score > 0 ? -1 : 1;
    if (p->tid != q->tid)
        return p->tid > q->tid ? -1 : 1;
    if (p->score != q->score)
        return p->score > q->score ? -1 : 1;
    if (p->mapped != q->mapped)
        return p->mapped ? -1 : 1;
    if (p->number != q->number)
        return p->number < q->number ? -1 : 1;
    return p->place < q->place ? -1 : p->place > q->place;
}

static int map_by_number(const void *a, const void *b)
{
    const struct fsck_chunk *p = a, *q = b;

    if (p->won != q->won)
        return p->won ? -1 : 1;
    if (p->number != q->number)
        return p->number < q->number ? -1 : 1;
    if (p->second != q->second)
        return p->second ? 1 : -1;
    return p->place < q->place ? -1 : p->place > q->place;
}

/*
 * Returns true if the place can be the second one of its chunk: the map says
 * so, or it is as new as the first one.
 */
static bool map_is_copy(const struct chunk_map *m, const struct fsck_chunk *c)
{
    const struct fsck_chunk *first = c;

    if (!lay_has_copies(&m->f->img.geo) || m->taken[c->number] != MAP_PLACED)
        return false;
    /*
     * The first place was chosen before, and is near, since equal places come in
     * the order of their chunks.
     */
    do {
        first--;
    } while (!first->won || first->number != c->number);
    return c->mapped ? first->mapped : c->tid == first->tid;
}

/* Gives the chunk its place and claims it, unless chunk or place have been taken. */
static void map_take(struct chunk_map *m, struct fsck_chunk *c)
{
    uint64_t len = fsck_chunk_blocks(m->f);
    bool first = !m->taken[c->number];

    c->won = false;
    c->won = (first || map_is_copy(m, c)) && !c->empty && !fsck_any_claimed(m->f, c->place, len);
    if (!c->won)
        return;
    fsck_claim_fixed(m->f, c->place, len);
    m->taken[c->number] |= first ? MAP_PLACED : MAP_COPIED;
    m->found += first;
}

/*
 * Counts chunks that nothing is in. They get no place, since what a search finds
 * of them may be left from a chunk that was unmapped.
 */
static void map_count_empty(struct chunk_map *m)
{
    const struct fsck_chunk *c = m->chunks.items;

    for (size_t i = 0; i < m->chunks.count; i++) {
        m->empty += c[i].empty && !m->taken[c[i].number];
        if (c[i].empty)
            m->taken[c[i].number] |= MAP_KNOWN;
    }
}

/*
 * Decides which chunk is where. Places without a block of the chunk count only
 * with `all`: others may be found, or a search may find other chunks there.
 */
static int map_decide(struct chunk_map *m, bool all)
{
    struct fsck_chunk *c = m->chunks.items;
    int err = fsck_claim_areas(m->f);

    free(m->taken);
    m->taken = calloc(map_limit(m->f) + 1, 1);
    if (err || !m->taken)
        return -ENOMEM;
    m->found = m->empty = m->doubtful = 0;
    if (m->chunks.count > 1)
        qsort(c, m->chunks.count, sizeof(*c), map_by_merit);
    for (size_t i = 0; i < m->chunks.count; i++)
        c[i].won = false;
    for (size_t i = 0; i < m->chunks.count && (all || c[i].score > 0); i++)
        map_take(m, &c[i]);
    map_count_empty(m);
    return m->f->no_memory ? -ENOMEM : 0;
}

/* Counts the chunks that only the map has, which a deep search does not seek. */
static void map_trust(struct chunk_map *m)
{
    const struct fsck_chunk *c = m->chunks.items;

    for (size_t i = 0; i < m->chunks.count; i++) {
        m->doubtful += c[i].mapped && !m->taken[c[i].number];
        if (c[i].mapped)
            m->taken[c[i].number] |= MAP_KNOWN;
    }
}

/* Decides, after a search if chunks are missing. */
static int map_find(struct chunk_map *m)
{
    uint64_t stated = lay_get64(m->f->sb.chunks);
    int err = map_decide(m, false);

    for (unsigned deep = 0; deep < 2 && !err && m->found + m->empty + m->doubtful < stated;
         deep++) {
        err = scan_chunks(m, deep);
        if (!err)
            err = map_decide(m, false);
        map_trust(m);
    }
    return err ? err : map_decide(m, true);
}

/* --- Repair ----------------------------------------------------------------------------------- */

/* Notes that the block with the segment's slot is to be written. */
static int map_note_block(struct chunk_map *m, uint64_t index)
{
    return fsck_has(&m->blocks, index) ? 0 : fsck_append(&m->blocks, &index, sizeof(index));
}

static void map_report_chunk(struct chunk_map *m, uint64_t number, bool placed)
{
    bool lost = !placed && m->found + m->empty < lay_get64(m->f->sb.chunks);

    m->dropped += lost;
    fsck_must(m->f, fsck_report(m->f, lost ? PROBLEM_CHUNK_LOST : PROBLEM_MAP_SLOT, NULL,
                                "chunk %" PRIu64, number));
}

/*
 * Returns the place that is i segments behind a chunk's place, or LAY_NONE if
 * that is LAY_NONE.
 */
static uint64_t map_place_behind(uint64_t place, uint64_t i)
{
    return place == LAY_NONE ? LAY_NONE : place + i * LAY_SEGMENT_BLOCKS;
}

/*
 * Compares a chunk of the map on the device with its new places, which are
 * LAY_NONE if it has none.
 */
static int map_compare(struct chunk_map *m, uint64_t number, uint64_t place, uint64_t copy)
{
    struct image *img = &m->f->img;
    uint64_t segments = lay_chunk_segments(&img->geo), first = number * segments;
    bool differs = false, bad = false;
    int err = 0;

    for (uint64_t i = 0; i < segments && !err; i++) {
        struct image_segment was = image_find_segment(img, first + i);
        if (was.block == map_place_behind(place, i) && was.copy == map_place_behind(copy, i))
            continue;
        differs = true;
        bad |= image_map_is_bad(img, first + i);
        err = map_note_block(m, (first + i) / LAY_MAP_SLOTS);
    }
    if (differs && !bad)
        map_report_chunk(m, number, place != LAY_NONE);
    return err;
}

/*
 * Returns the copy of chunk *i, and sets *i to the last place of the chunk. The
 * places of a chunk are adjacent in the list.
 */
static uint64_t map_copy_of(const struct chunk_map *m, size_t *i)
{
    const struct fsck_chunk *c = m->chunks.items;
    size_t next = *i + 1;

    if (next >= m->chunks.count || !c[next].won || c[next].number != c[*i].number)
        return LAY_NONE;
    *i = next;
    return c[next].place;
}

/* Compares all chunks; those that have a place come first, in order. */
static int map_compare_all(struct chunk_map *m)
{
    const struct fsck_chunk *c = m->chunks.items;
    uint64_t last = LAY_NONE;
    int err = 0;

    if (m->chunks.count > 1)
        qsort(m->chunks.items, m->chunks.count, sizeof(*c), map_by_number);
    for (size_t i = 0; i < m->chunks.count && !err; i++) {
        uint64_t number = c[i].number, place = c[i].place;
        if (c[i].won)
            err = map_compare(m, number, place, map_copy_of(m, &i));
        else if (!(m->taken[number] & MAP_PLACED) && c[i].mapped && number != last)
            err = map_compare(m, last = number, LAY_NONE, LAY_NONE);
    }
    return err;
}

/* Makes the decision the map in memory. */
static int map_apply(struct chunk_map *m)
{
    const struct fsck_chunk *c = m->chunks.items;
    struct image *img = &m->f->img;
    int err = 0;

    image_drop_map(img);
    for (size_t i = 0; i < m->chunks.count && c[i].won && !err; i++) {
        uint64_t first = c[i].number << img->geo.chunk_shift, place = c[i].place;
        uint64_t copy = map_copy_of(m, &i);
        for (uint64_t s = 0; s < lay_chunk_segments(&img->geo) && !err; s++)
            err = image_set_segment(img, first + s, map_place_behind(place, s),
                                    map_place_behind(copy, s));
    }
    image_forget_names(img);
    return err;
}

static void map_check_count(struct chunk_map *m)
{
    struct fsck *f = m->f;
    uint64_t stated = lay_get64(f->sb.chunks), left = stated - m->dropped;
    bool yes = m->dropped > 0;
    char detail[80];

    snprintf(detail, sizeof(detail), "is %" PRIu64 ", found %" PRIu64, stated, m->found);
    if (m->found + m->empty < left)
        fsck_must(f, yes = fsck_report(f, PROBLEM_CHUNK_LOST, detail, "chunks"));
    else if (m->found != left)
        yes = fsck_report(f, PROBLEM_SUPER_CHUNKS, detail, "superblock");
    if (yes && f->mode != FSCK_CHECK)
        f->sb.chunks = lay_put64(m->found ? m->found : 1);
}

/* Reports what is wrong, and puts the blocks of the map that have to change. */
static int map_repair(struct chunk_map *m)
{
    struct fsck *f = m->f;
    uint64_t left = f->left;
    int err = 0;

    for (size_t i = 0; i < f->img.bad_map_count && !err; i++) {
        const struct image_bad_map *bad = &f->img.bad_maps[i];
        fsck_must(f, fsck_report(f, PROBLEM_MAP_BLOCK, bad->why, "block %" PRIu64 " of the map",
                                 bad->index));
        err = map_note_block(m, bad->index);
    }
    if (!err)
        err = map_compare_all(m);
    map_check_count(m);
    if (!err)
        err = map_apply(m);
    const uint64_t *blocks = m->blocks.items;
    /*
     * Unless the user agreed to all repairs of the map, only the other checks
     * use the result.
     */
    for (size_t i = 0; i < m->blocks.count && f->left == left && !err; i++)
        err = fsck_put_map_block(f, blocks[i]);
    return err;
}

int fsck_load_map(struct fsck *f)
{
    struct chunk_map m = {.f = f};
    int err = f->round == 1 ? replay_map(&f->img, UINT64_MAX) : image_read_map(&f->img, UINT64_MAX);

    if (!err)
        err = find_chunks_collect(&m);
    if (!err)
        err = map_find(&m);
    if (!err)
        err = map_repair(&m);
    if (!err)
        replay_drop_unmapped(&f->img);
    free(m.chunks.items);
    free(m.blocks.items);
    free(m.taken);
    return err;
}
