/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps changed blocks and writes them to the device. */
#include "mkfs/fsck/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS    1024u
#define MAX_BLOCKS 1024u /* kept at most: 4 MiB */
#define COPIED     64u   /* blocks copied or created at once */

struct entry {
    struct entry *next; /* next entry of the bucket */
    uint64_t block;
    union lay_block b;
};

struct store {
    struct entry *buckets[BUCKETS];
    struct entry *order[MAX_BLOCKS];
    size_t count, room; /* blocks per transaction, excluding block 0 */
    uint64_t tid;       /* next transaction */
    uint64_t pos;       /* start of the next transaction in the log */
    bool in_place;      /* the log is damaged: write without it */
    bool recovered;     /* the log's images are in place */
    bool unflushed;     /* new blocks were written but not flushed */
};

static struct entry **store_find(struct store *s, uint64_t block)
{
    struct entry **p = &s->buckets[block % BUCKETS];

    while (*p && (*p)->block != block)
        p = &(*p)->next;
    return p;
}

static bool changed(void *arg, uint64_t block, union lay_block *out)
{
    const struct entry *e = *store_find(arg, block);

    if (e)
        *out = e->b;
    return e != NULL;
}

int store_init(struct fsck *f)
{
    struct store *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    /*
     * Descriptors and the commit block take a part of the log, and block 0
     * takes one image.
     */
    uint64_t log = f->img.geo.journal_blocks - 1;
    uint64_t images = log - log / LAY_JDESC_TAGS - 4;
    s->room = images < MAX_BLOCKS ? images : MAX_BLOCKS - 1;
    s->tid = f->next_tid;
    s->pos = 1;
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

void store_begin_anew(struct fsck *f, uint64_t tid)
{
    f->store->in_place = true;
    f->store->tid = tid;
}

void store_append_at(struct fsck *f, uint64_t pos)
{
    f->store->pos = pos;
    f->store->tid = f->next_tid;
}

uint64_t store_tid(const struct fsck *f)
{
    return f->store->tid;
}

/* --- Writing ---------------------------------------------------------------------------------- */

static int write_block(struct fsck *f, uint64_t block, const void *b, uint32_t flags)
{
    f->repaired++;
    return bd_write(f->img.dev, block << LAY_BLOCK_SHIFT, b, LAY_BLOCK_SIZE, flags);
}

static int write_copies(struct fsck *f, const union lay_block *super)
{
    union lay_block copy = *super;
    uint64_t tid = lay_get64(super->head.tid);
    int err = 0;

    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++) {
        uint64_t addr = f->img.geo.copies[i];
        lay_head_init(&copy.head, LAY_MAGIC_SUPER, f->img.geo.uuid, addr, 0);
        lay_seal(&copy, tid);
        err = write_block(f, addr, &copy, BD_FUA);
    }
    return err;
}

static int write_header(struct fsck *f, uint64_t tail_tid, uint64_t super_tid)
{
    union lay_block b;

    memset(&b, 0, sizeof(b));
    lay_head_init(&b.head, LAY_MAGIC_JOURNAL, f->img.geo.uuid, f->img.geo.journal_start, 0);
    b.journal.tail_tid = lay_put64(tail_tid);
    b.journal.tail_pos = lay_put64(f->store->pos);
    b.journal.super_tid = lay_put64(super_tid);
    lay_seal(&b, 0);
    return write_block(f, f->img.geo.journal_start, &b, BD_FUA);
}

/* Copies the log's images to their places; from then on they are read there. */
static int write_patches(struct fsck *f)
{
    union lay_block b;
    int err = 0;

    for (size_t i = 0; i < f->img.patch_count && !err; i++) {
        struct image_patch *p = &f->img.patches[i];
        if (p->log_block == p->block)
            continue;
        err = image_read_raw(&f->img, p->log_block, &b);
        if (!err)
            err = write_block(f, p->block, &b, 0);
        if (!err)
            p->log_block = p->block;
    }
    return err ? err : bd_flush(f->img.dev);
}

