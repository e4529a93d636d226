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
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "blockdev/bd_loop.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/fuse/session_init.h"
#include "fusefs/daemon/ioctl/remount.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/session/fuse_session.h"
#include "fusefs/daemon/session/shutdown.h"
#include "fusefs/daemon/start/background.h"
#include "fusefs/daemon/start/mount_options.h"
#include "fusefs/daemon/start/sandbox.h"
#include "layout/format.h"
#include "support/lock_wait.h"
#include "support/processors.h"
#include "support/std_files.h"

#ifdef GPUNVME_HAVE_SIM
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/sim.h"
#endif

static int refuse(const char *object, const char *what)
{
    log_line(LOG_ERR, "%s: %s", object, what);
    return -EINVAL;
}

#ifdef GPUNVME_HAVE_SIM

#define DEFAULT_LBA 512

/* A drive simulated in this process. */
struct image {
    struct sim *sim;
    struct sim_cuda_dma *dma;
};

/*
 * The simulated controller checks the driver. Each violation is a bug in the
 * driver: it is logged and becomes the exit status.
 */
static int free_image(void *context)
{
    struct image *image = context;
    char text[2048];
    char *rest = text;
    uint64_t mistakes = sim_violations(image->sim);

    sim_violations_text(image->sim, text, sizeof(text));
    for (char *line; mistakes && (line = strsep(&rest, "\n"));) {
        if (*line)
            log_line(LOG_ERR, "driver mistake: %s", line);
    }
    sim_free(image->sim);
    sim_cuda_dma_free(image->dma);
    free(image);
    return mistakes ? -EPROTO : 0;
}

/*
 * Two threads nearly saturate a GPU's link, four do; a small machine
 * spares one.
 */
static unsigned default_threads(void)
{
    unsigned processors = processors_allowed();

    return processors >= 16 ? 4 : processors >= 8 ? 2 : 1;
}

/*
 * flush_to_disk: flushed data must survive a crash of the machine, as on a
 * drive.
 */
static int open_image(const struct options *opts, const char *path, struct drive *out)
{
    struct sim_config config = {
        .ns[0] = {.path = path,
                  .lba_size = opts->sim_lba ? opts->sim_lba : DEFAULT_LBA,
                  .read_only = opts->read_only},
        .namespaces = 1,
        .threads = opts->sim_threads ? opts->sim_threads : default_threads(),
        .mdts = opts->sim_mdts,
        .no_device_memory = opts->sim_no_gpu,
        .doorbell_stride = SIM_STRIDE_LINES,
        .latency_ns = opts->sim_latency_us * 1000ull,
        .bytes_per_sec = (uint64_t)opts->sim_bandwidth_mib << 20,
        .flush_to_disk = true,
        .log = log_text,
    };
    struct image *image = calloc(1, sizeof(*image));
    int err = image ? sim_create(&config, &image->sim, &out->transport) : -ENOMEM;

    if (err == -EBUSY)
        refuse(path, "in use by another mount or tool, wait for it or unmount it first");
    else if (err)
        log_line(LOG_ERR, "%s: cannot be opened: %s", path, strerror(-err));
    if (err) {
        free(image);
        return err;
    }
    out->context = image;
    out->release = free_image;
    image->dma = sim_cuda_dma_new();
    return sim_set_dma_engine(image->sim, sim_cuda_dma_table(image->dma));
}

#else

static int open_image(const struct options *opts, const char *path, struct drive *out)
{
    (void)opts;
    (void)out;
    refuse(path, "an image file, but this program was built without the simulated drive "
                 "(GPUNVME_SIM=OFF)");
    return -ENOTSUP;
}

#endif

static int open_kernel_device(const struct options *opts, const char *path, struct drive *out)
{
    uint32_t flags = BD_OPEN_EXCLUSIVE | (opts->read_only ? BD_OPEN_READ_ONLY : 0);
    int err = bd_file_open(path, flags, 0, &out->bdev);

    if (err == -EBUSY)
        refuse(path, "in use: mounted, or open by another tool");
    else if (err)
        log_line(LOG_ERR, "%s: cannot be opened: %s", path, strerror(-err));
    return err;
}

static int open_controller(const struct options *opts, struct drive *out)
{
    char why[512];
    const struct bd_open_opts how = {.noiommu = opts->noiommu,
                                     .deadline_ms = opts->deadline_ms,
                                     .silence_ms = opts->ctrl_loss_s * 1000};
    int err = bd_open_transport(&opts->name, &how, &out->transport, why, sizeof(why));

    if (err)
        log_line(LOG_ERR, "%s: %s", opts->device, why);
    return err;
}

/* Accepts a block device, and a regular file large enough for a file system. */
static int check_file(const struct options *opts, const struct stat *st)
{
    const char *path = opts->name.path;
    bool sim = opts->name.kind == BD_KIND_SIM;

    if (S_ISBLK(st->st_mode) && !sim)
        return opts->nsid ? refuse(path, "nsid=: driven by the kernel, which has one device for "
                                         "each namespace")
                          : 0;
    if (!S_ISREG(st->st_mode))
        return refuse(path, sim ? "not an image file" : "neither an image file nor a block device");
    if (st->st_size == 0)
        return refuse(path, "empty file, make a file system with mkfs.gpunvme first");
    if ((uint64_t)st->st_size < (uint64_t)LAY_MIN_BLOCKS * LAY_BLOCK_SIZE)
        return refuse(path, "too small to hold a file system; truncated, or no image");
    if (!opts->read_only && bd_loop_in_use(st))
        return refuse(path, "in use through a loop device (losetup -j shows it)");
    return 0;
}

