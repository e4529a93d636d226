/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps changed blocks and writes them to the device. */
#include "mkfs/fsck/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "support/minmax.h"

#define BUCKETS    1024u
#define MAX_BLOCKS 1024u /* kept at most: 4 MiB */
#define COPIED     64u   /* blocks copied or created at once */
/* Number of log blocks of a transaction that has only the superblock. */
#define SUPER_BLOCKS 3u

struct entry {
    struct entry *next; /* next entry of the bucket */
    uint64_t addr;
    union lay_block b;
};

struct store {
    struct entry *buckets[BUCKETS];
    struct entry *order[MAX_BLOCKS];
    size_t count, room; /* blocks per transaction, excluding the superblock */
    uint64_t tid, pos;  /* next transaction and its position in the log */
    bool in_place;      /* the log is damaged: write without it */
    bool begun;         /* the incarnation is made, and the log's images are in place */
    bool unflushed;     /* new blocks were written but not flushed */
    /* The newest superblock in place. */
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

static void store_forget(struct store *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->order[i]);
    memset(s->buckets, 0, sizeof(s->buckets));
    s->count = 0;
}

void store_destroy(struct fsck *f)
{
    if (!f->store)
        return;
    store_forget(f->store);
    free(f->store);
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
    /* Blocks that are put before the first commits have the number of their transaction. */
    s->tid = in_place ? tid : tid + STORE_FIRST_COMMITS;
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

/* Calls fn for each place of an address. */
static int each_place(struct fsck *f, uint64_t addr, const union lay_block *b, store_block_fn fn)
{
    uint64_t places[2];
    unsigned n = image_places(&f->img, addr, places);
    int err = 0;

    for (unsigned i = 0; i < n && !err; i++)
        err = fn(f, places[i], b);
    return err;
}

/* --- Beginning -------------------------------------------------------------------------------- */

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
static int heal_supers(struct fsck *f)
{
    return each_place(f, LAY_ADDR_SUPER, &f->store->super, verify_block);
}

/* Returns a random number that is not 0. */
static int random_id(uint64_t *id)
{
    do {
        if (getrandom(id, sizeof(*id), 0) != (ssize_t)sizeof(*id))
            return -EIO;
    } while (*id == 0);
    return 0;
}

/*
 * Writes labels with a new incarnation and the log's present id. It is later
 * than that of every commit, even if the label of one was lost.
 */
static int new_incarnation(struct fsck *f)
{
    struct lay_label next = *lay_labels_newest(&f->labels);
    uint64_t counter = lay_get64(next.incarnation.counter), id;
    struct lay_io io = image_io(&f->img);
    int err = random_id(&id);

    if (err)
        return err;
    next.incarnation.counter = lay_put64(max_u64(counter, f->log.reader.newest.counter));
    next.log_id = lay_put64(f->img.geo.log_id);
    lay_label_next(&next, id);
    f->repaired++;
    return lay_labels_write(&io, &f->labels, &next);
}

/*
 * Writes the commit of the next transaction and reads it back. Its other
 * records are durable.
 */
static int write_commit(struct fsck *f, uint32_t blocks, uint32_t chain, uint64_t tail_tid,
                        uint64_t tail_pos)
{
    struct store *s = f->store;
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t block = geo->log_start + s->pos;
    union lay_block c;

    lay_log_init(&c, LAY_MAGIC_JCOMMIT, geo, &lay_labels_newest(&f->labels)->incarnation, s->pos);
    c.commit.blocks = lay_put32(blocks);
    c.commit.crc = lay_put32(chain);
    c.commit.tail_tid = lay_put64(tail_tid);
    c.commit.tail_pos = lay_put64(tail_pos);
    c.commit.super_age = lay_put32(lay_age(&s->super));
    c.commit.time = f->sb.mounted;
    lay_seal(&c, s->tid);
    int err = write_block(f, block, &c, BD_FUA);
    if (!err)
        err = verify_block(f, block, &c);
    s->pos = lay_log_after(geo, s->pos);
    s->tid++;
    return err;
}

/* Commits an empty transaction that is its own tail: everything is in place. */
static int commit_tail(struct fsck *f)
{
    return write_commit(f, 1, 0, f->store->tid, f->store->pos);
}

/* Makes the first commit of the incarnation, with the tail of the log. */
static int first_commit(struct fsck *f)
{
    const struct lay_log_mark *newest = &f->log.reader.newest;

    f->store->tid -= STORE_FIRST_COMMITS;
    return write_commit(f, 1, 0, newest->tail_tid, newest->tail_pos);
}

/*
 * Removes all checksums of data. They may be older than the data if
 * transactions are given up.
 */
static int remove_sums(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    int err = 0;

    if (f->empty_sums && geo->sums_blocks)
        err = bd_write_zeroes(f->img.dev, geo->sums_start << LAY_BLOCK_SHIFT,
                              geo->sums_blocks << LAY_BLOCK_SHIFT);
    return err ? err : bd_flush(f->img.dev);
}

/*
 * Makes an incarnation and moves the log's images to their places, so that
 * transactions can follow (FORMAT.md 10.4).
 */
static int store_recover(struct fsck *f)
{
    struct store *s = f->store;
    int err = new_incarnation(f);

    s->begun = true;
    if (!err && !s->in_place)
        err = first_commit(f);
    if (!err)
        err = write_patches(f);
    if (!err)
        err = heal_supers(f);
    if (!err)
        err = remove_sums(f);
    return err || s->in_place ? err : commit_tail(f);
}

static int store_begin(struct fsck *f)
{
    return f->store->begun ? 0 : store_recover(f);
}

/* --- A transaction in the log ----------------------------------------------------------------- */

struct log_writer {
    struct fsck *f;
    uint32_t blocks, chain;
};

/* Takes the next position of the log, and writes a block there unless it is NULL. */
static int store_append(struct log_writer *w, const void *block, uint64_t *pos)
{
    struct fsck *f = w->f;

    *pos = f->store->pos;
    f->store->pos = lay_log_after(&f->img.geo, *pos);
    w->blocks++;
    return block ? write_block(f, f->img.geo.log_start + *pos, block, 0) : 0;
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
        const struct entry *e = f->store->order[first + i];
        err = store_append(w, &e->b, &pos);
        d.desc.tags[i].block = lay_put64(e->addr);
        d.desc.tags[i].age = lay_put32(lay_age(&e->b));
    }
    lay_seal(&d, f->store->tid);
    w->chain = lay_log_chain(w->chain, &d);
    return err ? err : write_block(f, geo->log_start + at, &d, 0);
}

