/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Computes rates of processes, files and queues from the counters of open files
 * and queues.
 */
#include "client/cli/cmd/top_activity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cmd/activity_names.h"
#include "client/cli/common/cli.h"

#define ALL_USES 4096 /* processes, or files, to select the busiest from */

/* --- Counting -------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct gpunvme_open_file *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int add_files(struct cli_counts *c, const struct gpunvme_ioc_open_files *page)
{
    if (c->n_files + page->count > c->room) {
        size_t room = 2 * c->room + GPUNVME_OPEN_FILES_MAX;
        struct gpunvme_open_file *grown = realloc(c->files, room * sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        c->files = grown;
        c->room = room;
    }
    memcpy(&c->files[c->n_files], page->files, page->count * sizeof(page->files[0]));
    c->n_files += page->count;
    return 0;
}

static void drop_duplicates(struct cli_counts *c)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->n_files; i++) {
        if (!kept || c->files[kept - 1].id != c->files[i].id)
            c->files[kept++] = c->files[i];
    }
    c->n_files = kept;
}

/*
 * Removes duplicates: a file that is closed between two replies may be in both.
 */
static int top_activity_read_files(struct gpunvme *g, struct cli_counts *out)
{
    struct gpunvme_ioc_open_files page = {.below = 0};
    int err;

    do {
        err = gpunvme_open_files(g, page.below, &page);
        err = err ? err : add_files(out, &page);
    } while (!err && page.below);
    if (!err && out->n_files) {
        qsort(out->files, out->n_files, sizeof(out->files[0]), by_id);
        drop_duplicates(out);
    }
    return err;
}

int cli_counts_read(struct gpunvme *g, const char *point, struct cli_counts *out)
{
    *out = (struct cli_counts){0};
    int err = top_activity_read_files(g, out);
    err = err ? err : gpunvme_queues(g, &out->queues);
    if (err && err != -ENOTTY && err != -EINVAL)
        return cli_error(point, "%s", err == -ENOMEM ? "out of memory" : gpunvme_error());
    return 0;
}

void cli_counts_free(struct cli_counts *c)
{
    free(c->files);
    *c = (struct cli_counts){0};
}

/* --- Rates ----------------------------------------------------------------------------------- */

static void top_activity_bytes_of(const struct gpunvme_open_file *f, uint64_t bytes[CLI_RATES])
{
    const uint64_t all[CLI_RATES] = {f->gpu_read_bytes,    f->gpu_written_bytes,
                                     f->bounce_read_bytes, f->bounce_written_bytes,
                                     f->kernel_read_bytes, f->kernel_written_bytes};

    memcpy(bytes, all, sizeof(all));
}

static double total(const struct cli_use *u)
{
    double sum = 0;

    for (size_t i = 0; i < CLI_RATES; i++)
        sum += u->rates[i];
    return sum;
}

static int by_total(const void *a, const void *b)
{
    double x = total(a), y = total(b);

    return (x < y) - (x > y);
}

static struct cli_use *use_of(struct cli_use *uses, size_t *n, uint64_t key)
{
    for (size_t i = 0; i < *n; i++) {
        if (uses[i].key == key)
            return &uses[i];
    }
    if (*n == ALL_USES)
        return NULL;
    uses[*n] = (struct cli_use){.key = key};
    return &uses[(*n)++];
}

static void add_rates(struct cli_use *u, const double rates[CLI_RATES])
{
    for (size_t i = 0; u && i < CLI_RATES; i++)
        u->rates[i] += rates[i];
}

/* Counters of a file that is not in `before` started at 0. */
static bool top_activity_rates_of(const struct cli_counts *before,
                                  const struct gpunvme_open_file *f, double seconds,
                                  double rates[CLI_RATES])
{
    const struct gpunvme_open_file none = {0};
    const struct gpunvme_open_file *was =
        before->n_files
            ? bsearch(f, before->files, before->n_files, sizeof(before->files[0]), by_id)
            : NULL;
    uint64_t now[CLI_RATES], old[CLI_RATES];

    was = was ? was : &none;
    top_activity_bytes_of(f, now);
    top_activity_bytes_of(was, old);
    for (size_t i = 0; i < CLI_RATES; i++)
        rates[i] = seconds > 0 && now[i] > old[i] ? (double)(now[i] - old[i]) / seconds / 1e9 : 0;
    return f->calls > was->calls;
}

