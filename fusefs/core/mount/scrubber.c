/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The background scrub reads all blocks in use, in this order, so that one
 * flipped bit is corrected before the same block has a second one:
 *
 *     labels, superblock -> log -> map, bitmaps, checksums, each from the top of its
 *     levels down -> segments: entries, then the blocks in use -> data of files
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/mount/move_chunk.h"
#include "fusefs/core/state.h"
#include "support/clock.h"

/*
 * Not the lowest priority: the thread holds ffs.meta while it reads, and a
 * writer waits for that.
 */
#define SCRUBBER_NICE 10
/* Waits shorter than this are left out; what they would have been is made up for. */
#define SCRUBBER_LAG_NS (10 * NS_PER_MS)

struct scrubber {
    struct ffs *fs;
    union lay_block *block;
    struct ffs_scrub *data;
    uint64_t due; /* ns of now_ns(): when what has been read may have been read */
};

/* --- Pace ------------------------------------------------------------------------------------- */

/* Returns false if the thread has to stop. */
static bool scrubber_wait(struct ffs *fs, uint64_t until)
{
    struct ffs_scrubber *r = &fs->scrubber;

    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (now_ns() >= until || cond_wait_until(&r->wake, &r->lock, until) == ETIMEDOUT)
            break;
    }
    bool go_on = !r->stop;
    pthread_mutex_unlock(&r->lock);
    return go_on && ffs_writable(fs) == 0;
}

static void scrubber_count(struct ffs *fs, const struct ffs_scrub_counts *n)
{
    struct ffs_scrubber *r = &fs->scrubber;

    pthread_mutex_lock(&r->lock);
    r->counts.bytes += n->bytes;
    r->counts.found += n->found;
    r->counts.corrected += n->corrected;
    r->counts.chunks += n->chunks;
    pthread_mutex_unlock(&r->lock);
}

/* Counts what was read and waits as the rate asks. Returns false if the thread has to stop. */
static bool scrubber_spend(struct scrubber *s, const struct ffs_scrub_counts *n)
{
    uint64_t now = now_ns();

    scrubber_count(s->fs, n);
    s->due = max_u64(s->due, now - SCRUBBER_LAG_NS) + n->bytes * NS_PER_S / s->fs->scrubber.rate;
    return scrubber_wait(s->fs, s->due > now + SCRUBBER_LAG_NS ? s->due : 0);
}

/* --- Metadata --------------------------------------------------------------------------------- */

/* One block, or none, and what was found in its places. */
struct scrubber_found {
    struct ffs_scrubbed places[FFS_PLACES];
    unsigned n;
    bool pending;     /* the newest version is not in place */
    uint64_t written; /* blocks of a chunk that has got a second place */
    uint64_t read;    /* blocks of the log that were only read */
    uint64_t last;    /* address of the last one */
};

/* --- The log ---------------------------------------------------------------------------------- */

/*
 * Only a recovery shows whether a block of the log is right, but a block that
 * cannot be read would end a later commit.
 */
#define LOG_SCRUB_RUN 64u /* blocks that are read with one command */

/* Returns true if a transaction from the tail on has the position. The caller holds commit_lock. */
static bool log_scrub_in_use(const struct ffs *fs, uint64_t pos)
{
    const struct ffs_journal *j = &fs->journal;
    const uint64_t blocks = fs->geo.log_blocks;

    return (pos + blocks - j->tail_pos) % blocks < j->used;
}

/*
 * Gets the content of an unreadable block: the block of the other log, or zeros
 * if no transaction has the block.
 */
static int log_scrub_content(struct ffs *fs, unsigned log, uint64_t pos, void *block)
{
    memset(block, 0, LAY_BLOCK_SIZE);
    if (!log_scrub_in_use(fs, pos))
        return 0;
    if (lay_logs(&fs->geo) == 1)
        return -EIO;
    return bd_read(fs->dev, ffs_bytes(lay_log_block(&fs->geo, !log, pos)), block, LAY_BLOCK_SIZE);
}

