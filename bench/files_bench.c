/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What does the number of files cost? Many files of one size, opened, read whole and closed one
 * after the other by one thread: by the READ ioctl, and by read(2) into pinned memory that is
 * copied to the GPU while the next file is read.
 *
 * In one run and in turn, in directories of DIRECTORY_FILES files; the page cache holds all of them
 * for read(2). Every byte is verified, over poison.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"

#define PROGRAM         "files_bench"
#define SEED            0x66696c6573u
#define LARGEST         ((uint64_t)16 << 20)
#define DIRECTORY_FILES 1000u
#define SWEEP           "KiB a file"

static const struct {
    unsigned kib, files; /* as many, unless the memory is too small */
} sizes[] = {{4, 4000}, {64, 10000}, {256, 2000}, {1024, 1000}, {16384, 64}};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct bench {
    uint64_t size; /* bytes of memory, at most of all files together */
    unsigned repeats;
    bool json;
    char dir[2048];
    uint64_t bytes; /* of a file */
    unsigned files;
    struct bench_mount mount;
    struct bench_stream streams[2]; /* of LARGEST */
    struct bench_report *report;
};

/* Reads file i, open at fd, to its place in memory. */
typedef int (*read_fn)(struct bench *b, int fd, unsigned i);

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

static void path_of(const struct bench *b, unsigned i, char *path, size_t len)
{
    snprintf(path, len, "%s/%u/%u", b->dir, i / DIRECTORY_FILES, i);
}

static int read_ioctl(struct bench *b, int fd, unsigned i)
{
    struct gpunvme_result result;
    ssize_t n = gpunvme_read(b->mount.buffer, fd, i * b->bytes, 0, b->bytes, &result);

    if (n == (ssize_t)b->bytes && result.path == GPUNVME_PATH_GPU)
        return 0;
    return fail("READ", n < 0 ? gpunvme_error() : "short, or not by the GPU path");
}

static int read_pinned(struct bench *b, int fd, unsigned i)
{
    struct bench_stream *stream = &b->streams[i % 2];
    int err = bench_stream_wait(stream);

    if (!err && pread(fd, stream->buffer, b->bytes, 0) != (ssize_t)b->bytes)
        return fail("pread", strerror(errno));
    return err ? err : bench_stream_copy(stream, &b->mount.memory, i * b->bytes, b->bytes);
}

static int read_one(struct bench *b, read_fn read_file, unsigned i)
{
    char path[4096];
    int fd, err;

    path_of(b, i, path, sizeof(path));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(path, strerror(errno));
    err = read_file(b, fd, i);
    close(fd);
    return err;
}

static int read_all(struct bench *b, read_fn read_file)
{
    int err = 0;

    for (unsigned i = 0; i < b->files && !err; i++)
        err = read_one(b, read_file, i);
    for (unsigned i = 0; i < 2 && !err; i++)
        err = bench_stream_wait(&b->streams[i]);
    return err;
}

static int sample(struct bench *b, read_fn read_file, struct bench_samples *out)
{
    uint64_t len = b->files * b->bytes, in_order = 0;
    struct bench_memory part = b->mount.memory;
    struct pattern_pieces pieces;
    double start;
    int err;

    part.len = len;
    err = bench_pieces_make(&pieces, part.on_gpu, SEED, len, b->bytes, len, &in_order);
    if (!err)
        err = bench_poison(&part, SEED);
    start = bench_seconds();
    if (!err)
        err = read_all(b, read_file);
    bench_add(out, (double)b->files / (bench_seconds() - start));
    if (!err)
        err = bench_verify(&part, &pieces, PROGRAM);
    bench_pieces_free(&pieces, part.on_gpu);
    return err;
}

