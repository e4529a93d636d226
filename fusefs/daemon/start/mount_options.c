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
#include <uuid/uuid.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/device_tag.h"
#include "support/number.h"
#include "support/option_words.h"

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

enum key { KEY_DISCARD, KEY_NODISCARD, KEY_READ_ONLY, KEY_READ_WRITE };

#define SET(name, field, value)                        \
    {                                                  \
        name, offsetof(struct options, field), (value) \
    }
/* Sets a field, and leaves the option to libfuse. */
#define SET_AND_KEEP(name, field) SET(name, field, 1), FUSE_OPT_KEY(name, FUSE_OPT_KEY_KEEP)

/* mount_options_take() gets the options that are not here. */
static const struct fuse_opt spec[] = {
    SET("gpu=auto", gpu, GPU_AUTO),
    SET("gpu=require", gpu, GPU_REQUIRE),
    SET("gpu=off", gpu, GPU_OFF),
    SET("executor=auto", executor, GQ_EXECUTOR_AUTO),
    SET("executor=cuda", executor, GQ_EXECUTOR_CUDA),
    SET("executor=cpu", executor, GQ_EXECUTOR_CPU),
    SET("executor=cpu_staged", executor, EXECUTOR_CPU_STAGED),
    SET("doorbells=auto", doorbells, GQ_DOORBELLS_AUTO),
    SET("doorbells=cpu", doorbells, GQ_DOORBELLS_CPU),
    SET("doorbells=direct", doorbells, GQ_DOORBELLS_DIRECT),
    SET("p2p=auto", p2p, P2P_AUTO),
    SET("p2p=off", p2p, P2P_OFF),
    SET("p2p=require", p2p, P2P_REQUIRE),
    SET("sandbox=auto", sandbox, SANDBOX_AUTO),
    SET("sandbox=none", sandbox, SANDBOX_NONE),
    SET("sandbox=privileges", sandbox, SANDBOX_PRIVILEGES),
    SET("sandbox=caps", sandbox, SANDBOX_CAPS),
    SET("sandbox=files", sandbox, SANDBOX_FILES),
    SET("sandbox=full", sandbox, SANDBOX_FULL),
    SET("direct=none", direct, DIRECT_NONE),
    SET("direct=root", direct, DIRECT_ROOT),
    SET("direct=all", direct, DIRECT_ALL),
    SET("blkdev", block, BLOCK_REQUIRE),
    SET("noblkdev", block, BLOCK_OFF),
    SET("reservation=auto", reservation, BD_RESERVE_AUTO),
    SET("reservation=off", reservation, BD_RESERVE_OFF),
    SET("reservation=require", reservation, BD_RESERVE_REQUIRE),
    SET("reservation=preempt", reservation, BD_RESERVE_PREEMPT),
    SET("mmp", mmp, FFS_MMP_ON),
    SET("nommp", mmp, FFS_MMP_OFF),
    SET("noiommu", noiommu, 1),
    SET("trace", trace, 1),
    SET("dir32", dir32, 1),
    SET("writeback_cache", writeback_cache, 1),
    SET("remount", remount, 1),
    SET("-h", help, 1),
    SET("--help", help, 1),
    SET("-V", version, 1),
    SET("--version", version, 1),
    SET("-f", foreground, 1),
    SET("-d", foreground, 1),
    SET("debug", foreground, 1),
    SET_AND_KEEP("-d", debug),
    SET_AND_KEEP("debug", debug),
    SET_AND_KEEP("fsname=", named),
    SET_AND_KEEP("subtype=", typed),
    SET_AND_KEEP("allow_other", audience),
    SET_AND_KEEP("allow_root", audience),
    FUSE_OPT_KEY("discard", KEY_DISCARD),
    FUSE_OPT_KEY("nodiscard", KEY_NODISCARD),
    FUSE_OPT_KEY("ro", KEY_READ_ONLY),
    FUSE_OPT_KEY("rw", KEY_READ_WRITE),
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
    return reason_set(&opts->problem, -1, "%s: %s", object, what);
}

/* Returns true if arg has the form NAME=VALUE. */
static bool is_named(const char *arg, const char *name)
{
    size_t len = strlen(name);

    return strncmp(arg, name, len) == 0 && arg[len] == '=';
}

static int take_number(struct options *opts, const char *arg, const struct number *n)
{
    uint64_t value;
    char what[64];

    snprintf(what, sizeof(what), "must be a number from %lu to %lu", n->min, n->max);
    if (!number_parse(strchr(arg, '=') + 1, 10, n->max, &value) || value < n->min)
        return mount_options_fail(opts, arg, what);
    *(unsigned *)((char *)opts + n->offset) = (unsigned)value;
    if (n->offset == offsetof(struct options, commit_s))
        opts->given |= OPTIONS_GIVEN_COMMIT;
    return 0;
}

