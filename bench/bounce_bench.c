/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures the bounce path: READ, WRITE and lists of memory that the mount does not reach, by the
 * pipeline of the library, beside a plain copy of the same size.
 *
 * The memory is that of a GPU, or of the heap without one. Unless -c is given, the kernel's pages
 * of the file are dropped before each run. Pieces of lists lie at random places of the file, and
 * one after another in memory. All ways run in turn. Every byte is verified after each run, over
 * poison, and written bytes are read back. The first round warms up.
 *
 * Example: on_mount.sh 2560M gpu=off,sim=threads:8:lba:512 bounce_bench
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/bench_mount.h"
#include "bench/lib/bench_report.h"

#define PROGRAM "bounce_bench"
#define SEED    0x626f756e6365u
#define UNIT    ((uint64_t)16 << 20) /* sizes of files are multiples of it */
#define BATCH   65536u               /* pieces of a call */

enum { COPY, READ, WRITE, LIST_4K, LIST_64K, WAYS };
static const struct {
    const char *name, *unit;
    uint64_t piece; /* bytes; 0: the whole file */
} ways[WAYS] = {[COPY] = {"plain copy", "GB/s", 0},
                [READ] = {"READ", "GB/s", 0},
                [WRITE] = {"WRITE", "GB/s", 0},
                [LIST_4K] = {"list of 4 KiB", "M/s", 4096},
                [LIST_64K] = {"list of 64 KiB", "M/s", 65536}};

struct bench {
    uint64_t size; /* of the file */
    unsigned repeats, round;
    bool json, cached;
    struct connection *g;
    struct gpunvme_buffer *buffer;
    struct bench_memory memory;
    struct bench_file file, out; /* read; written over its data */
    void *host;                  /* the first bytes of the file, pinned if there is a GPU */
    struct pattern_pieces pieces;
    struct gpunvme_piece *list;
    struct bench_report *report;
};

/* --- Ways ------------------------------------------------------------------------------------ */

static int check_path(const char *name, const struct gpunvme_result *result)
{
    return result->path == GPUNVME_PATH_BOUNCE ? 0 : bench_fail(name, "not by the bounce path");
}

static int bounce_move(struct bench *b, unsigned way, const struct bench_file *f)
{
    struct gpunvme_result result;
    ssize_t n = way == READ ? transfer_read(b->buffer, f->fd, 0, 0, b->size, &result)
                            : transfer_write(b->buffer, f->fd, 0, 0, b->size, &result);

    if (n != (ssize_t)b->size)
        return bench_fail(ways[way].name, n < 0 ? gpunvme_error() : "short");
    return check_path(ways[way].name, &result);
}

static int bounce_read_lists(struct bench *b, unsigned way)
{
    for (size_t i = 0; i < b->pieces.n; i += BATCH) {
        struct gpunvme_result result;
        size_t n = b->pieces.n - i < BATCH ? b->pieces.n - i : BATCH;

        if (readv_buffer(b->buffer, b->file.fd, b->list + i, n, &result))
            return bench_fail(ways[way].name, gpunvme_error());
        int err = check_path(ways[way].name, &result);
        if (err)
            return err;
    }
    for (size_t i = 0; i < b->pieces.n; i++) {
        if (b->list[i].result != (int32_t)b->pieces.bytes)
            return bench_fail(ways[way].name, "a piece was not read");
    }
    return 0;
}

/* --- Measuring ------------------------------------------------------------------------------- */

/* Makes the pieces of a way. Those of a copy, a READ and a WRITE are the whole file, in order. */
static int bounce_make_pieces(struct bench *b, unsigned way)
{
    bool whole = !ways[way].piece;
    uint64_t bytes = whole ? UNIT / 2 : ways[way].piece;
    uint64_t seed = SEED + (way == WRITE ? b->round : 0);
    int err =
        bench_pieces_make(&b->pieces, b->memory.on_gpu, seed, b->size, bytes, 0, b->size, !whole);

    for (size_t i = 0; i < b->pieces.n && !whole && !err; i++)
        b->list[i] = (struct gpunvme_piece){
            .file_offset = b->pieces.places[i], .buffer_offset = i * bytes, .len = (uint32_t)bytes};
    return err;
}

static int bounce_prepare(struct bench *b, unsigned way)
{
    int err = bounce_make_pieces(b, way);

    if (!err)
        err = way == WRITE ? bench_fill(&b->memory, b->size, b->pieces.seed)
                           : bench_poison(&b->memory, SEED);
    if (!err && !b->cached)
        (void)posix_fadvise(b->file.fd, 0, 0, POSIX_FADV_DONTNEED);
    return err;
}

