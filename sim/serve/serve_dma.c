/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps memory of the client for the controller. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve.h"
#include "sim/sim.h"

/* Written by the serving thread; the handler reads host and size. */
static struct {
    bool used;
    uint64_t iova;
    _Atomic uintptr_t host; /* 0: the controller does not reach the memory */
    _Atomic size_t size;
} table[DMA_MAX_MAPS];

static int torn = -1; /* eventfd */

/*
 * Replaces the mapping of the file by zeros at the same addresses. It is
 * async-signal-safe, since it uses only atomics and system calls.
 */
static bool patch(uintptr_t at)
{
    for (size_t i = 0; i < DMA_MAX_MAPS; i++) {
        uintptr_t host = atomic_load(&table[i].host);
        size_t size = atomic_load(&table[i].size);

        if (host && at - host < size)
            return mmap((void *)host, size, PROT_READ | PROT_WRITE,
                        MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                        0) != MAP_FAILED;
    }
    return false;
}

static void dma_on_sigbus(int sig, siginfo_t *info, void *context)
{
    const uint64_t one = 1;
    int saved = errno;

    (void)context;
    /* An access to other memory is repeated and kills the process. */
    if (!patch((uintptr_t)info->si_addr) || write(torn, &one, sizeof(one)) < 0)
        signal(sig, SIG_DFL);
    errno = saved;
}

int serve_dma_guard(int *torn_fd)
{
    struct sigaction sa = {.sa_sigaction = dma_on_sigbus, .sa_flags = SA_SIGINFO};

    if (torn < 0)
        torn = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (torn < 0 || sigaction(SIGBUS, &sa, NULL) != 0)
        return -errno;
    *torn_fd = torn;
    return 0;
}

static int dma_check_file(const struct vfio_user_dma_map *m, int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || m->size > (uint64_t)st.st_size ||
        m->offset > (uint64_t)st.st_size - m->size)
        return -EINVAL;
    return 0;
}

static int dma_check_map(const struct vfio_user_dma_map *m, int fd)
{
    const uint32_t both = VFIO_USER_DMA_READ_ALLOWED | VFIO_USER_DMA_WRITE_ALLOWED;

    if (m->argsz < sizeof(*m) || (m->flags & ~both) || !m->size ||
        ((m->addr | m->size | m->offset) & (NVME_PAGE_SIZE - 1)))
        return -EINVAL;
    if (m->addr + m->size < m->addr)
        return -EINVAL;
    return fd < 0 ? 0 : dma_check_file(m, fd);
}

static size_t free_place(void)
{
    size_t i = 0;

    while (i < DMA_MAX_MAPS && table[i].used)
        i++;
    return i;
}

static unsigned count_used(void)
{
    unsigned n = 0;

    for (size_t i = 0; i < DMA_MAX_MAPS; i++)
        n += table[i].used;
    return n;
}

static bool dma_overlaps(const struct vfio_user_dma_map *m)
{
    for (size_t i = 0; i < DMA_MAX_MAPS; i++)
        if (table[i].used && m->addr < table[i].iova + atomic_load(&table[i].size) &&
            table[i].iova < m->addr + m->size)
            return true;
    return false;
}

/* Maps the file into this process and the controller. Returns 0 or -errno. */
static int dma_reach(struct nvme_transport *t, size_t i, const struct vfio_user_dma_map *m, int fd)
{
    void *p = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                   (off_t)m->offset);

    if (p == MAP_FAILED)
        return -errno;
    /* This store comes last, so that the handler sees a complete entry. */
    atomic_store(&table[i].host, (uintptr_t)p);
    struct nvme_mem mem = {.addr = p, .len = m->size, .fd = -1};
    int rc = sim_map_at(t, &mem, m->addr);
    if (rc) {
        atomic_store(&table[i].host, 0);
        munmap(p, m->size);
    }
    return rc;
}

int serve_dma_map(struct nvme_transport *t, const struct vfio_user_dma_map *m, int fd,
                  unsigned most)
{
    const uint32_t both = VFIO_USER_DMA_READ_ALLOWED | VFIO_USER_DMA_WRITE_ALLOWED;
    int rc = dma_check_map(m, fd);
    size_t i = free_place();

    if (rc == 0 && i == DMA_MAX_MAPS)
        rc = -ENOSPC;
    if (rc == 0 && most && count_used() >= most)
        rc = -EINVAL;
    if (rc == 0 && dma_overlaps(m))
        rc = -EEXIST;
    if (rc)
        return rc;
    table[i].iova = m->addr;
    atomic_store(&table[i].size, m->size);
    if (fd >= 0 && m->flags == both)
        rc = dma_reach(t, i, m, fd);
    table[i].used = rc == 0;
    return rc;
}

static void dma_release(size_t i)
{
    uintptr_t host = atomic_exchange(&table[i].host, 0);

    if (host)
        munmap((void *)host, atomic_load(&table[i].size));
    table[i].used = false;
}

static int unmap_one(struct nvme_transport *t, size_t i)
{
    int rc = atomic_load(&table[i].host) ? t->ops->unmap(t, table[i].iova) : 0;

    if (rc == 0)
        dma_release(i);
    return rc;
}

static int unmap_all(struct nvme_transport *t, const struct vfio_user_dma_unmap *u)
{
    int rc = u->addr || u->size ? -EINVAL : 0;

    for (size_t i = 0; rc == 0 && i < DMA_MAX_MAPS; i++)
        if (table[i].used)
            rc = unmap_one(t, i);
    return rc;
}

int serve_dma_unmap(struct nvme_transport *t, const struct vfio_user_dma_unmap *u)
{
    if (u->argsz < sizeof(*u) || (u->flags & ~(uint32_t)VFIO_DMA_UNMAP_FLAG_ALL))
        return -EINVAL;
    if (u->flags)
        return unmap_all(t, u);
    for (size_t i = 0; i < DMA_MAX_MAPS; i++)
        if (table[i].used && table[i].iova == u->addr && atomic_load(&table[i].size) == u->size)
            return unmap_one(t, i);
    return -ENOENT;
}

void serve_dma_forget(void)
{
    for (size_t i = 0; i < DMA_MAX_MAPS; i++)
        if (table[i].used)
            dma_release(i);
}
