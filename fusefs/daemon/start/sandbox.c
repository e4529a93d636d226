/* SPDX-License-Identifier: BSD-2-Clause */
/* Enters the daemon's sandbox: determines the level and drops capabilities. */
#include "fusefs/daemon/start/sandbox.h"

#include <errno.h>
#include <linux/capability.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
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
