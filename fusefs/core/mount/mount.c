/* SPDX-License-Identifier: BSD-2-Clause */
/* Mounts and unmounts. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "blockdev/bd_signature.h"
#include "fusefs/core/ffs.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/journal/ops.h"
#include "fusefs/core/map/extents.h"
#include "fusefs/core/state.h"
#include "support/clock.h"

/* --- The superblock -------------------------------------------------------------------------- */

static const struct ffs_reason quiet = {NULL, 0};

static uint64_t device_blocks(const struct ffs *fs)
{
    return fs->dev->info.bytes >> LAY_BLOCK_SHIFT;
}

static int super_read_super(struct ffs *fs, uint64_t at, struct lay_super *sb,
                            struct lay_geometry *geo, const struct ffs_reason *r)
{
    const char *why = "";
    uint64_t features;

    if (at >= device_blocks(fs))
        return ffs_refuse(r, -EINVAL, "too small to hold a file system; truncated, or no image");
    int err = bd_read(fs->dev, ffs_bytes(at), sb, LAY_BLOCK_SIZE);
    if (err)
        return ffs_refuse(r, -EIO, "cannot read the superblock: %s", strerror(-err));
    err = lay_check_super(sb, at, 0, geo, &features, &why);
    if (!err && geo->blocks > device_blocks(fs))
        return ffs_refuse(
            r, -EUCLEAN,
            "the device ends at %llu of the file system's %llu bytes; truncated, give "
            "it that length again",
            (unsigned long long)fs->dev->info.bytes, (unsigned long long)ffs_bytes(geo->blocks));
    if (err == -EINVAL)
        return ffs_refuse(r, err, "not a gpunvmefs file system");
    if (err == -ENOTSUP)
        return ffs_refuse(r, err, "made by a newer version: %s (unknown features 0x%llx)", why,
                          (unsigned long long)features);
    return err ? ffs_refuse(r, err, "superblock at block %llu: wrong %s; run fsck.gpunvme",
                            (unsigned long long)at, why)
               : 0;
}

static uint64_t tid_of(const struct lay_super *sb)
{
    return lay_get64(sb->head.tid);
}

/* State of the search for the newest superblock. */
struct search {
    struct ffs *fs;
    const struct lay_super *primary; /* block 0 as it was read */
    int primary_err;                 /* error of block 0, or 0 */
    struct ffs_super_found *best;
    struct lay_geometry geo; /* geometry of the best one */
    bool any;                /* true if one was found */
    struct lay_super *copy;  /* buffer */
};

/*
 * Takes the superblock at `at` if it is valid and newer than the best one so
 * far.
 */
static void super_consider(struct search *s, uint64_t at)
{
    struct lay_geometry geo;

    if (at == 0 || at >= device_blocks(s->fs) || super_read_super(s->fs, at, s->copy, &geo, &quiet))
        return;
    /*
     * The first one found identifies the file system, because copies of an
     * older one may be left.
     */
    if (s->any && !lay_same_shape(&geo, &s->geo))
        return;
    if (s->any && tid_of(s->copy) <= tid_of(&s->best->sb))
        return;
    s->best->sb = *s->copy;
    s->best->at = at;
    s->geo = geo;
    s->any = true;
}

/*
 * The first copy of a file system that does not fill the device is at the start
 * of a group.
 */
static int super_search_groups(struct search *s)
{
    uint64_t end = device_blocks(s->fs);
    int err = 0;

    for (uint64_t at = LAY_GROUP_BLOCKS; at < end && !s->any && !err; at += LAY_GROUP_BLOCKS) {
        err = ffs_interrupted(s->fs);
        if (!err)
            super_consider(s, at);
    }
    if (s->any)
        super_consider(s, s->geo.copies[1]);
    return err;
}