static int bounce_run(struct bench *b, unsigned way)
{
    if (way == COPY)
        return bench_copy_to(&b->memory, 0, b->host, b->size);
    if (ways[way].piece)
        return bounce_read_lists(b, way);
    return bounce_move(b, way, way == READ ? &b->file : &b->out);
}

/* Reads what was written. */
static int bounce_read_back(struct bench *b)
{
    int err = bench_poison(&b->memory, SEED);

    if (!err)
        err = bounce_move(b, READ, &b->out);
    return err ? err : bench_verify(&b->memory, &b->pieces, PROGRAM);
}

static int bounce_sample(struct bench *b, unsigned way, struct bench_samples *rates)
{
    int err = bounce_prepare(b, way);
    double start = bench_seconds();

    if (!err)
        err = bounce_run(b, way);
    double seconds = bench_seconds() - start;
    double amount = ways[way].piece ? (double)b->pieces.n * 1e-6 : (double)b->size * 1e-9;
    if (b->round)
        bench_add(rates, amount / seconds);
    if (err)
        return err;
    return way == WRITE ? bounce_read_back(b) : bench_verify(&b->memory, &b->pieces, PROGRAM);
}

static int bounce_measure(struct bench *b)
{
    struct bench_samples rates[WAYS] = {{.n = 0}};
    int err = 0;

    for (b->round = 0; b->round <= b->repeats && !err; b->round++) {
        for (unsigned way = 0; way < WAYS && !err; way++)
            err = bounce_sample(b, way, &rates[way]);
    }
    for (unsigned way = 0; way < WAYS && !err; way++)
        bench_report_row(b->report, ways[way].name, ways[way].unit, &rates[way],
                         way != COPY && !ways[way].piece ? ways[COPY].name : NULL);
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

static int bounce_open(struct bench *b, const char *dir)
{
    int err = connection_open(dir, &b->g);

    if (err)
        return bench_fail(dir, gpunvme_error());
    err = bench_memory_alloc(&b->memory, bench_gpu_name() != NULL, b->size);
    if (err)
        return bench_fail_with("memory", err);
    err = bounce_set_options(b->g, &(struct gpunvme_options){.path = GPUNVME_PATH_BOUNCE});
    if (!err)
        err = buffer_register(b->g, b->memory.addr, b->size, true, &b->buffer);
    return err ? bench_fail(dir, gpunvme_error()) : 0;
}

static int bounce_set_up(struct bench *b, const char *dir)
{
    int err = bounce_open(b, dir);

    if (err)
        return err;
    b->host = bench_host_alloc(b->memory.on_gpu, b->size);
    b->list = calloc(b->size / ways[LIST_4K].piece, sizeof(*b->list));
    b->report = bench_report_new(b->json, b->memory.on_gpu ? bench_gpu_name() : NULL);
    if (!b->host || !b->list || !b->report)
        return bench_fail("memory", "not enough of it");
    pattern_host_write(b->host, b->size, SEED, 0, false);
    bench_report_text(b->report, "file", b->cached ? "cached" : "not cached");
    err = bench_file_make(&b->file, dir, b->size, SEED);
    if (!err)
        err = bench_file_create(&b->out, dir);
    return err ? err : bench_file_write(&b->out, 0, b->size, SEED, 0);
}

static void bounce_tear_down(struct bench *b)
{
    if (b->buffer)
        buffer_unregister(b->buffer);
    bench_pieces_free(&b->pieces, b->memory.on_gpu);
    if (b->host)
        bench_host_free(b->memory.on_gpu, b->host);
    free(b->list);
    bench_memory_free(&b->memory);
    if (b->g)
        connection_close(b->g);
    bench_file_close(&b->file);
    bench_file_close(&b->out);
}

static int bounce_parse(int argc, char **argv, struct bench *b)
{
    int opt;

    while ((opt = getopt(argc, argv, "s:r:o:ch")) != -1) {
        if (opt == 'c')
            b->cached = true;
        else if (!bench_option(opt, &b->size, &b->repeats, &b->json))
            return 1;
    }
    return !bench_arguments_fit(argc, b->repeats) || !b->size || b->size % UNIT;
}

int main(int argc, char **argv)
{
    static struct bench b = {
        .size = 16 * UNIT, .repeats = 5, .file = {.fd = -1}, .out = {.fd = -1}};

    if (bounce_parse(argc, argv, &b)) {
        fputs("usage: bounce_bench [-s MiB, a multiple of 16] [-r REPEATS] [-c] [-o json] "
              "DIRECTORY\n"
              "  -c  leave the file in the page cache\n",
              stderr);
        return 2;
    }
    int err = bounce_set_up(&b, argv[optind]);
    if (!err)
        err = bounce_measure(&b);
    bounce_tear_down(&b);
    return bench_report_close(b.report, err);
}
