/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures a cache in GPU memory (gpunvme_cache_open()).
 *
 * Warps get lines in an order without a pattern, and threads get elements of
 * eight bytes. If the cache is as large as the file, all of them are hits after
 * the first round, and the bound is the same kernel over a copy of the file in
 * GPU memory. If the cache is an eighth of the file, all lines are misses, each
 * of which evicts a line, because all rounds have the same order. The bound is
 * then gpunvme_pread_warp() of the same pieces. Each lane compares one word of
 * its bytes. The program needs a GPU and the mount option direct=.
 *
 * With -f SECONDS, 4,224 warps (-w) read random places through a cache of 64
 * lines for this time, and compare all bytes. On a drive with injected errors
 * (on_mount.sh) reads may fail. A wrong byte, or a read that does not end, is
 * an error of the cache.
 *
 * Example: on_mount.sh 1G gpu=require,direct=all,sim=threads:8:lba:512 cache_bench
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/cache_kernels.h"
#include "bench/lib/pattern.h"
#include "gpunvme/gpunvme.h"

#define PROGRAM  "cache_bench"
#define SEED     0x6361636865u
#define MOST     65536u /* bytes of a line */
#define ELEMENTS ((uint64_t)1 << 24)

/* With -f all warps share few lines. */
#define FEW_LINES  64u
#define MANY_WARPS 4224u
#define ROUNDS     16u /* reads of a warp in one launch */

static const uint32_t line_sizes[] = {512, 4096, MOST};

static struct {
    unsigned warps, seconds; /* seconds: of -f, or 0 */
    struct gpunvme *g;
    struct gpunvme_file *file;
    struct bench_memory copy; /* of the file, in GPU memory */
    void *to;
} cache;

/* A way to get n lines or elements, and its row in the report. */
struct row {
    enum cache_way way;
    const char *name;
    const char *bound; /* name of an earlier row, or NULL */
    uint64_t n;
};

static int cache_measure(struct bench *b, struct gpunvme_cache *c, uint32_t line,
                         const struct row *row)
{
    struct cache_run run = {.cache = gpunvme_cache_device(c),
                            .file = gpunvme_file_device(cache.file),
                            .copy = cache.copy.addr,
                            .to = cache.to,
                            .seed = SEED,
                            .line = line,
                            .lines = b->size / line,
                            .n = row->n,
                            .warps = cache.warps};
    bool is_elements = row->way == CACHE_LOADS || row->way == CACHE_ELEMENTS;
    double unit = is_elements ? 1e6 : 1e9 / line;
    struct bench_samples rates = {.n = 0};
    int64_t result = 0;
    int err = 0;

    for (unsigned i = 0; i <= b->repeats && !err; i++) {
        double seconds;

        err = kernel_cache(row->way, &run, &seconds, &result);
        if (i > 0) /* the first round warms up */
            bench_add(&rates, (double)row->n / unit / seconds);
    }
    if (err)
        return bench_fail(row->name, result ? strerror((int)-result) : "the GPU failed");
    bench_report_row(b->report, row->name, is_elements ? "M/s" : "GB/s", &rates, row->bound);
    return 0;
}

/* Measures the rows with a cache of `bytes`. */
static int cache_measure_rows(struct bench *b, uint64_t bytes, uint32_t line,
                              const struct row *rows, size_t n)
{
    struct gpunvme_cache *c;
    char name[64];
    int err = 0;

    if (gpunvme_cache_open(cache.file, bytes, line, &c))
        return bench_fail("cache", gpunvme_error());
    for (size_t i = 0; i < n && !err; i++)
        err = cache_measure(b, c, line, &rows[i]);
    snprintf(name, sizeof(name), "share of hits, %u B, cache of %llu MiB", line,
             (unsigned long long)(bytes >> 20));
    if (!err)
        err = bench_report_hits(b, c, name);
    gpunvme_cache_close(c);
    return err;
}

static int cache_measure_line(struct bench *b, uint32_t line)
{
    char names[6][64];
    uint64_t lines = b->size / line;
    static const char *const what[] = {
        "copy of the file, lines", "hits, lines",        "copy of the file, elements, lines",
        "hits, elements, lines",   "pread_warp, pieces", "misses, lines"};

    for (size_t i = 0; i < 6; i++)
        snprintf(names[i], sizeof(names[i]), "%s of %u B", what[i], line);
    const struct row hits[] = {{CACHE_COPY, names[0], NULL, lines},
                               {CACHE_LINES, names[1], names[0], lines},
                               {CACHE_LOADS, names[2], NULL, ELEMENTS},
                               {CACHE_ELEMENTS, names[3], names[2], ELEMENTS}};
    const struct row misses[] = {{CACHE_PREAD, names[4], NULL, lines},
                                 {CACHE_LINES, names[5], names[4], lines}};
    int err = cache_measure_rows(b, b->size, line, hits, 4);

    return err ? err : cache_measure_rows(b, b->size / 8, line, misses, 2);
}

