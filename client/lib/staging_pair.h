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
    char *data;     /* of its chunk: staging, or the place in the buffer (staging_pair_place()) */
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

int staging_pair_new(struct connection *g, size_t chunk, struct staging_pair **out);
void staging_pair_free(struct staging_pair *pair);

/* Prepares copies to and from memory of the device; CUDA_NO_DEVICE: of the host, by memcpy(3). */
int staging_pair_attach(struct staging_pair *pair, struct cuda_driver *cuda, int device);

/*
 * Sets s->data for the next chunk: the half's staging, or addr in the buffer where that is host
 * memory that read(2) and write(2) accept.
 */
void staging_pair_place(const struct staging_pair *pair, struct half *s, const struct range *r,
                        char *addr);

/*
 * Starts the copy between the half's data and addr; none where they are the same. The memory is in
 * use until staging_pair_copy_wait() has returned.
 */
int staging_pair_copy_start(struct staging_pair *pair, struct half *s, char *addr, bool to_half);
int staging_pair_copy_wait(struct staging_pair *pair, struct half *s);

/*
 * Moves s->len bytes between the file at file_offset and the half's data. Returns the bytes moved,
 * fewer at the end of the file or with *err. Long chunks are moved by the mount's ioctls where the
 * staging is registered, by DMA of the drive.
 */
size_t staging_pair_move_file(struct staging_pair *pair, struct half *s, const struct range *r,
                              uint64_t file_offset, struct gpunvme_result *result, int *err);
/* The same by read(2) or write(2), whatever its length. */
size_t staging_pair_move_by_syscall(const struct half *s, const struct range *r,
                                    uint64_t file_offset, int *err);

#endif
