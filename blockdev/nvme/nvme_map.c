/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps regions of memory for the controller: counts them, and shares one among
 * the memory of a file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/kcmp.h>

#include "blockdev/nvme/nvme_internal.h"

/* Reserved for the driver (arenas grow), at most half of all. */
#define SPARE 4u
/* Reserved for leases: staging must not be staged itself. */
#define LEASES 4u

/* Describes a region that maps a part of a file, and counts its users. */
struct nvme_file_map {
    int fd;
    uint64_t offset, len; /* range of the file in bytes */
    uint64_t iova;
    unsigned users;
    LIST_ENTRY(nvme_file_map) entry;
};

/* The caller holds dma_lock. The store is atomic for nvme_dma_regions(). */
static void count_region(struct nvme_ctrlr *c, int change)
{
    __atomic_store_n(&c->regions, c->regions + (unsigned)change, __ATOMIC_RELAXED);
}

static unsigned spare(const struct nvme_ctrlr *c, enum nvme_map_for purpose)
{
    unsigned left = purpose == NVME_MAP_LEASE ? SPARE : SPARE + LEASES;
    unsigned most = c->t->max_regions / 2;

    return left < most ? left : most;
}

/*
 * The caller holds dma_lock. The release orders the unmap of the region before
 * the caller of nvme_dma_is_late() frees its memory.
 */
static void count_late(struct nvme_ctrlr *c, int change)
{
    __atomic_store_n(&c->late_regions, c->late_regions + (unsigned)change, __ATOMIC_RELEASE);
}

/* Describes a region whose unmap was not completed in time. */
struct nvme_leaving {
    uint64_t iova;
    LIST_ENTRY(nvme_leaving) entry;
};

/* dma_lock is held. Without a record the region leaks, unused. */
static void leave_later(struct nvme_ctrlr *c, uint64_t iova)
{
    struct nvme_leaving *l = malloc(sizeof(*l));

    if (!l)
        return;
    l->iova = iova;
    LIST_INSERT_HEAD(&c->leaving, l, entry);
}

/* Unmaps late regions, one on a silent controller. dma_lock is held. */
static void unmap_leaving(struct nvme_ctrlr *c)
{
    for (struct nvme_leaving *l = LIST_FIRST(&c->leaving), *next; l; l = next) {
        next = LIST_NEXT(l, entry);
        if (c->t->ops->unmap(c->t, l->iova) == -ETIMEDOUT) {
            if (nvme_is_paused(c))
                return;
            continue;
        }
        count_region(c, -1);
        count_late(c, -1);
        LIST_REMOVE(l, entry);
        free(l);
    }
}

void nvme_region_forget(struct nvme_ctrlr *c)
{
    while (!LIST_EMPTY(&c->leaving)) {
        struct nvme_leaving *l = LIST_FIRST(&c->leaving);

        LIST_REMOVE(l, entry);
        free(l);
    }
}

/*
 * Returns true if the controller has refused the memory for lack of room. A
 * transport that maps files can map any file in memory (only such files have
 * seals), so no other reason is left, whatever its server reports.
 */
static bool lacks_room(const struct nvme_ctrlr *c, const struct nvme_mem *mem, int rc)
{
    return rc == -EFAULT && c->t->maps_files && mem->addr && mem->fd >= 0 &&
           fcntl(mem->fd, F_GET_SEALS) >= 0;
}

int nvme_region_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left, uint64_t *iova)
{
    bool fits;
    int rc;

    /* It may be the IOVA of memory unmapped from running commands. */
    if (!nvme_ctrlr_settled(c))
        return -EIO;
    unmap_leaving(c);
    fits = !c->t->max_regions || c->regions + left < c->t->max_regions;
    rc = fits ? c->t->ops->map(c->t, mem, iova) : -ENOSPC;

    if (!rc)
        count_region(c, 1);
    if (lacks_room(c, mem, rc))
        rc = -ENOSPC;
    if (rc == -ENOSPC) {
        __atomic_store_n(&c->refused_at, fits ? c->regions : c->t->max_regions, __ATOMIC_RELAXED);
        __atomic_store_n(&c->refused_region, true, __ATOMIC_RELEASE);
    }
    return rc;
}

int nvme_region_unmap(struct nvme_ctrlr *c, uint64_t iova)
{
    int rc = c->t->ops->unmap(c->t, iova);

    if (rc != -ETIMEDOUT) { /* otherwise it is still mapped */
        count_region(c, -1);
        return rc;
    }
    count_late(c, 1);
    if (!nvme_ctrlr_failed(c))
        leave_later(c, iova);
    return rc;
}

/* Compares open file descriptions, since inode numbers can be reused. */
static bool same_file(int a, int b)
{
    pid_t pid = getpid();

    return syscall(SYS_kcmp, pid, pid, KCMP_FILE, a, b) == 0;
}

static bool map_covers(const struct nvme_file_map *m, const struct nvme_mem *mem)
{
    return mem->fd_offset >= m->offset && mem->fd_offset - m->offset <= m->len &&
           mem->len <= m->len - (mem->fd_offset - m->offset);
}

static struct nvme_file_map *find_file(const struct nvme_ctrlr *c, const struct nvme_mem *mem)
{
    struct nvme_file_map *m = LIST_FIRST(&c->file_maps);

