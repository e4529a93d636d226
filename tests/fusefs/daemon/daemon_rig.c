/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon's transfers without FUSE, over a simulated controller. */
#include "tests/fusefs/daemon/daemon_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/engine/gq_internal.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/buffer_readv.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "mkfs/mkfs_core.h"

#define IMAGE_BYTES (128u << 20)

struct rig {
    struct options opts;
    struct sim *sim;
    struct daemon daemon;
    struct ffs_inode *file;
    struct open_file *open;       /* with leases */
    _Atomic unsigned quarantined; /* stored by several transfer threads */
    bool unreachable, bounces;
    int image;
    char path[64];
};

/* Replaces fuse_notify.c: there is no kernel to notify. */
static struct rig_notified notified;

void notify_written(struct fuse_session *session, struct ffs_inode *inode, uint64_t offset,
                    uint64_t len, bool grew, char last)
{
    (void)session;
    (void)inode;
    notified = (struct rig_notified){notified.times + 1, offset, len, grew, last};
}

void notify_attr(struct fuse_session *session, uint64_t ino)
{
    (void)session;
    (void)ino;
}

void notify_pages(struct fuse_session *session, uint64_t ino, uint64_t offset, uint64_t len)
{
    (void)session;
    (void)ino;
    (void)offset;
    (void)len;
}

void notify_flush(struct daemon *d, struct ffs_inode *inode, uint64_t offset, uint64_t len)
{
    (void)d;
    (void)inode;
    (void)offset;
    (void)len;
}

struct rig_notified rig_notified(void)
{
    struct rig_notified n = notified;

    notified = (struct rig_notified){0};
    return n;
}

static int make_image(struct rig *r, uint64_t bytes, bool data_csum)
{
    struct mkfs_params params = {.uuid = "0123456789abcdef", .data_csum = data_csum};
    struct mkfs_plan plan;
    struct bd_dev *dev;

    r->image = memfd_create("image", MFD_CLOEXEC);
    if (r->image < 0 || ftruncate(r->image, (off_t)bytes) != 0)
        return -errno;
    snprintf(r->path, sizeof(r->path), "/proc/%d/fd/%d", (int)getpid(), r->image);
    int err = bd_file_open(r->path, BD_OPEN_EXCLUSIVE, 0, &dev);
    if (err)
        return err;
    params.uuid[6] = 0x40;
    params.uuid[8] = 0x80;
    err = mkfs_format(dev, &params, &plan);
    bd_close(dev);
    return err;
}

static int release_sim(void *context)
{
    struct rig *r = context;
    char text[2048];
    bool mistakes = sim_violations(r->sim) != 0;

    sim_violations_text(r->sim, text, sizeof(text));
    if (mistakes)
        fprintf(stderr, "%s", text);
    sim_free(r->sim);
    return mistakes ? -EPROTO : 0;
}

/*
 * First byte of the buffers of a rig with an unreachable drive; memory of the
 * driver starts at 0.
 */
#define UNREACHABLE_OFFSET 4096

static int (*map_any)(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova);

static int map_but_buffers(struct nvme_transport *t, const struct nvme_mem *mem, uint64_t *iova)
{
    return mem->fd_offset == UNREACHABLE_OFFSET ? -EFAULT : map_any(t, mem, iova);
}

static void hide_buffers(struct nvme_transport *t)
{
    static struct nvme_transport_ops ops;

    ops = *t->ops;
    map_any = ops.map;
    ops.map = map_but_buffers;
    t->ops = &ops;
}

static int open_stack(struct rig *r, const struct rig_config *config)
{
    struct reason why;
    struct drive drive = {.release = release_sim, .context = r};
    struct sim_config sim = {.ns[0] = {.path = r->path, .lba_size = 512},
                             .namespaces = 1,
                             .doorbell_stride = SIM_STRIDE_LINES,
                             .mdts = config->bytes_per_sec ? 65536 : 0,
                             .bytes_per_sec = config->bytes_per_sec};
    int err = sim_create(&sim, &r->sim, &drive.transport);

    if (err)
        return err;
    /* A mount has threads that use the transport. */
    if (config->unreachable)
        hide_buffers(drive.transport);
    err = stack_open(&r->opts, &drive, &r->daemon.stack, &why);
    if (err)
        fprintf(stderr, "%s\n", why.text);
    return err;
}

static int open_file(struct rig *r)
{
    struct ffs_inode *root;
    struct ffs_cred cred = {0, 0, 0};
    int err = ffs_iget(r->daemon.stack.fs, 1, &root);

    if (err)
        return err;
    err = ffs_mknod(root, "file", S_IFREG | 0644, 0, &cred, &r->file);
    ffs_iput(root, 1);
    return err;
}

