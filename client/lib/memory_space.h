/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the memory space of the code that drives leased queues. All tables
 * that the code loads lie in this space. The space belongs to a GPU, or to this
 * process on mounts without a GPU.
 */
#ifndef CLIENT_LIB_MEMORY_SPACE_H
#define CLIENT_LIB_MEMORY_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/cuda_driver.h"

struct memory_space {
    struct cuda_driver *cuda; /* NULL: the memory space of this process */
    int device;
    void *stream; /* for copies, because copies in the default stream would wait for kernels */
};

int memory_space_open(struct memory_space *p, struct cuda_driver *cuda, int device);
void memory_space_close(struct memory_space *p);

#define MEMORY_SPACE_ALIGNMENT 256u

/*
 * memory_space_alloc() stores the address of new memory, which is zero and
 * aligned. Returns 0 or -errno. memory_space_free() frees it.
 */
int memory_space_alloc(const struct memory_space *p, size_t len, uint64_t *addr);
void memory_space_free(const struct memory_space *p, uint64_t addr); /* 0 does nothing */
int memory_space_clear(const struct memory_space *p, uint64_t addr, size_t len);
int memory_space_put(const struct memory_space *p, uint64_t dst, const void *src, size_t len);
int memory_space_get(const struct memory_space *p, void *dst, uint64_t src, size_t len);

static inline uint64_t memory_space_round(uint64_t len)
{
    return (len + MEMORY_SPACE_ALIGNMENT - 1) / MEMORY_SPACE_ALIGNMENT * MEMORY_SPACE_ALIGNMENT;
}

/*
 * Places an array of n elements at *at, which is aligned, and advances *at to its aligned end.
 * Returns the address of the array.
 */
static inline void *memory_space_place(uint64_t *at, uint64_t n, size_t size)
{
    uint64_t place = *at;

    *at += memory_space_round(n * size);
    return (void *)(uintptr_t)place;
}

/* Describes mapped host memory, or a mapped part of a file that the daemon shares. */
struct memory_space_map {
    void *addr; /* NULL: none */
    size_t len;
    uint64_t at; /* address in the memory space */
    bool pinned;
};

/*
 * Allocates zeroed host memory for a GPU, of whole pages. A child of fork() does not get it: if
 * both processes had the pages, the parent's next store could go to a copy, while the GPU polls the
 * original for ever.
 */
int memory_space_alloc_host(const struct memory_space *p, size_t len, struct memory_space_map *out);

enum memory_space_access {
    MEMORY_SPACE_MEMORY,
    MEMORY_SPACE_READ_ONLY,
    MEMORY_SPACE_DOORBELLS, /* memory, or registers of a drive */
};

/*
 * Maps [offset, offset + len) of the file, which need not be whole pages. `at` and addr are the
 * addresses of `offset`. Returns -EPROTO if the file is too short.
 */
int memory_space_share(const struct memory_space *p, int fd, uint64_t offset, size_t len,
                       enum memory_space_access access, struct memory_space_map *out);
/* Unmaps memory of either kind. */
void memory_space_unshare(const struct memory_space *p, struct memory_space_map *m);

#endif
