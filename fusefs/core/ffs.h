/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The live file system: what the daemon, the tools and the tests may call. No FUSE in here.
 *
 * Functions return 0 (or a byte count where said) or -errno with POSIX meaning; -EUCLEAN: the
 * image is corrupt (the file system turns read-only); -EROFS after that or after a write error;
 * -EIO for device errors and after ffs_shutdown(). All may be called from any thread.
 *
 * Permissions are the caller's business (the kernel checks them with default_permissions), except
 * for what only the file system can know: sticky and type rules of rename and unlink are the
 * kernel's too; set-id bits are cleared here on chown, and by ffs_clear_setid().
 *
 * Inodes are counted: every function that returns one gives a reference; ffs_iput() drops it.
 */
#ifndef FUSEFS_CORE_FFS_H
#define FUSEFS_CORE_FFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "blockdev/bdev.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ffs;
struct ffs_inode;

/* When reads set access times. */
enum ffs_access {
    FFS_ACCESS_RELATIVE =
        0, /* when the last access is not newer than the last change, or a day old */
    FFS_ACCESS_NEVER,
    FFS_ACCESS_ALWAYS,
    FFS_ACCESS_FILES_ONLY = 4, /* with one of the above: reads of directories never do */
};

struct ffs_mount_opts {
    unsigned access;    /* enum ffs_access */
    bool read_only;     /* replays the journal in memory only when it has to */
    unsigned commit_ms; /* time between background commits; 0: 5,000 */
    size_t cache_bytes; /* of clean metadata kept; 0: 64 MiB */
    bool discard;       /* as ffs_set_discard() */
    bool no_thread;     /* no background commits: for tests */
    /*
     * Polled by ffs_mount() at least once for each MiB of the journal and each orphan; true: it
     * gives up with -EINTR, and the next mount begins recovery again. NULL: never.
     */
    bool (*interrupted)(void);
    /* One line a message, no newline; NULL: silent. `level` as in syslog(3). */
    void (*log)(int level, const char *line);
};

/*
 * Decides whether the device still belongs to gpunvmefs, or has been given another use since: a
 * partition table, another file system, a member of a volume manager (FORMAT.md 4.1). Every program
 * asks before it reads a copy of the superblock or writes. It takes a few milliseconds and only
 * reads. If `reclaim` is true, block 0 need not have the magic of a superblock. A device that is
 * smaller than a block passes, and so does a superblock of a newer version: both are refused
 * elsewhere.
 *
 * Returns 0 if the device is ours. Otherwise `why` (of len bytes) holds a sentence without the
 * device's name: -EINVAL if the device is not ours, or the error of the device.
 */
int ffs_ours(struct bd_dev *dev, bool reclaim, char *why, size_t len);

/*
 * Checks the superblock, replays the journal, finishes orphans. The device must outlive the mount.
 * On failure `why` (of len bytes) holds the cause in words. -EINVAL: not this format; -ENOTSUP:
 * features or version not known; -EUCLEAN; -EROFS: needs a journal replay or has ro-compat features
 * and the device is read-only.
 */
int ffs_mount(struct bd_dev *dev, const struct ffs_mount_opts *opts, struct ffs **out, char *why,
              size_t len);
/* Commits, checkpoints, marks clean. Inodes still referenced are dropped. First error, or 0. */
int ffs_unmount(struct ffs *fs);

struct ffs_statfs {
    uint64_t blocks, free_blocks; /* of 4096 bytes */
    uint64_t inodes;              /* in use */
    uint8_t uuid[16];
    char label[64];
    bool read_only;
    bool failed;    /* read-only after an error, until the next mount */
    bool data_csum; /* data has checksums */
};
void ffs_statfs(struct ffs *fs, struct ffs_statfs *out);
/*
 * -EINVAL: longer than 63 bytes, not UTF-8, or with control characters. Durable after ffs_sync().
 */
int ffs_set_label(struct ffs *fs, const char *label);
/* Replace ffs_mount_opts.access and .commit_ms while mounted. */
void ffs_set_access(struct ffs *fs, unsigned access);
bool ffs_access_always(struct ffs *fs);
void ffs_set_commit(struct ffs *fs, unsigned commit_ms);
/*
 * by_caller: changes of data and size leave the times of a regular file alone, the caller stores
 * them with ffs_setattr(). Set before the first change.
 */