static int open_leases(struct rig *r)
{
    int err = leases_open(&r->daemon, &r->daemon.leases);

    if (err)
        return err;
    ffs_iref(r->file, 1);
    if (file_new(&r->daemon, r->file, O_RDWR, false, &r->open) != 0)
        r->open = NULL;
    return r->open ? 0 : -ENOMEM;
}

static void close_leases(struct rig *r)
{
    files_free_all(&r->daemon);
    if (r->daemon.leases)
        leases_close(r->daemon.leases);
}

int rig_open(const struct rig_config *config, struct rig **out)
{
    struct rig *r = calloc(1, sizeof(*r));

    *out = r;
    r->opts = (struct options){.device = "image",
                               .name = {.kind = BD_KIND_FILE, .nsid = 1},
                               .gpu = config->gpu_off ? GPU_OFF : GPU_AUTO,
                               .executor = GQ_EXECUTOR_CPU,
                               .queues = 1,
                               .direct = config->leases ? DIRECT_ALL : DIRECT_NONE,
                               .depth = config->bytes_per_sec ? 4 : 0,
                               .max_buffers = config->max_buffers ? config->max_buffers : 1024,
                               .deadline_ms = config->deadline_ms ? config->deadline_ms : 10000,
                               .commit_s = 5};
    pthread_mutex_init(&r->daemon.bounces.lock, NULL);
    pthread_mutex_init(&r->daemon.files_lock, NULL);
    for (unsigned i = 0; i < config->gpus; i++)
        r->opts.gpus[r->opts.n_gpus++].ordinal = config->first_gpu + i;
    r->daemon.opts = &r->opts;
    int err =
        make_image(r, config->image_bytes ? config->image_bytes : IMAGE_BYTES, config->data_csum);
    if (!err)
        err = open_stack(r, config);
    if (err)
        return err;
    r->unreachable = config->unreachable;
    r->bounces = config->bounces;
    if (config->requires_gpu) /* the executor of the rig is no GPU */
        r->opts.gpu = GPU_REQUIRE;
    if (config->copied)
        r->daemon.stack.bounce.ctrlr = NULL;
    r->daemon.bounces.fs = r->daemon.stack.fs;
    err = buffers_open(r->opts.max_buffers, r->daemon.stack.gpus, &r->daemon.stack.bounce,
                       &r->daemon.buffers);
    if (!err)
        err = open_file(r);
    return err || !config->leases ? err : open_leases(r);
}

int rig_close(struct rig *r)
{
    close_leases(r);
    if (r->daemon.buffers)
        buffers_close(r->daemon.buffers);
    bounce_pool_free(&r->daemon.bounces);
    if (r->file)
        ffs_iput(r->file, 1);
    int err = r->daemon.stack.bdev ? stack_close(&r->daemon.stack) : 0;
    close(r->image);
    free(r);
    return err;
}

struct sim *rig_sim(struct rig *r)
{
    return r->sim;
}

int rig_reset(struct rig *r)
{
    struct nvme_ctrlr *c = r->daemon.stack.ctrlr;

    return nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c));
}

/* The block device has taken the first four queue pairs. */
uint16_t rig_gpu_queue(struct rig *r)
{
    (void)r;
    return 5;
}

int rig_fail(struct rig *r, enum sim_fault_kind kind, uint8_t opcode, uint16_t status,
             unsigned skip, unsigned times)
{
    struct sim_fault fault = {.kind = kind,
                              .opcode = opcode,
                              .match_opcode = true,
                              .qid = rig_gpu_queue(r),
                              .status = status,
                              .skip = skip,
                              .times = times};

    return sim_add_fault(rig_sim(r), &fault);
}

int rig_write_file(struct rig *r, uint64_t offset, const void *data, uint64_t len)
{
    return ffs_write(r->file, offset, data, len) == (ssize_t)len ? 0 : -EIO;
}

int rig_truncate(struct rig *r, uint64_t size)
{
    struct ffs_attr attr = {.size = size};
    int err = ffs_setattr(r->file, &attr, FFS_SET_SIZE, NULL);

    return err ? err : ffs_sync(r->daemon.stack.fs);
}

int rig_read_file(struct rig *r, uint64_t offset, void *data, uint64_t len)
{
    return ffs_read(r->file, offset, data, len) == (ssize_t)len ? 0 : -EIO;
}

