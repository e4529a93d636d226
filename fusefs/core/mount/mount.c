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
#include "fusefs/core/state.h"
#include "support/clock.h"

/* --- Labels and superblock ------------------------------------------------------------------- */

static uint64_t device_blocks(const struct ffs *fs)
{
    return fs->dev->info.bytes >> LAY_BLOCK_SHIFT;
}

/* Explains why lay_labels_read() has failed. */
static int refuse_labels(const struct ffs *fs, int err, struct reason *why)
{
    const struct lay_labels *labels = &fs->labels;
    const struct lay_member *member = &lay_labels_newest(labels)->members[0];

    switch (err) {
    case -ERANGE:
        return reason_set(why, -EUCLEAN,
                          "the device ends at %llu of the file system's %llu bytes; truncated, "
                          "give it that length again",
                          (unsigned long long)fs->dev->info.bytes,
                          (unsigned long long)ffs_bytes(lay_get64(member->blocks)));
    case -ENOTSUP:
        if (labels->features)
            return reason_set(why, err, "%s (0x%llx)", labels->why,
                              (unsigned long long)labels->features);
        return reason_set(why, err, "%s", labels->why);
    case -EUCLEAN:
        return reason_set(why, err, "labels damaged: %s; run fsck.gpunvme", labels->why);
    default:
        return reason_set(why, err, "%s", labels->why);
    }
}

/* Finds the label that counts, and the part of the geometry that it has. */
static int read_labels(struct ffs *fs, struct reason *why)
{
    const struct lay_io io = ffs_io(fs->dev);

    if (device_blocks(fs) == 0)
        return reason_set(why, -EINVAL, "too small to hold a file system; truncated, or no image");
    int err = lay_labels_read(&io, device_blocks(fs), false, &fs->labels);
    if (err)
        return refuse_labels(fs, err, why);
    fs->label = *lay_labels_newest(&fs->labels);
    lay_label_geometry(&fs->label, &fs->geo);
    for (unsigned i = 0; i < LAY_LABEL_COPIES; i++) {
        if (fs->labels.copies[i].error)
            ffs_log(fs, LOG_WARNING, "label %u damaged (%s); the other one is used", i,
                    fs->labels.copies[i].why);
    }
    return 0;
}

void ffs_statfs(struct ffs *fs, struct ffs_statfs *out)
{
    memset(out, 0, sizeof(*out));
    ffs_meta_read(fs);
    out->blocks = fs->geo.blocks;
    out->free_blocks = ffs_free_blocks(fs);
    out->inodes = lay_get64(ffs_super(fs)->inodes);
    memcpy(out->label, fs->label.label, sizeof(out->label));
    memcpy(out->uuid, fs->label.uuid, sizeof(out->uuid));
    ffs_meta_done(fs);
    out->read_only = ffs_writable(fs) != 0;
    out->failed = ffs_health(fs) & FFS_FAILED;
    out->data_csum = ffs_has_sums(&fs->geo);
}

/* --- Mount ----------------------------------------------------------------------------------- */

static int load_super(struct ffs *fs, const struct lay_super *sb)
{
    struct ffs_cbuf *cb;
    int err = ffs_cache_create(fs, LAY_ADDR_SUPER, &cb);

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

/* Counts the mount in the running transaction. */
static int count_mount(struct ffs *fs)
{
    struct ffs_tx *tx;
    int err = begin_super(fs, &tx);

    if (err)
        return err;
    struct lay_super *sb = ffs_super(fs);
    sb->mounts = lay_put64(lay_get64(sb->mounts) + 1);
    sb->mounted = ffs_now();
    ffs_tx_end(tx);
    return 0;
}

/* Writes the superblock to one of its places. The other one is right. */
static int heal_super(struct ffs *fs, uint64_t place, const struct lay_super *super)
{
    int err = bd_write(fs->dev, ffs_bytes(place), super, LAY_BLOCK_SIZE, 0);

    if (err == -EIO) {
        ffs_checked_lose_place(fs, place);
        return 0;
    }
    if (err)
        return err;
    ffs_log(fs, LOG_WARNING, "superblock at block %llu is damaged; written anew",
            (unsigned long long)place);
    return ffs_flush(fs);
}

/*
 * Writes the superblock to the place where it is damaged or older, unless the
 * log has an image, which a checkpoint writes to both places.
 */
static int heal_supers(struct ffs *fs, const struct ffs_recovered *found)
{
    int err = 0;

    if (ffs_home_has(&fs->home, LAY_ADDR_SUPER))
        return 0;
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++) {
        if (!found->supers.errors[i] && !found->supers.corrected[i] &&
            lay_age(&found->supers.copies[i]) == lay_age(&found->super))
            continue;
        err = heal_super(fs, fs->geo.supers[i], &found->super);
    }
    return err;
}