static int super_consider_copies(struct search *s)
{
    uint64_t places[LAY_SUPER_COPIES];

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        super_consider(s, lay_get64(s->primary->copies[i]));
    if (!s->primary_err)
        return 0;
    lay_super_places(device_blocks(s->fs), places);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        super_consider(s, places[i]);
    return s->any ? 0 : super_search_groups(s);
}

/*
 * True if block 0 is a damaged form of the copy and not the superblock of a
 * newer file system.
 */
static bool super_is_remnant(const struct search *s)
{
    const struct lay_super *sb = s->primary;
    uint64_t at = s->best->at;

    return s->primary_err == -EIO || memcmp(sb->head.uuid, s->geo.uuid, sizeof(s->geo.uuid)) == 0 ||
           lay_get64(sb->copies[0]) == at || lay_get64(sb->copies[1]) == at;
}

/*
 * Logs which copy is used. Refuses to write over a possible newer file system.
 */
static int use_copy(const struct search *s, const struct ffs_reason *r)
{
    struct ffs *fs = s->fs;
    unsigned long long at = s->best->at;

    if (s->primary_err && !super_is_remnant(s) && !fs->opts.read_only)
        return ffs_refuse(
            r, -EUCLEAN,
            "block 0 is no sound superblock, and block %llu is a copy of another one; "
            "mount read-only to see its files",
            at);
    ffs_log(fs, LOG_WARNING, "%s: superblock %s; the copy in block %llu is used",
            fs->dev->info.name,
            s->primary_err ? "damaged" : "older than a copy: a write to it was lost", at);
    return 0;
}

/*
 * Finds the newest valid superblock and sets fs->geo. It is block 0, or a copy
 * (logged) if block 0 is damaged, unreadable or older. Returns -EINVAL,
 * -ENOTSUP, -EUCLEAN or -EIO if there is none. Also returns -EINVAL if block 0
 * lacks the magic of a superblock, and -EUCLEAN for a writable mount if block 0
 * is not a remnant of this superblock.
 */
static int ffs_super_find(struct ffs *fs, struct ffs_super_found *found, const struct ffs_reason *r)
{
    struct lay_super *buffers = calloc(2, sizeof(*buffers));

    if (!buffers)
        return ffs_refuse(r, -ENOMEM, "out of memory");
    struct search s = {.fs = fs, .primary = &buffers[0], .best = found, .copy = &buffers[1]};
    int err = s.primary_err = super_read_super(fs, 0, &buffers[0], &s.geo, r);
    if (err == -ENOTSUP || (err == -EINVAL && !lay_super_magic(&buffers[0])))
        goto free_buffers;
    s.any = err == 0;
    found->sb = buffers[0];
    found->at = 0;
    err = super_consider_copies(&s);
    if (err == -EINTR)
        ffs_refuse(r, err, "interrupted");
    else if (!s.any)
        err = s.primary_err;
    if (!err && found->at != 0)
        err = use_copy(&s, r);
    if (!err)
        fs->geo = s.geo;
free_buffers:
    free(buffers);
    return err;
}

/*
 * Finds the newest superblock: in the log, in block 0, or the one with which
 * recovery began.
 */
static int newest(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *out,
                  struct lay_geometry *geo, const struct ffs_reason *r)
{
    uint64_t features;
    const char *why = "";

    if (ffs_home_read(&fs->home, 0, out)) {
        if (lay_check_super(out, 0, device_blocks(fs), geo, &features, &why))
            return ffs_refuse(r, -EUCLEAN, "superblock in the journal: wrong %s; run fsck.gpunvme",
                              why);
        return 0;
    }
    if (!super_read_super(fs, 0, out, geo, &quiet) && tid_of(out) >= tid_of(&found->sb))
        return 0;
    *out = found->sb;
    lay_head_init(&out->head, LAY_MAGIC_SUPER, fs->geo.uuid, 0, 0);
    *geo = fs->geo;
    return 0;
}

/*
 * Checks that the superblock matches the journal's header and last transaction.
 */
