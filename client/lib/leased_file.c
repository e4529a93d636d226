/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements leased files. The GPU looks up their extents without the host. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/direct.h"
#include "cuda/queue/gq_abi.h"

/* Ends a lease. Its memory stays if a kernel does not end that may access it. */
static void lease_drop(struct leased_file *f, struct file_lease *l)
{
    bool ended = direct_service_settle(f->d->service);

    direct_lease_end(f->fd, l->ioc.id, l->ioc.key);
    if (!ended)
        return;
    /* On a GPU, freeing waits for kernels, which may be loading words of the page. */
    memory_space_free(&f->d->space, l->extents_at);
    memory_space_unshare(&f->d->space, &l->page);
}

/* Returns the number of words behind the extents; 0 for a file without checksums. */
static uint64_t n_sums(const struct file_lease *l)
{
    if (!(l->ioc.flags & GPUNVME_LEASE_SUMS))
        return 0;
    return (l->ioc.size + GQ_SUM_BLOCK - 1) / GQ_SUM_BLOCK;
}

static uint64_t sums_offset(const struct file_lease *l)
{
    return GPUNVME_LEASE_EXTENTS_AT + l->ioc.count * sizeof(struct gpunvme_lease_extent);
}

static int leased_file_check_extents(const struct file_lease *l)
{
    const struct gpunvme_lease_extent *e =
        (const void *)((const char *)l->page.addr + GPUNVME_LEASE_EXTENTS_AT);

    for (uint64_t i = 0; i < l->ioc.count; i++) {
        uint64_t least = i ? e[i - 1].offset + 1 : 0;
        if (e[i].offset < least || (i == 0 && e[i].offset != 0))
            return gpunvme_fail(-EPROTO, "the extents of a lease are out of order");
    }
    return 0;
}

/*
 * Copies the extents. There is always one entry, because each lane loads one, at least the first.
 */
static int copy_extents(struct leased_file *f, struct file_lease *l)
{
    const char *from = (const char *)l->page.addr + GPUNVME_LEASE_EXTENTS_AT;
    size_t len = l->ioc.count * sizeof(struct gq_file_extent);
    int err = leased_file_check_extents(l);

    if (!err)
        err = memory_space_alloc(&f->d->space, len ? len : sizeof(struct gq_file_extent),
                                 &l->extents_at);
    return err || !len ? err : memory_space_put(&f->d->space, l->extents_at, from, len);
}

static int leased_file_lease_failed(int err)
{
    if (err == -EPERM)
        return gpunvme_fail(err, "the mount trusts others with the direct path (-o direct=)");
    if (err == -EBADF)
        return gpunvme_fail(err, "the file is not open for reading");
    if (err == -ETXTBSY)
        return gpunvme_fail(err, "the file is open for writing on a mount with writeback_cache: "
                                 "close it first, or mount without");
    if (err == -EDQUOT || err == -EBUSY)
        return gpunvme_fail(err,
                            "%s has leased as many extents and checksums as the mount lets "
                            "them; GPUNVME_UNVERIFIED needs no checksums",
                            err == -EDQUOT ? "this user" : "all users together");
    return gpunvme_fail(err, "EXTENT_LEASE: %s", strerror(-err));
}

static int leased_file_take(struct leased_file *f, struct file_lease *l)
{
    *l = (struct file_lease){.ioc.flags =
                                 f->d->unverified ? GPUNVME_LEASE_UNVERIFIED : GPUNVME_LEASE_SUMS};
    int err = gpunvme_ioctl(f->fd, GPUNVME_IOC_EXTENT_LEASE, &l->ioc, sizeof(l->ioc));
    if (err) {
        l->ioc.id = 0;
        return leased_file_lease_failed(err);
    }
    if (l->ioc.count > UINT32_MAX)
        err = gpunvme_fail(-EFBIG, "the file has more extents than a lease can hold");
    else if (l->ioc.size && !l->ioc.count)
        err = gpunvme_fail(-EPROTO, "a lease of a file without extents");
    else if (l->ioc.size > INT64_MAX)
        err = gpunvme_fail(-EPROTO, "a lease of a file of %llu bytes",
                           (unsigned long long)l->ioc.size);
    size_t len = sums_offset(l) + n_sums(l) * sizeof(uint32_t);
    if (!err)
        err = direct_share_page(f->d, l->ioc.id, l->ioc.key, len, &l->page);
    if (!err)
        err = copy_extents(f, l);
    if (!err && n_sums(l))
        err = direct_sums_open(f->d);
    if (err)
        lease_drop(f, l);
    return err;
}

