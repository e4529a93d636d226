/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps changed blocks and writes them to the device. */
#include "mkfs/fsck/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/ffs.h"
#include "support/minmax.h"

#define BUCKETS    1024u
#define MAX_BLOCKS 1024u /* of one transaction: 4 MiB */
#define COPIED     64u   /* blocks copied or created at once */
/* A transaction that has only the superblock takes so many log blocks. */
#define SUPER_BLOCKS 3u
/* A block and those that name it: entries, levels, but not the superblock. */
#define CHAIN (1u + 1u + LAY_MAX_LEVELS)

struct entry {
    struct entry *next; /* next entry of the bucket */
    uint64_t addr;
    union lay_block b;
};

/* Describes an image of the log whose age is missing in the block that names it. */
struct placed {
    uint64_t addr;
    uint32_t age;
};

struct store {
    struct entry *buckets[BUCKETS];
    struct fsck_list order;  /* struct entry *: in the order in which they were put */
    struct fsck_list placed; /* struct placed, of a checkpoint */
    size_t room;             /* blocks per transaction, excluding the superblock */
    uint64_t tid, pos;       /* next transaction and its position in the log */
    bool in_place;           /* the log is damaged: write without it */
    uint64_t skipped; /* bad blocks that are passed over, so that the log begins behind them */
    bool begun;       /* the incarnation is made, and the log's images are in place */
    /* Holds the newest superblock in place. */
    union lay_block super;
};

static struct entry **store_find(struct store *s, uint64_t addr)
{
    struct entry **p = &s->buckets[addr % BUCKETS];

    while (*p && (*p)->addr != addr)
        p = &(*p)->next;
    return p;
}

static bool changed(void *arg, uint64_t addr, union lay_block *out)
{
    const struct entry *e = *store_find(arg, addr);

    if (e)
        *out = e->b;
    return e != NULL;
}

int store_init(struct fsck *f)
{
    struct store *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    f->store = s;
    f->img.changed = changed;
    f->img.changed_arg = s;
    return 0;
}

static struct entry *store_entry(const struct store *s, size_t i)
{
    return ((struct entry **)s->order.items)[i];
}

static void store_forget(struct store *s)
{
    for (size_t i = 0; i < s->order.count; i++)
        free(store_entry(s, i));
    memset(s->buckets, 0, sizeof(s->buckets));
    s->order.count = s->placed.count = 0;
}

static void store_free(struct store *s)
{
    store_forget(s);
    free(s->order.items);
    free(s->placed.items);
    free(s);
}

void store_destroy(struct fsck *f)
{
    if (!f->store)
        return;
    store_free(f->store);
    f->store = NULL;
    f->img.changed = NULL;
}

void store_start_at(struct fsck *f, uint64_t tid, uint64_t pos, bool in_place)
{
    struct store *s = f->store;
    /*
     * The transaction before stays until this one counts, and descriptors, the
     * superblock's image and the commits take a part of the log.
     */
    uint64_t log = f->img.geo.log_blocks / 2;
    uint64_t images = log - log / LAY_LOG_TAGS - 5;

    s->room = images < MAX_BLOCKS ? images : MAX_BLOCKS - 1;
    s->tid = tid;
    s->pos = pos;
    s->in_place = in_place;
    s->super.super = f->recovered;
}

/* --- Writing ---------------------------------------------------------------------------------- */

static int write_block(struct fsck *f, uint64_t block, const void *b, uint32_t flags)
{
    f->repaired++;
    return bd_write(f->img.dev, block << LAY_BLOCK_SHIFT, b, LAY_BLOCK_SIZE, flags);
}

/* Reads a block back, and writes it once more if the device has another one. */
static int verify_block(struct fsck *f, uint64_t block, const union lay_block *b)
{
    union lay_block back;

    for (unsigned tries = 0; tries < 2; tries++) {
        int err = image_read_raw(&f->img, block, &back);
        if (!err && memcmp(&back, b, sizeof(back)) == 0)
            return 0;
        if (err && err != -EIO)
            return err;
        err = tries == 0 ? write_block(f, block, b, BD_FUA) : -EIO;
        if (err)
            return err;
    }
    return -EIO;
}

/* Handles one block of the device with the contents that it has or gets. */
typedef int (*store_block_fn)(struct fsck *f, uint64_t block, const union lay_block *b);