void ffs_set_data_times(struct ffs *fs, bool by_caller);
/*
 * Blocks are discarded on the device when the transaction that freed them is durable; those of a
 * pin wait for ffs_trim(). No effect on a device without discards.
 */
void ffs_set_discard(struct ffs *fs, bool discard);
struct ffs_trim_range {
    uint64_t start, len; /* of the device, bytes */
    uint64_t min_len;    /* shorter free ranges are left alone, bytes */
};
/* Polled now and then; true: enough. */
typedef bool (*ffs_stop_fn)(void *arg);
/*
 * Discards the free blocks of the range (FITRIM). *trimmed: bytes. -EOPNOTSUPP: the device has no
 * discards; -EINVAL: begins past the end, or is shorter than a block; -EROFS.
 */
int ffs_trim(struct ffs *fs, const struct ffs_trim_range *range, ffs_stop_fn stop, void *arg,
             uint64_t *trimmed);
/*
 * The file system becomes `blocks` long, larger, while it is in use: all handles wait while its
 * bitmaps are written anew, and its checksums. 0 also when it is that long already. -EINVAL: it
 * would shrink; -ENOSPC: the device has fewer blocks (bd_refresh() first); -EFBIG: more than the
 * format can count; -ERANGE: so few more that the new bitmaps and checksums have no room there;
 * -ENOTSUP: unknown features; -EUCLEAN: a bitmap is not the one last written, or a block does not
 * read back as written. Interrupted at any write, the next mount finds the old size or the new one.
 */
int ffs_grow(struct ffs *fs, uint64_t blocks);
/* Would it, if the device were as large as that? Errors as above but -ENOSPC and -EUCLEAN. */
int ffs_grow_check(struct ffs *fs, uint64_t blocks);
/* The fewest blocks above `old` that ffs_grow() takes a file system of `old` blocks to. */
uint64_t ffs_grow_least(uint64_t old, bool data_csum);
/*
 * The file system becomes `blocks` long, smaller; no other thread uses it, and it was mounted with
 * no_thread. -ENOSPC: its contents do not fit, or no range of free blocks is long enough for
 * the bitmaps; a part of them may have moved, which no user sees. Errors else as above.
 */
int ffs_shrink(struct ffs *fs, uint64_t blocks);
/* A size in blocks that should hold everything, whatever lies where. */
uint64_t ffs_shrink_least(struct ffs *fs);
/* Everything completed before the call is durable when it returns. */
int ffs_sync(struct ffs *fs);
/*
 * Makes every later call fail with -EIO; with `flush` complete operations are committed first.
 */
int ffs_shutdown(struct ffs *fs, bool flush);
/*
 * The device has failed for good: the file system becomes read-only, and fsync and unmount report
 * data that was not durable (-EIO). Only marks; calls nothing of the device.
 */
void ffs_device_lost(struct ffs *fs);

/* --- Inodes ---------------------------------------------------------------------------------- */

struct ffs_attr {
    uint64_t ino;
    uint32_t generation;
    uint32_t mode, nlink, uid, gid, rdev; /* rdev as in stat(2) on Linux (makedev) */
    uint64_t size;
    uint64_t blocks; /* of 512 bytes, as st_blocks */
    struct timespec atime, mtime, ctime, btime;
    uint32_t flags; /* LAY_INODE_* */
};

/* By number. -ESTALE when it is not in use. Also how FUSE node ids and file handles come back. */
int ffs_iget(struct ffs *fs, uint64_t ino, struct ffs_inode **out);
void ffs_iref(struct ffs_inode *inode, uint64_t n);
/* Dropping the last reference of an unlinked inode frees its blocks. */
void ffs_iput(struct ffs_inode *inode, uint64_t n);
uint64_t ffs_ino(const struct ffs_inode *inode);
uint32_t ffs_generation(const struct ffs_inode *inode);
/*
 * A word for the caller's own use, accessed by __atomic operations. 0 when the
 * inode is read into memory; kept while references are held.
 */
uint32_t *ffs_user_word(struct ffs_inode *inode);
/* The same, for a number. */
uint32_t *ffs_user_count(struct ffs_inode *inode);

void ffs_getattr(struct ffs_inode *inode, struct ffs_attr *out);

