/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how fast one application thread moves the bytes of files to GPU memory and back.
 *
 * For one file it compares a pinned copy of the same size (the limit of the link), READ, the direct
 * path if the mount lends it (-o direct=) in a stream, for a host that waits and by blocks of a
 * kernel, the bounce pipeline of the library, and what people use today (-p). Then it compares a
 * copy to pinned memory, WRITE over data, and WRITE to a new file, whose blocks are allocated. It
 * reports the rates and the seconds of CPU for each GB.
 *
 * -c repeats this beside computing (bench/lib/computer.h) and reports what each costs the other.
 * The daemon is another process, so without MPS the GPU is time-sliced between READ and the
 * computing, while the kernels of the direct path belong to the application.
 *
 * All ways run in turn. Every byte is verified after each run, over poison, and written bytes are
 * read back. The first rounds (-w) warm up and are not counted. On a mount whose executor is the
 * CPU all memory is host memory. On other file systems only the ways of others exist. bare_bench
 * shows what the controller gives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/computer.h"
#include "bench/lib/cpu.h"
#include "bench/lib/direct_kernels.h"
#include "bench/lib/peers.h"

#define PROGRAM     "file_bench"
#define SEED        0x6770756e766du
#define SEED_OVER   (SEED + 1)           /* seed of what is written over data */
#define UNIT        ((uint64_t)16 << 20) /* sizes are multiples of it */
#define MAX_WAYS    20u
#define COPY_BYTES  ((uint64_t)256 << 20) /* maximum of a pinned copy out */
#define SOME_BLOCKS 16u

static struct {
    bool all_peers, computing;
    struct peer_job job;
    struct bench_computer computer;
    struct bench_file written;
    void *out; /* COPY_BYTES, pinned if there is a GPU */
    uint64_t commands;
} files = {.written = {.fd = -1}};

enum kind { COPY, READ, COPY_OUT, WRITE_OVER, WRITE_NEW };

struct way {
    const char *name;
    enum kind kind;
    int (*run)(struct bench *b, const struct way *w); /* NULL for a peer */
    const struct peer *peer;
    uint32_t path;   /* of file_move() */
    uint64_t part;   /* of read_by_blocks(); 0: all bytes */
    unsigned blocks; /* of read_by_blocks() */
    struct bench_samples rates, computing;
    struct bench_cpu cpu; /* of all samples */
};

/* --- Ways to move one file ------------------------------------------------------------------- */

static int plain_copy(struct bench *b, const struct way *w)
{
    int err = 0;

    (void)w;
    for (uint64_t at = 0; at < b->size && !err; at += PEER_CHUNK)
        err = bench_stream_copy(&files.job.streams[0], &b->mount.memory, at, PEER_CHUNK);
    return err ? err : bench_stream_wait(&files.job.streams[0]);
}

static int file_move(struct bench *b, const struct way *w)
{
    bool bounced = w->path == GPUNVME_PATH_BOUNCE;
    int err = bounced ? bench_mount_take_path(&b->mount, w->path) : 0, back = 0;

    if (!err)
        err = w->kind == READ ? bench_mount_read(&b->mount, b->file.fd, 0, 0, b->size, w->path,
                                                 bounced ? NULL : &files.commands)
                              : bench_mount_write(&b->mount, files.written.fd, b->size, w->path);
    if (bounced)
        back = bench_mount_take_path(&b->mount, GPUNVME_PATH_GPU);
    return err ? err : back;
}

static int file_read_direct(struct bench *b, const struct way *w)
{
    (void)w;
    return bench_direct_read(&b->direct, b->mount.memory.addr, b->size, 0);
}

static int read_waiting(struct bench *b, const struct way *w)
{
    (void)w;
    return bench_direct_read_wait(&b->direct, b->mount.memory.addr, b->size, 0);
}

#ifdef GPUNVME_HAVE_CUDA

static int read_by_blocks(struct bench *b, const struct way *w)
{
    int err = kernel_block_reads(leased_file_device(b->direct.file), b->mount.memory.addr, b->size,
                                 w->part ? w->part : b->size, w->blocks);

    return err ? bench_fail_with("gpunvme_pread_block", err) : 0;
}

#endif

static int copy_out(struct bench *b, const struct way *w)
{
    int err = 0;

    (void)w;
    for (uint64_t at = 0; at < b->size && !err; at += COPY_BYTES) {
        uint64_t left = b->size - at;

        err =
            buffer_copy_out(b->mount.buffer, at, files.out, left < COPY_BYTES ? left : COPY_BYTES);
    }
    return err ? bench_fail("copy", gpunvme_error()) : 0;
}

