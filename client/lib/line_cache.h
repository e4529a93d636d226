/* SPDX-License-Identifier: BSD-2-Clause */
/* Caches of direct files, as gpunvme_cache_open() makes them. */
#ifndef CLIENT_LIB_LINE_CACHE_H
#define CLIENT_LIB_LINE_CACHE_H

#include "client/lib/handle.h"
#include "client/lib/leased_cache.h"

struct gpunvme_cache {
    struct gpunvme_file *file; /* counts the cache as a user */
    struct leased_cache words;
    void *lines; /* registered memory of the lines and of the slots; NULL: none yet */
};

#endif
