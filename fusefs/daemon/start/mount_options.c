/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses and checks the command line. */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/start/mount_options.h"

#include <errno.h>
#include <fuse_opt.h>
#include <grp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/device_tag.h"

#define BUFFERS_DEFAULT 1024u
#define DEADLINE_MS     10000u
#define CTRL_LOSS_S     600u /* as in NVMe over Fabrics on Linux */
#define COMMIT_S        5u
/*
 * Only this mount changes the image, so cached attributes and names remain
 * valid.
 */
#define TIMEOUT_S 86400u

struct number {
    const char *name;
    size_t offset; /* offset of an unsigned in struct options */
    unsigned long min, max;
};

static const struct number numbers[] = {
    {"nsid", offsetof(struct options, nsid), 1, BD_NSID_MAX},
    {"cuda_device", offsetof(struct options, cuda_device), 0, 255},
    {"queues", offsetof(struct options, queues), 1, 1024},
    {"depth", offsetof(struct options, depth), 2, NVME_MAX_DEPTH},
    {"max_buffers", offsetof(struct options, max_buffers), 1, 65536},
    {"deadline", offsetof(struct options, deadline_ms), 1, 3600000},
    {"ctrl_loss_tmo", offsetof(struct options, ctrl_loss_s), 1, 86400},
    {"commit", offsetof(struct options, commit_s), 1, COMMIT_S_MAX},
    {"cache", offsetof(struct options, cache_mib), 1, 1u << 20},
    {"attr_timeout", offsetof(struct options, attr_timeout_s), 0, 1u << 30},
    {"entry_timeout", offsetof(struct options, entry_timeout_s), 0, 1u << 30},
};

struct word {
    const char *name;
    const char *value;
    size_t offset;
    unsigned stored;
};

static const struct word words[] = {
    {"gpu", "auto", offsetof(struct options, gpu), GPU_AUTO},
    {"gpu", "require", offsetof(struct options, gpu), GPU_REQUIRE},
    {"gpu", "off", offsetof(struct options, gpu), GPU_OFF},
    {"executor", "auto", offsetof(struct options, executor), GQ_EXECUTOR_AUTO},
    {"executor", "cuda", offsetof(struct options, executor), GQ_EXECUTOR_CUDA},
    {"executor", "cpu", offsetof(struct options, executor), GQ_EXECUTOR_CPU},
    {"executor", "cpu_staged", offsetof(struct options, executor), EXECUTOR_CPU_STAGED},
    {"doorbells", "auto", offsetof(struct options, doorbells), GQ_DOORBELLS_AUTO},
    {"doorbells", "cpu", offsetof(struct options, doorbells), GQ_DOORBELLS_CPU},
    {"doorbells", "direct", offsetof(struct options, doorbells), GQ_DOORBELLS_DIRECT},
    {"p2p", "auto", offsetof(struct options, p2p), P2P_AUTO},
    {"p2p", "off", offsetof(struct options, p2p), P2P_OFF},
    {"p2p", "require", offsetof(struct options, p2p), P2P_REQUIRE},
    {"sandbox", "auto", offsetof(struct options, sandbox), SANDBOX_AUTO},
    {"sandbox", "none", offsetof(struct options, sandbox), SANDBOX_NONE},
    {"sandbox", "privileges", offsetof(struct options, sandbox), SANDBOX_PRIVILEGES},
    {"sandbox", "caps", offsetof(struct options, sandbox), SANDBOX_CAPS},
    {"sandbox", "files", offsetof(struct options, sandbox), SANDBOX_FILES},
    {"sandbox", "full", offsetof(struct options, sandbox), SANDBOX_FULL},
};

enum key {
    KEY_NUMBER,
    KEY_WORD,
    KEY_DIRECT,
    KEY_METRICS,
    KEY_SCRUB,
    KEY_DRIVE,
    KEY_CPU_MEMORY,
    KEY_READ_ONLY,
    KEY_READ_WRITE,
    KEY_FLAG,
    KEY_DISCARD,
    KEY_NODISCARD,
    KEY_WRITEBACK,
    KEY_ACCESS,
    KEY_TRACE,
    KEY_DIR32,
    KEY_NOIOMMU,
    KEY_NAMED,
    KEY_TYPED,
    KEY_BLKDEV,
    KEY_NOBLKDEV,
    KEY_MMP,
    KEY_NOMMP,
    KEY_AUDIENCE,
    KEY_REMOUNT,
    KEY_HELP,
    KEY_VERSION,
    KEY_FOREGROUND,
    KEY_DEBUG
};

