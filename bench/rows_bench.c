/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how many rows of a table, at random places of one file, reach memory by lists from one
 * thread.
 *
 * For each length of a row it compares, in one run and in turn, a plain copy of as many bytes, a
 * bare kernel that gathers the same rows from pinned memory (what the link allows; only with a
 * GPU), READV, and for rows from 4 KiB on lists by the bounce pipeline, with the kernel's pages of
 * the file dropped. If the mount lends the direct path (-o direct=), it then compares the gather
 * with lists of that path. Rows of 256 bytes begin at byte 8,104 of the file, where the data of a
 * tensor file may begin, so some of them cross blocks. Memory and results of all rows are verified
 * after each run, over poison. The first rounds (-w) warm up and are not counted. bare_bench shows
 * what the controller gives.
 *
 * Example: on_mount.sh 2560M gpu=require,direct=all,sim=threads:8:lba:512 rows_bench
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/cpu.h"

#define PROGRAM "rows_bench"
#define SEED    0x726f7773u
#define UNIT    ((uint64_t)16 << 20) /* sizes of files are multiples of it */

#define BOUNCED_LEAST 4096u /* bytes of a row */

enum { COPY, GATHER, READV, BOUNCED, DIRECT_GATHER, DIRECT, WAYS };
static const char *const way_names[WAYS] = {"plain copy",
                                            "gather kernel",
                                            "READV",
                                            "list by the bounce pipeline",
                                            "gather kernel, beside the direct path",
                                            "direct path"};

static const struct row_kind {
    uint64_t bytes, from;
} kinds[] = {{256, 8104}, {512, 0}, {4096, 0}, {65536, 0}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct {
    size_t batch; /* rows of one call */
    size_t most;  /* maximum rows of one run */
    struct bench_list list;
    struct bench_cpu cpu;
} rows = {.batch = 262144, .most = 1048576};

/* --- Ways ------------------------------------------------------------------------------------ */

static uint64_t bytes_of(const struct bench *b)
{
    return b->pieces.n * b->pieces.bytes;
}

static int run_way(struct bench *b, unsigned way)
{
    switch (way) {
    case COPY:
        return bench_copy_to(&b->mount.memory, 0, b->host, bytes_of(b));
    case READV:
        return bench_list_read(&rows.list, &b->mount, b->file.fd, rows.batch, GPUNVME_PATH_GPU);
    case BOUNCED:
        return bench_list_read(&rows.list, &b->mount, b->file.fd, rows.batch, GPUNVME_PATH_BOUNCE);
    case DIRECT:
        return bench_list_read_direct(&rows.list, &b->direct, b->mount.memory.addr, rows.batch);
    default:
        return bench_gather(&b->mount.memory, b->host, &b->pieces);
    }
}

/* Lets lists be read by the bounce pipeline, from the drive instead of the kernel's pages. */
static int take_bounce(const struct bench *b)
{
    (void)posix_fadvise(b->file.fd, 0, 0, POSIX_FADV_DONTNEED);
    return bench_mount_take_path(&b->mount, GPUNVME_PATH_BOUNCE);
}

/* --- Measuring ------------------------------------------------------------------------------- */

static int run_once(struct bench *b, unsigned way, struct bench_samples *rates)
{
    struct bench_memory part = b->mount.memory;
    struct bench_cpu before;
    double start;
    int err;

    part.len = bytes_of(b);
    err = bench_list_prepare(&rows.list, way == DIRECT);
    if (!err)
        err = bench_poison(&part, SEED);
    if (!err && way == BOUNCED)
        err = take_bounce(b);
    before = bench_cpu_now();
    start = bench_seconds();
    if (!err)
        err = run_way(b, way);
    bench_add(rates, (double)b->pieces.n * 1e-6 / (bench_seconds() - start));
    if (way == READV)
        bench_cpu_add(&rows.cpu, &before);
    if (way == BOUNCED && bench_mount_take_path(&b->mount, GPUNVME_PATH_GPU))
        return -EIO;
    if (!err && (way == READV || way == BOUNCED || way == DIRECT))
        err = bench_list_check(&rows.list, way == DIRECT);
    return err || way == COPY ? err : bench_verify(&part, &b->pieces, PROGRAM);
}

/* The bounce pipeline reads small rows one by one, which would take minutes. */
static bool rows_has_way(const struct bench *b, unsigned way)
{
    if (way == BOUNCED)
        return b->pieces.bytes >= BOUNCED_LEAST;
    return (way != GATHER && way != DIRECT_GATHER) || b->mount.memory.on_gpu;
}

/* Runs the ways of READV, or those of the direct path, in turn. */
static int run_rounds(struct bench *b, bool direct, struct bench_samples *rates)
{
    unsigned first = direct ? DIRECT_GATHER : COPY, end = direct ? WAYS : DIRECT_GATHER;
    int err = 0;

    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        if (i == b->warm_ups && !direct)
            rows.cpu = (struct bench_cpu){0};
        for (unsigned way = first; way < end && !err; way++) {
            if (i == b->warm_ups)
                rates[way].n = 0;
            if (!rows_has_way(b, way))
                continue;
            err = run_once(b, way, &rates[way]);
        }
    }
    return err;
}

