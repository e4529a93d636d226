/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures what ordinary programs get from a directory's file system: large and small reads and
 * writes, new files, their attributes and their removal, by system calls of one thread, and small
 * reads also by four. It works on any file system: posix_peers.py runs it over several in turn.
 *
 * Each row is repeated REPEATS times. Bytes that were read are verified.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/pattern.h"

#define PROGRAM   "posix_bench"
#define SEED      0x706f736978u
#define LARGE     ((size_t)1 << 20)
#define SMALL     ((size_t)4096)
#define SMALL_OPS 10000u /* of one job */
#define SYNC_OPS  1000u
#define FILES     5000u

struct bench {
    uint64_t size; /* bytes of the file */
    unsigned repeats;
    bool json;
    const char *dir;
    char path[2048];
    char *memory; /* LARGE, aligned to a page */
};

struct row {
    const char *name, *unit;
    /* Stores the count, in units of the row, in *n. Returns 0 or -errno. */
    int (*measure)(struct bench *b, const struct row *row, double *n);
    bool cold, durable;
    int flags;                    /* of the open of a file that is written */
    unsigned jobs;                /* that read */
    int (*act)(const char *path); /* with each name */
};

static int open_file(const struct bench *b, int flags)
{
    int fd = open(b->path, flags | O_CLOEXEC, 0644);

    return fd < 0 ? bench_fail_with(b->path, -errno) : fd;
}

static bool posix_is_right(const void *memory, size_t len, uint64_t place)
{
    struct pattern_pieces p = {.seed = SEED, .bytes = len, .n = 1, .places = &place};

    return pattern_host_count_wrong(memory, &p) == 0;
}

/* --- Large transfers ------------------------------------------------------------------------- */

/*
 * Writes the whole file: durably the content that reads expect, or the present contents of the
 * memory.
 */
static int write_whole(struct bench *b, bool expected)
{
    int fd = open_file(b, O_WRONLY | O_CREAT | (expected ? O_TRUNC : 0)), err = 0;

    if (fd < 0)
        return fd;
    for (uint64_t at = 0; at < b->size && !err; at += LARGE) {
        if (expected)
            pattern_host_write(b->memory, LARGE, SEED, at, false);
        if (pwrite(fd, b->memory, LARGE, (off_t)at) != (ssize_t)LARGE)
            err = bench_fail_with(b->path, -errno);
    }
    if (!err && expected && fsync(fd) != 0)
        err = bench_fail_with(b->path, -errno);
    if (close(fd) != 0 && !err)
        err = bench_fail_with(b->path, -errno);
    return err;
}

static int posix_write_all(struct bench *b, const struct row *row, double *n)
{
    (void)row;
    *n = (double)b->size / 1e6;
    return write_whole(b, false);
}

/* Compares the first word of each page, because a comparison of all bytes would take longest. */
static bool has_marks(const char *memory, uint64_t at)
{
    for (size_t i = 0; i < LARGE; i += SMALL) {
        uint64_t word;
        memcpy(&word, memory + i, sizeof(word));
        if (word != pattern_word(SEED, (at + i) / sizeof(word)))
            return false;
    }
    return true;
}

static int drop_cache(const struct bench *b)
{
    int fd = open_file(b, O_RDONLY);

    if (fd < 0)
        return fd;
    int err = fsync(fd) == 0 ? -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) : -errno;
    close(fd);
    return err;
}

static int read_all(struct bench *b, const struct row *row, double *n)
{
    int fd = open_file(b, O_RDONLY), err = 0;

    (void)row;
    if (fd < 0)
        return fd;
    for (uint64_t at = 0; at < b->size && !err; at += LARGE) {
        if (pread(fd, b->memory, LARGE, (off_t)at) != (ssize_t)LARGE)
            err = bench_fail_with(b->path, -errno);
        else if (!has_marks(b->memory, at))
            err = bench_fail(b->path, "wrong data");
    }
    *n = (double)b->size / 1e6;
    close(fd);
    return err;
}

/* --- Small transfers ------------------------------------------------------------------------- */

struct jobs {
    const struct bench *b;
    int fd;
};

static off_t posix_draw(const struct bench *b, unsigned job, unsigned i)
{
    uint64_t random = pattern_word(SEED + job + 1, i);

    return (off_t)(random % (b->size / SMALL) * SMALL);
}

static int read_pages(void *of, unsigned job)
{
    const struct jobs *j = of;
    char *memory = j->b->memory + job * SMALL;

    for (unsigned i = 0; i < SMALL_OPS; i++) {
        off_t at = posix_draw(j->b, job, i);
        if (pread(j->fd, memory, SMALL, at) != (ssize_t)SMALL)
            return bench_fail_with(j->b->path, -errno);
        if (!posix_is_right(memory, SMALL, (uint64_t)at))
            return bench_fail(j->b->path, "wrong data");
    }
    return 0;
}