/* The words that the option may have are in spec. */
static int take_other_word(struct options *opts, const char *arg)
{
    return mount_options_fail(opts, arg, "unknown value, see gpunvmefs -h");
}

/*
 * Accepts the name of a group, or a number, for which no group needs to exist.
 */
static int take_group(struct options *opts, const char *arg)
{
    const char *name = strchr(arg, '=') + 1;
    uint64_t id;
    bool number = number_parse(name, 10, UINT32_MAX - 1, &id);
    const struct group *group = number ? NULL : getgrnam(name);

    if (!number && !group)
        return mount_options_fail(
            opts, arg, "no such group, expected none, root, all, or a group's name or id");
    opts->direct = DIRECT_GROUP;
    opts->direct_group = number ? (gid_t)id : group->gr_gid;
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
    const char *text = strchr(arg, '=') + 1;

    /* The suffixes of a rate are K, M and G. */
    if (strchr(text, 'T') || !number_parse_size(text, SCRUB_RATE_MAX, &opts->scrub_rate))
        return mount_options_fail(opts, arg,
                                  "must be bytes per second, for example 20M, at most 1024G");
    opts->given |= OPTIONS_GIVEN_SCRUB;
    return 0;
}

/* Parses "GPU-UUID", "MIG-UUID" or UUID, as nvidia-smi -L prints it. */
static bool parse_gpu_uuid(const char *text, uint8_t uuid[16])
{
    bool prefixed = strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0;

    return uuid_parse(prefixed ? text + 4 : text, uuid) == 0;
}

static bool parse_gpu(const char *text, struct gpu_name *name)
{
    uint64_t ordinal = 0;

    name->by_uuid = !number_parse(text, 10, GPU_ORDINAL_MAX, &ordinal);
    name->ordinal = (unsigned)ordinal;
    return !name->by_uuid || parse_gpu_uuid(text, name->uuid);
}

static int take_gpus(struct options *opts, const char *arg)
{
    const char *at = strchr(arg, '=') + 1;
    char text[64];
    bool good = true;

    opts->n_gpus = 0;
    if (strcmp(at, "all") == 0)
        return 0;
    for (bool more = true; good && more; at += strcspn(at, ":") + 1) {
        size_t len = strcspn(at, ":");
        more = at[len] != '\0';
        good = opts->n_gpus < GPUS_MAX && len < sizeof(text);
        snprintf(text, sizeof(text), "%.*s", good ? (int)len : 0, at);
        good = good && parse_gpu(text, &opts->gpus[opts->n_gpus]);
        opts->n_gpus += good;
    }
    return good ? 0
                : mount_options_fail(opts, arg,
                                     "expected all, or ordinals or UUIDs of at most 32 GPUs with "
                                     "':' between them, see nvidia-smi -L");
}

