/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path: leased queues, leased files, and where the GPU finds them. */
#ifndef CLIENT_LIB_DIRECT_H
#define CLIENT_LIB_DIRECT_H

#include "client/device/gd_compare_launch.h"
#include "client/device/gd_launch.h"
#include "client/lib/client_internal.h"
#include "client/lib/copy_kernel.h"
#include "client/lib/direct_service.h"
#include "client/lib/memory_space.h"

/* A leased queue's memory, as the daemon shares it. */
struct direct_queue {
    struct memory_space_map rings, doorbells;
};

/*
 * Words in the memory space for lists, or for checks of data, in flight (direct_slots.c). Without a
 * slot a list is dealt evenly, and data is compared by the kernel that reads it.
 */
#define DIRECT_SLOTS 64u

struct direct_slots {
    uint64_t at;    /* in the memory space; 0: none */
    uint32_t bytes; /* of a slot */
    uint32_t runs_at;
    /* Of each slot: times that it was taken, and that its use is known to have ended. */
    uint32_t taken[DIRECT_SLOTS], ended[DIRECT_SLOTS];
};

struct gpunvme_direct {
    struct gpunvme *g;
    struct gpunvme_direct *next, **link; /* in g->directs: g->lock */
    struct memory_space space;
    struct cuda_kernel kernel, staged_kernel, readv_kernel, compare_kernel;
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

    pthread_mutex_t lock;         /* protects buffers and slots; taken after g->lock */
    struct direct_slots dealings; /* struct gq_dealing */
    struct direct_slots parts;    /* struct gd_parts: on mounts that stage */
    struct direct_slots checks;   /* struct gd_check: once a file with checksums was opened */
    struct gd_buffer *buffers;    /* as they are in the memory space */
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

/* Long reads into memory that the controller does not reach (direct_staged.c). */
int direct_staged_open(struct gpunvme_direct *d);
void direct_staged_close(struct gpunvme_direct *d);
/* Is the read one for direct_staged_launch()? */
bool direct_staged_takes(const struct gpunvme_direct *d, const struct gd_launch *l);
/*
 * 1: launched. 0: nothing is, for the stream is captured, or too many such reads are in flight; one
 * block reads it then. Or -errno.
 */
int direct_staged_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream);

/* runs_at: byte of a slot at which kernels count its uses that have ended. */
int direct_slots_open(struct gpunvme_direct *d, struct direct_slots *s, uint32_t bytes,
                      uint32_t runs_at);
void direct_slots_close(struct gpunvme_direct *d, struct direct_slots *s);
/* 0: none is free. It is given back only when nothing that uses it was launched. */
uint64_t direct_slots_take(struct gpunvme_direct *d, struct direct_slots *s);
void direct_slots_give_back(struct gpunvme_direct *d, struct direct_slots *s, uint64_t slot);

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
int leased_file_open(struct gpunvme_direct *d, int fd, bool own, struct gpunvme_file **out);
/* New extents, and the device's copy of everything. */
int leased_file_renew(struct gpunvme_file *f);
/* Until then, without touching a queue, reads are -ESTALE. */
int leased_file_disable(struct gpunvme_file *f);

/* The table for checksums and the words of checks (direct_sums.c). Under the lease lock. */
int direct_sums_load(struct gpunvme_direct *d); /* the kernel, where there is one */
int direct_sums_open(struct gpunvme_direct *d);
void direct_sums_close(struct gpunvme_direct *d);
/*
 * The words of a check of data that is read in this stream; NULL: the kernel that reads compares.
 * They are given back only when nothing that uses them was launched.
 */
struct gd_check *direct_check_take(struct gpunvme_direct *d, const struct gpunvme_device_file *f,
                                   void *stream);
void direct_check_give_back(struct gpunvme_direct *d, const struct gd_check *check);
/* Is it so long that a launch of many warps costs less than what those that read would compare? */
bool direct_compare_pays(const struct gd_launch *l);
/* Launches what comes after the read: the comparison, and the end of the check. */
int direct_conclude(struct gpunvme_direct *d, struct gd_launch *l, void *stream);
/* Launches the comparison, where the GPU is, or compares. */
int direct_compare(struct gpunvme_direct *d, struct gd_compare_launch *l, void *stream);
/* Of a read that ended with err: says so, with the block if one did not match. Returns err. */
int direct_say_failed(struct gpunvme_file *f, int err);

/*
 * The one command of a read to byte read.at of the buffer; map: as the host has it. Of a buffer
 * that the controller does not reach it is for staging: its PRPs are to be replaced. False: there
 * is no such command (direct_cpu.c).
 */
bool direct_command(const struct gpunvme_device_file *f, const struct gq_file_map *map,
                    const struct gd_buffer *b, struct gq_read read, struct gq_cmd *out);
/*
 * What the kernels of a read do, on the thread that calls (direct_cpu.c): the read, not of 0 bytes
 * nor past the end, the comparison, and the end of a check.
 */
int64_t direct_cpu_read(const struct gd_launch *l);
void direct_cpu_compare(const struct gd_compare_launch *l);
int64_t direct_cpu_conclude(const struct gd_launch *l);

#endif
