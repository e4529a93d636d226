/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One file, one application thread: how fast do its bytes reach GPU memory?
 *
 * Ways, in one run and in turn: a pinned cudaMemcpy of the same size (the PCIe limit), the READ
 * ioctl, the direct path where the mount lends it, in a stream, for a host that waits and by blocks
 * of a kernel, and what people do today (-p: all of it). Every byte that reached the GPU is checked
 * there after each run, over poison. What each costs the CPU is told too. On a mount whose executor
 * is the CPU: the same, in host memory. On one that stages: beside a bare loop that reads 64 KiB at
 * a time on leased queues into pinned memory (bench/lib/bare_kernels.h), what the controller gives.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bare_rows.h"
#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/block_kernels.h"
#include "bench/lib/cpu.h"
#include "bench/lib/direct_bench_kernels.h"
#include "bench/lib/peers.h"

#define PROGRAM  "ioctl_bench"
#define SEED     0x6770756e766du
#define UNIT     ((uint64_t)16 << 20) /* sizes are multiples of it */
#define MAX_WAYS 16u
/* Of the bare loop: its commands, memory that remains in the caches of the processors, queues. */
#define BARE_PIECE  65536u
#define BARE_ROOM   ((uint64_t)4 << 20)
#define BARE_QUEUES 8u
#define SOME_BLOCKS 16u

struct bench {
    uint64_t size;
    unsigned repeats, warm_ups;
    bool json, all_peers;
    struct bench_mount mount;
    struct bench_direct direct;
    struct peer_job job;
    struct pattern_pieces pieces; /* the whole file */
    struct pattern_pieces commands_of_bare;
    struct bare_rows bare;
    struct bench_file file;
    uint64_t commands;
};

struct way {
    const char *name;
    int (*run)(struct bench *b); /* NULL: peer */
    const struct peer *peer;
    bool missing;
    struct bench_samples rates;
    struct bench_cpu cpu; /* of all samples */
};

static int fail(const char *object, const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", object, what);
    return 1;
}

static int plain_copy(struct bench *b)
{
    int err = 0;

    for (uint64_t at = 0; at < b->size && !err; at += PEER_CHUNK)
        err = bench_stream_copy(&b->job.streams[0], &b->mount.memory, at, PEER_CHUNK);
    return err ? err : bench_stream_wait(&b->job.streams[0]);
}

static int read_to(struct bench *b, struct gpunvme_buffer *buffer)
{
    struct gpunvme_result result;
    ssize_t n = gpunvme_read(buffer, b->job.fd, 0, 0, b->size, &result);

    b->commands = result.commands;
    if (n == (ssize_t)b->size && result.path == GPUNVME_PATH_GPU)
        return 0;
    fail("READ", n < 0 ? gpunvme_error() : "short, or not by the GPU path");
    return -EIO;
}

static int read_ioctl(struct bench *b)
{
    return read_to(b, b->mount.buffer);
}

/* Without staging: what the controller gives. */
static int read_pinned(struct bench *b)
{
    return read_to(b, b->mount.pinned);
}

static int read_direct(struct bench *b)
{
    return bench_direct_read(&b->direct, PROGRAM, b->mount.memory.addr, b->size, 0);
}

static int read_waiting(struct bench *b)
{
    ssize_t n = gpunvme_file_read(b->direct.file, b->mount.memory.addr, b->size, 0);

    if (n == (ssize_t)b->size)
        return 0;
    fail("gpunvme_file_read", n < 0 ? gpunvme_error() : "short");
    return -EIO;
}

static bool has_bare_loop(const struct bench *b)
{
    return b->mount.pinned && b->mount.memory.on_gpu && b->direct.file;
}

#ifdef GPUNVME_HAVE_CUDA

static int read_by_blocks(struct bench *b, uint64_t part, unsigned blocks)
{
    int err = kernel_block_reads(gpunvme_file_device(b->direct.file), b->mount.memory.addr, b->size,
                                 part, blocks);

    if (err)
        fail("gpunvme_pread_block", strerror(-err));
    return err;
}

static int read_by_block(struct bench *b)
{
    return read_by_blocks(b, b->size, 1);
}

static int read_mib_by_block(struct bench *b)
{
    return read_by_blocks(b, (uint64_t)1 << 20, 1);
}

static int read_64k_by_block(struct bench *b)
{
    return read_by_blocks(b, 65536, 1);
}

static int read_64k_by_blocks(struct bench *b)
{
    return read_by_blocks(b, 65536, SOME_BLOCKS);
}

