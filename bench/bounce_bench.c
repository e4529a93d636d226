/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Through pinned memory of this process: what the bounce pipeline reaches of a plain copy, for
 * every size and number of threads, and below which size it is faster than the mount's GPU path.
 *
 * The memory is the GPU's where there is one, whatever the mount's executor: with executor=cpu or
 * gpu=off this measures a machine without a working GPU path. Every byte is verified after each
 * sample, over poison. The kernel's cache of the file is dropped before each.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"

#define PROGRAM   "bounce_bench"
#define SEED      0x626f756e6365u
#define SMALLEST  ((uint64_t)4096)
#define CHUNK     ((uint64_t)16 << 20) /* of copies; sizes are powers of two */
#define MAX_CALLS 256u

struct bench {
    uint64_t largest;
    size_t chunk; /* of the pipeline; 0: its default */
    unsigned repeats;
    bool json, direct, on_gpu;
    struct bench_mount mount;
    struct bench_stream stream; /* of CHUNK bytes: for the plain copy */
    struct bench_file file;
    bool shared; /* the mount's executor can reach the memory */
    struct bench_report *report;
};

/* One way at one size. */
struct way {
    uint32_t path;    /* GPUNVME_PATH_*; 0: a plain copy */
    unsigned threads; /* of the pipeline */
    uint64_t size;    /* bytes a call */
    unsigned calls;   /* a sample */
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return 1;
}

static int read_calls(struct bench *b, const struct way *w)
{
    for (unsigned i = 0; i < w->calls; i++) {
        uint64_t at = i * w->size;
        struct gpunvme_result r;
        ssize_t n = gpunvme_read(b->mount.buffer, b->file.fd, at, at, w->size, &r);

        if (n != (ssize_t)w->size)
            return fail("read", n < 0 ? gpunvme_error() : "short");
        if (r.path != w->path)
            return fail("read", r.why);
    }
    return 0;
}

/* A call waits for its end, as a read does. */
static int copy_calls(struct bench *b, const struct way *w)
{
    uint64_t piece = w->size < CHUNK ? w->size : CHUNK;
    int err = 0;

    for (unsigned i = 0; i < w->calls && !err; i++) {
        for (uint64_t at = 0; at < w->size && !err; at += piece)
            err = bench_stream_copy(&b->stream, &b->mount.memory, i * w->size + at, piece);
        if (!err)
            err = bench_stream_wait(&b->stream);
    }
    return err ? fail("plain copy", "the GPU failed") : 0;
}

static int verify(struct bench *b, uint64_t len, const char *name)
{
    struct pattern_pieces pieces;
    uint64_t state = 0, piece = len < CHUNK ? len : CHUNK;

    if (bench_pieces_make(&pieces, b->on_gpu, SEED, len, piece, len, &state))
        return fail("memory", "not enough of it");
    int err = bench_verify(&b->mount.memory, &pieces, name);

    bench_pieces_free(&pieces, b->on_gpu);
    return err != 0;
}

static int sample(struct bench *b, const struct way *w, const char *name, struct bench_samples *out)
{
    uint64_t len = w->size * w->calls;
    struct bench_memory part = b->mount.memory;

    part.len = len;
    if (w->path && bench_poison(&part, SEED))
        return fail(name, "the GPU failed");
    posix_fadvise(b->file.fd, 0, 0, POSIX_FADV_DONTNEED);
    double start = bench_seconds();
    int failed = w->path ? read_calls(b, w) : copy_calls(b, w);

    bench_add(out, (double)len * 1e-9 / (bench_seconds() - start));
    return failed || (w->path && verify(b, len, name));
}

static int measure(struct bench *b, const struct way *w, const char *series, const char *against)
{
    struct bench_samples samples = {.n = 0};
    struct gpunvme_options options = {.path = w->path, .threads = w->threads, .chunk = b->chunk};
    char name[64];

    snprintf(name, sizeof(name), "%s, %llu KiB", series, (unsigned long long)w->size >> 10);
    if (gpunvme_set_options(b->mount.g, &options))
        return fail(name, gpunvme_error());
    for (unsigned i = 0; i <= b->repeats; i++) {
        if (i == 1) /* the first warms up: it makes and pins the staging, too */
            samples.n = 0;
        if (sample(b, w, name, &samples))
            return 1;
    }
    bench_report_row(b->report, name, "GB/s", &samples, against);
    bench_report_point(b->report, "read size", series, (double)w->size);
    return 0;
}

