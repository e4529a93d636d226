/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates a fuseblk mount. The kernel looks up its source as a path to a block
 * device, and shows that path in /proc/mounts, where programs look for the
 * image or drive. A thread with a root directory of its own, in which the
 * private loop device has the name of the image or drive, therefore creates the
 * file system.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/mounter/block_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_opt.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/mounter/loop_page.h"
#include "fusefs/daemon/start/mount_options.h"

struct block_mount {
    int fs;         /* descriptor of fsopen(2) */
    int connection; /* descriptor of /dev/fuse */
    char *source;   /* the name in /proc/mounts */
    dev_t device;
    const char *step; /* the call that failed */
    int err;          /* -errno of that call */
};

/* Stores the first failure. Returns true if no call has failed so far. */
static bool worked(struct block_mount *b, long result, const char *step)
{
    if (result < 0 && !b->err) {
        b->err = -errno;
        b->step = step;
    }
    return !b->err;
}

static void block_mount_set_flag(struct block_mount *b, const char *name)
{
    worked(b, fsconfig(b->fs, FSCONFIG_SET_FLAG, name, NULL, 0), name);
}

static void block_mount_set_text(struct block_mount *b, const char *name, const char *value)
{
    worked(b, fsconfig(b->fs, FSCONFIG_SET_STRING, name, value, 0), name);
}

static void block_mount_set_number(struct block_mount *b, const char *name, const char *format,
                                   unsigned value)
{
    char text[16];

    snprintf(text, sizeof(text), format, value);
    block_mount_set_text(b, name, text);
}

enum key { KEY_PASSED, KEY_SOURCE, KEY_ALLOW_ROOT, KEY_AUTO_UNMOUNT };

/* These options are for the kernel. libfuse itself enforces allow_root. */
static const struct fuse_opt spec[] = {
    FUSE_OPT_KEY("allow_other", KEY_PASSED),
    FUSE_OPT_KEY("default_permissions", KEY_PASSED),
    FUSE_OPT_KEY("dirsync", KEY_PASSED),
    FUSE_OPT_KEY("max_read=", KEY_PASSED),
    FUSE_OPT_KEY("blksize=", KEY_PASSED),
    FUSE_OPT_KEY("subtype=", KEY_PASSED),
    FUSE_OPT_KEY("context=", KEY_PASSED),
    FUSE_OPT_KEY("fscontext=", KEY_PASSED),
    FUSE_OPT_KEY("defcontext=", KEY_PASSED),
    FUSE_OPT_KEY("rootcontext=", KEY_PASSED),
    FUSE_OPT_KEY("fsname=", KEY_SOURCE),
    FUSE_OPT_KEY("allow_root", KEY_ALLOW_ROOT),
    FUSE_OPT_KEY("auto_unmount", KEY_AUTO_UNMOUNT),
    FUSE_OPT_END,
};

static void block_mount_pass(struct block_mount *b, const char *arg)
{
    char *name = strdup(arg);
    char *value = name ? strchr(name, '=') : NULL;

    if (!name) {
        worked(b, -1, "options");
    } else if (value) {
        *value++ = '\0';
        worked(b, fsconfig(b->fs, FSCONFIG_SET_STRING, name, value, 0), "options");
    } else {
        worked(b, fsconfig(b->fs, FSCONFIG_SET_FLAG, name, NULL, 0), "options");
    }
    free(name);
}

static int block_mount_take(void *data, const char *arg, int key, struct fuse_args *out)
{
    struct block_mount *b = data;

    (void)out;
    switch (key) {
    case KEY_PASSED:
        block_mount_pass(b, arg);
        break;
    case KEY_SOURCE:
        free(b->source);
        b->source = strdup(strchr(arg, '=') + 1);
        break;
    case KEY_ALLOW_ROOT:
        block_mount_set_flag(b, "allow_other");
        break;
    case KEY_AUTO_UNMOUNT: /* only a mount by fusermount3 has it */
        errno = EOPNOTSUPP;
        worked(b, -1, "auto_unmount");
        break;
    default:
        break;
    }
    return 0;
}

