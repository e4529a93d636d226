/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands `gpunvme stats` and `gpunvme top`: counters of mounts, and how fast they move. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/mounts.h"
#include "client/cli/out.h"
#include "gpunvme/gpunvme.h"
#include "support/metrics.h"

#define MOUNTS 64

/* A mount that is looked at. */
struct watched {
    char *point;
    struct gpunvme *g;
    struct gpunvme_ioc_stats now, before;
};

struct watch {
    struct watched mounts[MOUNTS];
    size_t n;
};

static int watch_one(struct watch *w, const char *path)
{
    struct watched *m = &w->mounts[w->n];

    if (w->n == MOUNTS)
        return cli_error(path, "more than %d mounts, name fewer", MOUNTS);
    if (gpunvme_connect(path, &m->g))
        return cli_error(path, "%s", gpunvme_error());
    m->point = strdup(path);
    if (!m->point || gpunvme_stats(m->g, &m->now)) {
        gpunvme_disconnect(m->g);
        free(m->point);
        return cli_error(path, "%s", m->point ? gpunvme_error() : "out of memory");
    }
    w->n++;
    return 0;
}

static int watch_all(struct watch *w)
{
    struct cli_mounts mounts;
    int err = cli_mounts_read(CLI_MOUNTS, &mounts), failed = 0;

    if (err)
        return cli_error(CLI_MOUNTS, "%s", strerror(-err));
    for (size_t i = 0; i < mounts.n; i++)
        failed |= watch_one(w, mounts.all[i].point);
    cli_mounts_free(&mounts);
    return failed;
}

static int watch_open(struct watch *w, char **paths, int n)
{
    int failed = 0;

    *w = (struct watch){0};
    if (!n)
        return watch_all(w);
    for (int i = 0; i < n; i++)
        failed |= watch_one(w, paths[i]);
    return failed;
}

static void watch_close(struct watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        gpunvme_disconnect(w->mounts[i].g);
        free(w->mounts[i].point);
    }
}

/* --- stats ----------------------------------------------------------------------------------- */

static bool add_bucket(struct cli_table *t, unsigned op, unsigned path, unsigned i, uint64_t n)
{
    char below[24], count[24];

    snprintf(below, sizeof(below), "%" PRIu64, metrics_bucket_us(i));
    snprintf(count, sizeof(count), "%" PRIu64, n);
    const char *const cells[] = {metrics_ops[op], metrics_paths[path],
                                 metrics_bucket_us(i) ? below : NULL, count};
    return cli_table_add(t, cells);
}

/* Buckets without a call are left out. */
static void print_latency(struct cli_out *out, const struct gpunvme_ioc_stats *stats)
{
    static const struct cli_column columns[] = {{"op", "CALL", CLI_CELL_TEXT},
                                                {"path", "PATH", CLI_CELL_TEXT},
                                                {"below_us", "BELOW US", CLI_CELL_NUMBER},
                                                {"count", "COUNT", CLI_CELL_NUMBER}};
    struct cli_table t = {.columns = columns, .n_columns = 4};
    bool ok = true;

    for (unsigned i = 0; i < 9 * GPUNVME_LATENCY_BUCKETS; i++) {
        unsigned pair = i / GPUNVME_LATENCY_BUCKETS, bucket = i % GPUNVME_LATENCY_BUCKETS;
        uint64_t n = stats->latency[pair / 3][pair % 3].buckets[bucket];
        ok &= !n || add_bucket(&t, pair / 3, pair % 3, bucket, n);
    }
    if (!ok)
        cli_error("stats", "out of memory");
    cli_table_print(&t, out, "latency");
    cli_table_free(&t);
}

static void print_fallbacks(struct cli_out *out, const struct gpunvme_ioc_stats *stats)
{
    cli_out_open(out, "fallbacks", "Fallbacks:");
    for (size_t i = 0; i < sizeof(metrics_fallbacks) / sizeof(metrics_fallbacks[0]); i++) {
        char label[32];
        snprintf(label, sizeof(label), "%s:", metrics_fallbacks[i]);
        cli_out_number(out, metrics_fallbacks[i], label, stats->fallbacks[i]);
    }
    cli_out_close(out);
}

static void print_stats(const struct watch *w, bool json)
{
    struct cli_out out;

    cli_out_begin(&out, json, stdout);
    cli_out_list(&out, "mounts");
    for (size_t i = 0; i < w->n; i++) {
        const struct gpunvme_ioc_stats *now = &w->mounts[i].now;
        cli_out_open(&out, NULL, w->mounts[i].point);
        if (json)
            cli_out_string(&out, "mount", "Mount:", w->mounts[i].point);
        for (size_t k = 0; k < metrics_n_counters; k++)
            cli_out_number(&out, metrics_counters[k].name, metrics_counters[k].label,
                           metrics_value(now, &metrics_counters[k]));
        print_fallbacks(&out, now);
        print_latency(&out, now);
        cli_out_close(&out);
    }
    cli_out_list_end(&out);
    cli_out_end(&out);
}

static void print_prometheus(const struct watch *w, FILE *to)
{
    struct metrics_mount mounts[MOUNTS];

    for (size_t i = 0; i < w->n; i++)
        mounts[i] = (struct metrics_mount){w->mounts[i].point, &w->mounts[i].now};
    metrics_print(mounts, w->n, to);
}

