/* SPDX-License-Identifier: BSD-2-Clause */
/* Enters the daemon's sandbox: determines the level and drops capabilities. */
#include "fusefs/daemon/start/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "support/child.h"
#include "support/confine.h"

#define BIT(capability) (1ull << (capability))

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/*
 * Returns true if the daemon may use CUDA. The sandbox then leaves it the files and rights that
 * CUDA needs. CUDA cannot be used without a driver, which shows as nvidiactl on Linux and as dxg,
 * the driver of Windows, in WSL. If CUDA was requested explicitly, it is tried in any case.
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

bool sandbox_may_use_p2p(const struct options *opts)
{
    return opts->name.kind == BD_KIND_VFIO && !opts->noiommu && opts->p2p != P2P_OFF &&
           opts->gpu != GPU_OFF && (opts->n_cpu_memories || may_use_cuda(opts));
}

static enum sandbox_level sandbox_level_of(const struct options *opts)
{
    if (opts->sandbox != SANDBOX_AUTO)
        return (enum sandbox_level)opts->sandbox;
    if (CONFINE_SANITIZED)
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

#define MODPROBE_MS 30000u

/*
 * Loads nvidia-uvm now, since CUDA loads it at its first use, which needs
 * capabilities. CUDA reports an error later.
 */
static void load_driver(void)
{
    char *argv[] = {"nvidia-modprobe", "-u", "-c0", NULL};

    if (exists("/dev/nvidiactl") && !exists("/dev/nvidia-uvm") &&
        child_run(argv, MODPROBE_MS) == -ETIMEDOUT)
        log_line(LOG_WARNING, "nvidia-modprobe: it has not ended in %u s, continuing without it",
                 MODPROBE_MS / 1000);
}

/* A missing part is an error only if its level was requested by name. */
static int sandbox_take(const struct options *opts, int err, const char *part, struct reason *why)
{
    if (!err)
        return 0;
    reason_set(why, 0, "sandbox: %s: %s", part,
               err == -ENOSYS ? "not available in this kernel or build" : strerror(-err));
    if (opts->sandbox != SANDBOX_AUTO)
        return err;
    log_line(LOG_WARNING, "%s, continuing without it", why->text);
    return 0;
}

/*
 * Allows the entries of a directory whose names the function accepts, with a
 * rule for each.
 */
static int sandbox_allow_entries(int rules, const char *folder, unsigned rights,
                                 bool (*accepts)(const char *name, const struct stat *st))
{
    DIR *d = opendir(folder);
    int err = 0;

    for (const struct dirent *e; d && !err && (e = readdir(d)) != NULL;) {
        char path[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && stat(path, &st) == 0 && accepts(e->d_name, &st))
            err = confine_files_allow(rules, path, rights);
    }
    if (d)
        closedir(d);
    return err;
}

static bool sandbox_begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/*
 * Accepts devices that any user may write, and devices of GPUs, which a group
 * may own. Rejects the links to standard output and error. These may lead to
 * sockets or memory, for which Landlock refuses a rule.
 */
static bool sandbox_is_cuda_device(const char *name, const struct stat *st)
{
    return (S_ISCHR(st->st_mode) || S_ISDIR(st->st_mode)) &&
           (st->st_mode & S_IWOTH || sandbox_begins(name, "nvidia") ||
            sandbox_begins(name, "gdrdrv") || strcmp(name, "dri") == 0);
}

/*
 * Accepts directories of programs and libraries, and rejects those that hold
 * data of users and services.
 */
static bool sandbox_is_system(const char *name, const struct stat *st)
{
    static const char *const others[] = {"boot", "dev",  "etc", "home", "lost+found", "media",
                                         "mnt",  "root", "run", "srv",  "tmp",        "var"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strcmp(name, others[i]) == 0)
            return false;
    }
    return S_ISDIR(st->st_mode);
}

