/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens and closes the layers below the session: controller, block device,
 * executor, and file system.
 */
#include "fusefs/daemon/start/stack.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <syslog.h>
#include <unistd.h>

#include "blockdev/data_check.h"
#include "blockdev/vfio/vfio.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "layout/layout.h"
#include "support/clock.h"

/* --- Self-test ------------------------------------------------------------------------------- */

#define LIST_BYTES (DATA_CHECK_PIECES * sizeof(struct gq_read_desc))
#define PATH_BYTES (DATA_CHECK_BUFFER + LIST_BYTES)

/*
 * Describes a buffer followed by a list in one file, registered as an
 * application does.
 */
struct test_path {
    struct stack *s;
    struct gq_engine *engine;
    struct gq_buffer *buffer, *list;
    int fd;
    unsigned char *data;
};

static int engine_read(void *context, uint64_t offset, size_t at, size_t len)
{
    const struct test_path *r = context;
    const struct gq_file_extent extent = {.lba = offset / r->s->engine_info.lba_size};
    const struct gq_request req = {.op = GQ_READ,
                                   .buffer = r->buffer,
                                   .buffer_offset = at,
                                   .len = len,
                                   .extents = &extent,
                                   .n_extents = 1,
                                   .end = len};
    struct gq_result result;
    int err = gq_transfer(r->engine, &req, &result);

    return data_check_error(err, result.nvme_status);
}

static int engine_read_list(void *context, const struct data_check_piece *pieces, size_t n)
{
    const struct test_path *r = context;
    const struct gq_file_extent extent = {.lba = 0};
    const struct gq_readv req = {.buffer = r->buffer,
                                 .extents = &extent,
                                 .n_extents = 1,
                                 .end = r->s->bdev->info.bytes,
                                 .list = r->list,
                                 .n = n,
                                 .most = DATA_CHECK_BUFFER,
                                 .odd_most = DATA_CHECK_BUFFER};
    struct gq_read_desc *desc = gq_buffer_list(r->list);
    struct gq_result result;

    for (size_t i = 0; i < n; i++)
        desc[i] = (struct gq_read_desc){
            .file_offset = pieces[i].offset, .at = pieces[i].at, .len = (uint32_t)pieces[i].len};
    int err = gq_readv(r->engine, &req, &result);
    return data_check_error(!err && result.partial ? -EIO : err, result.nvme_status);
}

static int register_both(struct test_path *r)
{
    struct gq_mem mem = {.kind = GQ_MEM_FD, .fd = r->fd, .len = DATA_CHECK_BUFFER};
    struct gq_mem list = {.kind = GQ_MEM_FD,
                          .fd = r->fd,
                          .offset = DATA_CHECK_BUFFER,
                          .len = LIST_BYTES,
                          .is_list = true};
    int err = gq_buffer_register(r->engine, &mem, &r->buffer);

    if (err)
        return err;
    err = gq_buffer_register(r->engine, &list, &r->list);
    if (err)
        gq_buffer_unregister(r->buffer);
    return err;
}

