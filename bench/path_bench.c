/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compares the path that the library chooses with the others: reads, writes and short lists of
 * every length by the GPU path, by the bounce pipeline, and by the choice, in turn.
 *
 * Without -d the page cache holds the bytes at the start of a sample. The choice has its own
 * connection and buffer. Results are microseconds a call, through the file from its start. Every
 * byte is verified after each sample, over poison. After writes the bytes of the file are verified.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/bench_mount.h"

#define PROGRAM      "path_bench"
#define SEED         0x70617468u
#define UNIT         ((uint64_t)16 << 20) /* file sizes are multiples of it */
#define SHORTEST     ((uint64_t)4 << 10)
#define LONGEST      ((uint64_t)2 << 20)
#define SAMPLE_BYTES ((uint64_t)8 << 20) /* bytes of the file in a sample, or the calls below */
#define SAMPLE_CALLS 16u
#define TIMED_CALLS  256u  /* minimum number of calls, by several rounds */
#define PIECE        4096u /* bytes of each piece of a list */
#define LONGEST_LIST 64u

enum { BY_GPU, BY_BOUNCE, BY_CHOICE, N_WAYS };
static const char *const way_names[N_WAYS] = {"GPU path", "bounce", "chosen"};

/* Calls of `bytes` each, and how each is made. */
struct row {
    const char *name;
    uint64_t bytes;
    ssize_t (*call)(struct bench *b, struct gpunvme_buffer *buffer, uint64_t at, uint64_t bytes,
                    struct gpunvme_result *result);
    bool writes;
};

static struct {
    double warm_up; /* seconds */
    bool direct;
    struct bench_mount chosen; /* with the choice; the program's has a given path */
    struct gpunvme_piece list[LONGEST_LIST];
    unsigned calls, bounced; /* of the last sample */
    char cached[1u << 20];   /* target of the reads that fill the page cache */
} path = {.warm_up = 1};

/* --- One call -------------------------------------------------------------------------------- */

static ssize_t path_read_one(struct bench *b, struct gpunvme_buffer *buffer, uint64_t at,
                             uint64_t bytes, struct gpunvme_result *result)
{
    return transfer_read(buffer, b->file.fd, at, at, bytes, result);
}

static ssize_t write_one(struct bench *b, struct gpunvme_buffer *buffer, uint64_t at,
                         uint64_t bytes, struct gpunvme_result *result)
{
    return transfer_write(buffer, b->file.fd, at, at, bytes, result);
}

static ssize_t read_list(struct bench *b, struct gpunvme_buffer *buffer, uint64_t at,
                         uint64_t bytes, struct gpunvme_result *result)
{
    size_t n = bytes / PIECE;
    ssize_t sum = 0;

    for (size_t i = 0; i < n; i++)
        path.list[i] = (struct gpunvme_piece){
            .file_offset = at + i * PIECE, .buffer_offset = at + i * PIECE, .len = PIECE};
    int err = readv_buffer(buffer, b->file.fd, path.list, n, result);
    for (size_t i = 0; i < n && !err; i++)
        sum += path.list[i].result;
    return err ? err : sum;
}

/* --- Samples --------------------------------------------------------------------------------- */

static uint64_t bytes_of_sample(const struct bench *b, const struct row *row)
{
    uint64_t bytes = row->bytes * SAMPLE_CALLS;

    if (bytes < SAMPLE_BYTES)
        bytes = SAMPLE_BYTES;
    return bytes < b->size ? bytes : b->size;
}

/* Makes calls through the first `len` bytes of the file, in rounds. Stores the seconds of one. */
static int path_run(struct bench *b, const struct bench_mount *m, const struct row *row,
                    uint64_t len, unsigned calls, double *seconds)
{
    struct gpunvme_result result;
    uint64_t at = 0;
    double start = bench_seconds();

    path.calls = calls;
    path.bounced = 0;
    for (unsigned i = 0; i < calls; i++) {
        ssize_t n = row->call(b, m->buffer, at, row->bytes, &result);
        if (n != (ssize_t)row->bytes)
            return bench_fail(row->name, n < 0 ? gpunvme_error() : "short");
        path.bounced += result.path == GPUNVME_PATH_BOUNCE;
        at = (at + row->bytes) % len;
    }
    *seconds = (bench_seconds() - start) / calls;
    return 0;
}

static unsigned timed_calls(const struct row *row, uint64_t len)
{
    uint64_t calls = len / row->bytes;

    return calls < TIMED_CALLS ? TIMED_CALLS : (unsigned)calls;
}

/* Fills the page cache. Writes by the GPU drop its pages, and reads by it do not use them. */
static int fill_cache(struct bench *b, uint64_t len)
{
    for (uint64_t at = 0; at < len && !path.direct; at += sizeof(path.cached)) {
        if (pread(b->file.fd, path.cached, sizeof(path.cached), (off_t)at) < 0)
            return bench_fail_with(b->file.path, -errno);
    }
    return 0;
}

static int path_verify(struct bench *b, const struct bench_memory *memory, uint64_t len,
                       uint64_t seed)
{
    int err = bench_pieces_make(&b->pieces, memory->on_gpu, seed, len, UNIT / 2, 0, len, false);

    return err ? err : bench_verify(memory, &b->pieces, PROGRAM);
}

/* Reads the bytes of the file, over poison, into the memory from which they were written. */
static int read_back(struct bench *b, const struct bench_mount *m, uint64_t len)
{
    int err = bench_poison(&m->memory, SEED);

    if (!err && transfer_read(m->buffer, b->file.fd, 0, 0, len, NULL) != (ssize_t)len)
        err = bench_fail("read", gpunvme_error());
    return err;
}

