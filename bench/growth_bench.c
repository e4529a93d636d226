/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures what the names and the extents of a directory's file system cost as they grow.
 *
 * At each power of ten it measures the files created since the last one, listed with their
 * attributes, and looked up in random order, and at the end their removal. Then one file grows by
 * extents: blocks of 4 KiB with a hole after each are written, and read at random. It works on any
 * file system: growth_peers.py runs it over several in turn. Names are counted, and bytes that were
 * read are verified. When the time is over, the program reports what it has measured, and the names
 * that exist by then stay.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/bench_report.h"
#include "bench/lib/pattern.h"

#define PROGRAM "growth_bench"
#define SEED    0x67726f777468u
#define BLOCK   4096u
#define FIRST   1000ul
#define GROWTH  10ul
#define SAMPLES 1000u
#define JOBS    64u

struct bench {
    unsigned long files, extents; /* at most */
    unsigned long per_dir;        /* files; 0: all in one */
    unsigned jobs;                /* threads that create, list and remove */
    double seconds, end;          /* of the time for all; 0: no limit */
    bool json;
    char dir[2048];
    char *block; /* aligned to its size */
    double micros[SAMPLES];
    struct bench_report *report;
};

static bool growth_is_over(const struct bench *b)
{
    return b->seconds > 0 && bench_seconds() > b->end;
}

static double micros_since(double begin)
{
    return (bench_seconds() - begin) * 1e6;
}

static void report_each(struct bench *b, const char *sweep, const char *what, unsigned long x,
                        size_t n)
{
    char name[96];

    snprintf(name, sizeof(name), "%s, %lu %s", what, x, sweep);
    bench_report_values(b->report, name, "us", b->micros, n, NULL);
    bench_report_point(b->report, sweep, what, (double)x);
}

/* Reports one value: the mean of `count` calls that took `micros` in all. */
static void report_mean(struct bench *b, const char *sweep, const char *what, unsigned long x,
                        double micros, unsigned long count)
{
    b->micros[0] = micros / (double)count;
    report_each(b, sweep, what, x, 1);
}

static unsigned long growth_draw(unsigned long below, unsigned i)
{
    return (unsigned long)(pattern_word(SEED + below, i) % below);
}

/* --- Names ------------------------------------------------------------------------------------ */

static void dir_path(const struct bench *b, unsigned long number, char *path, size_t len)
{
    if (b->per_dir)
        snprintf(path, len, "%s/%lu", b->dir, number);
    else
        snprintf(path, len, "%s/all", b->dir);
}

static void file_path(const struct bench *b, unsigned long number, char *path, size_t len)
{
    char dir[2080];

    dir_path(b, b->per_dir ? number / b->per_dir : 0, dir, sizeof(dir));
    snprintf(path, len, "%s/file-%08lu", dir, number);
}