static struct gq_file_sums sums_of(const struct leased_file *f, const struct file_lease *l)
{
    if (!n_sums(l))
        return (struct gq_file_sums){.words = NULL};
    return (struct gq_file_sums){
        .words = (const uint32_t *)(uintptr_t)(l->page.at + sums_offset(l)),
        .table = (const struct gq_sum_table *)(uintptr_t)f->d->sum_table_at,
    };
}

static struct gpunvme_device_file device_file(const struct leased_file *f,
                                              const struct file_lease *l)
{
    return (struct gpunvme_device_file){
        .map = {.extents = (const struct gq_file_extent *)(uintptr_t)l->extents_at,
                .end = l->ioc.size,
                .count = (uint32_t)l->ioc.count,
                .lba_size = f->d->lease.lba_size},
        .set = f->d->set,
        .lease = (const uint32_t *)(uintptr_t)l->page.at,
        .checked_ns = (uint64_t *)(uintptr_t)f->checked_at,
        .sums = sums_of(f, l),
        .bad_block = (uint64_t *)(uintptr_t)f->bad_block_at,
    };
}

static int leased_file_put_generation(const struct leased_file *f, struct gpunvme_cache *c,
                                      uint64_t generation)
{
    uint64_t at = c->device_at + offsetof(struct gpunvme_device_cache, generation);

    c->device.generation = generation;
    return memory_space_put(&f->d->space, at, &generation, sizeof(generation));
}

/* Makes all lines free. No command may be in flight that could write to the cache's memory. */
static int leased_file_clear_cache(const struct leased_file *f, struct gpunvme_cache *c)
{
    int err = memory_space_clear(&f->d->space, c->words_at, c->words_len);

    return err ? err : leased_file_put_generation(f, c, GD_CACHE_OFF + 1);
}

/*
 * Makes the lines of a cache invalid. With new queues no command of the old ones can write to its
 * memory. With the same ones none can unless one is lost, because no read is in flight. Lines and
 * slots of lost commands stay out of use. A cache that has used all generations keeps no line until
 * it is cleared.
 */
static int leased_file_invalidate_cache(const struct leased_file *f, struct gpunvme_cache *c,
                                        bool new_queues)
{
    uint64_t now = c->device.generation;
    bool used_up = now == GD_CACHE_OFF || now + 1 == GD_CACHE_GENERATIONS;

    if (new_queues || (used_up && !direct_queues_lost(f->d)))
        return leased_file_clear_cache(f, c);
    return leased_file_put_generation(f, c, used_up ? GD_CACHE_OFF : now + 1);
}

static int leased_file_invalidate(struct leased_file *f, bool new_queues)
{
    int err = 0;

    for (struct gpunvme_cache *c = LIST_FIRST(&f->caches); c && !err; c = LIST_NEXT(c, entry))
        err = leased_file_invalidate_cache(f, c, new_queues);
    return err;
}

/*
 * Renews the lease. The words that kernels see change before the old lease ends, so that no kernel
 * uses it after its end.
 */
int leased_file_renew(struct leased_file *f)
{
    struct file_lease old = f->lease, fresh;
    int err = leased_file_take(f, &fresh);

    if (err)
        return err;
    struct gpunvme_device_file device = device_file(f, &fresh);
    (void)direct_service_settle(f->d->service); /* a read that was given up may load the struct */
    err = memory_space_put(&f->d->space, f->device_at, &device, sizeof(device));
    if (err) {
        lease_drop(f, &fresh);
        return err;
    }
    bool new_queues = f->device.set.number != device.set.number;
    f->device = device;
    f->lease = fresh;
    lease_drop(f, &old);
    return leased_file_invalidate(f, new_queues);
}

void leased_file_add_cache(struct leased_file *f, struct gpunvme_cache *c)
{
    pthread_mutex_lock(&f->d->lease_lock);
    LIST_INSERT_HEAD(&f->caches, c, entry);
    pthread_mutex_unlock(&f->d->lease_lock);
}