/* Reads a block of the log again, and writes it if it cannot be read. */
static void log_scrub_place(struct ffs *fs, unsigned log, uint64_t pos, void *block,
                            struct ffs_scrubbed *s)
{
    *s = (struct ffs_scrubbed){.place = lay_log_block(&fs->geo, log, pos)};
    if (bd_read(fs->dev, ffs_bytes(s->place), block, LAY_BLOCK_SIZE) == 0)
        return;
    s->wrong = s->unreadable = true;
    if (log_scrub_content(fs, log, pos, block) == 0)
        s->copied = ffs_checked_write_copy(fs, s->place, block) == 0;
    ffs_log(fs, LOG_WARNING, "block %llu of the journal cannot be read%s",
            (unsigned long long)s->place, s->copied ? "; written again" : "");
}

/* Looks at one position with commit_lock, so that nobody writes the log. */
static void log_scrub_position(struct ffs *fs, uint64_t pos, void *block,
                               struct scrubber_found *out)
{
    pthread_mutex_lock(&fs->journal.commit_lock);
    ffs_meta_read(fs);
    for (unsigned i = 0; i < lay_logs(&fs->geo) && pos < fs->geo.log_blocks; i++)
        log_scrub_place(fs, i, pos, block, &out->places[out->n++]);
    ffs_meta_done(fs);
    pthread_mutex_unlock(&fs->journal.commit_lock);
}

/* Returns how many of n blocks from `block` on can be read before one that cannot. */
static uint64_t log_scrub_readable(struct ffs *fs, uint64_t block, uint64_t n, void *data)
{
    uint64_t i = 0;

    if (bd_read(fs->dev, ffs_bytes(block), data, ffs_bytes(n)) == 0)
        return n;
    while (i < n && bd_read(fs->dev, ffs_bytes(block + i), data, LAY_BLOCK_SIZE) == 0)
        i++;
    return i;
}

/* Reads positions of all logs from `pos` on, and returns how many before one that is unreadable. */
static uint64_t log_scrub_run(struct ffs *fs, const struct lay_geometry *geo, uint64_t pos,
                              uint64_t n, void *data)
{
    for (unsigned i = 0; i < lay_logs(geo); i++)
        n = min_u64(n, log_scrub_readable(fs, lay_log_block(geo, i, pos), n, data));
    return n;
}

/*
 * Reads up to 64 positions of all logs from `pos` on, up to one where a block
 * cannot be read. Such a block is written again, from the other log or, if no
 * transaction has it, with zeros. Takes commit_lock only for such a block.
 */
static void scrubber_log(struct ffs *fs, uint64_t pos, struct scrubber_found *out)
{
    ffs_meta_read(fs);
    /* If the log moves after this, its old place is read, which changes nothing. */
    const struct lay_geometry geo = fs->geo;
    ffs_meta_done(fs);
    uint64_t run = pos < geo.log_blocks ? min_u64(geo.log_blocks - pos, LOG_SCRUB_RUN) : 0;
    void *data = run ? ffs_dma_alloc(fs, ffs_bytes(LOG_SCRUB_RUN)) : NULL;
    out->last = LAY_ADDR(LAY_KIND_LOG, geo.log_blocks - 1);
    if (!data)
        return;
    uint64_t n = log_scrub_run(fs, &geo, pos, run, data);
    out->read = n * lay_logs(&geo);
    if (n < run)
        log_scrub_position(fs, pos + n, data, out);
    ffs_dma_free(fs, data, ffs_bytes(LOG_SCRUB_RUN));
    out->last = LAY_ADDR(LAY_KIND_LOG, pos + n - (n == run));
}

/* --- Blocks ----------------------------------------------------------------------------------- */

/*
 * Labels and superblock, which change under commit_lock. The superblock in place
 * is that of the log's tail.
 */
static void scrubber_fixed(struct ffs *fs, uint64_t addr, void *block, struct scrubber_found *out)
{
    pthread_mutex_lock(&fs->journal.commit_lock);
    ffs_meta_read(fs);
    uint32_t age = addr == LAY_ADDR_SUPER ? fs->journal.super_age : lay_age(&fs->label);
    out->pending = ffs_home_has(&fs->home, addr);
    if (!out->pending)
        out->n = ffs_checked_scrub(fs, addr, age, block, out->places);
    ffs_meta_done(fs);
    pthread_mutex_unlock(&fs->journal.commit_lock);
}

/*
 * Gets the age of a block whose newest version is in place. Returns false for
 * others, and for those that were never written or whose age is not known.
 */
