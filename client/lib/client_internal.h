/* SPDX-License-Identifier: BSD-2-Clause */
/* Structures and functions that the files of libgpunvme share. */
#ifndef CLIENT_LIB_CLIENT_INTERNAL_H
#define CLIENT_LIB_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "client/lib/buffer_slab.h"
#include "client/lib/connection.h"
#include "client/lib/cuda_driver.h"
#include "client/lib/error.h"

struct connection {
    int fd; /* directory on the mount, whose open file description owns the buffers; -1: no mount */
    struct gpunvme_ioc_info info; /* as of connection_open() */
    dev_t dev;                    /* of the mount's files */
    struct gpunvme_options options;
    /* Protects cuda and pipeline (set once), buffers, directs, lists, pieces. */
    pthread_mutex_t lock;
    pthread_cond_t unused; /* a buffer has no users any more */
    struct cuda_driver *cuda;
    struct pipeline *pipeline;
    struct gpunvme_buffer *buffers;
    struct slabs slabs; /* memory of small buffers */
    struct gpunvme_direct *directs;
    struct shared_list *lists;           /* that no READV uses now */
    struct shared_list *pieces;          /* of shared_list_alloc_pieces() */
    _Atomic bool calls_offered;          /* calls was offered to the mount */
    struct gpunvme_calls *_Atomic calls; /* counters that the mount reads; NULL: not shared */
};

/* Of a buffer's users: the end of the last one signals owner->unused. */
#define GPUNVME_AWAITED (1u << 31)

struct gpunvme_buffer {
    struct connection *owner;
    struct gpunvme_buffer *next, **link; /* in owner->buffers */
    uint64_t id, key;
    void *addr;
    size_t len;
    int device;        /* CUDA ordinal, or CUDA_NO_DEVICE for host memory */
    int fd;            /* memfd behind host memory, or -1 */
    int pinned_for;    /* CUDA ordinal whose kernels reach the host memory, or CUDA_NO_DEVICE */
    bool allocated;    /* by this library */
    bool shared;       /* registered at the mount; if not, the library bounces its transfers */
    bool for_lease;    /* staging of a lease */
    bool in_reach;     /* after its end: a command may still be under way to the memory */
    char why_not[160]; /* why it is not shared */
    struct slab_piece piece;   /* the memory, if it is a piece of a slab, whose fd is above */
    _Atomic unsigned users;    /* transfers under way, and GPUNVME_AWAITED */
    _Atomic bool ending;       /* no transfer may begin, and those under way stop */
    _Atomic int64_t avoid_gpu; /* CLOCK_MONOTONIC s: until then transfers bounce here */
};

/* ioctl(2) with the ABI header filled in: 0 or -errno. */
int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size);

/* The CUDA driver of the handle, which the first call opens. */
int gpunvme_cuda(struct connection *g, struct cuda_driver **out);
/* buffer_register() of memory that is known to be the host's: no call of CUDA. */
int buffer_register_host(struct connection *g, void *addr, size_t len, struct gpunvme_buffer **out);
/*
 * Host memory, registered at the mount where its executor is not CUDA and it has room for one more
 * buffer.
 */
int buffer_alloc_staging(struct connection *g, size_t len, struct gpunvme_buffer **out);
/*
 * Staging of a lease, which may take the regions that other buffers leave: as buffer_alloc_host()
 * (host), or as buffer_alloc().
 */
int buffer_alloc_for_lease(struct connection *g, size_t len, bool host,
                           struct gpunvme_buffer **out);

/*
 * Counts a transfer as a user of the buffer. Returns -EINTR if another thread is
 * unregistering the buffer.
 */
int gpunvme_use_begin(struct gpunvme_buffer *b);
void gpunvme_use_end(struct gpunvme_buffer *b);
/* The bytes of a transfer. */
struct range {
    bool write;
    bool direct; /* assume O_DIRECT, even if the file is open without it when the path is chosen */
    int fd;
    size_t buffer_offset;
    uint64_t file_offset;
    size_t len;
};

/*
 * Prepares the pipeline for memory of a device: a later transfer then makes no call of CUDA that
 * could wait for a stream.
 */
int gpunvme_warm_pipeline(struct connection *g, int device);

/* The path of a transfer. */
struct path_taken {
    const char *why; /* why it takes the pipeline; NULL: the mount moves it */
    bool by_size;    /* the library chose the pipeline: the mount moves what that cannot */
};

/* Of a read or write, or of a batch of so many pieces, r->len bytes together; 0: no batch. */
struct path_taken gpunvme_choose_path(struct gpunvme_buffer *b, const struct range *r,
                                      size_t pieces);

/*
 * Moves the range by the mount's ioctls, until it is moved, the file ends, or an error occurs,
 * which goes to *err and gpunvme_error(). Returns the bytes moved; adds to *result.
 */
size_t gpunvme_transfer_shared(struct gpunvme_buffer *b, const struct range *r, uint32_t flags,
                               struct gpunvme_result *result, int *err);
/* The same through pinned host memory of this process (bounce.c). */
size_t gpunvme_transfer_bounced(struct gpunvme_buffer *b, const struct range *r,
                                struct gpunvme_result *result, int *err);

/*
 * A transfer's call of the mount, as gpunvme_ioctl(). A call that a signal has ended is made again
 * for the rest, as read(2) of other files does. After one that moved nothing, signals are blocked
 * until the end of the next call, because signals that come often would otherwise leave no time for
 * a transfer. Faults, job control and SIGINT, SIGQUIT, SIGTERM and SIGHUP are not blocked.
 */
int gpunvme_call(int fd, unsigned long request, void *arg, uint32_t size, unsigned retries);
/*
 * May a call be made again after err? *retries counts calls in a row that moved nothing, because a
 * mount that is ending returns the same error; the caller sets it to 0 when bytes were moved.
 */
bool gpunvme_was_interrupted(const struct gpunvme_buffer *b, int err, unsigned *retries);

/* err; -EINTR if the buffer is being unregistered, for which the mount returns other errors. */
int gpunvme_unless_ended(const struct gpunvme_buffer *b, int err);
/* err; -ENOTTY if it is the -ENOENT of another gpunvmefs mount, which does not know the buffer. */
int gpunvme_unless_other_mount(const struct connection *g, int fd, int err);

/* Adds the result of one call to the sum. */
void gpunvme_add_result(struct gpunvme_result *sum, uint32_t path, uint64_t commands,
                        uint32_t nvme_status, bool staged);
/*
 * After a transfer that the mount bounced through its own host memory: logs it, and lets the next
 * transfers take the pipeline.
 */
void gpunvme_note_fallback(struct gpunvme_buffer *b, const struct range *r,
                           struct gpunvme_result *result);

#endif
