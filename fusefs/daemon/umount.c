/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * umount.fuse.gpunvmefs is the helper of umount(8) for mounts of gpunvmefs. The
 * kernel does not wait for the daemon of a mount of type fuse, so this program
 * does. It has no privileges of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpunvme/gpunvme_ioctl.h"
#include "support/child.h"

/* These are exit statuses of umount(8). */
#define EXIT_USAGE 1
#define EXIT_FAIL  32

/* Time until a message is printed, and maximum wait. */
#define QUIET_MS   5000
#define PATIENT_MS 600000

struct unmount {
    const char *target;
    const char *space; /* argument of -N */
    bool lazily, forced;
    char flags[8]; /* of umount(8), as "-fl" */
};

static int umount_refuse(const char *object, const char *what)
{
    fprintf(stderr, "umount.fuse.gpunvmefs: %s: %s\n", object, what);
    return EXIT_FAIL;
}

static int connect_to(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strnlen(name, sizeof(address.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || len < 2 || len == sizeof(address.sun_path))
        return fd;
    memcpy(address.sun_path + 1, name + 1, len - 1); /* "@NAME" is the abstract name NAME */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (connect(fd, (const struct sockaddr *)&address, size) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Returns a descriptor of the daemon's process, or -1 if it is unknown. */
static int open_daemon(int root)
{
    struct gpunvme_ioc_info info = {.abi = {sizeof(info), GPUNVME_ABI_VERSION}};
    struct ucred peer = {.pid = 0};
    socklen_t len = sizeof(peer);

    if (ioctl(root, GPUNVME_IOC_INFO, &info) != 0)
        return -1;
    int fd = connect_to(info.socket);
    if (fd < 0)
        return -1;
    int err = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
    int process = -1;
    if (err == 0 && peer.pid > 0) /* 0: a process of another PID namespace */
        process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    close(fd);
    return process;
}

/*
 * Commits, so that this program can report an error. Returns a descriptor of
 * the daemon's process, or -1 for the mount of a dead daemon.
 */
static int commit(const struct unmount *u, int *status)
{
    int root = open(u->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int process = root < 0 ? -1 : open_daemon(root);

    if (process >= 0 && fsync(root) != 0)
        *status = umount_refuse(u->target, "the last changes cannot be made durable, see the log");
    if (root >= 0)
        close(root);
    return process;
}

/*
 * Runs umount(8) without helpers; it has the privilege to unmount for users.
 * Returns its exit status.
 */
static int run_umount(const struct unmount *u)
{
    char *argv[8] = {"umount", "-i"};
    int n = 2;

    if (u->flags[1])
        argv[n++] = (char *)u->flags;
    if (u->space) {
        argv[n++] = "-N";
        argv[n++] = (char *)u->space;
    }
    argv[n++] = "--";
    argv[n++] = (char *)u->target;
    int status = child_run(argv, PATIENT_MS);
    if (status == -ETIMEDOUT)
        return umount_refuse(u->target, "umount has not ended in ten minutes, see the log");
    return status < 0 ? umount_refuse("umount", strerror(-status)) : status;
}

/* Returns true if the process ends within ms milliseconds. */
static bool umount_has_ended(int process, int ms)
{
    struct pollfd p = {.fd = process, .events = POLLIN};

    return poll(&p, 1, ms) == 1;
}

static int umount_wait_for(const struct unmount *u, int process)
{
    if (umount_has_ended(process, QUIET_MS))
        return 0;
    fprintf(stderr, "umount.fuse.gpunvmefs: %s: unmounted, waiting for the daemon's last writes\n",
            u->target);
    if (umount_has_ended(process, PATIENT_MS))
        return 0;
    return umount_refuse(u->target,
                         "the daemon has not ended in ten minutes, see its log; what was not "
                         "synced may not be on the drive");
}

/*
 * Unmounts and waits. A daemon that hangs may answer neither open(2) nor
 * fsync(2), so a forced unmount sends it no request. A mount of another mount
 * namespace cannot be opened here.
 */
static int umount_unmount(const struct unmount *u)
{
    int status = 0;
    int process = u->forced || u->space ? -1 : commit(u, &status);
    int failed = run_umount(u);

    if (!failed && process >= 0 && !u->lazily)
        failed = umount_wait_for(u, process);
    if (process >= 0)
        close(process);
    return failed ? failed : status;
}

static int print_help(FILE *to)
{
    fputs("usage: umount.fuse.gpunvmefs MOUNTPOINT [-f] [-l] [-n] [-r] [-v] [-t TYPE] [-N SPACE]\n"
          "\n"
          "Unmounts, and waits until the daemon has written everything. The options are those of\n"
          "umount(8), which calls this program.\n",
          to);
    return to == stdout ? 0 : EXIT_USAGE;
}

/* Stores a flag that is passed on to umount(8). */
static void umount_pass(struct unmount *u, int flag)
{
    size_t len = strlen(u->flags);

    if (len + 1 < sizeof(u->flags) && !strchr(u->flags, flag))
        u->flags[len] = (char)flag;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'V'}, {0}};
    struct unmount u = {.flags = "-"};
    int c;

    while ((c = getopt_long(argc, argv, "flnrvt:N:hV", names, NULL)) != -1) {
        if (c == 'h')
            return print_help(stdout);
        if (c == 'V')
            return printf("umount.fuse.gpunvmefs %s\n", GPUNVME_VERSION) < 0;
        if (c == '?')
            return print_help(stderr);
        if (c == 'N')
            u.space = optarg;
        else if (c != 't')
            umount_pass(&u, c);
        u.lazily |= c == 'l';
        u.forced |= c == 'f';
    }
    if (optind + 1 != argc)
        return print_help(stderr);
    u.target = argv[optind];
    return umount_unmount(&u);
}
