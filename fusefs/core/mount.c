/*
 * Mounting and unmounting.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/extents.h"
#include "fusefs/core/state.h"
#include "fusefs/core/tx.h"

/* What a mount has to say when it fails. */
struct reason {
    char *text;
    size_t len;
};

static int fail(const struct reason *r, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(const struct reason *r, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (r->len > 0)
        vsnprintf(r->text, r->len, fmt, ap);
    va_end(ap);
    return err;
}

static uint64_t device_blocks(const struct ffs *fs)
{
    return fs->dev->info.bytes >> LAY_BLOCK_SHIFT;
}

static int read_super(struct ffs *fs, uint64_t at, struct lay_super *sb, struct lay_geometry *geo,
                      const struct reason *r)
{
    const char *why = "";
    uint64_t features;
    int err = bd_read(fs->dev, ffs_bytes(at), sb, LAY_BLOCK_SIZE);
    if (err)
        return fail(r, -EIO, "cannot read the superblock: %s", strerror(-err));
    err = lay_check_super(sb, at, device_blocks(fs), geo, &features, &why);
    if (err == -EINVAL)
        return fail(r, err, "not a gpunvmefs file system");
    if (err == -ENOTSUP)
        return fail(r, err, "made by a newer version: %s (unknown features 0x%llx)", why,
                    (unsigned long long)features);
    return err ? fail(r, err, "superblock at block %llu: wrong %s; run fsck.gpunvme",
                      (unsigned long long)at, why)
               : 0;
}

/*
 * A power cut can tear the superblock while a checkpoint writes it. What names the copies never
 * changes, so it is right in any mixture of old and new; a copy knows where the journal is, and the
 * journal has the block whole. (mount_journal() then reads block 0 again.)
 */
static int find_geometry(struct ffs *fs, struct lay_super *sb, const struct reason *r)
{
    struct lay_super copy;
    int err = read_super(fs, 0, sb, &fs->geo, r);
    if (err != -EUCLEAN)
        return err;
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        uint64_t at = lay_get64(sb->copies[i]);
        struct reason quiet = {NULL, 0};
        if (at > 0 && at < device_blocks(fs) && !read_super(fs, at, &copy, &fs->geo, &quiet))
            return 0;
    }
    return err;
}

/*
 * The superblock after recovery. Memory was laid out for the geometry read before it, which no
 * transaction changes: a crafted one may say otherwise.
 */
static int reread_super(struct ffs *fs, struct lay_super *sb, const struct reason *r)
{
    struct lay_geometry geo;
    uint64_t features;
    const char *why = "";
    int err;
    if (ffs_home_read(&fs->home, 0, sb)) {
        err = lay_check_super(sb, 0, device_blocks(fs), &geo, &features, &why);
        if (err)
            return fail(r, -EUCLEAN, "superblock in the journal: wrong %s; run fsck.gpunvme", why);
    } else {
        err = read_super(fs, 0, sb, &geo, r);
        if (err)
            return err;
    }
    if (memcmp(&geo, &fs->geo, sizeof(geo)) != 0)
        return fail(r, -EUCLEAN, "superblocks contradict each other; run fsck.gpunvme");
    return 0;
}