static int test_path_open(struct stack *s, struct gq_engine *e, struct test_path *r)
{
    int err;

    *r = (struct test_path){
        .s = s, .engine = e, .fd = memfd_create("gpunvme-selftest", MFD_CLOEXEC)};
    if (r->fd < 0)
        return -errno;
    if (ftruncate(r->fd, PATH_BYTES))
        goto close_fd;
    r->data = mmap(NULL, PATH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (r->data == MAP_FAILED)
        goto close_fd;
    err = register_both(r);
    if (!err)
        return 0;
    munmap(r->data, PATH_BYTES);
    close(r->fd);
    return err;

close_fd:
    err = -errno;
    close(r->fd);
    return err;
}

static void test_path_close(struct test_path *r)
{
    gq_buffer_unregister(r->list);
    gq_buffer_unregister(r->buffer);
    munmap(r->data, PATH_BYTES);
    close(r->fd);
}

static int check_engine(struct stack *s, struct gq_engine *e, uint64_t start, struct reason *why)
{
    struct test_path r;
    int err = test_path_open(s, e, &r);

    if (err) /* as for applications, which then take the bounce path */
        return 0;
    struct data_check check = {.path = "commands of the executor",
                               .read = engine_read,
                               .read_list = engine_read_list,
                               .context = &r,
                               .buffer = r.data,
                               .max_command = s->engine_info.max_command,
                               .start = start};
    err = data_check_run(s->bdev, &check, why);
    test_path_close(&r);
    return err;
}

/*
 * Checks the first GPU's executor. Others run the same code on the same
 * controller.
 */
static int check_gpus(struct stack *s, uint64_t start, struct reason *why)
{
    static const uint8_t any[16];
    struct gpu *gpu;
    int err = gpus_take(s->gpus, any, &gpu);

    if (err)
        return 0;
    err = check_engine(s, gpus_engine(gpu), start, why);
    gpus_uncount(s->gpus);
    gpus_give(gpu);
    return err;
}

static bool is_verdict(int err)
{
    return err == -EILSEQ || err == -EPROTO || err == -ENOMEM;
}

/*
 * Returns the byte offset of the log, whose pages differ from each other, since
 * mkfs and transactions never write two equal ones. Returns 0 without a valid
 * label, which the mount reports later.
 */
static uint64_t log_at(const struct stack *s)
{
    struct lay_label label;

    return ffs_read_label(s->bdev, &label) ? 0 : lay_get64(label.logs[0]) << LAY_BLOCK_SHIFT;
}

/*
 * Tests the controller through both kinds of queues (blockdev/data_check.h),
 * before it handles an application's data.
 * Returns -EILSEQ for wrong data or -EPROTO for a refused shape of command,
 * with a sentence in why, -ENOMEM, or 0. Other failures also return 0: the code
 * that needs the data reports them. Precondition: controller and block device
 * are open, and the file system is not.
 */
static int selftest_run(struct stack *s, struct reason *why)
{
    uint64_t start = log_at(s);
    size_t most = nvme_ctrlr_info(s->ctrlr)->max_transfer;

    *why = (struct reason){0};
    int err = data_check_device(s->bdev, start, most, false, why);
    if (!is_verdict(err) && s->gpus) {
        *why = (struct reason){0};
        err = check_gpus(s, start, why);
    }
    return is_verdict(err) ? err : 0;
}

/* --- The stack ------------------------------------------------------------------------------- */

/* Limits of the default size of the metadata cache, in bytes. */
#define CACHE_LEAST ((size_t)64 << 20)
#define CACHE_MOST  ((size_t)4 << 30)
/*
 * Queue pairs of the ordinary path: at most CPU_QUEUES, and at most half of the
 * controller's.
 */
#define CPU_QUEUES 4u
#define CPU_DEPTH  128

/* A drive with two queue pairs uses one for each path. */
unsigned stack_cpu_queues(const struct stack *s)
{
    unsigned half = nvme_ctrlr_info(s->ctrlr)->io_queues / 2;

    if (half == 0)
        return 1;
    return half < CPU_QUEUES ? half : CPU_QUEUES;
}

static int stack_reserve(const struct options *opts, struct stack *s, struct reason *why)
{
    enum bd_reserve how = (enum bd_reserve)opts->reservation;

    if (opts->read_only)
        return 0;
    int err = s->ctrlr ? bd_reserve(s->ctrlr, opts->name.nsid, how, why)
                       : bd_reserve_disk(s->drive.bdev, s->drive.host_id, how, why);
    if (err < 0)
        return err;
    s->reserved_nsid = err && s->ctrlr ? opts->name.nsid : 0;
    if (!err && why->text[0])
        log_line(LOG_WARNING, "%s: %s; only multi-mount protection guards it", s->device,
                 why->text);
    return 0;
}

static int open_blocks(const struct options *opts, struct stack *s, struct reason *why)
{
    struct nvme_opts nvme = {
        .admin_timeout_ms = opts->deadline_ms, .io_timeout_ms = opts->deadline_ms, .why = why};

    if (!s->drive.transport) {
        s->bdev = s->drive.bdev;
        return stack_reserve(opts, s, why);
    }
    int err = nvme_ctrlr_open(s->drive.transport, &nvme, &s->ctrlr);
    if (err)
        return bd_refuse_ctrlr(s->drive.transport, err, why);
    err = stack_reserve(opts, s, why);
    return err ? err
               : bd_open_namespace(s->ctrlr, opts->name.nsid, stack_cpu_queues(s), CPU_DEPTH,
                                   &s->bdev, why);
}

/* Mounts a write-protected namespace read-only, as mount(8) does. */
static void follow_protection(const struct options *opts, struct stack *s)
{
    s->protected = s->bdev->info.read_only;
    if (s->protected && !opts->read_only)
        log_line(LOG_WARNING, "%s: write-protected, mounting read-only", s->device);
    s->bdev->info.read_only |= opts->read_only;
}

static void explain_engine(const struct stack *s, const char *name, int err, struct reason *why)
{
    if (err != -ENOSPC)
        reason_set(why, err, "%s", strerror(-err));
    else if (nvme_ctrlr_info(s->ctrlr)->io_queues == 1)
        reason_set(
            why, err,
            "the controller's only I/O queue pair is the file system's, gpu=require lends it");
    else if (!bd_lacks_regions(s->ctrlr, why))
        reason_set(why, err, "the controller has no queue pair left for it");
    reason_set(why, err, "the %s does not start: %s", name, why->text);
}

/* Reports why there is no CUDA device. */
static int refuse_cpu(const struct options *opts, const struct stack *s, int err,
                      struct reason *why)
{
    if (gq_probe(0, why) == 0)
        explain_engine(s, "CUDA executor", err, why);
    return reason_set(why, -ENODEV, "%s: %s",
                      opts->gpu == GPU_REQUIRE ? "gpu=require" : "executor=cuda", why->text);
}

static unsigned stack_bounce_queues(const struct options *opts, const struct stack *s, bool alone)
{
    return bounce_engine_queues(opts, alone,
                                nvme_ctrlr_info(s->ctrlr)->io_queues - stack_cpu_queues(s));
}

/*
 * Returns the number of queue pairs of all executors together. They leave some
 * to the bounce engine, and with leases half of the queue pairs.
 */
static unsigned engine_room(const struct options *opts, const struct stack *s)
{
    unsigned rest = nvme_ctrlr_info(s->ctrlr)->io_queues - stack_cpu_queues(s);

    rest -= stack_bounce_queues(opts, s, false);
    return opts->direct == DIRECT_NONE ? rest : rest / 2;
}

static enum gq_executor_kind stack_executor_of(const struct options *opts, bool demanded)
{
    if (demanded)
        return GQ_EXECUTOR_CUDA;
    return opts->executor == EXECUTOR_CPU_STAGED ? GQ_EXECUTOR_CPU
                                                 : (enum gq_executor_kind)opts->executor;
}

/* Returns the device if its only queue pair is lent to an executor that was asked for. */
static struct bd_dev *stack_lender(const struct options *opts, const struct stack *s)
{
    bool asked = opts->gpu == GPU_REQUIRE || opts->executor != GQ_EXECUTOR_AUTO;

    return asked && nvme_ctrlr_info(s->ctrlr)->io_queues == 1 ? s->bdev : NULL;
}

static struct gpus_config gpus_config_of(const struct options *opts, const struct stack *s,
                                         bool demanded)
{
    struct gpus_config config = {
        .ctrlr = s->ctrlr,
        .nsid = opts->name.nsid,
        .options = {.p2p = (enum gq_p2p)opts->p2p,
                    .n_cpu_memories = s->drive.n_cpu_memories,
                    .executor = stack_executor_of(opts, demanded),
                    .doorbells = (enum gq_doorbells)opts->doorbells,
                    .queues = opts->queues,
                    .depth = opts->depth,
                    .deadline_ms = opts->deadline_ms,
                    .max_buffers = opts->max_buffers,
                    .cpu_device_memory = opts->executor == EXECUTOR_CPU_STAGED,
                    .lender = stack_lender(opts, s)},
        .room = engine_room(opts, s),
        .idle_ms = GPUS_IDLE_MS,
        .wait_ms = GPUS_WAIT_MS,
        .must_reach = opts->p2p == P2P_REQUIRE,
        .device = s->device,
        .names = opts->gpus,
        .n_names = opts->n_gpus};

    if (opts->name.kind != BD_KIND_VFIO || pci_parse(opts->name.path, config.drive) != 0)
        config.drive[0] = '\0';
    memcpy(config.options.cpu_memories, s->drive.cpu_memories, sizeof(s->drive.cpu_memories));
    return config;
}

static int open_engine(const struct options *opts, struct stack *s, struct reason *why)
{
    bool demanded = opts->gpu == GPU_REQUIRE || opts->executor == GQ_EXECUTOR_CUDA;

    if (opts->gpu == GPU_OFF) {
        reason_set(&s->no_engine, 0, "gpu=off");
        return 0;
    }
    if (!s->ctrlr) {
        reason_set(&s->no_engine, 0,
                   "the device is driven by the kernel, not by an NVMe controller of this mount");
        return demanded ? reason_set(why, -ENODEV, "%s", s->no_engine.text) : 0;
    }
    if (nvme_ctrlr_transport(s->ctrlr)->physical) {
        reason_set(&s->no_engine, 0,
                   "noiommu: the drive reaches no memory but the daemon's own, transfers take the "
                   "bounce path");
        return demanded ? reason_set(why, -ENODEV, "%s", s->no_engine.text) : 0;
    }
    struct gpus_config config = gpus_config_of(opts, s, demanded);
    int err = gpus_open(&config, &s->gpus, &s->engine_info);
    if (err == -ENOTSUP && opts->doorbells == GQ_DOORBELLS_DIRECT)
        return reason_set(why, err,
                          "doorbells=direct: the executor cannot reach them, use auto or cpu");
    if (err && demanded)
        return refuse_cpu(opts, s, err, why);
    if (err) {
        explain_engine(s, "executor", err, &s->no_engine);
        log_line(LOG_WARNING, "%s: %s, transfers take the bounce path", s->device,
                 s->no_engine.text);
    }
    return 0;
}

/*
 * Fails if p2p=require is set and the drive does not reach device memory, with
 * the sentence that INFO reports.
 */
static int check_reach(const struct options *opts, const struct stack *s, struct reason *why)
{
    if (opts->p2p != P2P_REQUIRE || s->engine_info.reaches)
        return 0;
    return reason_set(why, -ENOTSUP, "p2p=require: %s",
                      s->gpus ? s->engine_info.tier_note : s->no_engine.text);
}

/*
 * The block device and the executor are also users of the controller, and stop
 * and resume themselves.
 */
static void stack_stop(struct nvme_user *u)
{
    (void)u;
}

static void stack_resume(struct nvme_user *u, int err)
{
    struct stack *s = (struct stack *)((char *)u - offsetof(struct stack, watcher));

    if (err) {
        log_line(LOG_CRIT, "%s: %s", s->device,
                 nvme_ctrlr_replaced(s->ctrlr)
                     ? "the namespace or the controller was replaced by another one, which gets no "
                       "write of this mount; unmount, and mount again what is meant"
                 : nvme_ctrlr_taken(s->ctrlr)
                     ? "another host has reserved the namespace, which gets no more write of this "
                       "mount; unmount, what was not durable is lost"
                     : "the drive is gone or does not come back after a reset");
        ffs_device_lost(s->fs);
    } else {
        log_line(LOG_WARNING, "%s: the drive failed and was reset, commands in flight are repeated",
                 s->device);
    }
}

static void stack_watch(struct stack *s)
{
    if (!s->ctrlr)
        return;
    s->watcher = (struct nvme_user){.stop = stack_stop, .resume = stack_resume};
    nvme_ctrlr_add_user(s->ctrlr, &s->watcher);
    s->watching = true;
}

/*
 * Returns the bytes of clean metadata to keep. A machine with more memory is
 * likely to use more files.
 */
static size_t cache_bytes(const struct options *opts)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t part = pages > 0 && page > 0 ? (size_t)pages * (size_t)page / 32 : 0;

    if (opts->cache_mib)
        return (size_t)opts->cache_mib << 20;
    return part < CACHE_LEAST ? CACHE_LEAST : part > CACHE_MOST ? CACHE_MOST : part;
}

