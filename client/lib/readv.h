/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads lists by the mount's READV. */
#ifndef CLIENT_LIB_READV_H
#define CLIENT_LIB_READV_H

#include "client/lib/shared_list.h"

/* Describes the state of a call. Its pieces are read in their order. */
struct readv_call {
    struct gpunvme_buffer *b; /* registered at the mount */
    int fd;
    uint32_t flags;
    struct gpunvme_piece *pieces;
    size_t n, done;                /* pieces, and how many of the first ones have a result */
    uint64_t bytes;                /* added: bytes that the mount has read */
    struct gpunvme_result *result; /* added to */
    size_t turn;                   /* readv_by_list(): maximum pieces in one call of the mount */
    unsigned retries;              /* see gpunvme_call() */
};

/*
 * Reads all pieces, which lie in the list or are copied to it in turns. Returns 0 if all of them
 * have a result. Otherwise returns -errno, and sets gpunvme_error().
 */
int readv_by_list(struct readv_call *c, struct shared_list *l);

#endif
