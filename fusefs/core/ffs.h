/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the functions of the live file system for the daemon, the tools and
 * the tests. They do not use FUSE.
 *
 * Functions return 0 (or a byte count where stated) or -errno with its POSIX
 * meaning. -EUCLEAN means that the image is corrupt. If a block of metadata
 * does not pass its check, only the objects that it describes cannot be read or
 * changed. If sound blocks contradict each other, the file system becomes
 * read-only. -EROFS is returned after such a contradiction or after a write
 * error. -EIO is returned for device errors, for data that differs from its
 * checksum or whose checksum cannot be read, and after ffs_shutdown(). Any
 * thread may call any function.
 *
 * The caller checks permissions (the kernel does, with default_permissions),
 * including the sticky and type rules of rename and unlink. A change of the
 * owner and ffs_clear_setid() clear set-id bits.
 *
 * Inodes are counted: every function that returns an inode adds a reference,
 * and ffs_iput() drops it.
 */
#ifndef FUSEFS_CORE_FFS_H
#define FUSEFS_CORE_FFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <time.h>

#include "blockdev/bdev.h"
#include "support/reason.h"

__BEGIN_DECLS

struct ffs;
struct ffs_inode;
struct lay_io;
struct lay_label;

/* Determines when reads set access times. */
enum ffs_access {
    FFS_ACCESS_RELATIVE =
        0, /* if the last access is not newer than the last change, or is a day old */
    FFS_ACCESS_NEVER,
    FFS_ACCESS_ALWAYS,
    FFS_ACCESS_FILES_ONLY = 4, /* with one of the above: not for reads of directories */
};

/* Whether block 1 protects a device against a second writer: FORMAT.md 4.5. */
enum ffs_mmp_policy {
    FFS_MMP_AUTO = 0, /* where bd_info.shared is set, or block 1 is in use */
    FFS_MMP_ON,
    FFS_MMP_OFF,
};

/*
 * A clock for tests, in ns. wait() returns 0, or -EINTR to end what waits. No
 * thread renews block 1 then, but the next write after its time does.
 */
struct ffs_clock {
    uint64_t (*now)(void *arg);
    int (*wait)(void *arg, uint64_t ns);
    void *arg;
};

struct ffs_mount_opts {
    unsigned access;    /* enum ffs_access */
    bool read_only;     /* writes nothing; replays the log, if necessary, in memory */
    unsigned commit_ms; /* time between background commits; 0: 5,000 */
    size_t cache_bytes; /* clean metadata to keep; 0: 64 MiB */
    bool discard;       /* see ffs_set_discard() */
    bool no_thread;     /* no background commits; for tests */
    /*
     * Receives messages, one line each, without a newline. `level` is that of
     * syslog(3). NULL disables messages.
     */
    void (*log)(int level, const char *line);
    unsigned mmp;                  /* enum ffs_mmp_policy */
    bool tool;                     /* this is no mount for users, but a program that ends soon */
    const struct ffs_clock *clock; /* of multi-mount protection; NULL: the host's */
};

/*
 * Decides whether the device still belongs to gpunvmefs, or has been given another use since: a
 * partition table, another file system, a member of a volume manager (FORMAT.md 4.1). Every program
 * asks before it uses the second label or writes. It takes a few milliseconds and only reads. If
 * `reclaim` is true, block 0 need not have the magic of a label. A device that is smaller than a
 * block passes, and so does a label of another version: both are refused elsewhere.
 *
 * Returns 0 if the device is ours. Otherwise `why` holds a sentence without the
 * device's name: -EINVAL if the device is not ours, or the error of the device.
 */
int ffs_ours(struct bd_dev *dev, bool reclaim, struct reason *why);

/* Returns the calls with which layout/label.h reads and writes the device. */
struct lay_io ffs_io(struct bd_dev *dev);
/* Returns a random number other than 0, for incarnations and logs. */
uint64_t ffs_random(void);
/*
 * Reads the label that counts (FORMAT.md 4.1), also if the file system is larger than the device.
 * Returns 0, or an error of lay_labels_read() other than -ERANGE.
 */
int ffs_read_label(struct bd_dev *dev, struct lay_label *out);

