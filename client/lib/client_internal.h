/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares structures and functions that the files of libgpunvme share. */
#ifndef CLIENT_LIB_CLIENT_INTERNAL_H
#define CLIENT_LIB_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <time.h>

#include "client/lib/buffer_slab.h"
#include "client/lib/connection.h"
#include "client/lib/cuda_driver.h"
#include "client/lib/error.h"

struct connection {
    struct connection *next; /* of the handle's mounts; under gpunvme.lock, as the queues are */
    LIST_HEAD(, file_queues) queues; /* leased for direct files, by GPU */
    int fd; /* directory on the mount; its open file description owns the buffers; -1: no mount */
    struct gpunvme_ioc_info info; /* as returned when the connection was opened */
    dev_t dev;                    /* device number of the mount's files */
    struct gpunvme_options options;
    /*
     * Protects cuda, the creation of the pipeline, buffers, directs, lists, pieces, abandoned.
     */
    pthread_mutex_t lock;
    struct cuda_driver *cuda;
    struct pipeline *_Atomic pipeline; /* set once */
    LIST_HEAD(, gpunvme_buffer) buffers;
    struct slabs slabs; /* memory of small buffers */
    LIST_HEAD(, gpunvme_direct) directs;
    LIST_HEAD(, shared_list) lists;  /* lists that no READV uses now */
    LIST_HEAD(, shared_list) pieces; /* of shared_list_alloc_pieces() */
    bool abandoned; /* a kernel of a direct path does not end; memory is not freed any more */
    _Atomic bool calls_offered;          /* calls has been offered to the mount */
    struct gpunvme_calls *_Atomic calls; /* counters that the mount reads; NULL: not shared */
};

/*
 * Keeps the memory of the connection and of its buffers allocated from now on,
 * because freeing it would wait for a kernel that does not end.
 */
static inline void connection_abandon(struct connection *g)
{
    pthread_mutex_lock(&g->lock);
    g->abandoned = true;
    pthread_mutex_unlock(&g->lock);
}

struct gpunvme_buffer {
    struct connection *owner;
    LIST_ENTRY(gpunvme_buffer) entry;      /* in owner->buffers */
    SLIST_ENTRY(gpunvme_buffer) in_region; /* in the buffers of a region (regions.c) */
    uint64_t id, key;
    void *addr;
    size_t len;
    int device;        /* CUDA ordinal, or CUDA_NO_DEVICE if it is host memory */
    int wanted;        /* device to allocate for, or CUDA_NO_DEVICE: mount_gpu_choose() */
    int fd;            /* memfd of host memory, or -1 */
    int pinned_for;    /* device whose kernels reach the host memory, or CUDA_NO_DEVICE */
    bool allocated;    /* the library allocated the memory */
    bool shared;       /* registered at the mount; otherwise the library bounces its transfers */
    bool is_host;      /* allocated as host memory */
    bool for_lease;    /* staging of a lease */
    bool held;         /* the caller registered the memory */
    bool in_reach;     /* after its end, a command of the drive may still access the memory */
    char why_not[160]; /* why it is not shared */
    struct slab_piece piece;   /* set if the memory is a piece of a slab, which owns fd */
    _Atomic int64_t avoid_gpu; /* CLOCK_MONOTONIC in seconds; transfers bounce until then */
};

/* Calls ioctl(2) with the ABI header filled in. Returns 0 or -errno. */
int gpunvme_ioctl(int fd, unsigned long request, void *arg, uint32_t size);

/* Stores the CUDA driver of the handle, which the first call opens. */
int gpunvme_cuda(struct connection *g, struct cuda_driver **out);
/* Does what buffer_register() does, without calls of CUDA if the memory is the host's. */
int buffer_register_known(struct connection *g, void *addr, size_t len, bool is_host, bool held,
                          struct gpunvme_buffer **out);
/*
 * Allocates host memory. Unless it is `local`, it is registered for the bounce path of the mount if
 * the mount has room for one more buffer.
 */
int buffer_alloc_staging(struct connection *g, size_t len, bool local, struct gpunvme_buffer **out);
/*
 * Allocates like buffer_alloc_host() with `host`, otherwise like buffer_alloc(), for this CUDA
 * device of the process. CUDA_NO_DEVICE leaves the choice to mount_gpu_choose(). The staging of a
 * lease (for_lease) may use the regions that other buffers leave free.
 */
