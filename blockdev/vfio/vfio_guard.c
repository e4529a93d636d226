/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The guard of memory that nothing pins: that of a noiommu drive, and mappings of
 * device memory (device_mem.h).
 *
 * When a process is killed, the kernel frees its memory first and closes its
 * files afterwards. One of these is the VFIO file of the drive, whose close
 * resets the drive. In between, DMA in flight would hit pages that may belong
 * to another process by then. The guard is a process that shares only the
 * memory of this one. It ends after this process has closed all its files, so
 * the memory stays until the drive is quiet. (With an IOMMU the kernel itself
 * pins host memory.)
 *
 * The mapping of the doorbells is a reference to the VFIO file, too. The guard
 * ends it before the rest of the memory, since the kernel resets the drive at the
 * last reference.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockdev/vfio/vfio_internal.h"

#define STACK_LEN (16u << 10)

/*
 * Shares the memory of the process that started it, including errno, so it makes
 * only bare system calls. All signals are blocked except SIGKILL and SIGSTOP,
 * which cannot be blocked.
 */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int guard(void *context)
{
    const struct vfio_guard *g = context;
    struct pollfd ended[2] = {{.fd = 0, .events = POLLIN}, {.fd = 1, .events = POLLIN}};

    /* Holds no file open that its process closes, least of all the drive's. */
    syscall(SYS_dup3, g->process, 0, 0u);
    syscall(SYS_dup3, g->stop, 1, 0u);
    syscall(SYS_close_range, 2u, UINT_MAX, 0u);
    syscall(SYS_prctl, PR_SET_NAME, "vfio-guard");
    /* The first one is readable when all threads have closed their files. */
    while (syscall(SYS_ppoll, ended, 2u, NULL, NULL, 0u) <= 0)
        ;
    /*
     * Nothing else runs in this memory now. When munmap() returns, the kernel has
     * reset the drive.
     */
    if (ended[0].revents && g->doorbells)
        syscall(SYS_munmap, g->doorbells, g->doorbells_len);
    syscall(SYS_exit_group, 0);
    return 0;
}

static int vfio_guard_clone(struct vfio_guard *g)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    g->pid = clone(guard, g->stack + STACK_LEN, CLONE_VM, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return g->pid < 0 ? -errno : 0;
}

int vfio_guard_start(struct vfio_guard *g)
{
    int rc;

    /* A guard that could not close its files would do more harm than none. */
    if (syscall(SYS_close_range, UINT_MAX, UINT_MAX, 0u))
        return -errno;
    g->process = (int)syscall(SYS_pidfd_open, getpid(), 0u);
    if (g->process < 0)
        return -errno;
    g->stop = eventfd(0, EFD_CLOEXEC);
    g->stack = g->stop < 0 ? NULL : aligned_alloc(16, STACK_LEN);
    rc = g->stack ? vfio_guard_clone(g) : -ENOMEM;
    close(g->process);
    if (rc) {
        free(g->stack);
        if (g->stop >= 0)
            close(g->stop);
        *g = (struct vfio_guard){0};
    }
    return rc;
}

/* Uses no signal, since a sandbox permits none to other processes. */
void vfio_guard_end(struct vfio_guard *g)
{
    const uint64_t one = 1;

    if (!g->pid)
        return;
    ssize_t n = write(g->stop, &one, sizeof(one));

    (void)n; /* cannot fail: the counter is far from its limit */
    while (waitpid(g->pid, NULL, __WALL) < 0 && errno == EINTR)
        ;
    close(g->stop);
    free(g->stack);
    *g = (struct vfio_guard){0};
}