static int put_block(struct fsck *f, uint64_t block, const union lay_block *b)
{
    return write_block(f, block, b, 0);
}

bool store_place_is_bad(const struct fsck *f, uint64_t place)
{
    return fsck_has(&f->bad_places, place);
}

/*
 * Tries again to write a place of a block whose other place has the block. If
 * that fails, too, reports the place, and the repair goes on without it.
 */
static int store_try_place(struct fsck *f, uint64_t place, const union lay_block *b)
{
    int err = verify_block(f, place, b);

    if (err != -EIO)
        return err;
    if (fsck_append(&f->bad_places, &place, sizeof(place)) != 0)
        return -ENOMEM;
    fsck_report(f, PROBLEM_PLACE, NULL, "block %" PRIu64, place);
    return 0;
}

/*
 * Calls fn for each place of an address. One of two places may fail, which is
 * not used then.
 */
static int each_place(struct fsck *f, uint64_t addr, const union lay_block *b, store_block_fn fn)
{
    uint64_t places[2], failed = LAY_NONE;
    unsigned n = image_places(&f->img, addr, places), right = 0;

    for (unsigned i = 0; i < n; i++) {
        int err = store_place_is_bad(f, places[i]) ? 0 : fn(f, places[i], b);
        if (err && err != -EIO)
            return err;
        failed = err ? places[i] : failed;
        right += err == 0 && !store_place_is_bad(f, places[i]);
    }
    if (n > 0 && right == 0)
        return -EIO;
    return failed == LAY_NONE ? 0 : store_try_place(f, failed, b);
}

/* --- Putting ---------------------------------------------------------------------------------- */

static int fsck_store_put(struct fsck *f, uint64_t addr, union lay_block *b)
{
    struct store *s = f->store;
    struct entry **p = store_find(s, addr);

    if (lay_addr_kind(addr) == LAY_KIND_BITMAP)
        f->bitmap_group = UINT64_MAX;
    b->head.block = lay_put64(addr);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, s->tid);
    if (!*p) {
        struct entry **item = fsck_grow(&s->order, sizeof(*item));
        struct entry *e = item ? calloc(1, sizeof(*e)) : NULL;
        if (!e) {
            s->order.count -= item != NULL;
            return -ENOMEM;
        }
        e->addr = addr;
        *item = *p = e;
    }
    (*p)->b = *b;
    return 0;
}

/* --- Ages ------------------------------------------------------------------------------------- */

/*
 * Adds the blocks that name a block to the store, level by level up to the
 * superblock. Ends at a damaged or stale block, which gets all its ages when it
 * is rebuilt.
 */
static int store_put_names(struct fsck *f, uint64_t addr)
{
    unsigned index;
    union lay_block b;
    bool sound, changed;

    for (;;) {
        addr = lay_name_of(&f->img.geo, addr, &index);
        if (addr == LAY_NONE || addr == LAY_ADDR_SUPER || *store_find(f->store, addr))
            return 0;
        int err = image_read_name(&f->img, addr, &b, &sound);
        if (!err && sound)
            err = fsck_refresh_ages(f, addr, &b, &changed);
        if (!err && sound)
            err = fsck_store_put(f, addr, &b);
        if (err || !sound)
            return err;
    }
}

/* Returns true if entries may have an age for the block: it is in use, or is from now on. */
static bool store_use(struct lay_entries *entries, unsigned index, bool use)
{
    uint8_t bit = (uint8_t)(1u << index % 8);

    if (entries->used[index / 8] & bit)
        return true;
    if (use) {
        entries->free = lay_put32(lay_get32(entries->free) - 1);
        entries->used[index / 8] |= bit;
    }
    return use;
}

/*
 * Enters the age of a block in the block that names it, if that is to be
 * written. With `use` entries have the block as used then.
 */
static void store_enter_age(struct fsck *f, uint64_t addr, uint32_t age, bool use)
{
    unsigned index;
    uint64_t above = lay_name_of(&f->img.geo, addr, &index);

    if (above == LAY_NONE)
        return;
    if (above == LAY_ADDR_SUPER) {
        lay_set_named_age(&f->sb, addr, index, age);
        lay_set_named_age(&f->img.super, addr, index, age);
        return;
    }
    struct entry *e = *store_find(f->store, above);
    if (!e || (lay_addr_kind(above) == LAY_KIND_CHUNK && !store_use(&e->b.entries, index, use)))
        return;
    lay_set_named_age(&e->b, addr, index, age);
    lay_seal(&e->b, f->store->tid);
}