/*
 * Makes a new incarnation, whose labels are durable before any other write and
 * whose first write, apart from that of what a log lacks, is a commit (R2). Then
 * writes home what the log held.
 */
static int begin_incarnation(struct ffs *fs, const struct ffs_recovered *found)
{
    const struct ffs_log_tx empty = {.begins = false};
    struct lay_label label = fs->label;
    int err = ffs_label_write(fs, &label);

    if (err)
        return err;
    fs->label = label;
    err = ffs_recover_mend(fs, found);
    if (!err)
        err = ffs_log_write(fs, &empty);
    if (!err)
        err = heal_supers(fs, found);
    if (!err && (fs->home.table.n > 0 || found->corrected > 0))
        err = ffs_checkpoint(fs);
    return err;
}

static int check_access(struct ffs *fs, struct reason *why)
{
    uint64_t ro_compat = fs->geo.ro_compat & ~LAY_FEATURE_RO_COMPAT;

    if (fs->opts.read_only)
        return 0;
    if (fs->dev->info.read_only)
        return reason_set(why, -EROFS, "the device is read-only: mount it read-only");
    if (ro_compat)
        return reason_set(why, -EROFS, "unknown features 0x%llx: can be mounted read-only",
                          (unsigned long long)ro_compat);
    return 0;
}

/* Allocates the memory whose size depends on the log. */
static int init_journal(struct ffs *fs)
{
    int err = ffs_home_init(&fs->home, fs->geo.log_blocks);

    return err ? err : ffs_journal_init(fs);
}

/* Allocates all other memory whose size depends on the geometry. */
static int init_parts(struct ffs *fs)
{
    int err = ffs_itable_init(&fs->itable);

    if (!err)
        err = ffs_cache_init(&fs->cache, fs->opts.cache_bytes);
    return err ? err : ffs_alloc_init(fs);
}

static int recover(struct ffs *fs, struct ffs_recovered *found, struct reason *why)
{
    const struct lay_io io = ffs_io(fs->dev);
    int err = lay_supers_read(&io, &fs->geo, &found->supers);

    if (err)
        return reason_set(why, err, "cannot read the superblock: %s", strerror(-err));
    err = ffs_recover(fs, found, why);
    atomic_fetch_add(&fs->checked.corrected, found->corrected);
    if (!err && found->corrected > 0)
        ffs_log(fs, LOG_WARNING, "journal: one bit of %llu blocks was wrong and is corrected",
                (unsigned long long)found->corrected);
    if (!err && fs->home.table.n > 0)
        ffs_log(fs, LOG_NOTICE, "journal replayed%s", fs->opts.read_only ? " in memory" : "");
    return err;
}

static int start_from(struct ffs *fs, struct ffs_recovered *found, struct reason *why)
{
    int err = read_labels(fs, why);

    if (!err)
        err = check_access(fs, why);
    if (!err && init_journal(fs) != 0)
        err = reason_set(why, -ENOMEM, "out of memory");
    if (!err)
        err = recover(fs, found, why);
    if (!err && init_parts(fs) != 0)
        err = reason_set(why, -ENOMEM, "out of memory");
    if (err)
        return err;
    if (load_super(fs, &found->super))
        return reason_set(why, -ENOMEM, "out of memory");
    return ffs_recover_chunks(fs, why);
}

static int explain_writing(const struct ffs *fs, int err, struct reason *why)
{
    if (fs->journal.unwritable)
        return reason_set(why, err, "cannot write to the journal; run fsck.gpunvme -p");
    return reason_set(why, err, "cannot write to the device");
}

static int start_writing(struct ffs *fs, const struct ffs_recovered *found, struct reason *why)
{
    if (fs->opts.read_only) {
        atomic_fetch_or(&fs->health, FFS_READ_ONLY);
        return 0;
    }
    /* The commit of this mount and the one that ends a checkpoint must fit. */
    if (fs->journal.used + 2 > fs->geo.log_blocks)
        return reason_set(why, -EUCLEAN, "journal damaged: it is full; run fsck.gpunvme");
    int err = begin_incarnation(fs, found);
    if (!err)
        err = count_mount(fs);
    if (err)
        return explain_writing(fs, err, why);
    fs->checked.may_write = true;
    ffs_chunks_heal(fs);
    err = ffs_orphans_finish(fs);
    if (err && fs->journal.unwritable)
        return explain_writing(fs, err, why);
    if (err)
        return reason_set(why, err, "cannot finish what a crash left (%s); run fsck.gpunvme",
                          strerror(-err));
    if (fs->opts.no_thread)
        return 0;
    err = ffs_background_start(fs);
    return err ? reason_set(why, err, "cannot start a thread: %s", strerror(-err)) : 0;
}

