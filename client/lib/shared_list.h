/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory for the pieces of READV, shared with the mount when it is first needed and then kept. Each
 * call of READV has a list of its own.
 */
#ifndef CLIENT_LIB_SHARED_LIST_H
#define CLIENT_LIB_SHARED_LIST_H

#include "client/lib/client_internal.h"
#include "client/lib/memory_space.h"

struct shared_list {
    struct shared_list *next;
    uint64_t id, key;
    size_t room; /* pieces */
    struct gpunvme_piece *pieces;
    uint64_t mapped; /* where kernels of the device find them; 0: nowhere */
    int device;
};

/* With room for n pieces, at most GPUNVME_PIECES_MAX. */
int shared_list_get(struct gpunvme *g, size_t n, struct shared_list **out);
void shared_list_put(struct gpunvme *g, struct shared_list *l);
/* The list of gpunvme_pieces_alloc() that has these pieces, or NULL. */
struct shared_list *shared_list_of(struct gpunvme *g, const struct gpunvme_piece *pieces, size_t n);
/*
 * Where the direct path finds these pieces: *at; nothing is mapped for it. -EINVAL: they begin in
 * such a list, and n runs past its end.
 */
int shared_list_locate(struct gpunvme *g, const struct gpunvme_piece *pieces, size_t n,
                       uint64_t *at);
/* Under g->lock: maps the lists that there are for the memory space. Later ones come mapped. */
int shared_lists_map(struct gpunvme *g, const struct memory_space *p);
/* All that are not in use, and the caller's: all, when g ends. */
void shared_lists_free(struct gpunvme *g);

#endif