/*
 * Computes the ages of everything that is written, from the lowest blocks to
 * the superblock, and seals each block when it is complete.
 */
static void store_enter_ages(struct fsck *f)
{
    struct store *s = f->store;

    for (unsigned rank = 0; rank < LAY_RANK_SUPER; rank++) {
        for (size_t i = 0; i < s->order.count; i++) {
            struct entry *e = store_entry(s, i);
            if (lay_rank(e->addr) != rank)
                continue;
            lay_seal(&e->b, s->tid);
            store_enter_age(f, e->addr, lay_age(&e->b), true);
        }
    }
}

/* --- Images of the log ------------------------------------------------------------------------ */

static int each_patch(struct fsck *f, store_block_fn fn)
{
    union lay_block b;
    int err = 0;

    for (size_t i = 0; i < f->img.patch_count && !err; i++) {
        const struct image_patch *p = &f->img.patches[i];
        err = image_read_patch(&f->img, p, &b);
        if (!err)
            err = each_place(f, p->addr, &b, fn);
    }
    return err;
}

/* Copies the log's images to their places; from then on they are read there. */
static int write_patches(struct fsck *f)
{
    int err = each_patch(f, put_block);

    if (!err)
        err = bd_flush(f->img.dev);
    if (!err)
        err = each_patch(f, verify_block);
    if (!err)
        image_drop_patches(&f->img);
    return err;
}

/* Writes the places of the superblock that differ from the one that counts. */
static int store_heal_supers(struct fsck *f)
{
    return each_place(f, LAY_ADDR_SUPER, &f->store->super, verify_block);
}

/*
 * Writes the contents of a block's other place to one place, without pending
 * changes of the store, which are written later.
 */
static int heal_copy(struct fsck *f, const struct fsck_copy *c)
{
    union lay_block b;
    int err = image_read(&f->img, c->addr, &b);
    bool sound = !err && !f->img.unreadable &&
                 (f->img.age == IMAGE_AGE_RIGHT || f->img.age == IMAGE_AGE_UNKNOWN);

    return sound ? store_try_place(f, c->place, &b) : err;
}

/*
 * Writes the places that were found to differ from the other place of their
 * block. The contents of the block do not change, so no transaction is needed.
 */
static int heal_copies(struct fsck *f)
{
    struct fsck_copy *c = f->copies.items;
    struct image *img = &f->img;
    bool (*was_changed)(void *, uint64_t, union lay_block *) = img->changed;
    int (*was_differs)(void *, uint64_t, uint64_t) = img->differs;
    int err = 0;

    img->changed = NULL;
    img->differs = NULL;
    image_forget_names(img);
    for (size_t i = 0; i < f->copies.count && !err; i++) {
        if (c[i].heal)
            err = heal_copy(f, &c[i]);
        c[i].heal = c[i].heal && err;
    }
    img->changed = was_changed;
    img->differs = was_differs;
    image_forget_names(img);
    return err;
}

/*
 * Writes labels with a new incarnation and the log's present id. It is later
 * than that of every commit, even if the label of one was lost.
 */
static int new_incarnation(struct fsck *f)
{
    struct lay_label next = *lay_labels_newest(&f->labels);
    uint64_t counter = lay_get64(next.incarnation.counter);
    struct lay_io io = ffs_io(f->img.dev);

    next.incarnation.counter = lay_put64(max_u64(counter, f->log.reader.newest.counter));
    next.log_id = lay_put64(f->img.geo.log_id);
    lay_label_next(&next, ffs_random());
    f->repaired++;
    return lay_labels_write(&io, &f->labels, &next);
}

static int put_commit(struct fsck *f, uint64_t block, const union lay_block *b)
{
    return write_block(f, block, b, BD_FUA);
}

/*
 * Writes the commit of the next transaction and reads it back. Its other
 * records are durable.
 */
