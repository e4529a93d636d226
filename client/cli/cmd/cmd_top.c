/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme top` prints the rates of mounts, and of their processes,
 * files and queues.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/cmd/top_activity.h"
#include "client/cli/cmd/watched_mounts.h"
#include "client/cli/common/cli.h"

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 ? (double)(now - before) / seconds : 0;
}

struct rates {
    double gpu_read, gpu_written, bounce_read, bounce_written; /* by the daemon, GB/s */
    double direct_read, pipeline_read, pipeline_written;       /* by programs */
    double commands, leased_commands;                          /* 1/s */
    uint64_t errors, timeouts;
};

/*
 * Returns the bytes that the library read on the direct path, without the
 * daemon.
 */
static uint64_t direct_bytes(const struct gpunvme_ioc_stats *stats)
{
    return stats->calls.by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1].bytes +
           stats->calls.enqueued_bytes;
}

static struct rates top_rates_of(const struct cli_watched *m, double s)
{
    const struct gpunvme_ioc_stats *a = &m->before, *b = &m->now;
    const struct gpunvme_calls *was = &a->calls, *is = &b->calls;

    return (struct rates){
        .gpu_read = rate(b->gpu_read_bytes, a->gpu_read_bytes, s) / 1e9,
        .gpu_written = rate(b->gpu_written_bytes, a->gpu_written_bytes, s) / 1e9,
        .bounce_read = rate(b->bounce_read_bytes, a->bounce_read_bytes, s) / 1e9,
        .bounce_written = rate(b->bounce_written_bytes, a->bounce_written_bytes, s) / 1e9,
        .direct_read = rate(direct_bytes(b), direct_bytes(a), s) / 1e9,
        .pipeline_read = rate(is->pipeline_read_bytes, was->pipeline_read_bytes, s) / 1e9,
        .pipeline_written = rate(is->pipeline_written_bytes, was->pipeline_written_bytes, s) / 1e9,
        .commands = rate(b->gpu_commands, a->gpu_commands, s),
        .leased_commands = rate(b->leased_commands, a->leased_commands, s),
        .errors = b->errors - a->errors,
        .timeouts = b->timeouts - a->timeouts};
}

static void print_rates(const struct cli_watched *m, const struct rates *r)
{
    printf("%-30s %9.3f %9.3f %9.3f %9.3f %9.3f %11.0f %6" PRIu64 " %6" PRIu64 "\n", m->point,
           r->gpu_read, r->gpu_written, r->bounce_read + r->pipeline_read,
           r->bounce_written + r->pipeline_written, r->direct_read,
           r->commands + r->leased_commands, r->errors, r->timeouts);
}

static struct json_object *rates_json(const struct cli_watched *m, const struct rates *r)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "mount", json_object_new_string(m->point));
    json_object_object_add(o, "gpu_read_gb_per_s", json_object_new_double(r->gpu_read));
    json_object_object_add(o, "gpu_written_gb_per_s", json_object_new_double(r->gpu_written));
    json_object_object_add(o, "bounce_read_gb_per_s", json_object_new_double(r->bounce_read));
    json_object_object_add(o, "bounce_written_gb_per_s", json_object_new_double(r->bounce_written));
    json_object_object_add(o, "direct_read_gb_per_s", json_object_new_double(r->direct_read));
    json_object_object_add(o, "pipeline_read_gb_per_s", json_object_new_double(r->pipeline_read));
    json_object_object_add(o, "pipeline_written_gb_per_s",
                           json_object_new_double(r->pipeline_written));
    json_object_object_add(o, "gpu_commands_per_s", json_object_new_double(r->commands));
    json_object_object_add(o, "leased_commands_per_s", json_object_new_double(r->leased_commands));
    json_object_object_add(o, "errors", json_object_new_uint64(r->errors));
    json_object_object_add(o, "timeouts", json_object_new_uint64(r->timeouts));
    return o;
}

/*
 * The mounts of a command with the previous readings of their files and queues.
 */
struct top {
    struct cli_watch watch;
    struct cli_counts before[CLI_WATCH_MOUNTS];
};

static int top_begin(struct top *t)
{
    int failed = 0;

    for (size_t i = 0; i < t->watch.n; i++)
        failed |= cli_counts_read(t->watch.mounts[i].g, t->watch.mounts[i].point, &t->before[i]);
    return failed;
}

static void top_end(struct top *t)
{
    for (size_t i = 0; i < t->watch.n; i++)
        cli_counts_free(&t->before[i]);
    cli_watch_close(&t->watch);
}

static int show_mount(struct cli_watched *m, struct cli_counts *before, double seconds,
                      struct json_object *list)
{
    static struct cli_activity activity; /* too large for a stack */
    struct cli_counts now;
    struct stat st;

    m->before = m->now;
    if (gpunvme_stats(m->g, &m->now))
        return cli_error(m->point, "%s", gpunvme_error());
    if (stat(m->point, &st) != 0)
        return cli_error(m->point, "%s", strerror(errno));
    if (cli_counts_read(m->g, m->point, &now))
        return 1;
    struct rates r = top_rates_of(m, seconds);
    cli_activity_between(before, &now, seconds, st.st_dev, &activity);
    cli_counts_free(before);
    *before = now;
    if (list) {
        struct json_object *o = rates_json(m, &r);
        cli_activity_json(&activity, o);
        json_object_array_add(list, o);
    } else {
        print_rates(m, &r);
        cli_activity_print(&activity);
    }
    return 0;
}

/*
 * Prints the rates of the mounts since the previous turn. `list` is NULL for
 * text.
 */
static int show_turn(struct top *t, double seconds, struct json_object *list)
{
    int failed = 0;

    if (!list)
        printf("%-30s %9s %9s %9s %9s %9s %11s %6s %6s\n", "MOUNT, GB/s", "GPU READ", "WRITE",
               "BOUNCE RD", "WRITE", "DIRECT RD", "COMMANDS/s", "ERRORS", "LOST");
    for (size_t i = 0; i < t->watch.n && !failed; i++)
        failed = show_mount(&t->watch.mounts[i], &t->before[i], seconds, list);
    fflush(stdout);
    return failed;
}

static int show_turns(struct top *t, const struct cli_options *options, struct json_object *list)
{
    double last = now_seconds();
    int failed = top_begin(t);

    for (unsigned i = 0; !failed && (!options->count || i < options->count); i++) {
        sleep(options->interval);
        double now = now_seconds();
        if (!list && isatty(STDOUT_FILENO))
            fputs("\033[H\033[J", stdout);
        failed = show_turn(t, now - last, list);
        last = now;
    }
    return failed;
}

int cli_top(int argc, char **argv)
{
    static struct top t; /* too large for a stack */
    struct cli_options options;
    int first;
    int stop = cli_parse(argc, argv, "oiC", &options, &first);

    if (stop)
        return stop - 1;
    int failed = cli_watch_open(&t.watch, argv + first, argc - first);
    if (!t.watch.n && !failed)
        failed = cli_error("top", "no gpunvmefs mount here");
    if (options.json && !options.count)
        options.count = 1;
    struct json_object *list = options.json ? json_object_new_array() : NULL;
    if (t.watch.n)
        failed |= show_turns(&t, &options, list);
    if (list) {
        struct json_object *root = cli_json_new();
        json_object_object_add(root, "samples", list);
        cli_json_print(root);
    }
    top_end(&t);
    return failed;
}