/*
 * Checks labels and superblock, replays the log, and finishes orphans. The
 * device must outlive the mount. On failure `why` holds the
 * cause in words. Returns -EINVAL if the device does not have this format,
 * -ENOTSUP for unknown features or an unknown version, -EUCLEAN, and -EROFS for
 * a writable mount if the device is read-only or there are unknown ro-compat
 * features.
 */
int ffs_mount(struct bd_dev *dev, const struct ffs_mount_opts *opts, struct ffs **out,
              struct reason *why);
/*
 * Commits, checkpoints, and marks the file system as clean. Drops inodes that
 * are still referenced. Returns the first error, or 0.
 */
int ffs_unmount(struct ffs *fs);

/* --- Multi-mount protection ------------------------------------------------------------------ */

struct ffs_mmp;

struct ffs_mmp_opts {
    unsigned policy; /* enum ffs_mmp_policy */
    bool read_only;  /* looks, and logs who uses the device, but writes nothing */
    bool tool;       /* see ffs_mount_opts */
    bool reclaim;    /* see ffs_ours() */
    const struct ffs_clock *clock;
    bool (*interrupted)(void);                /* ends the wait with -EINTR; may be NULL */
    void (*log)(int level, const char *line); /* see ffs_mount_opts */
    /*
     * Called once, by any thread, when the right to write has been lost; `what`
     * says why. It must not call back.
     */
    void (*lost)(void *arg, const char *what, int err);
    void *arg;
};

/*
 * Takes block 1 of the device, keeps it, and sets bd_dev.permit, which ends
 * writes with -EIO once the right is lost. Waits, for three times the interval
 * of the block at most, while it may belong to a living holder. *out is NULL
 * without an error if the policy does not ask for it, or if the device has no
 * label that permits writes. ffs_mount() and ffs_unmount() call these two.
 * Returns -EBUSY if another host or controller uses the device, -EINTR,
 * -ETIMEDOUT, or the error of the device, with a sentence in `why`.
 */
int ffs_mmp_take(struct bd_dev *dev, const struct ffs_mmp_opts *opts, struct ffs_mmp **out,
                 struct reason *why);
/*
 * Ends the holding; with `release`, block 1 becomes free. NULL is allowed. No
 * transfer may be running.
 */
void ffs_mmp_drop(struct ffs_mmp *m, bool release);
/* Reads the host's names, which a sandbox may forbid later. */
void ffs_mmp_prepare(void);

struct ffs_statfs {
    uint64_t blocks, free_blocks; /* of 4096 bytes */
    uint64_t inodes;              /* inodes in use */
    uint8_t uuid[16];             /* the one that users see */
    char label[64];
    bool read_only;
    bool failed;    /* read-only until the next mount, because of an error */
    bool data_csum; /* data has checksums */
};
void ffs_statfs(struct ffs *fs, struct ffs_statfs *out);
/* Metadata blocks since the mount that failed their check when they were read. */
struct ffs_metadata_counts {
    uint64_t reread;    /* the second read was right */
    uint64_t corrected; /* one flipped bit was corrected */
    uint64_t copied;    /* a place of the block was written again from the other one */
    uint64_t damaged;   /* the block stayed bad: what it describes cannot be used */
    uint64_t unwritten; /* writes of one of two places that failed; the other one is right */
};
void ffs_metadata_counts(struct ffs *fs, struct ffs_metadata_counts *out);
/*
 * Sets the label, durably. Returns -EINVAL if it is longer than 63 bytes, not
 * UTF-8, or contains control characters.
 */
int ffs_set_label(struct ffs *fs, const char *label);
/* Sets the UUID that users see, durably. */
int ffs_set_uuid(struct ffs *fs, const uint8_t uuid[16]);
/* Replace ffs_mount_opts.access and .commit_ms while mounted. */
void ffs_set_access(struct ffs *fs, unsigned access);
bool ffs_access_always(struct ffs *fs);
void ffs_set_commit(struct ffs *fs, unsigned commit_ms);
/*
 * If by_caller is set, changes of data and size do not set the times of a
 * regular file; the caller stores them with ffs_setattr(). Called before the
 * first change.
 */