static int store_write_commit(struct fsck *f, uint32_t blocks, uint32_t chain, uint64_t tail_tid,
                              uint64_t tail_pos)
{
    struct store *s = f->store;
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t addr = LAY_ADDR(LAY_KIND_LOG, s->pos);
    union lay_block c;

    lay_log_init(&c, LAY_MAGIC_JCOMMIT, geo, &lay_labels_newest(&f->labels)->incarnation, s->pos);
    c.commit.blocks = lay_put32(blocks);
    c.commit.crc = lay_put32(chain);
    c.commit.tail_tid = lay_put64(tail_tid);
    c.commit.tail_pos = lay_put64(tail_pos);
    c.commit.super_age = lay_put32(lay_age(&s->super));
    c.commit.time = f->sb.mounted;
    lay_seal(&c, s->tid);
    int err = each_place(f, addr, &c, put_commit);
    if (!err)
        err = each_place(f, addr, &c, verify_block);
    s->pos = lay_log_after(geo, s->pos);
    s->tid++;
    return err;
}

/* Commits an empty transaction that is its own tail: everything is in place. */
static int commit_tail(struct fsck *f)
{
    return store_write_commit(f, 1, 0, f->store->tid, f->store->pos);
}

/* --- A transaction in the log ----------------------------------------------------------------- */

struct log_writer {
    struct fsck *f;
    uint32_t blocks, chain;
};

/* Takes the next position of the log, and writes a block there unless it is NULL. */
static int store_append(struct log_writer *w, const union lay_block *block, uint64_t *pos)
{
    struct fsck *f = w->f;

    *pos = f->store->pos;
    f->store->pos = lay_log_after(&f->img.geo, *pos);
    w->blocks++;
    return block ? each_place(f, LAY_ADDR(LAY_KIND_LOG, *pos), block, put_block) : 0;
}

/* Writes images and their descriptor. */
static int append_images(struct log_writer *w, size_t first, size_t n)
{
    struct fsck *f = w->f;
    const struct lay_geometry *geo = &f->img.geo;
    union lay_block d;
    uint64_t at, pos;
    int err = store_append(w, NULL, &at);

    lay_log_init(&d, LAY_MAGIC_JDESC, geo, &lay_labels_newest(&f->labels)->incarnation, at);
    d.desc.count = lay_put32((uint32_t)n);
    for (size_t i = 0; i < n && !err; i++) {
        const struct entry *e = store_entry(f->store, first + i);
        err = store_append(w, &e->b, &pos);
        d.desc.tags[i].block = lay_put64(e->addr);
        d.desc.tags[i].age = lay_put32(lay_age(&e->b));
    }
    lay_seal(&d, f->store->tid);
    w->chain = lay_log_chain(w->chain, &d);
    return err ? err : each_place(f, LAY_ADDR(LAY_KIND_LOG, at), &d, put_block);
}

/* Writes the transaction in memory, with the tail of the log. */
static int store_write_log(struct fsck *f, uint64_t tail_tid, uint64_t tail_pos)
{
    struct store *s = f->store;
    struct log_writer w = {.f = f};
    int err = 0;

    for (size_t i = 0; i < s->order.count && !err; i += LAY_LOG_TAGS) {
        size_t left = s->order.count - i;
        err = append_images(&w, i, left < LAY_LOG_TAGS ? left : LAY_LOG_TAGS);
    }
    if (!err)
        err = bd_flush(f->img.dev);
    return err ? err : store_write_commit(f, w.blocks + 1, w.chain, tail_tid, tail_pos);
}

/*
 * Begins the log again, behind the newest commit of the old log, with the
 * transaction that is in memory. The new log counts when the labels have the
 * new id (FORMAT.md 10.6).
 */
static int restart_log(struct fsck *f)
{
    struct store *s = f->store;
    uint64_t tid = s->tid, pos = s->pos;
    int err = bd_flush(f->img.dev);

    if (err)
        return err;
    f->img.geo.log_id = ffs_random();
    s->in_place = false;
    err = store_write_log(f, tid, pos);
    if (!err)
        err = new_incarnation(f);
    return err ? err : store_write_commit(f, 1, 0, tid, pos);
}

/* Writes all blocks to their places, and reads them back. */
static int write_home(struct fsck *f)
{
    static const store_block_fn steps[] = {put_block, verify_block};
    struct store *s = f->store;
    int err = 0;

    for (unsigned k = 0; k < 2 && !err; k++) {
        for (size_t i = 0; i < s->order.count && !err; i++)
            err = each_place(f, store_entry(s, i)->addr, &store_entry(s, i)->b, steps[k]);
        if (!err)
            err = bd_flush(f->img.dev);
    }
    image_forget_names(&f->img);
    return err;
}

