/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the direct path: leased queues, leased files, and their tables in the memory space. */
#ifndef CLIENT_LIB_DIRECT_H
#define CLIENT_LIB_DIRECT_H

#include "client/device/gd_launch.h"
#include "client/lib/client_internal.h"
#include "client/lib/direct_service.h"
#include "client/lib/line_cache.h"
#include "client/lib/memory_space.h"

/* Describes the memory of a leased queue that the daemon shares. */
struct direct_queue {
    struct memory_space_map rings, doorbells;
};

/*
 * Slots of words in the memory space, for checks of data in flight (direct_slots.c). Without a free
 * slot the reading kernel compares data.
 */
#define DIRECT_SLOTS 64u

struct direct_slots {
    uint64_t at; /* address in the memory space of the struct gd_check; 0 if there are none */
    /* How often each slot was taken, and how many of these uses are known to have ended. */
    uint32_t taken[DIRECT_SLOTS], ended[DIRECT_SLOTS];
};

struct gpunvme_direct {
    struct connection *g;
    LIST_ENTRY(gpunvme_direct) entry; /* in g->directs, under g->lock */
    struct memory_space space;
    struct cuda_kernel kernel, list_kernel, compare_kernel;
    struct direct_service *service; /* NULL if there is none */
    uint32_t want_queues, want_depth;
    bool unverified; /* the option GPUNVME_UNVERIFIED was set */
    uint32_t lease_tier;

    /* The lease of the queues. It changes only during opening, renewing and closing. */
    struct gpunvme_ioc_queue_lease lease; /* id 0 if there is none */
    struct memory_space_map page;
    struct direct_queue queues[GD_MAX_QUEUES];
    uint64_t arena; /* address in the memory space of locks, queues and their CIDs */
    struct gd_set set;
    uint32_t leases;                /* number of leases of queues so far */
    struct gpunvme_buffer *staging; /* memory that the controller reaches */
    uint32_t staged_bytes;          /* bytes of staging for each lane and for each CID */

    /* Protects files and all leases: one thread at a time opens, refreshes, renews or closes. */
    pthread_mutex_t lease_lock;
    LIST_HEAD(, leased_file) files;
    /* Address in the memory space; 0 until a file with checksums was opened. Under lease_lock. */
    uint64_t sum_table_at;

    pthread_mutex_t lock; /* protects buffers, slots and what follows; taken after g->lock */
    uint64_t locks_at; /* address of the queues' lock words in the memory space; 0 without queues */
    uint64_t cids_at;  /* address of their struct gq_cids */
    uint32_t n_cids;   /* number of struct gq_cids */
    uint64_t parts_at; /* address of the struct gd_parts_table */
    struct direct_slots checks; /* slots of struct gd_check, for files with checksums */
    struct gd_buffer *buffers;  /* copy of the table in the memory space */
    uint64_t *buffer_ids;
    uint32_t n_buffers, max_buffers;
    uint64_t buffers_at; /* address of the number of entries; the table is 256 bytes behind */
};

/* Describes a lease of a file's present extents, and their copy in the memory space. */
struct file_lease {
    struct gpunvme_ioc_extent_lease ioc; /* id 0 if there is none */
    struct memory_space_map page;
    uint64_t extents_at;
};

struct leased_file {
    struct gpunvme_direct *d;
    LIST_ENTRY(leased_file) entry; /* in d->files, under d->lease_lock */
    int fd;                        /* refers to the caller's open file description */
    bool owns_fd;
    struct file_lease lease;
    struct gpunvme_device_file device; /* copy of the struct in the memory space */
    uint64_t device_at;                /* addresses in the memory space */
    uint64_t checked_at;
    uint64_t bad_block_at;
    uint64_t bad_block; /* atomic; 1 + offset of the last one that was reported; 0: none */
    uint64_t ino;
    LIST_HEAD(, gpunvme_cache) caches; /* under d->lease_lock */
};

/*
 * Lease and end queues (direct_queues.c). d->staging exists before. The end waits for reads, for a
 * limited time.
 */
int direct_queues_lease(struct gpunvme_direct *d);
void direct_queues_end(struct gpunvme_direct *d);
/* Returns true if a lost command may be in flight on a queue of the lease. */
bool direct_queues_lost(struct gpunvme_direct *d);
/* Maps the page of a lease and the first len bytes of its memory. */
int direct_share_page(struct gpunvme_direct *d, uint64_t id, uint64_t key, size_t len,
                      struct memory_space_map *out);
void direct_lease_end(int fd, uint64_t id, uint64_t key);

/*
 * Launches a read or a list, and with l->check also its comparison and conclusion
 * (direct_launch.c). Returns -ETIMEDOUT if CUDA refused a launch and the earlier launches have not
 * ended in time. These may then still write to the buffer, the result and the pieces.
 */
int direct_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream);
/*
 * Returns true if the read is so long that a comparison by a separate kernel of many warps costs
 * less.
 */
