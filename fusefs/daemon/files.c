#include <stdlib.h>

#include "fusefs/daemon/buffers.h"
#include "fusefs/daemon/daemon.h"
#include "fusefs/daemon/lease.h"

#define BOUNCE_ALIGNMENT 4096u

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
    /* A device that has failed gives no memory, and whoever asks is to hear of the failure. */
    b->data = ffs_dma_alloc(pool->fs, MAX_IO);
    b->plain = !b->data;
    if (b->plain)
        b->data = aligned_alloc(BOUNCE_ALIGNMENT, MAX_IO);
    if (b->data)
        return b;
    free(b);
    return NULL;
}

/* As many stay as threads ever needed one at the same time. */
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
        pool->free = b->next;
        if (b->plain)
            free(b->data);
        else
            ffs_dma_free(pool->fs, b->data, MAX_IO);
        free(b);
    }
}

ssize_t file_read(struct ffs_inode *inode, uint64_t offset, void *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = ffs_read(inode, offset + done, (char *)buf + done, len - done);
        if (n < 0)
            return n;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

struct open_file *file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory)
{
    struct open_file *file = malloc(sizeof(*file));
    if (!file) {
        ffs_iput(inode, 1);
        return NULL;
    }
    *file = (struct open_file){
        .inode = inode, .flags = flags, .directory = directory, .link = &d->files};
    pthread_mutex_lock(&d->files_lock);
    file->next = d->files;
    if (file->next)
        file->next->link = &file->next;
    d->files = file;
    pthread_mutex_unlock(&d->files_lock);
    return file;
}

void file_end(struct daemon *d, struct open_file *file)
{
    buffers_release(d->buffers, file);
    ffs_iput(file->inode, 1);
    free(file);
}

void file_free(struct daemon *d, struct open_file *file)
{
    pthread_mutex_lock(&d->files_lock);
    *file->link = file->next;
    if (file->next)
        file->next->link = file->link;
    pthread_mutex_unlock(&d->files_lock);
    if (!leases_release(d->leases, file))
        file_end(d, file);
}

void files_free_all(struct daemon *d)
{
    while (d->files)
        file_free(d, d->files);
}
