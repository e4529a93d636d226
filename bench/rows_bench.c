/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures how many rows of a table, at random places of one file, reach memory by lists from one
 * thread.
 *
 * For each length of a row it compares, in one run and in turn, a plain copy of as many bytes, a
 * bare kernel that gathers the same rows from pinned memory (what the link allows; only with a
 * GPU), and READV. If the mount lends the direct path (-o direct=), it then compares the gather
 * with lists of that path. Rows of 256 bytes begin at byte 8,104 of the file, where the data of a
 * tensor file may begin, so some of them cross blocks. Memory and results of all rows are verified
 * after each run, over poison. The first rounds (-w) warm up and are not counted. bare_bench shows
 * what the controller gives.
 *
 * Example: on_mount.sh 2560M gpu=require,direct=all,sim=threads:8:lba:512 rows_bench
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"
#include "bench/lib/cpu.h"
#include "bench/lib/direct_bench_kernels.h"

#define PROGRAM "rows_bench"
#define SEED    0x726f7773u
#define UNIT    ((uint64_t)16 << 20) /* sizes of files are multiples of it */

enum { COPY, GATHER, READV, DIRECT_GATHER, DIRECT, WAYS };
static const char *const way_names[WAYS] = {"plain copy", "gather kernel", "READV",
                                            "gather kernel, beside the direct path", "direct path"};