    while (m && !(map_covers(m, mem) && same_file(m->fd, mem->fd)))
        m = LIST_NEXT(m, entry);
    return m;
}

/* Returns the file from its first page to its last whole page. */
static struct nvme_mem whole_file(const struct nvme_mem *mem)
{
    struct nvme_mem all = *mem;
    struct stat st;

    if (fstat(mem->fd, &st) || (uint64_t)st.st_size < mem->fd_offset + mem->len)
        return all;
    all.fd_offset = 0;
    all.len = (size_t)st.st_size & ~(size_t)(NVME_PAGE_SIZE - 1);
    return all;
}

static int nvme_map_map_file(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left,
                             struct nvme_file_map *m)
{
    struct nvme_mem all = whole_file(mem);
    int rc = nvme_region_map(c, &all, left, &m->iova);

    if (rc && rc != -ETIMEDOUT && all.len != mem->len) {
        all = *mem;
        rc = nvme_region_map(c, &all, left, &m->iova);
    }
    m->offset = all.fd_offset;
    m->len = all.len;
    return rc;
}

static int map_add_file(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left,
                        struct nvme_file_map **out)
{
    struct nvme_file_map *m = calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return -ENOMEM;
    m->fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
    rc = m->fd < 0 ? -errno : nvme_map_map_file(c, mem, left, m);
    if (rc) {
        if (m->fd >= 0)
            close(m->fd);
        free(m);
        return rc;
    }
    LIST_INSERT_HEAD(&c->file_maps, m, entry);
    *out = m;
    return 0;
}

static int nvme_map_file(struct nvme_ctrlr *c, const struct nvme_mem *mem, unsigned left,
                         uint64_t *iova)
{
    struct nvme_file_map *m = find_file(c, mem);
    int rc = m ? 0 : map_add_file(c, mem, left, &m);

    if (rc)
        return rc;
    m->users++;
    *iova = m->iova + (mem->fd_offset - m->offset);
    return 0;
}

int nvme_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, enum nvme_map_for purpose,
             uint64_t *iova)
{
    unsigned left = spare(c, purpose);
    bool shares = c->t->maps_files && mem->addr && mem->fd >= 0;
    int rc;

    pthread_mutex_lock(&c->dma_lock);
    rc = shares ? nvme_map_file(c, mem, left, iova) : nvme_region_map(c, mem, left, iova);
    pthread_mutex_unlock(&c->dma_lock);
    return rc;
}

static struct nvme_file_map *find_iova(const struct nvme_ctrlr *c, uint64_t iova)
{
    struct nvme_file_map *m = LIST_FIRST(&c->file_maps);

    while (m && iova - m->iova >= m->len)
        m = LIST_NEXT(m, entry);
    return m;
}

/*
 * Removes one user. The last one unmaps the region. After the controller has
 * failed for good, the first one does, because the controller's commands may
 * still reach memory of any user.
 */
static int leave_file(struct nvme_ctrlr *c, struct nvme_file_map *m)
{
    int rc = 0;

    if (m->fd >= 0 && (m->users == 1 || nvme_ctrlr_failed(c))) {
        rc = nvme_region_unmap(c, m->iova);
        if (rc == -ETIMEDOUT && nvme_ctrlr_failed(c))
            return rc;
        close(m->fd);
        m->fd = -1;
    }
    if (--m->users == 0) {
        LIST_REMOVE(m, entry);
        free(m);
    }
    return rc;
}

int nvme_unmap(struct nvme_ctrlr *c, uint64_t iova)
{
    struct nvme_file_map *m;
    int rc;

    pthread_mutex_lock(&c->dma_lock);
    if (!nvme_is_paused(c)) /* otherwise each of many buffers would wait twice */
        unmap_leaving(c);
    m = find_iova(c, iova);
    rc = m ? leave_file(c, m) : nvme_region_unmap(c, iova);
    pthread_mutex_unlock(&c->dma_lock);
    return rc;
}

void nvme_dma_unmap_late(struct nvme_ctrlr *c)
{
    /* A holder of the lock unmaps them itself, unless the controller is paused. */
    if (pthread_mutex_trylock(&c->dma_lock))
        return;
    unmap_leaving(c);
    pthread_mutex_unlock(&c->dma_lock);
}

/* Takes no lock, because its holder may be waiting for the controller. */
bool nvme_dma_is_late(const struct nvme_ctrlr *c)
{
    /* The acquire pairs with the release of count_late(). */
    return __atomic_load_n(&c->late_regions, __ATOMIC_ACQUIRE) != 0;
}

void nvme_dma_regions(const struct nvme_ctrlr *c, struct nvme_dma_budget *out)
{
    unsigned used = __atomic_load_n(&c->regions, __ATOMIC_RELAXED);
    /* Acquire: refused_at is read after it. */
    bool refused = __atomic_load_n(&c->refused_region, __ATOMIC_ACQUIRE);

    *out = (struct nvme_dma_budget){
        .used = used,
        .limit = c->t->max_regions,
        .full = c->t->max_regions && used + spare(c, NVME_MAP_BUFFER) >= c->t->max_regions,
        .refused = refused,
        .refused_at = __atomic_load_n(&c->refused_at, __ATOMIC_RELAXED),
    };
}