static int read_direct(struct bench *b, const struct row *row, double *n)
{
    int fd = open_file(b, O_RDONLY | O_DIRECT);

    if (fd < 0)
        return fd;
    int err = bench_run_threads(row->jobs, read_pages, &(struct jobs){.b = b, .fd = fd});
    close(fd);
    *n = (double)row->jobs * SMALL_OPS / 1e3;
    return err;
}

/* Writes to each page the content that it has. The order is random with a flag or if durable. */
static int posix_write_pages(struct bench *b, const struct row *row, double *n)
{
    int fd = open_file(b, O_WRONLY | row->flags), err = 0;
    unsigned ops = row->durable ? SYNC_OPS : SMALL_OPS;

    if (fd < 0)
        return fd;
    for (unsigned i = 0; i < ops && !err; i++) {
        off_t at = row->flags || row->durable ? posix_draw(b, 0, i) : (off_t)(i * SMALL % b->size);
        pattern_host_write(b->memory, SMALL, SEED, (uint64_t)at, false);
        if (pwrite(fd, b->memory, SMALL, at) != (ssize_t)SMALL ||
            (row->durable && fdatasync(fd) != 0))
            err = bench_fail_with(b->path, -errno);
    }
    *n = ops / 1e3;
    close(fd);
    return err;
}

/* --- Names ----------------------------------------------------------------------------------- */

/* Calls act() for each name. Returns 0 or the first error. */
static int for_all_names(struct bench *b, const struct row *row, double *n)
{
    char path[2112];

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "%s.d/%u", b->path, i);
        if (row->act(path) != 0)
            return bench_fail_with(path, -errno);
    }
    *n = FILES / 1e3;
    return 0;
}

static int create_one(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    return fd < 0 ? -1 : close(fd);
}

static int stat_one(const char *path)
{
    struct stat st;

    return stat(path, &st);
}

/* --- All of them ----------------------------------------------------------------------------- */

static const struct row rows[] = {
    {"sequential write", "MB/s", posix_write_all, .cold = false},
    {"sequential read, cold", "MB/s", read_all, .cold = true},
    {"4 KiB direct read, 1 job", "k/s", read_direct, .cold = true, .jobs = 1},
    {"4 KiB direct read, 4 jobs", "k/s", read_direct, .jobs = 4},
    {"4 KiB direct write", "k/s", posix_write_pages, .flags = O_DIRECT},
    {"4 KiB buffered write", "k/s", posix_write_pages, .flags = 0},
    {"create", "k/s", for_all_names, .act = create_one},
    {"stat", "k/s", for_all_names, .act = stat_one},
    {"unlink", "k/s", for_all_names, .act = unlink},
    {"write 4 KiB and fdatasync", "k/s", posix_write_pages, .durable = true},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static int measure_once(struct bench *b, struct bench_samples *samples)
{
    for (size_t i = 0; i < ROWS; i++) {
        double n = 0;
        int err = i == 1 ? write_whole(b, true) : 0;
        if (!err && rows[i].cold)
            err = drop_cache(b);
        double begin = bench_seconds();
        if (!err)
            err = rows[i].measure(b, &rows[i], &n);
        double seconds = bench_seconds() - begin;
        if (err)
            return err;
        bench_add(&samples[i], n / seconds);
    }
    return 0;
}

static int posix_measure(struct bench *b, struct bench_report *report)
{
    struct bench_samples samples[ROWS] = {0};
    int err = 0;

    bench_report_number(report, "file_bytes", (double)b->size);
    for (unsigned i = 0; i < b->repeats && !err; i++)
        err = measure_once(b, samples);
    for (size_t i = 0; i < ROWS && !err; i++)
        bench_report_row(report, rows[i].name, rows[i].unit, &samples[i], NULL);
    return err;
}

static int posix_run(struct bench *b)
{
    char dir[2112];
    struct bench_report *report = bench_report_new(b->json, NULL);
    int err = report ? 0 : -ENOMEM;

    b->memory = aligned_alloc(SMALL, LARGE);
    snprintf(b->path, sizeof(b->path), "%s/" PROGRAM ".%ld", b->dir, (long)getpid());
    snprintf(dir, sizeof(dir), "%s.d", b->path);
    if (!err && !b->memory)
        err = -ENOMEM;
    if (!err && mkdir(dir, 0755) != 0)
        err = bench_fail_with(dir, -errno);
    if (!err)
        err = write_whole(b, true);
    if (!err)
        err = posix_measure(b, report);
    unlink(b->path);
    rmdir(dir);
    free(b->memory);
    return bench_report_close(report, err);
}

int main(int argc, char **argv)
{
    static struct bench b = {.size = (uint64_t)256 << 20, .repeats = 3};
    const struct bench_option options[] = {
        {'s', BENCH_MIB, &b.size, LARGE, UINT64_MAX}, BENCH_REPORT_OPTIONS(b), {0}};

    if (!bench_parse(argc, argv, options, &b.dir))
        return bench_usage("[-s MIB] [-r REPEATS] [-o json] DIRECTORY\n");
    return posix_run(&b);
}