/* The transaction is its own tail, since the blocks of those before are in place. */
static int write_log(struct fsck *f)
{
    struct store *s = f->store;
    struct log_writer w = {.f = f};
    uint64_t tid = s->tid, pos = s->pos;
    int err = 0;

    for (size_t i = 0; i < s->count && !err; i += LAY_LOG_TAGS) {
        size_t left = s->count - i;
        err = append_images(&w, i, left < LAY_LOG_TAGS ? left : LAY_LOG_TAGS);
    }
    if (!err)
        err = bd_flush(f->img.dev);
    return err ? err : write_commit(f, w.blocks + 1, w.chain, tid, pos);
}

/*
 * Begins the log anew, behind the newest commit of the old one, with the
 * transaction that is in memory. It counts when the labels have the new id
 * (FORMAT.md 10.6).
 */
static int restart_log(struct fsck *f)
{
    struct store *s = f->store;
    uint64_t id, tid = s->tid, pos = s->pos;
    int err = random_id(&id);

    if (!err)
        err = bd_flush(f->img.dev);
    if (err)
        return err;
    f->img.geo.log_id = id;
    s->in_place = false;
    err = write_log(f);
    if (!err)
        err = new_incarnation(f);
    return err ? err : write_commit(f, 1, 0, tid, pos);
}