static bool scrubber_age(struct ffs *fs, uint64_t addr, uint32_t *age, bool *pending)
{
    uint64_t places[FFS_PLACES];
    struct ffs_buf *name;
    unsigned index;

    if (ffs_places_of(fs, addr, places) == 0)
        return false;
    *pending = !ffs_cache_settled(fs, addr);
    if (*pending || ffs_cache_get_name(fs, addr, &name, &index) || !name)
        return false;
    *age = lay_named_age(name->data, addr, index); /* 0 of a free block */
    ffs_buf_put(name);
    return *age != 0;
}

/* Returns true if the chunk that begins at an address has one place and could have two. */
static bool scrubber_lacks_copy(struct ffs *fs, uint64_t addr)
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK || lay_addr_index(addr) != 0)
        return false;
    ffs_meta_read(fs);
    bool lacks = ffs_chunk_lacks_copy(fs, lay_addr_segment(addr));
    ffs_meta_done(fs);
    return lacks && ffs_writable(fs) == 0;
}

/* A repair that found no space has left the chunk with one place. There may be space now. */
static void scrubber_add_copy(struct ffs *fs, uint64_t addr, struct scrubber_found *out)
{
    if (ffs_chunk_add_copy(fs, lay_addr_segment(addr)) != 0)
        return;
    ffs_meta_read(fs);
    out->written = ffs_chunk_blocks(&fs->geo);
    ffs_meta_done(fs);
    ffs_log(fs, LOG_NOTICE, "the chunk of segment %llu has a second place now",
            (unsigned long long)lay_addr_segment(addr));
}

/*
 * Reads both places of a block, or a part of the log, if there is one with this
 * address. At the start of a chunk, first gives that its second place.
 */
static void scrubber_block(struct ffs *fs, uint64_t addr, void *block, struct scrubber_found *out)
{
    uint32_t age;

    *out = (struct scrubber_found){.last = addr};
    if (lay_addr_kind(addr) == LAY_KIND_LOG) {
        scrubber_log(fs, lay_addr_number(addr), out);
        return;
    }
    if (scrubber_lacks_copy(fs, addr))
        scrubber_add_copy(fs, addr, out);
    if (addr == LAY_ADDR_LABEL || addr == LAY_ADDR_SUPER) {
        scrubber_fixed(fs, addr, block, out);
        return;
    }
    ffs_meta_read(fs);
    if (lay_home_ok(&fs->geo, addr) && scrubber_age(fs, addr, &age, &out->pending))
        out->n = ffs_checked_scrub(fs, addr, age, block, out->places);
    ffs_meta_done(fs);
}

/* Returns the top of the first area from this kind on, or the first block in a chunk. */
static uint64_t scrubber_first(const struct lay_geometry *geo, unsigned kind)
{
    static const enum lay_kind areas[] = {LAY_KIND_MAP, LAY_KIND_BITMAP, LAY_KIND_SUMS};

    for (size_t i = 0; i < sizeof(areas) / sizeof(areas[0]); i++) {
        for (unsigned level = LAY_MAX_LEVELS; areas[i] >= kind && level-- > 0;) {
            if (lay_home_ok(geo, LAY_ADDR_LEVEL(areas[i], level, 0)))
                return LAY_ADDR_LEVEL(areas[i], level, 0);
        }
    }
    return LAY_ADDR_CHUNK(0, 0);
}

/* Returns the block behind one of an area: in its level, in the level below, in another area. */
static uint64_t scrubber_after(const struct lay_geometry *geo, uint64_t addr)
{
    unsigned kind = lay_addr_kind(addr), level = lay_addr_level(addr);

    if (lay_home_ok(geo, addr + 1))
        return addr + 1;
    return level > 0 ? LAY_ADDR_LEVEL(kind, level - 1, 0) : scrubber_first(geo, kind + 1);
}

/*
 * Returns the address to be scrubbed after this one, or LAY_ADDR_LABEL, which is
 * 0, behind the last one. Addresses that have ceased to exist are passed over.
 */