void ffs_set_data_times(struct ffs *fs, bool by_caller);
/*
 * If enabled, freed blocks are discarded on the device once a commit after that
 * of the transaction that freed them is durable; pinned ones wait for
 * ffs_trim(). Has no effect on a device without discards.
 */
void ffs_set_discard(struct ffs *fs, bool discard);
struct ffs_trim_range {
    uint64_t start, len; /* of the device, bytes */
    uint64_t min_len;    /* shorter free ranges are skipped, bytes */
};
/* Called repeatedly; the operation ends if it returns true. */
typedef bool (*ffs_stop_fn)(void *arg);
/*
 * Discards the free blocks of the range (FITRIM) and stores their bytes in
 * *trimmed. Returns -EOPNOTSUPP if the device has no discards, -EINVAL if the
 * range begins past the end or is shorter than a block, and -EROFS.
 */
int ffs_trim(struct ffs *fs, const struct ffs_trim_range *range, ffs_stop_fn stop, void *arg,
             uint64_t *trimmed);
/*
 * Grows the mounted file system to `blocks`. All handles wait while its
 * bitmaps, its checksums and, if it must be longer, its chunk map are written to
 * a new place. Returns 0 also if it has that size already. Returns -EINVAL if it
 * would shrink, -ENOSPC if the device has fewer blocks (call bd_refresh()
 * first), -EFBIG if the format does not support so many, -ERANGE if the new
 * blocks have no room for these areas, -ENOTSUP for unknown features, -ENOMEM,
 * and -EUCLEAN if a block of them is damaged or stale or does not read back as
 * written; nothing has changed then. After an interruption at any write, the
 * next mount finds either the old or the new size.
 */
int ffs_grow(struct ffs *fs, uint64_t blocks);
/*
 * Checks whether ffs_grow() would succeed on a device of that size. Returns its
 * errors except -ENOSPC and -EUCLEAN.
 */
int ffs_grow_check(struct ffs *fs, uint64_t blocks);
/*
 * Returns the smallest number of blocks, above the present number, to which
 * ffs_grow() can grow the file system.
 */
uint64_t ffs_grow_least(struct ffs *fs);
/*
 * Shrinks the file system to `blocks`. No other thread uses it, and it was
 * mounted with no_thread. Returns -ENOSPC if its contents do not fit, or if no
 * free range is long enough for a chunk or for the areas. After such an error
 * some blocks may have moved, which is not visible to users. Other errors are
 * those of ffs_grow().
 */
int ffs_shrink(struct ffs *fs, uint64_t blocks);
/* Returns a size in blocks that should hold all contents, wherever they lie. */
uint64_t ffs_shrink_least(struct ffs *fs);
/* Makes everything that was completed before the call durable. */
int ffs_sync(struct ffs *fs);
/*
 * Makes every later call fail with -EIO. With `flush`, operations that are
 * complete are committed first.
 */
int ffs_shutdown(struct ffs *fs, bool flush);
/*
 * Marks the device as failed for good. The file system becomes read-only, and
 * fsync and unmount report data that was not durable (-EIO). Does not access
 * the device.
 */
void ffs_device_lost(struct ffs *fs);

/* --- Inodes ---------------------------------------------------------------------------------- */

struct ffs_attr {
    uint64_t ino;
    uint32_t generation;
    uint32_t mode, nlink, uid, gid, rdev; /* rdev as in stat(2) on Linux (makedev) */
    uint64_t size;
    uint64_t blocks; /* units of 512 bytes, like st_blocks */
    struct timespec atime, mtime, ctime, btime;
    uint32_t flags; /* LAY_INODE_* */
};

/*
 * Gets the inode with this number, for FUSE node ids and file handles. Returns
 * -ESTALE if it is not in use.
 */
int ffs_iget(struct ffs *fs, uint64_t ino, struct ffs_inode **out);
void ffs_iref(struct ffs_inode *inode, uint64_t n);
/*
 * Drops n references. Dropping the last one of an unlinked inode frees its
 * blocks.
 */
