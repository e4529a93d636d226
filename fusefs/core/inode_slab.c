/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slabs of inodes. A slab is aligned to its size, so that the address of an inode names its slab.
 */
#include "fusefs/core/inode_slab.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fusefs/core/storage.h"

#define SLAB_BYTES ((size_t)256 << 10)

union place {
    struct ffs_inode inode;
    union place *next_free;
};

struct ffs_slab {
    struct ffs_slab *prev, *next; /* among those with room */
    size_t used;
    size_t begun; /* places from here on have never been taken */
    union place *free;
    union place places[];
};

#define PLACES ((SLAB_BYTES - sizeof(struct ffs_slab)) / sizeof(union place))

void ffs_inode_slabs_init(struct ffs_inode_slabs *slabs)
{
    pthread_mutex_init(&slabs->lock, NULL);
}

static void add(struct ffs_inode_slabs *slabs, struct ffs_slab *s)
{
    s->prev = NULL;
    s->next = slabs->partial;
    if (s->next)
        s->next->prev = s;
    slabs->partial = s;
}

static void take_out(struct ffs_inode_slabs *slabs, struct ffs_slab *s)
{
    *(s->prev ? &s->prev->next : &slabs->partial) = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static void unmap(struct ffs_inode_slabs *slabs, struct ffs_slab *s)
{
    take_out(slabs, s);
    slabs->count--;
    munmap(s, SLAB_BYTES);
}

/* A slab with an inode that a caller has never put stays mapped. */
void ffs_inode_slabs_destroy(struct ffs_inode_slabs *slabs)
{
    struct ffs_slab *next;

    for (struct ffs_slab *s = slabs->partial; s; s = next) {
        next = s->next;
        if (s->used == 0)
            unmap(slabs, s);
    }
    pthread_mutex_destroy(&slabs->lock);
}

/* Of twice the size an aligned half is kept. */
static struct ffs_slab *map_slab(void)
{
    uint8_t *at =
        mmap(NULL, 2 * SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    size_t before = (SLAB_BYTES - (uintptr_t)at % SLAB_BYTES) % SLAB_BYTES;
    if (before > 0)
        munmap(at, before);
    munmap(at + before + SLAB_BYTES, SLAB_BYTES - before);
    return (struct ffs_slab *)(void *)(at + before);
}

static struct ffs_slab *with_room(struct ffs_inode_slabs *slabs)
{
    if (slabs->partial)
        return slabs->partial;
    struct ffs_slab *s = map_slab();
    if (!s)
        return NULL;
    add(slabs, s);
    slabs->count++;
    return s;
}

#ifdef __SANITIZE_ADDRESS__

/* AddressSanitizer sees the use of an inode that is gone. */
struct ffs_inode *ffs_inode_slab_take(struct ffs_inode_slabs *slabs)
{
    (void)slabs;
    (void)with_room;
    (void)take_out;
    return calloc(1, sizeof(struct ffs_inode));
}

void ffs_inode_slab_give(struct ffs_inode_slabs *slabs, struct ffs_inode *inode)
{
    (void)slabs;
    free(inode);
}

#else

struct ffs_inode *ffs_inode_slab_take(struct ffs_inode_slabs *slabs)
{
    pthread_mutex_lock(&slabs->lock);
    struct ffs_slab *s = with_room(slabs);
    union place *p = s ? s->free : NULL;
    if (p)
        s->free = p->next_free;
    else if (s)
        p = &s->places[s->begun++];
    if (s && ++s->used == PLACES)
        take_out(slabs, s);
    pthread_mutex_unlock(&slabs->lock);
    return p ? memset(&p->inode, 0, sizeof(p->inode)) : NULL;
}

/* The last slab stays, so that few inodes do not map and unmap it again and again. */
void ffs_inode_slab_give(struct ffs_inode_slabs *slabs, struct ffs_inode *inode)
{
    struct ffs_slab *s = (struct ffs_slab *)((uintptr_t)inode & ~(uintptr_t)(SLAB_BYTES - 1));
    union place *p = (union place *)inode;

    pthread_mutex_lock(&slabs->lock);
    if (s->used-- == PLACES)
        add(slabs, s);
    p->next_free = s->free;
    s->free = p;
    if (s->used == 0 && slabs->count > 1)
        unmap(slabs, s);
    pthread_mutex_unlock(&slabs->lock);
}

#endif
