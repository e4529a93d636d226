/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens the drive of a mount: an image behind the controller simulated in this process, a block
 * device of the kernel, or a controller. No other file of the daemon knows the simulator.
 */
#include "fusefs/daemon/open_drive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <syslog.h>

#include "blockdev/bd_kernel.h"
#include "blockdev/vfio/device_mem.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/start/placement.h"
#include "fusefs/daemon/start/sandbox.h"
#include "layout/format.h"
#include "support/lock_wait.h"
#include "support/numa.h"

#ifdef GPUNVME_HAVE_SIM
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/sim.h"
#endif

static int drive_refuse(const char *object, const char *what)
{
    log_line(LOG_ERR, "%s: %s", object, what);
    return -EINVAL;
}

#ifdef GPUNVME_HAVE_SIM

#define DEFAULT_LBA 512

/* Holds a drive simulated in this process. */
struct image {
    struct sim *sim;
    struct sim_cuda_dma *dma;
};

/*
 * The simulated controller checks the driver. Each violation is a bug in the
 * driver: it is logged and becomes the exit status.
 */
static int image_free(void *context)
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

static int image_check_options(const struct options *opts)
{
    struct sim_config config = {0};
    struct reason why;

    if (sim_options_parse(opts->drive_options, &config, &why) == 0)
        return 0;
    return drive_refuse("sim", why.text);
}

/*
 * Returns the number of GPUs that the drive will serve. Stores the NUMA node
 * for the drive's threads, or -1 if the GPUs are on several nodes.
 */
static unsigned image_gpus(const struct options *opts, int *node)
{
    unsigned n;

    *node = -1;
    if (opts->gpu == GPU_OFF || opts->executor >= GQ_EXECUTOR_CPU)
        return 0;
    n = placement_gpus("", node);
    return opts->n_gpus && opts->n_gpus < n ? opts->n_gpus : n;
}

/*
 * flush_to_disk is set because flushed data must survive a crash of the
 * machine, as on a drive.
 */
static int image_open(const struct options *opts, const char *path, struct drive *out)
{
    struct sim_config config = {
        .ns[0] = {.path = path, .lba_size = DEFAULT_LBA, .read_only = opts->read_only},
        .namespaces = 1,
        .doorbell_stride = SIM_STRIDE_LINES,
        .flush_to_disk = true,
        .log = log_text,
    };
    struct image *image = calloc(1, sizeof(*image));
    struct numa_stay stay;
    struct reason why = {"out of memory"};
    int node;

    config.gpus = image_gpus(opts, &node);
    int err = image ? sim_options_parse(opts->drive_options, &config, &why) : -ENOMEM;

    if (!err) {
        numa_enter("", node, 2 * (int)config.threads, &stay);
        err = sim_create(&config, &image->sim, &out->transport);
        numa_leave(&stay);
        reason_set(&why, 0, "cannot be opened: %s", strerror(-err));
    }
    if (err == -EBUSY)
        drive_refuse(path, "in use by another mount or tool, wait for it or unmount it first");
    else if (err)
        drive_refuse(path, why.text);
    if (err) {
        free(image);
        return err;
    }
    struct stat st;
    if (stat(path, &st) == 0) /* sim_create() has locked it */
        out->transport->lock = bd_lock_id(BD_LOCK_FILE, st.st_dev, st.st_ino);
    /* The CPU executor reaches no GPU, and its sandbox may exclude CUDA. */
    if (opts->executor < GQ_EXECUTOR_CPU)
        image->dma = sim_cuda_dma_new();
    sim_set_dma_engine(image->sim, sim_cuda_dma_table(image->dma));
    out->context = image;
    out->release = image_free;
    return 0;
}

#else

static int image_check_options(const struct options *opts)
{
    (void)opts;
    return 0;
}

static int image_open(const struct options *opts, const char *path, struct drive *out)
{
    (void)opts;
    (void)out;
    drive_refuse(path, "an image file, but this program was built without the simulated drive "
                       "(GPUNVME_SIM=OFF)");
    return -ENOTSUP;
}

#endif

static int drive_open_kernel(const struct options *opts, const char *path, struct drive *out)
{
    uint32_t flags = BD_OPEN_EXCLUSIVE | (opts->read_only ? BD_OPEN_READ_ONLY : 0);

    bd_host_id(&opts->name, out->host_id);
    int err = bd_file_open(path, flags, 0, &out->bdev);

    if (err == -EBUSY)
        drive_refuse(path, "in use: mounted, or open by another tool");
    else if (err)
        log_line(LOG_ERR, "%s: cannot be opened: %s", path, strerror(-err));
    return err;
}

static int drive_confine(void *opts, struct reason *why)
{
    return sandbox_enter(opts, NULL, why);
}

