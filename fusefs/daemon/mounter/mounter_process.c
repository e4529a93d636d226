/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The mounter's process handles one request after another until the daemon has
 * exited.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include "fusefs/daemon/mounter/mounter_process.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <fuse_opt.h>
#include <linux/loop.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/fuse/session_init.h"
#include "fusefs/daemon/mounter/writeback.h"
#include "fusefs/daemon/start/mount_options.h"
#include "support/child.h"
#include "support/fd_message.h"
#include "support/std_files.h"

/* --- A loop device --------------------------------------------------------------------------- */

#define PAGE 4096u
/* Limits the attempts, since another process may take the free device first. */
#define TRIES 16u

static int loop_page_make_page(void)
{
    int fd = memfd_create("gpunvmefs", MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, PAGE) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

/*
 * Attaches the page to the device that the kernel reports as free. Returns a
 * descriptor, or -EBUSY if another process has taken the device.
 */
static int mounter_loop_page_attach(int control, int page)
{
    const struct loop_config config = {
        .fd = (unsigned)page, .block_size = PAGE, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    char path[32];
    int number = ioctl(control, LOOP_CTL_GET_FREE);

    if (number < 0)
        return -errno;
    snprintf(path, sizeof(path), "/dev/loop%d", number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, LOOP_CONFIGURE, &config) == 0)
        return fd;
    int err = -errno;
    close(fd);
    return err;
}

/*
 * Attaches a page of zeros in memory to a free loop device, and stores its
 * number in *device. The kernel detaches the page when the last descriptor and
 * the last mount of the device are closed, also after SIGKILL. Returns a
 * descriptor, which the caller closes, or -errno.
 */
static int loop_page_attach(dev_t *device)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int page = control < 0 ? -errno : loop_page_make_page();
    int fd = page < 0 ? page : -EBUSY;
    struct stat st;

    for (unsigned i = 0; page >= 0 && fd == -EBUSY && i < TRIES; i++)
        fd = mounter_loop_page_attach(control, page);
    if (page >= 0)
        close(page);
    if (control >= 0)
        close(control);
    if (fd >= 0 && fstat(fd, &st) == 0)
        *device = st.st_rdev;
    return fd;
}

/* --- The mount ------------------------------------------------------------------------------- */

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

/*
 * Mounts on `name`, a path of one component in the working directory, with
 * libfuse's options in args. Returns the connection, which the caller closes,
 * or -errno. After an error nothing is mounted, and `why` names the step that
 * failed, and the error.
 */
static int block_mount(const struct options *opts, const struct fuse_args *args, const char *name,
                       struct reason *why)
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
    return reason_set(why, b.err, "%s: %s", b.step, strerror(-b.err));
}

/* --- Read-ahead ------------------------------------------------------------------------------ */

/*
 * Opens the setting of the mount's backing device. Its name in sysfs is the
 * device number in statx(2), with a suffix for a fuseblk mount, whose block
 * device has an entry of its own.
 */
static int open_setting(const char *mountpoint)
{
    struct statx st;
    char name[64];
    int fd = -1;

    if (statx(AT_FDCWD, mountpoint, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, 0, &st) != 0)
        return -1;
    for (unsigned i = 0; i < 2 && fd < 0; i++) {
        snprintf(name, sizeof(name), "/sys/class/bdi/%u:%u%s/read_ahead_kb", st.stx_dev_major,
                 st.stx_dev_minor, i == 0 ? "-fuseblk" : "");
        fd = open(name, O_WRONLY | O_CLOEXEC);
    }
    return fd;
}

/*
 * Raises the window of the mount at `mountpoint`. Must precede the reply to
 * INIT, whose max_readahead lowers the window; therefore no request is sent to
 * the mount. Returns the bytes set, or 0 without privilege or sysfs.
 */