static int measure_size(struct bench *b, uint64_t size)
{
    uint64_t fit = b->largest / size;
    struct way w = {.size = size, .calls = size >= CHUNK ? 1 : (unsigned)(CHUNK / size)};
    char copy[64], series[64];

    if (w.calls > MAX_CALLS)
        w.calls = MAX_CALLS;
    if (w.calls > fit)
        w.calls = (unsigned)fit;
    snprintf(copy, sizeof(copy), "plain copy, %llu KiB", (unsigned long long)size >> 10);
    if (measure(b, &w, "plain copy", NULL))
        return 1;
    w.path = GPUNVME_PATH_GPU;
    if (b->shared && measure(b, &w, "GPU path", copy))
        return 1;
    w.path = GPUNVME_PATH_BOUNCE;
    for (w.threads = 1; w.threads <= 16; w.threads *= 2) {
        snprintf(series, sizeof(series), "bounce, %u threads", w.threads);
        if (measure(b, &w, series, copy))
            return 1;
        if (size <= (uint64_t)1 << 20) /* one chunk: more threads have nothing to do */
            break;
    }
    return 0;
}

static int make_file(struct bench *b, const char *dir)
{
    int err = bench_file_make(&b->file, PROGRAM, dir, b->largest, SEED);

    if (!err && b->direct && fcntl(b->file.fd, F_SETFL, fcntl(b->file.fd, F_GETFL) | O_DIRECT))
        return fail(b->file.path, strerror(errno));
    return err != 0;
}

/* Not as bench_mount_open() does: GPU memory wherever there is a GPU. */
static int set_up(struct bench *b, const char *dir)
{
    struct gpunvme_options options = {.path = GPUNVME_PATH_GPU};
    struct bench_mount *m = &b->mount;

    b->on_gpu = bench_gpu_name() != NULL;
    if (bench_stream_open(&b->stream, b->on_gpu, CHUNK) ||
        bench_memory_alloc(&m->memory, b->on_gpu, b->largest))
        return fail("memory", "not enough of it");
    if (gpunvme_connect(dir, &m->g) || gpunvme_info(m->g, &m->info) ||
        gpunvme_set_options(m->g, &options))
        return fail(dir, gpunvme_error());
    b->shared = gpunvme_register(m->g, m->memory.addr, b->largest, &m->buffer) == 0;
    options.path = 0;
    if (!b->shared && (gpunvme_set_options(m->g, &options) ||
                       gpunvme_register(m->g, m->memory.addr, b->largest, &m->buffer)))
        return fail(dir, gpunvme_error());
    return make_file(b, dir);
}

static void tear_down(struct bench *b)
{
    if (b->mount.g)
        gpunvme_disconnect(b->mount.g);
    bench_memory_free(&b->mount.memory);
    bench_stream_close(&b->stream);
    bench_file_close(&b->file);
}

static int measure_all(struct bench *b)
{
    b->report = bench_report_new(PROGRAM, b->json, b->on_gpu ? bench_gpu_name() : NULL);
    if (!b->report)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, b->report);
    bench_report_text(b->report, "file",
                      b->direct ? "O_DIRECT" : "cached, dropped before a sample");
    bench_report_number(b->report, "chunk", (double)b->chunk);
    bench_report_number(b->report, "seed", SEED);
    for (uint64_t size = SMALLEST; size <= b->largest; size *= size < b->largest / 4 ? 4 : 2) {
        if (measure_size(b, size)) {
            bench_report_drop(b->report);
            return 1;
        }
    }
    bench_report_end(b->report);
    return 0;
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:c:r:o:dh")) != -1) {
        if (opt == 'c')
            b->chunk = strtoull(optarg, NULL, 10) << 10;
        else if (opt == 'd')
            b->direct = true;
        else if (!bench_option(opt, &b->largest, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->largest < CHUNK ||
           (b->largest & (b->largest - 1)) || b->chunk % 4096;
}

int main(int argc, char **argv)
{
    static struct bench b = {.largest = (uint64_t)4 << 30, .repeats = 5, .file = {.fd = -1}};

    if (parse(argc, argv, &b)) {
        fputs(
            "usage: bounce_bench [-s MiB, a power of two from 16] [-c KiB a chunk, multiple of 4]\n"
            "                    [-r REPEATS] [-d] [-o json] DIRECTORY\n"
            "  -d  open the file with O_DIRECT\n",
            stderr);
        return 2;
    }
    int failed = set_up(&b, argv[optind]) || measure_all(&b);

    tear_down(&b);
    return failed;
}
