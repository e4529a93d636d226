/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads lists by the mount's READV. */
#ifndef CLIENT_LIB_READV_SHARED_H
#define CLIENT_LIB_READV_SHARED_H

#include "client/lib/shared_list.h"

struct readv_call {
    struct gpunvme_buffer *b; /* registered at the mount */
    int fd;
    uint32_t flags;
    uint64_t bytes;                /* added: bytes that the mount has read */
    struct gpunvme_result *result; /* added to */
};

/*
 * Reads n pieces, which lie in the list or are copied to it in turns. Stores in *done how many of
 * them, from the first on, have a result: all of them if 0 is returned. Otherwise returns -errno,
 * and sets gpunvme_error().
 */
int gpunvme_readv_shared(struct readv_call *call, struct shared_list *l,
                         struct gpunvme_piece *pieces, size_t n, size_t *done);

#endif