void ffs_iput(struct ffs_inode *inode, uint64_t n);
uint64_t ffs_ino(const struct ffs_inode *inode);
uint32_t ffs_generation(const struct ffs_inode *inode);
/*
 * Returns a word for the caller's own use, accessed by __atomic operations. It
 * is 0 when the inode is read into memory, and is kept while there are
 * references.
 */
uint32_t *ffs_user_word(struct ffs_inode *inode);
/* Returns a second such word, for a count. */
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
 * Changes all given attributes or none, and returns the new ones.
 * LAY_INODE_GPU_BOUND can be set on directories, whose new children inherit it,
 * and on files without blocks (otherwise -EINVAL).
 */
int ffs_setattr(struct ffs_inode *inode, const struct ffs_attr *attr, uint32_t set,
                struct ffs_attr *out);

/*
 * Called before a write, truncation or allocation by a caller without
 * CAP_FSETID. Clears set-user-id of a file, and also set-group-id if its group
 * may execute it or the caller is an outsider, which means not in that group.
 */
int ffs_clear_setid(struct ffs_inode *inode, bool outsider);

/*
 * Called after a read of a file or directory. Sets the access time if it is
 * due. A failure is ignored, since a read must not fail for it.
 */
void ffs_note_access(struct ffs_inode *inode);

/* --- Names ----------------------------------------------------------------------------------- */

struct ffs_cred {
    uint32_t uid, gid;
    uint32_t umask; /* applied to new inodes if the directory has no default ACL */
};

int ffs_lookup(struct ffs_inode *dir, const char *name, struct ffs_inode **out);
/*
 * Creates an inode of any type but directory and symbolic link. rdev is used
 * for devices. A set-gid directory passes on its group.
 */
int ffs_mknod(struct ffs_inode *dir, const char *name, uint32_t mode, uint32_t rdev,
              const struct ffs_cred *cred, struct ffs_inode **out);
int ffs_mkdir(struct ffs_inode *dir, const char *name, uint32_t mode, const struct ffs_cred *cred,
              struct ffs_inode **out);
int ffs_symlink(struct ffs_inode *dir, const char *name, const char *target,
                const struct ffs_cred *cred, struct ffs_inode **out);
/*
 * Adds a name. Also gives a file made by ffs_tmpfile() its first name. Returns
 * -EMLINK beyond 65,000 links.
 */
int ffs_link(struct ffs_inode *inode, struct ffs_inode *dir, const char *name);
int ffs_unlink(struct ffs_inode *dir, const char *name);
/*
 * Like ffs_unlink(), but returns -ESTALE unless the name belongs to this inode,
 * on which the caller has a reference.
 */
int ffs_unlink_inode(struct ffs_inode *dir, const char *name, const struct ffs_inode *inode);
int ffs_rmdir(struct ffs_inode *dir, const char *name);
/*
 * Renames. `flags` are RENAME_NOREPLACE, RENAME_EXCHANGE and RENAME_WHITEOUT of
 * renameat2(2). A whiteout belongs to the owner of the inode that was moved.
 */
int ffs_rename(struct ffs_inode *dir, const char *name, struct ffs_inode *new_dir,
               const char *new_name, uint32_t flags);
/* Creates a file without a name (O_TMPFILE). */
int ffs_tmpfile(struct ffs_inode *dir, uint32_t mode, const struct ffs_cred *cred,
                struct ffs_inode **out);
/*
 * Returns the length of the target. Stores at most size bytes of it, without a
 * terminating zero.
 */
ssize_t ffs_readlink(struct ffs_inode *inode, char *buf, size_t size);
/* Gets the parent of a directory, for lookup(".."). */
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

/*
 * Returns the bytes read, fewer only at the end of the file. Memory from
 * ffs_dma_alloc() avoids a copy.
 */
ssize_t ffs_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);
/*
 * Writes at `offset` and extends the file if necessary, up to its maximum size
 * of 2^63 - 1 bytes (-EFBIG beyond that). Returns the number of bytes written,
 * which is smaller than `len` if a block got no space. GPU-bound files get
 * space in whole units of 2 MiB, aligned on the device; the unwritten rest of a
 * unit reads as zeros.
 */
