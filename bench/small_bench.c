/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how many small reads a second threads of the host and warps of a kernel make.
 *
 * Each thread of the host has one read of 4 KiB at a time: READ and, if the mount lends the direct
 * path (-o direct=), a host that waits on it. INFO, an ioctl that does nothing, shows the part of
 * FUSE in a READ. With a GPU and the direct path there are also kernels: warps that read one piece
 * after another, threads that read a piece each, and warps that have several reads in flight by
 * tickets, beside a bare kernel that gathers the same pieces from pinned memory. bare_bench shows
 * what the controller gives to as many warps. The memory is verified after each run, over poison.
 * The first round warms up.
 *
 * Example: on_mount.sh 2560M gpu=require,direct=all,sim=threads:8:lba:512 small_bench
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/direct_bench_kernels.h"
#include "bench/lib/direct_kernels.h"

#define PROGRAM      "small_bench"
#define SEED         0x736d616c6cu
#define UNIT         ((uint64_t)16 << 20) /* sizes of files are multiples of it */
#define SMALL        4096u
#define HOST_READS   2000u /* maximum reads of a host thread in a run */
#define THREADS_MOST 16u
#define READS_WARP   2000u /* maximum reads of a warp in a run */
#define BLOCK_MOST   32u   /* warps of a block */

static const unsigned thread_counts[] = {1, 4, THREADS_MOST};

struct read_kind {
    uint64_t bytes, from;
};

struct bench {
    uint64_t size; /* of the file, and the maximum that a run reads */
    unsigned repeats, block, most;
    bool json;
    struct bench_mount mount;
    struct bench_file file;
    void *host; /* bytes of the file, pinned */
    struct pattern_pieces pieces;
    struct direct_options lease;
    struct bench_direct direct;
    struct bench_report *report;
};

static int small_new_pieces(struct bench *b, struct read_kind kind)
{
    return bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, kind.bytes,
                             kind.from, b->size - kind.from, true);
}

/* --- Threads of the host --------------------------------------------------------------------- */

enum host_way { HOST_INFO, HOST_READ, HOST_DIRECT };
static const char *const host_names[] = {"INFO", "READ", "waiting hosts, direct path"};

/* Reads pieces [from, to). */
struct reader {
    struct bench *b;
    enum host_way way;
    uint64_t from, to;
    pthread_t thread;
    int err;
};

static int small_info(const struct bench *b)
{
    struct gpunvme_ioc_info info;

    return gpunvme_info(connection_fd(b->mount.g), &info) ? bench_fail("INFO", gpunvme_error()) : 0;
}

static int small_read_piece(const struct bench *b, enum host_way way, uint64_t i)
{
    struct gpunvme_result result = {.path = GPUNVME_PATH_GPU};
    uint64_t at = i * SMALL, place = b->pieces.places[i];
    ssize_t n;

    if (way == HOST_INFO)
        return small_info(b);
    if (way == HOST_DIRECT)
        n = direct_read_wait(b->direct.file, (char *)b->mount.memory.addr + at, SMALL, place);
    else
        n = transfer_read(b->mount.buffer, b->file.fd, at, place, SMALL, &result);
    if (n == SMALL && result.path == GPUNVME_PATH_GPU)
        return 0;
    return bench_fail(host_names[way], n < 0 ? gpunvme_error() : "short, or not by the GPU path");
}

static void *small_read_pieces(void *arg)
{
    struct reader *r = arg;

    for (uint64_t i = r->from; i < r->to && !r->err; i++)
        r->err = small_read_piece(r->b, r->way, i);
    return NULL;
}

static int run_threads(struct bench *b, enum host_way way, unsigned threads, uint64_t each)
{
    struct reader readers[THREADS_MOST];
    unsigned started = 0;
    int err = 0;

    for (; started < threads; started++) {
        struct reader *r = &readers[started];

        *r =
            (struct reader){.b = b, .way = way, .from = started * each, .to = (started + 1) * each};
        err = -pthread_create(&r->thread, NULL, small_read_pieces, r);
        if (err)
            break;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(readers[i].thread, NULL);
        err = err ? err : readers[i].err;
    }
    return err;
}

