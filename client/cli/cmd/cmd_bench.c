/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The commands `gpunvme bench` and `gpunvme verify` read a file on every path
 * and report its rate next to the limit, or its checksum.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/cmd/cli_copy.h"
#include "client/cli/cmd/cmd_bench_rows.h"

#define TURNS 3

/* Describes a method of reading the file, with the measured result. */
struct method {
    const char *name;
    uint32_t path; /* GPUNVME_PATH_*; 0: read(2) */
    bool copies;   /* copies as many bytes into the buffer instead of reading */
    double gb_per_s;
    struct cli_transfer last; /* of the last turn */
    bool done;
    char why[256]; /* reason of a failure */
};

/* Copies as many bytes from host memory into the buffer. */
static int bench_copy_all(struct cli_session *s, uint64_t size, struct cli_transfer *t)
{
    size_t len = buffer_len(s->buffer);
    int err = 0;

    while (!err && t->bytes < size) {
        size_t some = size - t->bytes < len ? (size_t)(size - t->bytes) : len;
        double start = now_seconds();
        err = buffer_copy_in(s->buffer, 0, s->host, some);
        t->seconds += now_seconds() - start;
        t->bytes += some;
    }
    return err;
}

/* Measures once, and keeps the best rate of all turns. */
static void bench_measure(struct cli_session *s, struct method *m, int fd, uint64_t size,
                          bool hashes)
{
    const struct gpunvme_options path = {.path = m->path, .crossover = 1};
    struct cli_transfer *t = &m->last;
    int err = m->path ? bounce_set_options(s->mount, &path) : 0;

    *t = (struct cli_transfer){.file = m->name};
    if (!err)
        err =
            m->copies ? bench_copy_all(s, size, t) : cli_read_all(s, fd, size, !m->path, hashes, t);
    m->done = !err;
    if (err)
        snprintf(m->why, sizeof(m->why), "%s", gpunvme_error());
    else if (t->seconds > 0 && (double)t->bytes / 1e9 / t->seconds > m->gb_per_s)
        m->gb_per_s = (double)t->bytes / 1e9 / t->seconds;
}

/* --- Both ------------------------------------------------------------------------------------ */

/* Prints nothing for an empty file, which has no rate. limit is 0 if there is none. */
static void bench_report_rate(struct cli_out *out, const struct method *m, double limit)
{
    if (!m->last.bytes)
        return;
    if (out->json)
        cli_out_number(out, "bytes_per_s", "", (uint64_t)(m->gb_per_s * 1e9));
    else
        cli_out_real(out, "", "GB/s:", m->gb_per_s);
    if (limit > 0 && !m->copies)
        cli_out_real(out, "of_limit", "Of the limit:", m->gb_per_s / limit);
}

static void report_method(struct cli_out *out, const struct method *m, bool hashed, double limit)
{
    char hash[17];

    cli_out_open(out, NULL, m->name);
    if (out->json)
        cli_out_string(out, "method", "Method:", m->name);
    if (!m->done) {
        cli_out_string(out, "failed", "Failed:", m->why);
        cli_out_close(out);
        return;
    }
    cli_out_bytes(out, "bytes", "Size:", m->last.bytes);
    bench_report_rate(out, m, limit);
    snprintf(hash, sizeof(hash), "%016" PRIx64, m->last.xxh3);
    if (hashed)
        cli_out_string(out, "xxh3", "XXH3:", hash);
    cli_out_close(out);
}

/*
 * Returns the highest rate, also if it is that of a read: the machine can do
 * it, so the copies were disturbed.
 */
static double bench_limit(const struct method *methods, size_t n)
{
    double limit = 0;

    for (size_t i = 0; i < n; i++)
        limit = methods[i].gb_per_s > limit ? methods[i].gb_per_s : limit;
    return limit;
}

static void bench_report(struct cli_out *out, const char *file, const struct cli_session *s,
                         const struct method *methods, size_t n, bool hashed)
{
    double limit = hashed ? 0 : bench_limit(methods, n);

    cli_out_open(out, NULL, file);
    if (out->json)
        cli_out_string(out, "file", "File:", file);
    cli_out_string(out, "executor", "Executor:", s->info.executor_name);
    cli_out_list(out, "methods");
    for (size_t i = 0; i < n; i++)
        report_method(out, &methods[i], hashed, limit);
    cli_out_list_end(out);
}

/* --- The commands ---------------------------------------------------------------------------- */

static int bench_file(struct cli_session *s, struct cli_out *out, const char *file)
{
    struct method methods[] = {{.name = "plain copy of the host's memory", .copies = true},
                               {.name = "GPU path", .path = GPUNVME_PATH_GPU},
                               {.name = "bounce pipeline", .path = GPUNVME_PATH_BOUNCE},
                               {.name = "read(2)"}};
    const size_t n = sizeof(methods) / sizeof(methods[0]);
    struct stat st;
    int fd = cli_open_regular(file, &st), failed = 0;

    if (fd < 0)
        return 1;
    memset(s->host, 1, buffer_len(s->buffer)); /* makes its pages present */
    /* The methods take turns, so that other load disturbs all of them. */
    for (size_t i = 0; i < TURNS * n; i++) {
        if (i < n || methods[i % n].done)
            bench_measure(s, &methods[i % n], fd, (uint64_t)st.st_size, false);
    }
    for (size_t i = 0; i < n; i++) {
        if (!methods[i].done)
            failed = cli_error(file, "%s: %s", methods[i].name, methods[i].why);
    }
    close(fd);
    bench_report(out, file, s, methods, n, false);
    cli_out_close(out);
    return failed;
}

static int verify_file(struct cli_session *s, struct cli_out *out, const char *file)
{
    struct method methods[] = {{.name = "GPU path", .path = GPUNVME_PATH_GPU},
                               {.name = "bounce pipeline", .path = GPUNVME_PATH_BOUNCE},
                               {.name = "read(2)"}};
    size_t n = sizeof(methods) / sizeof(methods[0]);
    struct stat st;
    int fd = cli_open_regular(file, &st), failed = 0;

    if (fd < 0)
        return 1;
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        bench_measure(s, &methods[i], fd, (uint64_t)st.st_size, true);
        if (!methods[i].done)
            failed = cli_error(file, "%s: %s", methods[i].name, methods[i].why);
        else if (methods[n - 1].done || i < n - 1)
            same &= methods[i].last.xxh3 == methods[0].last.xxh3 &&
                    methods[i].last.bytes == methods[0].last.bytes;
    }
    close(fd);
    bench_report(out, file, s, methods, n, true);
    cli_out_flag(out, "same", "Same bytes:", same && !failed);
    cli_out_close(out);
    if (!same && !failed)
        failed = cli_error(file, "the paths do not read the same bytes");
    return failed;
}

/* Rows need no mount, because a table reads files of any file system. */
static int bench_rows(const struct cli_options *options, char **files, int n)
{
    struct cli_out out;
    int failed = 0;

    cli_out_list_begin(&out, options->json, "files");
    for (int i = 0; i < n; i++)
        failed |= cli_bench_rows(options->row_size, &out, files[i]);
    cli_out_list_finish(&out);
    return failed;
}

int cli_bench(const struct cli_options *options, char **operands, int n)
{
    return options->rows ? bench_rows(options, operands, n)
                         : cli_each_file(options, operands, n, bench_file);
}

int cli_verify(const struct cli_options *options, char **operands, int n)
{
    return cli_each_file(options, operands, n, verify_file);
}