ssize_t ffs_write(struct ffs_inode *inode, uint64_t offset, const void *buf, size_t len);
/*
 * Makes data and metadata durable, or with data_only the metadata needed to
 * read the data.
 */
int ffs_fsync(struct ffs_inode *inode, bool data_only);
/*
 * `mode` is FALLOC_FL_KEEP_SIZE, PUNCH_HOLE or ZERO_RANGE of fallocate(2);
 * others return -EOPNOTSUPP.
 */
int ffs_fallocate(struct ffs_inode *inode, uint32_t mode, uint64_t offset, uint64_t len);
/* Returns the new offset for SEEK_DATA or SEEK_HOLE, or -ENXIO. */
int64_t ffs_seek(struct ffs_inode *inode, uint64_t offset, int whence);

/* Holds the results of a scrub of a part of a file, counted in blocks. */
#define FFS_SCRUB_BAD 512u
struct ffs_scrub {
    uint64_t next;     /* bytes; the requested end, or where the next call continues */
    uint64_t matching; /* blocks that match their checksums */
    uint64_t added;    /* blocks that got a checksum */
    uint64_t without;  /* blocks without a checksum */
    size_t nbad;
    struct ffs_scrub_block {
        uint64_t offset, device; /* bytes, in the file and on the device; 0: a damaged extent */
        bool unreadable;         /* if not, it differed from its checksum twice */
        bool corrected;          /* one flipped bit explained that, and was written again */
        bool copied;             /* of metadata: it was written from its other place */
    } bad[FFS_SCRUB_BAD];
};
enum ffs_scrub_flags {
    FFS_SCRUB_ADD = 1,     /* blocks without a checksum get that of their content */
    FFS_SCRUB_CORRECT = 2, /* a flipped bit of a block that differs is corrected on the device */
};
/*
 * Reads the data of [offset, end) from the device and compares it with its
 * checksums, including pending ones; offset is a multiple of 4096. `flags` is of
 * enum ffs_scrub_flags. One call compares about 16 MiB. It holds the file's data
 * lock for 1 MiB at a time, exclusively with flags. Returns -EOPNOTSUPP if there
 * are no checksums, or if the log is damaged so that they may be older than the
 * data; -EISDIR, or -EINVAL for other types; and -EROFS with flags.
 *
 * The checksum is the only witness of data. Content that never was the block's
 * looks like one flipped bit with probability 2^-17; therefore nothing else
 * corrects data, and each corrected block is among the bad ones.
 */
int ffs_scrub(struct ffs_inode *inode, uint64_t offset, uint64_t end, unsigned flags,
              struct ffs_scrub *out);

/*
 * Starts the background scrub, or restarts it with another rate. Its thread
 * reads all metadata in place, by its age, and all data that has checksums, at
 * most `rate` bytes per second. The next pass begins pause_ms after the end of
 * a pass. Wrong metadata is corrected, or counted as damaged, as if an
 * operation had read it. Wrong data is only counted and logged. A lock is held
 * for one read at a time, of at most 1 MiB. Blocks that are in use or in the
 * log are left to the next pass. Returns 0, -EROFS if nothing can be written,
 * or the error of pthread_create().
 */
int ffs_scrub_start(struct ffs *fs, uint64_t rate, uint64_t pause_ms);
/* Ends the thread after its current read. ffs_unmount() calls this function, too. */
void ffs_scrub_stop(struct ffs *fs);
/*
 * Scrubs the metadata of the whole file system at once, a part per call, as
 * fast as the device permits. `from` is 0 in the first call, which first puts
 * in place what the log holds, and then out->next of the call before, until
 * that is 0. A read-only mount corrects nothing. In *out a bad block is a
 * place: `offset` is the logical address of the block. `matching` are right
 * places, `without` blocks that were left out because a newer version is in use
 * or in the log, and `added` chunks that have got a second place. Returns 0,
 * -ENOMEM, -EIO after shutdown, or the error of the commit.
 */
