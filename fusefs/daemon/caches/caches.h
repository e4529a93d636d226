/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Cache directories: directories whose files, those of sub-directories included, take no more than
 * a limit. The limit is the extended attribute CACHES_LIMIT_XATTR, so it survives the mount. A
 * sub-directory with a limit of its own is a cache of its own, and not a part of the outer one.
 *
 * Files are removed in the order of their last use (the later of atime and mtime), unless they are
 * open. A thread removes them from 95 % of the limit on, down to 90 %, so that writers seldom
 * wait; a write that would pass the limit waits for the thread, and fails with -ENOSPC where
 * nothing more can be removed. No write passes the limit therefore, except while the first walk of
 * a mount takes longer than CACHES_WAIT_MS.
 *
 * An inode belongs to the cache of the directory in which it was last looked up or made: the kernel
 * opens no file without a lookup, and the tag lasts as long as the kernel knows the inode. What the
 * files take is counted by walking the directory; between two walks only growth is added, so the
 * sum is never too small.
 *
 * Without FUSE: all functions but those that open and close may be called from any thread.
 */
#ifndef FUSEFS_DAEMON_CACHES_CACHES_H
#define FUSEFS_DAEMON_CACHES_CACHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fusefs/core/ffs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CACHES_LIMIT_XATTR "user.gpunvme.cache_limit"
/* Of a cache directory, for reading alone: five words "name=number". */
#define CACHES_STATE_XATTR "user.gpunvme.cache_state"
/* At a time in one mount; setting the limit of another directory is refused with -ENOSPC. */
#define CACHES_MAX 64

struct caches;

/*
 * Called by the thread after it has removed a name, so that the kernel forgets it. Must not wait
 * for requests of the kernel: a writer may wait for the thread.
 */
typedef void (*caches_removed_fn)(void *arg, uint64_t dir, uint64_t ino, const char *name);

int caches_open(struct ffs *fs, struct caches **out);
/* Begins the thread; writers wait for it before and after. */
int caches_start(struct caches *c, caches_removed_fn removed, void *arg);
/* Ends the thread. From then on writes are not limited. May be called twice. */
void caches_stop(struct caches *c);
/* After the last call of every other function. NULL does nothing. */
void caches_close(struct caches *c);

/*
 * Sets the limit, a decimal number of bytes, and waits up to CACHES_WAIT_MS until the directory
 * keeps it. -EINVAL: not a number above 0, or no directory; else as ffs_setxattr().
 */
#define CACHES_WAIT_MS 10000u
int caches_set(struct caches *c, struct ffs_inode *dir, const char *value, size_t len, int flags);
/* -ENODATA: it has none. */
int caches_clear(struct caches *c, struct ffs_inode *dir);
/* The length of CACHES_STATE_XATTR; size 0 writes nothing. -ENODATA: no cache directory. */
ssize_t caches_state(struct caches *c, struct ffs_inode *dir, char *value, size_t size);

/* After the kernel has been told of inode as an entry of dir. */
void caches_adopt(struct caches *c, struct ffs_inode *dir, struct ffs_inode *inode);
/* After a directory was removed. */
void caches_prune(struct caches *c);

/*
 * Around whatever may allocate blocks for bytes [offset, offset + len) of a file. begin: 0, and end
 * must follow; or -ENOSPC. Waits up to CACHES_WAIT_MS.
 */
struct caches_charge {
    int cache; /* -1: of none */
    uint64_t before, held;
};
int caches_charge_begin(struct caches *c, struct ffs_inode *inode, uint64_t offset, uint64_t len,
                        struct caches_charge *charge);
void caches_charge_end(struct caches *c, struct ffs_inode *inode,
                       const struct caches_charge *charge);
/*
 * ffs_link() and ffs_rename(), between cache directories within the limit of the new one: -ENOSPC.
 * A directory that is moved into one counts from the next walk on.
 */
int caches_link(struct caches *c, struct ffs_inode *inode, struct ffs_inode *dir, const char *name);
struct caches_rename {
    struct ffs_inode *dir;
    const char *name;
    struct ffs_inode *new_dir;
    const char *new_name;
    uint32_t flags;
};
int caches_rename(struct caches *c, const struct caches_rename *r);

/*
 * An open file description of the inode begins, and ends. -ESTALE: the thread has removed the file,
 * and the kernel does not know yet; it looks the name up again.
 */
int caches_file_opened(struct ffs_inode *inode);
void caches_file_closed(struct ffs_inode *inode);
/* True: opening the file is a use, by which it is kept. */
bool caches_counts_use(struct ffs_inode *inode);

#ifdef __cplusplus
}
#endif

#endif