/* Writes all blocks to their places, and reads them back. */
static int write_home(struct fsck *f)
{
    static const store_block_fn steps[] = {put_block, verify_block};
    struct store *s = f->store;
    int err = 0;

    for (unsigned k = 0; k < 2 && !err; k++) {
        for (size_t i = 0; i < s->count && !err; i++)
            err = each_place(f, s->order[i]->addr, &s->order[i]->b, steps[k]);
        if (!err)
            err = bd_flush(f->img.dev);
    }
    return err;
}

/* --- Putting ---------------------------------------------------------------------------------- */

static int fsck_store_put(struct fsck *f, uint64_t addr, union lay_block *b)
{
    struct store *s = f->store;
    struct entry **p = store_find(s, addr);

    b->head.block = lay_put64(addr);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, s->tid);
    if (!*p) {
        assert(s->count < MAX_BLOCKS);
        *p = calloc(1, sizeof(**p));
        if (!*p)
            return -ENOMEM;
        (*p)->addr = addr;
        s->order[s->count++] = *p;
    }
    (*p)->b = *b;
    return 0;
}

int store_put(struct fsck *f, uint64_t addr, union lay_block *b)
{
    int err = f->store->count >= f->store->room ? store_commit(f) : 0;

    return err ? err : fsck_store_put(f, addr, b);
}

int store_put_corrected(struct fsck *f, uint64_t addr, union lay_block *b)
{
    uint64_t old = lay_get64(b->head.tid);
    int err = store_put(f, addr, b);

    if (!err && lay_addr_kind(addr) == LAY_KIND_BITMAP) {
        uint64_t section = lay_addr_number(addr) / lay_section_groups(&f->img.geo);
        le64 *sum = &f->sb.bitmap_tids[section];
        *sum = lay_put64(lay_get64(*sum) + lay_get64(b->head.tid) - old);
    }
    return err;
}

int store_put_new(struct fsck *f, uint64_t addr, union lay_block *b)
{
    int err = store_begin(f);

    if (err)
        return err;
    b->head.block = lay_put64(addr);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, f->store->tid);
    f->store->unflushed = true;
    return each_place(f, addr, b, put_block);
}

int store_put_data(struct fsck *f, uint64_t block, const void *data)
{
    int err = store_begin(f);

    f->store->unflushed = true;
    return err ? err : write_block(f, block, data, 0);
}

int store_copy(struct fsck *f, uint64_t from, uint64_t to, uint64_t len, bool tolerant)
{
    static uint8_t buf[COPIED << LAY_BLOCK_SHIFT];
    int err = store_begin(f);

    f->store->unflushed = true;
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
    fit_super(&f->sb);
    b->super = f->sb;
    lay_head_init(&b->head, LAY_MAGIC_SUPER, f->img.geo.uuid, LAY_ADDR_SUPER, 0);
    int err = fsck_store_put(f, LAY_ADDR_SUPER, b);
    f->sb.head = b->head;
    if (!err && lay_check_super(&b->super, &f->img.geo, NULL, NULL) != 0)
        err = -EUCLEAN;
    return err;
}

/* Writes the blocks that were put, by a transaction if the log counts. */
static int store_write(struct fsck *f)
{
    struct store *s = f->store;
    int err = 0;

    if (!s->in_place)
        err = write_log(f);
    else if (!f->set_aside)
        err = restart_log(f);
    return err ? err : write_home(f);
}

int store_commit(struct fsck *f)
{
    struct store *s = f->store;
    union lay_block super = s->super;
    int err = store_begin(f);

    if (!err)
        err = put_super(f, &super);
    if (!err && s->unflushed)
        err = bd_flush(f->img.dev);
    s->unflushed = false;
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
    /* The commit behind the transaction that has these fields. */
    f->sb.clean_incarnation = lay_labels_newest(&f->labels)->incarnation;
    f->sb.clean_tid = lay_put64(s->tid + 1);
    f->sb.clean_pos = lay_put64((s->pos + SUPER_BLOCKS) % geo->log_blocks);
    return err ? err : store_commit(f);
}
