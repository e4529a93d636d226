/* SPDX-License-Identifier: BSD-2-Clause */
/* Describes a line cache of a direct file for kernels. The cache's words end with the leases. */
#ifndef CLIENT_LIB_LINE_CACHE_H
#define CLIENT_LIB_LINE_CACHE_H

#include <sys/queue.h>

#include "client/device/gd_cache_types.h"
#include "gpunvme/gpunvme.h"

struct gpunvme_cache {
    LIST_ENTRY(gpunvme_cache) entry;    /* in leased_file.caches, under the lease lock */
    struct gpunvme_file *file;          /* counts the cache as a user */
    struct gpunvme_device_cache device; /* copy of the struct in the memory space */
    uint64_t device_at;                 /* addresses in the memory space */
    uint64_t words_at;                  /* of the words, locks, slots, and recent lines */
    size_t words_len;
    void *lines; /* registered memory of the lines and of the slots; NULL: none yet */
};

#endif
