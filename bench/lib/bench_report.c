/* SPDX-License-Identifier: BSD-2-Clause */
/* Results of benchmarks as a table or as JSON. */
#include "bench/lib/bench_report.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define SCHEMA_VERSION 1

struct bench_report {
    bool json;
    struct json_object *root, *parameters, *results;
};

static bool option_store(const struct bench_option *o, const char *text)
{
    uint64_t n;

    switch (o->kind) {
    case BENCH_FLAG:
        *(bool *)o->to = true;
        return true;
    case BENCH_JSON:
        *(bool *)o->to = true;
        return strcmp(text, "json") == 0;
    case BENCH_SECONDS:
        *(double *)o->to = strtod(text, NULL);
        return true;
    case BENCH_UNSIGNED:
        n = strtoul(text, NULL, 10);
        *(unsigned *)o->to = (unsigned)n;
        return n >= o->min && n <= o->max;
    case BENCH_MIB:
        n = strtoull(text, NULL, 10);
        *(uint64_t *)o->to = n << 20;
        return n <= o->max >> 20 && n << 20 >= o->min && (n << 20) % o->min == 0;
    default:
        n = *(uint64_t *)o->to = strtoull(text, NULL, 10);
        return n >= o->min && n <= o->max;
    }
}

bool bench_parse(int argc, char **argv, const struct bench_option *options, const char **operand)
{
    char letters[64];
    size_t n = 0;
    int letter;

    for (const struct bench_option *o = options; o->letter; o++) {
        letters[n++] = o->letter;
        if (o->kind != BENCH_FLAG)
            letters[n++] = ':';
    }
    letters[n++] = 'h'; /* is no option, and prints the usage without a further message */
    letters[n] = '\0';
    while ((letter = getopt(argc, argv, letters)) != -1) {
        const struct bench_option *o = options;

        while (o->letter && o->letter != letter)
            o++;
        if (!o->letter || !option_store(o, optarg))
            return false;
    }
    if (operand)
        *operand = argv[optind];
    return optind + (operand ? 1 : 0) == argc;
}

int bench_usage(const char *text)
{
    fprintf(stderr, "usage: %s %s", program_invocation_short_name, text);
    return 2;
}

struct bench_thread {
    int (*act)(void *of, unsigned i);
    void *of;
    unsigned i;
    int err;
    pthread_t thread;
};

static void *bench_thread_run(void *arg)
{
    struct bench_thread *t = arg;

    t->err = t->act(t->of, t->i);
    return NULL;
}

int bench_run_threads(unsigned n, int (*act)(void *of, unsigned i), void *of)
{
    struct bench_thread *threads = calloc(n, sizeof(*threads));
    unsigned started = 0;
    int err = threads ? 0 : -ENOMEM;

    while (started < n && !err) {
        struct bench_thread *t = &threads[started];

        *t = (struct bench_thread){.act = act, .of = of, .i = started};
        err = -pthread_create(&t->thread, NULL, bench_thread_run, t);
        started += !err;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        err = err ? err : threads[i].err;
    }
    free(threads);
    return err;
}

int bench_fail(const char *object, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, object, what);
    return -EIO;
}

int bench_fail_with(const char *object, int err)
{
    bench_fail(object, strerror(-err));
    return err;
}

