/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shares memory for the pieces of READV with the mount, and reuses this memory.
 * Each READV in flight has its own list.
 */
#ifndef CLIENT_LIB_SHARED_LIST_H
#define CLIENT_LIB_SHARED_LIST_H

#include "client/lib/client_internal.h"
#include "client/lib/memory_space.h"

struct shared_list {
    LIST_ENTRY(shared_list) entry;
    uint64_t id, key;
    size_t room; /* pieces */
    struct gpunvme_piece *pieces;
    uint64_t mapped; /* address for kernels of the device; 0 if it is not mapped */
    int device;
};

/* Creates a list. `flags` are those of REGISTER. *out is NULL after a failure. */
int shared_list_new(struct connection *g, size_t room, uint32_t flags, struct shared_list **out);
/* Frees a list that no call uses. The mount releases it at the latest when g->fd is closed. */
void shared_list_free(struct connection *g, struct shared_list *l);
/* Takes a list with room for n pieces, at most GPUNVME_PIECES_MAX. */
int shared_list_get(struct connection *g, size_t n, struct shared_list **out);
void shared_list_put(struct connection *g, struct shared_list *l);
/* Returns the list of shared_list_alloc_pieces() that contains these pieces, or NULL. */
struct shared_list *shared_list_of(struct connection *g, const struct gpunvme_piece *pieces,
                                   size_t n);
/*
 * Stores the address of the pieces in the memory space, without mapping anything. Returns -EINVAL
 * if the pieces begin in a list of shared_list_alloc_pieces() and end behind it.
 */
int shared_list_locate(struct connection *g, const struct gpunvme_piece *pieces, size_t n,
                       uint64_t *at);
/*
 * Called under g->lock. Maps all existing lists for the memory space. Later lists are mapped when
 * created.
 */
int shared_lists_map(struct connection *g, const struct memory_space *p);
/*
 * Frees the lists that are not in use and those of shared_list_alloc_pieces(). All are freed when g
 * ends.
 */
void shared_lists_free(struct connection *g);

#endif