static int small_measure_threads(struct bench *b, enum host_way way, unsigned threads)
{
    const char *series = host_names[way];
    uint64_t fit = b->pieces.n / threads, each = fit < HOST_READS ? fit : HOST_READS;
    struct pattern_pieces some = b->pieces;
    struct bench_samples rates = {.n = 0};
    char name[64];
    int err = 0;

    some.n = each * threads;
    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        err = bench_poison(&b->mount.memory, SEED);
        double start = bench_seconds();
        if (!err)
            err = run_threads(b, way, threads, each);
        if (i > 0)
            bench_add(&rates, (double)some.n * 1e-6 / (bench_seconds() - start));
        if (!err && way != HOST_INFO)
            err = bench_verify(&b->mount.memory, &some, PROGRAM);
    }
    if (err)
        return err;
    snprintf(name, sizeof(name), "%s, %u B, %u threads of the host", series, SMALL, threads);
    bench_report_row(b->report, name, "M/s", &rates, NULL);
    bench_report_point(b->report, "threads of the host", series, threads);
    return 0;
}

static int measure_host(struct bench *b, enum host_way way)
{
    int err = small_new_pieces(b, (struct read_kind){SMALL, 0});

    for (size_t i = 0; i < sizeof(thread_counts) / sizeof(thread_counts[0]) && !err; i++)
        err = small_measure_threads(b, way, thread_counts[i]);
    return err;
}

/* --- Warps of a kernel ----------------------------------------------------------------------- */

#ifdef GPUNVME_HAVE_CUDA

/*
 * Rows of 256 bytes begin at byte 8104, where the data of a tensor file may
 * begin, so some of them cross blocks.
 */
static const struct read_kind read_kinds[] = {{256, 8104}, {512, 0}, {SMALL, 0}};
static const unsigned warp_counts[] = {1, 8, 16, 32, 128, 512, 1056, 2112};
static const char *const way_names[WARPS_WAYS] = {"warps", "threads of warps", "tickets of warps"};

/*
 * Runs the first n pieces once, by the gather if there are no warps. The rate is in millions a
 * second.
 */
static int run_warps(struct bench *b, enum warps_way way, unsigned warps, uint64_t n,
                     struct bench_samples *rates)
{
    struct pattern_pieces some = b->pieces;
    int err = bench_poison(&b->mount.memory, SEED);
    double start = bench_seconds();
    int64_t result = 0;

    some.n = n;
    if (!err && warps)
        err = kernel_warps(way, leased_file_device(b->direct.file), &some, b->mount.memory.addr,
                           warps, b->block, &result);
    else if (!err)
        err = bench_gather(&b->mount.memory, b->host, &some);
    bench_add(rates, (double)n * 1e-6 / (bench_seconds() - start));
    if (err && !warps)
        return bench_fail("gather", "the GPU failed");
    if (err) {
        fprintf(stderr, PROGRAM ": %s, %u warps of %llu B: %s\n", way_names[way], warps,
                (unsigned long long)some.bytes,
                result < 0 ? strerror((int)-result) : "a read was short, or the GPU failed");
        return err;
    }
    return bench_verify(&b->mount.memory, &some, PROGRAM);
}

/* Returns the number of reads, all for the gather; each of the threads has 32 at a time. */
static uint64_t reads_of(const struct bench *b, enum warps_way way, unsigned warps)
{
    uint64_t n = (uint64_t)READS_WARP * warps * (way == WARPS_THREADS ? 32 : 1);

    return warps && n < b->pieces.n ? n : b->pieces.n;
}