static void top_activity_add_file(const struct gpunvme_open_file *f, const double rates[CLI_RATES],
                                  struct cli_use *processes, size_t *n_processes,
                                  struct cli_use *files, size_t *n_files)
{
    char command[32];
    pid_t process = cli_process_of((pid_t)f->pid, command, sizeof(command));
    struct cli_use *p = use_of(processes, n_processes, (uint64_t)process);
    struct cli_use *file = f->shared_calls ? NULL : use_of(files, n_files, f->ino);

    if (p && !*p->name)
        snprintf(p->name, sizeof(p->name), "%s", command);
    /*
     * Keeps a live process, since the path of a file is found only through one.
     */
    if (file && (!file->process || strcmp(command, "-") != 0))
        file->process = process;
    add_rates(p, rates);
    add_rates(file, rates);
}

static size_t busiest(struct cli_use *all, size_t n, struct cli_use *out)
{
    size_t taken = n < CLI_USES ? n : CLI_USES;

    if (n)
        qsort(all, n, sizeof(all[0]), by_total);
    memcpy(out, all, taken * sizeof(all[0]));
    return taken;
}

static void name_files(struct cli_activity *a, dev_t dev)
{
    for (size_t i = 0; i < a->n_files; i++) {
        struct cli_use *f = &a->files[i];
        if (!cli_path_of(f->process, dev, (ino_t)f->key, f->name, sizeof(f->name)))
            snprintf(f->name, sizeof(f->name), "inode %" PRIu64, f->key);
    }
}

/*
 * Returns -1 if the commands are not counted. Counters of a queue that is not
 * in `before` started at 0.
 */
static double commands_per_s(const struct gpunvme_ioc_queues *before, const struct gpunvme_queue *q,
                             double seconds)
{
    uint64_t was = 0;

    if (q->commands == GPUNVME_COMMANDS_UNKNOWN)
        return -1;
    for (uint32_t i = 0; i < before->count && i < GPUNVME_QUEUES_MAX; i++) {
        const struct gpunvme_queue *old = &before->queues[i];
        if (old->qid == q->qid && old->use == q->use && old->commands <= q->commands)
            was = old->commands;
    }
    return seconds > 0 ? (double)(q->commands - was) / seconds : 0;
}

static void add_queues(const struct cli_counts *before, const struct cli_counts *now,
                       double seconds, struct cli_activity *out)
{
    static const char *const uses[] = {"-", "executor", "out of service", "leased"};

    for (uint32_t i = 0; i < now->queues.count && i < GPUNVME_QUEUES_MAX; i++) {
        const struct gpunvme_queue *q = &now->queues.queues[i];
        char command[32];
        out->queues[out->n_queues++] = (struct cli_queue_use){
            .qid = q->qid,
            .use = uses[q->use < 4 ? q->use : 0],
            .commands = commands_per_s(&before->queues, q, seconds),
            .process = (uint64_t)cli_process_of((pid_t)q->pid, command, sizeof(command))};
    }
}

void cli_activity_between(const struct cli_counts *before, const struct cli_counts *now,
                          double seconds, dev_t dev, struct cli_activity *out)
{
    struct cli_use *processes = calloc(2 * (size_t)ALL_USES, sizeof(*processes));
    struct cli_use *files = processes ? processes + ALL_USES : NULL;
    size_t n_processes = 0, n_files = 0;
    double rates[CLI_RATES];

    *out = (struct cli_activity){0};
    for (size_t i = 0; processes && i < now->n_files; i++) {
        if (top_activity_rates_of(before, &now->files[i], seconds, rates))
            top_activity_add_file(&now->files[i], rates, processes, &n_processes, files, &n_files);
    }
    if (processes) {
        out->n_processes = busiest(processes, n_processes, out->processes);
        out->n_files = busiest(files, n_files, out->files);
    }
    free(processes);
    name_files(out, dev);
    add_queues(before, now, seconds, out);
}

