/* SPDX-License-Identifier: BSD-2-Clause */
/* Shares the counters of a connection with the mount, in a memfd (SHARE_CALLS). */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/socket.h"

static int call_stats_share_share(struct connection *g, int fd)
{
    struct gpunvme_ioc_share_calls arg = {.token = 0};
    int err = socket_send_memory(g, fd, &arg.token);

    return err ? err : gpunvme_ioctl(g->fd, GPUNVME_IOC_SHARE_CALLS, &arg, sizeof(arg));
}

/* Returns NULL if the counters are not shared. */
static struct gpunvme_calls *share_page(struct connection *g, int fd)
{
    void *page = MAP_FAILED;

    /* The file is sealed, because a mount that shrinks it would end this process with SIGBUS. */
    if (ftruncate(fd, sizeof(struct gpunvme_calls)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        page = mmap(NULL, sizeof(struct gpunvme_calls), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (call_stats_share_share(g, fd) == 0)
        return page;
    munmap(page, sizeof(struct gpunvme_calls));
    return NULL;
}

void call_stats_share(struct connection *g)
{
    if (g->fd < 0 || atomic_exchange(&g->calls_offered, true))
        return;
    int fd = memfd_create("gpunvme-calls", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return;
    /*
     * The release orders the creation of the mapping before its address, for the threads that
     * count.
     */
    atomic_store_explicit(&g->calls, share_page(g, fd), memory_order_release);
    close(fd);
}

void call_stats_end(struct connection *g)
{
    struct gpunvme_calls *shared = atomic_load_explicit(&g->calls, memory_order_acquire);

    if (shared)
        munmap(shared, sizeof(*shared));
}
