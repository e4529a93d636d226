/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reports the median and the spread of the samples of a benchmark, as a table
 * or as JSON (-o json, schema_version 1), with the machine on which they were
 * taken.
 */
#ifndef BENCH_LIB_BENCH_REPORT_H
#define BENCH_LIB_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_MAX_SAMPLES 99u

struct bench_samples {
    double values[BENCH_MAX_SAMPLES];
    unsigned n;
};

/* Describes an option of a program. An array of them ends with the letter 0. */
struct bench_option {
    char letter;
    enum { BENCH_FLAG, BENCH_JSON, BENCH_UNSIGNED, BENCH_LONG, BENCH_MIB, BENCH_SECONDS } kind;
    void *to;          /* bool, bool, unsigned, uint64_t, uint64_t in bytes, double */
    uint64_t min, max; /* of a number; bytes of BENCH_MIB are a multiple of min */
};

/* clang-format off */
#define BENCH_REPORT_OPTIONS(b)                                     \
    {'r', BENCH_UNSIGNED, &(b).repeats, 1, BENCH_MAX_SAMPLES - 1},  \
    {'o', BENCH_JSON, &(b).json, 0, 0}
/* clang-format on */

/*
 * Stores the options of the command line, and its only operand in *operand. If
 * `operand` is NULL, none is expected. Returns false if an option is unknown or
 * has a wrong value, or if there are other operands.
 */
bool bench_parse(int argc, char **argv, const struct bench_option *options, const char **operand);
/* Prints "usage: PROGRAM " and the text to stderr. Returns 2, the exit status. */
int bench_usage(const char *text);

/*
 * Calls act for each number below n, each by a thread. Returns 0, or the first
 * error of act or of the start of a thread.
 */
int bench_run_threads(unsigned n, int (*act)(void *of, unsigned i), void *of);

/* Prints "PROGRAM: object: what" to stderr. Returns -EIO. */
int bench_fail(const char *object, const char *what);
/*
 * Prints "PROGRAM: object: " and the message of err, a negative errno. Returns
 * err.
 */
int bench_fail_with(const char *object, int err);

double bench_seconds(void); /* monotonic */
/* Adds a sample. Samples beyond BENCH_MAX_SAMPLES are dropped. */
void bench_add(struct bench_samples *s, double value);

struct bench_report;

/* Returns NULL without memory. `gpu` is the name of the device, or NULL. */
struct bench_report *bench_report_new(bool json, const char *gpu);
/* Adds a number below 2^53, which a double can represent. */
void bench_report_number(struct bench_report *r, const char *key, double value);
void bench_report_text(struct bench_report *r, const char *key, const char *value);
/*
 * Adds a result. `against` is the name of an earlier row with which this one is
 * compared, or NULL. Only verified results are reported: a benchmark that finds
 * a wrong byte reports nothing.
 */
void bench_report_row(struct bench_report *r, const char *name, const char *unit,
                      struct bench_samples *samples, const char *against);
/*
 * Acts like bench_report_row() with any number of values, such as latencies, and sorts them.
 */
void bench_report_values(struct bench_report *r, const char *name, const char *unit, double *values,
                         size_t n, const char *against);
/*
 * Marks the last row as the point at x of a series, for plots. Each sweep has
 * one plot.
 */
void bench_report_point(struct bench_report *r, const char *sweep, const char *series, double x);
/*
 * Prints the report unless err is set, frees it, and returns the exit status of
 * the benchmark. r may be NULL.
 */
int bench_report_close(struct bench_report *r, int err);

#ifdef __cplusplus
}
#endif

#endif