/* Replays the journal; the superblock is as the last transaction left it on return. */
static int mount_journal(struct ffs *fs, struct lay_super *sb, const struct reason *r)
{
    bool write = !fs->dev->info.read_only && !(fs->geo.ro_compat & ~LAY_FEATURE_RO_COMPAT);
    bool found = false;
    const char *why = "";
    bool clean = lay_get32(sb->state) & LAY_STATE_CLEAN;
    int err = ffs_recover(fs, clean, write, &found, &why);
    if (err == -EUCLEAN)
        return fail(r, err, "journal damaged: %s; run fsck.gpunvme", why);
    if (err)
        return fail(r, err, "%s: %s", why, strerror(-err));
    if (found)
        ffs_log(fs, 5, "%s: journal replayed%s", fs->dev->info.name, write ? "" : " in memory");
    return reread_super(fs, sb, r);
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

/* In one durable step: not clean any more, mounted once more. */
static int mark_mounted(struct ffs *fs)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(fs, 1, &tx);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, fs->super);
    if (err) {
        ffs_tx_abort(tx);
        return err;
    }
    struct lay_super *sb = ffs_super(fs);
    sb->state = lay_put32(lay_get32(sb->state) & ~LAY_STATE_CLEAN);
    sb->mounts = lay_put64(lay_get64(sb->mounts) + 1);
    sb->mounted = ffs_now();
    ffs_tx_end(tx);
    err = ffs_commit(fs, ffs_running_tid(fs));
    return err ? err : ffs_checkpoint_now(fs);
}

static int check_access(struct ffs *fs, const struct reason *r)
{
    uint64_t ro_compat = fs->geo.ro_compat & ~LAY_FEATURE_RO_COMPAT;
    if (fs->opts.read_only)
        return 0;
    if (fs->dev->info.read_only)
        return fail(r, -EROFS, "the device is read-only: mount it read-only");
    if (ro_compat)
        return fail(r, -EROFS, "unknown features 0x%llx: can be mounted read-only",
                    (unsigned long long)ro_compat);
    return 0;
}

static int start(struct ffs *fs, const struct reason *r)
{
    struct lay_super *sb = malloc(sizeof(*sb));
    if (!sb)
        return fail(r, -ENOMEM, "out of memory");
    int err = find_geometry(fs, sb, r);
    if (!err)
        err = check_access(fs, r);
    if (err)
        goto free_sb;
    err = ffs_home_init(&fs->home, fs->geo.journal_blocks);
    if (!err)
        err = ffs_journal_init(fs);
    if (!err)
        err = ffs_itable_init(&fs->itable);
    if (!err)
        err = ffs_cache_init(&fs->cache, fs->opts.cache_bytes);
    if (!err)
        err = ffs_alloc_init(fs);
    if (err) {
        fail(r, err, "out of memory");
        goto free_sb;
    }
    err = mount_journal(fs, sb, r);
    if (!err)
        err = load_super(fs, sb);
free_sb:
    free(sb);
    return err;
}

/* Writes a copy: block 0 as it is in memory, under the copy's own address. */
static int write_copy(struct ffs *fs, uint64_t at)
{
    struct lay_super *copy = bd_dma_alloc(fs->dev, LAY_BLOCK_SIZE);
    if (!copy)
        return -ENOMEM;
    ffs_meta_read(fs);
    memcpy(copy, fs->super->data, LAY_BLOCK_SIZE);
    ffs_meta_done(fs);
    lay_head_init(&copy->head, LAY_MAGIC_SUPER, fs->geo.uuid, at, 0);
    lay_seal(copy, atomic_load(&fs->journal.committed));
    int err = bd_write(fs->dev, ffs_bytes(at), copy, LAY_BLOCK_SIZE, BD_FUA);
    bd_dma_free(fs->dev, copy, LAY_BLOCK_SIZE);
    return err;
}

/* A copy that a power cut tore while it was written. */
static int repair_copies(struct ffs *fs)
{
    struct reason quiet = {NULL, 0};
    struct lay_geometry geo;
    struct lay_super *copy = malloc(sizeof(*copy));
    int err = copy ? 0 : -ENOMEM;
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++) {
        if (read_super(fs, fs->geo.copies[i], copy, &geo, &quiet))
            err = write_copy(fs, fs->geo.copies[i]);
    }
    free(copy);
    return err;
}