static int take_cuda_device(struct options *opts, const char *arg)
{
    return mount_options_fail(opts, arg, "this option is gone, name the GPUs by gpus=");
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

enum { ACCESS_MODE = FFS_ACCESS_NEVER | FFS_ACCESS_ALWAYS };

static const struct {
    const char *name;
    unsigned clear, set;
} access_words[] = {
    {"atime", ACCESS_MODE, FFS_ACCESS_RELATIVE},
    {"noatime", ACCESS_MODE, FFS_ACCESS_NEVER},
    {"relatime", ACCESS_MODE, FFS_ACCESS_RELATIVE},
    {"norelatime", ACCESS_MODE, FFS_ACCESS_RELATIVE},
    {"strictatime", ACCESS_MODE, FFS_ACCESS_ALWAYS},
    {"nostrictatime", ACCESS_MODE, FFS_ACCESS_RELATIVE},
    {"diratime", FFS_ACCESS_FILES_ONLY, 0},
    {"nodiratime", 0, FFS_ACCESS_FILES_ONLY},
};

/*
 * Parses an option that says when reads set access times. Returns 1 for the two
 * that libfuse turns into flags of the mount, 0 for the others, and -1 if it is
 * none.
 */
static int take_access(struct options *opts, const char *arg)
{
    for (size_t i = 0; i < sizeof(access_words) / sizeof(access_words[0]); i++) {
        if (strcmp(arg, access_words[i].name) != 0)
            continue;
        opts->given |= OPTIONS_GIVEN_ACCESS;
        opts->access = (opts->access & ~access_words[i].clear) | access_words[i].set;
        return i < 2;
    }
    return -1;
}

static const struct {
    const char *set, *clear;
    unsigned long flag;
} flag_words[] = {
    {"nosuid", "suid", MS_NOSUID},
    {"nodev", "dev", MS_NODEV},
    {"noexec", "exec", MS_NOEXEC},
    {"sync", "async", MS_SYNCHRONOUS},
    {"nosymfollow", "symfollow", MS_NOSYMFOLLOW},
};

/*
 * Parses a flag of a mount or remount. libfuse accepts the same ones for a
 * mount, except that some versions do not know the last two, which are consumed
 * (0) and not left to it (1). Returns -1 if it is none.
 */
static int take_flag(struct options *opts, const char *arg)
{
    for (size_t i = 0; i < sizeof(flag_words) / sizeof(flag_words[0]); i++) {
        bool set = strcmp(arg, flag_words[i].set) == 0;
        if (!set && strcmp(arg, flag_words[i].clear) != 0)
            continue;
        opts->set_flags = (opts->set_flags & ~flag_words[i].flag) | (set ? flag_words[i].flag : 0);
        opts->clear_flags =
            (opts->clear_flags & ~flag_words[i].flag) | (set ? 0 : flag_words[i].flag);
        return flag_words[i].flag != MS_NOSYMFOLLOW;
    }
    return -1;
}

static int take_operand(struct options *opts, const char *arg)
{
    char **operand = !opts->device ? &opts->device : !opts->mountpoint ? &opts->mountpoint : NULL;

    if (!operand)
        return mount_options_fail(opts, arg, "one operand too many, expected DEVICE MOUNTPOINT");
    *operand = strdup(arg);
    return *operand ? 0 : mount_options_fail(opts, arg, "out of memory");
}

static const struct {
    const char *name;
    int (*take)(struct options *opts, const char *arg);
} valued[] = {
    {"gpu", take_other_word},
    {"executor", take_other_word},
    {"doorbells", take_other_word},
    {"p2p", take_other_word},
    {"sandbox", take_other_word},
    {"direct", take_group},
    {"reservation", take_other_word},
    {"metrics", take_metrics},
    {"scrub", take_scrub},
    {"cpu_memory", take_cpu_memory},
    {"sim", take_drive},
    {"gpus", take_gpus},
    {"cuda_device", take_cuda_device},
};

/* Parses an option that spec does not have; returns as mount_options_take() does. */
static int take_option(struct options *opts, const char *arg)
{
    int keep = take_flag(opts, arg);

    keep = keep < 0 ? take_access(opts, arg) : keep;
    if (keep >= 0)
        return keep;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (is_named(arg, numbers[i].name))
            return take_number(opts, arg, &numbers[i]);
    }
    for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]); i++) {
        if (is_named(arg, valued[i].name))
            return valued[i].take(opts, arg);
    }
    return 1;
}

/*
 * Returns 1 to keep the argument for libfuse, 0 to consume it, or -1 on an
 * error.
 */
