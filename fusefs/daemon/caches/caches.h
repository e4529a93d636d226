/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Limits cache directories, which are directories whose files, including those
 * of subdirectories, use no more space than a limit. The limit is the extended
 * attribute CACHES_LIMIT_XATTR, so it persists over mounts. A subdirectory with
 * a limit of its own is a separate cache and not part of the outer one.
 *
 * Files are removed in the order of their last use (the later of atime and
 * mtime), except open ones and those that the owner of the directory may not
 * unlink. A thread starts to remove files at 95 % of the limit and stops at
 * 90 %, so that writers rarely wait. It serves the owners of caches in turn. A
 * write that would exceed the limit waits for the thread, and fails with
 * -ENOSPC if too little can be removed. In that case no file is removed for the
 * write. Writes therefore never exceed the limit, except while the first walk
 * of a mount takes longer than CACHES_WAIT_MS.
 *
 * An inode belongs to the cache of the directory in which it was last looked up
 * or created. The kernel opens no file without a lookup, and the tag lasts as
 * long as the kernel knows the inode. A walk of the directory counts the size
 * of the files. Between two walks only growth is added, so the sum is never too
 * small.
 *
 * This code does not use FUSE. All functions except those that open and close
 * may be called from any thread.
 */
#ifndef FUSEFS_DAEMON_CACHES_CACHES_H
#define FUSEFS_DAEMON_CACHES_CACHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include "fusefs/core/ffs.h"

__BEGIN_DECLS

#define CACHES_LIMIT_XATTR "user.gpunvme.cache_limit"
/* A read-only attribute of cache directories: five words "name=number". */
#define CACHES_STATE_XATTR "user.gpunvme.cache_state"
/*
 * Maximum number of cache directories in a mount, and the number reserved for
 * directories of root. The other owners share the rest by ledger.h. Setting the
 * limit of another directory fails with -ENOSPC.
 */
#define CACHES_MAX      240
#define CACHES_FOR_ROOT 30

/* Bits of an inode's word (ffs_user_word()): number of the cache + 1, or 0. */
#define CACHES_TAG     0xff00u
#define CACHES_ONE_TAG 0x100u

struct caches;

static inline uint32_t caches_word_get(struct ffs_inode *inode)
{
    return __atomic_load_n(ffs_user_word(inode), __ATOMIC_SEQ_CST);
}
/* Returns the number of the inode's cache, or -1. */
static inline int caches_word_cache(struct ffs_inode *inode)
{
    return (int)((caches_word_get(inode) & CACHES_TAG) / CACHES_ONE_TAG) - 1;
}

/*
 * Called by the thread after it has removed a name, so that the kernel forgets
 * the name. It must not wait for requests of the kernel, since a writer may be
 * waiting for the thread.
 */
typedef void (*caches_removed_fn)(void *arg, uint64_t dir, uint64_t ino, const char *name);

/*
 * mounts is the file /proc/self/mountinfo, opened by the caller, or -1. Files and
 * directories on which something is mounted there are left alone: their owner
 * could not unlink them, and the removal of a name ends the mounts on it.
 */
int caches_open(struct ffs *fs, int mounts, struct caches **out);
/* Starts the thread. Writers may wait for it before it starts. */
int caches_start(struct caches *c, caches_removed_fn removed, void *arg);
/*
 * Stops the thread. Writes are no longer limited afterwards. May be called
 * twice.
 */
void caches_stop(struct caches *c);
/* Called after the last call of every other function. NULL does nothing. */
void caches_close(struct caches *c);

/*
 * Sets the limit, a decimal number of bytes, and waits up to CACHES_WAIT_MS
 * until the directory complies, unless many calls of its owner wait already. Returns -EPERM if the
 * caller is neither root nor the owner of the directory, since files are removed with the owner's
 * rights, -EINVAL if the value is not a number above 0 or the inode is not a directory, and
 * otherwise as ffs_setxattr().
 */
#define CACHES_WAIT_MS 10000u
int caches_set(struct caches *c, struct ffs_inode *dir, uid_t caller, const char *value, size_t len,
               int flags);
/* Removes the limit. Returns -EPERM as caches_set(), or -ENODATA without a limit. */
int caches_clear(struct caches *c, struct ffs_inode *dir, uid_t caller);
/*
 * Stores CACHES_STATE_XATTR, unless size is 0, and returns its length. Returns
 * -ENODATA if the directory is not a cache.
 */
ssize_t caches_state(struct caches *c, struct ffs_inode *dir, char *value, size_t size);

/* Called after inode has been reported to the kernel as an entry of dir. */
void caches_adopt(struct caches *c, struct ffs_inode *dir, struct ffs_inode *inode);
/* Called after a directory was removed. */
void caches_prune(struct caches *c);

/*
 * Bracket any operation that may allocate blocks for bytes [offset, offset +
 * len) of a file. begin waits for room up to CACHES_WAIT_MS. It returns 0,
 * after which end must follow, or -ENOSPC.
 */
struct caches_charge {
    int cache; /* -1 if the file is in no cache */
    uint64_t before, held;
};
/* Begin and end a charge of a file in the cache charge->cache. */
int caches_charge_in(struct caches *c, struct ffs_inode *inode, uint64_t offset, uint64_t len,
                     struct caches_charge *charge);
void caches_charge_out(struct caches *c, struct ffs_inode *inode,
                       const struct caches_charge *charge);
static inline int caches_charge_begin(struct caches *c, struct ffs_inode *inode, uint64_t offset,
                                      uint64_t len, struct caches_charge *charge)
{
    charge->cache = caches_word_cache(inode);
    return charge->cache < 0 ? 0 : caches_charge_in(c, inode, offset, len, charge);
}
static inline void caches_charge_end(struct caches *c, struct ffs_inode *inode,
                                     const struct caches_charge *charge)
{
    if (charge->cache >= 0)
        caches_charge_out(c, inode, charge);
}
/*
 * Behave like ffs_link() and ffs_rename(), within the limit of the new
 * directory if it is in another cache (-ENOSPC); an exchange keeps both limits.
 * A directory that is moved into a cache is counted from the next walk on.
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
 * Called when an open file description of the inode begins and ends. Returns
 * -ESTALE if the thread has removed the file and the kernel does not know it
 * yet; the kernel then looks the name up again.
 */
int caches_file_opened(struct ffs_inode *inode);
void caches_file_closed(struct ffs_inode *inode);
/*
 * Returns true if opening the file counts as a use that protects it from
 * removal.
 */
bool caches_counts_use(struct ffs_inode *inode);

__END_DECLS

#endif