/* --- Samples --------------------------------------------------------------------------------- */

static int prepare(struct bench *b, const struct way *w)
{
    switch (w->kind) {
    case WRITE_NEW:
        if (ftruncate(files.written.fd, 0))
            return bench_fail_with(files.written.path, -errno);
        return bench_fill(&b->mount.memory, b->size, SEED);
    case WRITE_OVER:
        return bench_fill(&b->mount.memory, b->size, SEED_OVER);
    default:
        return bench_poison(&b->mount.memory, SEED);
    }
}

/* Verifies what a READ has stored, or what a WRITE has put into the file. */
static int file_verify(struct bench *b, const struct way *w)
{
    struct pattern_pieces want = b->pieces;
    int err = 0;

    if (w->kind == COPY || w->kind == COPY_OUT)
        return 0;
    if (w->kind != READ) {
        want.seed = w->kind == WRITE_OVER ? SEED_OVER : SEED;
        err = bench_poison(&b->mount.memory, want.seed);
        if (!err)
            err = bench_mount_read(&b->mount, files.written.fd, 0, 0, b->size, GPUNVME_PATH_GPU,
                                   NULL);
    }
    return err ? err : bench_verify(&b->mount.memory, &want, w->name);
}

static int file_sample(struct bench *b, struct way *w)
{
    int err = prepare(b, w), end;

    if (!err)
        err = bench_computer_start(&files.computer);
    if (err)
        return err;
    struct bench_cpu before = bench_cpu_now();
    double start = bench_seconds();
    err = w->peer ? w->peer->run(&files.job, w->peer->threads) : w->run(b, w);
    bench_add(&w->rates, (double)b->size * 1e-9 / (bench_seconds() - start));
    bench_cpu_add(&w->cpu, &before);
    end = bench_computer_stop(&files.computer, &w->computing);
    err = err ? err : end;
    return err ? bench_fail_with(w->name, err) : file_verify(b, w);
}

static int measure_ways(struct bench *b, struct way *ways, unsigned n)
{
    int err = 0;

    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        for (unsigned k = 0; k < n && !err; k++) {
            if (i == b->warm_ups) {
                ways[k].rates.n = ways[k].computing.n = 0;
                ways[k].cpu = (struct bench_cpu){.self = 0};
            }
            err = file_sample(b, &ways[k]);
        }
    }
    return err;
}

/* --- One file -------------------------------------------------------------------------------- */

static unsigned add_ways(struct way *ways, const struct way *more, unsigned n)
{
    memcpy(ways, more, n * sizeof(*more));
    return n;
}

static unsigned list_reads(const struct bench *b, struct way *ways)
{
    static const struct way on_mount[] = {
        {"READ ioctl", READ, file_move, .path = GPUNVME_PATH_GPU},
        {"bounce pipeline of the library", READ, file_move, .path = GPUNVME_PATH_BOUNCE},
    };
    static const struct way direct[] = {
        {.name = "direct path", .kind = READ, .run = file_read_direct},
        {.name = "direct path, waiting host", .kind = READ, .run = read_waiting},
#ifdef GPUNVME_HAVE_CUDA
        {"a block, direct path", READ, read_by_blocks, .blocks = 1},
        {"a block, 1 MiB at a time", READ, read_by_blocks, .part = 1u << 20, .blocks = 1},
        {"16 blocks, 64 KiB at a time", READ, read_by_blocks, .part = 65536, .blocks = SOME_BLOCKS},
#endif
    };
    unsigned n = add_ways(ways, &(struct way){.name = "plain copy", .run = plain_copy}, 1);

    if (b->mount.g)
        n += add_ways(&ways[n], on_mount, 2);
    if (b->direct.file)
        n += add_ways(&ways[n], direct,
                      b->mount.memory.on_gpu ? sizeof(direct) / sizeof(direct[0]) : 2);
    for (const struct peer *p = peers; p->name; p++) {
        if (files.all_peers || p == peers)
            ways[n++] = (struct way){.name = p->name, .kind = READ, .peer = p};
    }
    return n;
}

static void file_report_cpu(struct bench *b, const char *way, const char *whose, double seconds)
{
    double value = seconds / ((double)b->size * 1e-9 * b->repeats);
    char name[128];

    snprintf(name, sizeof(name), "%s: CPU of %s", way, whose);
    bench_report_values(b->report, name, "s/GB", &value, 1, NULL);
}

