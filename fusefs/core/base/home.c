/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Committed images of metadata blocks that are not in place yet.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/state.h"

int ffs_home_init(struct ffs_home *home, uint64_t journal_blocks)
{
    unsigned bits = 8;

    while (UINT64_C(1) << bits < journal_blocks)
        bits++;
    home->bucket_count = (size_t)1 << bits;
    home->buckets = calloc(home->bucket_count, sizeof(*home->buckets));
    if (!home->buckets)
        return -ENOMEM;
    ffs_hash_init(&home->hash, bits);
    pthread_mutex_init(&home->lock, NULL);
    return 0;
}

static void home_clear(struct ffs_home *home)
{
    for (size_t i = 0; i < home->bucket_count; i++) {
        struct ffs_image *next;
        for (struct ffs_image *image = home->buckets[i]; image; image = next) {
            next = image->next;
            ffs_image_free(image);
        }
        home->buckets[i] = NULL;
    }
    home->n = 0;
}

void ffs_home_destroy(struct ffs_home *home)
{
    if (!home->buckets)
        return;
    home_clear(home);
    free(home->buckets);
    home->buckets = NULL;
    pthread_mutex_destroy(&home->lock);
}

struct ffs_image *ffs_image_new(uint64_t block, const void *data)
{
    struct ffs_image *image = malloc(sizeof(*image));

    if (!image)
        return NULL;
    image->block = block;
    image->next = NULL;
    image->data = malloc(LAY_BLOCK_SIZE);
    if (!image->data) {
        free(image);
        return NULL;
    }
    memcpy(image->data, data, LAY_BLOCK_SIZE);
    return image;
}

void ffs_image_free(struct ffs_image *image)
{
    if (image)
        free(image->data);
    free(image);
}

/* Returns the link that points to the image of the block, or the last link of its bucket. */
static struct ffs_image **home_find(struct ffs_home *home, uint64_t block)
{
    struct ffs_image **p = &home->buckets[ffs_hash_of(&home->hash, block)];

    while (*p && (*p)->block != block)
        p = &(*p)->next;
    return p;
}

static void home_drop(struct ffs_home *home, uint64_t block)
{
    struct ffs_image **p = home_find(home, block);
    struct ffs_image *old = *p;

    if (!old)
        return;
    *p = old->next;
    ffs_image_free(old);
    home->n--;
}

void ffs_home_put(struct ffs_home *home, struct ffs_image *image)
{
    pthread_mutex_lock(&home->lock);
    home_drop(home, image->block);
    struct ffs_image **p = home_find(home, image->block);
    image->next = NULL;
    *p = image;
    home->n++;
    pthread_mutex_unlock(&home->lock);
}

void ffs_home_drop(struct ffs_home *home, uint64_t block)
{
    pthread_mutex_lock(&home->lock);
    home_drop(home, block);
    pthread_mutex_unlock(&home->lock);
}

bool ffs_home_has(struct ffs_home *home, uint64_t block)
{
    pthread_mutex_lock(&home->lock);
    bool has = *home_find(home, block) != NULL;
    pthread_mutex_unlock(&home->lock);
    return has;
}

bool ffs_home_read(struct ffs_home *home, uint64_t block, void *data)
{
    pthread_mutex_lock(&home->lock);
    const struct ffs_image *image = *home_find(home, block);
    if (image)
        memcpy(data, image->data, LAY_BLOCK_SIZE);
    pthread_mutex_unlock(&home->lock);
    return image != NULL;
}

void ffs_home_clear(struct ffs_home *home)
{
    pthread_mutex_lock(&home->lock);
    home_clear(home);
    pthread_mutex_unlock(&home->lock);
}