/* Time from the end of a scrub to the next. */
#define SCRUB_PAUSE_MS (24 * 3600 * MS_PER_S)

int stack_scrub(const struct stack *s, uint64_t rate)
{
    if (rate > 0 && !s->bdev->info.read_only)
        return ffs_scrub_start(s->fs, rate, SCRUB_PAUSE_MS);
    ffs_scrub_stop(s->fs);
    return 0;
}

static int mount_fs(const struct options *opts, struct stack *s, struct reason *why)
{
    struct ffs_mount_opts mount = {.access = opts->access,
                                   .read_only = s->bdev->info.read_only,
                                   .commit_ms = opts->commit_s * 1000,
                                   .cache_bytes = cache_bytes(opts),
                                   .discard = opts->discard,
                                   .mmp = opts->mmp,
                                   .log = log_text};

    *why = (struct reason){0}; /* earlier steps may have left a note */
    int err = ffs_mount(s->bdev, &mount, &s->fs, why);
    if (err == -ENOMEM && s->ctrlr && nvme_ctrlr_transport(s->ctrlr)->physical)
        vfio_no_large_page(why);
    else if (err == -ENOMEM && s->ctrlr)
        (void)bd_lacks_regions(s->ctrlr, why);
    if (err)
        return err;
    if (opts->discard && !s->bdev->info.discards)
        log_line(LOG_WARNING, "%s: discard: the drive has no such command", s->device);
    struct ffs_statfs fs;
    ffs_statfs(s->fs, &fs);
    s->data_csum = fs.data_csum;
    if (s->data_csum && s->gpus)
        gpus_sum_parts(s->gpus);
    err = stack_scrub(s, opts->scrub_rate);
    return err ? reason_set(why, err, "cannot start the scrub: %s", strerror(-err)) : 0;
}

