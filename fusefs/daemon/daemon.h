/*
 * The daemon as its FUSE operations see it.
 */
#ifndef FUSEFS_DAEMON_DAEMON_H
#define FUSEFS_DAEMON_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/mount_options.h"
#include "fusefs/daemon/stack.h"

/* What one READ or WRITE request carries at most, and so the size of a bounce buffer. */
#define MAX_IO (1u << 20)

struct buffers;
struct leases;
struct fdsocket;
struct workers;
struct fuse_session;

/* An open file description, or an open directory: fuse_file_info.fh. */
struct open_file {
    struct ffs_inode *inode; /* a reference */
    int flags;               /* of open(2) */
    bool directory;
    bool leases; /* were taken through it; set under their lock, read when it is closed */
    struct open_file *next; /* protected by daemon.files_lock; of the leases once it is closed */
    struct open_file **link;
};

/* Page-aligned memory of MAX_IO bytes, which the device reaches directly where it can. */
struct bounce {
    void *data;
    bool plain; /* it cannot: what goes through it is copied once more */
    struct bounce *next;
};

struct bounce_pool {
    struct ffs *fs;
    pthread_mutex_t lock;
    struct bounce *free; /* protected by lock */
};

/* Transfers that went through host memory; the executor counts its own. */
struct bounce_stats {
    _Atomic uint64_t transfers, read_bytes, written_bytes;
};

struct daemon {
    const struct options *opts;
    struct stack stack;
    struct fuse_session *session;
    struct buffers *buffers;
    struct leases *leases;
    struct fdsocket *socket;
    struct workers *workers;
    struct bounce_pool bounces;
    struct bounce_stats bounced;
    _Atomic int64_t fallback_logged; /* CLOCK_MONOTONIC seconds of the last line, 0: none yet */
    _Atomic unsigned inline_reads;   /* transfers that session threads are running */
    pthread_mutex_t recovery;        /* held by the thread that recovers the executor's queues */
    pthread_mutex_t files_lock;
    struct open_file *files; /* protected by files_lock */
    int verdict;             /* pipe to the waiting parent, or -1 */
};

/* NULL when memory is short. */
struct bounce *bounce_get(struct bounce_pool *pool);
void bounce_put(struct bounce_pool *pool, struct bounce *b);
void bounce_pool_free(struct bounce_pool *pool);

/*
 * As ffs_read(), but short only at the end of the file: when some bytes in front of an error were
 * read, the error is returned. A short reply would mean the end of the file to the kernel.
 */
ssize_t file_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len);

/* Takes the reference on inode, also when it fails. */
struct open_file *file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory);
/*
 * It is closed: ends the buffers registered through it and drops the inode. Where it has leases,
 * which may take admin commands to end, another thread does, after them.
 */
void file_free(struct daemon *d, struct open_file *file);
/* What file_free() leaves to that thread. */
void file_end(struct daemon *d, struct open_file *file);
/* Those whose RELEASE never came because the connection was cut. */
void files_free_all(struct daemon *d);

#endif