static int mount_start(struct ffs *fs, struct reason *why)
{
    struct ffs_recovered *found = calloc(1, sizeof(*found));

    if (!found)
        return reason_set(why, -ENOMEM, "out of memory");
    int err = start_from(fs, found, why);
    if (!err)
        err = start_writing(fs, found, why);
    free(found->lacks);
    free(found);
    return err;
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
    pthread_mutex_init(&fs->sums.lock, NULL);
    pthread_mutex_init(&fs->checked.lock, NULL);
    pthread_mutex_init(&fs->scrubber.control, NULL);
    pthread_mutex_init(&fs->scrubber.lock, NULL);
    pthread_cond_init(&fs->scrubber.wake, NULL);
}

static void mount_destroy(struct ffs *fs)
{
    ffs_background_stop(fs);
    ffs_mmp_drop(fs->mmp, true);
    ffs_itable_destroy(&fs->itable);
    ffs_alloc_destroy(fs);
    ffs_chunks_destroy(fs);
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
    pthread_mutex_destroy(&fs->checked.lock);
    pthread_mutex_destroy(&fs->scrubber.control);
    pthread_mutex_destroy(&fs->scrubber.lock);
    pthread_cond_destroy(&fs->scrubber.wake);
    for (unsigned i = 0; i < FFS_TX_BUFS; i++)
        free(fs->old_blocks[i]);
    free(fs);
}

int ffs_mount(struct bd_dev *dev, const struct ffs_mount_opts *opts, struct ffs **out,
              struct reason *why)
{
    struct ffs *fs = calloc(1, sizeof(*fs));

    if (!fs)
        return reason_set(why, -ENOMEM, "out of memory");
    fs->dev = dev;
    fs->semantics = &ffs_semantics;
    if (opts)
        fs->opts = *opts;
    fs->mounting = true;
    init_locks(fs);
    ffs_set_access(fs, fs->opts.access);
    ffs_set_commit(fs, fs->opts.commit_ms);
    ffs_set_discard(fs, fs->opts.discard);

    int err = ffs_guard(fs, why);
    if (!err)
        err = mount_start(fs, why);
    if (err) {
        mount_destroy(fs);
        return err;
    }
    fs->mounting = false;
    *out = fs;
    return 0;
}

/*
 * Prepares the last transaction, which notes the clean unmount. If orphans are
 * left, the next mount has to finish them, so there is no note.
 */
static int mark_clean(struct ffs *fs)
{
    struct ffs_tx *tx;

    if (lay_get64(ffs_super(fs)->orphan) != LAY_NONE)
        return 0;
    int err = begin_super(fs, &tx);
    if (err)
        return err;
    fs->journal.closing = true;
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
    int commit_err = ffs_checkpoint_now(fs);
    return err ? err : commit_err;
}

int ffs_unmount(struct ffs *fs)
{
    ffs_scrub_stop(fs);
    ffs_background_stop(fs);
    int err = finish_writing(fs);
    mount_destroy(fs);
    return err;
}

/* --- Synchronization ------------------------------------------------------------------------- */

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
    if (!err && atomic_load(&fs->journal.committed) < tid)
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
        ffs_checkpoint_above(fs, committed == last ? 0 : fs->geo.log_blocks / 2);
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

/* What is known of the labels of a device. */
struct ours {
    struct bd_dev *dev;
    struct lay_labels labels;
    struct lay_geometry geo; /* valid if a label is */
    bool sound;
    bool newer;     /* a label of another version */
    bool plausible; /* block 0 has the magic, or cannot be read */
};

/*
 * Returns true if a signature counts as foreign. Within a file system with a
 * valid label, users may have written anything to data and to the payload
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

/* Completes the geometry from a sound superblock, if there is one. */
static int ours_read_supers(struct ours *o)
{
    const struct lay_io io = ffs_io(o->dev);
    struct lay_supers *supers = malloc(sizeof(*supers));
    int err = supers ? lay_supers_read(&io, &o->geo, supers) : -ENOMEM;

    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++) {
        if (!supers->errors[i] && !lay_check_super(&supers->copies[i], &o->geo, &o->geo, NULL))
            break;
    }
    free(supers);
    return err;
}

