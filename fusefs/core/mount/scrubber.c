/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The background scrub: reads what nobody else may read for years, so that one
 * flipped bit is corrected before a second one joins it.
 *
 *     labels, superblock -> map, bitmaps, checksums, each from the top of its
 *     levels down -> segments: entries, then the blocks in use -> data of files
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>

#include "fusefs/core/data/data.h"
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

/* Counts what was read and waits as the rate asks. Returns false if the thread has to stop. */
static bool scrubber_spend(struct scrubber *s, const struct ffs_scrubbed *n)
{
    struct ffs_scrubber *r = &s->fs->scrubber;
    uint64_t bytes = ffs_offset_of(n->read), now = now_ns();

    pthread_mutex_lock(&r->lock);
    r->counts.bytes += bytes;
    r->counts.found += n->found;
    r->counts.corrected += n->corrected;
    pthread_mutex_unlock(&r->lock);
    s->due = ffs_max(s->due, now - SCRUBBER_LAG_NS) + bytes * NS_PER_S / r->rate;
    return scrubber_wait(s->fs, s->due > now + SCRUBBER_LAG_NS ? s->due : 0);
}

/* --- Metadata --------------------------------------------------------------------------------- */

/*
 * Labels and superblock, which change under commit_lock. The superblock in place
 * is that of the log's tail.
 */
static bool scrubber_fixed(struct scrubber *s, uint64_t addr)
{
    struct ffs *fs = s->fs;
    struct ffs_scrubbed n = {0};

    pthread_mutex_lock(&fs->journal.commit_lock);
    ffs_meta_read(fs);
    uint32_t age = addr == LAY_ADDR_SUPER ? fs->journal.super_age : lay_age(&fs->label);
    if (!ffs_home_has(&fs->home, addr))
        ffs_checked_scrub(fs, addr, age, s->block, &n);
    ffs_meta_done(fs);
    pthread_mutex_unlock(&fs->journal.commit_lock);
    return scrubber_spend(s, &n);
}

/*
 * Gets the age of a block whose newest version is in place. Returns false for
 * others, and for those that were never written or whose age is not known.
 */
static bool scrubber_age(struct ffs *fs, uint64_t addr, uint32_t *age)
{
    uint64_t places[FFS_PLACES];
    struct ffs_buf *name;
    unsigned index;

    if (ffs_places_of(fs, addr, places) == 0 || !ffs_cache_settled(fs, addr))
        return false;
    if (ffs_cache_get_name(fs, addr, &name, &index) || !name)
        return false;
    *age = lay_named_age(name->data, addr, index); /* 0 of a free block */
    ffs_buf_put(name);
    return *age != 0;
}

static bool scrubber_block(struct scrubber *s, uint64_t addr)
{
    struct ffs *fs = s->fs;
    struct ffs_scrubbed n = {0};
    uint32_t age;

    ffs_meta_read(fs);
    if (scrubber_age(fs, addr, &age))
        ffs_checked_scrub(fs, addr, age, s->block, &n);
    ffs_meta_done(fs);
    return scrubber_spend(s, &n);
}

/* The size may change meanwhile: addresses that have ceased to exist are passed over. */
static bool scrubber_area(struct scrubber *s, enum lay_kind kind, uint64_t blocks)
{
    for (unsigned level = LAY_MAX_LEVELS; level-- > 0;) {
        uint64_t n = lay_level_blocks(blocks, level);
        for (uint64_t i = 0; i < n; i++) {
            if (!scrubber_block(s, LAY_ADDR_LEVEL(kind, level, i)))
                return false;
        }
    }
    return true;
}

static bool scrubber_segments(struct scrubber *s, uint64_t end)
{
    for (uint64_t segment = 0; segment < end; segment++) {
        for (unsigned i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
            if (!scrubber_block(s, LAY_ADDR_CHUNK(segment, i)))
                return false;
        }
    }
    return true;
}

static bool scrubber_metadata(struct scrubber *s)
{
    struct ffs *fs = s->fs;

    ffs_meta_read(fs);
    const struct lay_geometry geo = fs->geo;
    uint64_t end = fs->chunks.end;
    ffs_meta_done(fs);
    return scrubber_fixed(s, LAY_ADDR_LABEL) && scrubber_fixed(s, LAY_ADDR_SUPER) &&
           scrubber_area(s, LAY_KIND_MAP, geo.map_blocks) &&
           scrubber_area(s, LAY_KIND_BITMAP, geo.bitmap_blocks) &&
           scrubber_area(s, LAY_KIND_SUMS, geo.sums_blocks) && scrubber_segments(s, end);
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
            "%s: inode %llu: data near byte %llu is damaged; 'gpunvme scrub' lists the blocks",
            inode->fs->dev->info.name, (unsigned long long)inode->ino,
            (unsigned long long)data->bad[0].offset);
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
        struct ffs_scrubbed n = {.read = (unsigned)(data->matching + data->without) + bad,
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
    const struct ffs_scrubbed n = {.read = ino % LAY_INODES_PER_BLOCK == 0};
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

    setpriority(PRIO_PROCESS, 0, SCRUBBER_NICE); /* on Linux of this thread alone */
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

void ffs_scrubber_init(struct ffs_scrubber *r)
{
    pthread_mutex_init(&r->control, NULL);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
}

void ffs_scrubber_destroy(struct ffs_scrubber *r)
{
    pthread_mutex_destroy(&r->control);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
}
