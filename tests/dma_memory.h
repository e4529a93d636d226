/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates memory for DMA of the devices that tests simulate. */
#ifndef TESTS_DMA_MEMORY_H
#define TESTS_DMA_MEMORY_H

#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DMA_PAGE   ((size_t)4096)
#define DMA_SPARES 8u

/*
 * Freed memory is kept for the next allocation of its length, because tests mount thousands of
 * times and each page of a new mapping costs a page fault. AddressSanitizer reports accesses to
 * freed memory and to the pages before and behind an allocation.
 */
struct dma_memory {
    size_t len;  /* of the memory, in whole pages */
    void *token; /* from malloc(), so that LeakSanitizer reports memory that is never freed */
};

struct dma_spares {
    pthread_mutex_t lock; /* protects memory */
    struct dma_memory *memory[DMA_SPARES];
};

static inline struct dma_spares *dma_spares(void)
{
    static struct dma_spares spares = {PTHREAD_MUTEX_INITIALIZER, {NULL}};

    return &spares;
}

static inline size_t dma_whole(size_t len)
{
    return (len + DMA_PAGE - 1) / DMA_PAGE * DMA_PAGE;
}

static inline struct dma_memory *dma_take_spare(size_t len)
{
    struct dma_spares *spares = dma_spares();
    struct dma_memory *found = NULL;

    pthread_mutex_lock(&spares->lock);
    for (size_t i = 0; i < DMA_SPARES && !found; i++) {
        struct dma_memory *m = spares->memory[i];
        if (m && m->len == len) {
            found = m;
            spares->memory[i] = NULL;
        }
    }
    pthread_mutex_unlock(&spares->lock);
    return found;
}

/* Returns len bytes of zeros, aligned to a page. */
static inline void *dma_memory_new(size_t len)
{
    size_t whole = dma_whole(len);
    void *token = malloc(1);
    struct dma_memory *m = token ? dma_take_spare(whole) : NULL;

    if (!token)
        return NULL;
    if (!m) {
        void *fresh = mmap(NULL, whole + 2 * DMA_PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) {
            free(token);
            return NULL;
        }
        m = (struct dma_memory *)fresh;
        m->len = whole;
        ASAN_POISON_MEMORY_REGION(m + 1, whole + 2 * DMA_PAGE - sizeof(*m));
    }
    char *bytes = (char *)m + DMA_PAGE;
    m->token = token;
    ASAN_UNPOISON_MEMORY_REGION(bytes, whole);
    return memset(bytes, 0, whole);
}

static inline void dma_memory_free(void *bytes)
{
    struct dma_spares *spares = dma_spares();
    struct dma_memory *m = (struct dma_memory *)((char *)bytes - DMA_PAGE);
    bool kept = false;

    free(m->token);
    ASAN_POISON_MEMORY_REGION(bytes, m->len);
    pthread_mutex_lock(&spares->lock);
    for (size_t i = 0; i < DMA_SPARES && !kept; i++) {
        kept = !spares->memory[i];
        if (kept)
            spares->memory[i] = m;
    }
    pthread_mutex_unlock(&spares->lock);
    if (!kept) {
        ASAN_UNPOISON_MEMORY_REGION(m, m->len + 2 * DMA_PAGE);
        munmap(m, m->len + 2 * DMA_PAGE);
    }
}

#endif
