/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slabs of objects. A slab is aligned to its size, so that the address of an object names its slab.
 */
#include "fusefs/core/base/slab.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SLAB_BYTES ((size_t)256 << 10)

struct place {
    struct place *next_free;
};

struct ffs_slab {
    struct ffs_slab *prev, *next; /* list of slabs with room */
    size_t used;
    size_t begun; /* places from here on have never been used */
    struct place *free;
};

/* Returns the offset of the first place in a slab. */
static size_t slab_first(const struct ffs_slabs *slabs)
{
    return (sizeof(struct ffs_slab) + slabs->align - 1) & ~(slabs->align - 1);
}

static size_t slab_places(const struct ffs_slabs *slabs)
{
    return (SLAB_BYTES - slab_first(slabs)) / slabs->bytes;
}

void ffs_slabs_init(struct ffs_slabs *slabs, size_t bytes, size_t align)
{
    assert(bytes % align == 0 && align >= sizeof(struct place));
    *slabs = (struct ffs_slabs){.bytes = bytes, .align = align};
    pthread_mutex_init(&slabs->lock, NULL);
}

static void slab_add(struct ffs_slabs *slabs, struct ffs_slab *s)
{
    s->prev = NULL;
    s->next = slabs->partial;
    if (s->next)
        s->next->prev = s;
    slabs->partial = s;
}

static void slab_take_out(struct ffs_slabs *slabs, struct ffs_slab *s)
{
    *(s->prev ? &s->prev->next : &slabs->partial) = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static void slab_unmap(struct ffs_slabs *slabs, struct ffs_slab *s)
{
    slab_take_out(slabs, s);
    slabs->count--;
    munmap(s, SLAB_BYTES);
}

/* A slab that still contains objects stays mapped. */
void ffs_slabs_destroy(struct ffs_slabs *slabs)
{
    struct ffs_slab *next;

    for (struct ffs_slab *s = slabs->partial; s; s = next) {
        next = s->next;
        if (s->used == 0)
            slab_unmap(slabs, s);
    }
    pthread_mutex_destroy(&slabs->lock);
}

/* Maps twice the size and keeps the aligned half. */
static struct ffs_slab *slab_map(void)
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

static struct ffs_slab *slab_with_room(struct ffs_slabs *slabs)
{
    if (slabs->partial)
        return slabs->partial;
    struct ffs_slab *s = slab_map();
    if (!s)
        return NULL;
    slab_add(slabs, s);
    slabs->count++;
    return s;
}

#ifdef __SANITIZE_ADDRESS__

/* AddressSanitizer detects accesses to freed objects. */
void *ffs_slab_take(struct ffs_slabs *slabs)
{
    (void)slab_with_room;
    (void)slab_take_out;
    (void)slab_places;
    return aligned_alloc(slabs->align, slabs->bytes);
}

void ffs_slab_give(struct ffs_slabs *slabs, void *object)
{
    (void)slabs;
    free(object);
}

#else

static void *slab_take_from(const struct ffs_slabs *slabs, struct ffs_slab *s)
{
    struct place *p = s->free;

    s->used++;
    if (!p)
        return (uint8_t *)s + slab_first(slabs) + s->begun++ * slabs->bytes;
    s->free = p->next_free;
    return p;
}

void *ffs_slab_take(struct ffs_slabs *slabs)
{
    pthread_mutex_lock(&slabs->lock);
    struct ffs_slab *s = slab_with_room(slabs);
    void *object = s ? slab_take_from(slabs, s) : NULL;
    if (s && s->used == slab_places(slabs))
        slab_take_out(slabs, s);
    pthread_mutex_unlock(&slabs->lock);
    return object;
}

/*
 * The last slab is kept, so that a small number of objects does not map and
 * unmap it repeatedly.
 */
void ffs_slab_give(struct ffs_slabs *slabs, void *object)
{
    struct ffs_slab *s = (struct ffs_slab *)((uintptr_t)object & ~(uintptr_t)(SLAB_BYTES - 1));
    struct place *p = object;

    pthread_mutex_lock(&slabs->lock);
    if (s->used-- == slab_places(slabs))
        slab_add(slabs, s);
    p->next_free = s->free;
    s->free = p;
    if (s->used == 0 && slabs->count > 1)
        slab_unmap(slabs, s);
    pthread_mutex_unlock(&slabs->lock);
}

#endif
