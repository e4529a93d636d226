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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
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

static struct {
    unsigned block, most; /* warps of a block, and of a kernel */
} small = {.block = 1, .most = 2112};

static int small_new_pieces(struct bench *b, struct read_kind kind)
{
    return bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, kind.bytes,
                             kind.from, b->size - kind.from, true);
}

/* --- Threads of the host --------------------------------------------------------------------- */

enum host_way { HOST_INFO, HOST_READ, HOST_DIRECT };
static const char *const host_names[] = {"INFO", "READ", "waiting hosts, direct path"};

/* Describes threads that read `each` pieces. */
struct readers {
    const struct bench *b;
    enum host_way way;
    uint64_t each;
};

static int small_info(const struct bench *b)
{
    struct gpunvme_ioc_info info;

    return gpunvme_info(connection_fd(b->mount.g), &info) ? bench_fail("INFO", gpunvme_error()) : 0;
}

static int small_read_piece(const struct bench *b, enum host_way way, uint64_t i)
{
    uint64_t at = i * SMALL, place = b->pieces.places[i];

    if (way == HOST_INFO)
        return small_info(b);
    if (way == HOST_DIRECT)
        return bench_direct_read_wait(&b->direct, (char *)b->mount.memory.addr + at, SMALL, place);
    return bench_mount_read(&b->mount, b->file.fd, at, place, SMALL, GPUNVME_PATH_GPU, NULL);
}

static int small_read_pieces(void *of, unsigned thread)
{
    const struct readers *r = of;
    int err = 0;

    for (uint64_t i = thread * r->each; i < (thread + 1) * r->each && !err; i++)
        err = small_read_piece(r->b, r->way, i);
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
            err = bench_run_threads(threads, small_read_pieces,
                                    &(struct readers){.b = b, .way = way, .each = each});
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
                           warps, small.block, &result);
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
        for (int way = 0; way < WARPS_WAYS && warp_counts[i] <= small.most && !err; way++)
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
    return err;
}

static int small_set_up(struct bench *b)
{
    int err = bench_begin_mounted(b, b->size);

    if (!err)
        err = bench_host_fill(b);
    if (err)
        return err;
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "warps_of_a_block", small.block);
    return bench_file_make(&b->file, b->dir, b->size, SEED);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .seed = SEED,
                             .repeats = 3,
                             .lease = {.queues = 32, .depth = 256}};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'b', BENCH_UNSIGNED, &small.block, 1, BLOCK_MOST},
                                           {'w', BENCH_UNSIGNED, &small.most, 0, UINT32_MAX},
                                           BENCH_LEASE_OPTIONS(b),
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s MiB, a multiple of 16] [-r REPEATS] [-o json]\n"
                           "                   [-q QUEUES leased, -d of DEPTH] [-b WARPS of a"
                           " block]\n"
                           "                   [-w most WARPS] DIRECTORY\n");
    int err = small_set_up(&b);
    if (!err)
        err = small_measure_all(&b);
    return bench_end(&b, err);
}