static int check_age(struct ffs *fs, const struct lay_super *sb, const struct ffs_reason *r)
{
    const char *what;

    if (tid_of(sb) < fs->journal.super_tid)
        what = "superblock older than the journal: a write to it was lost";
    else if (tid_of(sb) > atomic_load(&fs->journal.committed))
        what = "journal older than the superblock: a write to it was lost";
    else
        return 0;
    if (!fs->opts.read_only)
        return ffs_refuse(r, -EUCLEAN, "%s; run fsck.gpunvme", what);
    ffs_log(fs, LOG_ERR, "%s: %s; shown as it is", fs->dev->info.name, what);
    fs->sums.stale = true;
    return 0;
}

int ffs_set_label(struct ffs *fs, const char *label)
{
    size_t len = strlen(label);
    struct ffs_tx *tx;

    if (!lay_label_ok(label, len))
        return -EINVAL;
    int err = ffs_tx_begin(fs, 1, &tx);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, fs->super);
    if (!err) {
        memset(ffs_super(fs)->label, 0, sizeof(ffs_super(fs)->label));
        memcpy(ffs_super(fs)->label, label, len);
    }
    return ffs_tx_finish(tx, err);
}

/*
 * Finds the superblock after a recovery that began with `found`, and addresses
 * it to block 0. Returns -EUCLEAN if it describes another geometry or, except
 * for a read-only mount, does not match the journal.
 */
static int ffs_super_settle(struct ffs *fs, const struct ffs_super_found *found,
                            struct lay_super *out, const struct ffs_reason *r)
{
    struct lay_geometry geo;
    int err = newest(fs, found, out, &geo, r);

    if (err)
        return err;
    /*
     * Memory was allocated for the first geometry, and a crafted image may
     * describe another one here.
     */
    if (!lay_same_shape(&geo, &fs->geo))
        return ffs_refuse(r, -EUCLEAN, "superblocks contradict each other; run fsck.gpunvme");
    fs->geo = geo;
    return check_age(fs, out, r);
}

void ffs_statfs(struct ffs *fs, struct ffs_statfs *out)
{
    memset(out, 0, sizeof(*out));
    ffs_meta_read(fs);
    out->blocks = fs->geo.blocks;
    out->free_blocks = ffs_free_blocks(fs);
    out->inodes = lay_get64(ffs_super(fs)->inodes);
    memcpy(out->label, ffs_super(fs)->label, sizeof(out->label));
    ffs_meta_done(fs);
    memcpy(out->uuid, fs->geo.uuid, sizeof(out->uuid));
    out->read_only = ffs_writable(fs) != 0;
    out->failed = ffs_health(fs) & FFS_FAILED;
    out->data_csum = ffs_has_sums(&fs->geo);
}

/* --- Mount ----------------------------------------------------------------------------------- */

/* Replays the journal. On return *sb is as the last transaction left it. */
static int mount_journal(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *sb,
                         const struct ffs_reason *r)
{
    bool write = !fs->dev->info.read_only && !(fs->geo.ro_compat & ~LAY_FEATURE_RO_COMPAT);

    /*
     * Block 0 may belong to another file system, which a read-only mount of the
     * old one must not change.
     */
    if (fs->opts.read_only && found->at != 0)
        write = false;
    bool replayed = false;
    const char *why = "";
    int err = ffs_recover(fs, found, write, &replayed, &why);
    if (err == -EUCLEAN)
        return ffs_refuse(r, err, "journal damaged: %s; run fsck.gpunvme", why);
    if (err)
        return ffs_refuse(r, err, "%s: %s", why, strerror(-err));
    if (replayed)
        ffs_log(fs, LOG_NOTICE, "%s: journal replayed%s", fs->dev->info.name,
                write ? "" : " in memory");
    return ffs_super_settle(fs, found, sb, r);
}

