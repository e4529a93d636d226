/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvmefs mounts a file system on an NVMe drive and serves GPU reads and
 * writes of its files.
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/fuse/session_init.h"
#include "fusefs/daemon/ioctl/remount.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/open_drive.h"
#include "fusefs/daemon/session/fuse_session.h"
#include "fusefs/daemon/session/shutdown.h"
#include "fusefs/daemon/start/background.h"
#include "fusefs/daemon/start/mount_options.h"
#include "support/option_words.h"
#include "support/std_files.h"

static bool is_write_protected(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int set = 0;

    if (fd >= 0 && ioctl(fd, BLKROGET, &set) != 0)
        set = 0; /* an image */
    if (fd >= 0)
        close(fd);
    if (set)
        return true;
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0 &&
           (errno == EROFS || errno == EACCES || errno == EPERM);
}

/*
 * Mounts a write-protected device read-only, as mount(8) does. Returns 0 or -1.
 */
static int follow_write_protection(struct options *opts, struct fuse_args *args)
{
    if (opts->read_only || bd_name_is_ctrlr(&opts->name) || !is_write_protected(opts->name.path))
        return 0;
    opts->read_only = true;
    log_line(LOG_WARNING, "%s: write-protected, mounting read-only", opts->name.path);
    return fuse_opt_add_arg(args, "-oro");
}

/* Checks that libfuse accepts the options that gpunvmefs left to it. */
static int check_arguments(const struct fuse_args *args)
{
    struct reason why;

    if (session_check_arguments(args, &why) == 0)
        return 0;
    log_text(LOG_ERR, why.text);
    return EXIT_USAGE;
}

/*
 * Checks before the fork, so that messages reach the terminal, and the status
 * reaches the calling process.
 */
static int check_start(struct options *opts, struct fuse_args *args)
{
    int status = check_arguments(args);
    struct reason why;

    if (status)
        return status;
    status = open_drive_check(opts);
    if (status)
        return status;
    if (follow_write_protection(opts, args) != 0)
        return EXIT_SYSTEM;
    if (session_check_mountpoint(opts, &why) != 0) {
        log_text(LOG_ERR, why.text);
        return EXIT_MOUNT;
    }
    return 0;
}

/*
 * A registered buffer uses up to two descriptors, so the soft limit is raised
 * to the hard one.
 */
static void allow_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/*
 * From now on helpers gain no privilege by set-id bits. This is not done for a
 * user's daemon, whose fusermount3 needs its set-id bit.
 */
static void give_up_privileges(void)
{
    if (geteuid() == 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static int gpunvmefs_serve(struct options *opts, const struct fuse_args *args, int status_fd)
{
    struct drive drive;
    struct mounter mounter;
    int status = EXIT_MOUNT;
    int err = mounter_start(&mounter, opts, args, status_fd);

    if (err) {
        log_line(LOG_ERR, "the process that mounts does not start: %s", strerror(-err));
        status = EXIT_SYSTEM;
    } else if (session_listen(opts) == 0 && open_drive(opts, &drive) == 0) {
        return session_run(opts, args, &drive, &mounter, status_fd);
    }
    mounter_end(&mounter);
    if (status_fd >= 0)
        background_failed(status_fd, status);
    return status;
}

static int gpunvmefs_start(struct options *opts, struct fuse_args *args)
{
    int status_fd = -1;
    int status = check_start(opts, args);

    if (status)
        return status;
    shutdown_block_signals();
    int err = opts->foreground ? 0 : background_start(&status_fd);
    if (err) {
        log_line(LOG_ERR, "cannot go into the background: %s", strerror(-err));
        return EXIT_SYSTEM;
    }
    ffs_mmp_prepare();
    allow_descriptors();
    give_up_privileges();
    /* The sandbox has no /proc. The file continues to show changes. */
    opts->mountinfo = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (opts->noiommu)
        session_warn_noiommu(opts);
    return gpunvmefs_serve(opts, args, status_fd);
}

static int print_version(void)
{
    printf("gpunvmefs %s, libfuse %s\n", GPUNVME_VERSION, fuse_pkgversion());
    return 0;
}

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct options opts;
    int status = EXIT_USAGE;

    if (std_files_fill() != 0)
        return EXIT_SYSTEM;
    if (option_words_requested(argc, argv)) {
        options_complete(argc - 2, argv + 2);
        return 0;
    }
    log_take_libfuse();
    if (options_parse(&opts, &args) != 0) {
        log_text(LOG_ERR, opts.problem.text);
    } else if (opts.help) {
        options_print_help();
        status = 0;
    } else if (opts.version) {
        status = print_version();
    } else if (opts.remount) {
        status = check_arguments(&args);
        if (!status)
            status = remount_run(&opts);
    } else {
        status = gpunvmefs_start(&opts, &args);
    }
    options_free(&opts);
    fuse_opt_free_args(&args);
    return status;
}