/* Measures one number of warps, or with 0 the gather, which `bound` names. */
static int small_measure_warps(struct bench *b, enum warps_way way, unsigned warps,
                               const char *bound)
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
    snprintf(name, sizeof(name), "%s, %llu B, %u", way_names[way],
             (unsigned long long)b->pieces.bytes, warps);
    bench_report_row(b->report, warps ? name : bound, "M/s", &rates, warps ? bound : NULL);
    if (warps)
        bench_report_point(b->report, "warps", way_names[way], warps);
    return 0;
}

static int measure_pieces(struct bench *b, struct read_kind kind)
{
    char bound[64];
    int err = small_new_pieces(b, kind);

    snprintf(bound, sizeof(bound), "gather kernel, %llu B", (unsigned long long)kind.bytes);
    if (!err)
        err = small_measure_warps(b, WARPS_SHARED, 0, bound);
    for (size_t i = 0; i < sizeof(warp_counts) / sizeof(warp_counts[0]) && !err; i++) {
        for (int way = 0; way < WARPS_WAYS && warp_counts[i] <= b->most && !err; way++)
            err = small_measure_warps(b, (enum warps_way)way, warp_counts[i], bound);
    }
    return err;
}

static int measure_kernels(struct bench *b)
{
    int err = 0;

    for (size_t i = 0; i < sizeof(read_kinds) / sizeof(read_kinds[0]) && !err; i++)
        err = measure_pieces(b, read_kinds[i]);
    return err;
}

#endif

/* --- The program ----------------------------------------------------------------------------- */

static int small_measure_all(struct bench *b)
{
    int err = measure_host(b, HOST_INFO);

    if (!err)
        err = measure_host(b, HOST_READ);
    if (err || !b->mount.info.direct)
        return err;
    err = bench_direct_open(&b->direct, &b->mount, b->file.fd, &b->lease);
    if (!err)
        err = measure_host(b, HOST_DIRECT);
#ifdef GPUNVME_HAVE_CUDA
    if (!err && b->mount.memory.on_gpu)
        err = measure_kernels(b);
#endif
    bench_direct_close(&b->direct);
    return err;
}

static int small_set_up(struct bench *b, const char *dir)
{
    bool gpu;

    if (bench_mount_open(&b->mount, dir, b->size))
        return -EIO;
    if (!b->mount.g)
        return bench_fail(dir, "not on a gpunvmefs mount");
    gpu = b->mount.memory.on_gpu;
    b->host = bench_host_alloc(gpu, b->size);
    b->report = bench_mount_report(&b->mount, b->json);
    if (!b->host || !b->report)
        return bench_fail("memory", "not enough of it");
    bench_report_number(b->report, "lba_size", b->mount.info.lba_size);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "leased_queues", b->lease.queues);
    bench_report_number(b->report, "leased_depth", b->lease.depth);
    bench_report_number(b->report, "warps_of_a_block", b->block);
    bench_report_number(b->report, "seed", SEED);
    pattern_host_write(b->host, b->size, SEED, 0, false);
    return bench_file_make(&b->file, dir, b->size, SEED);
}

static void small_tear_down(struct bench *b)
{
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
    if (b->host)
        bench_host_free(b->mount.memory.on_gpu, b->host);
    bench_file_close(&b->file);
    bench_mount_close(&b->mount);
}

static int small_parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:o:q:d:b:w:h")) != -1) {
        if (opt == 'b')
            b->block = (unsigned)strtoul(optarg, NULL, 10);
        else if (opt == 'w')
            b->most = (unsigned)strtoul(optarg, NULL, 10);
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
                             .lease = {.queues = 32, .depth = 256},
                             .file = {.fd = -1}};
    int err, failed;

    if (small_parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, a multiple of 16] [-r REPEATS] [-o json]\n"
              "                   [-q QUEUES leased, -d of DEPTH] [-b WARPS of a block]\n"
              "                   [-w most WARPS] DIRECTORY\n",
              stderr);
        return 2;
    }
    err = small_set_up(&b, argv[optind]);
    if (!err)
        err = small_measure_all(&b);
    failed = bench_report_close(b.report, err);
    small_tear_down(&b);
    return failed;
}