static int create_file(const struct bench *b, unsigned long number)
{
    char path[2112];

    file_path(b, number, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd >= 0 && close(fd) == 0 ? 0 : bench_fail_with(path, -errno);
}

static int unlink_file(const struct bench *b, unsigned long number)
{
    char path[2112];

    file_path(b, number, path, sizeof(path));
    return unlink(path) == 0 ? 0 : bench_fail_with(path, -errno);
}

struct jobs {
    const struct bench *b;
    unsigned long from, to;
    int (*act)(const struct bench *b, unsigned long number);
};

static int act_on_numbers(void *of, unsigned job)
{
    const struct jobs *j = of;
    unsigned long part = (j->to - j->from) / j->b->jobs, from = j->from + job * part;
    unsigned long to = job + 1 == j->b->jobs ? j->to : from + part;
    int err = 0;

    for (unsigned long i = from; i < to && !err; i++)
        err = growth_is_over(j->b) ? -ETIME : j->act(j->b, i);
    return err;
}

/* Calls act for each number from `from` on, divided among the jobs. */
static int for_numbers(const struct bench *b, unsigned long from, unsigned long to,
                       int (*act)(const struct bench *b, unsigned long number))
{
    return bench_run_threads(b->jobs, act_on_numbers,
                             &(struct jobs){.b = b, .from = from, .to = to, .act = act});
}

/* Returns the number of directories of the files below `files`. */
static unsigned long count_dirs(const struct bench *b, unsigned long files)
{
    return b->per_dir ? (files + b->per_dir - 1) / b->per_dir : 1;
}

static int make_dir(const struct bench *b, unsigned long number)
{
    char path[2080];

    dir_path(b, number, path, sizeof(path));
    return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : bench_fail_with(path, -errno);
}

static int remove_dir(const struct bench *b, unsigned long number)
{
    char path[2080];

    dir_path(b, number, path, sizeof(path));
    return rmdir(path) == 0 ? 0 : bench_fail_with(path, -errno);
}

static atomic_ulong listed; /* files that list_dir() has counted */

static int list_dir(const struct bench *b, unsigned long number)
{
    char path[2080];
    const struct dirent *entry;
    struct stat st;
    unsigned long count = 0;

    dir_path(b, number, path, sizeof(path));
    DIR *dir = opendir(path);
    if (!dir)
        return bench_fail_with(path, -errno);
    while (!growth_is_over(b) && (entry = readdir(dir))) {
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            count += S_ISREG(st.st_mode) ? 1 : 0;
    }
    closedir(dir);
    atomic_fetch_add(&listed, count);
    return growth_is_over(b) ? -ETIME : 0;
}

static int measure_creations(struct bench *b, unsigned long from, unsigned long to)
{
    int err = for_numbers(b, 0, count_dirs(b, to), make_dir);
    double begin = bench_seconds();

    if (!err)
        err = for_numbers(b, from, to, create_file);
    if (!err)
        report_mean(b, "files", "create", to, micros_since(begin), to - from);
    return err;
}

static int measure_list(struct bench *b, unsigned long files)
{
    double begin = bench_seconds();

    atomic_store(&listed, 0);
    int err = for_numbers(b, 0, count_dirs(b, files), list_dir);
    if (!err && atomic_load(&listed) != files)
        err = bench_fail(b->dir, "names are missing");
    if (!err)
        report_mean(b, "files", "list with attributes", files, micros_since(begin), files);
    return err;
}

static int measure_opens(struct bench *b, unsigned long files)
{
    char path[2112];

    for (unsigned i = 0; i < SAMPLES; i++) {
        file_path(b, growth_draw(files, i), path, sizeof(path));
        double begin = bench_seconds();
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return bench_fail_with(path, -errno);
        close(fd);
        b->micros[i] = micros_since(begin);
    }
    report_each(b, "files", "open and close at random", files, SAMPLES);
    return 0;
}

static int measure_removals(struct bench *b, unsigned long files)
{
    double begin = bench_seconds();
    int err = for_numbers(b, 0, files, unlink_file);

    if (!err)
        report_mean(b, "files", "unlink", files, micros_since(begin), files);
    return err ? err : for_numbers(b, 0, count_dirs(b, files), remove_dir);
}

static int growth_measure_files(struct bench *b)
{
    unsigned long made = 0;
    int err = 0;

    for (unsigned long files = FIRST; files <= b->files && !err; files *= GROWTH) {
        err = measure_creations(b, made, files);
        made = files;
        if (!err)
            err = measure_list(b, files);
        if (!err)
            err = measure_opens(b, files);
    }
    return err || made == 0 ? err : measure_removals(b, made);
}

/* --- Extents ---------------------------------------------------------------------------------- */

/* Returns the place of an extent, which is every other block. */
static uint64_t place_of(unsigned long extent)
{
    return (uint64_t)extent * 2 * BLOCK;
}

static int grow_extents(struct bench *b, int fd, unsigned long from, unsigned long to)
{
    double begin = bench_seconds();

    for (unsigned long i = from; i < to; i++) {
        if (growth_is_over(b))
            return -ETIME;
        pattern_host_write(b->block, BLOCK, SEED, place_of(i), false);
        if (pwrite(fd, b->block, BLOCK, (off_t)place_of(i)) != (ssize_t)BLOCK)
            return bench_fail_with(b->dir, -errno);
    }
    if (fsync(fd) != 0)
        return bench_fail_with(b->dir, -errno);
    report_mean(b, "extents", "write 4 KiB and a hole", to, micros_since(begin), to - from);
    return 0;
}

static int read_extents(struct bench *b, int fd, unsigned long extents)
{
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t place = place_of(growth_draw(extents, i));
        struct pattern_pieces p = {.seed = SEED, .bytes = BLOCK, .n = 1, .places = &place};
        double begin = bench_seconds();
        if (pread(fd, b->block, BLOCK, (off_t)place) != (ssize_t)BLOCK)
            return bench_fail_with(b->dir, -errno);
        b->micros[i] = micros_since(begin);
        if (pattern_host_count_wrong(b->block, &p) != 0)
            return bench_fail(b->dir, "wrong data");
    }
    report_each(b, "extents", "read 4 KiB at random", extents, SAMPLES);
    return 0;
}