static int load_super(struct ffs *fs, const struct lay_super *sb)
{
    struct ffs_cbuf *cb;
    int err = ffs_cache_create(fs, 0, &cb);

    if (err)
        return err;
    memcpy(cb->pub.data, sb, sizeof(*sb));
    fs->super = &cb->pub;
    fs->inode_file.fs = fs;
    fs->inode_file.refs = 1;
    fs->inode_file.d = sb->inode_file;
    return 0;
}

/* Begins a handle that changes the superblock. */
static int begin_super(struct ffs *fs, struct ffs_tx **tx)
{
    int err = ffs_tx_begin(fs, 1, tx);

    if (err)
        return err;
    err = ffs_tx_dirty(*tx, fs->super);
    if (err)
        ffs_tx_abort(*tx);
    return err;
}

/* Clears the clean mark and increments the mount count in one durable step. */
static int mark_mounted(struct ffs *fs)
{
    struct ffs_tx *tx;
    int err = begin_super(fs, &tx);

    if (err)
        return err;
    struct lay_super *sb = ffs_super(fs);
    sb->state = lay_put32(lay_get32(sb->state) & ~LAY_STATE_CLEAN);
    sb->mounts = lay_put64(lay_get64(sb->mounts) + 1);
    sb->mounted = ffs_now();
    ffs_tx_end(tx);
    err = ffs_commit(fs, ffs_running_tid(fs));
    return err ? err : ffs_checkpoint_now(fs);
}

static int check_access(struct ffs *fs, const struct ffs_reason *r)
{
    uint64_t ro_compat = fs->geo.ro_compat & ~LAY_FEATURE_RO_COMPAT;

    if (fs->opts.read_only)
        return 0;
    if (fs->dev->info.read_only)
        return ffs_refuse(r, -EROFS, "the device is read-only: mount it read-only");
    if (ro_compat)
        return ffs_refuse(r, -EROFS, "unknown features 0x%llx: can be mounted read-only",
                          (unsigned long long)ro_compat);
    return 0;
}

/* Allocates all memory whose size depends on the geometry. */
static int init_parts(struct ffs *fs)
{
    int err = ffs_home_init(&fs->home, fs->geo.journal_blocks);

    if (!err)
        err = ffs_journal_init(fs);
    if (!err)
        err = ffs_itable_init(&fs->itable);
    if (!err)
        err = ffs_cache_init(&fs->cache, fs->opts.cache_bytes);
    return err ? err : ffs_alloc_init(fs);
}

static int start_from(struct ffs *fs, struct ffs_super_found *found, struct lay_super *sb,
                      const struct ffs_reason *r)
{
    int err = ffs_super_find(fs, found, r);

    if (!err)
        err = check_access(fs, r);
    if (!err && init_parts(fs) != 0)
        err = ffs_refuse(r, -ENOMEM, "out of memory");
    if (!err)
        err = mount_journal(fs, found, sb, r);
    return err ? err : load_super(fs, sb);
}

static int mount_start(struct ffs *fs, const struct ffs_reason *r)
{
    struct ffs_super_found *found = calloc(1, sizeof(*found));
    struct lay_super *sb = malloc(sizeof(*sb));
    int err;

    if (found && sb)
        err = start_from(fs, found, sb, r);
    else
        err = ffs_refuse(r, -ENOMEM, "out of memory");
    free(sb);
    free(found);
    return err;
}

static int start_writing(struct ffs *fs, const struct ffs_reason *r)
{
    if (fs->opts.read_only) {
        atomic_fetch_or(&fs->health, FFS_READ_ONLY);
        return 0;
    }
    int err = mark_mounted(fs);
    if (err == -EINTR)
        return ffs_refuse(r, err, "interrupted, the next mount goes on");
    if (err)
        return ffs_refuse(r, err, "cannot write to the device");
    err = ffs_orphans_finish(fs);
    if (err == -EINTR)
        return ffs_refuse(r, err, "interrupted, the next mount goes on");
    if (err)
        return ffs_refuse(r, err, "cannot finish what a crash left (%s); run fsck.gpunvme",
                          strerror(-err));
    if (fs->opts.no_thread)
        return 0;
    err = ffs_background_start(fs);
    return err ? ffs_refuse(r, err, "cannot start a thread: %s", strerror(-err)) : 0;
}