static void set_options(struct block_mount *b, const struct options *opts,
                        const struct fuse_args *args)
{
    struct fuse_args copy = FUSE_ARGS_INIT(0, NULL);
    int err = 0;

    block_mount_set_number(b, "fd", "%u", (unsigned)b->connection);
    block_mount_set_number(b, "rootmode", "%o", S_IFDIR);
    block_mount_set_number(b, "user_id", "%u", geteuid());
    block_mount_set_number(b, "group_id", "%u", getegid());
    block_mount_set_number(b, "blksize", "%u", 4096);
    if (opts->read_only)
        block_mount_set_flag(b, "ro");
    if (opts->set_flags & MS_SYNCHRONOUS)
        block_mount_set_flag(b, "sync");
    for (int i = 0; i < args->argc && !err; i++)
        err = fuse_opt_add_arg(&copy, args->argv[i]);
    if (!err)
        err = fuse_opt_parse(&copy, b, spec, block_mount_take);
    fuse_opt_free_args(&copy);
    if (err || !b->source) {
        errno = ENOMEM;
        worked(b, -1, "options");
    } else {
        block_mount_set_text(b, "source", b->source);
    }
}

/* Makes an empty file system that is mounted nowhere. */
static int open_tmpfs(void)
{
    int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    int mount = -1;

    if (fs >= 0 && fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = fsmount(fs, FSMOUNT_CLOEXEC, 0);
    int err = errno;
    if (fs >= 0)
        close(fs);
    errno = err;
    return mount;
}

/* Makes a node for the block device, and the directories above it. */
static int make_node(char *path, dev_t device)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* after an error mknod() fails */
        *slash = '/';
    }
    return mknod(path, S_IFBLK | 0600, device);
}

/* Creates the file system in a thread whose root directory is its own. */
static void *block_mount_create(void *arg)
{
    struct block_mount *b = arg;
    int root = -1;

    if (worked(b, unshare(CLONE_FS), "unshare") && worked(b, root = open_tmpfs(), "tmpfs") &&
        worked(b, fchdir(root), "tmpfs") && worked(b, chroot("."), "chroot") &&
        worked(b, make_node(b->source, b->device), "mknod"))
        worked(b, fsconfig(b->fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "fuseblk");
    if (root >= 0)
        close(root);
    return NULL;
}

static void create_apart(struct block_mount *b)
{
    pthread_t thread;

    errno = pthread_create(&thread, NULL, block_mount_create, b);
    if (worked(b, errno ? -1 : 0, "thread"))
        pthread_join(thread, NULL);
}

/*
 * Returns the flags that libfuse would pass to mount(2): nosuid and nodev
 * unless the opposite was given.
 */
static unsigned attributes(const struct options *opts)
{
    static const struct {
        unsigned long flag;
        unsigned attribute;
    } map[] = {
        {MS_NOSUID, MOUNT_ATTR_NOSUID}, {MS_NODEV, MOUNT_ATTR_NODEV},
        {MS_NOEXEC, MOUNT_ATTR_NOEXEC}, {MS_NOSYMFOLLOW, MOUNT_ATTR_NOSYMFOLLOW},
        {MS_RDONLY, MOUNT_ATTR_RDONLY}, {MS_NOATIME, MOUNT_ATTR_NOATIME},
    };
    unsigned long flags = ((MS_NOSUID | MS_NODEV) & ~opts->clear_flags) | opts->set_flags;
    unsigned out = 0;

    flags |= opts->read_only ? MS_RDONLY : 0;
    flags |= opts->access & FFS_ACCESS_NEVER ? MS_NOATIME : 0;
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        out |= flags & map[i].flag ? map[i].attribute : 0;
    return out;
}

static void block_mount_attach(struct block_mount *b, const struct options *opts, const char *name)
{
    int mount = fsmount(b->fs, FSMOUNT_CLOEXEC, attributes(opts));

    if (worked(b, mount, "fsmount"))
        worked(b, move_mount(mount, "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH), "move_mount");
    if (mount >= 0)
        close(mount);
}

static void mount_page(struct block_mount *b, const struct options *opts,
                       const struct fuse_args *args, const char *name)
{
    int page = loop_page_attach(&b->device);

    errno = page < 0 ? -page : 0;
    if (worked(b, page, "loop device") &&
        worked(b, b->connection = open("/dev/fuse", O_RDWR | O_CLOEXEC), "/dev/fuse") &&
        worked(b, b->fs = fsopen("fuseblk", FSOPEN_CLOEXEC), "fuseblk"))
        set_options(b, opts, args);
    if (!b->err)
        create_apart(b);
    if (!b->err)
        block_mount_attach(b, opts, name);
    if (page >= 0)
        close(page);
}

int block_mount(const struct options *opts, const struct fuse_args *args, const char *name,
                char *why, size_t len)
{
    struct block_mount b = {.fs = -1, .connection = -1};

    mount_page(&b, opts, args, name);
    if (b.fs >= 0)
        close(b.fs);
    free(b.source);
    if (!b.err)
        return b.connection;
    if (b.connection >= 0)
        close(b.connection);
    snprintf(why, len, "%s", b.step);
    return b.err;
}
