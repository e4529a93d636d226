/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path: leased queues, leased files, and their tables in the memory space. */
#ifndef CLIENT_LIB_DIRECT_H
#define CLIENT_LIB_DIRECT_H

#include "client/device/gd_compare_launch.h"
#include "client/device/gd_launch.h"
#include "client/lib/client_internal.h"
#include "client/lib/direct_service.h"
#include "client/lib/memory_space.h"

/* A leased queue's memory, as the daemon shares it. */
struct direct_queue {
    struct memory_space_map rings, doorbells;
};

/*
 * Direct slots: words in the memory space for lists, long staged reads, or checks of data in flight
 * (direct_slots.c). Without a slot the shares of a list are even, one block makes a staged read,
 * and the kernel that reads compares data.
 */
#define DIRECT_SLOTS 64u

struct direct_slots {
    uint64_t at;    /* in the memory space; 0: none */
    uint32_t bytes; /* of a slot */
    uint32_t runs_at;
    /* Of each slot: how often it was taken, and how many of these uses are known to have ended. */
    uint32_t taken[DIRECT_SLOTS], ended[DIRECT_SLOTS];
};

struct gpunvme_direct {
    struct connection *g;
    struct gpunvme_direct *next, **link; /* in g->directs: g->lock */
    struct memory_space space;
    struct cuda_kernel kernel, staged_kernel, readv_kernel, compare_kernel;
    struct direct_service *service; /* NULL: none */
    uint32_t want_queues, want_depth;
    bool unverified; /* GPUNVME_UNVERIFIED */

    /* The lease; constant but for opening, renewing and closing. */
    struct gpunvme_ioc_queue_lease lease; /* id 0: none */
    struct memory_space_map page;
    struct direct_queue queues[GD_MAX_QUEUES];
    uint64_t arena; /* in the memory space: locks, queues, and their CIDs */
    struct gd_set set;
    struct gpunvme_buffer *staging; /* memory that the controller reaches */
    uint32_t staged_bytes;          /* of the staging, for each lane and for each CID */

    /* Protects files and all leases: one thread at a time opens, refreshes, renews or closes. */
    pthread_mutex_t lease_lock;
    struct leased_file *files;
    /* In the memory space; 0: no file with checksums was opened. Under lease_lock. */
    uint64_t sum_table_at;

    pthread_mutex_t lock;         /* protects buffers, slots and what follows; after g->lock */
    uint64_t locks_at;            /* in the memory space: words of the queues; 0: there are none */
    uint64_t cids_at;             /* the same of their struct gq_cids */
    uint32_t n_cids;              /* and their number */
    struct direct_slots dealings; /* struct gq_dealing */
    struct direct_slots parts;    /* struct gd_parts: on mounts that stage */
    struct direct_slots checks;   /* struct gd_check: once a file with checksums was opened */
    struct gd_buffer *buffers;    /* as they are in the memory space */
    uint64_t *buffer_ids;
    uint32_t n_buffers, max_buffers;
    uint64_t buffers_at; /* in the memory space: their number, and from 256 on the table */
};

struct leased_file {
    struct gpunvme_direct *d;
    struct leased_file *next, **link; /* in d->files: d->lease_lock */
    int fd;                           /* of the caller's open file description */
    bool owns_fd;
    struct gpunvme_ioc_extent_lease lease; /* id 0: none */
    struct memory_space_map page;
    struct gpunvme_device_file device; /* as it is in the memory space */
    uint64_t device_at;                /* addresses in the memory space */
    uint64_t extents_at;
    uint64_t checked_at;
    uint64_t bad_block_at;
    uint64_t ino;
};

/* Queues (direct_queues.c). d->staging comes first; the end waits for reads, bounded. */
int direct_queues_lease(struct gpunvme_direct *d);
void direct_queues_end(struct gpunvme_direct *d);
/* May a lost command be under way on a queue of the lease? */
bool direct_queues_lost(struct gpunvme_direct *d);
/* Maps the page of a lease and the first len bytes of its memory. */
int direct_share_page(struct gpunvme_direct *d, uint64_t id, uint64_t key, size_t len,
                      struct memory_space_map *out);
void direct_lease_end(int fd, uint64_t id, uint64_t key);

/* The kernel for lists, where there is one (direct_readv.c). */
int direct_readv_open(struct gpunvme_direct *d);

/* Launches of a read (direct_launch.c). With l->check also its comparison, and the conclusion. */
int direct_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream);
/* Is the read so long that a comparison by a kernel of many warps costs less than by its own? */
bool direct_compare_pays(const struct gd_launch *l);
/*
 * Launches the kernels that follow the read: comparison, and end of the check (gd_compare.h).
 * On an error direct_give_up() has been called.
 */