static void init_locks(struct ffs *fs)
{
    pthread_rwlockattr_t prefer_writer;

    pthread_rwlockattr_init(&prefer_writer);
    /*
     * Readers arrive continuously, and a handle must not wait until there are
     * none.
     */
    pthread_rwlockattr_setkind_np(&prefer_writer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&fs->meta, &prefer_writer);
    pthread_rwlockattr_destroy(&prefer_writer);
    pthread_rwlock_init(&fs->inode_file.data, NULL);
    pthread_cond_init(&fs->background.wake, NULL);
    pthread_mutex_init(&fs->background.lock, NULL);
    pthread_mutex_init(&fs->flushes.lock, NULL);
    pthread_mutex_init(&fs->trim_lock, NULL);
    pthread_rwlock_init(&fs->shape_lock, NULL);
    ffs_sums_init(&fs->sums);
}

static void mount_destroy(struct ffs *fs)
{
    ffs_background_stop(fs);
    ffs_itable_destroy(&fs->itable);
    ffs_alloc_destroy(fs);
    ffs_journal_destroy(fs);
    ffs_home_destroy(&fs->home);
    if (fs->super)
        ffs_buf_put(fs->super);
    ffs_cache_destroy(&fs->cache);
    pthread_rwlock_destroy(&fs->meta);
    pthread_rwlock_destroy(&fs->inode_file.data);
    pthread_cond_destroy(&fs->background.wake);
    pthread_mutex_destroy(&fs->background.lock);
    pthread_mutex_destroy(&fs->flushes.lock);
    pthread_mutex_destroy(&fs->trim_lock);
    pthread_rwlock_destroy(&fs->shape_lock);
    ffs_sums_destroy(&fs->sums);
    for (unsigned i = 0; i < FFS_TX_BUFS; i++)
        free(fs->old_blocks[i]);
    free(fs);
}

int ffs_mount(struct bd_dev *dev, const struct ffs_mount_opts *opts, struct ffs **out, char *why,
              size_t len)
{
    struct ffs_reason r = {why, len};
    struct ffs *fs = calloc(1, sizeof(*fs));

    if (!fs)
        return ffs_refuse(&r, -ENOMEM, "out of memory");
    fs->dev = dev;
    fs->semantics = &ffs_semantics;
    if (opts)
        fs->opts = *opts;
    fs->mounting = true;
    init_locks(fs);
    ffs_set_access(fs, fs->opts.access);
    ffs_set_commit(fs, fs->opts.commit_ms);
    ffs_set_discard(fs, fs->opts.discard);

    int err = mount_start(fs, &r);
    if (!err)
        err = start_writing(fs, &r);
    if (err) {
        mount_destroy(fs);
        return err;
    }
    fs->mounting = false;
    *out = fs;
    return 0;
}

/*
 * Commits the last transaction. If orphans are left, the next mount has to
 * finish them, so the file system is not marked as clean.
 */
static int mark_clean(struct ffs *fs)
{
    struct ffs_tx *tx;

    if (lay_get64(ffs_super(fs)->orphan) != LAY_NONE)
        return 0;
    int err = begin_super(fs, &tx);
    if (err)
        return err;
    struct lay_super *sb = ffs_super(fs);
    sb->state = lay_put32(lay_get32(sb->state) | LAY_STATE_CLEAN);
    ffs_tx_end(tx);
    return 0;
}