static const struct row_kind {
    uint64_t bytes, from;
} kinds[] = {{256, 8104}, {512, 0}, {4096, 0}, {65536, 0}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct bench {
    uint64_t size; /* of the file */
    size_t batch;  /* rows of one call */
    size_t most;   /* maximum rows of one run */
    unsigned repeats, warm_ups;
    bool json;
    struct bench_mount mount;
    struct bench_file file;
    void *host; /* bytes of the file, pinned if there is a GPU */
    struct pattern_pieces rows;
    struct gpunvme_piece *list;         /* all pieces, in memory of the library */
    struct gpunvme_buffer *device_list; /* copy of the list for the direct path */
    struct bench_cpu cpu;
    struct direct_options lease;
    struct bench_direct direct;
    struct bench_report *report;
};

/* --- Ways ------------------------------------------------------------------------------------ */

static uint64_t bytes_of(const struct bench *b)
{
    return b->rows.n * b->rows.bytes;
}

static size_t rows_batch_len(const struct bench *b, size_t first)
{
    size_t left = b->rows.n - first;

    return left < b->batch ? left : b->batch;
}

static int read_lists(struct bench *b)
{
    for (size_t i = 0; i < b->rows.n; i += b->batch) {
        struct gpunvme_result result;

        if (readv_buffer(b->mount.buffer, b->file.fd, b->list + i, rows_batch_len(b, i), &result))
            return bench_fail("READV", gpunvme_error());
        if (result.path != GPUNVME_PATH_GPU)
            return bench_fail("READV", "not by the GPU path");
    }
    return 0;
}

static int rows_read_direct(struct bench *b)
{
    struct gpunvme_piece *list = buffer_addr(b->device_list);

    for (size_t i = 0; i < b->rows.n; i += b->batch) {
        if (direct_readv_async(b->direct.file, b->mount.memory.addr, list + i, rows_batch_len(b, i),
                               b->direct.stream.cuda))
            return bench_fail("direct path", gpunvme_error());
    }
    return bench_stream_wait(&b->direct.stream) ? bench_fail("direct path", "the GPU failed") : 0;
}

static int run_way(struct bench *b, unsigned way)
{
    switch (way) {
    case COPY:
        return bench_copy_to(&b->mount.memory, 0, b->host, bytes_of(b));
    case READV:
        return read_lists(b);
    case DIRECT:
        return rows_read_direct(b);
    default:
        return bench_gather(&b->mount.memory, b->host, &b->rows);
    }
}

static void clear_results(struct bench *b)
{
    for (size_t i = 0; i < b->rows.n; i++)
        b->list[i].result = INT32_MIN; /* a value that no read returns */
}

static int check_results(const struct bench *b)
{
    for (size_t i = 0; i < b->rows.n; i++) {
        int32_t result = b->list[i].result;

        if (result != (int32_t)b->rows.bytes)
            return bench_fail("row", result < 0 ? strerror(-result) : "short");
    }
    return 0;
}

/* Moves the list to the GPU before a run of the direct path, and back after it. */
static int move_list(struct bench *b, bool back)
{
    size_t bytes = b->rows.n * sizeof(b->list[0]);
    int err = back ? buffer_copy_out(b->device_list, 0, b->list, bytes)
                   : buffer_copy_in(b->device_list, 0, b->list, bytes);

    return err ? bench_fail("list", gpunvme_error()) : 0;
}

/* --- Measuring ------------------------------------------------------------------------------- */

static int run_once(struct bench *b, unsigned way, struct bench_samples *rates)
{
    struct bench_memory part = b->mount.memory;
    struct bench_cpu before;
    double start;
    int err;

    part.len = bytes_of(b);
    clear_results(b);
    err = way == DIRECT ? move_list(b, false) : 0;
    if (!err)
        err = bench_poison(&part, SEED);
    before = bench_cpu_now();
    start = bench_seconds();
    if (!err)
        err = run_way(b, way);
    bench_add(rates, (double)b->rows.n * 1e-6 / (bench_seconds() - start));
    if (way == READV)
        bench_cpu_add(&b->cpu, &before);
    if (!err && way == DIRECT)
        err = move_list(b, true);
    if (!err && (way == READV || way == DIRECT))
        err = check_results(b);
    return err || way == COPY ? err : bench_verify(&part, &b->rows, PROGRAM);
}

/* Runs the ways of READV, or those of the direct path, in turn. */
static int run_rounds(struct bench *b, bool direct, struct bench_samples *rates)
{
    unsigned first = direct ? DIRECT_GATHER : COPY, end = direct ? WAYS : DIRECT_GATHER;
    int err = 0;

    for (unsigned i = 0; i < b->warm_ups + b->repeats && !err; i++) {
        if (i == b->warm_ups && !direct)
            b->cpu = (struct bench_cpu){0};
        for (unsigned way = first; way < end && !err; way++) {
            if (i == b->warm_ups)
                rates[way].n = 0;
            if ((way == GATHER || way == DIRECT_GATHER) && !b->mount.memory.on_gpu)
                continue;
            err = run_once(b, way, &rates[way]);
        }
    }
    return err;
}

static const char *bound_of(const struct bench_samples *rates, char (*names)[80], unsigned way)
{
    unsigned bound = way == READV ? GATHER : way == DIRECT ? DIRECT_GATHER : WAYS;

    if (bound == WAYS)
        return NULL;
    return rates[bound].n ? names[bound] : names[COPY];
}

static void rows_report_cpu(struct bench *b, const char *whose, double seconds)
{
    double ns = seconds * 1e9 / ((double)b->rows.n * b->repeats);
    char name[80];

    snprintf(name, sizeof(name), "READV, %llu B: CPU of %s", (unsigned long long)b->rows.bytes,
             whose);
    bench_report_values(b->report, name, "ns/row", &ns, 1, NULL);
}

static void report_rows(struct bench *b, struct bench_samples *rates)
{
    char names[WAYS][80];

    for (unsigned way = 0; way < WAYS; way++) {
        snprintf(names[way], sizeof(names[way]), "%s, %llu B", way_names[way],
                 (unsigned long long)b->rows.bytes);
        if (rates[way].n == 0)
            continue;
        bench_report_row(b->report, names[way], "M/s", &rates[way], bound_of(rates, names, way));
        bench_report_point(b->report, "bytes of a row", way_names[way], (double)b->rows.bytes);
    }
    rows_report_cpu(b, "the application", b->cpu.self);
    if (bench_cpu_knows_daemon())
        rows_report_cpu(b, "the daemon", b->cpu.daemon);
}

static int new_rows(struct bench *b, const struct row_kind *kind)
{
    uint64_t fit = b->size / kind->bytes, n = fit < b->most ? fit : b->most;
    uint64_t span = (b->size - kind->from) / kind->bytes * kind->bytes;
    struct gpunvme_piece *list;
    int err = bench_pieces_make(&b->rows, b->mount.memory.on_gpu, SEED, n * kind->bytes,
                                kind->bytes, kind->from, span, true);

    if (err)
        return err;
    if (shared_list_alloc_pieces(b->mount.g, n, &list))
        return bench_fail("list", gpunvme_error());
    b->list = list;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct gpunvme_piece){.file_offset = b->rows.places[i],
                                         .buffer_offset = i * kind->bytes,
                                         .len = (uint32_t)kind->bytes};
    if (b->direct.file && buffer_alloc(b->mount.g, n * sizeof(*list), &b->device_list))
        return bench_fail("list", gpunvme_error());
    return 0;
}

