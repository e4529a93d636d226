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
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/fuse/session_init.h"
#include "fusefs/daemon/mounter/block_mount.h"
#include "fusefs/daemon/mounter/readahead.h"
#include "fusefs/daemon/mounter/writeback.h"
#include "fusefs/daemon/start/mount_options.h"

/*
 * State of the process. Before it mounts, the process changes its working
 * directory to the parent of the mountpoint. Later calls name the mountpoint by
 * one component, so renamed directories above it, or a symbolic link in place
 * of one, do not lead to another mount; the kernel does not rename a
 * mountpoint.
 */
struct process {
    int socket;
    const struct options *opts;
    const struct fuse_args *args;
    char *name;        /* "./NAME": the mountpoint in the working directory */
    struct statx root; /* stx_mnt_id and device of the mount */
};

int mounter_receive(int socket, void *data, size_t len)
{
    for (char *at = data; len > 0;) {
        ssize_t n = recv(socket, at, len, 0);
        if (n == 0)
            return -EPIPE;
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

int mounter_send(int socket, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t n = send(socket, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* Sends an answer with a descriptor, or without one if fd is -1. */
static int send_answer(int socket, const struct mounter_answer *answer, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)answer, .iov_len = sizeof(*answer)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        control.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fd))};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL);
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

/* True if the mount at the name is the one that this process made. */
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
    char *path = strdup(p->opts->mountpoint);
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
 * Closes the terminal and the pipes of the daemon's caller, which a mount must
 * not keep open.
 */
static void leave_terminal(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd <= 2 && null >= 0; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
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
    const struct options *opts = p->opts;
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
    struct fuse_session *session = session_new(p->args, NULL);
    int err = session && fuse_session_mount(session, p->name) == 0 ? 0 : -EIO;
    log_captured(answer->text, sizeof(answer->text));
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
    const struct options *opts = p->opts;
    char why[64];

    if (opts->block == BLOCK_OFF || (geteuid() != 0 && opts->block == BLOCK_AUTO))
        return mount_plainly(p, answer, fd);
    *fd = block_mount(opts, p->args, p->name, why, sizeof(why));
    if (*fd >= 0)
        return 0;
    if (opts->block == BLOCK_REQUIRE) {
        snprintf(answer->text, sizeof(answer->text), "blkdev: %s: %s", why, strerror(-*fd));
        return *fd;
    }
    log_line(LOG_NOTICE,
             "%s: mounted as fuse, not fuseblk (%s: %s): umount.fuse.gpunvmefs waits for the last "
             "writes, umount(2) does not",
             opts->mountpoint, why, strerror(-*fd));
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
        snprintf(answer->text, sizeof(answer->text), "nosymfollow: %s", strerror(-err));
        close(*fd);
        *fd = -1;
        umount2(p->name, MNT_DETACH | UMOUNT_NOFOLLOW);
        return err;
    }
    leave_terminal();
    answer->readahead = readahead_raise(p->name, readahead);
    return 0;
}

static int run_helper(char *const argv[])
{
    pid_t pid;
    int status;

    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
        return -EPERM;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -EPERM;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

/*
 * Without privilege only set-id helpers can unmount. fusermount3 needs
 * /etc/mtab, but umount does not.
 */
static int unmount_by_helper(char *path, bool lazily)
{
    char *fuse[] = {"fusermount3", "-u", "-q", lazily ? "-z" : "--", path, NULL};
    char *plain[] = {"umount", "-q", lazily ? "-l" : "--", path, NULL};

    return run_helper(fuse) == 0 ? 0 : run_helper(plain);
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

static void serve_one(struct process *p, const struct mounter_request *request)
{
    struct mounter_answer answer = {.err = -EINVAL};
    int fd = -1;

    switch (request->ask) {
    case MOUNTER_MOUNT:
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
    if (send_answer(p->socket, &answer, fd) != 0)
        _exit(1);
    if (fd >= 0)
        close(fd); /* only the daemon holds it, so the connection ends with it */
}

_Noreturn void mounter_serve(int socket, const struct options *opts, const struct fuse_args *args)
{
    struct process p = {.socket = socket, .opts = opts, .args = args};
    struct mounter_request request;

    prctl(PR_SET_NAME, "gpunvmefs-mount");
    while (mounter_receive(socket, &request, sizeof(request)) == 0)
        serve_one(&p, &request);
    _exit(0);
}