/* Judges only block 0, because the other label does not make a device ours. */
static int ours_read_labels(struct ours *o)
{
    const struct lay_io io = ffs_io(o->dev);
    const struct lay_label_copy *first = &o->labels.copies[0];
    int err = lay_labels_read(&io, o->dev->info.bytes >> LAY_BLOCK_SHIFT, true, &o->labels);

    o->sound = first->error == 0;
    o->newer = err == -ENOTSUP;
    o->plausible = first->error == -EIO || lay_label_magic(&first->label);
    if (o->sound)
        lay_label_geometry(&first->label, &o->geo);
    switch (err) {
    case 0:
        return o->sound ? ours_read_supers(o) : 0;
    case -EINVAL:
    case -ENOTSUP:
    case -EUCLEAN:
    case -EIO:
    case -ERANGE:
        return 0;
    default:
        return err;
    }
}

static int ours_judge(struct ours *o, bool reclaim, struct reason *why)
{
    struct bd_signature s;
    int err = ours_read_labels(o);

    if (!err && o->newer)
        return 0;
    if (!err)
        err = look_for_foreign(o, &s);
    if (err < 0)
        return reason_set(why, err, "cannot be searched for signatures: %s", strerror(-err));
    if (err)
        return reason_set(
            why, -EINVAL,
            "holds %s: no longer a gpunvmefs file system, nothing is written; only to "
            "discard that, run 'wipefs -a' and then 'fsck.gpunvme --reclaim'",
            s.name);
    if (!o->plausible && !reclaim)
        return reason_set(why, -EINVAL,
                          "holds no gpunvmefs file system, check the name of the device; "
                          "'fsck.gpunvme --reclaim' seeks one whose block 0 was overwritten");
    return 0;
}

int ffs_ours(struct bd_dev *dev, bool reclaim, struct reason *why)
{
    if (dev->info.bytes < LAY_BLOCK_SIZE)
        return 0;
    struct ours *o = calloc(1, sizeof(*o));
    if (!o)
        return reason_set(why, -ENOMEM, "out of memory");
    o->dev = dev;
    int err = ours_judge(o, reclaim, why);
    free(o);
    return err;
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

/* The handle changes nothing. */
static int trim_take_chunk(struct ffs *fs, const struct chunk *c, struct ffs_ranges *taken)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, 1, &tx);

    if (err)
        return err;
    err =
        ffs_alloc_keep(fs, c->group, (struct ffs_found){c->from, c->to - c->from}, c->least, taken);
    ffs_tx_end(tx);
    return err;
}

/* Adds the blocks discarded to *done. */
static int trim_chunk(struct ffs *fs, const struct chunk *c, uint64_t *done)
{
    struct ffs_ranges taken = {0};
    struct ffs_discards b = {.fs = fs};

    pthread_mutex_lock(&fs->trim_lock);
    int err = ffs_sections_of(fs, c->group * LAY_GROUP_BLOCKS, 1);
    if (!err)
        err = trim_take_chunk(fs, c, &taken);
    for (size_t i = 0; i < taken.n; i++)
        ffs_discard_add(&b, taken.v[i].block, taken.v[i].len);
    ffs_discard_submit(&b);
    for (size_t i = 0; i < taken.n; i++) {
        *done += taken.v[i].len;
        ffs_alloc_return(fs, taken.v[i].block, taken.v[i].len);
    }
    pthread_mutex_unlock(&fs->trim_lock);
    ffs_ranges_free(&taken);
    return err;
}

static struct chunk trim_chunk_at(uint64_t block, uint64_t end, uint64_t least)
{
    uint64_t first = block % LAY_GROUP_BLOCKS;
    uint64_t most = min_u64(first + (end - block), LAY_GROUP_BLOCKS);
    uint64_t to = min_u64(first - first % TRIM_CHUNK + TRIM_CHUNK, most);

    return (struct chunk){block / LAY_GROUP_BLOCKS, (uint32_t)first, (uint32_t)to,
                          (uint32_t)min_u64(least, LAY_GROUP_BLOCKS)};
}

int ffs_trim(struct ffs *fs, const struct ffs_trim_range *range, ffs_stop_fn stop, void *arg,
             uint64_t *trimmed)
{
    uint64_t done = 0;
    int err = fs->dev->info.discards ? ffs_alive(fs) : -EOPNOTSUPP;

    *trimmed = 0;
    if (!err)
        err = ffs_commit_freed(fs);
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