static const char *bound_of(const struct bench_samples *rates, char (*names)[80], unsigned way)
{
    unsigned bound = way == READV || way == BOUNCED ? GATHER : way == DIRECT ? DIRECT_GATHER : WAYS;

    if (bound == WAYS)
        return NULL;
    return rates[bound].n ? names[bound] : names[COPY];
}

static void rows_report_cpu(struct bench *b, const char *whose, double seconds)
{
    double ns = seconds * 1e9 / ((double)b->pieces.n * b->repeats);
    char name[80];

    snprintf(name, sizeof(name), "READV, %llu B: CPU of %s", (unsigned long long)b->pieces.bytes,
             whose);
    bench_report_values(b->report, name, "ns/row", &ns, 1, NULL);
}

static void report_rows(struct bench *b, struct bench_samples *rates)
{
    char names[WAYS][80];

    for (unsigned way = 0; way < WAYS; way++) {
        snprintf(names[way], sizeof(names[way]), "%s, %llu B", way_names[way],
                 (unsigned long long)b->pieces.bytes);
        if (rates[way].n == 0)
            continue;
        bench_report_row(b->report, names[way], "M/s", &rates[way], bound_of(rates, names, way));
        bench_report_point(b->report, "bytes of a row", way_names[way], (double)b->pieces.bytes);
    }
    rows_report_cpu(b, "the application", rows.cpu.self);
    if (bench_cpu_knows_daemon())
        rows_report_cpu(b, "the daemon", rows.cpu.daemon);
}

static int new_rows(struct bench *b, const struct row_kind *kind)
{
    uint64_t fit = b->size / kind->bytes, n = fit < rows.most ? fit : rows.most;
    uint64_t span = (b->size - kind->from) / kind->bytes * kind->bytes;
    int err = bench_pieces_make(&b->pieces, b->mount.memory.on_gpu, SEED, n * kind->bytes,
                                kind->bytes, kind->from, span, true);

    return err ? err : bench_list_make(&rows.list, &b->mount, &b->pieces);
}

static int rows_measure(struct bench *b, const struct row_kind *kind)
{
    static struct bench_samples rates[WAYS];
    int err = new_rows(b, kind);

    memset(rates, 0, sizeof(rates));
    if (!err)
        err = run_rounds(b, false, rates);
    if (!err && b->direct.file)
        err = run_rounds(b, true, rates);
    if (!err)
        report_rows(b, rates);
    bench_list_free(&rows.list, &b->mount);
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static int rows_set_up(struct bench *b)
{
    int err = bench_begin_mounted(b, b->size);

    if (!err)
        err = bench_host_fill(b);
    if (err)
        return err;
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "batch", (double)rows.batch);
    bench_report_number(b->report, "warm_ups", b->warm_ups);
    bench_report_number(b->report, "rounds", b->repeats);
    err = bench_file_make(&b->file, b->dir, b->size, SEED);
    if (!err && b->mount.info.direct)
        err = bench_direct_open(&b->direct, &b->mount, b->file.fd, &b->lease);
    return err;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .seed = SEED,
                             .repeats = 5,
                             .warm_ups = 1,
                             .lease = {.queues = 32, .depth = 256}};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'n', BENCH_LONG, &rows.batch, 1, SIZE_MAX},
                                           {'m', BENCH_LONG, &rows.most, 1, GPUNVME_PIECES_MAX},
                                           {'w', BENCH_UNSIGNED, &b.warm_ups, 0, UINT32_MAX},
                                           BENCH_LEASE_OPTIONS(b),
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage(
            "[-s MiB, a multiple of 16] [-n ROWS of a list] [-m most ROWS]\n"
            "                  [-r REPEATS] [-w ROUNDS that warm up] [-q QUEUES leased, -d of"
            " DEPTH]\n"
            "                  [-o json] DIRECTORY\n");
    int err = rows_set_up(&b);
    for (size_t i = 0; i < KINDS && !err; i++)
        err = rows_measure(&b, &kinds[i]);
    return bench_end(&b, err);
}