void leased_file_remove_cache(struct leased_file *f, struct gpunvme_cache *c)
{
    pthread_mutex_lock(&f->d->lease_lock);
    if (c->entry.le_prev)
        LIST_REMOVE(c, entry);
    pthread_mutex_unlock(&f->d->lease_lock);
}

int leased_file_drop_cache(struct leased_file *f, struct gpunvme_cache *c)
{
    pthread_mutex_lock(&f->d->lease_lock);
    int err = direct_queues_lost(f->d)
                  ? gpunvme_fail(-EBUSY, "a lost command may write to the cache: renew the leases")
                  : leased_file_clear_cache(f, c);
    pthread_mutex_unlock(&f->d->lease_lock);
    return err;
}

/*
 * Changes only the number of queues, which reads load again and again. The other words remain, and
 * so does the memory behind their pointers until direct_queues_end() has waited for kernels. A read
 * in flight may use both before it loads the number.
 */
int leased_file_disable(struct leased_file *f)
{
    uint64_t at = f->device_at + offsetof(struct gpunvme_device_file, set.n_queues);

    f->device.set.n_queues = 0;
    return memory_space_put(&f->d->space, at, &f->device.set.n_queues,
                            sizeof(f->device.set.n_queues));
}

/* Takes a descriptor of the caller's open file description, to which the lease belongs. */
static int take_fd(struct leased_file *f, int fd, bool own)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    if (st.st_dev != f->d->g->dev)
        return gpunvme_fail(-ENOTTY, "not a file of this mount");
    f->ino = st.st_ino;
    f->owns_fd = own;
    f->fd = own ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : fd;
    return f->fd >= 0 ? 0 : gpunvme_fail(-errno, "file: %s", strerror(errno));
}

/*
 * Renews and links the file in one step, so that another thread's renewal of the queues does not
 * miss it.
 */
static int renew_and_link(struct leased_file *f)
{
    pthread_mutex_lock(&f->d->lease_lock);
    int err = leased_file_renew(f);
    if (!err)
        LIST_INSERT_HEAD(&f->d->files, f, entry);
    pthread_mutex_unlock(&f->d->lease_lock);
    return err;
}

static void leased_file_file_free(struct leased_file *f)
{
    lease_drop(f, &f->lease);
    if (direct_service_settle(f->d->service)) /* like the lease's memory */
        memory_space_free(&f->d->space, f->device_at);
    if (f->owns_fd && f->fd >= 0)
        close(f->fd);
    free(f);
}

int leased_file_open(struct gpunvme_direct *d, int fd, bool own, struct leased_file **out)
{
    struct leased_file *f = calloc(1, sizeof(*f));

    if (!f)
        return gpunvme_fail(-ENOMEM, "out of memory");
    f->d = d;
    f->fd = -1;
    int err = take_fd(f, fd, own);
    if (!err)
        err =
            memory_space_alloc(&d->space, sizeof(f->device) + 2 * sizeof(uint64_t), &f->device_at);
    f->checked_at = f->device_at + sizeof(f->device);
    f->bad_block_at = f->checked_at + sizeof(uint64_t);
    if (!err)
        err = renew_and_link(f);
    if (err) {
        leased_file_file_free(f);
        return err;
    }
    *out = f;
    return 0;
}

void leased_file_close(struct leased_file *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->d->lease_lock);
    LIST_REMOVE(f, entry);
    pthread_mutex_unlock(&f->d->lease_lock);
    leased_file_file_free(f);
}

/* Called under the lease lock. Returns 1 after it has renewed the lease. */
static int leased_file_update(struct leased_file *f)
{
    const struct gpunvme_lease_page *page = f->lease.page.addr;
    uint32_t state = __atomic_load_n(&page->state, __ATOMIC_ACQUIRE);
    uint64_t generation = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);

    if (state == GPUNVME_LEASE_VALID && generation == f->lease.ioc.generation)
        return 0;
    int err = leased_file_renew(f);
    return err ? err : 1;
}

int leased_file_refresh(struct leased_file *f)
{
    pthread_mutex_lock(&f->d->lease_lock);
    int err = leased_file_update(f);
    pthread_mutex_unlock(&f->d->lease_lock);
    return err;
}

uint64_t leased_file_size(const struct leased_file *f)
{
    return f->lease.ioc.size;
}

const struct gpunvme_device_file *leased_file_device(const struct leased_file *f)
{
    return (const struct gpunvme_device_file *)(uintptr_t)f->device_at;
}
