/* SPDX-License-Identifier: BSD-2-Clause */
/* Enters the daemon's sandbox: determines the level and drops capabilities. */
#include "fusefs/daemon/start/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define BIT(capability) (1ull << (capability))

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/*
 * CUDA cannot be used without a driver, which shows as nvidiactl on Linux and
 * as dxg, the driver of Windows, in WSL. If CUDA was requested explicitly, it
 * is tried in any case.
 */
static bool may_use_cuda(const struct options *opts)
{
#ifdef GPUNVME_HAVE_CUDA
    if (opts->gpu == GPU_REQUIRE || opts->executor == GQ_EXECUTOR_CUDA)
        return true;
    return opts->gpu != GPU_OFF && opts->executor < GQ_EXECUTOR_CPU &&
           (exists("/dev/nvidiactl") || exists("/dev/dxg"));
#else
    (void)opts;
    return false;
#endif
}

static enum sandbox_level sandbox_level_of(const struct options *opts)
{
    if (opts->sandbox != SANDBOX_AUTO)
        return (enum sandbox_level)opts->sandbox;
    if (SANITIZED)
        return SANDBOX_CAPS;
    return may_use_cuda(opts) ? SANDBOX_FILES : SANDBOX_FULL;
}

/*
 * IPC_LOCK and SYS_RESOURCE permit pinning memory for a drive or a GPU and
 * querying the RLIMIT_FSIZE of callers. A noiommu drive needs physical
 * addresses. CUDA shares memory with processes of other users. An image of
 * another user is opened with root's rights on files.
 */
static uint64_t sandbox_capabilities(const struct options *opts, const char *image)
{
    uint64_t kept = BIT(CAP_IPC_LOCK) | BIT(CAP_SYS_RESOURCE);
    struct stat st;

    if (opts->noiommu)
        kept |= BIT(CAP_SYS_RAWIO) | BIT(CAP_SYS_ADMIN);
    if (may_use_cuda(opts))
        kept |= BIT(CAP_SYS_PTRACE);
    if (image && stat(image, &st) == 0 && st.st_uid != geteuid())
        kept |= BIT(CAP_DAC_OVERRIDE);
    return kept;
}

static int limit_capabilities(uint64_t kept)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &head, data) != 0)
        return -errno;
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        data[i].permitted &= (uint32_t)(kept >> (32 * i));
        data[i].effective &= data[i].permitted;
        data[i].inheritable = 0;
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, data) == 0 ? 0 : -errno;
}

/*
 * Loads nvidia-uvm now, since CUDA loads it at its first use, which needs
 * capabilities. CUDA reports an error later.
 */
static void load_driver(void)
{
    char *argv[] = {"nvidia-modprobe", "-u", "-c0", NULL};
    pid_t pid;

    if (exists("/dev/nvidiactl") && !exists("/dev/nvidia-uvm") &&
        posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) == 0)
        waitpid(pid, NULL, 0);
}

/*
 * Loads files that are otherwise opened at their first use: the time zone of
 * syslog(), and those of CUDA.
 */
static void load_files(const struct options *opts)
{
    tzset();
    if (may_use_cuda(opts))
        load_driver();
}

/* A missing part is an error only if its level was requested by name. */
static int sandbox_take(const struct options *opts, int err, const char *part, char *why,
                        size_t len)
{
    if (!err)
        return 0;
    snprintf(why, len, "sandbox: %s: %s", part,
             err == -ENOSYS ? "not available in this kernel or build" : strerror(-err));
    if (opts->sandbox != SANDBOX_AUTO)
        return err;
    log_line(LOG_WARNING, "%s, continuing without it", why);
    return 0;
}

int sandbox_enter(const struct options *opts, const char *image, char *why, size_t len)
{
    enum sandbox_level level = sandbox_level_of(opts);
    const struct sandbox_files files = {.image = image,
                                        .proc = opts->direct == DIRECT_GROUP || opts->noiommu,
                                        .cuda = level == SANDBOX_FILES && may_use_cuda(opts)};
    int err = 0;

    if (level == SANDBOX_NONE)
        return 0;
    load_files(opts);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return sandbox_take(opts, -errno, "privileges", why, len);
    if (level >= SANDBOX_FILES)
        err = sandbox_take(opts, sandbox_limit_files(&files), "Landlock", why, len);
    if (!err && level >= SANDBOX_CAPS)
        err = sandbox_take(opts, limit_capabilities(sandbox_capabilities(opts, image)),
                           "capabilities", why, len);
    if (!err && level >= SANDBOX_FULL)
        err = sandbox_take(opts, sandbox_limit_calls(opts->noiommu), "seccomp", why, len);
    return err;
}

/* --- Files ----------------------------------------------------------------------------------- */

/* Rights of later Landlock versions, which the headers of Debian 12 lack. */
#define ACCESS_TRUNCATE  (1ull << 14)
#define ACCESS_IOCTL_DEV (1ull << 15)

#define READ       (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define READ_WRITE (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE)
#define DEVICES                                                                         \
    (READ | READ_WRITE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE | \
     ACCESS_TRUNCATE | ACCESS_IOCTL_DEV)
#define OF_PROC (LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE)
/* Rights that a rule for a file may have. */
#define OF_FILE (READ_WRITE | LANDLOCK_ACCESS_FS_EXECUTE | ACCESS_TRUNCATE | ACCESS_IOCTL_DEV)

/* Returns all rights on files that a version of Landlock knows. */
static uint64_t rights_of(long version)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_REFER - 1;

    if (version >= 2)
        rights |= LANDLOCK_ACCESS_FS_REFER;
    if (version >= 3)
        rights |= ACCESS_TRUNCATE;
    if (version >= 5)
        rights |= ACCESS_IOCTL_DEV;
    return rights;
}

/* A path that does not exist needs no rule. */
static int allow(int rules, const char *path, uint64_t rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    long rc = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    int err = rc == 0 ? 0 : -errno;
    close(fd);
    return err;
}

static int add_rules(int rules, const struct sandbox_files *files, uint64_t known)
{
    int err = allow(rules, "/dev/null", READ_WRITE);

    if (!err && files->image)
        err = allow(rules, files->image, (READ_WRITE | ACCESS_TRUNCATE) & known & OF_FILE);
    if (!err && files->proc)
        err = allow(rules, "/proc", READ & known);
    if (!err && files->cuda)
        err = allow(rules, "/", (READ | LANDLOCK_ACCESS_FS_EXECUTE) & known);
    if (!err && files->cuda)
        err = allow(rules, "/dev", DEVICES & known);
    if (!err && files->cuda) /* driver 580 names its threads with O_TRUNC in task/TID/comm */
        err = allow(rules, "/proc/self", (READ | OF_PROC) & known);
    return err;
}

int sandbox_limit_files(const struct sandbox_files *files)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    if (version <= 0)
        return -ENOSYS;
    const struct landlock_ruleset_attr attr = {.handled_access_fs = rights_of(version)};
    long rules = syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr.handled_access_fs), 0);
    if (rules < 0)
        return -errno;
    int err = add_rules((int)rules, files, attr.handled_access_fs);
    if (!err && syscall(SYS_landlock_restrict_self, (int)rules, 0) != 0)
        err = -errno;
    close((int)rules);
    return err;
}

/* --- System calls ---------------------------------------------------------------------------- */

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
    "setpriority",
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
