/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens a mount for a benchmark, with a buffer and files. */
#include "bench/lib/bench_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((uint64_t)4 << 20)

/*
 * Allocates the buffer. In GPU memory it belongs to this process, so that its kernels read it like
 * any other memory.
 */
static int open_buffer(struct bench_mount *m, uint64_t bytes)
{
    bool on_gpu = m->info.executor == GPUNVME_EXECUTOR_CUDA;
    int err;

    if (on_gpu) {
        err = bench_memory_alloc(&m->memory, true, bytes);
        return err ? err : buffer_register(m->g, m->memory.addr, bytes, true, &m->buffer);
    }
    err = buffer_alloc(m->g, bytes, &m->buffer);
    if (!err)
        m->memory = (struct bench_memory){.addr = buffer_addr(m->buffer), .len = bytes};
    return err;
}

int bench_mount_open(struct bench_mount *m, const char *dir, uint64_t bytes)
{
    int err;

    *m = (struct bench_mount){.g = NULL};
    err = connection_open(dir, &m->g);
    if (err == -ENOTTY) {
        m->g = NULL;
        err = bench_memory_alloc(&m->memory, bench_gpu_name() != NULL, bytes);
        return err ? bench_fail_with("memory", err) : 0;
    }
    if (err) {
        m->g = NULL;
        return bench_fail(dir, gpunvme_error());
    }
    err = bounce_set_options(m->g, &(struct gpunvme_options){.path = GPUNVME_PATH_GPU});
    if (!err)
        err = gpunvme_info(connection_fd(m->g), &m->info);
    if (!err && m->info.executor == GPUNVME_EXECUTOR_NONE)
        return bench_fail(dir, "the mount has no GPU path");
    if (!err)
        err = open_buffer(m, bytes);
    return err ? bench_fail(dir, gpunvme_error()) : 0;
}

int bench_mount_take_path(const struct bench_mount *m, uint32_t path)
{
    if (bounce_set_options(m->g, &(struct gpunvme_options){.path = path}))
        return bench_fail("path", gpunvme_error());
    return 0;
}

/* Returns 0 if the transfer moved all bytes by this path, otherwise reports why not. */
static int mount_check(const char *what, ssize_t n, uint64_t len, uint32_t taken, uint32_t path)
{
    if (n == (ssize_t)len && taken == path)
        return 0;
    return bench_fail(what, n < 0 ? gpunvme_error() : "short, or not by this path");
}

int bench_mount_read(const struct bench_mount *m, int fd, uint64_t at, uint64_t place, uint64_t len,
                     uint32_t path, uint64_t *commands)
{
    struct gpunvme_result result;
    ssize_t n = transfer_read(m->buffer, fd, at, place, len, &result);

    if (commands)
        *commands = result.commands;
    return mount_check("read", n, len, result.path, path);
}

int bench_mount_write(const struct bench_mount *m, int fd, uint64_t len, uint32_t path)
{
    struct gpunvme_result result;
    ssize_t n = transfer_write(m->buffer, fd, 0, 0, len, &result);

    return mount_check("write", n, len, result.path, path);
}

int bench_mount_open_pinned(struct bench_mount *m, uint64_t bytes)
{
    if (!m->memory.on_gpu || m->info.lease_tier >= 2)
        return 0;
    if (buffer_alloc_host(m->g, bytes, &m->pinned))
        return bench_fail("pinned memory", gpunvme_error());
    m->pinned_memory = (struct bench_memory){.addr = buffer_addr(m->pinned), .len = bytes};
    return 0;
}

void bench_mount_close(struct bench_mount *m)
{
    if (m->buffer)
        buffer_unregister(m->buffer);
    if (m->pinned)
        buffer_unregister(m->pinned);
    if (!m->g || m->memory.on_gpu)
        bench_memory_free(&m->memory);
    if (m->g)
        connection_close(m->g);
    *m = (struct bench_mount){.g = NULL};
}

int bench_file_create(struct bench_file *f, const char *dir)
{
    snprintf(f->path, sizeof(f->path), "%s/%s.%ld.XXXXXX", dir, program_invocation_short_name,
             (long)getpid());
    f->fd = mkostemp(f->path, O_CLOEXEC);
    return f->fd < 0 ? bench_fail_with(f->path, -errno) : 0;
}