enum ffs_set {
    FFS_SET_MODE = 1,
    FFS_SET_UID = 2,
    FFS_SET_GID = 4,
    FFS_SET_SIZE = 8,
    FFS_SET_ATIME = 16,
    FFS_SET_MTIME = 32,
    FFS_SET_CTIME = 64,
    FFS_SET_ATIME_NOW = 128,
    FFS_SET_MTIME_NOW = 256,
    FFS_SET_FLAGS = 512,
};
/*
 * All of it or nothing. Returns the new attributes. LAY_INODE_GPU_BOUND can be set on directories,
 * whose new children inherit it, and on files without blocks (else -EINVAL).
 */
int ffs_setattr(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set,
                struct ffs_attr *out);

/*
 * Before a write, truncation or allocation by a caller without CAP_FSETID: clears set-user-id of a
 * file, and set-group-id where its group may execute it or the caller is an outsider, in no way in
 * that group.
 */
int ffs_clear_setid(struct ffs_inode *inode, bool outsider);

/*
 * After a read of a file or directory: sets the access time where it is due. A read does not fail
 * because its time could not be noted.
 */
void ffs_note_access(struct ffs_inode *inode);

/* --- Names ----------------------------------------------------------------------------------- */

struct ffs_cred {
    uint32_t uid, gid;
    uint32_t umask; /* applied to new inodes where the directory has no default ACL */
};

int ffs_lookup(struct ffs_inode *dir, const char *name, struct ffs_inode **out);
/* Any type but directory and symbolic link; rdev for devices. Set-gid directories hand down gid. */
int ffs_mknod(struct ffs_inode *dir, const char *name, uint32_t mode, uint32_t rdev,
              const struct ffs_cred *cred, struct ffs_inode **out);
int ffs_mkdir(struct ffs_inode *dir, const char *name, uint32_t mode, const struct ffs_cred *cred,
              struct ffs_inode **out);
int ffs_symlink(struct ffs_inode *dir, const char *name, const char *target,
                const struct ffs_cred *cred, struct ffs_inode **out);
/* Also gives a file made by ffs_tmpfile() its first name. -EMLINK past 65,000 links. */
int ffs_link(struct ffs_inode *inode, struct ffs_inode *dir, const char *name);
int ffs_unlink(struct ffs_inode *dir, const char *name);
/* The same while the name means this inode, on which the caller has a reference; else -ESTALE. */
int ffs_unlink_inode(struct ffs_inode *dir, const char *name, const struct ffs_inode *inode);
int ffs_rmdir(struct ffs_inode *dir, const char *name);
/*
 * flags: RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT of renameat2(2). A whiteout belongs to
 * the owner of the inode that was moved.
 */
int ffs_rename(struct ffs_inode *dir, const char *name, struct ffs_inode *new_dir,
               const char *new_name, uint32_t flags);
/* A file without a name (O_TMPFILE). */
int ffs_tmpfile(struct ffs_inode *dir, uint32_t mode, const struct ffs_cred *cred,
                struct ffs_inode **out);
/* Target length, target not terminated; at most size bytes are written. */
ssize_t ffs_readlink(struct ffs_inode *inode, char *buf, size_t size);
/* The parent of a directory, for lookup(".."). */
int ffs_parent(struct ffs_inode *dir, struct ffs_inode **out);

/*
 * Calls emit for each entry whose cookie is greater than `after` (0: from the start), "." and ".."
 * first, until emit returns non-zero. `cookie` continues after this entry, and stays valid while
 * other names come and go. emit must not call back into the file system.
 */
typedef int (*ffs_emit_fn)(void *arg, const char *name, size_t len, uint64_t ino, uint8_t type,
                           uint64_t cookie);
int ffs_readdir(struct ffs_inode *dir, uint64_t after, ffs_emit_fn emit, void *arg);

/* --- Data ------------------------------------------------------------------------------------ */

/* Bytes read, short only at the end of the file. Memory from ffs_dma_alloc() avoids a copy. */
ssize_t ffs_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);
/*
 * Bytes written (all, or up to the block where space ran out), at `offset`, growing the file up to
 * its largest size, 2^63 - 1 bytes: -EFBIG past that. Files that are GPU-bound take space in whole
 * units of 2 MiB, aligned on the device; the unwritten rest of a unit reads as zeros.
 */