static uint64_t scrubber_next(struct ffs *fs, uint64_t addr)
{
    uint64_t next = LAY_ADDR_LABEL;

    ffs_meta_read(fs);
    switch (lay_addr_kind(addr)) {
    case LAY_KIND_LABEL:
        next = LAY_ADDR_SUPER;
        break;
    case LAY_KIND_SUPER:
        next = LAY_ADDR(LAY_KIND_LOG, 0);
        break;
    case LAY_KIND_LOG:
        next = addr + 1;
        if (lay_addr_number(next) >= fs->geo.log_blocks)
            next = scrubber_first(&fs->geo, LAY_KIND_MAP);
        break;
    case LAY_KIND_CHUNK:
        if (lay_addr_number(addr) + 1 < fs->chunks.end * LAY_SEGMENT_BLOCKS)
            next = addr + 1;
        break;
    case LAY_KIND_MAP:
    case LAY_KIND_BITMAP:
    case LAY_KIND_SUMS:
        next = scrubber_after(&fs->geo, addr);
        break;
    default:
        break;
    }
    ffs_meta_done(fs);
    return next;
}

static struct ffs_scrub_counts scrubber_counts_of(const struct scrubber_found *found)
{
    struct ffs_scrub_counts n = {.bytes = ffs_bytes(found->n + found->written + found->read),
                                 .chunks = found->written > 0};

    for (unsigned i = 0; i < found->n; i++) {
        n.found += found->places[i].wrong;
        n.corrected += found->places[i].corrected || found->places[i].copied;
    }
    return n;
}

static bool scrubber_metadata(struct scrubber *s)
{
    struct scrubber_found found;
    uint64_t addr = LAY_ADDR_LABEL;

    do {
        scrubber_block(s->fs, addr, s->block, &found);
        struct ffs_scrub_counts n = scrubber_counts_of(&found);
        if (!scrubber_spend(s, &n))
            return false;
        addr = scrubber_next(s->fs, found.last);
    } while (addr != LAY_ADDR_LABEL);
    return true;
}

/* --- On request ------------------------------------------------------------------------------- */

/* Limits of one call. */
#define SCRUBBER_PLACES    1024u  /* read */
#define SCRUBBER_ADDRESSES 65536u /* examined */

static void scrubber_enter(struct ffs_scrub *out, uint64_t addr, const struct scrubber_found *found)
{
    for (unsigned i = 0; i < found->n; i++) {
        const struct ffs_scrubbed *p = &found->places[i];
        out->matching += !p->wrong;
        if (p->wrong)
            out->bad[out->nbad++] = (struct ffs_scrub_block){.offset = addr,
                                                             .device = ffs_bytes(p->place),
                                                             .unreadable = p->unreadable,
                                                             .corrected = p->corrected,
                                                             .copied = p->copied};
    }
    out->without += found->pending;
    out->added += found->written > 0;
}

/* Puts what is in the log in place, where it is read. */
static int scrubber_settle(struct ffs *fs)
{
    int err = ffs_writable(fs) ? 0 : ffs_commit(fs, ffs_running_tid(fs));

    return err || ffs_writable(fs) ? err : ffs_checkpoint_now(fs);
}

int ffs_scrub_metadata(struct ffs *fs, uint64_t from, struct ffs_scrub *out)
{
    void *block = aligned_alloc(LAY_BLOCK_SIZE, LAY_BLOCK_SIZE);
    struct scrubber_found found;
    uint64_t addr = from, read = 0;

    *out = (struct ffs_scrub){.next = LAY_ADDR_LABEL};
    int err = block ? ffs_alive(fs) : -ENOMEM;
    if (!err && from == LAY_ADDR_LABEL)
        err = scrubber_settle(fs);
    for (unsigned i = 0; !err && i < SCRUBBER_ADDRESSES; i++) {
        scrubber_block(fs, addr, block, &found);
        struct ffs_scrub_counts n = scrubber_counts_of(&found);
        scrubber_count(fs, &n);
        scrubber_enter(out, found.last, &found);
        read += found.n + found.read;
        addr = scrubber_next(fs, found.last);
        if (addr == LAY_ADDR_LABEL || read >= SCRUBBER_PLACES ||
            out->nbad + FFS_PLACES > FFS_SCRUB_BAD)
            break;
    }
    out->next = addr;
    free(block);
    return err;
}

/* --- Data ------------------------------------------------------------------------------------- */

/* Returns the number of wrong blocks. Those of damaged extents are known since a repair. */
static unsigned scrubber_count_bad(const struct ffs_scrub *data)
{
    unsigned n = 0;

    for (size_t i = 0; i < data->nbad; i++)
        n += data->bad[i].device != 0;
    return n;
}

