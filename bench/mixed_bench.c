/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The mutual cost of reads and computing.
 *
 * Reads of a whole file and of 4 KiB, by the READ ioctl and, where the mount lends it, by the
 * direct path, in a stream and by a persistent kernel; and a kernel of the same
 * application that keeps every multiprocessor busy (CPU executor: a thread that computes): each
 * alone, then both. The daemon that serves READ is another process, so without MPS the GPU is
 * time-sliced between the two; the direct path's kernels are the application's own. The memory
 * after the last read of each row is verified.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/direct_bench_kernels.h"
#ifdef GPUNVME_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "bench/lib/kernels.h"
#endif

#define PROGRAM    "mixed_bench"
#define SEED       0x6d69786564u
#define UNIT       ((uint64_t)16 << 20) /* sizes are multiples of it */
#define SMALL      4096u
#define STEP_S     0.001 /* of computing, about */
#define ALONE_S    0.3
#define MAX_STEPS  65536u
#define MAX_SMALLS 4096u

/* A thread that computes in steps, and how long each took. */
struct computer {
    pthread_t thread;
    struct bench_stream stream; /* of its kernels */
    uint64_t work;              /* of a step */
    atomic_bool stop;
    size_t steps;
    double rates[MAX_STEPS]; /* steps a second */
    int err;
};

enum way { BY_IOCTL, IN_STREAM, BY_BLOCK };

static const char *const way_names[] = {"READ ioctl", "direct path",
                                        "direct path by a persistent kernel"};

struct bench {
    uint64_t size;
    unsigned repeats;
    bool json;
    struct bench_mount mount;
    struct bench_direct direct; /* where the mount lends it */
    enum way way;
    struct computer computer;
    struct pattern_pieces whole, small;
    double micros[MAX_SMALLS];
    struct bench_file file;
    struct bench_report *report;
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

static int compute_step(struct computer *c, uint64_t work)
{
    volatile float x = 1.0f;

#ifdef GPUNVME_HAVE_CUDA
    if (c->stream.gpu)
        return kernel_compute(c->stream.cuda, work);
#endif
    (void)c;
    for (uint64_t i = 0; i < work; i++)
        x = x * 1.000001f + 0.5f;
    return 0;
}

/* Finds the work of a step. The first one warms up. */
static int calibrate(struct computer *c)
{
    double start, took = 0;
    int err = compute_step(c, 1000);

    for (c->work = 1000; !err && took < STEP_S; c->work *= 2) {
        start = bench_seconds();
        err = compute_step(c, c->work);
        took = bench_seconds() - start;
    }
    c->work /= 2;
    return err;
}

static void *compute(void *arg)
{
    struct computer *c = arg;

    do {
        double start = bench_seconds();

        c->err = compute_step(c, c->work);
        if (c->steps < MAX_STEPS)
            c->rates[c->steps++] = 1 / (bench_seconds() - start);
    } while (!atomic_load(&c->stop) && !c->err);
    return NULL;
}

static int start_computing(struct computer *c)
{
    c->steps = 0;
    c->err = 0;
    atomic_store(&c->stop, false);
    return -pthread_create(&c->thread, NULL, compute, c);
}

static int stop_computing(struct computer *c)
{
    atomic_store(&c->stop, true);
    pthread_join(c->thread, NULL);
    return c->err ? fail("computing", "the GPU failed") : 0;
}

static int read_piece(struct bench *b, uint64_t to, uint64_t from, uint64_t len)
{
    struct gpunvme_result result = {.path = GPUNVME_PATH_GPU};
    char *addr = (char *)b->mount.memory.addr + to;
    ssize_t n;

    if (b->way == IN_STREAM)
        return bench_direct_read(&b->direct, PROGRAM, addr, len, from);
    if (b->way == BY_BLOCK)
        n = gpunvme_file_read(b->direct.file, addr, len, from);
    else
        n = gpunvme_read(b->mount.buffer, b->file.fd, to, from, len, &result);
    if (n == (ssize_t)len && result.path == GPUNVME_PATH_GPU)
        return 0;
    return fail(way_names[b->way], n < 0 ? gpunvme_error() : "short, or not by the GPU path");
}

static int read_whole(struct bench *b, unsigned repeats, struct bench_samples *samples)
{
    int err = 0;

    for (unsigned i = 0; i < repeats && !err; i++) {
        double start = bench_seconds();

        err = read_piece(b, 0, 0, b->size);
        bench_add(samples, (double)b->size * 1e-9 / (bench_seconds() - start));
    }
    return err;
}

static int read_small(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < b->small.n && !err; i++) {
        double start = bench_seconds();

        err = read_piece(b, i * SMALL, b->small.places[i], SMALL);
        b->micros[i] = (bench_seconds() - start) * 1e6;
    }
    return err;
}

static int report_computing(struct bench *b, const char *name, const char *against)
{
    struct computer *c = &b->computer;

    if (c->steps == 0)
        return fail("computing", "not one step was done");
    bench_report_values(b->report, name, "1/s", c->rates, c->steps, against);
    return 0;
}

static int compute_alone(struct bench *b)
{
    int err = start_computing(&b->computer);

    if (err)
        return err;
    usleep((useconds_t)(ALONE_S * 1e6));
    err = stop_computing(&b->computer);
    return err ? err : report_computing(b, "computing alone", NULL);
}