/* Writes the first bytes of the pattern to the file. */
static int file_write(const struct bench_file *f, uint64_t bytes, uint64_t seed)
{
    void *chunk = malloc(CHUNK);
    int err = chunk ? 0 : -ENOMEM;

    for (uint64_t at = 0; at < bytes && !err; at += CHUNK) {
        uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;

        pattern_host_write(chunk, n, seed, at, false);
        ssize_t put = pwrite(f->fd, chunk, n, (off_t)at);
        /* A regular file takes fewer bytes than asked only when the file system is full. */
        if (put != (ssize_t)n)
            err = put < 0 ? -errno : -ENOSPC;
    }
    free(chunk);
    return err ? bench_fail_with(f->path, err) : 0;
}

int bench_file_seal(struct bench_file *f)
{
    int written = f->fd;

    if (fsync(written))
        return bench_fail_with(f->path, -errno);
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) {
        int err = bench_fail_with(f->path, -errno);

        f->fd = written; /* bench_file_close() removes the file */
        return err;
    }
    close(written);
    return 0;
}

int bench_file_make(struct bench_file *f, const char *dir, uint64_t bytes, uint64_t seed)
{
    int err = bench_file_create(f, dir);

    if (!err)
        err = file_write(f, bytes, seed);
    return err ? err : bench_file_seal(f);
}

void bench_file_close(struct bench_file *f)
{
    if (f->fd < 0)
        return;
    close(f->fd);
    unlink(f->path);
    f->fd = -1;
}

static int direct_kernels_fail(void)
{
    return bench_fail("direct path", gpunvme_error());
}

int bench_direct_open(struct bench_direct *p, const struct bench_mount *m, int fd,
                      const struct direct_options *options)
{
    int err = bench_stream_open(&p->stream, m->memory.on_gpu, sizeof(int64_t));

    if (err)
        return err;
    err = direct_open(m->g, options, &p->d);
    if (err) {
        p->d = NULL;
        return direct_kernels_fail();
    }
    err = leased_file_open(p->d, fd, true, &p->file);
    return err ? direct_kernels_fail() : 0;
}

void bench_direct_close(struct bench_direct *p)
{
    if (p->d)
        direct_close(p->d);
    if (p->stream.buffer)
        bench_stream_close(&p->stream);
    *p = (struct bench_direct){.d = NULL};
}

int bench_direct_read(struct bench_direct *p, void *to, uint64_t n, uint64_t offset)
{
    int64_t *bytes = p->stream.buffer;
    char what[128];
    int err;

    *bytes = 0;
    err = direct_read_async(p->file, to, n, offset, p->stream.cuda, bytes);
    if (err)
        return direct_kernels_fail();
    err = bench_stream_wait(&p->stream);
    if (!err && *bytes == (int64_t)n)
        return 0;
    snprintf(what, sizeof(what), "read of %" PRIu64 " bytes at %" PRIu64 " ended with %" PRId64, n,
             offset, *bytes);
    return bench_fail("direct path", what);
}

int bench_direct_read_wait(const struct bench_direct *p, void *to, uint64_t n, uint64_t offset)
{
    ssize_t got = direct_read_wait(p->file, to, n, offset);

    if (got == (ssize_t)n)
        return 0;
    return bench_fail("direct path", got < 0 ? gpunvme_error() : "a short read");
}

int bench_list_make(struct bench_list *l, const struct bench_mount *m,
                    const struct pattern_pieces *p)
{
    *l = (struct bench_list){.n = p->n};
    if (shared_list_alloc_pieces(m->g, l->n, &l->pieces)) {
        l->pieces = NULL;
        return bench_fail("list", gpunvme_error());
    }
    for (size_t i = 0; i < l->n; i++)
        l->pieces[i] = (struct gpunvme_piece){
            .file_offset = p->places[i], .buffer_offset = i * p->bytes, .len = (uint32_t)p->bytes};
    if (m->info.direct && buffer_alloc(m->g, l->n * sizeof(*l->pieces), &l->on_device)) {
        l->on_device = NULL;
        return bench_fail("list", gpunvme_error());
    }
    return 0;
}

void bench_list_free(struct bench_list *l, const struct bench_mount *m)
{
    if (l->pieces)
        shared_list_free_pieces(m->g, l->pieces);
    if (l->on_device)
        buffer_unregister(l->on_device);
    *l = (struct bench_list){.n = 0};
}

int bench_list_prepare(struct bench_list *l, bool direct)
{
    for (size_t i = 0; i < l->n; i++)
        l->pieces[i].result = INT32_MIN; /* a value that no read returns */
    if (direct && buffer_copy_in(l->on_device, 0, l->pieces, l->n * sizeof(*l->pieces)))
        return bench_fail("list", gpunvme_error());
    return 0;
}

