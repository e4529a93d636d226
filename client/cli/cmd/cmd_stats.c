/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme stats` prints counters of mounts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cmd/watched_mounts.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/gpus_table.h"
#include "client/cli/common/out.h"
#include "fusefs/metrics.h"

static void add_bucket(struct cli_table *t, unsigned op, unsigned path, unsigned i, uint64_t n)
{
    uint64_t us = metrics_bucket_us(i);
    struct json_object *cells[] = {cli_text(metrics_ops[op]), cli_text(metrics_paths[path]),
                                   us ? json_object_new_uint64(us) : NULL,
                                   json_object_new_uint64(n)};

    cli_table_add(t, cells);
}

/*
 * Prints the histograms of each operation and path without empty buckets. Adjacent histograms are
 * `stride` bytes apart.
 */
static void print_latency(struct cli_out *out, const char *key, const struct gpunvme_latency *first,
                          size_t stride, unsigned paths)
{
    static const struct cli_column columns[] = {{"op", "CALL", CLI_CELL_TEXT},
                                                {"path", "PATH", CLI_CELL_TEXT},
                                                {"below_us", "BELOW US", CLI_CELL_NUMBER},
                                                {"count", "COUNT", CLI_CELL_NUMBER}};
    struct cli_table t = {.columns = columns, .n_columns = 4};

    for (unsigned i = 0; i < 3 * paths * GPUNVME_LATENCY_BUCKETS; i++) {
        unsigned pair = i / GPUNVME_LATENCY_BUCKETS, bucket = i % GPUNVME_LATENCY_BUCKETS;
        const struct gpunvme_latency *of = (const void *)((const char *)first + pair * stride);
        uint64_t n = of->buckets[bucket];
        if (n)
            add_bucket(&t, pair / paths, pair % paths, bucket, n);
    }
    cli_table_show(&t, out, key);
}

/* Prints the counters that the library shares with the mount. */
static void stats_print_programs(struct cli_out *out, const struct gpunvme_ioc_stats *stats)
{
    static const struct cli_column columns[] = {{"op", "CALL OF PROGRAMS", CLI_CELL_TEXT},
                                                {"path", "PATH", CLI_CELL_TEXT},
                                                {"count", "COUNT", CLI_CELL_NUMBER},
                                                {"bytes", "BYTES", CLI_CELL_BYTES}};
    struct cli_table t = {.columns = columns, .n_columns = 4};

    for (unsigned i = 0; i < 3 * GPUNVME_CALLS_PATHS; i++) {
        unsigned op = i / GPUNVME_CALLS_PATHS, path = i % GPUNVME_CALLS_PATHS;
        const struct gpunvme_calls_of *c = &stats->calls.by[op][path];
        if (!c->bytes)
            continue;
        struct json_object *cells[] = {cli_text(metrics_ops[op]), cli_text(metrics_paths[path]),
                                       json_object_new_uint64(metrics_calls(&c->latency)),
                                       json_object_new_uint64(c->bytes)};
        cli_table_add(&t, cells);
    }
    cli_table_show(&t, out, "programs");
}

static void stats_print_fallbacks(struct cli_out *out, const struct gpunvme_ioc_stats *stats)
{
    cli_out_open(out, "fallbacks", "Fallbacks:");
    for (size_t i = 0; i < sizeof(metrics_fallbacks) / sizeof(metrics_fallbacks[0]); i++) {
        char label[32];
        snprintf(label, sizeof(label), "%s:", metrics_fallbacks[i]);
        cli_out_number(out, metrics_fallbacks[i], label, stats->fallbacks[i]);
    }
    cli_out_close(out);
}

static int stats_print_gpus(struct cli_out *out, const struct cli_watched *m)
{
    struct gpunvme_ioc_gpus gpus = {.count = 0};

    if (gpunvme_gpus(connection_fd(m->g), &gpus))
        return cli_error(m->point, "%s", gpunvme_error());
    cli_gpus_table(out, &gpus);
    return 0;
}

static int stats_print_stats(const struct cli_watch *w, bool json)
{
    struct cli_out out;
    int failed = 0;

    cli_out_list_begin(&out, json, "mounts");
    for (size_t i = 0; i < w->n; i++) {
        const struct gpunvme_ioc_stats *now = &w->mounts[i].now;
        cli_out_open(&out, NULL, w->mounts[i].point);
        if (json)
            cli_out_string(&out, "mount", "Mount:", w->mounts[i].point);
        cli_out_counters(&out, now);
        stats_print_fallbacks(&out, now);
        print_latency(&out, "latency", now->latency[0], sizeof(now->latency[0][0]), 3);
        stats_print_programs(&out, now);
        print_latency(&out, "programs_latency", &now->calls.by[0][0].latency,
                      sizeof(now->calls.by[0][0]), GPUNVME_CALLS_PATHS);
        failed |= stats_print_gpus(&out, &w->mounts[i]);
        cli_out_close(&out);
    }
    cli_out_list_finish(&out);
    return failed;
}

static int print_prometheus(const struct cli_watch *w, FILE *to)
{
    int failed = 0;
    struct metrics_mount mounts[CLI_WATCH_MOUNTS];
    struct gpunvme_ioc_gpus *gpus = calloc(w->n + 1, sizeof(*gpus));

    if (!gpus)
        return cli_error("stats", "out of memory");
    for (size_t i = 0; i < w->n; i++) {
        const struct cli_watched *m = &w->mounts[i];
        if (gpunvme_gpus(connection_fd(m->g), &gpus[i]))
            failed |= cli_error(m->point, "%s", gpunvme_error());
        mounts[i] = (struct metrics_mount){m->point, &m->now, &gpus[i]};
    }
    metrics_print(mounts, w->n, to);
    free(gpus);
    return failed;
}

/* A collector sees the old or the new text. */
static int write_textfile(const struct cli_watch *w, const char *name)
{
    char temporary[4096];
    int n = snprintf(temporary, sizeof(temporary), "%s.%d", name, (int)getpid());

    if (n < 0 || (size_t)n >= sizeof(temporary))
        return cli_error(name, "the name is too long");
    FILE *to = fopen(temporary, "we");
    if (!to)
        return cli_error(temporary, "%s", strerror(errno));
    bool bad = print_prometheus(w, to) != 0;
    bad |= ferror(to) != 0;
    bad |= fclose(to) != 0;
    if (!bad && rename(temporary, name) == 0)
        return 0;
    cli_error(name, "%s", strerror(errno));
    unlink(temporary);
    return 1;
}

int cli_stats(const struct cli_options *options, char **operands, int n)
{
    struct cli_watch w;
    int failed = cli_watch_open(&w, operands, n);

    if (options->textfile)
        failed |= write_textfile(&w, options->textfile);
    else if (options->prometheus)
        failed |= print_prometheus(&w, stdout);
    else
        failed |= stats_print_stats(&w, options->json);
    cli_watch_close(&w);
    return failed;
}
