/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Manages the words of caches of leased files. The words end with the
 * leases.
 */
#ifndef CLIENT_LIB_LEASED_CACHE_H
#define CLIENT_LIB_LEASED_CACHE_H

#include <stdbool.h>
#include <sys/queue.h>

#include "client/device/gd_cache_types.h"
#include "client/lib/memory_space.h"

struct leased_cache {
    LIST_ENTRY(leased_cache) entry; /* in leased_file.caches, under the lease lock */
    const struct memory_space *space;
    struct gpunvme_device_cache device; /* copy of the struct in the memory space */
    uint64_t device_at;                 /* addresses in the memory space */
    uint64_t words_at;                  /* of the words, locks, slots, and recent lines */
    size_t words_len;
};

/* Describes a cache of a direct file that gpunvme_cache_open() has made. */
struct gpunvme_cache {
    struct gpunvme_file *file; /* counts the cache as a user */
    struct leased_cache words;
    void *lines; /* registered memory of the lines and of the slots; NULL: none yet */
};

/*
 * Allocates the words of a cache, whose sizes are set in c->device, and stores
 * its struct. No line is valid.
 */
int leased_cache_open(struct leased_cache *c);
void leased_cache_close(struct leased_cache *c);
/*
 * Makes all lines free. No kernel may be using the cache, and no command may be
 * in flight that could write to its memory.
 */
int leased_cache_clear(struct leased_cache *c);
/*
 * Returns true if the cache has used all generations: after leased_cache_next()
 * it keeps no line until it is cleared.
 */
bool leased_cache_is_used_up(const struct leased_cache *c);
/* Makes all lines invalid. Lines and slots of lost commands stay out of use. */
int leased_cache_next(struct leased_cache *c);
/* Keeps all lines that are missed, or only those that were missed recently. */
int leased_cache_set_second_touch(struct leased_cache *c, bool second_touch);
/* Stores the sums of the counters. */
int leased_cache_counts(const struct leased_cache *c, struct gd_cache_counts *out);

#endif
