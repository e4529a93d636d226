/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements mount -o remount. */
#include "fusefs/daemon/ioctl/remount.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/state/daemon.h"

#ifndef ST_NOSYMFOLLOW /* glibc does not define it */
#define ST_NOSYMFOLLOW 0x2000
#endif

/* Flags of a mount as returned by statvfs(2), and as accepted by mount(2). */
static const struct {
    unsigned long found, flag;
} kept[] = {
    {ST_NOSUID, MS_NOSUID},   {ST_NODEV, MS_NODEV},
    {ST_NOEXEC, MS_NOEXEC},   {ST_SYNCHRONOUS, MS_SYNCHRONOUS},
    {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME},
    {ST_RDONLY, MS_RDONLY},   {ST_NOSYMFOLLOW, MS_NOSYMFOLLOW},
};

/*
 * Returns the current flags, since mount(2) clears every flag that it is not
 * given.
 */
static unsigned long flags_now(const struct statvfs *st)
{
    unsigned long flags = 0;

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        flags |= st->f_flag & kept[i].found ? kept[i].flag : 0;
    /* The kernel preserves this one only without nodiratime. */
    if (!(st->f_flag & (ST_NOATIME | ST_RELATIME)))
        flags |= MS_STRICTATIME;
    return flags;
}

static unsigned long flags_wanted(const struct options *opts, const struct statvfs *st)
{
    unsigned long flags = (flags_now(st) & ~opts->clear_flags) | opts->set_flags;

    if (opts->given & OPTIONS_GIVEN_READ_ONLY) {
        flags &= ~(unsigned long)MS_RDONLY;
        flags |= opts->read_only ? MS_RDONLY : 0;
    }
    if (opts->given & OPTIONS_GIVEN_ACCESS) {
        flags &= ~(unsigned long)(MS_NOATIME | MS_NODIRATIME | MS_STRICTATIME);
        if (opts->access & FFS_ACCESS_NEVER)
            flags |= MS_NOATIME;
        else /* without any of these flags the old mode stays */
            flags |= opts->access & FFS_ACCESS_ALWAYS ? MS_STRICTATIME : MS_RELATIME;
        flags |= opts->access & FFS_ACCESS_FILES_ONLY ? MS_NODIRATIME : 0;
    }
    return flags;
}

static int tell_daemon(const struct options *opts, int root)
{
    const struct remount_args args = {.given = opts->given,
                                      .access = opts->access,
                                      .commit_s = opts->commit_s,
                                      .discard = opts->discard,
                                      .read_only = opts->read_only,
                                      .scrub_rate = opts->scrub_rate};

    return ioctl(root, REMOUNT_IOCTL, &args) == 0 ? 0 : -errno;
}

static int remount_in_kernel(const struct options *opts, const struct statvfs *st)
{
    unsigned long flags = flags_wanted(opts, st);

    return mount(NULL, opts->mountpoint, NULL, MS_REMOUNT | flags, NULL) == 0 ? 0 : -errno;
}

static const char *cause(int err)
{
    switch (err) {
    case -ENOTTY:
    case -EINVAL:
        return "not a mount of this version of gpunvmefs, unmount and mount again";
    case -EROFS:
        return "was mounted read-only, unmount and mount again";
    case -EBUSY:
        return "files are open for writing, close them first";
    default:
        return strerror(-err);
    }
}

/*
 * A remount to read-only starts with the kernel, which may refuse it because
 * files are open for writing. A remount to read-write starts with the daemon,
 * since the kernel would otherwise pass on writes that the daemon refuses.
 */
static int remount(const struct options *opts, int root)
{
    bool read_only = (opts->given & OPTIONS_GIVEN_READ_ONLY) && opts->read_only;
    struct statvfs st;
    int err = fstatvfs(root, &st) == 0 ? 0 : -errno;

    if (!err && read_only)
        err = remount_in_kernel(opts, &st);
    if (!err)
        err = tell_daemon(opts, root);
    return err || read_only ? err : remount_in_kernel(opts, &st);
}

int remount_run(const struct options *opts)
{
    int root = open(opts->mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int err = root >= 0 ? remount(opts, root) : -errno;

    if (err)
        log_line(LOG_ERR, "%s: not remounted: %s", opts->mountpoint, cause(err));
    if (root >= 0)
        close(root);
    return err ? EXIT_MOUNT : 0;
}

/* --- In the daemon --------------------------------------------------------------------------- */

static int apply_read_only(struct daemon *d, bool read_only)
{
    if (d->opts->read_only || d->stack.protected)
        return read_only ? 0 : -EROFS;
    atomic_store(&d->remounted_read_only, read_only);
    return read_only ? ffs_sync(d->stack.fs) : 0;
}

/* While the mount is read-only nothing is written, so there is no scrub. */
static int apply_scrub(struct daemon *d, const struct remount_args *args)
{
    if (args->given & OPTIONS_GIVEN_SCRUB)
        atomic_store(&d->scrub_rate, args->scrub_rate);
    uint64_t rate = atomic_load(&d->remounted_read_only) ? 0 : atomic_load(&d->scrub_rate);
    return stack_scrub(&d->stack, rate);
}

int remount_apply(struct daemon *d, const struct remount_args *args)
{
    struct ffs *fs = d->stack.fs;
    bool commit = args->given & OPTIONS_GIVEN_COMMIT;
    int err = commit && (args->commit_s < 1 || args->commit_s > COMMIT_S_MAX) ? -EINVAL : 0;

    if (!err && (args->given & OPTIONS_GIVEN_SCRUB) && args->scrub_rate > SCRUB_RATE_MAX)
        err = -EINVAL;
    if (!err && (args->given & OPTIONS_GIVEN_READ_ONLY))
        err = apply_read_only(d, args->read_only);
    if (!err && (args->given & (OPTIONS_GIVEN_READ_ONLY | OPTIONS_GIVEN_SCRUB)))
        err = apply_scrub(d, args);
    if (err)
        return err;
    if (args->given & OPTIONS_GIVEN_ACCESS)
        atomic_store(&d->access, args->access);
    ffs_set_access(fs, atomic_load(&d->remounted_read_only) ? (unsigned)FFS_ACCESS_NEVER
                                                            : atomic_load(&d->access));
    if (commit)
        ffs_set_commit(fs, args->commit_s * 1000);
    if (args->given & OPTIONS_GIVEN_DISCARD)
        ffs_set_discard(fs, args->discard);
    return 0;
}
