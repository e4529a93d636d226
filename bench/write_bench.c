/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One file, one application thread: the rate of writes from GPU memory.
 *
 * In one run and in turn: a copy of the same size to pinned memory (the PCIe limit), the WRITE
 * ioctl to a new file, whose blocks are allocated on the way, and over existing data. Where the
 * mount stages data (tiers 0 and 1), also the latter from pinned memory, without a copy, and, where
 * the mount lends the direct path, beside a bare loop that writes 64 KiB at a time to the same
 * places on leased queues (bench/lib/bare_kernels.h): what the controller takes. A new file has
 * blocks that are in no cache of a software controller's processors, so it is compared with a bare
 * loop over such blocks: the parts of an old file in turn. After each WRITE the file is read back
 * and every byte checked, over poison. The first rounds (-w) warm up and are not counted; where
 * data is staged the daemon measures numbers of queues in them. On a mount whose executor is the
 * CPU: the same, in host memory.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bare_rows.h"
#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/direct_bench_kernels.h"

#define PROGRAM  "write_bench"
#define SEED     0x7772697465u
#define UNIT     ((uint64_t)16 << 20) /* sizes are multiples of it */
#define MAX_COPY ((uint64_t)1 << 30)  /* pinned */
/* Of the bare loop: its commands, and memory that remains in the caches of the processors. */
#define BARE_PIECE ((uint64_t)64 << 10)
#define BARE_ROOM  ((uint64_t)4 << 20)
/* The old file: more than caches hold. A file of half its size or more is compared with itself. */
#define OLD_BYTES ((uint64_t)768 << 20)

struct bench {
    uint64_t size;
    unsigned repeats, warm_ups;
    bool json;
    struct bench_mount mount;
    struct bench_file file;
    struct pattern_pieces pieces; /* the whole file */
    void *host;
    struct gpunvme_direct_options lease;
    struct bench_samples copies, pinned, fresh, over; /* GB/s */
    struct bare_rows bare;
    struct bench_file old;
    uint64_t old_bytes, old_at; /* the next part; no bytes: there is no old file */
    struct bare_rows bare_old;
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

#ifdef GPUNVME_HAVE_CUDA

/* The loop over b->size bytes from `at` on, whose bytes are those of pinned memory in turn then. */
static int open_bare(struct bench *b, const struct bench_direct *direct, uint64_t at,
                     struct bare_loop **loop)
{
    struct pattern_pieces pieces = {0};
    int err = bench_pieces_from(&pieces, true, SEED, at, b->size, BARE_PIECE);