/* Does the recovery of FORMAT.md 10.4, so that a transaction can follow. */
static int store_recover(struct fsck *f)
{
    union lay_block b;
    int err = write_patches(f);

    f->store->recovered = true;
    if (err || f->store->in_place)
        return err;
    b.super = f->sb;
    uint64_t tid = lay_get64(f->sb.head.tid);
    lay_head_init(&b.head, LAY_MAGIC_SUPER, f->img.geo.uuid, 0, 0);
    lay_seal(&b, tid);
    err = write_block(f, 0, &b, BD_FUA);
    if (!err)
        err = write_copies(f, &b);
    return err ? err : write_header(f, f->store->tid, tid);
}

static int store_begin(struct fsck *f)
{
    return f->store->recovered ? 0 : store_recover(f);
}

/* --- A transaction in the log ----------------------------------------------------------------- */

struct log_writer {
    struct fsck *f;
    uint32_t blocks, chain;
};

static int store_append(struct log_writer *w, void *record, uint64_t *addr)
{
    struct fsck *f = w->f;
    const struct lay_geometry *geo = &f->img.geo;

    *addr = geo->journal_start + f->store->pos;
    f->store->pos = lay_journal_next(geo, f->store->pos);
    w->blocks++;
    return record ? write_block(f, *addr, record, 0) : 0;
}

/* Writes the descriptor after its images, whose addresses it sums. */
static int append_images(struct log_writer *w, size_t first, size_t n)
{
    struct fsck *f = w->f;
    union lay_block d;
    uint64_t at, addr;
    int err = store_append(w, NULL, &at);

    memset(&d, 0, sizeof(d));
    lay_head_init(&d.head, LAY_MAGIC_JDESC, f->img.geo.uuid, at, 0);
    d.desc.count = lay_put32((uint32_t)n);
    for (size_t i = 0; i < n && !err; i++) {
        struct entry *e = f->store->order[first + i];
        err = store_append(w, &e->b, &addr);
        d.desc.tags[i].block = lay_put64(e->block);
        d.desc.tags[i].crc = lay_put32(lay_block_crc(f->img.geo.uuid, addr, &e->b));
    }
    lay_seal(&d, f->store->tid);
    w->chain = lay_journal_chain(w->chain, &d);
    return err ? err : write_block(f, at, &d, 0);
}

static int write_log(struct fsck *f)
{
    struct store *s = f->store;
    struct log_writer w = {.f = f};
    union lay_block c;
    uint64_t addr;
    int err = 0;

    for (size_t i = 0; i < s->count && !err; i += LAY_JDESC_TAGS) {
        size_t left = s->count - i;
        err = append_images(&w, i, left < LAY_JDESC_TAGS ? left : LAY_JDESC_TAGS);
    }
    if (!err)
        err = bd_flush(f->img.dev);
    if (!err)
        err = store_append(&w, NULL, &addr);
    if (err)
        return err;
    memset(&c, 0, sizeof(c));
    lay_head_init(&c.head, LAY_MAGIC_JCOMMIT, f->img.geo.uuid, addr, 0);
    c.commit.blocks = lay_put32(w.blocks);
    c.commit.crc = lay_put32(w.chain);
    c.commit.time = f->sb.mounted;
    lay_seal(&c, s->tid);
    return write_block(f, addr, &c, BD_FUA);
}

static int write_home(struct fsck *f)
{
    struct store *s = f->store;
    int err = 0;

    for (size_t i = 0; i < s->count && !err; i++) {
        struct image_patch *p = image_find_patch(&f->img, s->order[i]->block);
        err = write_block(f, s->order[i]->block, &s->order[i]->b, 0);
        if (p)
            p->log_block = p->block;
    }
    return err ? err : bd_flush(f->img.dev);
}

/* --- Putting ---------------------------------------------------------------------------------- */

