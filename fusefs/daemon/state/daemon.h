/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon's state, as the FUSE operations and the ioctls use it. */
#ifndef FUSEFS_DAEMON_STATE_DAEMON_H
#define FUSEFS_DAEMON_STATE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/stack.h"
#include "fusefs/daemon/state/activity.h"
#include "fusefs/daemon/state/op.h"
#include "fusefs/daemon/state/shared_calls.h"

/* Limit of one READ or WRITE request, bytes; the size of a bounce buffer. */
#define MAX_IO (1u << 20)
/* In front of that, bytes: whole pages. */
#define BOUNCE_HEAD 4096u
/*
 * More session threads than transfers and unregistrations can block at once on a
 * small machine. A thread that has not served yet costs its stack only.
 */
#define SESSION_THREADS     16
#define SESSION_THREADS_MAX 64
/* Background requests that the kernel keeps in flight: readahead and direct I/O. */
#define BACKGROUND_MAX 64

struct buffers;
struct caches;
struct leases;
struct fdsocket;
struct workers;
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
    bool leases; /* a lease was taken through it; written under the leases' lock, read at RELEASE */
    struct activity activity;
    struct shared_calls *shared_calls; /* NULL: none; protected by daemon.files_lock */
    struct open_file *next; /* protected by daemon.files_lock; after RELEASE by the leases' lock */
    struct open_file **link;
};

/*
 * Page-aligned memory of MAX_IO bytes behind a head of BOUNCE_HEAD bytes, from the device's DMA
 * memory unless plain.
 */
struct bounce {
    void *data; /* the memory behind the head */
    bool plain; /* heap memory out of the device's reach: the core copies once more */
    struct bounce *next;
};

struct bounce_pool {
    struct ffs *fs;
    pthread_mutex_t lock;
    struct bounce *free; /* protected by lock */
};

struct daemon {
    const struct options *opts;
    struct stack stack;
    struct mounter *mounter;
    struct fuse_session *session;
    struct session_loop *loop;
    uint32_t readahead; /* bytes, as the mounter set them; 0: the kernel's default */
    struct buffers *buffers;
    struct leases *leases;
    struct fdsocket *socket;
    struct workers *workers;
    struct caches *caches;
    struct metrics_server *metrics; /* NULL: none */
    struct bounce_pool bounces;
    struct op_totals totals;
    _Atomic int64_t fallback_logged; /* CLOCK_MONOTONIC seconds of the last line, 0: none yet */
    _Atomic unsigned inline_jobs;    /* transfers that session threads run now */
    _Atomic unsigned held_writes;    /* direct_write.c: replies held back */
    pthread_mutex_t recovery;        /* held by the thread that recovers the executor's queues */
    pthread_mutex_t files_lock;
    _Atomic unsigned access; /* enum ffs_access, as wanted while the mount is writable */
    _Atomic bool remounted_read_only;
    _Atomic bool writeback_cache; /* the kernel keeps written data, sizes and times of its own */
    atomic_bool warned_writeback; /* the log has said that writes past the kernel are refused */
    struct open_file *files;      /* protected by files_lock; the youngest first */
    struct activity_log activity;
    struct shared_calls_log shared_calls;
    int status_fd;           /* write end of the parent's pipe, or -1 */
    atomic_bool warned_full; /* the log has said that buffers find no DMA region */
};

/* NULL: out of memory. */
struct bounce *bounce_get(struct bounce_pool *pool);
void bounce_put(struct bounce_pool *pool, struct bounce *b);
/*
 * The buffer of the calling session thread, which has its request in front of data: a WRITE
 * request's data is data. Other requests may use data.
 */
void bounce_bind(struct bounce *b);
struct bounce *bounce_own(void);
void bounce_pool_free(struct bounce_pool *pool);

#endif