/* --- Checkpoint of the log -------------------------------------------------------------------- */

/* Enters the age of an image of the log, and notes it. */
static int checkpoint_name(struct fsck *f, uint64_t addr, uint32_t age)
{
    const struct placed placed = {addr, age};
    int err = fsck_append(&f->store->placed, &placed, sizeof(placed));

    if (!err)
        err = store_put_names(f, addr);
    if (!err)
        store_enter_age(f, addr, age, false);
    return err;
}

/* Enters the ages of the log's images where they are missing. */
static int checkpoint_name_images(struct fsck *f)
{
    int err = 0;

    for (size_t i = 0; i < f->img.patch_count && !err; i++) {
        const struct image_patch *p = &f->img.patches[i];
        union lay_block b;
        uint32_t age;
        bool known;
        err = image_read_patch(&f->img, p, &b);
        if (!err)
            err = image_named_age(&f->img, p->addr, &age, &known);
        if (!err && known && age != lay_age(&b))
            err = checkpoint_name(f, p->addr, lay_age(&b));
    }
    return err;
}

/* Returns the blocks of the log that the transaction in memory takes. */
static uint64_t checkpoint_blocks(const struct store *s)
{
    return s->order.count + (s->order.count + LAY_LOG_TAGS - 1) / LAY_LOG_TAGS + 1;
}

/*
 * Removes all checksums of data. They may be older than the data if
 * transactions are given up.
 */
static void remove_sums(struct fsck *f)
{
    if (!f->empty_sums)
        return;
    f->sb.area.sums_age = f->img.super.super.area.sums_age = lay_put32(0);
    image_forget_names(&f->img);
}

/*
 * Writes the transaction that enters the ages of the log's images in the blocks
 * that name these ages (FORMAT.md 10.2). If a crafted log lacks room for the
 * transaction, the log is written again later.
 */
static int checkpoint_write(struct fsck *f, union lay_block *super)
{
    struct store *s = f->store;
    const struct lay_log_mark *newest = &f->log.reader.newest;
    uint64_t room = f->log.reader.left + f->log.reader.replace;
    uint64_t need = checkpoint_blocks(s) + STORE_FIRST_COMMITS + s->skipped;

    store_enter_ages(f);
    remove_sums(f);
    super->super.map_age = f->sb.map_age;
    super->super.area.bitmap_age = f->sb.area.bitmap_age;
    super->super.area.sums_age = f->sb.area.sums_age;
    int err = fsck_store_put(f, LAY_ADDR_SUPER, super);
    if (err || s->in_place)
        return err;
    if (need > room) {
        s->in_place = true;
        return 0;
    }
    if (s->skipped)
        return restart_log(f);
    return store_write_log(f, newest->tail_tid, newest->tail_pos);
}

/*
 * Names the ages of the log's images, apart from what the repair has changed,
 * and puts everything in place, by the store `names`. A new log lacks the
 * images, so they have been written in place before.
 */
static int checkpoint_log(struct fsck *f, struct store *names)
{
    union lay_block super = names->super;
    int err = checkpoint_name_images(f);

    if (!err && names->skipped)
        err = write_patches(f);
    if (!err && (names->placed.count || f->empty_sums || names->skipped))
        err = checkpoint_write(f, &super);
    if (!err)
        err = write_patches(f);
    if (!err)
        err = write_home(f);
    names->super = super;
    return err;
}

static void store_use_for_image(struct fsck *f, struct store *s)
{
    f->store = s;
    f->img.changed_arg = s;
}

/* Enters these ages in what the repair has changed, too. */
static void checkpoint_share(struct fsck *f, const struct store *names)
{
    const struct placed *placed = names->placed.items;

    for (size_t i = 0; i < names->placed.count; i++)
        store_enter_age(f, placed[i].addr, placed[i].age, false);
    for (size_t i = 0; i < names->order.count; i++)
        store_enter_age(f, store_entry(names, i)->addr, lay_age(&store_entry(names, i)->b), false);
}