int bench_list_check(struct bench_list *l, bool direct)
{
    if (direct && buffer_copy_out(l->on_device, 0, l->pieces, l->n * sizeof(*l->pieces)))
        return bench_fail("list", gpunvme_error());
    for (size_t i = 0; i < l->n; i++) {
        int32_t result = l->pieces[i].result;

        if (result != (int32_t)l->pieces[i].len)
            return bench_fail("piece", result < 0 ? strerror(-result) : "short");
    }
    return 0;
}

static size_t list_batch(const struct bench_list *l, size_t first, size_t batch)
{
    return l->n - first < batch ? l->n - first : batch;
}

int bench_list_read(const struct bench_list *l, const struct bench_mount *m, int fd, size_t batch,
                    uint32_t path)
{
    for (size_t i = 0; i < l->n; i += batch) {
        struct gpunvme_result result;

        if (readv_buffer(m->buffer, fd, l->pieces + i, list_batch(l, i, batch), &result))
            return bench_fail("READV", gpunvme_error());
        if (result.path != path)
            return bench_fail("READV", "not by this path");
    }
    return 0;
}

int bench_list_read_direct(const struct bench_list *l, struct bench_direct *p, void *to,
                           size_t batch)
{
    struct gpunvme_piece *pieces = buffer_addr(l->on_device);

    for (size_t i = 0; i < l->n; i += batch) {
        if (direct_readv_async(p->file, to, pieces + i, list_batch(l, i, batch), p->stream.cuda))
            return direct_kernels_fail();
    }
    return bench_stream_wait(&p->stream) ? bench_fail("direct path", "the GPU failed") : 0;
}

struct bench_report *bench_mount_report(const struct bench *b, const struct bench_mount *m)
{
    struct bench_report *r = bench_report_new(b->json, m->memory.on_gpu ? bench_gpu_name() : NULL);

    if (!r)
        return NULL;
    bench_report_number(r, "seed", (double)b->seed);
    if (!m->g)
        return r;
    bench_report_text(r, "executor", m->info.executor_name);
    bench_report_text(r, "transport", m->info.transport);
    bench_report_number(r, "tier", m->info.tier);
    bench_report_number(r, "lease_tier", m->info.lease_tier);
    bench_report_number(r, "queues", m->info.queues);
    bench_report_number(r, "depth", m->info.depth);
    bench_report_number(r, "max_command", m->info.max_command);
    bench_report_number(r, "lba_size", m->info.lba_size);
    if (b->lease.queues) {
        bench_report_number(r, "leased_queues", b->lease.queues);
        bench_report_number(r, "leased_depth", b->lease.depth);
    }
    return r;
}

int bench_begin(struct bench *b, uint64_t buffer)
{
    int err;

    b->file.fd = -1;
    err = bench_mount_open(&b->mount, b->dir, buffer);
    if (err)
        return err;
    b->report = bench_mount_report(b, &b->mount);
    return b->report ? 0 : bench_fail("memory", "not enough of it");
}

int bench_begin_mounted(struct bench *b, uint64_t buffer)
{
    int err = bench_begin(b, buffer);

    return err || b->mount.g ? err : bench_fail(b->dir, "not on a gpunvmefs mount");
}

int bench_begin_direct(struct bench *b, uint64_t buffer)
{
    int err = bench_begin(b, buffer);

    if (err || (b->mount.g && b->mount.memory.on_gpu && b->mount.info.direct))
        return err;
    return bench_fail(b->dir, "not on a gpunvmefs mount with a GPU and -o direct=");
}

int bench_host_fill(struct bench *b)
{
    b->host = bench_host_alloc(b->mount.memory.on_gpu, b->size);
    if (!b->host)
        return bench_fail("memory", "not enough of it");
    pattern_host_write(b->host, b->size, b->seed, 0, false);
    return 0;
}

int bench_report_hits(struct bench *b, struct gpunvme_cache *c, const char *name)
{
    struct bench_samples share = {.n = 0};
    struct gpunvme_cache_stats s;

    if (gpunvme_cache_stats(c, &s, sizeof(s)))
        return bench_fail("cache", gpunvme_error());
    bench_add(&share, 100.0 * (double)s.hits / (double)(s.hits + s.misses + s.bypasses));
    bench_report_row(b->report, name, "%", &share, NULL);
    return 0;
}

int bench_end(struct bench *b, int err)
{
    bool on_gpu = b->mount.memory.on_gpu;
    int failed = bench_report_close(b->report, err);

    bench_pieces_free(&b->pieces, on_gpu);
    if (b->host)
        bench_host_free(on_gpu, b->host);
    bench_direct_close(&b->direct);
    bench_file_close(&b->file);
    bench_mount_close(&b->mount);
    return failed;
}