static void scrubber_log_bad(const struct ffs_inode *inode, const struct ffs_scrub *data)
{
    ffs_log(inode->fs, LOG_ERR,
            "inode %llu: data near byte %llu is damaged; 'gpunvme scrub' lists the blocks",
            (unsigned long long)inode->ino, (unsigned long long)data->bad[0].offset);
}

/* A file is logged once in a pass. */
static bool scrubber_file(struct scrubber *s, struct ffs_inode *inode)
{
    struct ffs_scrub *data = s->data;
    bool go_on = true, logged = false;

    data->next = 0;
    while (go_on && data->next < INT64_MAX) {
        if (ffs_scrub_step(inode, data->next, data))
            break;
        unsigned bad = scrubber_count_bad(data);
        struct ffs_scrub_counts n = {.bytes = ffs_bytes(data->matching + data->without + bad),
                                     .found = bad};
        if (bad > 0 && !logged)
            scrubber_log_bad(inode, data);
        logged |= bad > 0;
        go_on = scrubber_spend(s, &n);
    }
    return go_on;
}

static bool scrubber_inode(struct scrubber *s, uint64_t ino)
{
    /* Eight inodes share a block, which the table reads through the cache. */
    const struct ffs_scrub_counts n = {.bytes = ffs_bytes(ino % LAY_INODES_PER_BLOCK == 0)};
    struct ffs_inode *inode;
    struct ffs_attr attr;

    if (!scrubber_spend(s, &n))
        return false;
    if (ffs_iget(s->fs, ino, &inode))
        return true;
    ffs_getattr(inode, &attr);
    bool go_on = !S_ISREG(attr.mode) || scrubber_file(s, inode);
    ffs_iput(inode, 1);
    return go_on;
}

static bool scrubber_data(struct scrubber *s)
{
    struct ffs *fs = s->fs;

    ffs_meta_read(fs);
    uint64_t end = ffs_has_sums(&fs->geo) ? ffs_inode_file_blocks(fs) * LAY_INODES_PER_BLOCK : 0;
    ffs_meta_done(fs);
    for (uint64_t ino = 0; ino < end; ino++) {
        if (!scrubber_inode(s, ino))
            return false;
    }
    return true;
}

/* --- The thread ------------------------------------------------------------------------------- */

static void scrubber_end_pass(struct ffs_scrubber *r)
{
    pthread_mutex_lock(&r->lock);
    r->counts.passes++;
    r->counts.last = (uint64_t)time(NULL);
    pthread_mutex_unlock(&r->lock);
}

static void *scrubber_run(void *arg)
{
    struct ffs *fs = arg;
    struct scrubber s = {.fs = fs,
                         .block = aligned_alloc(LAY_BLOCK_SIZE, LAY_BLOCK_SIZE),
                         .data = malloc(sizeof(*s.data))};

    setpriority(PRIO_PROCESS, 0, SCRUBBER_NICE); /* on Linux only of this thread */
    while (s.block && s.data && scrubber_metadata(&s) && scrubber_data(&s)) {
        scrubber_end_pass(&fs->scrubber);
        if (!scrubber_wait(fs, deadline_after_ms(fs->scrubber.pause_ms)))
            break;
    }
    free(s.block);
    free(s.data);
    return NULL;
}

/* The caller holds control. */
static void scrubber_end(struct ffs_scrubber *r)
{
    if (!r->running)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    r->running = r->stop = false;
}

int ffs_scrub_start(struct ffs *fs, uint64_t rate, uint64_t pause_ms)
{
    struct ffs_scrubber *r = &fs->scrubber;
    int err = ffs_writable(fs);

    pthread_mutex_lock(&r->control);
    scrubber_end(r);
    r->rate = rate;
    r->pause_ms = pause_ms;
    if (!err)
        err = -pthread_create(&r->thread, NULL, scrubber_run, fs);
    r->running = err == 0;
    pthread_mutex_unlock(&r->control);
    return err;
}

void ffs_scrub_stop(struct ffs *fs)
{
    pthread_mutex_lock(&fs->scrubber.control);
    scrubber_end(&fs->scrubber);
    pthread_mutex_unlock(&fs->scrubber.control);
}

void ffs_scrub_counts(struct ffs *fs, struct ffs_scrub_counts *out)
{
    pthread_mutex_lock(&fs->scrubber.lock);
    *out = fs->scrubber.counts;
    pthread_mutex_unlock(&fs->scrubber.lock);
}
