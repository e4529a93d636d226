/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements open file descriptions and open directories. */
#include "fusefs/daemon/state/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>

#include "fusefs/daemon/base/dir_cookies.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/state/buffers.h"
#include "support/wait.h"

/*
 * Limits of the wait for a RELEASE, which close(2) sends without waiting for
 * it.
 */
#define RELEASE_POLLS   20
#define RELEASE_POLL_MS 5

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

void file_accessed(struct ffs_inode *inode, int flags)
{
    if (!(flags & O_NOATIME))
        ffs_note_access(inode);
}

bool file_writes(const struct open_file *file)
{
    return !file->directory && (file->flags & O_ACCMODE) != O_RDONLY;
}

/*
 * A caller that finds no writer sees everything that writers did before they
 * closed the file, since close releases and this load acquires. Between an open
 * and a lease the lock of the watches decides.
 */
bool file_may_be_dirty(struct ffs_inode *inode)
{
    return __atomic_load_n(ffs_user_count(inode), __ATOMIC_ACQUIRE) > 0;
}

bool file_has_writer(const struct daemon *d, struct ffs_inode *inode)
{
    return d->writeback_cache && file_may_be_dirty(inode);
}

int file_refuse_writers(const struct daemon *d, struct ffs_inode *inode)
{
    for (int i = 0; i < RELEASE_POLLS && file_has_writer(d, inode); i++)
        wait_ms(RELEASE_POLL_MS);
    return file_has_writer(d, inode) ? -ETXTBSY : 0;
}

int file_new(struct daemon *d, struct ffs_inode *inode, int flags, bool directory,
             struct open_file **out)
{
    struct open_file *file = malloc(sizeof(*file));
    int err = file ? caches_file_opened(inode) : -ENOMEM;

    if (err) {
        free(file);
        ffs_iput(inode, 1);
        return err;
    }
    *file = (struct open_file){.inode = inode, .flags = flags, .directory = directory};
    pthread_mutex_lock(&d->files_lock);
    file->activity.id = ++d->activity.last_id;
    LIST_INSERT_HEAD(&d->files, file, entry);
    pthread_mutex_unlock(&d->files_lock);
    if (file_writes(file))
        __atomic_fetch_add(ffs_user_count(inode), 1, __ATOMIC_ACQ_REL);
    *out = file;
    return 0;
}

void file_unlist(struct daemon *d, struct open_file *file)
{
    pthread_mutex_lock(&d->files_lock);
    activity_end(&d->activity, file);
    if (file->shared_calls)
        shared_calls_end(&d->shared_calls, file);
    LIST_REMOVE(file, entry);
    pthread_mutex_unlock(&d->files_lock);
    if (file_writes(file))
        __atomic_fetch_sub(ffs_user_count(file->inode), 1, __ATOMIC_ACQ_REL);
}

void file_end(struct daemon *d, struct open_file *file)
{
    buffers_release(d->buffers, file);
    caches_file_closed(file->inode);
    ffs_iput(file->inode, 1);
    dir_cookies_free(file->cookies);
    free(file);
}

/* --- Bounce buffers -------------------------------------------------------------------------- */

static _Thread_local struct bounce *own;

void bounce_bind(struct bounce *b)
{
    own = b;
}

struct bounce *bounce_own(void)
{
    return own;
}

static struct bounce *bounce_take_free(struct bounce_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct bounce *b = pool->free;
    if (b)
        pool->free = b->next;
    pthread_mutex_unlock(&pool->lock);
    return b;
}

static struct bounce *bounce_new(void)
{
    struct bounce *b = malloc(sizeof(*b));
    char *memory = b ? aligned_alloc(BOUNCE_HEAD, BOUNCE_HEAD + MAX_IO) : NULL;

    if (!memory) {
        free(b);
        return NULL;
    }
    *b = (struct bounce){.data = memory + BOUNCE_HEAD, .plain = true};
    return b;
}

/*
 * A failed device provides no DMA memory. Heap memory lets the request reach
 * the core, which returns the device's error.
 */
static void bounce_make_reachable(struct bounce_pool *pool, struct bounce *b)
{
    char *memory = ffs_dma_alloc(pool->fs, BOUNCE_HEAD + MAX_IO);

    b->refused = !memory;
    if (!memory)
        return;
    free((char *)b->data - BOUNCE_HEAD);
    b->data = memory + BOUNCE_HEAD;
    b->plain = false;
}

struct bounce *bounce_get_now(struct bounce_pool *pool)
{
    struct bounce *b = bounce_take_free(pool);

    return b ? b : bounce_new();
}

struct bounce *bounce_get(struct bounce_pool *pool)
{
    struct bounce *b = bounce_get_now(pool);

    if (b && b->plain && !b->refused)
        bounce_make_reachable(pool, b);
    return b;
}

void bounce_improve(struct bounce_pool *pool, struct bounce *b)
{
    if (!b->plain || b->refused)
        return;
    pthread_mutex_lock(&pool->lock);
    bool begun = pool->improving;
    pool->improving = true;
    pthread_mutex_unlock(&pool->lock);
    if (begun)
        return;
    bounce_make_reachable(pool, b);
    pthread_mutex_lock(&pool->lock);
    pool->improving = false;
    pthread_mutex_unlock(&pool->lock);
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

/* --- Extents of the executor ----------------------------------------------------------------- */

int gpu_extents_make(const struct ffs_map *map, uint32_t lba_size, bool write,
                     struct gpu_extents *out)
{
    uint64_t expected = 0; /* device offset that continues the previous segment */

    *out = (struct gpu_extents){.extents = malloc((map->count + 1) * sizeof(out->extents[0])),
                                .end = map->start};
    if (!out->extents)
        return -ENOMEM;
    for (size_t i = 0; i < map->count; i++) {
        const struct ffs_segment *s = &map->segments[i];
        uint64_t device = s->unwritten && !write ? FFS_HOLE : s->device;
        if (i == 0 || device != expected)
            out->extents[out->count++] = (struct gq_file_extent){
                .offset = s->offset, .lba = device == FFS_HOLE ? GQ_LBA_ZERO : device / lba_size};
        expected = device == FFS_HOLE ? FFS_HOLE : device + s->len;
        out->end = s->offset + s->len;
    }
    return 0;
}