ssize_t ffs_write(struct ffs_inode *inode, uint64_t offset, const void *buf, size_t len);
/* Data and metadata (data_only: the metadata needed to read the data back) are durable. */
int ffs_fsync(struct ffs_inode *inode, bool data_only);
/* mode: FALLOC_FL_KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE as in fallocate(2); -EOPNOTSUPP otherwise. */
int ffs_fallocate(struct ffs_inode *inode, uint32_t mode, uint64_t offset, uint64_t len);
/* SEEK_DATA or SEEK_HOLE: the new offset, or -ENXIO. */
int64_t ffs_seek(struct ffs_inode *inode, uint64_t offset, int whence);

/* What a scrub has found of a part of a file; counts are of blocks. */
#define FFS_SCRUB_BAD 512u
struct ffs_scrub {
    uint64_t next;     /* bytes; the end that was asked for, or where the next call goes on */
    uint64_t matching; /* as their checksums say */
    uint64_t added;    /* have one now */
    uint64_t without;  /* have none */
    size_t nbad;
    struct ffs_scrub_block {
        uint64_t offset, device; /* bytes, in the file and on the device */
        bool unreadable;         /* or else it differs from its checksum, twice */
    } bad[FFS_SCRUB_BAD];
};
/*
 * Reads the data of [offset, end) from the device, offset a multiple of 4096, and compares it with
 * its checksums, those that wait to be entered included; with `add`, blocks without get one of what
 * they hold. One call compares some 16 MiB. The file's data lock is held for 1 MiB at a time,
 * exclusively with `add`. -EOPNOTSUPP: no checksums, or the log is damaged and they may be older
 * than the data; -EISDIR, -EINVAL (no regular file); with `add`, -EROFS.
 */
int ffs_scrub(struct ffs_inode *inode, uint64_t offset, uint64_t end, bool add,
              struct ffs_scrub *out);

void *ffs_dma_alloc(struct ffs *fs, size_t len);
void ffs_dma_free(struct ffs *fs, void *buf, size_t len);

/* --- Extended attributes --------------------------------------------------------------------- */

/*
 * flags: XATTR_CREATE, XATTR_REPLACE. -ENOSPC when it does not fit in LAY_XATTR_BLOCKS_MAX blocks;
 * -E2BIG past 64 KiB, -ERANGE for names that are empty or longer than 255 bytes.
 */
int ffs_setxattr(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                 int flags);
/* Length; -ENODATA; -ERANGE when size is not 0 and too small. */
ssize_t ffs_getxattr(struct ffs_inode *inode, const char *name, void *buf, size_t size);
ssize_t ffs_listxattr(struct ffs_inode *inode, char *buf, size_t size);
int ffs_removexattr(struct ffs_inode *inode, const char *name);

#define FFS_ACL_ACCESS  "system.posix_acl_access"
#define FFS_ACL_DEFAULT "system.posix_acl_default"
/*
 * Sets one of the POSIX ACLs, in the form of <linux/posix_acl_xattr.h>, and with the access ACL the
 * permissions; value NULL removes it. Read them by ffs_getxattr(). keep_setgid: the caller may keep
 * the set-gid bit (it is in the group, or privileged). -EINVAL: no valid ACL; -EACCES: a default
 * ACL of another type than a directory; -EOPNOTSUPP: a symbolic link; -ENOSPC: more than some 490
 * entries.
 */
int ffs_set_acl(struct ffs_inode *inode, bool is_default, const void *value, size_t len,
                bool keep_setgid);

/* --- Extents, for transfers that go around the ordinary path --------------------------------- */

struct ffs_segment {
    uint64_t offset; /* in the file, bytes, a multiple of 4096 */
    uint64_t len;    /* bytes, a multiple of 4096 */
    uint64_t device; /* byte offset on the device; FFS_HOLE: reads as zeros */
    bool unwritten;  /* allocated, but reads as zeros; device is set */
};
#define FFS_HOLE UINT64_MAX

struct ffs_map {
    struct ffs_segment *segments; /* in file order, without gaps */
    size_t count;
    uint64_t start;      /* of the first segment, bytes: request offset rounded down */
    uint64_t len;        /* bytes of the request that exist: clipped at the end of the file */
    uint64_t size;       /* of the file, bytes; maps for reading */
    uint64_t generation; /* grows when a mapping of the inode changes */
    void *internal;
};

/*
 * Maps [offset, offset + len) for reading and pins the blocks: truncate, punch and unlink act at
 * once on the file, but the blocks are not given to anyone else until ffs_map_release().
 * Every write completed before the call is on the device.
 */