int rig_flip(struct rig *r, uint64_t offset)
{
    struct ffs_segment s;
    unsigned char byte;

    if (ffs_extents(r->file, offset, &s, 1) != 1 || s.device == FFS_HOLE)
        return -EINVAL;
    off_t at = (off_t)(s.device + (offset - s.offset));
    if (pread(r->image, &byte, 1, at) != 1)
        return -errno;
    byte ^= 4;
    return pwrite(r->image, &byte, 1, at) == 1 ? 0 : -errno;
}

int rig_fragment(struct rig *r, uint64_t from, uint64_t to)
{
    int err = 0;

    for (uint64_t at = from; at < to && !err; at += 8192)
        err = ffs_fallocate(r->file, 0, at, 4096);
    return err;
}

uint64_t rig_free_bytes(struct rig *r)
{
    struct ffs_statfs st;

    ffs_statfs(r->daemon.stack.fs, &st);
    return st.free_blocks * 4096;
}

struct gpunvme_ioc_stats rig_stats(struct rig *r)
{
    struct gpunvme_ioc_stats stats = {0};

    op_totals_fill(&r->daemon.totals, &stats);
    return stats;
}

unsigned rig_bucket(uint64_t ns)
{
    return op_bucket(ns);
}

/* Sums after an operation that moved nothing, and one that moved 100 bytes, 40 by host memory. */
struct gpunvme_ioc_stats rig_stats_of_ops(void)
{
    struct op_totals totals = {0};
    struct gpunvme_ioc_stats out = {0};
    struct op nothing = {.totals = &totals, .kind = GPUNVME_OP_READ};
    struct op mixed = {.totals = &totals, .kind = GPUNVME_OP_WRITE};

    op_begin(&nothing);
    op_end(&nothing);
    op_begin(&mixed);
    mixed.bytes = 100;
    mixed.bounced = 40;
    mixed.path = GPUNVME_PATH_MIXED;
    op_end(&mixed);
    op_totals_fill(&totals, &out);
    return out;
}

/* --- GPUs ------------------------------------------------------------------------------------ */

static _Atomic bool gpus_lost[GPUS_MAX];
static const struct gq_exec_ops *cpu_ops;
static struct gq_exec_ops failing_ops;

static int start_unless_lost(struct gq_exec *x, struct gq_launch *l)
{
    return gpus_lost[x->gpu_uuid[15]] ? -EIO : cpu_ops->start(x, l);
}

static int fail_on_demand(struct rig *r, const uint8_t uuid[16])
{
    struct gpu *gpu;
    int err = gpus_take(r->daemon.stack.gpus, uuid, &gpu);

    if (err)
        return err;
    struct gq_exec *x = gpus_engine(gpu)->exec;
    if (x->ops != &failing_ops) {
        cpu_ops = x->ops;
        failing_ops = *cpu_ops;
        failing_ops.start = start_unless_lost;
        x->ops = &failing_ops;
    }
    gpus_give(gpu);
    return 0;
}

void rig_lose_gpu(struct rig *r, unsigned gpu, bool lost)
{
    (void)r;
    gpus_lost[gpu] = lost;
}

struct rig_gpu rig_gpu(struct rig *r, unsigned gpu)
{
    struct gpu_status s;

    gpus_status(r->daemon.stack.gpus, gpu, &s);
    return (struct rig_gpu){.open = s.open,
                            .lost = s.lost,
                            .bytes_read = s.stats.bytes_read,
                            .buffers = s.stats.buffers,
                            .queues = s.info.queues};
}

void rig_tend(struct rig *r)
{
    gpus_tend(r->daemon.stack.gpus);
}

static int add_memory_on(struct rig *r, const struct gq_mem *what, const uint8_t gpu[16],
                         uint32_t uid, struct rig_buffer *out)
{
    struct gq_mem mem = *what;

    mem.kind = GQ_MEM_FD;
    mem.fd = memfd_create("buffer", MFD_CLOEXEC);
    if (mem.fd < 0 || ftruncate(mem.fd, (off_t)(mem.offset + mem.len)) != 0)
        return -errno;
    *out = (struct rig_buffer){.len = mem.len};
    out->data = mmap(NULL, mem.len, PROT_READ | PROT_WRITE, MAP_SHARED, mem.fd, (off_t)mem.offset);
    int err =
        buffers_add(r->daemon.buffers, &mem, r->bounces ? NULL : gpu, uid, r, &out->id, &out->key);
    close(mem.fd);
    return err;
}

static int add_memory(struct rig *r, const struct gq_mem *mem, uint32_t uid, struct rig_buffer *out)
{
    return add_memory_on(r, mem, (const uint8_t[16]){0}, uid, out);
}