static void drop_rows(struct bench *b)
{
    if (b->list)
        shared_list_free_pieces(b->mount.g, b->list);
    if (b->device_list)
        buffer_unregister(b->device_list);
    b->list = NULL;
    b->device_list = NULL;
    bench_pieces_free(&b->rows, b->mount.memory.on_gpu);
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
    drop_rows(b);
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static void describe(struct bench *b)
{
    bench_report_number(b->report, "lba_size", b->mount.info.lba_size);
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "batch", (double)b->batch);
    bench_report_number(b->report, "seed", SEED);
    bench_report_number(b->report, "warm_ups", b->warm_ups);
    bench_report_number(b->report, "rounds", b->repeats);
}

static int rows_set_up(struct bench *b, const char *dir)
{
    int err;

    if (bench_mount_open(&b->mount, dir, b->size))
        return -EIO;
    if (!b->mount.g)
        return bench_fail(dir, "not on a gpunvmefs mount");
    b->host = bench_host_alloc(b->mount.memory.on_gpu, b->size);
    b->report = bench_mount_report(&b->mount, b->json);
    if (!b->host || !b->report)
        return bench_fail("memory", "not enough of it");
    describe(b);
    pattern_host_write(b->host, b->size, SEED, 0, false);
    err = bench_file_make(&b->file, dir, b->size, SEED);
    if (!err && b->mount.info.direct)
        err = bench_direct_open(&b->direct, &b->mount, b->file.fd, &b->lease);
    return err;
}

static void rows_tear_down(struct bench *b)
{
    if (b->host)
        bench_host_free(b->mount.memory.on_gpu, b->host);
    bench_direct_close(&b->direct);
    bench_file_close(&b->file);
    bench_mount_close(&b->mount);
}

static int rows_parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:n:m:r:w:o:q:d:h")) != -1) {
        if (opt == 'n')
            b->batch = strtoul(optarg, NULL, 10);
        else if (opt == 'm')
            b->most = strtoul(optarg, NULL, 10);
        else if (opt == 'w')
            b->warm_ups = (unsigned)strtoul(optarg, NULL, 10);
        else if (!bench_lease_option(opt, &b->lease) &&
                 !bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || b->size < UNIT || b->size % UNIT ||
           b->batch < 1 || b->most < 1 || b->most > GPUNVME_PIECES_MAX;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)1 << 30,
                             .batch = 262144,
                             .most = 1048576,
                             .repeats = 5,
                             .warm_ups = 1,
                             .lease = {.queues = 32, .depth = 256},
                             .file = {.fd = -1}};
    int err, failed;

    if (rows_parse(argc, argv, &b)) {
        fputs("usage: " PROGRAM " [-s MiB, a multiple of 16] [-n ROWS of a list] [-m most ROWS]\n"
              "                  [-r REPEATS] [-w ROUNDS that warm up] [-q QUEUES leased, -d of"
              " DEPTH]\n"
              "                  [-o json] DIRECTORY\n",
              stderr);
        return 2;
    }
    err = rows_set_up(&b, argv[optind]);
    for (size_t i = 0; i < KINDS && !err; i++)
        err = rows_measure(&b, &kinds[i]);
    failed = bench_report_close(b.report, err);
    rows_tear_down(&b);
    return failed;
}
