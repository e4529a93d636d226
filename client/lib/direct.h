/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path: leased queues, leased files, and where the GPU finds them. */
#ifndef CLIENT_LIB_DIRECT_H
#define CLIENT_LIB_DIRECT_H

#include "client/device/gd_types.h"
#include "client/lib/client_internal.h"
#include "client/lib/copy_kernel.h"
#include "client/lib/direct_service.h"
#include "client/lib/memory_space.h"

/* A leased queue's memory, as the daemon shares it. */
struct direct_queue {
    struct memory_space_map rings, doorbells;
};

/* Sets of words for lists in flight; further lists are dealt evenly (direct_dealing.c). */
#define DIRECT_DEALINGS 64u

struct direct_dealings {
    uint64_t at; /* in the memory space; 0: none */
    /* Of each set: times that it was taken, and that its list is known to have ended. */
    uint32_t taken[DIRECT_DEALINGS], ended[DIRECT_DEALINGS];
};

struct gpunvme_direct {
    struct gpunvme *g;
    struct gpunvme_direct *next, **link; /* in g->directs: g->lock */
    struct memory_space space;
    struct cuda_kernel kernel, readv_kernel;
    struct direct_service *service;  /* NULL: none */
    struct copy_kernel *copy_kernel; /* NULL: none */
    uint32_t want_queues, want_depth;
    bool unverified; /* GPUNVME_DIRECT_UNVERIFIED */

    /* The lease; constant but for opening, renewing and closing. */
    struct gpunvme_ioc_queue_lease lease; /* id 0: none */
    struct memory_space_map page;
    struct direct_queue queues[GD_MAX_QUEUES];
    const struct nvme_cqe *cqs[GD_MAX_QUEUES]; /* theirs, for the host */
    uint64_t arena; /* in the memory space: locks, queues, and their CIDs */
    struct gd_set set;
    struct gpunvme_buffer *staging; /* the controller reaches it */
    uint32_t staged_bytes;          /* of it for each lane, and for each CID */

    /*
     * Protects files, and all leases: opened, refreshed, renewed, closed by one thread at a time.
     */
    pthread_mutex_t lease_lock;
    struct gpunvme_file *files;
    /* In the memory space; 0: no file with checksums was opened. Under lease_lock. */
    uint64_t sum_table_at;

    pthread_mutex_t lock; /* protects buffers and dealings; taken after g->lock */
    struct direct_dealings dealings;
    struct gd_buffer *buffers; /* as they are in the memory space */
    uint64_t *buffer_ids;
    uint32_t n_buffers, max_buffers;
    uint64_t buffers_at; /* in the memory space: their number, and from 256 on the table */
};

struct gpunvme_file {
    struct gpunvme_direct *d;
    struct gpunvme_file *next, **link; /* in d->files: d->lease_lock */
    int fd;                            /* of the caller's open file description */
    bool owns_fd;
    struct gpunvme_ioc_extent_lease lease; /* id 0: none */
    struct memory_space_map page;
    struct gpunvme_device_file device; /* as it is in the memory space: */
    uint64_t device_at;
    uint64_t extents_at;
    uint64_t checked_at;
    uint64_t bad_block_at;
    uint64_t ino;
};

/* Queues (direct_queues.c). Taking them needs the staging; ending waits for reads, bounded. */
int direct_queues_lease(struct gpunvme_direct *d);
void direct_queues_end(struct gpunvme_direct *d);
/* The page of a lease, and its memory from the start. */
int direct_share_page(struct gpunvme_direct *d, uint64_t id, uint64_t key, size_t len,
                      struct memory_space_map *out);
void direct_lease_end(int fd, uint64_t id, uint64_t key);

/* The kernel for lists, where there is one (direct_readv.c). */
int direct_readv_open(struct gpunvme_direct *d);

/*
 * The set of words of a list; NULL: none is free. It is given back only when the list was not
 * launched.
 */
int direct_dealing_open(struct gpunvme_direct *d);
void direct_dealing_close(struct gpunvme_direct *d);
struct gq_dealing *direct_dealing_take(struct gpunvme_direct *d);
void direct_dealing_give_back(struct gpunvme_direct *d, const struct gq_dealing *set);

/* Where registered memory is for the drive (direct_buffers.c). */
int direct_buffers_open(struct gpunvme_direct *d);
void direct_buffers_close(struct gpunvme_direct *d);
/* Memory that the drive does not reach has the IOVA GD_UNREACHABLE. */
int direct_locate(struct gpunvme *g, const struct gpunvme_buffer *b, struct gd_buffer *out);
void direct_buffer_add(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
void direct_buffer_remove(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
/* The entry around [addr, addr + len): -EFAULT if there is none. */
int direct_buffer_find(struct gpunvme_direct *d, uint64_t addr, uint64_t len,
                       struct gd_buffer *out);

/*
 * Files (leased_file.c). Without a descriptor of its own: fd stays open until the file is closed,
 * and POSIX locks of the process on the file stay when it is.
 */
int direct_file_open(struct gpunvme_direct *d, int fd, bool own, struct gpunvme_file **out);
/* New extents, and the device's copy of everything. */
int direct_file_renew(struct gpunvme_file *f);
/* Until then, without touching a queue, reads are -ESTALE. */
int direct_file_disable(struct gpunvme_file *f);

/* The table for checksums, in the memory space (direct_sums.c). Under the lease lock. */
int direct_sum_table(struct gpunvme_direct *d);
/* Of a read that ended with err: says so, with the block if one did not match. Returns err. */
int direct_say_failed(struct gpunvme_file *f, int err);

/*
 * The one command of a read to byte read.at of the buffer; map: as the host has it. Of a buffer
 * that the controller does not reach it is for staging: its PRPs are to be replaced. False: there
 * is no such command (direct_cpu.c).
 */
bool direct_command(const struct gpunvme_device_file *f, const struct gq_file_map *map,
                    const struct gd_buffer *b, struct gq_read read, struct gq_cmd *out);
/* The read, not of 0 bytes nor past the end, on the thread that calls (direct_cpu.c). */
int64_t direct_cpu_read(const struct gpunvme_device_file *f, const struct gd_buffer *b, void *dst,
                        uint64_t len, uint64_t offset);

#endif