/* Puts everything that the log holds in place, with its ages. */
static int store_checkpoint(struct fsck *f)
{
    struct store *s = f->store, *names = calloc(1, sizeof(*names));

    if (!names)
        return -ENOMEM;
    names->tid = s->tid;
    names->pos = s->pos;
    names->in_place = s->in_place;
    names->skipped = s->skipped;
    names->super = s->super;
    store_use_for_image(f, names);
    int err = checkpoint_log(f, names);
    store_use_for_image(f, s);
    checkpoint_share(f, names);
    s->tid = names->tid;
    s->pos = names->pos;
    s->in_place = names->in_place;
    s->super = names->super;
    store_free(names);
    return err;
}

/* --- Bad blocks ahead in the log -------------------------------------------------------------- */

/* Returns true if no log can hold a block at a position. */
static bool ahead_is_bad(const struct fsck *f, uint64_t pos)
{
    const struct fsck_ahead *a = f->ahead.items;
    unsigned bad = 0;

    for (size_t i = 0; i < f->ahead.count; i++)
        bad += a[i].bad && a[i].pos == pos;
    return bad == lay_logs(&f->img.geo);
}

/* Implements lay_log_lost_fn. */
static int store_lost(void *arg, uint64_t place, const union lay_block *b)
{
    return store_try_place(arg, place, b);
}

/*
 * Writes the bad blocks, which no transaction has. A drive may have another
 * place for them then. What only one of two logs can hold is reported.
 */
static int ahead_heal(struct fsck *f)
{
    static const union lay_block zeros;
    struct fsck_ahead *a = f->ahead.items;
    int err = 0;

    for (size_t i = 0; i < f->ahead.count && !err; i++) {
        err = write_block(f, a[i].place, &zeros, BD_FUA);
        if (!err)
            err = verify_block(f, a[i].place, &zeros);
        a[i].bad = err == -EIO;
        err = a[i].bad ? 0 : err;
    }
    for (size_t i = 0; i < f->ahead.count && !err; i++) {
        if (a[i].bad && !ahead_is_bad(f, a[i].pos))
            err = store_lost(f, a[i].place, &zeros);
    }
    return err;
}

/*
 * Passes over blocks that no log can hold. The old log stays until a new one has
 * begun behind them.
 */
static void ahead_skip(struct fsck *f)
{
    struct store *s = f->store;
    uint64_t pos = s->pos;

    /* A commit that is replaced precedes the blocks that were looked at. */
    for (uint64_t i = 1; i <= FSCK_AHEAD + 1 && i < f->img.geo.log_blocks; i++) {
        bool bad = ahead_is_bad(f, pos);
        pos = lay_log_after(&f->img.geo, pos);
        if (bad) {
            s->skipped = i;
            s->pos = pos;
        }
    }
}

/* --- Beginning -------------------------------------------------------------------------------- */

/*
 * Makes an incarnation and moves the log's images to their places, so that
 * transactions can follow (FORMAT.md 10.4).
 */
static int store_recover(struct fsck *f)
{
    struct store *s = f->store;
    struct lay_io io = ffs_io(f->img.dev);
    const struct lay_log_mark *newest = &f->log.reader.newest;
    int err = new_incarnation(f);

    s->begun = true;
    if (!err)
        err = ahead_heal(f);
    ahead_skip(f);
    if (!err && !s->in_place)
        err = lay_log_mend(&io, &f->img.geo, f->log.lacks, f->log.lack_count, store_lost, f);
    /* The first commit of the incarnation contains the tail of the log. */
    if (!err && !s->in_place && !s->skipped)
        err = store_write_commit(f, 1, 0, newest->tail_tid, newest->tail_pos);
    if (!err)
        err = store_checkpoint(f);
    if (!err)
        err = store_heal_supers(f);
    return err || s->in_place ? err : commit_tail(f);
}

static int store_begin(struct fsck *f)
{
    return f->store->begun ? 0 : store_recover(f);
}

/* --- Interface -------------------------------------------------------------------------------- */

/* Makes room for a block and those that name it, which are put. */
static int store_prepare(struct fsck *f, uint64_t addr)
{
    int err = f->store->order.count + CHAIN > f->store->room ? store_commit(f) : 0;

    return err ? err : store_put_names(f, addr);
}

int store_put(struct fsck *f, uint64_t addr, union lay_block *b)
{
    int err = store_prepare(f, addr);

    return err ? err : fsck_store_put(f, addr, b);
}

int store_put_new(struct fsck *f, uint64_t addr, union lay_block *b)
{
    int err = store_begin(f);

    if (!err)
        err = store_prepare(f, addr);
    if (err)
        return err;
    b->head.block = lay_put64(addr);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, f->store->tid);
    store_enter_age(f, addr, lay_age(b), true);
    return each_place(f, addr, b, put_block);
}

