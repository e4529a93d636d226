/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels whose warps read for themselves: how many small reads a second, by how many warps?
 *
 * For each size of a read and each number of warps, in one run: warps that read one piece after
 * another through shared queues, threads that read a piece each, warps that have several reads
 * under way by tickets, and, for few warps, reads that have a queue for themselves; against a bare
 * kernel that gathers the same pieces out of pinned memory. The memory is checked after each run,
 * over poison. Reads that are shorter than the mount's LBAs have no rows:
 *
 *     on_mount.sh 2560M gpu=require,direct=all,sim=threads:8:lba:512 warps_bench
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/direct_bench_kernels.h"
#include "bench/lib/warps_kernels.h"

#define PROGRAM    "warps_bench"
#define SEED       0x7761727073u
#define UNIT       ((uint64_t)16 << 20) /* sizes of files are multiples of it */
#define READS_WARP 2000u                /* of a warp in a run, at most */
#define OWN_MOST   32u                  /* warps that have queues for themselves, at most */
#define BLOCK_MOST 32u                  /* warps of a block */

static const uint64_t read_sizes[] = {512, 4096};
static const unsigned warp_counts[] = {1, 8, 32, 128, 512, 1056, 2112};
static const char *const way_names[WARPS_WAYS] = {"own queue", "shared", "threads", "tickets"};

struct bench {
    uint64_t size; /* of the file, and the most that a run reads */
    unsigned repeats, block, most;
    bool json, hog, small;
    struct bench_mount mount;
    struct bench_file file;
    void *host; /* the file's bytes, pinned */
    struct pattern_pieces pieces;
    struct gpunvme_direct_options lease;
    struct bench_direct direct;
    struct bench_report *report;
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return -EIO;
}

/* A run of the first n pieces, and its rate in millions a second. */
static int run_warps(struct bench *b, enum warps_way way, unsigned warps, uint64_t n,
                     struct bench_samples *rates)
{
    struct pattern_pieces some = b->pieces;
    int err = bench_poison(&b->mount.memory, SEED);
    double start = bench_seconds();
    int64_t result = 0;

    some.n = n;
    if (!err)
        err = (b->small ? kernel_warps_small
                        : kernel_warps)(way, gpunvme_file_device(b->direct.file), &some,
                                        b->mount.memory.addr, warps, b->block, b->hog, &result);
    bench_add(rates, (double)n * 1e-6 / (bench_seconds() - start));
    if (err) {
        fprintf(stderr, PROGRAM ": %s, %u warps of %llu B: %s\n", way_names[way], warps,
                (unsigned long long)some.bytes,
                result < 0 ? strerror((int)-result) : "a read was short, or the GPU failed");
        return err;
    }
    return bench_verify(&b->mount.memory, &some, PROGRAM);
}

static int run_gather(struct bench *b, struct bench_samples *rates)
{
    int err = bench_poison(&b->mount.memory, SEED);
    double start = bench_seconds();

    if (!err)
        err = bench_gather(&b->mount.memory, b->host, &b->pieces);
    bench_add(rates, (double)b->pieces.n * 1e-6 / (bench_seconds() - start));
    if (err)
        return fail("gather", "the GPU failed");
    return bench_verify(&b->mount.memory, &b->pieces, PROGRAM);
}

/* Threads have 32 reads at a time. */
static uint64_t reads_of(const struct bench *b, enum warps_way way, unsigned warps)
{
    uint64_t n = (uint64_t)READS_WARP * warps * (way == WARPS_THREADS ? 32 : 1);

    return n < b->pieces.n ? n : b->pieces.n;
}

/* The first round warms up. */
static int measure_way(struct bench *b, enum warps_way way, unsigned warps, const char *limit)
{
    struct bench_samples rates = {.n = 0};
    char name[64];
    int err = 0;

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        if (i == 1)
            rates.n = 0;
        err = run_warps(b, way, warps, reads_of(b, way, warps), &rates);
    }
    if (err)
        return err;
    snprintf(name, sizeof(name), "%s, %llu B, %u warps", way_names[way],
             (unsigned long long)b->pieces.bytes, warps);
    bench_report_row(b->report, name, "M/s", &rates, limit);
    bench_report_point(b->report, "warps", way_names[way], warps);
    return 0;
}