int ffs_map_read(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out);
/* The same of no more than `max` segments: len is clipped at the end of the last one, too. */
int ffs_map_read_some(struct ffs_inode *inode, uint64_t offset, uint64_t len, size_t max,
                      struct ffs_map *out);
void ffs_map_release(struct ffs_map *map);

/*
 * Maps [offset, offset + len), whole blocks, for writing: allocates missing blocks (as unwritten)
 * and keeps other writers, truncate and ordinary reads of the file out until ffs_map_write_end(),
 * which makes the first `written` bytes part of the file (size, times, unwritten -> written) and
 * leaves the rest unchanged. -ENOSPC, -EFBIG, -EINVAL. offset and len need not be whole blocks; the
 * segments cover them. Unwritten blocks that the request covers in part are zeroed, so that a
 * transfer may read, change and write them back. The thread that maps also ends the map, because it
 * holds a lock of the inode, and calls nothing else on the inode in between.
 */
int ffs_map_write(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out);
int ffs_map_write_end(struct ffs_map *map, uint64_t written);
/*
 * The same, of whole blocks, with the CRC-32C of each of them as it was written: ffs_sum_of(), or
 * FFS_NO_SUM for a block whose content is not known. They become the checksums of the data.
 */
int ffs_map_write_end_sums(struct ffs_map *map, uint64_t written, const uint32_t *sums);

/*
 * The checksums of the file's data, for transfers that a caller verifies: of n blocks of 4096 bytes
 * from file byte `offset`, a multiple of that, on. FFS_NO_SUM: the block has none, as holes,
 * blocks past the end, and all blocks of a file system without checksums. A writer may change a
 * block and its checksum at any time; ffs_read() says then what the block holds.
 */
#define FFS_NO_SUM 0u
int ffs_file_sums(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums);
/* The same without waiting for a writer of the file: -EAGAIN. */
int ffs_file_sums_now(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums);
/* The entry for a block whose CRC-32C this is. */
uint32_t ffs_sum_of(uint32_t crc);

/*
 * Ends a map of either kind when commands of its transfer can neither be waited for nor ended: its
 * blocks are not reused in this mount. After a map for writing the file system is read-only
 * (-EROFS); operations completed before stay so, and can still become durable.
 */
void ffs_map_abandon(struct ffs_map *map);

/*
 * Counts the changes of an inode's extents and size, from 1 on, in a word that other processes may
 * read. The word is stored (release) at the end of the handle: a reader that knows of a completed
 * write or truncate and then loads the word (acquire) finds it counted. The caller keeps watch,
 * word and a reference on the inode until ffs_watch_remove().
 */
struct ffs_watch {
    uint64_t changes; /* protected by the file system's lock, as all of it */
    uint64_t *word;   /* NULL: not published yet */
    uint32_t *sums;   /* of each block of the file, as mapped; NULL: none */
    uint64_t n_sums;
    struct ffs_watch *next;
};
void ffs_watch_add(struct ffs_inode *inode, struct ffs_watch *w);
/* From now on, changes stand in *word; those since ffs_watch_add() at once. */
void ffs_watch_share(struct ffs_inode *inode, struct ffs_watch *w, uint64_t *word);
/*
 * Stores the checksums of the map's blocks to sums, one for each block of the file from its start
 * on (a map of the whole file, n blocks); FFS_NO_SUM as for ffs_file_sums(), and for blocks that
 * are no longer the file's. From then on a word becomes FFS_NO_SUM before its block is overwritten,
 * and that counts as a change: a reader that loads the word (relaxed) after the data of a block,
 * and finds a checksum, has the data that it belongs to, or damaged data. Waits for writers.
 */
int ffs_watch_sums(struct ffs_inode *inode, struct ffs_watch *w, const struct ffs_map *map,
                   uint32_t *sums, uint64_t n);
void ffs_watch_remove(struct ffs_inode *inode, struct ffs_watch *w);
bool ffs_watch_any(struct ffs_inode *inode);

/* Extents as they are, for listing: up to max segments from `offset` on; the count, or -errno. */
ssize_t ffs_extents(struct ffs_inode *inode, uint64_t offset, struct ffs_segment *out, size_t max);

#ifdef __cplusplus
}
#endif

#endif