/*
 * Accepts settings that any user may read. Other directories there may hold
 * keys.
 */
static bool sandbox_is_setting(const char *name, const struct stat *st)
{
    return S_ISREG(st->st_mode) ? st->st_mode & S_IROTH
                                : sandbox_begins(name, "ld.so") || sandbox_begins(name, "nvidia");
}

static bool sandbox_is_nvidia(const char *name, const struct stat *st)
{
    (void)st;
    return sandbox_begins(name, "nvidia");
}

/* Allows the library folders that LD_LIBRARY_PATH names. */
static int sandbox_allow_libraries(int rules)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    char *copy = path ? strdup(path) : NULL, *rest;
    int err = path && !copy ? -ENOMEM : 0;

    for (char *p = copy ? strtok_r(copy, ":", &rest) : NULL; p && !err;
         p = strtok_r(NULL, ":", &rest))
        err = confine_files_allow(rules, p, CONFINE_READ);
    free(copy);
    return err;
}

/*
 * CUDA's driver loads libraries and reads settings, and no document lists its
 * files. It may read no file that only root may read.
 */
static int sandbox_allow_cuda(int rules)
{
    int err = sandbox_allow_entries(rules, "/", CONFINE_READ, sandbox_is_system);

    if (!err)
        err = sandbox_allow_entries(rules, "/etc", CONFINE_READ, sandbox_is_setting);
    if (!err)
        err = sandbox_allow_entries(rules, "/run", CONFINE_READ, sandbox_is_nvidia);
    if (!err) /* the multi-process service is there */
        err = sandbox_allow_entries(rules, "/tmp", CONFINE_READ, sandbox_is_nvidia);
    if (!err)
        err = sandbox_allow_libraries(rules);
    if (!err)
        err = sandbox_allow_entries(rules, "/dev", CONFINE_READ | CONFINE_WRITE | CONFINE_CREATE,
                                    sandbox_is_cuda_device);
    if (!err) /* driver 580 names its threads with O_TRUNC in task/TID/comm */
        err = confine_files_allow(rules, "/proc/self", CONFINE_READ | CONFINE_WRITE);
    return err;
}

int sandbox_limit_files(const struct sandbox_files *files)
{
    unsigned scopes = CONFINE_SIGNALS | (files->cuda ? 0 : CONFINE_ABSTRACT);
    int rules = confine_files_begin(scopes);

    if (rules < 0)
        return rules;
    int err = confine_files_allow(rules, "/dev/null", CONFINE_READ | CONFINE_WRITE);
    if (!err && files->image)
        err = confine_files_allow(rules, files->image, CONFINE_READ | CONFINE_WRITE);
    if (!err && files->proc)
        err = confine_files_allow(rules, "/proc", CONFINE_READ);
    if (!err && files->cuda)
        err = sandbox_allow_cuda(rules);
    return confine_files_end(rules, err);
}

int sandbox_enter(const struct options *opts, const char *image, struct reason *why)
{
    enum sandbox_level level = sandbox_level_of(opts);
    const struct sandbox_files files = {.image = image,
                                        .proc = opts->noiommu,
                                        .cuda = level == SANDBOX_FILES && may_use_cuda(opts)};
    int err = 0;

    if (level == SANDBOX_NONE)
        return 0;
    if (may_use_cuda(opts))
        load_driver();
    err = confine_privileges();
    if (err)
        return sandbox_take(opts, err, "privileges", why);
    if (level >= SANDBOX_FILES)
        err = sandbox_take(opts, sandbox_limit_files(&files), "Landlock", why);
    if (!err && level >= SANDBOX_CAPS)
        err = sandbox_take(opts, confine_capabilities(sandbox_capabilities(opts, image)),
                           "capabilities", why);
    if (!err && level >= SANDBOX_FILES)
        err = sandbox_take(opts, confine_calls(level >= SANDBOX_FULL), "seccomp", why);
    return err;
}