static int path_sample(struct bench *b, unsigned way, const struct row *row,
                       struct bench_samples *out)
{
    const struct bench_mount *m = way == BY_CHOICE ? &path.chosen : &b->mount;
    uint32_t by = way == BY_GPU ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE;
    uint64_t len = bytes_of_sample(b, row);
    /* Writes store bytes that the file does not have yet. */
    uint64_t seed = SEED + (row->writes ? way + 1 : 0);
    double seconds = 0;
    int err = row->writes ? bench_fill(&m->memory, len, seed) : bench_poison(&m->memory, SEED);

    if (!err && way != BY_CHOICE && bounce_set_options(m->g, &(struct gpunvme_options){.path = by}))
        err = bench_fail(way_names[way], gpunvme_error());
    if (!err)
        err = fill_cache(b, len);
    if (!err) /* creates kernels and staging */
        err = path_run(b, m, row, len, SAMPLE_CALLS, &seconds);
    if (!err)
        err = path_run(b, m, row, len, timed_calls(row, len), &seconds);
    if (!err)
        bench_add(out, seconds * 1e6);
    if (!err && row->writes)
        err = read_back(b, m, len);
    return err ? err : path_verify(b, &m->memory, len, seed);
}

/* Makes calls by the chosen path before they are measured. */
static int warm_up(struct bench *b, const struct row *row)
{
    double end = bench_seconds() + path.warm_up, seconds;
    int err = fill_cache(b, bytes_of_sample(b, row));

    while (!err && bench_seconds() < end)
        err = path_run(b, &path.chosen, row, bytes_of_sample(b, row), TIMED_CALLS, &seconds);
    return err;
}

static void report(struct bench *b, const struct row *row, struct bench_samples *samples,
                   double bounced)
{
    char names[N_WAYS][96], key[128];
    double gpu = bench_median(&samples[BY_GPU]), bounce = bench_median(&samples[BY_BOUNCE]);

    for (unsigned way = 0; way < N_WAYS; way++) {
        snprintf(names[way], sizeof(names[way]), "%s of %llu KiB, %s", row->name,
                 (unsigned long long)row->bytes >> 10, way_names[way]);
        bench_report_row(b->report, names[way], "us", &samples[way],
                         way == BY_CHOICE ? names[bounce < gpu ? BY_BOUNCE : BY_GPU] : NULL);
    }
    snprintf(key, sizeof(key), "bounced of %s", names[BY_CHOICE]);
    bench_report_number(b->report, key, bounced);
}

static int path_measure(struct bench *b, const struct row *row)
{
    struct bench_samples samples[N_WAYS] = {{.n = 0}};
    double calls = 0, bounced = 0;
    int err = warm_up(b, row);

    for (unsigned i = 0; i < b->repeats * N_WAYS && !err; i++) {
        unsigned way = (i + i / N_WAYS) % N_WAYS; /* each comes first, and after each other */
        err = path_sample(b, way, row, &samples[way]);
        if (way == BY_CHOICE) {
            calls += path.calls;
            bounced += path.bounced;
        }
    }
    if (!err)
        report(b, row, samples, bounced / calls);
    return err;
}

static int path_measure_all(struct bench *b)
{
    int err = 0;

    for (uint64_t bytes = SHORTEST; bytes <= LONGEST && !err; bytes *= 2)
        err = path_measure(b, &(struct row){.name = "read", .bytes = bytes, .call = path_read_one});
    for (uint64_t n = 4; n <= LONGEST_LIST && !err; n *= 4)
        err = path_measure(b, &(struct row){.name = "list", .bytes = n * PIECE, .call = read_list});
    for (uint64_t bytes = SHORTEST; bytes <= LONGEST && !err; bytes *= 8)
        err = path_measure(
            b, &(struct row){.name = "write", .bytes = bytes, .call = write_one, .writes = true});
    return err;
}

/* --- The program ----------------------------------------------------------------------------- */

/* The file stays open for writing, because some rows write it. */
static int make_file(struct bench *b)
{
    int err = bench_file_create(&b->file, b->dir);

    if (!err)
        err = bench_file_write(&b->file, 0, b->size, SEED, 0);
    if (!err && fsync(b->file.fd))
        err = bench_fail_with(b->file.path, -errno);
    return err;
}

static int path_set_up(struct bench *b)
{
    int err = bench_begin_mounted(b, b->size);

    if (err)
        return err;
    bench_report_text(b->report, "file", path.direct ? "O_DIRECT" : "cached");
    if (bench_mount_open(&path.chosen, b->dir, b->size) || bench_mount_take_path(&path.chosen, 0))
        return -EIO;
    err = make_file(b);
    if (!err && path.direct && fcntl(b->file.fd, F_SETFL, fcntl(b->file.fd, F_GETFL) | O_DIRECT))
        err = bench_fail_with(b->file.path, -errno);
    return err;
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = 4 * UNIT, .seed = SEED, .repeats = 5};
    const struct bench_option options[] = {{'s', BENCH_MIB, &b.size, UNIT, BENCH_SIZE_MOST},
                                           {'w', BENCH_SECONDS, &path.warm_up, 0, 0},
                                           {'d', BENCH_FLAG, &path.direct, 0, 0},
                                           BENCH_REPORT_OPTIONS(b),
                                           {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s MiB, a multiple of 16] [-r REPEATS] [-w SECONDS] [-d]\n"
                           "                  [-o json] DIRECTORY\n"
                           "  -w  warm-up of each row\n"
                           "  -d  open the file with O_DIRECT\n");
    int err = path_set_up(&b);
    if (!err)
        err = path_measure_all(&b);
    bench_mount_close(&path.chosen);
    return bench_end(&b, err);
}
