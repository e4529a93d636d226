/* SPDX-License-Identifier: BSD-2-Clause */
/* Mounts and unmounts. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/map/extents.h"
#include "fusefs/core/mount/mount.h"
#include "support/clock.h"

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
    struct ffs_super_found *found = malloc(sizeof(*found));
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