int stack_open(const struct options *opts, const struct drive *drive, struct stack *out,
               struct reason *why)
{
    *why = (struct reason){0};
    *out = (struct stack){.drive = *drive, .device = opts->device};
    int err = open_blocks(opts, out, why);
    if (!err)
        follow_protection(opts, out);
    /* This runs in the sandbox, because libblkid parses data that anyone may have written. */
    if (!err)
        err = ffs_ours(out->bdev, false, why);
    if (!err)
        err = open_engine(opts, out, why);
    if (!err)
        err = check_reach(opts, out, why);
    if (!err && out->ctrlr)
        err = selftest_run(out, why);
    if (!err)
        err = mount_fs(opts, out, why);
    if (err) {
        stack_close(out);
        return reason_set(why, err, "%s: %s", opts->device,
                          why->text[0] ? why->text : strerror(-err));
    }
    bounce_engine_init(&out->bounce, out->ctrlr, opts, !out->gpus,
                       out->ctrlr ? stack_bounce_queues(opts, out, !out->gpus) : 0, out->data_csum);
    stack_watch(out);
    return err;
}

/*
 * Closes in reverse order. The queues of engines precede the block device's,
 * and both precede the controller, whose close closes the transport.
 */
int stack_close(struct stack *s)
{
    if (s->watching)
        nvme_ctrlr_remove_user(s->ctrlr, &s->watcher);
    int err = s->fs ? ffs_unmount(s->fs) : 0;
    bounce_engine_close(&s->bounce);
    if (s->gpus)
        gpus_close(s->gpus);
    if (s->bdev)
        bd_close(s->bdev);
    else if (s->drive.bdev)
        bd_close(s->drive.bdev);
    if (s->reserved_nsid)
        nvme_unreserve(s->ctrlr, s->reserved_nsid);
    if (s->ctrlr)
        nvme_ctrlr_close(s->ctrlr);
    else if (s->drive.transport)
        s->drive.transport->ops->close(s->drive.transport);
    for (unsigned i = 0; i < s->drive.n_cpu_memories; i++)
        close(s->drive.cpu_memories[i]);
    int end = s->drive.release ? s->drive.release(s->drive.context) : 0;
    *s = (struct stack){0};
    return err ? err : end;
}