static uint32_t readahead_raise(const char *mountpoint, uint32_t bytes)
{
    char text[16];
    int fd = open_setting(mountpoint);

    if (fd < 0)
        return 0;
    int len = snprintf(text, sizeof(text), "%u", bytes / 1024);
    ssize_t n = write(fd, text, (size_t)len);
    close(fd);
    return n == len ? bytes : 0;
}

/* --- Requests of the daemon ------------------------------------------------------------------ */

/*
 * Holds the state of the process. Before it mounts, the process changes its
 * working directory to the parent of the mountpoint. Later calls name the
 * mountpoint by one component, so renamed directories above it, or a symbolic
 * link in place of one, do not lead to another mount; the kernel does not
 * rename a mountpoint.
 */
struct process {
    int socket;
    struct options opts;   /* a copy; the daemon's options own the memory */
    struct fuse_args args; /* a copy */
    char *name;            /* "./NAME": the mountpoint in the working directory */
    struct statx root;     /* stx_mnt_id and device of the mount */
};

int mounter_receive(int socket, void *data, size_t len)
{
    for (char *at = data; len > 0;) {
        ssize_t n = TEMP_FAILURE_RETRY(recv(socket, at, len, 0));
        if (n <= 0)
            return n < 0 ? -errno : -EPIPE;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

int mounter_send(int socket, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t n = TEMP_FAILURE_RETRY(send(socket, at, len, MSG_NOSIGNAL));
        if (n < 0)
            return -errno;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Sends an answer with a descriptor, or without one if fd is -1. */
static int send_answer(int socket, const struct mounter_answer *answer, int fd)
{
    ssize_t n = fd_message_send(socket, answer, sizeof(*answer), &fd, fd >= 0, 0);

    if (n < 0)
        return -errno;
    return mounter_send(socket, (const char *)answer + n, sizeof(*answer) - (size_t)n);
}

/* Stores the attributes of the name in *st. Sends no request to the mount. */
static int mounter_process_look(const struct process *p, struct statx *st)
{
    int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;

    return statx(AT_FDCWD, p->name, flags, STATX_MNT_ID, st) == 0 ? 0 : -errno;
}

/* Returns true if the mount at the name is the one that this process made. */
static bool is_ours(const struct process *p)
{
    struct statx st;

    return p->name && mounter_process_look(p, &st) == 0 && st.stx_mnt_id == p->root.stx_mnt_id &&
           st.stx_dev_major == p->root.stx_dev_major && st.stx_dev_minor == p->root.stx_dev_minor;
}

/*
 * Changes the working directory to the parent of the mountpoint, whose path is
 * absolute and has no symbolic links.
 */
static int go_to_mountpoint(struct process *p)
{
    char *path = strdup(p->opts.mountpoint);
    char *slash = path ? strrchr(path, '/') : NULL;
    int err = slash ? 0 : -ENOMEM;

    if (!err && asprintf(&p->name, "./%s", slash + 1) < 0)
        err = -ENOMEM;
    if (!err) {
        slash[slash == path] = '\0'; /* the root directory keeps its slash */
        err = chdir(path) == 0 ? 0 : -errno;
    }
    free(path);
    return err;
}

/*
 * Sets the flags of the mount that libfuse does not pass on. Without
 * strictatime and nodiratime the kernel shows relatime, which a later remount
 * would take for intended; kernels before 5.12 still show it. libfuse before
 * 3.17 does not know nosymfollow. The mount serves no request yet, and this
 * function sends none. Returns 0, or -errno if nosymfollow is not set.
 */
static int set_attributes(const struct process *p)
{
    const struct options *opts = &p->opts;
    struct mount_attr attr = {.attr_set = 0};

    if (opts->access & FFS_ACCESS_FILES_ONLY)
        attr.attr_set = MOUNT_ATTR_NODIRATIME;
    if (opts->access & FFS_ACCESS_ALWAYS) {
        attr.attr_set |= MOUNT_ATTR_STRICTATIME;
        attr.attr_clr = MOUNT_ATTR__ATIME;
    }
    if (opts->set_flags & MS_NOSYMFOLLOW)
        attr.attr_set |= MOUNT_ATTR_NOSYMFOLLOW;
    if (!attr.attr_set || mount_setattr(AT_FDCWD, p->name, 0, &attr, sizeof(attr)) == 0)
        return 0;
    return opts->set_flags & MS_NOSYMFOLLOW ? -errno : 0;
}

/*
 * libfuse's session is never freed: it contains the object that unmounts for
 * the option auto_unmount when this process exits.
 */
static int mount_plainly(const struct process *p, struct mounter_answer *answer, int *fd)
{
    log_capture();
    struct fuse_session *session = session_new(&p->args, NULL);
    int err = session && fuse_session_mount(session, p->name) == 0 ? 0 : -EIO;
    log_captured(answer->why.text, sizeof(answer->why.text));
    if (!err)
        *fd = fuse_session_fd(session);
    return err;
}

/*
 * Mounts with the type fuseblk if possible. A container may lack loop devices
 * or the right to mount that type.
 */
static int mount_either(const struct process *p, struct mounter_answer *answer, int *fd)
{
    const struct options *opts = &p->opts;
    struct reason why;

    if (opts->block == BLOCK_OFF || (geteuid() != 0 && opts->block == BLOCK_AUTO))
        return mount_plainly(p, answer, fd);
    *fd = block_mount(opts, &p->args, p->name, &why);
    if (*fd >= 0)
        return 0;
    if (opts->block == BLOCK_REQUIRE)
        return reason_set(&answer->why, *fd, "blkdev: %s", why.text);
    log_line(LOG_NOTICE,
             "%s: mounted as fuse, not fuseblk (%s): umount.fuse.gpunvmefs waits for the last "
             "writes, umount(2) does not",
             opts->mountpoint, why.text);
    return mount_plainly(p, answer, fd);
}

static int mount_here(struct process *p, uint32_t readahead, struct mounter_answer *answer, int *fd)
{
    int err = go_to_mountpoint(p);

    if (!err)
        err = mount_either(p, answer, fd);
    if (!err)
        err = mounter_process_look(p, &p->root);
    if (err)
        return err;
    err = set_attributes(p);
    if (err) {
        reason_set(&answer->why, err, "nosymfollow: %s", strerror(-err));
        close(*fd);
        *fd = -1;
        umount2(p->name, MNT_DETACH | UMOUNT_NOFOLLOW);
        return err;
    }
    std_files_leave(); /* a mount must not keep the caller's terminal open */
    answer->readahead = readahead_raise(p->name, readahead);
    return 0;
}

#define HELPER_MS 600000u /* an unmount writes dirty pages first */

static int run_helper(char *const argv[])
{
    int status = child_run(argv, HELPER_MS);

    if (status == -ETIMEDOUT)
        log_line(LOG_WARNING, "%s: it has not ended in ten minutes", argv[0]);
    else if (status < 0)
        return -EPERM;
    return status > 0 ? -EBUSY : status;
}

/*
 * Without privilege only set-id helpers can unmount. fusermount3 needs
 * /etc/mtab, but umount does not.
 */
static int unmount_by_helper(char *path, bool lazily)
{
    char *fuse[] = {"fusermount3", "-u", "-q", lazily ? "-z" : "--", path, NULL};
    char *plain[] = {"umount", "-q", lazily ? "-l" : "--", path, NULL};

    int err = run_helper(fuse);

    return !err || err == -ETIMEDOUT ? err : run_helper(plain);
}

static int unmount_here(const struct process *p, bool lazily)
{
    int flags = UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0);

    if (!is_ours(p))
        return -EINVAL; /* the error of umount2(2) for a directory */
    if (geteuid() != 0)
        return unmount_by_helper(p->name, lazily);
    return umount2(p->name, flags) == 0 ? 0 : -errno;
}

/*
 * The kernel names a connection by the device number of the mount, as it
 * encodes it internally.
 */
static bool abort_by_control(const struct statx *root)
{
    char path[64];

    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort",
             root->stx_dev_major << 20 | root->stx_dev_minor);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = write(fd, "1", 1) == 1;
    close(fd);
    return done;
}

/*
 * Without fusectl, MNT_FORCE also aborts the connection, even if it returns
 * EBUSY. It needs privilege.
 */
static int abort_here(const struct process *p)
{
    if (abort_by_control(&p->root))
        return 0;
    if (!is_ours(p))
        return -EINVAL;
    return umount2(p->name, MNT_FORCE | UMOUNT_NOFOLLOW) == 0 ? 0 : -errno;
}

static int write_back_here(const struct process *p, const struct mounter_request *request)
{
    if (request->count > MOUNTER_TARGETS_MAX)
        return -EINVAL;
    struct sync_target *targets = calloc(request->count + 1u, sizeof(*targets));
    int err =
        targets ? mounter_receive(p->socket, targets, request->count * sizeof(*targets)) : -ENOMEM;
    if (err) {
        free(targets);
        return err;
    }
    return writeback_files(p->name, targets, request->count, request->value);
}

/* Adds the option ro, which the daemon's command line did not have. */
static int become_read_only(struct process *p)
{
    p->opts.read_only = true;
    return fuse_opt_add_arg(&p->args, "-oro") == 0 ? 0 : -ENOMEM;
}

/* Returns 0, or -errno if the answer did not reach the daemon. */
static int serve_one(struct process *p, const struct mounter_request *request)
{
    struct mounter_answer answer = {.err = -EINVAL};
    int fd = -1;

    switch (request->ask) {
    case MOUNTER_MOUNT:
        answer.err = mount_here(p, request->value, &answer, &fd);
        break;
    case MOUNTER_MOUNT_READ_ONLY:
        answer.err = become_read_only(p);
        if (!answer.err)
            answer.err = mount_here(p, request->value, &answer, &fd);
        break;
    case MOUNTER_UNMOUNT:
    case MOUNTER_DETACH:
        answer.err = unmount_here(p, request->ask == MOUNTER_DETACH);
        break;
    case MOUNTER_ABORT:
        answer.err = abort_here(p);
        break;
    case MOUNTER_WRITE_BACK:
        answer.err = write_back_here(p, request);
        break;
    default:
        break;
    }
    int err = send_answer(p->socket, &answer, fd);
    if (fd >= 0)
        close(fd); /* only the daemon holds it, so the connection ends with it */
    return err;
}

static void *mounter_process_relay(void *socket)
{
    log_relay(*(const int *)socket);
    return NULL;
}

static void *mounter_process_answer(void *socket)
{
    callers_serve(*(const int *)socket);
    return NULL;
}

_Noreturn void mounter_serve(const struct mounter_sockets *sockets, const struct options *opts,
                             const struct fuse_args *args)
{
    struct process p = {
        .socket = sockets->requests, .opts = *opts, .args = FUSE_ARGS_INIT(0, NULL)};
    struct mounter_request request;
    pthread_t relay, answer;

    for (int i = 0; i < args->argc; i++) {
        if (fuse_opt_add_arg(&p.args, args->argv[i]) != 0)
            _exit(1);
    }
    prctl(PR_SET_NAME, "gpunvmefs-mount");
    if (pthread_create(&relay, NULL, mounter_process_relay, (void *)&sockets->logs) != 0 ||
        pthread_create(&answer, NULL, mounter_process_answer, (void *)&sockets->callers) != 0)
        _exit(1);
    while (mounter_receive(p.socket, &request, sizeof(request)) == 0) {
        if (serve_one(&p, &request) != 0)
            break;
    }
    shutdown(sockets->callers, SHUT_RDWR);
    pthread_join(answer, NULL);
    shutdown(sockets->logs, SHUT_RD); /* lines that were sent before are still received */
    pthread_join(relay, NULL);
    _exit(0);
}