/* Without it its rows are missing, with a message. */
static void run_bare(struct bench *b)
{
    struct bare_loop *loop;

    if (!has_bare_loop(b))
        return;
    int err = bare_loop_open(gpunvme_file_device(b->direct.file), &b->commands_of_bare,
                             b->mount.pinned_memory.addr, BARE_ROOM, false, &loop);

    if (err) {
        fail("bare loop", err == -ENOTSUP ? "64 KiB take several commands" : strerror(-err));
        return;
    }
    (void)bare_rows_time(&b->bare, PROGRAM, loop, BARE_QUEUES, b->size);
    bare_loop_close(loop);
}

#else

static void run_bare(struct bench *b)
{
    (void)b;
}

#endif

static int run_once(struct bench *b, struct way *w)
{
    const struct bench_memory *m =
        w->run == read_pinned ? &b->mount.pinned_memory : &b->mount.memory;
    bool verified = w->run != plain_copy;
    int err = bench_poison(m, SEED);
    struct bench_cpu before = bench_cpu_now();
    double start = bench_seconds();

    if (!err)
        err = w->peer ? w->peer->run(&b->job) : w->run(b);
    bench_add(&w->rates, (double)b->size * 1e-9 / (bench_seconds() - start));
    bench_cpu_add(&w->cpu, &before);
    w->missing = w->peer && err == -ENOTSUP;
    if (w->missing)
        return 0;
    if (!err && verified)
        err = bench_verify(m, &b->pieces, w->name);
    return err ? fail(w->name, strerror(-err)) : 0;
}

static int set_up(struct bench *b, const char *dir)
{
    uint64_t state = 0;

    if (bench_mount_open(&b->mount, PROGRAM, dir, b->size))
        return 1;
    b->job.to = &b->mount.memory;
    b->job.size = b->size;
    if (peers_open(&b->job) ||
        bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, UNIT, b->size, &state))
        return fail("memory", "not enough of it");
    if (bench_file_make(&b->file, PROGRAM, dir, b->size, SEED))
        return 1;
    b->job.path = b->file.path;
    b->job.fd = b->file.fd;
    if (b->mount.g && b->mount.info.direct &&
        bench_direct_open(&b->direct, &b->mount, PROGRAM, b->file.fd))
        return 1;
    if (has_bare_loop(b) && bench_pieces_make(&b->commands_of_bare, true, SEED, b->size, BARE_PIECE,
                                              b->size, &(uint64_t){0}))
        return fail("memory", "not enough of it");
    return 0;
}

static void tear_down(struct bench *b)
{
    peers_close(&b->job);
    bench_direct_close(&b->direct);
    bench_pieces_free(&b->pieces, b->mount.memory.on_gpu);
    bench_pieces_free(&b->commands_of_bare, b->mount.memory.on_gpu);
    bench_mount_close(&b->mount);
    bench_file_close(&b->file);
}

/* By kernels of the program itself. */
static unsigned list_block_ways(const struct bench *b, struct way *ways)
{
#ifdef GPUNVME_HAVE_CUDA
    static const struct way by_blocks[] = {
        {.name = "a block, direct path", .run = read_by_block},
        {.name = "a block, 1 MiB at a time", .run = read_mib_by_block},
        {.name = "a block, 64 KiB at a time", .run = read_64k_by_block},
        {.name = "16 blocks, 64 KiB at a time", .run = read_64k_by_blocks},
    };

    if (b->direct.file && b->mount.memory.on_gpu) {
        memcpy(ways, by_blocks, sizeof(by_blocks));
        return sizeof(by_blocks) / sizeof(by_blocks[0]);
    }
#endif
    (void)b;
    (void)ways;
    return 0;
}

static unsigned list_ways(const struct bench *b, struct way *ways)
{
    unsigned n = 0;

    ways[n++] = (struct way){.name = "plain copy", .run = plain_copy};
    if (b->mount.pinned)
        ways[n++] = (struct way){.name = "READ ioctl into pinned memory", .run = read_pinned};
    if (b->mount.g)
        ways[n++] = (struct way){.name = "READ ioctl", .run = read_ioctl};
    if (b->direct.file)
        ways[n++] = (struct way){.name = "direct path", .run = read_direct};
    if (b->direct.file)
        ways[n++] = (struct way){.name = "direct path, waiting host", .run = read_waiting};
    n += list_block_ways(b, &ways[n]);
    for (const struct peer *p = peers; p->name; p++) {
        if (b->all_peers || p == peers)
            ways[n++] = (struct way){.name = p->name, .peer = p};
    }
    return n;
}