static int measure_limit(struct bench *b, const char *name)
{
    struct bench_samples rates = {.n = 0};
    int err = 0;

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        if (i == 1)
            rates.n = 0;
        err = run_gather(b, &rates);
    }
    if (!err)
        bench_report_row(b->report, name, "M/s", &rates, NULL);
    return err;
}

static int measure_pieces(struct bench *b)
{
    char limit[64];
    int err;

    snprintf(limit, sizeof(limit), "gather kernel, %llu B", (unsigned long long)b->pieces.bytes);
    err = measure_limit(b, limit);
    for (size_t i = 0; i < sizeof(warp_counts) / sizeof(warp_counts[0]) && !err; i++) {
        for (int way = 0; way < WARPS_WAYS && !err; way++) {
            if (warp_counts[i] <= b->most && (way != WARPS_OWN || warp_counts[i] <= OWN_MOST))
                err = measure_way(b, (enum warps_way)way, warp_counts[i], limit);
        }
    }
    return err;
}

static int measure(struct bench *b, uint64_t bytes)
{
    uint64_t state = SEED;
    int err = bench_pieces_make(&b->pieces, true, SEED, b->size, bytes, b->size, &state);

    if (err)
        return fail("memory", "not enough of it");
    err = measure_pieces(b);
    bench_pieces_free(&b->pieces, true);
    return err;
}

static int measure_all(struct bench *b)
{
    int err;

    b->report = bench_report_new(PROGRAM, b->json, bench_gpu_name());
    if (!b->report)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, b->report);
    bench_report_number(b->report, "lba_size", b->mount.info.lba_size);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "leased queues", b->lease.queues);
    bench_report_number(b->report, "depth", b->lease.depth);
    bench_report_number(b->report, "warps of a block", b->block);
    bench_report_number(b->report, "blocks fill multiprocessors", b->hog);
    bench_report_number(b->report, "few registers", b->small);
    err = bench_direct_open_with(&b->direct, &b->mount, PROGRAM, b->file.fd, &b->lease);
    for (size_t i = 0; i < sizeof(read_sizes) / sizeof(read_sizes[0]) && !err; i++) {
        if (read_sizes[i] >= b->mount.info.lba_size)
            err = measure(b, read_sizes[i]);
    }
    bench_direct_close(&b->direct);
    return bench_report_close(b->report, err);
}

static int set_up(struct bench *b, const char *dir)
{
    if (bench_mount_open(&b->mount, PROGRAM, dir, b->size))
        return -EIO;
    if (!b->mount.g)
        return fail(dir, "not on a gpunvmefs mount");
    if (!b->mount.memory.on_gpu)
        return fail(dir, "the mount has no GPU");
    if (!b->mount.info.direct)
        return fail(dir, "the mount has no direct path for this user (-o direct=)");
    b->host = bench_host_alloc(true, b->size);
    if (!b->host)
        return fail("memory", "not enough of it");
    pattern_host_write(b->host, b->size, SEED, 0, false);
    return bench_file_make(&b->file, PROGRAM, dir, b->size, SEED);
}

static void tear_down(struct bench *b)
{
    if (b->host)
        bench_host_free(true, b->host);
    bench_file_close(&b->file);
    bench_mount_close(&b->mount);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:o:q:d:b:w:fSh")) != -1) {
        unsigned long value = optarg ? strtoul(optarg, NULL, 10) : 0;

        if (opt == 'b')
            b->block = (unsigned)value;
        else if (opt == 'w')
            b->most = (unsigned)value;
        else if (opt == 'f')
            b->hog = true;
        else if (opt == 'S')
            b->small = true;
        else if (!bench_lease_option(opt, &b->lease) &&
                 !bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < UNIT || b->size % UNIT ||
           b->block < 1 || b->block > BLOCK_MOST;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .repeats = 3,
                             .block = 1,
                             .most = 2112,
                             .lease = {.queues = 16, .depth = 256},
                             .file = {.fd = -1}};

    if (parse(argc, argv, &b)) {
        fputs("usage: warps_bench [-s MiB, a multiple of 16] [-r REPEATS] [-o json]\n"
              "                   [-q QUEUES leased, -d of DEPTH] [-b WARPS of a block]\n"
              "                   [-w most WARPS] [-f: a block fills a multiprocessor]\n"
              "                   [-S: kernels of few registers] DIRECTORY\n",
              stderr);
        return 2;
    }
    int err = set_up(&b, argv[optind]);

    if (!err)
        err = measure_all(&b);
    tear_down(&b);
    return err ? 1 : 0;
}
