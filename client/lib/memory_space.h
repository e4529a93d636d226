/*
 * Where leased queues are driven, and so where everything is that their drivers look at: a GPU, or
 * this process on mounts without one.
 */
#ifndef CLIENT_LIB_MEMORY_SPACE_H
#define CLIENT_LIB_MEMORY_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/cuda_driver.h"

struct place {
    struct cuda_driver *cuda; /* NULL: this process */
    int device;
    void *stream; /* of our own, for copies: the default one would wait for kernels */
};

int place_open(struct place *p, struct cuda_driver *cuda, int device);
void place_close(struct place *p);

/* Addresses of the place. Memory begins as zeros, aligned to 256 bytes. */
int place_alloc(const struct place *p, size_t len, uint64_t *addr);
void place_free(const struct place *p, uint64_t addr); /* 0: nothing */
int place_put(const struct place *p, uint64_t dst, const void *src, size_t len);
int place_get(const struct place *p, void *dst, uint64_t src, size_t len);

/* A file that others share with us. */
struct place_map {
    void *addr; /* NULL: none */
    size_t len;
    uint64_t at; /* the same in the place */
    bool pinned;
};

enum place_access {
    PLACE_MEMORY,
    PLACE_READ_ONLY,
    PLACE_DOORBELLS, /* memory, or registers of a drive */
};

/*
 * [offset, offset + len), which need be no whole pages; `at` and addr are of `offset` itself.
 * -EPROTO: the file has not as many pages.
 */
int place_share(const struct place *p, int fd, uint64_t offset, size_t len,
                enum place_access access, struct place_map *out);
void place_unshare(const struct place *p, struct place_map *m);

#endif
