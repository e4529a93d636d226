/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares a staging pair of the bounce pipeline. A pair has two chunks of
 * staging. Functions copy between these chunks and the buffer of the transfer.
 * One thread at a time uses a pair.
 */
#ifndef CLIENT_LIB_STAGING_PAIR_H
#define CLIENT_LIB_STAGING_PAIR_H

#include "client/lib/client_internal.h"

struct half {
    char *staging;  /* of its own */
    char *data;     /* data of the chunk: in staging, or in the buffer (staging_pair_place()) */
    void *stream;   /* CUDA stream; a copy may be running in it after staging_pair_copy_start() */
    size_t at, len; /* the chunk, from the start of the range; len is 0 if there is none */
    /* For a list `at` and `len` count pieces. */
    struct gpunvme_piece *pieces; /* room for STAGING_PIECES; in pair->list, if there is one */
    int copy_error;               /* of a copy of pieces that did not start */
};

#define STAGING_PIECES 4096u
/*
 * Below this size read(2) is faster than an ioctl, because the kernel reads ahead: 0.48 GB/s
 * against 0.08 for 4 KiB in order, and 2.7 against 1.4 for 256 KiB (executor=cpu, two cores). With
 * O_DIRECT both are about equal: 0.74 against 0.92 GB/s for 64 KiB.
 */
#define STAGING_SYSCALL_BELOW ((size_t)1 << 20)

struct staging_pair {
    struct staging_pair *next; /* in the pipeline's list of free pairs */
    size_t chunk;              /* bytes of a half; a page more is allocated */
    struct gpunvme_buffer *staging;
    struct shared_list *list; /* the pieces of both halves, for READV, or NULL */
    struct cuda_driver *cuda;
    int device; /* device of the pinned staging and the streams, or CUDA_NO_DEVICE */
    struct half halves[2];
};

/* With `local`, the staging is not registered at the mount, so no ioctl moves chunks. */
int staging_pair_new(struct connection *g, size_t chunk, bool local, struct staging_pair **out);
void staging_pair_free(struct staging_pair *pair);

/*
 * Prepares copies to and from memory of the device. For CUDA_NO_DEVICE, memcpy(3) copies host
 * memory.
 */
int staging_pair_attach(struct staging_pair *pair, struct cuda_driver *cuda, int device);

/*
 * Allocates the pieces of the halves. The mount's READV reads them if it has registered the staging
 * and has room for a list.
 */
int staging_pair_make_pieces(struct staging_pair *pair);

/*
 * Sets s->data for the next chunk: to the staging of the half, or to addr in the buffer if that is
 * host memory that read(2) and write(2) accept.
 */
void staging_pair_place(const struct staging_pair *pair, struct half *s, const struct range *r,
                        char *addr);

/*
 * Starts the copy between the half's data and addr, unless they are the same. The memory is in use
 * until staging_pair_copy_wait() returns.
 */
int staging_pair_copy_start(struct staging_pair *pair, struct half *s, char *addr, bool to_half);
int staging_pair_copy_wait(struct staging_pair *pair, struct half *s);

/*
 * Moves s->len bytes between the file at file_offset and the half's data. Returns the bytes moved:
 * fewer at the end of the file, or after an error in *err. If the staging is registered, the
 * mount's ioctls move long chunks by DMA of the drive.
 */
size_t staging_pair_move_file(struct staging_pair *pair, struct half *s, const struct range *r,
                              uint64_t file_offset, struct gpunvme_result *result, int *err);
/* Moves the same bytes by read(2) or write(2), whatever their number. */
size_t staging_pair_move_by_syscall(const struct half *s, const struct range *r,
                                    uint64_t file_offset, int *err);

/* --- staging_list.c: the pieces of a list ---------------------------------------------------- */

/*
 * The pieces lie in the staging as in the buffer, so that pieces that are
 * neighbours there are copied together.
 */

/* Describes a list. The caller keeps its pieces. */
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