double bench_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void bench_add(struct bench_samples *s, double value)
{
    if (s->n < BENCH_MAX_SAMPLES)
        s->values[s->n++] = value;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

/* Returns the value at percentile p of sorted values. */
static double at_percentile(const double *values, size_t n, double p)
{
    return n ? values[(size_t)(p * (double)(n - 1) + 0.5)] : 0;
}

/* Stores the first "model name" of /proc/cpuinfo. */
static void cpu_name(char *out, size_t len)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(out, len, "unknown");
    while (f && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');

        if (strncmp(line, "model name", strlen("model name")) == 0 && colon) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, len, "%s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

static struct json_object *machine(const char *gpu)
{
    struct json_object *m = json_object_new_object();
    struct utsname kernel;
    char cpu[128];

    cpu_name(cpu, sizeof(cpu));
    json_object_object_add(m, "cpu", json_object_new_string(cpu));
    json_object_object_add(m, "cores", json_object_new_int64(sysconf(_SC_NPROCESSORS_ONLN)));
    if (uname(&kernel) == 0)
        json_object_object_add(m, "kernel", json_object_new_string(kernel.release));
    json_object_object_add(m, "gpu", gpu ? json_object_new_string(gpu) : NULL);
    return m;
}

struct bench_report *bench_report_new(bool json, const char *gpu)
{
    struct bench_report *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->json = json;
    r->root = json_object_new_object();
    r->parameters = json_object_new_object();
    r->results = json_object_new_array();
    json_object_object_add(r->root, "schema_version", json_object_new_int(SCHEMA_VERSION));
    json_object_object_add(r->root, "program",
                           json_object_new_string(program_invocation_short_name));
    json_object_object_add(r->root, "machine", machine(gpu));
    json_object_object_add(r->root, "parameters", r->parameters);
    json_object_object_add(r->root, "results", r->results);
    return r;
}

void bench_report_number(struct bench_report *r, const char *key, double value)
{
    bool whole = value == (double)(int64_t)value;

    json_object_object_add(r->parameters, key,
                           whole ? json_object_new_int64((int64_t)value)
                                 : json_object_new_double(value));
}

void bench_report_text(struct bench_report *r, const char *key, const char *value)
{
    json_object_object_add(r->parameters, key, json_object_new_string(value));
}

static double report_field(struct json_object *row, const char *key)
{
    return json_object_get_double(json_object_object_get(row, key));
}

static const char *report_name_of(struct json_object *row)
{
    return json_object_get_string(json_object_object_get(row, "name"));
}

/* Returns the median of the row with that name, or 0 if there is none. */
static double median_of(const struct bench_report *r, const char *name)
{
    for (size_t i = 0; i < json_object_array_length(r->results); i++) {
        struct json_object *row = json_object_array_get_idx(r->results, i);

        if (strcmp(report_name_of(row), name) == 0)
            return report_field(row, "median");
    }
    return 0;
}

void bench_report_values(struct bench_report *r, const char *name, const char *unit, double *values,
                         size_t n, const char *against)
{
    static const struct {
        const char *key;
        double p;
    } columns[] = {{"median", 0.5}, {"p5", 0.05}, {"p95", 0.95}, {"p99", 0.99}};
    struct json_object *row = json_object_new_object();
    double base = against ? median_of(r, against) : 0;

    qsort(values, n, sizeof(values[0]), compare);
    json_object_object_add(row, "name", json_object_new_string(name));
    json_object_object_add(row, "unit", json_object_new_string(unit));
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        json_object_object_add(row, columns[i].key,
                               json_object_new_double(at_percentile(values, n, columns[i].p)));
    json_object_object_add(row, "samples", json_object_new_int64((int64_t)n));
    if (base > 0) {
        json_object_object_add(row, "against", json_object_new_string(against));
        json_object_object_add(row, "ratio",
                               json_object_new_double(report_field(row, "median") / base));
    }
    json_object_array_add(r->results, row);
}

void bench_report_row(struct bench_report *r, const char *name, const char *unit,
                      struct bench_samples *samples, const char *against)
{
    bench_report_values(r, name, unit, samples->values, samples->n, against);
}

void bench_report_point(struct bench_report *r, const char *sweep, const char *series, double x)
{
    size_t n = json_object_array_length(r->results);
    struct json_object *row = n ? json_object_array_get_idx(r->results, n - 1) : NULL;

    if (!row)
        return;
    json_object_object_add(row, "sweep", json_object_new_string(sweep));
    json_object_object_add(row, "series", json_object_new_string(series));
    json_object_object_add(row, "x", json_object_new_double(x));
}

static void print_parameters(struct json_object *of)
{
    json_object_object_foreach(of, key, value)
        printf("%-12s %s\n", key, value ? json_object_get_string(value) : "none");
}

static void report_print_row(struct json_object *row)
{
    printf("%-44s %10.3f %-6s [%.3f, %.3f, %.3f]", report_name_of(row), report_field(row, "median"),
           json_object_get_string(json_object_object_get(row, "unit")), report_field(row, "p5"),
           report_field(row, "p95"), report_field(row, "p99"));
    if (json_object_object_get(row, "ratio"))
        printf("  %.3f of %s", report_field(row, "ratio"),
               json_object_get_string(json_object_object_get(row, "against")));
    printf("\n");
}

static void report_end(struct bench_report *r)
{
    if (r->json) {
        printf("%s\n", json_object_to_json_string_ext(r->root, JSON_C_TO_STRING_PRETTY));
    } else {
        print_parameters(json_object_object_get(r->root, "machine"));
        print_parameters(r->parameters);
        printf("%-44s %10s %-6s [p5, p95, p99]\n", "", "median", "");
        for (size_t i = 0; i < json_object_array_length(r->results); i++)
            report_print_row(json_object_array_get_idx(r->results, i));
    }
}

int bench_report_close(struct bench_report *r, int err)
{
    if (r && !err)
        report_end(r);
    if (r)
        json_object_put(r->root);
    free(r);
    return err || !r ? 1 : 0;
}