int buffer_alloc_on(struct connection *g, size_t len, bool host, bool for_lease, int device,
                    struct gpunvme_buffer **out);

/* Describes the bytes of a transfer. */
struct range {
    bool write;
    bool direct; /* act as if the file were open with O_DIRECT */
    bool known;  /* fd is a file of the buffer's mount if that has one, and `direct` is fd's */
    int fd;
    size_t buffer_offset;
    uint64_t file_offset;
    size_t len;
};

/*
 * Moves the bytes on the faster path, like transfer_read() and transfer_write(). A range that is
 * known spares short reads the system calls that examine fd.
 */
ssize_t transfer_range(struct gpunvme_buffer *b, const struct range *r,
                       struct gpunvme_result *result);

/* Returns the read of a piece. */
static inline struct range range_of_piece(int fd, const struct gpunvme_piece *p)
{
    return (struct range){
        .fd = fd, .buffer_offset = p->buffer_offset, .file_offset = p->file_offset, .len = p->len};
}

/*
 * Prepares the pipeline for memory of a device, so that a later transfer makes no call of CUDA that
 * could wait for a stream.
 */
int gpunvme_warm_pipeline(struct connection *g, int device);

/* Describes the path of a transfer. */
struct path_taken {
    const char *why; /* why the pipeline moves it; NULL: the mount moves it */
    bool by_size; /* the library chose the pipeline, so the mount moves what the pipeline cannot */
};

/*
 * Chooses the path of a read or write (pieces is 0), or of a batch of that many pieces with r->len
 * bytes in all.
 */
struct path_taken gpunvme_choose_path(struct gpunvme_buffer *b, const struct range *r,
                                      size_t pieces);

/*
 * Moves the range by the mount's ioctls until it is complete, the file ends, or an error occurs.
 * Stores the error in *err and sets gpunvme_error(). Adds to *result, and returns the bytes moved.
 */
size_t gpunvme_transfer_shared(struct gpunvme_buffer *b, const struct range *r, uint32_t flags,
                               struct gpunvme_result *result, int *err);
/* Moves the range in the same way through pinned host memory of this process (bounce.c). */
size_t gpunvme_transfer_bounced(struct gpunvme_buffer *b, const struct range *r,
                                struct gpunvme_result *result, int *err);
/*
 * Reads a list through such memory. Returns 0 if every piece has its own result. After an error,
 * which ends the list, the remaining pieces have -ECANCELED.
 */
int gpunvme_readv_bounced(struct gpunvme_buffer *b, int fd, struct gpunvme_piece *pieces, size_t n,
                          struct gpunvme_result *result);

/*
 * Calls the ioctl of a transfer. Returns the result of the ioctl or -errno. Returns -ENOTTY instead
 * of -ENOENT if the file is on another gpunvmefs mount, which does not know the buffer. A call that
 * a signal interrupted is repeated for the remaining bytes, as read(2) does for other files. After
 * a call that moved nothing, signals are blocked until the end of the next one, because frequent
 * signals would otherwise stop all progress. Faults, job control, SIGINT, SIGQUIT, SIGTERM and
 * SIGHUP are not blocked.
 */
int gpunvme_call(const struct connection *g, int fd, unsigned long request, void *arg,
                 uint32_t size, unsigned retries);
/*
 * Returns true if a call that failed with err may be repeated. *retries counts consecutive calls
 * that moved nothing, because a mount that is ending returns the same error. The caller sets it to
 * 0 when bytes were moved.
 */
bool gpunvme_was_interrupted(int err, unsigned *retries);

/* Adds the result of one call to *sum. */
void gpunvme_add_result(struct gpunvme_result *sum, uint32_t path, uint64_t commands,
                        uint32_t nvme_status, bool staged);
/*
 * Called after a transfer that the mount bounced through its own host memory. Logs it, and lets the
 * next transfers take the pipeline.
 */
void gpunvme_note_fallback(struct gpunvme_buffer *b, const struct range *r,
                           struct gpunvme_result *result);

#endif