static int measure_extents(struct bench *b)
{
    char path[2112];
    unsigned long made = 0;
    int err = 0;

    snprintf(path, sizeof(path), "%s/extents", b->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0644);
    if (fd < 0)
        return bench_fail_with(path, -errno);
    for (unsigned long n = FIRST; n <= b->extents && !err; n *= GROWTH) {
        err = grow_extents(b, fd, made, n);
        made = n;
        if (!err)
            err = read_extents(b, fd, n);
    }
    if (close(fd) != 0 || unlink(path) != 0)
        err = err ? err : bench_fail_with(path, -errno);
    return err;
}

/* --- All of them ------------------------------------------------------------------------------ */

static int growth_run(struct bench *b, const char *where)
{
    int err = 0;

    b->end = bench_seconds() + b->seconds;
    b->report = bench_report_new(b->json, NULL);
    b->block = aligned_alloc(BLOCK, BLOCK);
    if (!b->report || !b->block)
        return -ENOMEM;
    snprintf(b->dir, sizeof(b->dir), "%s/" PROGRAM ".%ld", where, (long)getpid());
    bench_report_number(b->report, "files_in_a_directory", (double)b->per_dir);
    bench_report_number(b->report, "jobs", b->jobs);
    if (mkdir(b->dir, 0755) != 0)
        err = bench_fail_with(b->dir, -errno);
    if (!err)
        err = growth_measure_files(b);
    if (!err && b->extents)
        err = measure_extents(b);
    rmdir(b->dir);
    if (err != -ETIME)
        return err;
    fprintf(stderr, PROGRAM ": %s: the time is over, the rest is left out\n", b->dir);
    return 0;
}

int main(int argc, char **argv)
{
    const char *where;
    static struct bench b = {.files = 100000, .extents = 10000, .jobs = 1};
    const struct bench_option options[] = {{'n', BENCH_LONG, &b.files, 0, ULONG_MAX},
                                           {'p', BENCH_LONG, &b.per_dir, 0, ULONG_MAX},
                                           {'e', BENCH_LONG, &b.extents, 0, ULONG_MAX},
                                           {'j', BENCH_UNSIGNED, &b.jobs, 1, JOBS},
                                           {'t', BENCH_SECONDS, &b.seconds, 0, 0},
                                           {'o', BENCH_JSON, &b.json, 0, 0},
                                           {0}};

    if (!bench_parse(argc, argv, options, &where))
        return bench_usage("[-n FILES] [-p FILES OF A DIRECTORY] [-e EXTENTS] [-j JOBS]\n"
                           "                    [-t SECONDS] [-o json] DIRECTORY\n"
                           "  -p  0, the default: all in one\n"
                           "  -n, -e  powers of ten from 1000 on; 0: none\n"
                           "  -t  for all; what is not measured by then is left out\n");
    int err = growth_run(&b, where);
    free(b.block);
    return bench_report_close(b.report, err);
}