/* Writes metadata in memory to the log and in place. */
static int finish_writing(struct ffs *fs)
{
    unsigned health = ffs_health(fs);

    if (health & (FFS_READ_ONLY | FFS_DOWN))
        return 0;
    ffs_itable_drain(fs);
    ffs_sums_settle(fs, true);
    int err = ffs_health(fs) & FFS_CORRUPT ? -EUCLEAN : ffs_writable(fs);
    if (!err)
        err = mark_clean(fs);
    /*
     * This is also done after a corruption was found: earlier complete
     * operations are kept, with the mark for fsck.
     */
    int commit_err = ffs_commit(fs, ffs_running_tid(fs));
    if (!commit_err)
        commit_err = ffs_checkpoint_now(fs);
    return err ? err : commit_err;
}

int ffs_unmount(struct ffs *fs)
{
    ffs_background_stop(fs);
    int err = finish_writing(fs);
    mount_destroy(fs);
    return err;
}

/* --- Synchronization ------------------------------------------------------------------------- */

/*
 * A commit flushes the device before it writes its last block. The flush covers the data only if
 * the commit began after the data was written. That is certain for the running transaction. An
 * older one may have begun to commit earlier, so data that was overwritten in place needs another
 * flush.
 */
int ffs_fsync(struct ffs_inode *inode, bool data_only)
{
    struct ffs *fs = inode->fs;
    int err = ffs_alive(fs);

    if (err)
        return err;
    uint64_t tid = atomic_load(data_only ? &inode->data_tid : &inode->tid);
    bool flushes = tid == ffs_running_tid(fs);
    err = ffs_commit(fs, tid);
    return err || flushes ? err : ffs_flush(fs);
}

#define DEFAULT_COMMIT_MS 5000u

int ffs_sync(struct ffs *fs)
{
    uint64_t tid = ffs_running_tid(fs);
    int err = ffs_alive(fs);

    if (!err)
        err = ffs_commit(fs, tid);
    /*
     * The commit of the transaction that was running at the call flushes after the call. If that
     * transaction was empty, the last flush may be older than the last written data.
     */
    if (!err && atomic_load(&fs->journal.committed) < tid && !fs->dev->info.read_only)
        err = ffs_flush(fs);
    return err;
}

int ffs_shutdown(struct ffs *fs, bool flush)
{
    int err = flush ? ffs_sync(fs) : 0;

    atomic_fetch_or(&fs->health, FFS_DOWN);
    return err;
}

