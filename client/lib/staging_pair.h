/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A lane of the bounce pipeline: two chunks of staging, and the copies between them and the buffer.
 * One thread at a time uses a lane.
 */
#ifndef CLIENT_LIB_LANE_H
#define CLIENT_LIB_LANE_H

#include "client/lib/client_internal.h"

struct slot {
    char *staging;  /* of its own */
    char *data;     /* where its chunk is: there, or in the buffer itself (lane_place()) */
    void *stream;   /* CUDA; a copy may be running on it after lane_copy_start() */
    size_t at, len; /* the chunk it holds, from the start of the range; len 0: none */
};

struct lane {
    struct lane *next; /* in the pipeline's list of free ones */
    struct gpunvme_buffer *staging;
    struct cuda_driver *cuda;
    int device; /* that the staging is pinned for and the streams belong to; CUDA_NO_DEVICE: none */
    struct slot slots[2];
};

int lane_new(struct gpunvme *g, size_t chunk, struct lane **out);
void lane_free(struct lane *l);

/* For copies to and from memory of the device; CUDA_NO_DEVICE: of the host, by memcpy(3). */
int lane_attach(struct lane *l, struct cuda_driver *cuda, int device);

/*
 * Where the slot's chunk is to be: in its staging, or at addr in the buffer where that is host
 * memory which read(2) and write(2) can take.
 */
void lane_place(const struct lane *l, struct slot *s, const struct range *r, char *addr);

/* Between the slot's data and addr, none where they are the same; the memory is in use until
 * lane_copy_wait() has returned. */
int lane_copy_start(struct lane *l, struct slot *s, char *addr, bool to_slot);
int lane_copy_wait(struct lane *l, struct slot *s);

/*
 * Between the file's bytes from file_offset on and the slot's len bytes of data: how many, with the
 * end or *err after them. Long ones go by the mount's ioctls where the staging is registered: the
 * drive fills it.
 */
size_t lane_move_file(struct lane *l, struct slot *s, const struct range *r, uint64_t file_offset,
                      struct gpunvme_result *result, int *err);

#endif