bool direct_compare_pays(const struct gd_launch *l);
/* Sets gpunvme_error() and returns -ENOTSUP, because the library has no device code. */
int direct_no_kernels(void);
/*
 * Returns false if the library has no device code, because it was built without a CUDA compiler.
 * Its daemon then has no CUDA executor either.
 */
bool direct_has_kernels(void);

/*
 * Describes a list that an earlier kernel has built in the memory space. The
 * read takes the pieces in [from, from + n) whose numbers are also in
 * [bounds[0], bounds[1]). n is not 0. Places count from ptr, which is in
 * registered memory.
 */
struct direct_window {
    void *ptr;
    struct gq_read_desc *pieces;
    const uint32_t *bounds;
    uint32_t from, n;
};
/*
 * Launches a read of the window; without a GPU, reads it on the calling thread.
 * The reading kernel compares checksums itself, since the host does not know
 * how many pieces there are.
 */
int direct_list_read_window(struct leased_file *f, const struct direct_window *win, void *stream);
/* Returns true if direct_long_launch() serves this read. */
bool direct_long_takes(const struct gpunvme_direct *d, const struct gd_launch *l);
/*
 * Launches a read through queues of its own. Returns 1 if the read was launched. Returns 0 if
 * shared queues have to serve the read, because its data is compared and the stream is being
 * captured, or because too many such reads are in flight. Otherwise returns -errno, like
 * direct_launch().
 */
int direct_long_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream);

/* Creates the slots. Kernels count the ended uses of a slot in `runs`. */
int direct_slots_open(struct gpunvme_direct *d);
void direct_slots_close(struct gpunvme_direct *d);
/*
 * Returns a slot in the memory space, or NULL if none is free. The end of a use frees the slot. The
 * caller frees only a slot for which nothing was launched.
 */
struct gd_check *direct_slots_take(struct gpunvme_direct *d);
void direct_slots_give_back(struct gpunvme_direct *d, const struct gd_check *slot);

/* Creates the table of registered memory with its IOVAs (direct_buffers.c). */
int direct_buffers_open(struct gpunvme_direct *d);
void direct_buffers_close(struct gpunvme_direct *d);
/*
 * Stores the entry of a buffer. Memory that the drive does not reach has the IOVA GD_UNREACHABLE.
 */
int direct_locate(struct connection *g, const struct gpunvme_buffer *b, struct gd_buffer *out);
void direct_buffer_add(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
void direct_buffer_remove(struct gpunvme_direct *d, const struct gpunvme_buffer *b);
/* Stores the entry that contains [addr, addr + len). Returns -EFAULT if there is none. */
int direct_buffer_find(struct gpunvme_direct *d, uint64_t addr, uint64_t len,
                       struct gd_buffer *out);

/* Files (leased_file.c). */
/* Leases the extents again, and stores all words of the file to the memory space. */
int leased_file_renew(struct leased_file *f);
/* Makes reads end with -ESTALE, without using a queue, until leased_file_renew(). */
int leased_file_disable(struct leased_file *f);
/*
 * Link and unlink a cache of the file. Unlinking a cache that is not linked
 * does nothing. A renewal makes the lines of linked caches invalid.
 */
void leased_file_add_cache(struct leased_file *f, struct gpunvme_cache *c);
void leased_file_remove_cache(struct leased_file *f, struct gpunvme_cache *c);
/*
 * Makes all lines of a cache free. No kernel may be using the cache. Returns -EBUSY if a lost
 * command may still write to its memory.
 */
int leased_file_drop_cache(struct leased_file *f, struct gpunvme_cache *c);

/*
 * Creates the table for checksums and the words of checks (direct_sums.c). Called under lease_lock.
 */
int direct_sums_open(struct gpunvme_direct *d);
void direct_sums_close(struct gpunvme_direct *d);
/*
 * Returns the words for a check of data that this stream reads. NULL means that the reading kernel
 * compares. The caller frees only words for which nothing was launched.
 */
struct gd_check *direct_check_take(struct gpunvme_direct *d, const struct gpunvme_device_file *f,
                                   void *stream);
/*
 * Frees the words of a check whose last kernel was not launched and whose other kernels have ended.
 */
void direct_check_end(struct gpunvme_direct *d, const struct gd_check *check);
/* Launches the kernel that compares the data of a read or a list. */
int direct_compare(struct gpunvme_direct *d, const struct gd_launch *l, void *stream);
/* Sets gpunvme_error() for a read that failed, naming a block that differs. Returns err. */
int direct_say_failed(struct leased_file *f, int err);

/* Executes the read on the calling thread (direct_cpu.c). Returns bytes or -errno. */
int64_t direct_cpu_read(const struct gd_launch *l);

/*
 * Launches a read like direct_read_async(), but counts nothing, because the caller waits for the
 * read and counts it.
 */
int direct_read_launch(struct leased_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes);

#endif
