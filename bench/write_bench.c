/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One file, one application thread: the rate of writes from GPU memory.
 *
 * In one run and in turn: a copy of the same size to pinned memory (the PCIe limit), the WRITE
 * ioctl to a new file, whose blocks are allocated on the way, and over existing data. Where the
 * mount stages data (tiers 0 and 1), also the latter from pinned memory, without a copy: what the
 * controller takes. After each WRITE the file is read back and every byte checked, over poison. On
 * a mount whose executor is the CPU: the same, in host memory.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "bench/mount.h"
#include "bench/report.h"

#define PROGRAM  "write_bench"
#define SEED     0x7772697465u
#define UNIT     ((uint64_t)16 << 20) /* sizes are multiples of it */
#define MAX_COPY ((uint64_t)1 << 30)  /* pinned */

struct bench {
    uint64_t size;
    unsigned repeats;
    bool json;
    struct bench_mount mount;
    struct bench_file file;
    struct pattern_pieces pieces; /* the whole file */
    void *host;
    struct bench_samples copies, pinned, fresh, over; /* GB/s */
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

static int copy_out(struct bench *b)
{
    uint64_t most = b->size < MAX_COPY ? b->size : MAX_COPY;
    int err = 0;

    for (uint64_t at = 0; at < b->size && !err; at += most)
        err = gpunvme_copy_out(b->mount.buffer, at, b->host,
                               b->size - at < most ? b->size - at : most);
    return err ? fail("copy", gpunvme_error()) : 0;
}

static int write_from(struct bench *b, struct gpunvme_buffer *buffer)
{
    struct gpunvme_result result;
    ssize_t n = gpunvme_write(buffer, b->file.fd, 0, 0, b->size, &result);

    if (n == (ssize_t)b->size && result.path == GPUNVME_PATH_GPU)
        return 0;
    return fail("WRITE", n < 0 ? gpunvme_error() : "short, or not by the GPU path");
}

static int write_ioctl(struct bench *b)
{
    return write_from(b, b->mount.buffer);
}

static int write_pinned(struct bench *b)
{
    return write_from(b, b->mount.pinned);
}

static int timed(struct bench *b, int (*run)(struct bench *b), struct bench_samples *samples)
{
    double start = bench_seconds();
    int err = run(b);

    bench_add(samples, (double)b->size * 1e-9 / (bench_seconds() - start));
    return err;
}

/* What a WRITE has put there, in place of poison. */
static int read_back(struct bench *b)
{
    int err = bench_poison(&b->mount.memory, SEED);

    if (!err && gpunvme_read(b->mount.buffer, b->file.fd, 0, 0, b->size, NULL) != (ssize_t)b->size)
        err = fail("READ", gpunvme_error());
    return err ? err : bench_verify(&b->mount.memory, &b->pieces, PROGRAM);
}

static int measure_pinned(struct bench *b)
{
    int err = bench_fill(&b->mount.pinned_memory, b->size, SEED);

    if (!err)
        err = timed(b, write_pinned, &b->pinned);
    if (!err)
        err = read_back(b);
    return err ? err : bench_fill(&b->mount.memory, b->size, SEED);
}

static int measure_once(struct bench *b)
{
    int err = ftruncate(b->file.fd, 0) ? -errno : bench_fill(&b->mount.memory, b->size, SEED);

    if (!err)
        err = timed(b, copy_out, &b->copies);
    if (!err)
        err = timed(b, write_ioctl, &b->fresh);
    if (!err)
        err = read_back(b);
    if (!err && b->mount.pinned)
        err = measure_pinned(b);
    if (!err)
        err = timed(b, write_ioctl, &b->over);
    return err ? err : read_back(b);
}

static int report(struct bench *b)
{
    const char *gpu = b->mount.memory.on_gpu ? bench_gpu_name() : NULL;
    struct bench_report *r = bench_report_new(PROGRAM, b->json, gpu);

    if (!r)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, r);
    bench_report_number(r, "bytes", (double)b->size);
    bench_report_number(r, "seed", SEED);
    bench_report_row(r, "plain copy", "GB/s", &b->copies, NULL);
    if (b->pinned.n)
        bench_report_row(r, "WRITE ioctl from pinned memory, over", "GB/s", &b->pinned,
                         "plain copy");
    bench_report_row(r, "WRITE ioctl, new file", "GB/s", &b->fresh, "plain copy");
    bench_report_row(r, "WRITE ioctl, over", "GB/s", &b->over, "plain copy");
    bench_report_end(r);
    return 0;
}

static int set_up(struct bench *b, const char *dir)
{
    uint64_t state = 0;
    int err = bench_mount_open(&b->mount, PROGRAM, dir, b->size);

    if (err)
        return err;
    if (!b->mount.g)
        return fail(dir, "is not on a mount of gpunvmefs");
    b->host = bench_host_alloc(b->mount.memory.on_gpu, b->size < MAX_COPY ? b->size : MAX_COPY);
    if (!b->host ||
        bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, UNIT, b->size, &state))
        return fail("memory", "not enough of it");
    return bench_file_create(&b->file, PROGRAM, dir);
}

static void tear_down(struct bench *b)
{
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
    bench_host_free(b->mount.memory.on_gpu, b->host);
    bench_mount_close(&b->mount);
    bench_file_close(&b->file);
}

static int measure(struct bench *b)
{
    int err = 0;

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        if (i == 1) /* the first round warms up */
            b->copies.n = b->pinned.n = b->fresh.n = b->over.n = 0;
        err = measure_once(b);
    }
    return err ? err : report(b);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:o:h")) != -1) {
        if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return optind + 1 != argc || b->repeats < 1 || b->repeats >= BENCH_MAX_SAMPLES ||
           b->size < UNIT || b->size % UNIT || b->size > (uint64_t)1 << 40;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)4 << 30, .repeats = 5, .file.fd = -1};
    int err;

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, a multiple of 16] [-r REPEATS] [-o json] DIRECTORY\n",
              stderr);
        return 2;
    }
    err = set_up(&b, argv[optind]);
    if (!err)
        err = measure(&b);
    tear_down(&b);
    return err ? 1 : 0;
}
