/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A staging pair of the bounce pipeline: two chunks of staging, and the copies between them and the
 * buffer of the transfer. One thread at a time uses a pair.
 */
#ifndef CLIENT_LIB_STAGING_PAIR_H
#define CLIENT_LIB_STAGING_PAIR_H

#include "client/lib/client_internal.h"

struct half {
    char *staging;  /* of its own */
    char *data;     /* where its chunk is: there, or in the buffer itself (staging_pair_place()) */
    void *stream;   /* CUDA; a copy may be running on it after staging_pair_copy_start() */
    size_t at, len; /* the chunk it holds, from the start of the range; len 0: none */
};

struct staging_pair {
    struct staging_pair *next; /* in the pipeline's list of free ones */
    struct gpunvme_buffer *staging;
    struct cuda_driver *cuda;
    int device; /* that the staging is pinned for and the streams belong to; CUDA_NO_DEVICE: none */
    struct half halves[2];
};

int staging_pair_new(struct gpunvme *g, size_t chunk, struct staging_pair **out);
void staging_pair_free(struct staging_pair *pair);

/* For copies to and from memory of the device; CUDA_NO_DEVICE: of the host, by memcpy(3). */
int staging_pair_attach(struct staging_pair *pair, struct cuda_driver *cuda, int device);

/*
 * Where the half's chunk is to be: in its staging, or at addr in the buffer where that is host
 * memory which read(2) and write(2) can take.
 */
void staging_pair_place(const struct staging_pair *pair, struct half *s, const struct range *r,
                        char *addr);

/*
 * Between the half's data and addr, none where they are the same; the memory is in use until
 * staging_pair_copy_wait() has returned.
 */
int staging_pair_copy_start(struct staging_pair *pair, struct half *s, char *addr, bool to_half);
int staging_pair_copy_wait(struct staging_pair *pair, struct half *s);

/*
 * Between the file's bytes from file_offset on and the half's len bytes of data: how many, with the
 * end or *err after them. Long ones go by the mount's ioctls where the staging is registered: the
 * drive fills it.
 */
size_t staging_pair_move_file(struct staging_pair *pair, struct half *s, const struct range *r,
                              uint64_t file_offset, struct gpunvme_result *result, int *err);
/* The same by read(2) or write(2), whatever its length. */
size_t staging_pair_move_by_syscall(const struct half *s, const struct range *r,
                                    uint64_t file_offset, int *err);

#endif
