/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the daemon's state, which the FUSE operations and the ioctls share.
 */
#ifndef FUSEFS_DAEMON_STATE_DAEMON_H
#define FUSEFS_DAEMON_STATE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "cuda/gq.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/stack.h"
#include "fusefs/daemon/state/op.h"

/* Largest READ or WRITE request in bytes, and size of a bounce buffer. */
#define MAX_IO (1u << 20)
/* Space before the data of a bounce buffer in bytes: whole pages. */
#define BOUNCE_HEAD 4096u
/*
 * More session threads than transfers and unregistrations can block at once on
 * a small machine. A thread that has not served a request costs only its stack.
 */
#define SESSION_THREADS     16
#define SESSION_THREADS_MAX 128
/*
 * Maximum number of background requests (direct I/O and readahead) that the
 * kernel sends at a time. The kernel counts the requests of all users together,
 * so one user could exhaust a low limit. The session divides its threads
 * itself. Above BACKGROUND_BUSY the kernel reads less ahead.
 */
#define BACKGROUND_MAX  32768
#define BACKGROUND_BUSY 48

struct buffers;
struct caches;
struct dir_cookies;
struct leases;
struct fdsocket;
struct workers;
struct callers;
struct mounter;
struct fuse_session;
struct session_loop;

/*
 * An open file description or an open directory; fuse_file_info.fh points to
 * it.
 */
struct open_file {
    struct ffs_inode *inode; /* a reference */
    int flags;               /* flags of open(2) */
    bool directory;
    struct dir_cookies *cookies; /* directory with dir32; otherwise NULL */
    /*
     * A lease was taken through the file. Written under the leases' lock, read
     * at RELEASE.
     */
    bool leases;
    struct activity activity;
    struct shared_calls *shared_calls; /* or NULL; protected by daemon.files_lock */
    /* Protected by daemon.files_lock, and after RELEASE by the leases' lock. */
    LIST_ENTRY(open_file) entry;
};

/*
 * Describes page-aligned memory of MAX_IO bytes after a head of BOUNCE_HEAD
 * bytes. The memory is DMA memory of the device unless `plain` is true.
 */
struct bounce {
    void *data;   /* memory after the head */
    bool plain;   /* heap memory that the device cannot reach; costs another copy */
    bool refused; /* the device has provided no memory */
    struct bounce *next;
};

struct bounce_pool {
    struct ffs *fs;
    pthread_mutex_t lock; /* protects the next two */
    struct bounce *free;
    bool improving;
};

struct daemon {
    const struct options *opts;
    struct stack stack;
    struct mounter *mounter;
    struct callers *callers; /* belongs to the mounter */
    struct fuse_session *session;
    struct session_loop *loop;
    uint32_t readahead; /* bytes set by the mounter; 0: the kernel's default */
    struct buffers *buffers;
    struct leases *leases;
    struct fdsocket *socket;
    struct workers *workers;
    struct caches *caches;
    struct metrics_server *metrics; /* NULL without one */
    struct bounce_pool bounces;
    struct op_totals totals;
    /* Time of the last line in CLOCK_MONOTONIC seconds, or 0. */
    _Atomic int64_t fallback_logged;
    _Atomic unsigned inline_jobs;  /* transfers running in session threads */
    _Atomic unsigned inline_syncs; /* see request_sync() */
    _Atomic unsigned held_writes;  /* delayed replies, see direct_write_hold() */
    pthread_mutex_t files_lock;
    _Atomic unsigned access; /* enum ffs_access for the time that the mount is writable */
    _Atomic bool remounted_read_only;
    _Atomic uint64_t scrub_rate;  /* value of scrub=, for the time that the mount is writable */
    _Atomic bool writeback_cache; /* the kernel keeps written data, sizes and times itself */
    /* The refusal of writes that bypass the kernel has been logged. */
    atomic_bool warned_writeback;
    LIST_HEAD(, open_file) files; /* most recent first; protected by files_lock */
    struct activity_log activity;
    struct shared_calls_log shared_calls;
    atomic_bool destroyed;   /* DESTROY was received: umount(2) waits for the connection's end */
    int status_fd;           /* write end of the parent's pipe, or -1 */
    atomic_bool warned_full; /* the lack of DMA regions has been logged */
};

/* Returns a buffer, or NULL if memory is exhausted. May wait until the device has mapped it. */
struct bounce *bounce_get(struct bounce_pool *pool);
/* Returns a buffer without waiting for the device. A new buffer is plain. */
struct bounce *bounce_get_now(struct bounce_pool *pool);
/*
 * Replaces the memory of a plain buffer, which holds no request, by memory of the
 * device. Does nothing if the device has refused memory, or while another thread
 * waits for it here, so that a device that does not answer blocks at most one
 * session thread.
 */
void bounce_improve(struct bounce_pool *pool, struct bounce *b);
void bounce_put(struct bounce_pool *pool, struct bounce *b);
/*
 * Set and return the buffer of the calling session thread. Its request precedes
 * `data`, which is the data of a WRITE request; other requests may use it
 * freely.
 */
void bounce_bind(struct bounce *b);
struct bounce *bounce_own(void);
void bounce_pool_free(struct bounce_pool *pool);

/* Open file descriptions and open directories. */

/*
 * Behaves like ffs_read(), but is short only at the end of the file: an error
 * after some bytes is returned as the error. The kernel would take a short
 * reply for the end of the file.
 */
ssize_t file_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);

/* Called after a read by a descriptor with these flags (O_NOATIME). */
void file_accessed(struct ffs_inode *inode, int flags);

/* Returns true if the file was opened for writing. */
bool file_writes(const struct open_file *file);
/*
 * Returns true if the inode is open for writing on a mount with
 * writeback_cache. If it is not, the kernel holds no newer data of it than the
 * file system, since RELEASE follows the last dirty page. Returns false on
 * other mounts.
 */
bool file_has_writer(const struct daemon *d, struct ffs_inode *inode);
/*
 * Returns true if the inode is open for writing. If it is not, no program can
 * have stored into it through a mapping without the file system knowing.
 */
bool file_may_be_dirty(struct ffs_inode *inode);
/*
 * Waits briefly for a pending RELEASE. Returns -ETXTBSY if there still is a
 * writer.
 */
int file_refuse_writers(const struct daemon *d, struct ffs_inode *inode);

/*
 * Takes over the reference on inode, even on failure. Returns -ENOMEM, or
 * -ESTALE as caches_file_opened() does.
 */
int file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory,
             struct open_file **out);
/* Performs the first half of file_free(). */
void file_unlist(struct daemon *d, struct open_file *file);
/*
 * Performs the second half of file_free(). Called by the leases' thread after
 * the leases have ended.
 */
void file_end(struct daemon *d, struct open_file *file);

/* Converts a file's map to extents of the executor. */

struct gpu_extents {
    struct gq_file_extent *extents; /* ascending, without gaps; freed by the caller */
    size_t count;
    uint64_t end; /* end of the last extent, file bytes */
};

/*
 * Merges segments that are adjacent on the device. Unwritten segments become
 * zeros, except for writes. Returns 0 or -ENOMEM.
 */
int gpu_extents_make(const struct ffs_map *map, uint32_t lba_size, bool write,
                     struct gpu_extents *out);

#endif