static int mount_options_take(void *data, const char *arg, int key, struct fuse_args *out)
{
    struct options *opts = data;

    (void)out;
    switch (key) {
    case FUSE_OPT_KEY_NONOPT:
        return take_operand(opts, arg);
    case KEY_DISCARD:
    case KEY_NODISCARD:
        opts->discard = key == KEY_DISCARD;
        opts->given |= OPTIONS_GIVEN_DISCARD;
        return 0;
    case KEY_READ_ONLY:
    case KEY_READ_WRITE:
        opts->read_only = key == KEY_READ_ONLY;
        opts->given |= OPTIONS_GIVEN_READ_ONLY;
        return 1;
    default:
        return take_option(opts, arg);
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
    struct reason why;

    if (opts->remount || !tag_is(opts->device))
        return 0;
    if (tag_find(opts->device, &device, &why) != 0)
        return mount_options_fail(opts, opts->device, why.text);
    free(opts->device);
    opts->device = device;
    return 0;
}

/* Determines the controller and the namespace. */
static int mount_options_check_device(struct options *opts)
{
    struct reason why;
    struct bd_name *name = &opts->name;

    if (find_tagged(opts) != 0)
        return -1;
    if (bd_name_parse(opts->device, name, &why) != 0)
        return mount_options_fail(opts, opts->device, why.text);
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

static int mount_options_check_p2p(struct options *opts)
{
    if (opts->p2p == P2P_REQUIRE && opts->gpu == GPU_OFF)
        return mount_options_fail(opts, "p2p=require,gpu=off", "these contradict each other");
    if (opts->n_cpu_memories &&
        (opts->executor != GQ_EXECUTOR_CPU || opts->name.kind != BD_KIND_VFIO))
        return mount_options_fail(opts, "cpu_memory",
                                  "for vfio: devices with executor=cpu only, leave it out");
    return 0;
}

static int mount_options_check_reservation(struct options *opts)
{
    if (opts->reservation >= BD_RESERVE_REQUIRE && opts->read_only)
        return mount_options_fail(opts, "reservation,ro",
                                  "a read-only mount reserves nothing, leave one of them out");
    return 0;
}

static int mount_options_check_gpus(struct options *opts)
{
    if (opts->n_gpus && opts->gpu == GPU_OFF)
        return mount_options_fail(opts, "gpus=,gpu=off", "these contradict each other");
    for (unsigned i = 0; i < opts->n_gpus && opts->executor >= GQ_EXECUTOR_CPU; i++) {
        if (opts->gpus[i].by_uuid)
            return mount_options_fail(
                opts, "gpus=", "the CPU executor has no UUIDs, name its GPUs by numbers");
    }
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
    if (mount_options_check_p2p(opts) != 0 || mount_options_check_reservation(opts) != 0)
        return -1;
    return mount_options_check_gpus(opts);
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
    if (!opts->problem.text[0])
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

static const char usage_text[] =
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
    "  -o gpus=all|GPU[:GPU...]\n"
    "                         GPUs whose memory the drive fills, by CUDA's ordinal or by UUID\n"
    "                         (all)\n"
    "  -o queues=N, depth=N   queue pairs of each GPU's executor and their entries\n"
    "  -o max_buffers=N       buffers registered at once (1024)\n"
    "  -o deadline=MS         time a command may take (10000)\n"
    "  -o ctrl_loss_tmo=S     wait for a silent vfio-user server (600)\n"
    "  -o discard             discard freed blocks on the drive; an image file shrinks\n"
    "  -o blkdev, noblkdev    mount type fuseblk, for which umount(2) waits, or fuse\n"
    "                         (fuseblk for root where the kernel permits it)\n"
    "  -o mmp, nommp          protect the device against a second host that mounts it (where\n"
    "                         the device says that others may reach it)\n"
    "  -o reservation=auto|off|require|preempt\n"
    "                         reserve the namespace for this host: where others may reach it,\n"
    "                         never, always, also if another host has reserved it (auto)\n"
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
    "Other options are those of mount.fuse3(8). Details: gpunvmefs(8).\n";

void options_print_help(void)
{
    fputs(usage_text, stdout);
}

/* --- Completion ------------------------------------------------------------------------------ */

/* Adds a name to a list, in which a space precedes and follows each, unless the list has it. */
static void add_word(char *list, size_t size, const char *name, const char *suffix)
{
    char word[64];
    size_t len = strlen(list);

    snprintf(word, sizeof(word), " %s%s ", name, suffix);
    if (!strstr(list, word))
        snprintf(list + len, size - len, "%s", word + 1);
}

/* The options of -o that are words, or begin with one. */
static void list_words(char *list, size_t size)
{
    snprintf(list, size, " ");
    for (const struct fuse_opt *o = spec; o->templ; o++) {
        if (*o->templ != '-')
            add_word(list, size, o->templ, "");
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        add_word(list, size, numbers[i].name, "=");
    for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]); i++) {
        if (valued[i].take != take_other_word && valued[i].take != take_cuda_device)
            add_word(list, size, valued[i].name, "=");
    }
    for (size_t i = 0; i < sizeof(access_words) / sizeof(access_words[0]); i++)
        add_word(list, size, access_words[i].name, "");
    for (size_t i = 0; i < sizeof(flag_words) / sizeof(flag_words[0]); i++) {
        add_word(list, size, flag_words[i].set, "");
        add_word(list, size, flag_words[i].clear, "");
    }
}

void options_complete(int n, char **words)
{
    char list[2048];
    struct option_words options[] = {
        {.letter = 'o',
         .has_value = true,
         .list = true,
         .values = list + 1,
         .help = "options of the mount, separated by commas"},
        {.letter = 'f'},
        {.letter = 'd'},
        {.letter = 'h', .name = "help"},
        {.letter = 'V', .name = "version"},
    };

    list_words(list, sizeof(list));
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const char letter[3] = {'-', options[i].letter};
        if (!options[i].help)
            options[i].help = option_words_help(usage_text, letter);
    }
    option_words_print(options, sizeof(options) / sizeof(options[0]), n > 1 ? words[n - 2] : "",
                       n > 0 ? words[n - 1] : "");
}