int ffs_scrub_metadata(struct ffs *fs, uint64_t from, struct ffs_scrub *out);
/* Counts the results of scrubs since the mount. Only background scrubs have passes. */
struct ffs_scrub_counts {
    uint64_t passes;    /* complete ones */
    uint64_t bytes;     /* read */
    uint64_t found;     /* blocks that were wrong; one that stays so counts in each pass */
    uint64_t corrected; /* those of them that are right now */
    uint64_t chunks;    /* chunks that had one place and have got a second one */
    uint64_t last;      /* end of the last complete pass, in seconds since 1970; 0: none */
};
void ffs_scrub_counts(struct ffs *fs, struct ffs_scrub_counts *out);

void *ffs_dma_alloc(struct ffs *fs, size_t len);
void ffs_dma_free(struct ffs *fs, void *buf, size_t len);

/* --- Extended attributes --------------------------------------------------------------------- */

/*
 * Sets an attribute. `flags` are XATTR_CREATE and XATTR_REPLACE. Returns
 * -ENOSPC if it does not fit in LAY_XATTR_BLOCKS_MAX blocks, -E2BIG beyond 64
 * KiB, and -ERANGE if the name is empty or longer than 255 bytes.
 */
int ffs_setxattr(struct ffs_inode *inode, const char *name, const void *value, size_t len,
                 int flags);
/*
 * Returns the length of the value, -ENODATA if there is none, or -ERANGE if
 * size is too small and not 0.
 */
ssize_t ffs_getxattr(struct ffs_inode *inode, const char *name, void *buf, size_t size);
/*
 * Stores the names, each with its NUL, and returns their length. Leaves out
 * those in "trusted." unless `trusted`. Returns -ERANGE if size is too small
 * and not 0.
 */
ssize_t ffs_listxattr(struct ffs_inode *inode, bool trusted, char *buf, size_t size);
int ffs_removexattr(struct ffs_inode *inode, const char *name);

#define FFS_ACL_ACCESS  "system.posix_acl_access"
#define FFS_ACL_DEFAULT "system.posix_acl_default"
/*
 * Sets one of the POSIX ACLs, in the form of <linux/posix_acl_xattr.h>; the
 * access ACL also sets the permissions. NULL removes it. ffs_getxattr() reads
 * it. keep_setgid means that the caller may keep the set-gid bit, because it is
 * in the group or privileged. Returns -EINVAL for an invalid ACL, -EACCES for a
 * default ACL of anything but a directory, -EOPNOTSUPP for a symbolic link, and
 * -ENOSPC for more than about 490 entries.
 */
int ffs_set_acl(struct ffs_inode *inode, bool is_default, const void *value, size_t len,
                bool keep_setgid);

/* --- Extents, for transfers that go around the ordinary path --------------------------------- */

struct ffs_segment {
    uint64_t offset; /* in the file, bytes, a multiple of 4096 */
    uint64_t len;    /* bytes, a multiple of 4096 */
    uint64_t device; /* byte offset on the device; FFS_HOLE if it reads as zeros */
    bool unwritten;  /* allocated, but reads as zeros; device is valid */
};
#define FFS_HOLE UINT64_MAX

struct ffs_map {
    struct ffs_segment *segments; /* in file order, without gaps */
    size_t count;
    uint64_t start;      /* start of the first segment, bytes: the requested offset rounded down */
    uint64_t len;        /* existing bytes of the request, which ends at the end of the file */
    uint64_t size;       /* size of the file, bytes; maps for reading */
    uint64_t generation; /* increases when a mapping of the inode changes */
    void *internal;
};

/*
 * Maps [offset, offset + len) for reading and pins the blocks: truncate, punch
 * and unlink take effect on the file at once, but the blocks are not allocated
 * to others before ffs_map_release(). Every write completed before the call is
 * on the device. Returns -EIO if the range has a damaged extent, which a map
 * cannot show.
 */
int ffs_map_read(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out);
/*
 * Like ffs_map_read(), with at most `max` segments: len also ends at the end of
 * the last one.
 */
int ffs_map_read_some(struct ffs_inode *inode, uint64_t offset, uint64_t len, size_t max,
                      struct ffs_map *out);
void ffs_map_release(struct ffs_map *map);

