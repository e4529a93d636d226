/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pool of bounce buffers: host memory for requests and for the bounce path.
 */
#include <pthread.h>
#include <stdlib.h>

#include "fusefs/daemon/state/daemon.h"

static _Thread_local struct bounce *own;

void bounce_bind(struct bounce *b)
{
    own = b;
}

struct bounce *bounce_own(void)
{
    return own;
}

struct bounce *bounce_get(struct bounce_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct bounce *b = pool->free;
    if (b)
        pool->free = b->next;
    pthread_mutex_unlock(&pool->lock);
    if (b)
        return b;
    b = malloc(sizeof(*b));
    if (!b)
        return NULL;
    /*
     * A failed device provides no DMA memory. Heap memory lets the request
     * reach the core, which returns the device's error.
     */
    char *memory = ffs_dma_alloc(pool->fs, BOUNCE_HEAD + MAX_IO);
    b->plain = !memory;
    if (b->plain)
        memory = aligned_alloc(BOUNCE_HEAD, BOUNCE_HEAD + MAX_IO);
    if (memory) {
        b->data = memory + BOUNCE_HEAD;
        return b;
    }
    free(b);
    return NULL;
}

/*
 * Buffers are kept, since the pool never exceeds the largest number of
 * concurrent requests.
 */
void bounce_put(struct bounce_pool *pool, struct bounce *b)
{
    pthread_mutex_lock(&pool->lock);
    b->next = pool->free;
    pool->free = b;
    pthread_mutex_unlock(&pool->lock);
}

void bounce_pool_free(struct bounce_pool *pool)
{
    struct bounce *b;

    while ((b = pool->free)) {
        char *memory = (char *)b->data - BOUNCE_HEAD;
        pool->free = b->next;
        if (b->plain)
            free(memory);
        else
            ffs_dma_free(pool->fs, memory, BOUNCE_HEAD + MAX_IO);
        free(b);
    }
}