int direct_conclude(struct gpunvme_direct *d, struct gd_launch *l, void *stream);
/*
 * For a read whose second or third launch CUDA has refused with err: waits until the stream is
 * idle, and gives back the words of its check, if it has one. Returns err; -ETIMEDOUT: the kernels
 * have not ended in time, and may still write to the buffer, the result and the pieces. Waits for
 * nothing while the stream is captured.
 */
int direct_give_up(struct gpunvme_direct *d, const struct gd_check *check, void *stream,
                   uint64_t patience_ns, int err);
/* Sets gpunvme_error() and returns -ENOTSUP: the library has no device code. */
int direct_no_kernels(void);
/* False: it has none, because there was no CUDA compiler; nor has its daemon a CUDA executor. */
bool direct_has_kernels(void);

/* Long reads into memory that the controller does not reach (direct_staged.c). */
int direct_staged_open(struct gpunvme_direct *d);
void direct_staged_close(struct gpunvme_direct *d);
/* Does direct_staged_launch() make this read? */
bool direct_staged_takes(const struct gpunvme_direct *d, const struct gd_launch *l);
/*
 * 1: launched. 0: not launched, because the stream is being captured or too many such reads are in
 * flight, and the read is compared, or a host waits for it; one block makes it then. Or -errno, as
 * of direct_give_up().
 */
int direct_staged_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream);

/* runs_at: offset in a slot of the word in which kernels count the uses that have ended. */
int direct_slots_open(struct gpunvme_direct *d, struct direct_slots *s, uint32_t bytes,
                      uint32_t runs_at);
void direct_slots_close(struct gpunvme_direct *d, struct direct_slots *s);
/*
 * 0: none is free. Only a slot for which nothing was launched is given back; the end of a use frees
 * it.
 */
uint64_t direct_slots_take(struct gpunvme_direct *d, struct direct_slots *s);
void direct_slots_give_back(struct gpunvme_direct *d, struct direct_slots *s, uint64_t slot);

/* The table of registered memory, with its IOVAs (direct_buffers.c). */
int direct_buffers_open(struct gpunvme_direct *d);
void direct_buffers_close(struct gpunvme_direct *d);
/* Memory that the drive does not reach has the IOVA GD_UNREACHABLE. */
int direct_locate(struct connection *g, const struct gpunvme_buffer *b, struct gd_buffer *out);
void direct_buffer_add(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
void direct_buffer_remove(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
/* The entry around [addr, addr + len): -EFAULT if there is none. */
int direct_buffer_find(struct gpunvme_direct *d, uint64_t addr, uint64_t len,
                       struct gd_buffer *out);

/* Files (leased_file.c). */
/* Leases the extents anew, and stores everything to the memory space. */
int leased_file_renew(struct leased_file *f);
/* Until leased_file_renew() reads end with -ESTALE, without use of a queue. */
int leased_file_disable(struct leased_file *f);

/* The table for checksums and the words of checks (direct_sums.c). Under the lease lock. */
int direct_sums_load(struct gpunvme_direct *d); /* the kernel, where there is one */
int direct_sums_open(struct gpunvme_direct *d);
void direct_sums_close(struct gpunvme_direct *d);
/*
 * The words of a check of data that is read in this stream; NULL: the kernel that reads compares.
 * Only words for which nothing was launched are given back.
 */
struct gd_check *direct_check_take(struct gpunvme_direct *d, const struct gpunvme_device_file *f,
                                   void *stream);
void direct_check_give_back(struct gpunvme_direct *d, const struct gd_check *check);
/* Gives back words whose kernels have ended, of which the last one was not launched. */
void direct_check_end(struct gpunvme_direct *d, const struct gd_check *check);
/* Launches the comparison; without a GPU, compares. */
int direct_compare(struct gpunvme_direct *d, struct gd_compare_launch *l, void *stream);
/* The same of the data of one read. */
int direct_compare_read(struct gpunvme_direct *d, const struct gd_launch *l, void *stream);
/* Sets gpunvme_error() for a read that failed, with the block that differs. Returns err. */
int direct_say_failed(struct leased_file *f, int err);

/*
 * Makes the one command of a read to byte read.at of the buffer; map: at addresses of the host. For
 * a buffer that the controller does not reach the caller replaces the PRPs by those of staging.
 * False: one command does not suffice (direct_cpu.c).
 */
bool direct_command(const struct gpunvme_device_file *f, const struct gq_file_map *map,
                    const struct gd_buffer *b, struct gq_read read, struct gq_cmd *out);
/*
 * The work of the kernels of a read, by the calling thread (direct_cpu.c): the read, which is not
 * empty and ends before the file does, the comparison, and the end of a check.
 */
int64_t direct_cpu_read(const struct gd_launch *l);
void direct_cpu_compare(const struct gd_compare_launch *l);
int64_t direct_cpu_conclude(const struct gd_launch *l);

/*
 * Launches a read as direct_read_async() does, but counts nothing: the caller
 * waits for the read, and counts it as its own.
 */
int direct_read_launch(struct leased_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes);

#endif