/* One kind of read, alone or beside computing: its row, and that of the computing. */
static int measure(struct bench *b, bool whole, bool computing)
{
    struct bench_samples samples = {.n = 0};
    char what[64], alone[96], name[96], beside[96];
    int err = bench_poison(&b->mount.memory, SEED), end;

    snprintf(what, sizeof(what), "%s, %s", way_names[b->way], whole ? "whole file" : "4 KiB");
    snprintf(alone, sizeof(alone), "%s, alone", what);
    snprintf(name, sizeof(name), "%s, %s", what, computing ? "beside computing" : "alone");
    snprintf(beside, sizeof(beside), "computing beside %s", what);
    if (!err && computing)
        err = start_computing(&b->computer);
    if (err)
        return err;
    err = whole ? read_whole(b, b->repeats, &samples) : read_small(b);
    end = computing ? stop_computing(&b->computer) : 0;
    err = err ? err : end;
    if (!err)
        err = bench_verify(&b->mount.memory, whole ? &b->whole : &b->small, PROGRAM);
    if (err)
        return err;
    if (whole)
        bench_report_row(b->report, name, "GB/s", &samples, computing ? alone : NULL);
    else
        bench_report_values(b->report, name, "us", b->micros, b->small.n, computing ? alone : NULL);
    return computing ? report_computing(b, beside, "computing alone") : 0;
}

static int measure_small(struct bench *b)
{
    int err = measure(b, false, false);

    return err ? err : measure(b, false, true);
}

static int measure_way(struct bench *b, enum way way)
{
    struct bench_samples warm_up = {.n = 0};
    int err;

    b->way = way;
    err = read_whole(b, 1, &warm_up);
    if (!err && way != BY_BLOCK)
        err = measure(b, true, false);
    if (!err && way != BY_BLOCK)
        err = measure(b, true, true);
    return err ? err : measure_small(b);
}

static int measure_all(struct bench *b)
{
    int err = compute_alone(b);

    if (!err)
        err = measure_way(b, BY_IOCTL);
    if (!err && b->direct.file)
        err = measure_way(b, IN_STREAM);
    if (!err && b->direct.file)
        err = measure_way(b, BY_BLOCK);
    return err;
}

/* Whether contexts on the device share it through MPS. */
static const char *sharing(const struct bench *b)
{
#if defined(GPUNVME_HAVE_CUDA) && CUDART_VERSION >= 12040
    int on = 0;

    if (b->mount.memory.on_gpu &&
        cudaDeviceGetAttribute(&on, cudaDevAttrMpsEnabled, 0) == cudaSuccess)
        return on ? "MPS" : "time-sliced";
#endif
    return b->mount.memory.on_gpu ? "unknown" : "no GPU";
}

static int set_up(struct bench *b, const char *dir)
{
    bool gpu;
    uint64_t in_order = 0, random = SEED;
    int err = bench_mount_open(&b->mount, PROGRAM, dir, b->size);

    if (err)
        return err;
    if (!b->mount.g)
        return fail(dir, "is not on a mount of gpunvmefs");
    gpu = b->mount.memory.on_gpu;
    b->report = bench_report_new(PROGRAM, b->json, gpu ? bench_gpu_name() : NULL);
    err = bench_pieces_make(&b->whole, gpu, SEED, b->size, UNIT, b->size, &in_order);
    if (!err)
        err = bench_pieces_make(&b->small, gpu, SEED, (uint64_t)SMALL * b->repeats * 50, SMALL,
                                b->size, &random);
    if (!err)
        err = bench_stream_open(&b->computer.stream, gpu, SMALL);
    if (!err && b->report)
        err = calibrate(&b->computer);
    if (err || !b->report)
        return fail("set-up", "not enough memory, or the GPU failed");
    bench_mount_describe(&b->mount, b->report);
    bench_report_text(b->report, "sharing", sharing(b));
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "seed", SEED);
    err = bench_file_make(&b->file, PROGRAM, dir, b->size, SEED);
    if (!err && b->mount.info.direct)
        err = bench_direct_open(&b->direct, &b->mount, PROGRAM, b->file.fd);
    return err;
}

static void tear_down(struct bench *b)
{
    bench_pieces_free(&b->whole, b->mount.memory.on_gpu);
    bench_pieces_free(&b->small, b->mount.memory.on_gpu);
    bench_stream_close(&b->computer.stream);
    bench_direct_close(&b->direct);
    bench_mount_close(&b->mount);
    bench_file_close(&b->file);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:n:o:h")) != -1) {
        if (opt == 'n')
            b->repeats = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return optind + 1 != argc || b->repeats < 1 || b->repeats > MAX_SMALLS / 50 || b->size < UNIT ||
           b->size % UNIT || b->size > (uint64_t)1 << 40;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30, .repeats = 10, .file = {.fd = -1}};
    int err, failed;

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, a multiple of 16] [-n REPEATS, at most 81] [-o json]"
              " DIRECTORY\n",
              stderr);
        return 2;
    }
    err = set_up(&b, argv[optind]);
    if (!err)
        err = measure_all(&b);
    failed = bench_report_close(b.report, err);
    tear_down(&b);
    return failed;
}