/* Reads through a cache of few lines until the time of -f has passed. */
static int cache_measure_faults(struct bench *b)
{
    const uint32_t line = 4096;
    struct cache_run run = {
        .to = cache.to, .seed = SEED, .line = line, .lines = b->size / line, .warps = cache.warps};
    struct bench_samples rate = {.n = 0}, failed = {.n = 0};
    struct cache_found found = {0};
    struct gpunvme_cache *c;
    double start = bench_seconds(), end = start;
    int err = 0;

    if (gpunvme_cache_open(cache.file, FEW_LINES * line, line, &c))
        return bench_fail("cache", gpunvme_error());
    run.cache = gpunvme_cache_device(c);
    for (uint64_t turn = 0; end - start < cache.seconds && !err; turn++) {
        err = kernel_cache_random(&run, SEED + turn, ROUNDS, &found);
        end = bench_seconds();
    }
    if (!err && found.wrong)
        err = bench_fail("reads", "some of them have returned wrong bytes");
    if (!err && found.failed == found.reads)
        err = bench_fail_with("all reads", (int)found.error);
    bench_add(&rate, (double)found.reads * 1e-6 / (end - start));
    bench_add(&failed, 100.0 * (double)found.failed / (double)found.reads);
    bench_report_row(b->report, "random reads, cache of 64 lines", "M/s", &rate, NULL);
    bench_report_row(b->report, "of which failed", "%", &failed, NULL);
    if (!err)
        err = bench_report_hits(b, c, "share of hits");
    gpunvme_cache_close(c);
    return err;
}

/* Opens the file as programs do, and registers memory for a line of each warp. */
static int cache_open(struct bench *b)
{
    const struct gpunvme_options o = {.lease_queues = b->lease.queues,
                                      .lease_depth = b->lease.depth};

    if (gpunvme_open(&o, &cache.g) ||
        gpunvme_file_open(cache.g, b->file.fd, GPUNVME_FILE_DIRECT, &cache.file) ||
        gpunvme_alloc(cache.file, (size_t)cache.warps * MOST, &cache.to))
        return bench_fail("mount", gpunvme_error());
    if (bench_memory_alloc(&cache.copy, true, b->size))
        return bench_fail("memory", "not enough of it");
    return bench_fill(&cache.copy, b->size, SEED);
}

static int cache_set_up(struct bench *b)
{
    int err = bench_begin_direct(b, MOST);

    if (err)
        return err;
    bench_report_number(b->report, "bytes", (double)b->size);
    bench_report_number(b->report, "warps", cache.warps);
    err = bench_file_make(&b->file, b->dir, b->size, SEED);
    return err ? err : cache_open(b);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)256 << 20,
                             .seed = SEED,
                             .repeats = 5,
                             .lease = {.queues = 32, .depth = 256}};
    const struct bench_option options[] = {
        {'s', BENCH_MIB, &b.size, (uint64_t)16 << 20, BENCH_SIZE_MOST},
        {'w', BENCH_UNSIGNED, &cache.warps, 0, 1u << 16},
        {'f', BENCH_UNSIGNED, &cache.seconds, 0, UINT32_MAX},
        BENCH_LEASE_OPTIONS(b),
        BENCH_REPORT_OPTIONS(b),
        {0}};

    if (!bench_parse(argc, argv, options, &b.dir) || b.size & (b.size - 1))
        return bench_usage("[-s MiB, a power of two from 16 on] [-r REPEATS] [-o json]\n"
                           "                   [-q QUEUES leased, -d of DEPTH] [-w WARPS]"
                           " [-f SECONDS] DIRECTORY\n");
    if (!cache.warps)
        cache.warps = cache.seconds ? MANY_WARPS : 1584;
    int err = cache_set_up(&b);
    if (!err && cache.seconds)
        err = cache_measure_faults(&b);
    for (size_t i = 0; !cache.seconds && i < sizeof(line_sizes) / sizeof(line_sizes[0]) && !err;
         i++) {
        if (line_sizes[i] >= b.mount.info.lba_size)
            err = cache_measure_line(&b, line_sizes[i]);
    }
    bench_memory_free(&cache.copy);
    gpunvme_close(cache.g);
    return bench_end(&b, err);
}