/*
 * Maps [offset, offset + len) for writing. Allocates missing blocks (as
 * unwritten) and blocks other writers, truncate and ordinary reads of the file
 * until ffs_map_write_end(). That call makes the first `written` bytes part of
 * the file (size, times, unwritten to written) and leaves the rest unchanged.
 * offset and len need not be multiples of a block; the segments cover whole
 * blocks. Unwritten blocks that the request covers in part are zeroed, so that
 * a transfer may read, change and write them. The thread that maps also ends
 * the map, because it holds a lock of the inode, and makes no other call for
 * the inode in between. Returns -ENOSPC, -EFBIG or -EINVAL, and -EIO if the
 * range has a damaged extent: only ffs_write() ends damage.
 */
int ffs_map_write(struct ffs_inode *inode, uint64_t offset, uint64_t len, struct ffs_map *out);
/*
 * `sums` may be NULL. For whole blocks it may have the CRC-32C of each block as
 * it was written: ffs_sum_of(), or FFS_NO_SUM for a block of unknown content.
 * These become the checksums of the data.
 */
int ffs_map_write_end(struct ffs_map *map, uint64_t written, const uint32_t *sums);

/*
 * Gets the checksums of n blocks of 4096 bytes from file byte `offset` on, a
 * multiple of 4096, for transfers that the caller verifies. FFS_NO_SUM means
 * that the block has none, like holes, blocks past the end, and all blocks of a
 * file system without checksums. A writer may change a block and its checksum
 * at any time; ffs_read() then returns the current content.
 */
#define FFS_NO_SUM 0u
int ffs_file_sums(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums);
/*
 * Like ffs_file_sums(), but returns -EAGAIN instead of waiting for a writer of
 * the file.
 */
int ffs_file_sums_now(struct ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums);
/* Returns the checksum entry for a block with this CRC-32C. */
uint32_t ffs_sum_of(uint32_t crc);

/*
 * Ends a map of either kind whose transfer has commands that can be neither
 * awaited nor ended. Its blocks are not reused during this mount. After a map
 * for writing the file system is read-only (-EROFS); operations completed
 * before are kept and can still become durable.
 */
void ffs_map_abandon(struct ffs_map *map);

/*
 * Counts the changes of an inode's extents and size, from 1 on, in a word that
 * other processes may read. The word is stored (release) at the end of the
 * handle: a reader that knows of a completed write or truncate and then loads
 * the word (acquire) sees the new count. The caller keeps the watch, the word
 * and a reference to the inode until ffs_watch_remove().
 */
struct ffs_watch {
    uint64_t changes; /* protected by ffs.meta, like the other fields */
    uint64_t *word;   /* NULL until it is published */
    uint32_t *sums;   /* one for each mapped block of the file, or NULL */
    uint64_t n_sums;
    LIST_ENTRY(ffs_watch) entry;
};
void ffs_watch_add(struct ffs_inode *inode, struct ffs_watch *w);
/*
 * Stores the changes since ffs_watch_add() in *word at once, and later changes
 * as they happen.
 */
void ffs_watch_share(struct ffs_inode *inode, struct ffs_watch *w, uint64_t *word);
/*
 * Stores the checksums of the map's blocks in sums, one for each block of the
 * file from its start on (a map of the whole file, n blocks): FFS_NO_SUM as for
 * ffs_file_sums(), and for blocks that no longer belong to the file. From then
 * on a word becomes FFS_NO_SUM before its block is overwritten, which counts as
 * a change. A reader that loads the word (relaxed) after the data of a block,
 * and finds a checksum, therefore has either the matching data or damaged data.
 * Waits for writers.
 */
int ffs_watch_sums(struct ffs_inode *inode, struct ffs_watch *w, const struct ffs_map *map,
                   uint32_t *sums, uint64_t n);
void ffs_watch_remove(struct ffs_inode *inode, struct ffs_watch *w);
bool ffs_watch_any(struct ffs_inode *inode);

/*
 * Lists up to max segments from `offset` on, as they are now. Returns their
 * number, or -errno. The list ends before a damaged extent; -EIO if it is the
 * first.
 */
ssize_t ffs_extents(struct ffs_inode *inode, uint64_t offset, struct ffs_segment *out, size_t max);

__END_DECLS

#endif