/* --- Output ---------------------------------------------------------------------------------- */

static void print_uses(const char *title, const struct cli_use *uses, size_t n, bool with_key)
{
    char name[560];

    if (n)
        printf("  %-28s %9s %9s %9s %9s %9s %9s\n", title, "GPU READ", "WRITE", "BOUNCE RD",
               "WRITE", "KERNEL RD", "WRITE");
    for (size_t i = 0; i < n; i++) {
        if (with_key)
            snprintf(name, sizeof(name), "%" PRIu64 " %s", uses[i].key, uses[i].name);
        else
            snprintf(name, sizeof(name), "%s", uses[i].name);
        printf("  %-28s", name);
        for (size_t k = 0; k < CLI_RATES; k++)
            printf(" %9.3f", uses[i].rates[k]);
        putchar('\n');
    }
}

static void print_queue(const struct cli_queue_use *q)
{
    char rate[32] = "not counted";

    if (q->commands >= 0)
        snprintf(rate, sizeof(rate), "%.0f", q->commands);
    if (strcmp(q->use, "leased") == 0)
        printf("  %u: %s, leased by %" PRIu64 "\n", q->qid, rate, q->process);
    else
        printf("  %u: %s%s\n", q->qid, rate,
               strcmp(q->use, "executor") == 0 ? "" : " (out of service)");
}

/* Prints the queues without idle ones of the executor. */
static void print_queues(const struct cli_activity *a)
{
    bool titled = false;

    for (size_t i = 0; i < a->n_queues; i++) {
        const struct cli_queue_use *q = &a->queues[i];
        if (q->commands == 0 && strcmp(q->use, "executor") == 0)
            continue;
        if (!titled)
            puts("  QUEUE: COMMANDS/s");
        titled = true;
        print_queue(q);
    }
}

void cli_activity_print(const struct cli_activity *a)
{
    print_uses("PROCESS, GB/s", a->processes, a->n_processes, true);
    print_uses("FILE, GB/s", a->files, a->n_files, false);
    print_queues(a);
}

static struct json_object *uses_json(const struct cli_use *uses, size_t n, const char *key,
                                     const char *name)
{
    static const char *const names[CLI_RATES] = {"gpu_read_gb_per_s",    "gpu_written_gb_per_s",
                                                 "bounce_read_gb_per_s", "bounce_written_gb_per_s",
                                                 "kernel_read_gb_per_s", "kernel_written_gb_per_s"};
    struct json_object *list = json_object_new_array();

    for (size_t i = 0; i < n; i++) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, key, json_object_new_uint64(uses[i].key));
        json_object_object_add(o, name, json_object_new_string(uses[i].name));
        for (size_t k = 0; k < CLI_RATES; k++)
            json_object_object_add(o, names[k], json_object_new_double(uses[i].rates[k]));
        json_object_array_add(list, o);
    }
    return list;
}

static struct json_object *queue_json(const struct cli_queue_use *q)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "queue", json_object_new_uint64(q->qid));
    json_object_object_add(o, "use", json_object_new_string(q->use));
    json_object_object_add(o, "commands_per_s",
                           q->commands < 0 ? NULL : json_object_new_double(q->commands));
    json_object_object_add(o, "process", q->process ? json_object_new_uint64(q->process) : NULL);
    return o;
}

void cli_activity_json(const struct cli_activity *a, struct json_object *o)
{
    struct json_object *queues = json_object_new_array();

    json_object_object_add(o, "processes",
                           uses_json(a->processes, a->n_processes, "process", "command"));
    json_object_object_add(o, "files", uses_json(a->files, a->n_files, "inode", "path"));
    for (size_t i = 0; i < a->n_queues; i++)
        json_object_array_add(queues, queue_json(&a->queues[i]));
    json_object_object_add(o, "queues", queues);
}