static int fsck_store_put(struct fsck *f, uint64_t block, union lay_block *b)
{
    struct store *s = f->store;
    struct entry **p = store_find(s, block);

    b->head.block = lay_put64(block);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, s->tid);
    if (!*p) {
        assert(s->count < MAX_BLOCKS);
        *p = calloc(1, sizeof(**p));
        if (!*p)
            return -ENOMEM;
        (*p)->block = block;
        s->order[s->count++] = *p;
    }
    (*p)->b = *b;
    return 0;
}

int store_put(struct fsck *f, uint64_t block, union lay_block *b)
{
    int err = f->store->count >= f->store->room ? store_commit(f) : 0;

    return err ? err : fsck_store_put(f, block, b);
}

int store_put_new(struct fsck *f, uint64_t block, union lay_block *b)
{
    int err = store_begin(f);

    if (err)
        return err;
    b->head.block = lay_put64(block);
    memcpy(b->head.uuid, f->img.geo.uuid, sizeof(b->head.uuid));
    lay_seal(b, f->store->tid);
    f->store->unflushed = true;
    return write_block(f, block, b, 0);
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
    struct lay_geometry geo;

    fit_super(&f->sb);
    b->super = f->sb;
    lay_head_init(&b->head, LAY_MAGIC_SUPER, f->img.geo.uuid, 0, 0);
    int err = fsck_store_put(f, 0, b);
    f->sb.head = b->head;
    if (!err && lay_check_super(&b->super, 0, 0, &geo, NULL, NULL) != 0)
        err = -EUCLEAN;
    return err;
}

int store_commit(struct fsck *f)
{
    struct store *s = f->store;
    union lay_block super;
    int err = store_begin(f);

    if (!err)
        err = put_super(f, &super);
    if (!err && s->unflushed)
        err = bd_flush(f->img.dev);
    s->unflushed = false;
    if (!err && !s->in_place)
        err = write_log(f);
    if (!err)
        err = write_home(f);
    if (!err)
        err = write_copies(f, &super);
    if (!err && !s->in_place)
        err = write_header(f, s->tid + 1, s->tid);
    store_forget(s);
    s->tid++;
    return err;
}

/* Old records must not look like damage behind the new start. */
static int empty_log(struct fsck *f)
{
    const struct lay_geometry *geo = &f->img.geo;
    uint64_t last = lay_journal_unused_last(geo), start = geo->journal_start, n;
    struct lay_journal_unused *blocks = calloc(COPIED, sizeof(*blocks));
    int err = blocks ? 0 : -ENOMEM;

    for (uint64_t pos = 1; pos <= last && !err; pos += n) {
        n = last + 1 - pos < COPIED ? last + 1 - pos : COPIED;
        for (uint64_t i = 0; i < n; i++)
            lay_journal_fill_unused(geo, start + pos + i, &blocks[i]);
        err =
            bd_write(f->img.dev, (start + pos) << LAY_BLOCK_SHIFT, blocks, n << LAY_BLOCK_SHIFT, 0);
    }
    free(blocks);
    if (!err && last + 1 < geo->journal_blocks)
        err = bd_write_zeroes(f->img.dev, (start + last + 1) << LAY_BLOCK_SHIFT,
                              (geo->journal_blocks - last - 1) << LAY_BLOCK_SHIFT);
    return err;
}

int store_finish(struct fsck *f)
{
    struct store *s = f->store;
    const struct lay_geometry *geo = &f->img.geo;

    if (!s->in_place || !s->recovered)
        return 0;
    int err = 0;
    if (f->empty_sums && geo->sums_blocks)
        err = bd_write_zeroes(f->img.dev, geo->sums_start << LAY_BLOCK_SHIFT,
                              geo->sums_blocks << LAY_BLOCK_SHIFT);
    if (!err)
        err = bd_flush(f->img.dev);
    if (!err)
        err = empty_log(f);
    if (!err)
        err = bd_flush(f->img.dev);
    s->pos = 1;
    return err ? err : write_header(f, s->tid, s->tid - 1);
}
