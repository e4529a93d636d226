/* SPDX-License-Identifier: BSD-2-Clause */
/* Restricts the system calls of a process. */
#include "support/confine.h"

#include <errno.h>

#ifdef GPUNVME_HAVE_SECCOMP

#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/*
 * The kernel uses the lower 32 bits of an int argument, and all 64 of a
 * pointer.
 */
#define IS(argument, value)                                         \
    {                                                               \
        argument, SCMP_CMP_MASKED_EQ, UINT32_MAX, (uint32_t)(value) \
    }
#define IS_NOT(argument, value)                         \
    {                                                   \
        argument, SCMP_CMP_NE, (scmp_datum_t)(value), 0 \
    }
#define IS_NULL(argument)           \
    {                               \
        argument, SCMP_CMP_EQ, 0, 0 \
    }
#define HAS(argument, bit)                         \
    {                                              \
        argument, SCMP_CMP_MASKED_EQ, (bit), (bit) \
    }
#define LACKS(argument, bit)                   \
    {                                          \
        argument, SCMP_CMP_MASKED_EQ, (bit), 0 \
    }

/* A call with conditions, all of which must hold. */
struct rule {
    const char *call;
    unsigned count;
    struct scmp_arg_cmp conditions[3];
};

/* --- Calls that are always refused ------------------------------------------------------------ */

static const char *const refused[] = {
    /* programs */
    "execve",
    "execveat",
    /* other processes */
    "pidfd_getfd",
    "pidfd_send_signal",
    "process_madvise",
    "process_vm_writev",
    "ptrace",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "tkill",
    /* calls that no filter sees, and files without their names */
    "io_uring_setup",
    "open_by_handle_at",
    /* mounts and namespaces */
    "chroot",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setns",
    "umount2",
    "unshare",
    /* the kernel */
    "acct",
    "add_key",
    "bpf",
    "delete_module",
    "finit_module",
    "init_module",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "perf_event_open",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "swapoff",
    "swapon",
    "syslog",
    "userfaultfd",
    "vhangup",
};

/*
 * Adds unconditional rules for calls. Skips names that this architecture or
 * libseccomp lacks.
 */
static int calls_add_names(scmp_filter_ctx filter, uint32_t action, const char *const *names,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int call = seccomp_syscall_resolve_name(names[i]);
        if (call == __NR_SCMP_ERROR)
            continue;
        int err = seccomp_rule_add(filter, action, call, 0);
        if (err && err != -EDOM)
            return err;
    }
    return 0;
}

static int calls_add_rules(scmp_filter_ctx filter, uint32_t action, const struct rule *rules,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int err =
            seccomp_rule_add_array(filter, action, seccomp_syscall_resolve_name(rules[i].call),
                                   rules[i].count, rules[i].conditions);
        if (err)
            return err;
    }
    return 0;
}

static int calls_load(scmp_filter_ctx filter, int err)
{
    if (!err)
        err = seccomp_load(filter);
    seccomp_release(filter);
    return err;
}

/*
 * kill(2) with signal 0 only asks whether a process exists. A process may
 * change its own limits. TIOCSTI, and on a virtual console the paste of
 * TIOCLINUX, would type commands into the terminal of the shell that started
 * the program.
 */
static int calls_refuse(void)
{
    const struct rule rules[] = {
        {"kill", 2, {IS_NOT(0, getpid()), IS_NOT(1, 0)}},
        {"tgkill", 1, {IS_NOT(0, getpid())}},
        {"prlimit64", 2, {IS_NOT(0, 0), IS_NOT(2, 0)}},
        {"socket", 1, {IS_NOT(0, AF_UNIX)}},
        {"ioctl", 1, {IS(1, TIOCSTI)}},
        {"ioctl", 1, {IS(1, TIOCLINUX)}},
        {"clone", 1, {HAS(0, CLONE_NEWUSER)}},
    };
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const uint32_t action = SCMP_ACT_ERRNO(EPERM);

    if (!filter)
        return -ENOMEM;
    int err = calls_add_names(filter, action, refused, COUNT(refused));
    if (!err)
        err = calls_add_rules(filter, action, rules, COUNT(rules));
    /*
     * No filter can read the flags of clone3, which are in memory; libc uses
     * clone if clone3 fails with ENOSYS.
     */
    if (!err)
        err = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    return calls_load(filter, err);
}

/* --- Calls that are listed -------------------------------------------------------------------- */

static const char *const listed_calls[] = {
    /* files that are open; Landlock limits those that can be opened */
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "fadvise64",
    "fallocate",
    "fcntl",
    "fdatasync",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getdents64",
    "ioctl",
    "kcmp",
    "lseek",
    "lstat",
    "newfstatat",
    "open",
    "openat",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "stat",
    "statfs",
    "statx",
    "sync_file_range",
    "write",
    "writev",
    /* memory */
    "brk",
    "madvise",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mremap",
    "msync",
    "munlock",
    "munmap",
    /* threads */
    "clone3",
    "exit",
    "exit_group",
    "futex",
    "futex_waitv",
    "get_robust_list",
    "getcpu",
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
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "signalfd4",
    "tgkill",
    "wait4",
    "waitid",
    /* time and events */
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "eventfd2",
    "gettimeofday",
    "nanosleep",
    "pipe2",
    "poll",
    "ppoll",
    "pselect6",
    "select",
    "time",
    "timerfd_create",
    "timerfd_settime",
    /* state */
    "getegid",
    "geteuid",
    "getgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getrandom",
    "getrlimit",
    "getuid",
    "sysinfo",
    "uname",
    /* sockets that are connected, or listen */
    "accept4",
    "getpeername",
    "getsockname",
    "getsockopt",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "setsockopt",
    "shutdown",
};

/*
 * Permits calls with these arguments: threads, but no processes; reading limits
 * of processes; the calling thread's priority and processors; memory that is
 * not executable; and data on connected sockets.
 */
static const struct rule listed_rules[] = {
    {"clone", 1, {HAS(0, CLONE_THREAD)}},
    {"prlimit64", 1, {IS_NULL(2)}},
    {"setpriority", 2, {IS(0, PRIO_PROCESS), IS(1, 0)}},
    {"sched_setaffinity", 1, {IS(0, 0)}},
    {"mmap", 1, {LACKS(2, PROT_EXEC)}},
    {"mprotect", 1, {LACKS(2, PROT_EXEC)}},
    {"sendto", 1, {IS_NULL(4)}},
    {"prctl", 1, {IS(0, PR_SET_NAME)}},
    {"prctl", 1, {IS(0, PR_GET_NAME)}},
    {"prctl", 1, {IS(0, PR_SET_TIMERSLACK)}},
    {"prctl", 1, {IS(0, PR_SET_VMA)}},
};

static int calls_permit_listed(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));

    if (!filter)
        return -ENOMEM;
    int err = calls_add_names(filter, SCMP_ACT_ALLOW, listed_calls, COUNT(listed_calls));
    if (!err)
        err = calls_add_rules(filter, SCMP_ACT_ALLOW, listed_rules, COUNT(listed_rules));
    return calls_load(filter, err);
}

int confine_calls(bool listed)
{
    int err = calls_refuse();

    return err || !listed ? err : calls_permit_listed();
}

#else

int confine_calls(bool listed)
{
    (void)listed;
    return -ENOSYS;
}

#endif
