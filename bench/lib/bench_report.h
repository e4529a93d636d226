/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a benchmark reports: the median and the spread of its samples, as a table or as JSON
 * (-o json, schema_version 1), with the machine they were taken on.
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

/*
 * The options that programs share: -s MiB, -r REPEATS and -o json, as getopt() found them; the size
 * in bytes. False: another one.
 */
bool bench_option(int opt, uint64_t *size, unsigned *repeats, bool *json);
/* After getopt(): one operand is left, and the repeats are as many samples as can be kept. */
bool bench_arguments_fit(int argc, unsigned repeats);

/* Prints "PROGRAM: object: what" to stderr. Returns -EIO. */
int bench_fail(const char *object, const char *what);
/*
 * Prints "PROGRAM: object: " and the message of err, a negative errno. Returns
 * err.
 */
int bench_fail_with(const char *object, int err);

double bench_seconds(void); /* monotonic */
/* More than BENCH_MAX_SAMPLES are left out. */
void bench_add(struct bench_samples *s, double value);
/* The value that p of the samples (0 to 1) do not exceed; sorts them. 0 without samples. */
double bench_percentile(struct bench_samples *s, double p);
double bench_median(struct bench_samples *s);

struct bench_report;

/* NULL when out of memory. gpu: the device's name, or NULL. */
struct bench_report *bench_report_new(bool json, const char *gpu);
/* Below 2^53, what a double holds. */
void bench_report_number(struct bench_report *r, const char *key, double value);
void bench_report_text(struct bench_report *r, const char *key, const char *value);
/*
 * A result. against: the name of an earlier row that this one is compared with, or NULL. Only
 * verified results are reported: a benchmark that finds a wrong byte reports nothing.
 */
void bench_report_row(struct bench_report *r, const char *name, const char *unit,
                      struct bench_samples *samples, const char *against);
/* The same of any number of values, such as latencies; sorts them. */
void bench_report_values(struct bench_report *r, const char *name, const char *unit, double *values,
                         size_t n, const char *against);
/* The row reported last is the point at x of a series, for plots: one plot a sweep. */
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
