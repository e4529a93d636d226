/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the CPU executor: the calling thread, or several threads, drive
 * the queues. The memory is host memory. In tests it may be memory of a device
 * that stands for a GPU.
 */
#include "cuda/exec_cpu/gq_cpu.h"

#include <assert.h>
#include <errno.h>
#include <isa-l/crc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "blockdev/vfio/device_mem.h"
#include "cuda/gq_host.h"
#include "cuda/gq_segments.h"
#include "support/clock.h"

#define PAGE_MASK       ((uint64_t)NVME_PAGE_SIZE - 1)
#define MAX_CPU_THREADS 64u

struct gq_cpu {
    struct gq_exec exec;
    struct nvme_transport *transport;
    void (*drive)(const struct gq_cpu_drive *d, unsigned first, unsigned step);
    unsigned threads;
    struct gq_state (*states)[GQ_MAX_QUEUES]; /* one row per run */
    struct gq_dealing *dealings;              /* one per run */
    int memories[GQ_CPU_MEMORIES];            /* see gq_options.cpu_memories */
    unsigned n_memories;
    struct gq_port ports[GQ_MAX_QUEUES];
};

static struct gq_cpu *cpu_of(struct gq_exec *x)
{
    return (struct gq_cpu *)x;
}

static int import_host(const struct gq_mem *mem, struct gq_import *out)
{
    uint64_t addr = (uint64_t)(uintptr_t)mem->addr;
    uint64_t end = addr + mem->len;

    if (!mem->addr || end < addr || end > UINT64_MAX - PAGE_MASK)
        return -EINVAL;
    out->head = addr & PAGE_MASK;
    out->base = addr - out->head;
    out->mem = (struct nvme_mem){
        .addr = (char *)mem->addr - out->head,
        .len = ((end + PAGE_MASK) & ~PAGE_MASK) - (addr - out->head),
        .fd = -1,
    };
    return 0;
}