/* Checks of the device path that need no open; *st describes the path. */
static int check_device(const struct options *opts, struct stat *st)
{
    *st = (struct stat){0};
    if (opts->name.kind == BD_KIND_VFIO)
        return 0;
    if (stat(opts->name.path, st) != 0) {
        log_line(LOG_ERR, "%s: %s", opts->name.path, strerror(errno));
        return -errno;
    }
    if (opts->name.kind == BD_KIND_VFIO_USER)
        return S_ISSOCK(st->st_mode) ? 0 : refuse(opts->name.path, "not a socket");
    return check_file(opts, st);
}

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

/* The parser of an image runs in the sandbox; other drives are opened before. */
static bool is_image(const struct options *opts, const struct stat *st)
{
    return !bd_name_is_ctrlr(&opts->name) && S_ISREG(st->st_mode);
}

static int enter_sandbox(const struct options *opts, const char *image)
{
    char why[256];
    int err = sandbox_enter(opts, image, why, sizeof(why));

    if (err)
        log_line(LOG_ERR, "%s: %s", opts->device, why);
    return err;
}

static void say_wait(const char *path)
{
    log_line(LOG_WARNING, "%s: unmounted, waiting for the last writes of its daemon", path);
}

static int open_drive(const struct options *opts, struct drive *out)
{
    struct stat st;

    *out = (struct drive){0};
    int err = check_device(opts, &st);
    if (err)
        return err;
    if (!bd_name_is_ctrlr(&opts->name))
        lock_wait(opts->name.path, opts->read_only ? LOCK_SH : LOCK_EX, say_wait);
    if (is_image(opts, &st)) {
        err = enter_sandbox(opts, opts->name.path);
        return err ? err : open_image(opts, opts->name.path, out);
    }
    if (bd_name_is_ctrlr(&opts->name))
        err = open_controller(opts, out);
    else
        err = open_kernel_device(opts, opts->name.path, out);
    if (!err) {
        struct stack stack = {.drive = *out};
        err = enter_sandbox(opts, NULL);
        if (err)
            stack_close(&stack);
    }
    return err;
}

/* Does libfuse take the options that gpunvmefs left to it? */
static int check_arguments(const struct fuse_args *args)
{
    char why[512];

    if (session_check_arguments(args, why, sizeof(why)) == 0)
        return 0;
    log_text(LOG_ERR, why);
    return EXIT_USAGE;
}

/*
 * Checks before the fork, so that messages reach the terminal, and the status
 * reaches the calling process.
 */
static int check_start(struct options *opts, struct fuse_args *args)
{
    int status = check_arguments(args);
    char why[512];
    struct stat st;

    if (status)
        return status;
    if (check_device(opts, &st) != 0)
        return EXIT_MOUNT;
    if (follow_write_protection(opts, args) != 0)
        return EXIT_SYSTEM;
    if (session_check_mountpoint(opts, why, sizeof(why)) != 0) {
        log_text(LOG_ERR, why);
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

/*
 * Called before the sandbox, which has no network, and after the fork of the
 * mounter, so that the port is closed when this process exits.
 */
static int listen_for_metrics(struct options *opts)
{
    if (!opts->metrics.len)
        return 0;
    int fd = metrics_listen(&opts->metrics);
    if (fd < 0) {
        log_line(LOG_ERR, "metrics: the port cannot be bound: %s", strerror(-fd));
        return fd;
    }
    opts->metrics_listener = fd;
    return 0;
}

static int serve(struct options *opts, const struct fuse_args *args, int status_fd)
{
    struct drive drive;
    struct mounter mounter;
    int status = EXIT_MOUNT;
    int err = mounter_start(&mounter, opts, args, status_fd);

    if (err) {
        log_line(LOG_ERR, "the process that mounts does not start: %s", strerror(-err));
        status = EXIT_SYSTEM;
    } else if (listen_for_metrics(opts) == 0 && open_drive(opts, &drive) == 0) {
        return session_run(opts, args, &drive, &mounter, status_fd);
    }
    mounter_end(&mounter);
    if (status_fd >= 0)
        background_failed(status_fd, status);
    return status;
}

static int start(struct options *opts, struct fuse_args *args)
{
    int status_fd = -1;
    int status = check_start(opts, args);

    if (status)
        return status;
    int err = opts->foreground ? 0 : background_start(&status_fd);
    if (err) {
        log_line(LOG_ERR, "cannot go into the background: %s", strerror(-err));
        return EXIT_SYSTEM;
    }
    shutdown_block_signals();
    allow_descriptors();
    give_up_privileges();
    if (opts->noiommu)
        session_warn_noiommu(opts);
    return serve(opts, args, status_fd);
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
    log_take_libfuse();
    if (options_parse(&opts, &args) != 0) {
        log_text(LOG_ERR, opts.problem);
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
        status = start(&opts, &args);
    }
    options_free(&opts);
    fuse_opt_free_args(&args);
    return status;
}