static int start_writing(struct ffs *fs, const struct reason *r)
{
    if (fs->opts.read_only) {
        atomic_fetch_or(&fs->health, FFS_READ_ONLY);
        return 0;
    }
    int err = mark_mounted(fs);
    if (err == -EINTR)
        return fail(r, err, "interrupted, the next mount goes on");
    if (err)
        return fail(r, err, "cannot write to the device");
    err = repair_copies(fs);
    if (err)
        return fail(r, err, "cannot write a superblock copy");
    err = ffs_orphans_finish(fs);
    if (err == -EINTR)
        return fail(r, err, "interrupted, the next mount goes on");
    if (err)
        return fail(r, err, "cannot finish what a crash left (%s); run fsck.gpunvme",
                    strerror(-err));
    if (fs->opts.no_thread)
        return 0;
    err = ffs_background_start(fs);
    return err ? fail(r, err, "cannot start a thread: %s", strerror(-err)) : 0;
}

static void init_locks(struct ffs *fs)
{
    pthread_rwlockattr_t prefer_writer;
    pthread_condattr_t monotonic;

    pthread_rwlockattr_init(&prefer_writer);
    /* Readers come all the time; a handle must not wait until there are none. */
    pthread_rwlockattr_setkind_np(&prefer_writer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&fs->meta, &prefer_writer);
    pthread_rwlockattr_destroy(&prefer_writer);
    pthread_rwlock_init(&fs->inode_file.data, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&fs->background.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&fs->background.lock, NULL);
    pthread_mutex_init(&fs->flushes.lock, NULL);
}

static void destroy(struct ffs *fs)
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
    free(fs);
}

int ffs_mount(struct bd_dev *dev, const struct ffs_mount_opts *opts, struct ffs **out, char *why,
              size_t len)
{
    struct reason r = {why, len};
    struct ffs *fs = calloc(1, sizeof(*fs));
    if (!fs)
        return fail(&r, -ENOMEM, "out of memory");
    fs->dev = dev;
    if (opts)
        fs->opts = *opts;
    fs->mounting = true;
    init_locks(fs);

    int err = start(fs, &r);
    if (!err)
        err = start_writing(fs, &r);
    if (err) {
        destroy(fs);
        return err;
    }
    fs->mounting = false;
    *out = fs;
    return 0;
}

/* The last transaction. With orphans left, the next mount has something to do: not clean. */
static int mark_clean(struct ffs *fs)
{
    struct ffs_tx *tx;
    if (lay_get64(ffs_super(fs)->orphan) != LAY_NONE)
        return 0;
    int err = ffs_tx_begin(fs, 1, &tx);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, fs->super);
    if (err) {
        ffs_tx_abort(tx);
        return err;
    }
    struct lay_super *sb = ffs_super(fs);
    sb->state = lay_put32(lay_get32(sb->state) | LAY_STATE_CLEAN);
    ffs_tx_end(tx);
    return 0;
}

/* Block 0 is in place and durable; each copy is before the next is begun. */
static int refresh_copies(struct ffs *fs)
{
    int err = 0;
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++)
        err = write_copy(fs, fs->geo.copies[i]);
    return err;
}

/* Writes metadata in memory to the log and in place. */
static int finish_writing(struct ffs *fs)
{
    unsigned health = ffs_health(fs);
    if (health & (FFS_READ_ONLY | FFS_DOWN))
        return 0;
    ffs_itable_drain(fs);
    int err = ffs_health(fs) & FFS_CORRUPT ? -EUCLEAN : ffs_writable(fs);
    if (!err)
        err = mark_clean(fs);
    /*
     * Also after a corruption: operations complete before it are kept, with the mark for fsck.
     */
    int commit_err = ffs_commit(fs, ffs_running_tid(fs));
    if (!commit_err)
        commit_err = ffs_checkpoint_now(fs);
    if (!commit_err && !err)
        commit_err = refresh_copies(fs);
    return err ? err : commit_err;
}

int ffs_unmount(struct ffs *fs)
{
    ffs_background_stop(fs);
    int err = finish_writing(fs);
    destroy(fs);
    return err;
}
