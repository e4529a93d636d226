/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Places the pieces of a list in a half of a staging pair. They lie in the
 * staging as in the buffer, so that pieces that are neighbours there are copied
 * together.
 */
#ifndef CLIENT_LIB_STAGING_LIST_H
#define CLIENT_LIB_STAGING_LIST_H

#include "client/lib/staging_pair.h"

/* A list, which the caller keeps. */
struct staging_list {
    struct gpunvme_buffer *b;
    int fd;
    struct gpunvme_piece *pieces;
    size_t n;
};

/*
 * Returns how many pieces from `first` on fit into a half with room for `most` of them: at least 1.
 */
size_t staging_list_count(const struct staging_pair *pair, const struct staging_list *l,
                          size_t first, size_t most);
/*
 * Reads pieces [s->at, s->at + s->len) of the list into the half, which has room for them, and
 * begins to copy them to the buffer. Returns an error that ends the whole list; pieces have no
 * results then. Adds to *result.
 */
int staging_list_begin(struct staging_pair *pair, struct half *s, const struct staging_list *l,
                       struct gpunvme_result *result);
/*
 * Waits for the copies and stores the results of the pieces. A piece that is longer than a half has
 * the result -E2BIG. Returns the bytes read.
 */
uint64_t staging_list_finish(struct staging_pair *pair, struct half *s,
                             const struct staging_list *l);

#endif