/* Waits until it is time to commit. Returns false if the thread has to stop. */
static bool sync_wait_turn(struct ffs_background *b, unsigned ms)
{
    uint64_t until = deadline_after_ms(ms);

    pthread_mutex_lock(&b->lock);
    while (!b->stop && !b->hurry) {
        if (cond_wait_until(&b->wake, &b->lock, until) == ETIMEDOUT)
            break;
    }
    b->hurry = false;
    bool go_on = !b->stop;
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

static void *sync_run(void *arg)
{
    struct ffs *fs = arg;
    uint64_t last = UINT64_MAX;

    while (sync_wait_turn(&fs->background, atomic_load(&fs->commit_ms))) {
        /*
         * A failure has been logged, and every later call reports it. A checkpoint follows when the
         * log is half full, so that no fsync has to wait for one, and when no commit has followed
         * the last one for a turn, because only a later commit reveals that a commit block was
         * lost.
         */
        ffs_sums_settle(fs, false);
        if (ffs_commit(fs, ffs_running_tid(fs)))
            continue;
        uint64_t committed = atomic_load(&fs->journal.committed);
        ffs_checkpoint_above(fs, committed == last ? 0 : fs->geo.journal_blocks / 2);
        last = committed;
    }
    return NULL;
}

/* Ends the wait under way, so that the new interval applies at once. */
void ffs_set_commit(struct ffs *fs, unsigned commit_ms)
{
    atomic_store(&fs->commit_ms, commit_ms ? commit_ms : DEFAULT_COMMIT_MS);
    ffs_background_hurry(fs);
}

int ffs_background_start(struct ffs *fs)
{
    struct ffs_background *b = &fs->background;
    int err = -pthread_create(&b->thread, NULL, sync_run, fs);

    b->running = err == 0;
    return err;
}

void ffs_background_stop(struct ffs *fs)
{
    struct ffs_background *b = &fs->background;

    if (!b->running)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->running = false;
}

/* --- Foreign signatures ---------------------------------------------------------------------- */

/* The offset at which partitioning tools start the first partition. */
#define OURS_FIRST_PARTITION (1u << 20)

/* Reports what is wrong with block 0. */
struct ours {
    struct bd_dev *dev;
    struct lay_geometry geo; /* valid if the superblock is */
    bool sound;
    bool newer;     /* a superblock of an unknown version */
    bool plausible; /* it has the magic, or cannot be read */
};

/*
 * Returns whether a signature counts as foreign. Within a file system with a
 * valid superblock, users may have written anything to data and to the payload
 * of metadata. Signatures after its end count, and so do those in its own areas
 * at a block that does not begin like metadata.
 */
static bool ours_counts(const struct bd_signature *s, void *context)
{
    const struct ours *o = context;
    uint64_t block = s->offset >> LAY_BLOCK_SHIFT;
    union lay_block b;

    if (!o->sound || s->offset == BD_SIGNATURE_NOWHERE || block >= o->geo.blocks)
        return true;
    if (lay_range_ok(&o->geo, block, 1))
        return false;
    return bd_read(o->dev, block << LAY_BLOCK_SHIFT, &b, sizeof(b)) == 0 &&
           memcmp(&b.head.magic, "GN", 2) != 0;
}

/* Returns 1 if there is a foreign signature, 0 if not, or -errno. */
static int look_for_foreign(struct ours *o, struct bd_signature *s)
{
    uint32_t lba_size = o->dev->info.lba_size;
    int fd;
    int found = bd_signature_copy_ends(o->dev, &fd);

    if (found)
        return found;
    found = bd_signature_find(fd, 0, lba_size, ours_counts, o, s);
    /*
     * A partition may outlive its table if only the table's block was
     * overwritten.
     */
    if (!found && !o->plausible && o->dev->info.bytes > OURS_FIRST_PARTITION)
        found = bd_signature_find(fd, OURS_FIRST_PARTITION, lba_size, ours_counts, o, s);
    close(fd);
    return found;
}

static int read_block_0(struct ours *o)
{
    struct lay_super *sb = malloc(sizeof(*sb));
    int err = sb ? bd_read(o->dev, 0, sb, sizeof(*sb)) : -ENOMEM;

    if (!err) {
        int check = lay_check_super(sb, 0, 0, &o->geo, NULL, NULL);
        o->sound = check == 0;
        o->newer = check == -ENOTSUP;
        o->plausible = lay_super_magic(sb);
    }
    free(sb);
    if (err != -EIO)
        return err;
    o->plausible = true;
    return 0;
}

int ffs_ours(struct bd_dev *dev, bool reclaim, char *why, size_t len)
{
    const struct ffs_reason r = {why, len};
    struct ours o = {.dev = dev};
    struct bd_signature s;

    if (dev->info.bytes < LAY_BLOCK_SIZE)
        return 0;
    int err = read_block_0(&o);
    if (!err && o.newer)
        return 0;
    if (!err)
        err = look_for_foreign(&o, &s);
    if (err < 0)
        return ffs_refuse(&r, err, "cannot be searched for signatures: %s", strerror(-err));
    if (err)
        return ffs_refuse(
            &r, -EINVAL,
            "holds %s: no longer a gpunvmefs file system, nothing is written; only to "
            "discard that, run 'wipefs -a' and then 'fsck.gpunvme --reclaim'",
            s.name);
    if (!o.plausible && !reclaim)
        return ffs_refuse(&r, -EINVAL,
                          "holds no gpunvmefs file system, check the name of the device; "
                          "'fsck.gpunvme --reclaim' seeks one whose block 0 was overwritten");
    return 0;
}

/* --- Trim ------------------------------------------------------------------------------------ */

#define TRIM_CHUNK 4096u /* blocks that FITRIM keeps from being allocated at a time */

/*
 * The part of a group that is being trimmed: its free ranges of at least
 * `least` blocks.
 */
struct chunk {
    uint64_t group;
    uint32_t from, to, least;
};

/* Creates the group's map in a handle that changes nothing. */
static int trim_take_chunk(struct ffs *fs, const struct chunk *c, struct ffs_ranges *taken)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, 1, &tx);

    if (err)
        return err;
    err = ffs_alloc_hold(fs, c->group);
    if (!err) {
        pthread_mutex_lock(&a->lock);
        ffs_alloc_take_free(a, c->group, (struct ffs_found){c->from, c->to - c->from}, c->least,
                            taken);
        ffs_alloc_idle(a, c->group, 1);
        pthread_mutex_unlock(&a->lock);
    }
    ffs_tx_end(tx);
    return err;
}