static bool same_inode(int a, int b)
{
    struct stat first, second;

    return !fstat(a, &first) && !fstat(b, &second) && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static bool is_device_memory(const struct gq_cpu *cpu, int fd)
{
    for (unsigned i = 0; i < cpu->n_memories; i++) {
        if (same_inode(cpu->memories[i], fd))
            return true;
    }
    return false;
}

/*
 * Maps the memory for loads and stores of this executor. The controller gets
 * its handle, like that of GPU memory.
 */
static int import_device(const struct gq_cpu *cpu, const struct gq_mem *mem, struct gq_import *out)
{
    int err = is_device_memory(cpu, mem->fd) ? gq_host_import(mem, out) : -EINVAL;

    if (err)
        return err;
    out->mem.addr = NULL;
    out->mem.device = out->base;
    return 0;
}

/*
 * Maps parts of devices one after another, as the address space of a GPU has
 * its segments.
 */
static int import_segments(const struct gq_cpu *cpu, const struct gq_mem *mem,
                           struct gq_import *out)
{
    uint64_t len;
    size_t bad;
    int err = gq_segments_check(mem, &len);

    for (unsigned i = 0; i < mem->n_segments && !err; i++)
        err = is_device_memory(cpu, mem->segments[i].fd) ? 0 : -EINVAL;
    if (!err)
        err = gq_segments_describe(mem, 0, false, out);
    if (err)
        return err;
    out->mapping = device_mem_join(out->parts, out->mem.n_parts, &bad);
    if (out->mapping == MAP_FAILED) {
        gq_segments_forget(out);
        return -EFAULT;
    }
    out->map_len = out->mem.len;
    out->base = (uint64_t)(uintptr_t)out->mapping;
    out->mem.device = out->base;
    return 0;
}

static int cpu_device_page(struct gq_exec *x, struct gq_import *out)
{
    const struct gq_cpu *cpu = cpu_of(x);
    struct gq_mem page = {.kind = GQ_MEM_DEVICE, .fd = cpu->memories[0], .len = NVME_PAGE_SIZE};

    return import_device(cpu, &page, out);
}

static int cpu_import(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out)
{
    if (mem->kind == GQ_MEM_HOST)
        return import_host(mem, out);
    if (mem->kind == GQ_MEM_DEVICE)
        return import_device(cpu_of(x), mem, out);
    if (mem->kind == GQ_MEM_SEGMENTS)
        return import_segments(cpu_of(x), mem, out);
    return mem->kind == GQ_MEM_FD ? 0 : -ENOTSUP;
}

static void cpu_release(struct gq_exec *x, struct gq_import *imp)
{
    (void)x;
    gq_segments_forget(imp);
    gq_host_release(imp);
}

/* Ignores `host`, because all memory of this executor is host memory. */
static int cpu_staging_alloc(struct gq_exec *x, size_t len, bool host, struct gq_import *out)
{
    (void)x;
    (void)host;
    return gq_host_alloc(len, out);
}

static int cpu_shared_alloc(struct gq_exec *x, size_t len, void **out)
{
    size_t pages = (len + PAGE_MASK) & ~PAGE_MASK;

    (void)x;
    *out = aligned_alloc(NVME_PAGE_SIZE, pages);
    if (!*out)
        return -ENOMEM;
    memset(*out, 0, pages);
    return 0;
}

static void cpu_shared_free(struct gq_exec *x, void *addr)
{
    (void)x;
    free(addr);
}

static void cpu_port_remove(struct gq_exec *x, unsigned i)
{
    struct gq_port *port = &cpu_of(x)->ports[i];

    free(port->trackers);
    free(port->free_cids);
    *port = (struct gq_port){0};
}

static int cpu_port_add(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp)
{
    struct gq_port *port = &cpu_of(x)->ports[i];

    *port = (struct gq_port){
        .sq = qp->sq,
        .cq = qp->cq,
        .sq_doorbell = qp->sq_doorbell,
        .cq_doorbell = qp->cq_doorbell,
        .trackers = calloc(qp->depth, sizeof(*port->trackers)),
        .free_cids = calloc(qp->depth, sizeof(*port->free_cids)),
        .depth = qp->depth,
    };
    if (port->trackers && port->free_cids)
        return 0;
    cpu_port_remove(x, i);
    return -ENOMEM;
}

static int cpu_port_trackers(struct gq_exec *x, unsigned i, struct gq_tracker *out)
{
    const struct gq_port *port = &cpu_of(x)->ports[i];

    memcpy(out, port->trackers, (port->depth - 1) * sizeof(*out));
    return 0;
}

static struct gq_state *cpu_run_states(struct gq_exec *x, unsigned index)
{
    return cpu_of(x)->states[index];
}

struct drive_thread {
    struct gq_cpu *cpu;
    const struct gq_cpu_drive *drive;
    unsigned first, step;
    pthread_t thread;
};

static void *drive_main(void *arg)
{
    struct drive_thread *t = arg;

    t->cpu->drive(t->drive, t->first, t->step);
    return NULL;
}

/*
 * Drives all queues. The calling thread takes the first part, and each part for
 * which no thread could be created.
 */
static void drive_all(struct gq_cpu *cpu, const struct gq_cpu_drive *d)
{
    struct drive_thread threads[MAX_CPU_THREADS];
    unsigned n = cpu->threads < d->n ? cpu->threads : d->n, started = 1;

    assert(n > 0);
    for (unsigned i = 0; i < n; i++)
        threads[i] = (struct drive_thread){.cpu = cpu, .drive = d, .first = i, .step = n};
    while (started < n &&
           !pthread_create(&threads[started].thread, NULL, drive_main, &threads[started]))
        started++;
    drive_main(&threads[0]);
    for (unsigned i = started; i < n; i++)
        drive_main(&threads[i]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(threads[i].thread, NULL);
}

/*
 * Only prepares the run, because no thread runs alongside the caller; wait()
 * executes it. With proxied doorbells the proxy notifies the controller.
 */
static int cpu_start(struct gq_exec *x, struct gq_launch *l)
{
    l->run.kick = x->rings ? cpu_of(x)->transport : NULL;
    l->run.flags = &x->flags;
    l->run.dealing = &cpu_of(x)->dealings[l->index];
    l->started_ns = now_ns();
    return 0;
}

/*
 * Returns the outcome of a run that was cancelled or late before it began, with
 * no command posted; GQ_OUT_RUNNING if it may begin.
 */
static enum gq_outcome cpu_too_late(struct gq_launch *l)
{
    uint64_t passed = now_ns() - l->started_ns;

    if (l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED))
        return GQ_OUT_CANCELLED;
    if (!l->run.budget_ns)
        return GQ_OUT_RUNNING;
    if (passed >= l->run.budget_ns)
        return GQ_OUT_TIMED_OUT;
    l->run.budget_ns -= passed;
    return GQ_OUT_RUNNING;
}

static void lose_reads(const struct gq_launch *l)
{
    const struct gq_reads *reads = &l->list->reads;

    if (reads->is_part || !reads->desc)
        return;
    for (uint32_t i = 0; i < l->run.n_cmds; i++)
        reads->desc[i].result = -ECANCELED;
}

static int cpu_wait(struct gq_exec *x, struct gq_launch *l)
{
    struct gq_cpu *cpu = cpu_of(x);
    const struct gq_port *ports[GQ_MAX_QUEUES];
    struct gq_cpu_drive d = {&l->run,         ports,           l->states,
                             l->run.n_queues, &l->list->reads, l->queues};
    enum gq_outcome outcome = cpu_too_late(l);

    l->run.cancel = l->cancel;
    for (unsigned i = 0; i < d.n; i++) {
        ports[i] = &cpu->ports[l->queues[i]];
        l->states[i].outcome = outcome;
    }
    if (outcome == GQ_OUT_RUNNING)
        drive_all(cpu, &d);
    else
        lose_reads(l);
    return 0;
}

static int cpu_put(struct gq_exec *x, uint64_t dst, const void *src, size_t len)
{
    (void)x;
    memcpy((void *)(uintptr_t)dst, src, len);
    return 0;
}

static int cpu_get(struct gq_exec *x, void *dst, uint64_t src, size_t len)
{
    (void)x;
    memcpy(dst, (const void *)(uintptr_t)src, len);
    return 0;
}

static int cpu_sums(struct gq_exec *x, uint64_t base, const uint64_t *at, size_t n, uint32_t *sums)
{
    (void)x;
    for (size_t i = 0; i < n; i++) {
        uint64_t from = base + (at ? at[i] : i * GQ_SUM_BYTES);

        sums[i] = ~crc32_iscsi((unsigned char *)(uintptr_t)from, GQ_SUM_BYTES, ~0u);
    }
    return 0;
}

/* Does nothing, because host memory can be mapped while queues are driven. */
static void cpu_no_quiesce(struct gq_exec *x)
{
    (void)x;
}

static void cpu_close(struct gq_exec *x)
{
    free(cpu_of(x)->states);
    free(cpu_of(x)->dealings);
    free(x);
}

static const struct gq_exec_ops cpu_ops = {
    .import = cpu_import,
    .release = cpu_release,
    .staging_alloc = cpu_staging_alloc,
    .staging_free = cpu_release,
    .device_page = cpu_device_page,
    .shared_alloc = cpu_shared_alloc,
    .shared_free = cpu_shared_free,
    .port_add = cpu_port_add,
    .port_remove = cpu_port_remove,
    .port_trackers = cpu_port_trackers,
    .run_states = cpu_run_states,
    .start = cpu_start,
    .wait = cpu_wait,
    .put = cpu_put,
    .get = cpu_get,
    .sums = cpu_sums,
    .quiesce = cpu_no_quiesce,
    .resume = cpu_no_quiesce,
    .close = cpu_close,
};

int gq_cpu_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                struct gq_exec **out)
{
    unsigned lanes = opts->cpu_lanes == 32 ? 32 : 1;
    struct gq_cpu *cpu;

    if (opts->cpu_lanes > 1 && opts->cpu_lanes != 32)
        return -EINVAL;
    cpu = calloc(1, sizeof(*cpu));
    if (!cpu)
        return -ENOMEM;
    cpu->states = calloc(max_runs, sizeof(*cpu->states));
    cpu->dealings = calloc(max_runs, sizeof(*cpu->dealings));
    if (!cpu->states || !cpu->dealings) {
        cpu_close(&cpu->exec);
        return -ENOMEM;
    }
    cpu->exec = (struct gq_exec){.ops = &cpu_ops,
                                 .kind = GQ_EXECUTOR_CPU,
                                 .tier = opts->n_cpu_memories ? 2 : 1,
                                 .orders_writes = true,
                                 .gpu_uuid[15] = (uint8_t)opts->device};
    cpu->n_memories = opts->n_cpu_memories;
    memcpy(cpu->memories, opts->cpu_memories, sizeof(cpu->memories));
    cpu->exec.rings = opts->doorbells != GQ_DOORBELLS_CPU;
    if (!cpu->exec.rings)
        snprintf(cpu->exec.note, sizeof(cpu->exec.note), "%s", GQ_NOTE_REQUESTED);
    cpu->transport = nvme_ctrlr_transport(c);
    cpu->drive = lanes == 32 ? gq_cpu_drive_32 : gq_cpu_drive_1;
    cpu->threads = opts->cpu_threads ? opts->cpu_threads : 1;
    if (cpu->threads > MAX_CPU_THREADS)
        cpu->threads = MAX_CPU_THREADS;
    snprintf(cpu->exec.device, sizeof(cpu->exec.device), "CPU executor, %u lane%s", lanes,
             lanes == 1 ? "" : "s");
    *out = &cpu->exec;
    return 0;
}
