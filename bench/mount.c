#include "bench/mount.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *who, const char *object, int err, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", who, object, what);
    return err;
}

/* In GPU memory the buffer is ours, so that kernels of this process read it as any other. */
static int open_buffer(struct bench_mount *m, uint64_t bytes)
{
    bool on_gpu = m->info.executor == GPUNVME_EXECUTOR_CUDA;
    int err;

    if (on_gpu) {
        err = bench_memory_alloc(&m->memory, true, bytes);
        return err ? err : gpunvme_register(m->g, m->memory.addr, bytes, &m->buffer);
    }
    err = gpunvme_alloc(m->g, bytes, &m->buffer);
    if (!err)
        m->memory = (struct bench_memory){.addr = gpunvme_buffer_addr(m->buffer), .len = bytes};
    return err;
}

int bench_mount_open(struct bench_mount *m, const char *who, const char *dir, uint64_t bytes)
{
    int err;

    *m = (struct bench_mount){.g = NULL};
    err = gpunvme_connect(dir, &m->g);
    if (err == -ENOTTY) {
        m->g = NULL;
        err = bench_memory_alloc(&m->memory, bench_gpu_name() != NULL, bytes);
        return err ? fail(who, "memory", err, strerror(-err)) : 0;
    }
    if (err) {
        m->g = NULL;
        return fail(who, dir, err, gpunvme_error());
    }
    err = gpunvme_info(m->g, &m->info);
    if (!err && m->info.executor == GPUNVME_EXECUTOR_NONE)
        return fail(who, dir, -ENOTSUP, "the mount has no GPU path");
    if (!err)
        err = open_buffer(m, bytes);
    return err ? fail(who, dir, err, gpunvme_error()) : 0;
}

void bench_mount_close(struct bench_mount *m)
{
    if (m->buffer)
        gpunvme_unregister(m->buffer);
    if (!m->g || m->memory.on_gpu)
        bench_memory_free(&m->memory);
    if (m->g)
        gpunvme_disconnect(m->g);
    *m = (struct bench_mount){.g = NULL};
}

void bench_mount_describe(const struct bench_mount *m, struct bench_report *r)
{
    if (!m->g)
        return;
    bench_report_text(r, "executor", m->info.executor_name);
    bench_report_text(r, "transport", m->info.transport);
    bench_report_number(r, "tier", m->info.tier);
    bench_report_number(r, "queues", m->info.queues);
    bench_report_number(r, "depth", m->info.depth);
    bench_report_number(r, "max_command", m->info.max_command);
}