/* Reports the ways; the first one is the bound. Seconds of CPU for a GB are cores for each GB/s. */
static void report_ways(struct bench *b, struct way *ways, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        bench_report_row(b->report, ways[i].name, "GB/s", &ways[i].rates, i ? ways[0].name : NULL);
    for (unsigned i = 1; i < n; i++) {
        bench_computer_report(b->report, ways[i].name, &ways[i].computing);
        file_report_cpu(b, ways[i].name, "the application", ways[i].cpu.self);
        if (b->mount.g && bench_cpu_knows_daemon()) {
            file_report_cpu(b, ways[i].name, "the daemon", ways[i].cpu.daemon);
            file_report_cpu(b, ways[i].name, "the simulated drive", ways[i].cpu.drive);
        }
    }
}

/*
 * Measures writes. The lease ends before, because writes to a leased file would have to revoke it.
 */
static int file_measure_writes(struct bench *b)
{
    static struct way ways[] = {
        {.name = "copy to pinned memory", .kind = COPY_OUT, .run = copy_out},
        {"WRITE ioctl, new file", WRITE_NEW, file_move, .path = GPUNVME_PATH_GPU},
        {"WRITE ioctl, over", WRITE_OVER, file_move, .path = GPUNVME_PATH_GPU},
        {"bounced WRITE, over", WRITE_OVER, file_move, .path = GPUNVME_PATH_BOUNCE},
    };
    int err = 0;

    bench_direct_close(&b->direct);
    files.out = bench_host_alloc(b->mount.memory.on_gpu, COPY_BYTES);
    if (!files.out)
        return bench_fail("memory", "not enough of it");
    err = bench_file_create(&files.written, b->dir);
    if (!err)
        err = measure_ways(b, ways, 4);
    if (!err)
        report_ways(b, ways, 4);
    return err;
}

static int file_measure(struct bench *b)
{
    static struct way ways[MAX_WAYS];
    unsigned n;
    int err = bench_file_make(&b->file, b->dir, b->size, SEED);

    files.job.fd = b->file.fd;
    if (!err && b->mount.g && b->mount.info.direct)
        err = bench_direct_open(&b->direct, &b->mount, b->file.fd, NULL);
    if (!err)
        err = bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, b->size, UNIT, 0, b->size,
                                false);
    if (err)
        return err;
    n = list_reads(b, ways);
    err = measure_ways(b, ways, n);
    if (err)
        return err;
    bench_report_number(b->report, "commands", (double)files.commands);
    report_ways(b, ways, n);
    return b->mount.g ? file_measure_writes(b) : 0;
}

/* --- The program ----------------------------------------------------------------------------- */

static int file_set_up(struct bench *b)
{
    int err = bench_begin(b, b->size);

    if (err)
        return err;
    files.job.to = &b->mount.memory;
    files.job.size = b->size;
    if (peers_open(&files.job))
        return bench_fail("memory", "not enough of it");
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "warm_ups", b->warm_ups);
    bench_report_number(b->report, "rounds", b->repeats);
    if (!files.computing)
        return 0;
    bench_report_text(b->report, "beside computing",
                      bench_computer_sharing(b->mount.memory.on_gpu));
    return bench_computer_open(&files.computer, b->mount.memory.on_gpu);
}

static void file_tear_down(struct bench *b)
{
    peers_close(&files.job);
    bench_computer_close(&files.computer);
    bench_host_free(b->mount.memory.on_gpu, files.out);
    bench_file_close(&files.written);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30, .seed = SEED, .repeats = 5, .warm_ups = 1};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'w', BENCH_UNSIGNED, &b.warm_ups, 0, UINT32_MAX},
                                           {'c', BENCH_FLAG, &files.computing, 0, 0},
                                           {'p', BENCH_FLAG, &files.all_peers, 0, 0},
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage(
            "[-s MiB, a multiple of 16] [-r REPEATS] [-w ROUNDS] [-c] [-p] [-o json] DIRECTORY\n"
            "  -w  rounds that warm up and are not counted\n"
            "  -c  beside computing\n"
            "  -p  all ways that people read today, not only pread with one thread\n");
    int err = file_set_up(&b);
    if (!err)
        err = file_measure(&b);
    file_tear_down(&b);
    return bench_end(&b, err);
}