/* Adds the blocks discarded to *done. */
static int trim_chunk(struct ffs *fs, const struct chunk *c, uint64_t *done)
{
    struct ffs_alloc *a = &fs->alloc;
    struct ffs_ranges taken = {0};
    struct ffs_discards b = {.fs = fs};

    pthread_mutex_lock(&fs->trim_lock);
    int err = ffs_sections_of(fs, c->group * LAY_GROUP_BLOCKS, 1);
    if (!err)
        err = trim_take_chunk(fs, c, &taken);
    for (size_t i = 0; i < taken.n; i++)
        ffs_discard_add(&b, taken.v[i].block, taken.v[i].len);
    ffs_discard_submit(&b);
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < taken.n; i++) {
        *done += taken.v[i].len;
        ffs_alloc_give_back(a, taken.v[i].block, taken.v[i].len, true);
    }
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_unlock(&fs->trim_lock);
    ffs_ranges_free(&taken);
    return err;
}

static struct chunk trim_chunk_at(uint64_t block, uint64_t end, uint64_t least)
{
    uint64_t first = block % LAY_GROUP_BLOCKS;
    uint64_t to = first - first % TRIM_CHUNK + TRIM_CHUNK;

    if (to > LAY_GROUP_BLOCKS)
        to = LAY_GROUP_BLOCKS;
    if (to > first + (end - block))
        to = first + (end - block);
    return (struct chunk){block / LAY_GROUP_BLOCKS, (uint32_t)first, (uint32_t)to,
                          (uint32_t)(least < LAY_GROUP_BLOCKS ? least : LAY_GROUP_BLOCKS)};
}

int ffs_trim(struct ffs *fs, const struct ffs_trim_range *range, ffs_stop_fn stop, void *arg,
             uint64_t *trimmed)
{
    uint64_t done = 0;
    int err = fs->dev->info.discards ? ffs_alive(fs) : -EOPNOTSUPP;

    *trimmed = 0;
    if (err)
        return err;
    ffs_meta_read(fs);
    uint64_t size = ffs_bytes(fs->geo.blocks);
    ffs_meta_done(fs);
    if (range->start >= size || range->len < LAY_BLOCK_SIZE)
        return -EINVAL;
    uint64_t len = range->len < size - range->start ? range->len : size - range->start;
    uint64_t block = (range->start + LAY_BLOCK_SIZE - 1) >> LAY_BLOCK_SHIFT;
    uint64_t end = (range->start + len) >> LAY_BLOCK_SHIFT;
    uint64_t least = range->min_len >> LAY_BLOCK_SHIFT;
    while (block < end && !err && !(stop && stop(arg))) {
        struct chunk c = trim_chunk_at(block, end, least);
        err = trim_chunk(fs, &c, &done);
        block += c.to - c.from;
    }
    *trimmed = ffs_bytes(done);
    return err;
}