    if (!err)
        err = bare_loop_open(gpunvme_file_device(direct->file), &pieces,
                             b->mount.pinned_memory.addr, BARE_ROOM, true, loop);
    bench_pieces_free(&pieces, true);
    if (err)
        fail("bare loop", err == -ENOTSUP ? "64 KiB take several commands" : strerror(-err));
    return err;
}

/* Over the whole file. */
static int measure_bare(struct bench *b)
{
    struct bench_direct direct = {.d = NULL};
    struct bare_loop *loop;
    int err = bench_direct_open_with(&direct, &b->mount, PROGRAM, b->file.fd, &b->lease);

    if (!err)
        err = open_bare(b, &direct, 0, &loop);
    if (!err) {
        err = bare_rows_time(&b->bare, PROGRAM, loop, b->lease.queues, b->size);
        bare_loop_close(loop);
    }
    bench_direct_close(&direct);
    return err;
}

/* Over a part of the old file for each number of queues. */
static int measure_bare_old(struct bench *b)
{
    struct bench_direct direct = {.d = NULL};
    int err = bench_direct_open_with(&direct, &b->mount, PROGRAM, b->old.fd, &b->lease);

    for (unsigned i = 0; i < BARE_ROWS && b->lease.queues >> i && !err; i++) {
        struct bare_loop *loop;

        err = open_bare(b, &direct, b->old_at, &loop);
        if (err)
            break;
        b->old_at = (b->old_at + b->size) % b->old_bytes;
        err = bare_rows_time_one(&b->bare_old, PROGRAM, loop, b->lease.queues, i, b->size);
        bare_loop_close(loop);
    }
    bench_direct_close(&direct);
    return err;
}

#endif

/* Is there a bare loop to compare with? */
static bool has_bare(const struct bench *b)
{
#ifdef GPUNVME_HAVE_CUDA
    return b->mount.pinned && b->mount.memory.on_gpu && b->mount.info.direct;
#else
    (void)b;
    return false;
#endif
}

static int measure_once(struct bench *b)
{
    int err;

#ifdef GPUNVME_HAVE_CUDA
    if (b->old_bytes)
        (void)measure_bare_old(b); /* as measure_bare() */
#endif
    err = ftruncate(b->file.fd, 0) ? -errno : bench_fill(&b->mount.memory, b->size, SEED);
    if (!err)
        err = timed(b, copy_out, &b->copies);
    if (!err)
        err = timed(b, write_ioctl, &b->fresh);
    if (!err)
        err = read_back(b);
    if (!err && b->mount.pinned)
        err = measure_pinned(b);
#ifdef GPUNVME_HAVE_CUDA
    if (!err && has_bare(b))
        (void)measure_bare(b); /* without it the row is missing, with a message */
#endif
    if (!err)
        err = timed(b, write_ioctl, &b->over);
    return err ? err : read_back(b);
}

static int report(struct bench *b)
{
    const char *gpu = b->mount.memory.on_gpu ? bench_gpu_name() : NULL;
    char bare[64], bare_old[64];
    struct bench_report *r = bench_report_new(PROGRAM, b->json, gpu);

    if (!r)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, r);
    bench_report_number(r, "bytes", (double)b->size);
    bench_report_number(r, "seed", SEED);
    bench_report_number(r, "warm_ups", b->warm_ups);
    bench_report_number(r, "rounds", b->repeats);
    bench_report_row(r, "plain copy", "GB/s", &b->copies, NULL);
    if (b->pinned.n)
        bench_report_row(r, "WRITE ioctl from pinned memory, over", "GB/s", &b->pinned,
                         "plain copy");
    bare_rows_report(&b->bare, r, "64 KiB of pinned memory", "plain copy", bare, sizeof(bare));
    bare_rows_report(&b->bare_old, r, "blocks in no cache", "plain copy", bare_old,
                     sizeof(bare_old));
    if (!b->old_bytes)
        memcpy(bare_old, bare, sizeof(bare));
    bench_report_row(r, "WRITE ioctl, new file", "GB/s", &b->fresh,
                     bare_old[0] ? bare_old : "plain copy");
    bench_report_row(r, "WRITE ioctl, over", "GB/s", &b->over, bare[0] ? bare : "plain copy");
    bench_report_end(r);
    return 0;
}

/* The old file, whole parts of b->size, written as the file is. */
static int make_old(struct bench *b, const char *dir)
{
    uint64_t bytes = OLD_BYTES / b->size * b->size;
    int err;

    if (!has_bare(b) || b->size >= OLD_BYTES / 2)
        return 0;
    err = bench_file_create(&b->old, PROGRAM, dir);
    for (uint64_t at = 0; at < bytes && !err; at += b->size) {
        if (gpunvme_write(b->mount.buffer, b->old.fd, 0, at, b->size, NULL) != (ssize_t)b->size)
            err = fail("WRITE of the old file", gpunvme_error());
    }
    b->old_bytes = err ? 0 : bytes;
    return err;
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
    err = bench_file_create(&b->file, PROGRAM, dir);
    return err ? err : make_old(b, dir);
}

static void tear_down(struct bench *b)
{
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
    bench_host_free(b->mount.memory.on_gpu, b->host);
    bench_mount_close(&b->mount);
    bench_file_close(&b->file);
    bench_file_close(&b->old);
}

static int measure(struct bench *b)
{
    int err = 0;

    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        if (i == b->warm_ups) {
            b->copies.n = b->pinned.n = b->fresh.n = b->over.n = 0;
            b->bare = b->bare_old = (struct bare_rows){0};
        }
        err = measure_once(b);
    }
    return err ? err : report(b);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:w:o:q:d:h")) != -1) {
        if (opt == 'w')
            b->warm_ups = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_lease_option(opt, &b->lease) &&
                 !bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < UNIT || b->size % UNIT ||
           b->size > (uint64_t)1 << 40;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)4 << 30,
                             .repeats = 5,
                             .warm_ups = 1,
                             .lease = {.queues = 8, .depth = 65},
                             .file.fd = -1,
                             .old.fd = -1};
    int err;

    if (parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM
              " [-s MiB, a multiple of 16] [-r REPEATS] [-w ROUNDS that warm up]\n"
              "                   [-o json] [-q QUEUES leased, -d of DEPTH, for the bare loop] "
              "DIRECTORY\n",
              stderr);
        return 2;
    }
    err = set_up(&b, argv[optind]);
    if (!err)
        err = measure(&b);
    tear_down(&b);
    return err ? 1 : 0;
}