int rig_register_on(struct rig *r, unsigned gpu, uint64_t len, uint32_t uid, struct rig_buffer *out)
{
    const uint8_t uuid[16] = {[15] = (uint8_t)gpu};
    int err = fail_on_demand(r, uuid);

    return err ? err : add_memory_on(r, &(struct gq_mem){.len = len}, uuid, uid, out);
}

int rig_register(struct rig *r, uint64_t len, uint32_t uid, struct rig_buffer *out)
{
    struct gq_mem mem = {.offset = r->unreachable ? UNREACHABLE_OFFSET : 0, .len = len};

    return add_memory(r, &mem, uid, out);
}

int rig_register_list(struct rig *r, uint64_t len, uint32_t uid, struct rig_buffer *out)
{
    return add_memory(r, &(struct gq_mem){.len = len, .is_list = true}, uid, out);
}

void rig_set_bounces(struct rig *r, bool bounces)
{
    r->bounces = bounces;
}

int rig_unregister(struct rig *r, const struct rig_buffer *b, uint32_t uid)
{
    return buffers_remove(r->daemon.buffers, b->id, b->key, uid);
}

void rig_forget(struct rig_buffer *b)
{
    if (b->data && b->data != MAP_FAILED)
        munmap(b->data, b->len);
}

unsigned rig_buffers(struct rig *r)
{
    return buffers_count(r->daemon.buffers);
}

void rig_cancel_all(struct rig *r)
{
    buffers_cancel_all(r->daemon.buffers);
}

static unsigned quarantined(struct rig *r)
{
    struct gq_stats stats = {0};

    struct gq_engine *bounce = bounce_engine_opened(&r->daemon.stack.bounce);

    if (r->daemon.stack.gpus)
        gpus_stats(r->daemon.stack.gpus, &stats);
    else if (bounce)
        gq_engine_stats(bounce, &stats);
    return stats.quarantined;
}

unsigned rig_quarantined(struct rig *r)
{
    return r->quarantined;
}

static int run(struct rig *r, bool write, uint32_t uid, uint32_t cancel, struct gpunvme_ioc_rw *rw)
{
    struct transfer t = {
        .daemon = &r->daemon, .inode = r->file, .write = write, .uid = uid, .rw = *rw};

    atomic_init(&t.cancel, cancel);
    transfer_run(&t);
    r->quarantined = quarantined(r);
    if (t.needs_recovery)
        transfer_recover(&r->daemon);
    *rw = t.rw;
    return t.error;
}

int rig_transfer(struct rig *r, bool write, uint32_t uid, struct gpunvme_ioc_rw *rw)
{
    return run(r, write, uid, 0, rw);
}

int rig_transfer_cancelled(struct rig *r, bool write, struct gpunvme_ioc_rw *rw)
{
    return run(r, write, 0, 1, rw);
}

static int run_readv(struct rig *r, uint32_t uid, uint32_t cancel, struct gpunvme_ioc_readv *v)
{
    struct readv readv = {.t = {.daemon = &r->daemon, .inode = r->file, .uid = uid}, .v = *v};

    atomic_init(&readv.t.cancel, cancel);
    readv_run(&readv);
    r->quarantined = quarantined(r);
    if (readv.t.needs_recovery)
        transfer_recover(&r->daemon);
    *v = readv.v;
    return readv.t.error;
}

int rig_readv(struct rig *r, uint32_t uid, struct gpunvme_ioc_readv *v)
{
    return run_readv(r, uid, 0, v);
}

int rig_readv_cancelled(struct rig *r, struct gpunvme_ioc_readv *v)
{
    return run_readv(r, 0, 1, v);
}

int rig_lease_extents(struct rig *r, uint32_t uid, struct gpunvme_ioc_extent_lease *out)
{
    *out = (struct gpunvme_ioc_extent_lease){.flags = 0};
    return leases_add_extents(r->daemon.leases, r->open, uid, out);
}

int rig_lease_with(struct rig *r, uint32_t *flags)
{
    struct gpunvme_ioc_extent_lease lease = {.flags = *flags};
    int err = leases_add_extents(r->daemon.leases, r->open, 0, &lease);

    if (err)
        return err;
    *flags = lease.flags;
    return leases_end(r->daemon.leases, lease.id, lease.key, 0);
}

int rig_lease_end(struct rig *r, uint32_t uid, uint64_t id, uint64_t key)
{
    return leases_end(r->daemon.leases, id, key, uid);
}

int rig_lease_queue(struct rig *r, uint32_t uid, struct gpunvme_ioc_queue_lease *out)
{
    *out = (struct gpunvme_ioc_queue_lease){.queues = 1};
    return leases_add_queues(r->daemon.leases, r->open, uid, out);
}