int store_put_data(struct fsck *f, uint64_t block, const void *data)
{
    int err = store_begin(f);

    return err ? err : write_block(f, block, data, 0);
}

int store_copy(struct fsck *f, uint64_t from, uint64_t to, uint64_t len, bool tolerant)
{
    static uint8_t buf[COPIED << LAY_BLOCK_SHIFT];
    int err = store_begin(f);

    for (uint64_t done = 0, n; done < len && !err; done += n) {
        n = len - done < COPIED ? len - done : COPIED;
        size_t bytes = n << LAY_BLOCK_SHIFT;
        err = bd_read(f->img.dev, (from + done) << LAY_BLOCK_SHIFT, buf, bytes);
        if (err == -EIO && tolerant) {
            memset(buf, 0, bytes);
            err = 0;
        }
        if (!err)
            err = bd_write(f->img.dev, (to + done) << LAY_BLOCK_SHIFT, buf, bytes, 0);
    }
    return err;
}

/* Unrepaired counters and lists must not make the superblock invalid. */
static void fit_super(struct lay_super *sb)
{
    uint64_t file_blocks = lay_get64(sb->inode_file.size) >> LAY_BLOCK_SHIFT;
    uint64_t inodes = file_blocks * LAY_INODES_PER_BLOCK;

    if (lay_get64(sb->inodes) < 1 || lay_get64(sb->inodes) >= inodes)
        sb->inodes = lay_put64(inodes - 1);
    if (lay_get64(sb->orphan) >= inodes)
        sb->orphan = lay_put64(LAY_NONE);
    if (lay_get64(sb->free_inode_block) >= file_blocks)
        sb->free_inode_block = lay_put64(LAY_NONE);
}

/* Puts the superblock; -EUCLEAN, without a write, if it is invalid. */
static int put_super(struct fsck *f, union lay_block *b)
{
    store_enter_ages(f);
    fit_super(&f->sb);
    b->super = f->sb;
    lay_head_init(&b->head, LAY_MAGIC_SUPER, f->img.geo.uuid, LAY_ADDR_SUPER, 0);
    int err = fsck_store_put(f, LAY_ADDR_SUPER, b);
    f->sb.head = b->head;
    if (!err && lay_check_super(&b->super, &f->img.geo, NULL, NULL) != 0)
        err = -EUCLEAN;
    return err;
}

/*
 * Writes the changed blocks, in a transaction if the log is valid. Either way a
 * flush makes new blocks durable before other blocks refer to them.
 */
static int store_write(struct fsck *f)
{
    struct store *s = f->store;
    int err = 0;

    /* The transaction is its own tail, since the blocks of those before are in place. */
    if (!s->in_place)
        err = store_write_log(f, s->tid, s->pos);
    else
        err = f->set_aside ? bd_flush(f->img.dev) : restart_log(f);
    return err ? err : write_home(f);
}

int store_commit(struct fsck *f)
{
    struct store *s = f->store;
    union lay_block super = s->super;
    int err = store_begin(f);

    if (!err)
        err = heal_copies(f);
    if (!err)
        err = put_super(f, &super);
    if (!err)
        err = store_write(f);
    s->super = super;
    store_forget(s);
    /* Transactions of the log advance it. */
    if (s->in_place)
        s->tid++;
    /* R9a: what the transaction has freed is reused from here on. */
    return err || s->in_place ? err : commit_tail(f);
}

int store_finish(struct fsck *f)
{
    struct store *s = f->store;
    const struct lay_geometry *geo = &f->img.geo;
    int err = 0;

    if (!s->begun)
        return 0;
    /* What a round that ended early has put is not complete. */
    store_forget(s);
    f->sb = s->super.super;
    if (s->in_place) {
        f->set_aside = false;
        err = store_commit(f);
    }
    /* These fields name the commit behind the transaction that contains the fields. */
    f->sb.clean_incarnation = lay_labels_newest(&f->labels)->incarnation;
    f->sb.clean_tid = lay_put64(s->tid + 1);
    f->sb.clean_pos = lay_put64((s->pos + SUPER_BLOCKS) % geo->log_blocks);
    return err ? err : store_commit(f);
}
