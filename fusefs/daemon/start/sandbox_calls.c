/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Restricts the system calls of the daemon with seccomp. Any other call fails
 * with EPERM, which is an error of that call and does not end the mount.
 */
#include <errno.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "fusefs/daemon/start/sandbox.h"

#ifdef GPUNVME_HAVE_SECCOMP

#include <seccomp.h>

/* Calls on open files. Landlock limits the files that can be opened. */
static const char *const files[] = {
    "close",     "close_range", "dup",    "dup2",       "dup3",
    "fadvise64", "fallocate",   "fcntl",  "fdatasync",  "flock",
    "fstat",     "fstatfs",     "fsync",  "ftruncate",  "getdents64",
    "ioctl",     "lseek",       "lstat",  "newfstatat", "open",
    "openat",    "pread64",     "preadv", "preadv2",    "pwrite64",
    "pwritev",   "pwritev2",    "read",   "readlink",   "readlinkat",
    "readv",     "stat",        "statfs", "statx",      "sync_file_range",
    "write",     "writev",      "kcmp",
};
static const char *const memory[] = {
    "brk",  "madvise",  "memfd_create", "mincore", "mlock",   "mlock2",
    "mmap", "mprotect", "mremap",       "msync",   "munlock", "munmap",
};
static const char *const threads[] = {
    "exit",
    "exit_group",
    "futex",
    "futex_waitv",
    "getcpu",
    "get_robust_list",
    "gettid",
    "membarrier",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "signalfd4",
    "tgkill",
    "wait4",
    "waitid",
};
static const char *const waiting[] = {
    "clock_getres", "clock_gettime",  "clock_nanosleep", "epoll_create1", "epoll_ctl",
    "epoll_pwait",  "epoll_wait",     "eventfd2",        "gettimeofday",  "nanosleep",
    "pipe2",        "poll",           "ppoll",           "pselect6",      "select",
    "time",         "timerfd_create", "timerfd_settime",
};
static const char *const state[] = {
    "getegid",   "geteuid",   "getgid", "getpgrp",   "getpid",  "getppid",
    "getrandom", "getrlimit", "getuid", "prlimit64", "sysinfo", "uname",
};
/* Calls on sockets. limit_sockets() permits socket(2) itself. */
static const char *const sockets[] = {
    "accept4",  "bind",    "connect", "getpeername", "getsockname", "getsockopt", "listen",
    "recvfrom", "recvmsg", "sendmsg", "sendto",      "setsockopt",  "shutdown",
};

struct list {
    const char *const *names;
    size_t count;
};

#define LIST(names)                               \
    {                                             \
        names, sizeof(names) / sizeof((names)[0]) \
    }

static const struct list lists[] = {LIST(files),   LIST(memory), LIST(threads),
                                    LIST(waiting), LIST(state),  LIST(sockets)};

/*
 * Permits the calls of a list. Names that this architecture lacks are skipped.
 */
static int allow_list(scmp_filter_ctx filter, const struct list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        int call = seccomp_syscall_resolve_name(list->names[i]);
        if (call == __NR_SCMP_ERROR)
            continue;
        int err = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
        if (err && err != -EDOM)
            return err;
    }
    return 0;
}

/*
 * Permits sockets for the system log and the descriptor socket, but no network.
 */
static int limit_sockets(scmp_filter_ctx filter)
{
    return seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                            SCMP_A0(SCMP_CMP_EQ, AF_UNIX, 0));
}

/*
 * Permits threads, but no processes. clone3 is refused, since its flags are in
 * memory, where a filter cannot read them; libc then uses clone.
 */
static int limit_clones(scmp_filter_ctx filter)
{
    int err = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);

    if (err)
        return err;
    return seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                            SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
}

static int limit_prctl(scmp_filter_ctx filter)
{
    static const int options[] = {PR_SET_NAME, PR_GET_NAME, PR_SET_TIMERSLACK, PR_SET_VMA};
    int err = 0;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && !err; i++)
        err = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1,
                               SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)options[i], 0));
    return err;
}

int sandbox_limit_calls(bool guard)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int err = filter ? 0 : -ENOMEM;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]) && !err; i++)
        err = allow_list(filter, &lists[i]);
    if (!err)
        err = limit_sockets(filter);
    if (!err)
        err = limit_clones(filter);
    if (!err)
        err = limit_prctl(filter);
    if (!err && guard)
        err = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(kill), 0);
    if (!err)
        err = seccomp_load(filter);
    if (filter)
        seccomp_release(filter);
    return err;
}

#else

int sandbox_limit_calls(bool guard)
{
    (void)guard;
    return -ENOSYS;
}

#endif