/* A collector sees the whole text or the one before. */
static int write_textfile(const struct watch *w, const char *name)
{
    char temporary[4096];
    int n = snprintf(temporary, sizeof(temporary), "%s.%d", name, (int)getpid());

    if (n < 0 || (size_t)n >= sizeof(temporary))
        return cli_error(name, "the name is too long");
    FILE *to = fopen(temporary, "we");
    if (!to)
        return cli_error(temporary, "%s", strerror(errno));
    print_prometheus(w, to);
    bool bad = ferror(to) != 0;
    bad |= fclose(to) != 0;
    if (!bad && rename(temporary, name) == 0)
        return 0;
    cli_error(name, "%s", strerror(errno));
    unlink(temporary);
    return 1;
}

int cli_stats(int argc, char **argv)
{
    struct cli_options options;
    struct watch w;
    int first;
    int stop = cli_parse(argc, argv, "ow", &options, &first);

    if (stop)
        return stop - 1;
    int failed = watch_open(&w, argv + first, argc - first);
    if (options.textfile)
        failed |= write_textfile(&w, options.textfile);
    else if (options.prometheus)
        print_prometheus(&w, stdout);
    else
        print_stats(&w, options.json);
    watch_close(&w);
    return failed;
}

/* --- top ------------------------------------------------------------------------------------- */

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 ? (double)(now - before) / seconds : 0;
}

struct rates {
    double gpu_read, gpu_written, bounce_read, bounce_written; /* GB/s */
    double commands;                                           /* 1/s */
    uint64_t errors, timeouts;
};

static struct rates rates_of(const struct watched *m, double s)
{
    const struct gpunvme_ioc_stats *a = &m->before, *b = &m->now;

    return (struct rates){.gpu_read = rate(b->gpu_read_bytes, a->gpu_read_bytes, s) / 1e9,
                          .gpu_written = rate(b->gpu_written_bytes, a->gpu_written_bytes, s) / 1e9,
                          .bounce_read = rate(b->bounce_read_bytes, a->bounce_read_bytes, s) / 1e9,
                          .bounce_written =
                              rate(b->bounce_written_bytes, a->bounce_written_bytes, s) / 1e9,
                          .commands = rate(b->gpu_commands, a->gpu_commands, s),
                          .errors = b->errors - a->errors,
                          .timeouts = b->timeouts - a->timeouts};
}

static void print_rates(const struct watched *m, const struct rates *r)
{
    printf("%-30s %9.3f %9.3f %9.3f %9.3f %11.0f %6" PRIu64 " %6" PRIu64 "\n", m->point,
           r->gpu_read, r->gpu_written, r->bounce_read, r->bounce_written, r->commands, r->errors,
           r->timeouts);
}

static struct json_object *rates_json(const struct watched *m, const struct rates *r)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "mount", json_object_new_string(m->point));
    json_object_object_add(o, "gpu_read_gb_per_s", json_object_new_double(r->gpu_read));
    json_object_object_add(o, "gpu_written_gb_per_s", json_object_new_double(r->gpu_written));
    json_object_object_add(o, "bounce_read_gb_per_s", json_object_new_double(r->bounce_read));
    json_object_object_add(o, "bounce_written_gb_per_s", json_object_new_double(r->bounce_written));
    json_object_object_add(o, "gpu_commands_per_s", json_object_new_double(r->commands));
    json_object_object_add(o, "errors", json_object_new_uint64(r->errors));
    json_object_object_add(o, "timeouts", json_object_new_uint64(r->timeouts));
    return o;
}

/* One turn: what the mounts did since the last one. list NULL: text. */
static int show_turn(struct watch *w, double seconds, struct json_object *list)
{
    if (!list)
        printf("%-30s %9s %9s %9s %9s %11s %6s %6s\n", "MOUNT, GB/s", "GPU READ", "WRITE",
               "BOUNCE RD", "WRITE", "COMMANDS/s", "ERRORS", "LOST");
    for (size_t i = 0; i < w->n; i++) {
        struct watched *m = &w->mounts[i];
        m->before = m->now;
        if (gpunvme_stats(m->g, &m->now))
            return cli_error(m->point, "%s", gpunvme_error());
        struct rates r = rates_of(m, seconds);
        if (list)
            json_object_array_add(list, rates_json(m, &r));
        else
            print_rates(m, &r);
    }
    fflush(stdout);
    return 0;
}

static int show_turns(struct watch *w, const struct cli_options *options, struct json_object *list)
{
    double last = now_seconds();
    int failed = 0;

    for (unsigned i = 0; !failed && (!options->count || i < options->count); i++) {
        sleep(options->interval);
        double now = now_seconds();
        if (!list && isatty(STDOUT_FILENO))
            fputs("\033[H\033[J", stdout);
        failed = show_turn(w, now - last, list);
        last = now;
    }
    return failed;
}

int cli_top(int argc, char **argv)
{
    struct cli_options options;
    struct watch w;
    int first;
    int stop = cli_parse(argc, argv, "oiC", &options, &first);

    if (stop)
        return stop - 1;
    int failed = watch_open(&w, argv + first, argc - first);
    if (!w.n && !failed)
        failed = cli_error("top", "no gpunvmefs mount here");
    if (options.json && !options.count)
        options.count = 1;
    struct json_object *list = options.json ? json_object_new_array() : NULL;
    if (w.n)
        failed |= show_turns(&w, &options, list);
    if (list) {
        struct json_object *root = cli_json_new();
        json_object_object_add(root, "samples", list);
        cli_json_print(root);
    }
    watch_close(&w);
    return failed;
}