static int drive_open_memories(const struct options *opts, struct drive *out)
{
    struct reason why;

    for (unsigned i = 0; i < opts->n_cpu_memories; i++) {
        int fd = device_mem_open_bar("", opts->cpu_memories[i], &why);
        if (fd < 0) {
            log_line(LOG_ERR, "cpu_memory=%s: %s", opts->cpu_memories[i], why.text);
            return fd;
        }
        out->cpu_memories[out->n_cpu_memories++] = fd;
    }
    return 0;
}

/*
 * Opens the memory of devices before the sandbox, and reads the handshake of a
 * vfio-user server inside it. The caller closes *out after a failure.
 */
static int drive_open_controller(const struct options *opts, struct drive *out)
{
    struct reason why;
    const struct bd_open_opts how = {.noiommu = opts->noiommu,
                                     .device_memory = sandbox_may_use_p2p(opts),
                                     .deadline_ms = opts->deadline_ms,
                                     .silence_ms = opts->ctrl_loss_s * 1000,
                                     .opened = drive_confine,
                                     .arg = (void *)opts};
    int err = drive_open_memories(opts, out);

    if (err)
        return err;
    err = bd_open_transport(&opts->name, &how, &out->transport, &why);
    if (err)
        log_line(LOG_ERR, "%s: %s", opts->device, why.text);
    return err;
}

/* Accepts a block device, and a regular file large enough for a file system. */
static int drive_check_file(const struct options *opts, const struct stat *st)
{
    const char *path = opts->name.path;

    if (S_ISBLK(st->st_mode))
        return opts->nsid ? drive_refuse(path, "nsid=: driven by the kernel, which has one device "
                                               "for each namespace")
                          : 0;
    if (!S_ISREG(st->st_mode))
        return drive_refuse(path, "neither an image file nor a block device");
    if (st->st_size == 0)
        return drive_refuse(path, "empty file, make a file system with mkfs.gpunvme first");
    if ((uint64_t)st->st_size < (uint64_t)LAY_MIN_BLOCKS * LAY_BLOCK_SIZE)
        return drive_refuse(path, "too small to hold a file system; truncated, or no image");
    if (!opts->read_only && bd_loop_in_use(path))
        return drive_refuse(path, "in use through a loop device (losetup -j shows it)");
    return 0;
}

/* Checks the device path without opening it; *st describes the path. */
static int drive_check_path(const struct options *opts, struct stat *st)
{
    *st = (struct stat){0};
    if (opts->name.kind == BD_KIND_VFIO)
        return 0;
    if (stat(opts->name.path, st) != 0) {
        log_line(LOG_ERR, "%s: %s", opts->name.path, strerror(errno));
        return -errno;
    }
    if (opts->name.kind == BD_KIND_VFIO_USER)
        return S_ISSOCK(st->st_mode) ? 0 : drive_refuse(opts->name.path, "not a socket");
    return drive_check_file(opts, st);
}

/*
 * The parser of an image runs in the sandbox. Other drives are opened before
 * the sandbox is entered.
 */
static bool drive_is_image(const struct options *opts, const struct stat *st)
{
    return !bd_name_is_ctrlr(&opts->name) && S_ISREG(st->st_mode);
}

int open_drive_check(const struct options *opts)
{
    struct stat st;

    if (image_check_options(opts) != 0)
        return EXIT_USAGE;
    if (drive_check_path(opts, &st) != 0)
        return EXIT_MOUNT;
    if (!opts->drive_options || drive_is_image(opts, &st))
        return 0;
    drive_refuse("sim", "for image files only, leave it out");
    return EXIT_USAGE;
}

static int drive_enter_sandbox(const struct options *opts, const char *image)
{
    struct reason why;
    int err = sandbox_enter(opts, image, &why);

    if (err)
        log_line(LOG_ERR, "%s: %s", opts->device, why.text);
    return err;
}

static void drive_say_wait(const char *path)
{
    log_line(LOG_WARNING, "%s: unmounted, waiting for the last writes of its daemon", path);
}

int open_drive(const struct options *opts, struct drive *out)
{
    struct stat st;

    *out = (struct drive){0};
    int err = drive_check_path(opts, &st);
    if (err)
        return err;
    if (!bd_name_is_ctrlr(&opts->name))
        lock_wait(opts->name.path, opts->read_only ? LOCK_SH : LOCK_EX, drive_say_wait);
    if (drive_is_image(opts, &st)) {
        err = drive_enter_sandbox(opts, opts->name.path);
        return err ? err : image_open(opts, opts->name.path, out);
    }
    if (bd_name_is_ctrlr(&opts->name)) {
        err = drive_open_controller(opts, out);
    } else {
        err = drive_open_kernel(opts, opts->name.path, out);
        if (!err)
            err = drive_enter_sandbox(opts, NULL);
    }
    if (err) {
        struct stack stack = {.drive = *out};
        stack_close(&stack);
    }
    return err;
}