static const struct fuse_opt spec[] = {
    FUSE_OPT_KEY("nsid=", KEY_NUMBER),
    FUSE_OPT_KEY("cuda_device=", KEY_NUMBER),
    FUSE_OPT_KEY("queues=", KEY_NUMBER),
    FUSE_OPT_KEY("depth=", KEY_NUMBER),
    FUSE_OPT_KEY("max_buffers=", KEY_NUMBER),
    FUSE_OPT_KEY("deadline=", KEY_NUMBER),
    FUSE_OPT_KEY("ctrl_loss_tmo=", KEY_NUMBER),
    FUSE_OPT_KEY("commit=", KEY_NUMBER),
    FUSE_OPT_KEY("cache=", KEY_NUMBER),
    FUSE_OPT_KEY("attr_timeout=", KEY_NUMBER),
    FUSE_OPT_KEY("entry_timeout=", KEY_NUMBER),
    FUSE_OPT_KEY("gpu=", KEY_WORD),
    FUSE_OPT_KEY("executor=", KEY_WORD),
    FUSE_OPT_KEY("doorbells=", KEY_WORD),
    FUSE_OPT_KEY("p2p=", KEY_WORD),
    FUSE_OPT_KEY("cpu_memory=", KEY_CPU_MEMORY),
    FUSE_OPT_KEY("sandbox=", KEY_WORD),
    FUSE_OPT_KEY("sim=", KEY_DRIVE),
    FUSE_OPT_KEY("direct=", KEY_DIRECT),
    FUSE_OPT_KEY("metrics=", KEY_METRICS),
    FUSE_OPT_KEY("scrub=", KEY_SCRUB),
    FUSE_OPT_KEY("noiommu", KEY_NOIOMMU),
    FUSE_OPT_KEY("ro", KEY_READ_ONLY),
    FUSE_OPT_KEY("rw", KEY_READ_WRITE),
    FUSE_OPT_KEY("suid", KEY_FLAG),
    FUSE_OPT_KEY("nosuid", KEY_FLAG),
    FUSE_OPT_KEY("dev", KEY_FLAG),
    FUSE_OPT_KEY("nodev", KEY_FLAG),
    FUSE_OPT_KEY("exec", KEY_FLAG),
    FUSE_OPT_KEY("noexec", KEY_FLAG),
    FUSE_OPT_KEY("async", KEY_FLAG),
    FUSE_OPT_KEY("sync", KEY_FLAG),
    FUSE_OPT_KEY("symfollow", KEY_FLAG),
    FUSE_OPT_KEY("nosymfollow", KEY_FLAG),
    FUSE_OPT_KEY("trace", KEY_TRACE),
    FUSE_OPT_KEY("dir32", KEY_DIR32),
    FUSE_OPT_KEY("discard", KEY_DISCARD),
    FUSE_OPT_KEY("nodiscard", KEY_NODISCARD),
    FUSE_OPT_KEY("writeback_cache", KEY_WRITEBACK),
    FUSE_OPT_KEY("atime", KEY_ACCESS),
    FUSE_OPT_KEY("noatime", KEY_ACCESS),
    FUSE_OPT_KEY("relatime", KEY_ACCESS),
    FUSE_OPT_KEY("norelatime", KEY_ACCESS),
    FUSE_OPT_KEY("strictatime", KEY_ACCESS),
    FUSE_OPT_KEY("nostrictatime", KEY_ACCESS),
    FUSE_OPT_KEY("diratime", KEY_ACCESS),
    FUSE_OPT_KEY("nodiratime", KEY_ACCESS),
    FUSE_OPT_KEY("fsname=", KEY_NAMED),
    FUSE_OPT_KEY("subtype=", KEY_TYPED),
    FUSE_OPT_KEY("blkdev", KEY_BLKDEV),
    FUSE_OPT_KEY("noblkdev", KEY_NOBLKDEV),
    FUSE_OPT_KEY("mmp", KEY_MMP),
    FUSE_OPT_KEY("nommp", KEY_NOMMP),
    FUSE_OPT_KEY("allow_other", KEY_AUDIENCE),
    FUSE_OPT_KEY("allow_root", KEY_AUDIENCE),
    FUSE_OPT_KEY("remount", KEY_REMOUNT),
    FUSE_OPT_KEY("-h", KEY_HELP),
    FUSE_OPT_KEY("--help", KEY_HELP),
    FUSE_OPT_KEY("-V", KEY_VERSION),
    FUSE_OPT_KEY("--version", KEY_VERSION),
    FUSE_OPT_KEY("-f", KEY_FOREGROUND),
    FUSE_OPT_KEY("-d", KEY_DEBUG),
    FUSE_OPT_KEY("debug", KEY_DEBUG),
    /* Options of fstab(5) and mount(8), of which libfuse knows only some. */
    FUSE_OPT_KEY("defaults", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("auto", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("noauto", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("nofail", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("_netdev", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("lazytime", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("nolazytime", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_END,
};

/*
 * For a remount, mount(8) passes the options of the mount from /proc/mounts.
 * libfuse, or some versions of it, does not accept these when mounting.
 */
static const struct fuse_opt shown[] = {
    FUSE_OPT_KEY("user_id=", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("group_id=", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_KEY("seclabel", FUSE_OPT_KEY_DISCARD),
    FUSE_OPT_END,
};

static int mount_options_fail(struct options *opts, const char *object, const char *what)
{
    snprintf(opts->problem, sizeof(opts->problem), "%s: %s", object, what);
    return -1;
}

static unsigned *mount_options_field(struct options *opts, size_t offset)
{
    return (unsigned *)((char *)opts + offset);
}

/* Returns whether arg has the form NAME=VALUE. */
static bool is_named(const char *arg, const char *name)
{
    size_t len = strlen(name);

    return strncmp(arg, name, len) == 0 && arg[len] == '=';
}

static int take_number(struct options *opts, const char *arg)
{
    const char *text = strchr(arg, '=') + 1;

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const struct number *n = &numbers[i];
        if (!is_named(arg, n->name))
            continue;
        char *end;
        errno = 0;
        unsigned long value = strtoul(text, &end, 10);
        bool digits = *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
        char what[64];
        snprintf(what, sizeof(what), "must be a number from %lu to %lu", n->min, n->max);
        if (!digits || value < n->min || value > n->max)
            return mount_options_fail(opts, arg, what);
        *mount_options_field(opts, n->offset) = (unsigned)value;
        if (n->offset == offsetof(struct options, commit_s))
            opts->given |= OPTIONS_GIVEN_COMMIT;
        return 0;
    }
    return mount_options_fail(opts, arg, "unknown option, see gpunvmefs -h");
}

static int take_word(struct options *opts, const char *arg)
{
    const char *text = strchr(arg, '=') + 1;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (is_named(arg, words[i].name) && strcmp(text, words[i].value) == 0) {
            *mount_options_field(opts, words[i].offset) = words[i].stored;
            return 0;
        }
    }
    return mount_options_fail(opts, arg, "unknown value, see gpunvmefs -h");
}

/*
 * Accepts the name of a group, or a number, for which no group needs to exist.
 */
static int take_group(struct options *opts, const char *arg, const char *name)
{
    char *end;

    errno = 0;
    unsigned long id = strtoul(name, &end, 10);
    bool number = *name >= '0' && *name <= '9' && *end == '\0' && errno == 0 && id < UINT32_MAX;
    const struct group *group = number ? NULL : getgrnam(name);
    if (!number && !group)
        return mount_options_fail(
            opts, arg, "no such group, expected none, root, all, or a group's name or id");
    opts->direct = DIRECT_GROUP;
    opts->direct_group = number ? (gid_t)id : group->gr_gid;
    return 0;
}

static int take_direct(struct options *opts, const char *arg)
{
    const char *value = strchr(arg, '=') + 1;

    if (strcmp(value, "none") == 0)
        opts->direct = DIRECT_NONE;
    else if (strcmp(value, "root") == 0)
        opts->direct = DIRECT_ROOT;
    else if (strcmp(value, "all") == 0)
        opts->direct = DIRECT_ALL;
    else
        return take_group(opts, arg, value);
    return 0;
}

static int take_metrics(struct options *opts, const char *arg)
{
    int err = metrics_address_parse(strchr(arg, '=') + 1, &opts->metrics);

    if (err == -EPERM)
        return mount_options_fail(opts, arg,
                                  "not an address of the loopback interface, use 127.0.0.1:PORT");
    return err ? mount_options_fail(opts, arg, "not an address, use 127.0.0.1:PORT") : 0;
}

static int take_scrub(struct options *opts, const char *arg)
{
    static const char units[] = "KMG";
    const char *text = strchr(arg, '=') + 1;
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    bool number = *text >= '0' && *text <= '9' && errno == 0 && end[unit != NULL] == '\0';
    if (!number || value > SCRUB_RATE_MAX >> shift)
        return mount_options_fail(opts, arg,
                                  "must be bytes per second, for example 20M, at most 1024G");
    opts->scrub_rate = (uint64_t)value << shift;
    opts->given |= OPTIONS_GIVEN_SCRUB;
    return 0;
}

/* The drive parses these options itself when it is opened. */
static int take_drive(struct options *opts, const char *arg)
{
    free(opts->drive_options);
    opts->drive_options = strdup(strchr(arg, '=') + 1);
    return opts->drive_options ? 0 : mount_options_fail(opts, arg, "out of memory");
}

static int take_cpu_memory(struct options *opts, const char *arg)
{
    char *address;

    if (opts->n_cpu_memories == GQ_CPU_MEMORIES)
        return mount_options_fail(opts, arg, "too many, at most four devices can be named");
    address = strdup(strchr(arg, '=') + 1);
    if (!address)
        return mount_options_fail(opts, arg, "out of memory");
    opts->cpu_memories[opts->n_cpu_memories++] = address;
    return 0;
}

/* libfuse knows two of these, and turns them into flags of the mount. */
static int take_access(struct options *opts, const char *arg)
{
    static const char *const relative[] = {"atime", "relatime", "norelatime", "nostrictatime"};
    unsigned dirs = opts->access & FFS_ACCESS_FILES_ONLY;

    opts->given |= OPTIONS_GIVEN_ACCESS;
    if (strcmp(arg, "nodiratime") == 0)
        opts->access |= FFS_ACCESS_FILES_ONLY;
    else if (strcmp(arg, "diratime") == 0)
        opts->access &= ~(unsigned)FFS_ACCESS_FILES_ONLY;
    else if (strcmp(arg, "noatime") == 0)
        opts->access = FFS_ACCESS_NEVER | dirs;
    else if (strcmp(arg, "strictatime") == 0)
        opts->access = FFS_ACCESS_ALWAYS | dirs;
    for (size_t i = 0; i < sizeof(relative) / sizeof(relative[0]); i++) {
        if (strcmp(arg, relative[i]) == 0)
            opts->access = FFS_ACCESS_RELATIVE | dirs;
    }
    return strcmp(arg, "atime") == 0 || strcmp(arg, "noatime") == 0;
}

/*
 * Parses a flag of a mount or remount. libfuse accepts the same ones for a
 * mount, except that some versions do not know the last two.
 */
static int take_flag(struct options *opts, const char *arg)
{
    static const struct {
        const char *set, *clear;
        unsigned long flag;
    } flags[] = {
        {"nosuid", "suid", MS_NOSUID},
        {"nodev", "dev", MS_NODEV},
        {"noexec", "exec", MS_NOEXEC},
        {"sync", "async", MS_SYNCHRONOUS},
        {"nosymfollow", "symfollow", MS_NOSYMFOLLOW},
    };

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (strcmp(arg, flags[i].set) == 0) {
            opts->set_flags |= flags[i].flag;
            opts->clear_flags &= ~flags[i].flag;
        } else if (strcmp(arg, flags[i].clear) == 0) {
            opts->clear_flags |= flags[i].flag;
            opts->set_flags &= ~flags[i].flag;
        }
    }
    return !strstr(arg, "symfollow");
}

static int take_operand(struct options *opts, const char *arg)
{
    char **operand = !opts->device ? &opts->device : !opts->mountpoint ? &opts->mountpoint : NULL;

    if (!operand)
        return mount_options_fail(opts, arg, "one operand too many, expected DEVICE MOUNTPOINT");
    *operand = strdup(arg);
    return *operand ? 0 : mount_options_fail(opts, arg, "out of memory");
}

/* Parsers of options that have a value or several words. */
static int (*const takers[])(struct options *opts, const char *arg) = {
    [KEY_NUMBER] = take_number,   [KEY_WORD] = take_word,   [KEY_DIRECT] = take_direct,
    [KEY_METRICS] = take_metrics, [KEY_DRIVE] = take_drive, [KEY_FLAG] = take_flag,
    [KEY_ACCESS] = take_access,   [KEY_SCRUB] = take_scrub, [KEY_CPU_MEMORY] = take_cpu_memory,
};

/*
 * Returns 1 to keep the argument for libfuse, 0 to consume it, or -1 on an
 * error.
 */
static int mount_options_take(void *data, const char *arg, int key, struct fuse_args *out)
{
    struct options *opts = data;

    (void)out;
    if (key >= 0 && (size_t)key < sizeof(takers) / sizeof(takers[0]) && takers[key])
        return takers[key](opts, arg);
    switch (key) {
    case FUSE_OPT_KEY_NONOPT:
        return take_operand(opts, arg);
    case KEY_REMOUNT:
        opts->remount = true;
        return 0;
    case KEY_DISCARD:
    case KEY_NODISCARD:
        opts->discard = key == KEY_DISCARD;
        opts->given |= OPTIONS_GIVEN_DISCARD;
        return 0;
    case KEY_WRITEBACK:
        opts->writeback_cache = true;
        return 0;
    case KEY_READ_ONLY:
    case KEY_READ_WRITE:
        opts->read_only = key == KEY_READ_ONLY;
        opts->given |= OPTIONS_GIVEN_READ_ONLY;
        return 1;
    case KEY_TRACE:
        opts->trace = true;
        return 0;
    case KEY_DIR32:
        opts->dir32 = true;
        return 0;
    case KEY_NOIOMMU:
        opts->noiommu = true;
        return 0;
    case KEY_NAMED:
        opts->named = true;
        return 1;
    case KEY_TYPED:
        opts->typed = true;
        return 1;
    case KEY_BLKDEV:
    case KEY_NOBLKDEV:
        opts->block = key == KEY_BLKDEV ? BLOCK_REQUIRE : BLOCK_OFF;
        return 0;
    case KEY_MMP:
    case KEY_NOMMP:
        opts->mmp = key == KEY_MMP ? FFS_MMP_ON : FFS_MMP_OFF;
        return 0;
    case KEY_AUDIENCE:
        opts->audience = true;
        return 1;
    case KEY_DEBUG:
        opts->debug = opts->foreground = true;
        return 1;
    case KEY_FOREGROUND:
        opts->foreground = true;
        return 0;
    case KEY_HELP:
        opts->help = true;
        return 0;
    case KEY_VERSION:
        opts->version = true;
        return 0;
    default:
        return 1;
    }
}

/* The path must remain valid after chdir("/"). */
static int make_device_absolute(struct options *opts)
{
    if (opts->name.kind == BD_KIND_VFIO)
        return 0;
    char *path = realpath(opts->name.path, NULL);
    if (!path) /* a missing file is reported when it is opened */
        return 0;
    char *absolute;
    int n =
        asprintf(&absolute, "%s%s", opts->name.kind == BD_KIND_VFIO_USER ? "vfio-user:" : "", path);
    if (n >= 0) {
        snprintf(opts->name.path, sizeof(opts->name.path), "%s", path);
        free(opts->device);
        opts->device = absolute;
    }
    free(path);
    return n < 0 ? mount_options_fail(opts, opts->device, "out of memory") : 0;
}

/*
 * Replaces a label or UUID by the device that has it. A remount does not search
 * for it.
 */
static int find_tagged(struct options *opts)
{
    char *device;
    char why[400];

    if (opts->remount || !tag_is(opts->device))
        return 0;
    if (tag_find(opts->device, TAG_SILENT_MS, &device, why, sizeof(why)) != 0)
        return mount_options_fail(opts, opts->device, why);
    free(opts->device);
    opts->device = device;
    return 0;
}

/* Determines the controller and the namespace. */
static int mount_options_check_device(struct options *opts)
{
    char why[256];
    struct bd_name *name = &opts->name;

    if (find_tagged(opts) != 0)
        return -1;
    if (bd_name_parse(opts->device, name, why, sizeof(why)) != 0)
        return mount_options_fail(opts, opts->device, why);
    if (opts->nsid && name->nsid_given && opts->nsid != name->nsid)
        return mount_options_fail(opts, opts->device,
                                  "nsid= names another namespace, leave one of them out");
    if (opts->nsid)
        name->nsid = opts->nsid;
    if (opts->noiommu && name->kind != BD_KIND_VFIO)
        return mount_options_fail(opts, "noiommu", "for vfio: devices only, leave it out");
    return make_device_absolute(opts);
}

/*
 * Adds the options that every mount uses. The device's name may contain commas.
 */
static int add_fixed(struct options *opts, struct fuse_args *args)
{
    char *list = NULL;
    char *name = NULL;
    int err = -1;

    if (!opts->named && asprintf(&name, "fsname=%s", opts->device) < 0) {
        name = NULL;
        goto out;
    }
    if (fuse_opt_add_opt(&list, "default_permissions,max_read=1048576") != 0 ||
        (name && fuse_opt_add_opt_escaped(&list, name) != 0) ||
        (!opts->typed && fuse_opt_add_opt(&list, "subtype=gpunvmefs") != 0) ||
        (!opts->audience && geteuid() == 0 && fuse_opt_add_opt(&list, "allow_other") != 0))
        goto out;
    if (fuse_opt_add_arg(args, "-o") == 0 && fuse_opt_add_arg(args, list) == 0)
        err = 0;
out:
    free(list);
    free(name);
    return err ? mount_options_fail(opts, "options", "out of memory") : 0;
}

/*
 * mount(8) passes the complete list of a remount without the defaults exec and
 * async. A list with ro or rw is recognised as complete by dev and suid or
 * their opposites, which mount.fuse3(8) adds.
 */
static void complete_flags(struct options *opts)
{
    const unsigned long added = MS_NODEV | MS_NOSUID;

    if ((opts->given & OPTIONS_GIVEN_READ_ONLY) &&
        ((opts->set_flags | opts->clear_flags) & added) == added)
        opts->clear_flags |= (MS_NOEXEC | MS_SYNCHRONOUS) & ~opts->set_flags;
}

static int check_p2p(struct options *opts)
{
    if (opts->p2p == P2P_REQUIRE && opts->gpu == GPU_OFF)
        return mount_options_fail(opts, "p2p=require,gpu=off", "these contradict each other");
    if (opts->n_cpu_memories &&
        (opts->executor != GQ_EXECUTOR_CPU || opts->name.kind != BD_KIND_VFIO))
        return mount_options_fail(opts, "cpu_memory",
                                  "for vfio: devices with executor=cpu only, leave it out");
    return 0;
}

static int mount_options_check(struct options *opts)
{
    if (!opts->device || !opts->mountpoint)
        return mount_options_fail(opts, "usage",
                                  "gpunvmefs DEVICE MOUNTPOINT [-o OPTION,...], see gpunvmefs -h");
    if (opts->gpu == GPU_REQUIRE && opts->executor >= GQ_EXECUTOR_CPU)
        return mount_options_fail(opts, "gpu=require,executor=cpu", "these contradict each other");
    if (opts->sandbox == SANDBOX_FULL &&
        (opts->gpu == GPU_REQUIRE || opts->executor == GQ_EXECUTOR_CUDA))
        return mount_options_fail(opts, "sandbox=full",
                                  "excludes CUDA, use files with gpu=require or executor=cuda");
    if ((opts->set_flags & MS_NOSYMFOLLOW) && geteuid() != 0)
        return mount_options_fail(opts, "nosymfollow", "for mounts of root only, leave it out");
    complete_flags(opts);
    if (mount_options_check_device(opts) != 0)
        return -1;
    return check_p2p(opts);
}

int options_parse(struct options *opts, struct fuse_args *args)
{
    *opts = (struct options){.max_buffers = BUFFERS_DEFAULT,
                             .deadline_ms = DEADLINE_MS,
                             .ctrl_loss_s = CTRL_LOSS_S,
                             .commit_s = COMMIT_S,
                             .mountinfo = -1,
                             .attr_timeout_s = TIMEOUT_S,
                             .entry_timeout_s = TIMEOUT_S};
    if (fuse_opt_parse(args, opts, spec, mount_options_take) != 0)
        goto failed;
    if (opts->remount && fuse_opt_parse(args, NULL, shown, NULL) != 0)
        goto failed;
    if (opts->help || opts->version)
        return 0;
    if (mount_options_check(opts) != 0 || add_fixed(opts, args) != 0)
        goto failed;
    return 0;
failed:
    if (!opts->problem[0])
        mount_options_fail(opts, "options", "cannot be read, see gpunvmefs -h");
    return -EINVAL;
}

void options_free(struct options *opts)
{
    free(opts->device);
    free(opts->mountpoint);
    free(opts->drive_options);
    for (unsigned i = 0; i < opts->n_cpu_memories; i++)
        free(opts->cpu_memories[i]);
}

void options_print_help(void)
{
    fputs(
        "usage: gpunvmefs DEVICE MOUNTPOINT [-o OPTION,...] [-f] [-d] [-h] [-V]\n"
        "\n"
        "DEVICE\n"
        "  IMAGE                  an image file behind a simulated NVMe controller\n"
        "  /dev/...               a block device, through the kernel (no GPU path)\n"
        "  vfio:ADDRESS[/NSID]    a PCI drive that is bound to vfio-pci\n"
        "  vfio-user:SOCKET       a controller that another process serves\n"
        "  LABEL=..., UUID=...    the device whose file system has it\n"
        "\n"
        "  -f                     stay in the foreground\n"
        "  -d                     the same, and print every request\n"
        "  -h, --help             print this\n"
        "  -V, --version          print the versions\n"
        "\n"
        "  -o ro                  mount read-only\n"
        "  -o nsid=N              namespace of the controller (1)\n"
        "  -o noiommu             drive a vfio: device that no IOMMU guards: it can then write\n"
        "                         to any memory of the machine\n"
        "  -o gpu=auto|require|off\n"
        "                         an executor if there is one, CUDA only, none (auto)\n"
        "  -o executor=auto|cuda|cpu|cpu_staged\n"
        "                         what drives the queues of the GPU path (auto)\n"
        "  -o doorbells=auto|cpu|direct\n"
        "                         what rings the doorbells of the GPU path (auto)\n"
        "  -o p2p=auto|require|off\n"
        "                         DMA of the drive to GPU memory: where it works, or the mount\n"
        "                         fails, or never (auto)\n"
        "  -o direct=none|root|GROUP|all\n"
        "                         users that may lease queues of the drive (none)\n"
        "  -o sandbox=auto|none|privileges|caps|files|full\n"
        "                         what the daemon gives up: capabilities, files, system calls\n"
        "  -o trace               keep records of what the daemon does, for gpunvme trace\n"
        "  -o metrics=ADDRESS     counters for Prometheus, by HTTP on 127.0.0.1:PORT\n"
        "  -o scrub=RATE          read everything in the background, so many bytes per second\n"
        "                         (K, M, G), and correct flipped bits of metadata (0: off)\n"
        "  -o cuda_device=N       ordinal of the CUDA device (0)\n"
        "  -o queues=N, depth=N   queue pairs of the executor and their entries\n"
        "  -o max_buffers=N       buffers registered at once (1024)\n"
        "  -o deadline=MS         time a command may take (10000)\n"
        "  -o ctrl_loss_tmo=S     wait for a silent vfio-user server (600)\n"
        "  -o discard             discard freed blocks on the drive; an image file shrinks\n"
        "  -o blkdev, noblkdev    mount type fuseblk, for which umount(2) waits, or fuse\n"
        "                         (fuseblk for root where the kernel permits it)\n"
        "  -o mmp, nommp          protect the device against a second host that mounts it (where\n"
        "                         the device says that others may reach it)\n"
        "  -o writeback_cache     the kernel keeps written data for a while; no GPU writes\n"
        "  -o dir32               positions in directories for 32-bit programs\n"
        "  -o relatime|noatime|strictatime, nodiratime\n"
        "                         when reads set access times (relatime)\n"
        "  -o commit=SECONDS      time between background commits (5)\n"
        "  -o cache=MIB           memory for metadata (a 32nd of the machine's, 64 to 4096)\n"
        "  -o attr_timeout=S, entry_timeout=S\n"
        "                         time the kernel may keep attributes and names (86400)\n"
        "  -o sim=KEY:VALUE[:KEY:VALUE...]\n"
        "                         the simulated controller: threads:N, lba:512|4096, mdts:BYTES,\n"
        "                         latency:US (least time of a command), bandwidth:MIB (largest,\n"
        "                         per second), gpu:on|off (takes GPU memory)\n"
        "\n"
        "Other options are those of mount.fuse3(8). Details: gpunvmefs(8).\n",
        stdout);
}