static void report_cpu(const struct bench *b, struct bench_report *r, const char *way,
                       const char *whose, double seconds)
{
    struct bench_samples sample = {.n = 0};
    char name[128];

    snprintf(name, sizeof(name), "%s: CPU of %s", way, whose);
    bench_add(&sample, seconds / ((double)b->size * 1e-9 * b->repeats));
    bench_report_row(r, name, "s/GB", &sample, NULL);
}

/* Seconds of CPU for a GB are cores for each GB/s. */
static void report_costs(const struct bench *b, struct bench_report *r, const struct way *ways,
                         unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const struct way *w = &ways[i];

        if (w->missing)
            continue;
        report_cpu(b, r, w->name, "the application", w->cpu.self);
        if (w->run != plain_copy && b->mount.g && bench_cpu_knows_daemon()) {
            report_cpu(b, r, w->name, "the daemon", w->cpu.daemon);
            report_cpu(b, r, w->name, "the simulated drive", w->cpu.drive);
        }
    }
}

/* Reads of the mount are compared with what its controller gives, where that was measured. */
static void report_rates(struct bench *b, struct bench_report *r, struct way *ways, unsigned n)
{
    char bare[64];

    for (unsigned i = 0; i < n; i++) {
        struct way *w = &ways[i];
        const char *base = i == 0 ? NULL : w->peer || !bare[0] ? "plain copy" : bare;

        if (w->missing)
            fprintf(stderr, PROGRAM ": %s: not there for this file and machine\n", w->name);
        else
            bench_report_row(r, w->name, "GB/s", &w->rates, base);
        if (i == 0)
            bare_rows_report(&b->bare, r, "64 KiB of pinned memory", w->name, bare, sizeof(bare));
    }
}

static int report(struct bench *b, struct way *ways, unsigned n)
{
    const char *gpu = b->mount.memory.on_gpu ? bench_gpu_name() : NULL;
    struct bench_report *r = bench_report_new(PROGRAM, b->json, gpu);

    if (!r)
        return fail("memory", "not enough of it");
    bench_mount_describe(&b->mount, r);
    bench_report_number(r, "bytes", (double)b->size);
    bench_report_number(r, "commands", (double)b->commands);
    bench_report_number(r, "seed", SEED);
    bench_report_number(r, "warm_ups", b->warm_ups);
    bench_report_number(r, "rounds", b->repeats);
    report_rates(b, r, ways, n);
    report_costs(b, r, ways, n);
    bench_report_end(r);
    return 0;
}

static void forget_samples(struct bench *b, struct way *ways, unsigned n)
{
    b->bare = (struct bare_rows){0};
    for (unsigned w = 0; w < n; w++) {
        ways[w].rates.n = 0;
        ways[w].cpu = (struct bench_cpu){.self = 0};
    }
}

static int measure(struct bench *b)
{
    static struct way ways[MAX_WAYS];
    unsigned n = list_ways(b, ways);

    for (unsigned i = 0; i < b->warm_ups + b->repeats; i++) {
        if (i == b->warm_ups)
            forget_samples(b, ways, n);
        for (unsigned w = 0; w < n; w++) {
            if (!ways[w].missing && run_once(b, &ways[w]))
                return 1;
        }
        run_bare(b);
    }
    return report(b, ways, n);
}

static int parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:w:o:ph")) != -1) {
        if (opt == 'p')
            b->all_peers = true;
        else if (opt == 'w')
            b->warm_ups = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < UNIT || b->size % UNIT;
}

int main(int argc, char **argv)
{
    static struct bench b = {
        .size = (uint64_t)4 << 30, .repeats = 5, .warm_ups = 1, .file = {.fd = -1}};
    int failed;

    if (parse(argc, argv, &b)) {
        fputs("usage: ioctl_bench [-s MiB, a multiple of 16] [-r REPEATS] [-w ROUNDS] [-p] [-o "
              "json] DIRECTORY\n"
              "  -w  rounds that warm up and are not counted; the daemon measures queues in them\n"
              "  -p  all ways that people read today, not only pread with one thread\n"
              "DIRECTORY: on a mount of gpunvmefs; elsewhere without the READ ioctl\n",
              stderr);
        return 2;
    }
    failed = set_up(&b, argv[optind]) || measure(&b);
    tear_down(&b);
    return failed;
}