static int make_one(struct bench *b, unsigned i)
{
    struct bench_file f = {.fd = -1};
    int err = 0;

    path_of(b, i, f.path, sizeof(f.path));
    if (i % DIRECTORY_FILES == 0) {
        *strrchr(f.path, '/') = '\0';
        if (mkdir(f.path, 0700))
            return fail(f.path, strerror(errno));
        path_of(b, i, f.path, sizeof(f.path));
    }
    f.fd = open(f.path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (f.fd < 0)
        return fail(f.path, strerror(errno));
    err = bench_file_write(&f, PROGRAM, 0, b->bytes, SEED, i * b->bytes);
    close(f.fd);
    return err;
}

static int make_all(struct bench *b)
{
    int err = 0;

    for (unsigned i = 0; i < b->files && !err; i++)
        err = make_one(b, i);
    sync();
    return err;
}

static void remove_all(struct bench *b)
{
    char path[4096];

    for (unsigned i = 0; i < b->files; i++) {
        path_of(b, i, path, sizeof(path));
        unlink(path);
        if ((i + 1) % DIRECTORY_FILES == 0 || i + 1 == b->files) {
            *strrchr(path, '/') = '\0';
            rmdir(path);
        }
    }
}

static void report(struct bench *b, const char *series, struct bench_samples *rates,
                   const char *against_series)
{
    unsigned kib = (unsigned)(b->bytes >> 10);
    struct bench_samples bandwidth = *rates;
    char name[128], against[128];

    snprintf(name, sizeof(name), "%s, %u files of %u KiB", series, b->files, kib);
    snprintf(against, sizeof(against), "%s, %u files of %u KiB", against_series, b->files, kib);
    bench_report_row(b->report, name, "files/s", rates, against);
    for (unsigned i = 0; i < bandwidth.n; i++)
        bandwidth.values[i] *= (double)b->bytes * 1e-9;
    snprintf(name, sizeof(name), "%s, %u KiB, bandwidth", series, kib);
    snprintf(against, sizeof(against), "%s, %u KiB, bandwidth", against_series, kib);
    bench_report_row(b->report, name, "GB/s", &bandwidth, against);
    bench_report_point(b->report, SWEEP, series, kib);
}

static int measure(struct bench *b)
{
    struct bench_samples ours = {.n = 0}, theirs = {.n = 0};
    int err = make_all(b);

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        if (i == 1) /* the first round warms up */
            ours.n = theirs.n = 0;
        err = sample(b, read_pinned, &theirs);
        if (!err)
            err = sample(b, read_ioctl, &ours);
    }
    remove_all(b);
    if (err)
        return err;
    report(b, "pread + pinned", &theirs, "");
    report(b, "READ ioctl", &ours, "pread + pinned");
    return 0;
}

static int measure_sizes(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < SIZES && !err; i++) {
        uint64_t fit;

        b->bytes = (uint64_t)sizes[i].kib << 10;
        fit = b->size / b->bytes;
        b->files = fit < sizes[i].files ? (unsigned)fit : sizes[i].files;
        err = measure(b);
    }
    return err;
}

static int set_up(struct bench *b, const char *dir)
{
    int err = bench_mount_open(&b->mount, PROGRAM, dir, b->size);
    bool gpu = b->mount.memory.on_gpu;

    if (err)
        return err;
    if (!b->mount.g)
        return fail(dir, "is not on a mount of gpunvmefs");
    snprintf(b->dir, sizeof(b->dir), "%s/" PROGRAM ".XXXXXX", dir);
    if (!mkdtemp(b->dir)) {
        b->dir[0] = '\0';
        return fail(dir, strerror(errno));
    }
    b->report = bench_report_new(PROGRAM, b->json, gpu ? bench_gpu_name() : NULL);
    if (!b->report || bench_stream_open(&b->streams[0], gpu, LARGEST) ||
        bench_stream_open(&b->streams[1], gpu, LARGEST))
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, b->report);
    bench_report_number(b->report, "files_in_a_directory", DIRECTORY_FILES);
    bench_report_number(b->report, "seed", SEED);
    return 0;
}

static void tear_down(struct bench *b)
{
    if (b->dir[0])
        rmdir(b->dir);
    bench_stream_close(&b->streams[0]);
    bench_stream_close(&b->streams[1]);
    bench_mount_close(&b->mount);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:o:h")) != -1) {
        if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < LARGEST ||
           b->size > (uint64_t)1 << 40;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30, .repeats = 3};
    int err, failed;

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, 16 or more] [-r REPEATS] [-o json] DIRECTORY\n"
              "  -s  of all files of one size together, at most\n",
              stderr);
        return 2;
    }
    err = set_up(&b, argv[optind]);
    if (!err)
        err = measure_sizes(&b);
    failed = bench_report_close(b.report, err);
    tear_down(&b);
    return failed;
}
