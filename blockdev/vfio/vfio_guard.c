/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Guards memory that nothing pins: that of a noiommu drive, and mappings of
 * device memory (device_mem.h).
 *
 * When a process is killed, the kernel frees its memory first and closes its files afterwards.
 * Closing the VFIO file of the drive resets the drive. In between, DMA in flight would hit pages
 * that may belong to another process by then. The guard is a process that shares only the memory of
 * this one. It ends after this process has closed all its files, so the memory stays until the
 * drive is quiet. (With an IOMMU the kernel itself pins host memory.)
 *
 * The mapping of the doorbells is a reference to the VFIO file, too. The guard unmaps the doorbells
 * before it releases the rest of the memory, since the kernel resets the drive at the last
 * reference.
 */
#include <errno.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockdev/vfio/vfio_internal.h"

#define STACK_LEN (16u << 10)
#define START_MS  10000 /* limit of the wait for the guard's first steps */

/* --- Rights ---------------------------------------------------------------------------------- */

/*
 * The process may enter a sandbox later, which the guard does not. An attacker
 * who controls the process can change the guard's stack, since they share it.
 * So the guard drops all system calls except those that it makes.
 */
#if defined(__x86_64__) || defined(__aarch64__)

#ifdef __x86_64__
#define GUARD_ARCH AUDIT_ARCH_X86_64
#else
#define GUARD_ARCH AUDIT_ARCH_AARCH64
#endif

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
/* Skips `no` instructions unless the value is loaded. */
#define IS(value, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (no))
#define END(action)   BPF_STMT(BPF_RET | BPF_K, (action))
#define ALLOW(call)   IS(call, 1), END(SECCOMP_RET_ALLOW)

static struct sock_filter guard_calls[] = {
    LOAD(arch),        IS(GUARD_ARCH, 11), LOAD(nr),
    ALLOW(__NR_ppoll), ALLOW(__NR_munmap), ALLOW(__NR_exit_group),
    ALLOW(__NR_write), ALLOW(__NR_close),  END(SECCOMP_RET_ERRNO | EPERM),
};

static const struct sock_fprog guard_filter = {.len = sizeof(guard_calls) / sizeof(guard_calls[0]),
                                               .filter = guard_calls};

/* A kernel without seccomp leaves the guard its rights. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void guard_confine(void)
{
    syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul);
    syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &guard_filter);
}

#else

static void guard_confine(void)
{
}

#endif

/* --- The process ----------------------------------------------------------------------------- */

/*
 * Shares the memory of the process that started it, including errno, so it makes
 * only bare system calls. All signals are blocked except SIGKILL and SIGSTOP,
 * which cannot be blocked.
 */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int guard(void *context)
{
    const struct vfio_guard *g = context;
    const uint64_t one = 1;
    struct pollfd ended[2] = {{.fd = 0, .events = POLLIN}, {.fd = 1, .events = POLLIN}};

    /*
     * The guard must not keep files of its process open, in particular not the
     * drive's.
     */
    syscall(SYS_dup3, g->process, 0, 0u);
    syscall(SYS_dup3, g->stop, 1, 0u);
    syscall(SYS_dup3, g->started, 2, 0u);
    syscall(SYS_close_range, 3u, UINT_MAX, 0u);
    syscall(SYS_prctl, PR_SET_NAME, "vfio-guard");
    guard_confine();
    syscall(SYS_write, 2, &one, sizeof(one));
    syscall(SYS_close, 2);
    /* The pidfd is readable when all threads have closed their files. */
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

static void vfio_guard_wait(const struct vfio_guard *g)
{
    TEMP_FAILURE_RETRY(waitpid(g->pid, NULL, __WALL));
}

/* Starts the process, and waits until it has dropped its rights. */
static int vfio_guard_run(struct vfio_guard *g)
{
    struct pollfd started = {.fd = g->started, .events = POLLIN};
    int rc = vfio_guard_clone(g);

    if (rc)
        return rc;
    if (TEMP_FAILURE_RETRY(poll(&started, 1, START_MS)) > 0)
        return 0;
    kill(g->pid, SIGKILL);
    vfio_guard_wait(g);
    return -ETIMEDOUT;
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
    g->started = eventfd(0, EFD_CLOEXEC);
    g->stack = g->stop < 0 || g->started < 0 ? NULL : aligned_alloc(16, STACK_LEN);
    rc = g->stack ? vfio_guard_run(g) : -ENOMEM;
    close(g->process);
    if (g->started >= 0)
        close(g->started);
    if (rc) {
        free(g->stack);
        if (g->stop >= 0)
            close(g->stop);
        *g = (struct vfio_guard){0};
    }
    return rc;
}

/*
 * The guard is ended by an eventfd, since a sandbox permits no signal to other
 * processes.
 */
void vfio_guard_end(struct vfio_guard *g)
{
    const uint64_t one = 1;

    if (!g->pid)
        return;
    ssize_t n = write(g->stop, &one, sizeof(one));

    (void)n; /* cannot fail: the counter is far from its limit */
    vfio_guard_wait(g);
    close(g->stop);
    free(g->stack);
    *g = (struct vfio_guard){0};
}
