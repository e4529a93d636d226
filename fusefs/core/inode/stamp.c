/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Times of changes. A time has the resolution of the kernel's tick, so that
 * most writes within a tick change no metadata. The first change after the
 * times were read gets the exact time, so that it is visible. No later change
 * gets an earlier time.
 */
#include <time.h>

#include "fusefs/core/state.h"

#define SECOND_NS INT64_C(1000000000)

static int64_t stamp_read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static struct lay_time stamp_time_of(int64_t ns)
{
    return lay_time_make(ns / SECOND_NS, (uint32_t)(ns % SECOND_NS));
}

/* An exact time far in the future was taken before the clock was set back. */
static struct lay_time stamp_tick(const struct ffs *fs)
{
    int64_t now = stamp_read_clock(CLOCK_REALTIME_COARSE), ahead = fs->exact_stamp - now;

    return stamp_time_of(ahead > 0 && ahead < SECOND_NS ? fs->exact_stamp : now);
}

struct lay_time ffs_stamp_exact(struct ffs *fs)
{
    fs->exact_stamp = stamp_read_clock(CLOCK_REALTIME);
    return stamp_time_of(fs->exact_stamp);
}

void ffs_set_data_times(struct ffs *fs, bool by_caller)
{
    atomic_store(&fs->times_by_caller, by_caller);
}

/*
 * If the handle is aborted, exact_stamp keeps its value, which is later than
 * the times that were read.
 */
struct lay_time ffs_stamp(struct ffs_inode *inode)
{
    bool seen = atomic_exchange_explicit(&inode->times_seen, false, memory_order_relaxed);

    return seen ? ffs_stamp_exact(inode->fs) : stamp_tick(inode->fs);
}

void ffs_stamp_see(struct ffs_inode *inode)
{
    if (!atomic_load_explicit(&inode->times_seen, memory_order_relaxed))
        atomic_store_explicit(&inode->times_seen, true, memory_order_relaxed);
}

static bool stamp_is_same(struct lay_time a, struct lay_time b)
{
    return lay_time_sec(a) == lay_time_sec(b) && a.nsec.le == b.nsec.le;
}

bool ffs_stamp_stays(struct ffs_inode *inode)
{
    if (atomic_load_explicit(&inode->fs->times_by_caller, memory_order_relaxed))
        return true;
    if (atomic_load_explicit(&inode->times_seen, memory_order_relaxed))
        return false;
    struct lay_time now = stamp_tick(inode->fs);
    return stamp_is_same(inode->d.mtime, now) && stamp_is_same(inode->d.ctime, now);
}
