/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme top` prints the rates of mounts, and of their processes,
 * files and queues.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cmd/watched_mounts.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/lib/connection.h"
#include "support/array.h"
#include "support/clock.h"

/* Stores one reading of the counters of open files and queues. */
struct cli_counts {
    struct gpunvme_open_file *files; /* in order of id */
    size_t n_files, room;
    struct gpunvme_ioc_queues queues;
};

#define CLI_USES 20 /* number of busiest processes, and of busiest files */
/* Bytes read and written by the GPU path, the bounce path and the kernel. */
#define CLI_RATES 6

struct cli_use {
    uint64_t key; /* process or inode */
    char name[512];
    double rates[CLI_RATES]; /* GB/s */
};

/*
 * Returns the process of a thread and stores its command. Returns the thread
 * itself, with the command "-", if it has ended.
 */
static pid_t cli_process_of(pid_t thread, char *command, size_t len)
{
    char name[64], line[128];
    pid_t process = thread;

    snprintf(command, len, "-");
    snprintf(name, sizeof(name), "/proc/%d/status", (int)thread);
    FILE *f = thread ? fopen(name, "re") : NULL;
    if (!f)
        return thread;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "Name:\t", 6) == 0)
            snprintf(command, len, "%.*s", (int)len - 1, line + 6);
        else if (strncmp(line, "Tgid:\t", 6) == 0)
            process = (pid_t)strtol(line + 6, NULL, 10);
    }
    fclose(f);
    cli_mask(command);
    return process;
}

/* AT_STATX_DONT_SYNC sends no request to a network file system. */
static bool is_file(int dir, const char *entry, dev_t dev, ino_t ino)
{
    struct statx st;

    return statx(dir, entry, AT_STATX_DONT_SYNC, STATX_INO, &st) == 0 && st.stx_ino == ino &&
           makedev(st.stx_dev_major, st.stx_dev_minor) == dev;
}

/* Finds a path of the process's open file. Returns false if there is none. */
static bool cli_path_of(pid_t process, dev_t dev, ino_t ino, char *path, size_t len)
{
    char name[64];
    bool found = false;

    snprintf(name, sizeof(name), "/proc/%d/fd", (int)process);
    DIR *dir = opendir(name);
    if (!dir)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        if (*entry->d_name == '.' || !is_file(dirfd(dir), entry->d_name, dev, ino))
            continue;
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, path, len - 1);
        found = n > 0;
        path[found ? n : 0] = '\0';
    }
    closedir(dir);
    if (found)
        cli_mask(path);
    return found;
}

#define ALL_USES 4096 /* processes, or files, to select the busiest from */

/* --- Counting -------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct gpunvme_open_file *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int add_files(struct cli_counts *c, const struct gpunvme_ioc_open_files *page)
{
    if (array_reserve((void **)&c->files, &c->room, c->n_files + page->count, sizeof(*c->files)))
        return -ENOMEM;
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

/* A file that is closed between two replies may be in both. */
static int top_activity_read_files(struct connection *g, struct cli_counts *out)
{
    struct gpunvme_ioc_open_files page = {.below = 0};
    int err;

    do {
        err = gpunvme_open_files(connection_fd(g), page.below, &page);
        err = err ? err : add_files(out, &page);
    } while (!err && page.below);
    if (!err && out->n_files) {
        qsort(out->files, out->n_files, sizeof(out->files[0]), by_id);
        drop_duplicates(out);
    }
    return err;
}

/*
 * Reads the counters. Returns 0, or 1 after a message. A mount that does not
 * support the request has no files and no queues.
 */
static int cli_counts_read(struct connection *g, const char *point, struct cli_counts *out)
{
    *out = (struct cli_counts){0};
    int err = top_activity_read_files(g, out);
    err = err ? err : gpunvme_queues(connection_fd(g), &out->queues);
    if (err && err != -ENOTTY && err != -EINVAL)
        return cli_error(point, "%s", err == -ENOMEM ? "out of memory" : gpunvme_error());
    return 0;
}

static void cli_counts_free(struct cli_counts *c)
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
    add_rates(p, rates);
    add_rates(file, rates);
}

/* Sorts the uses by their rates. Returns how many are shown. */
static size_t busiest(struct cli_use *all, size_t n)
{
    if (n)
        qsort(all, n, sizeof(all[0]), by_total);
    return n < CLI_USES ? n : CLI_USES;
}

/*
 * Stores a path of the file. Looks into each process that had the file open, because some may have
 * ended.
 */
static void name_file(struct cli_use *file, const struct cli_counts *now, dev_t dev)
{
    bool found = false;

    for (size_t i = 0; !found && i < now->n_files; i++)
        found = now->files[i].ino == file->key &&
                cli_path_of((pid_t)now->files[i].pid, dev, (ino_t)file->key, file->name,
                            sizeof(file->name));
    if (!found)
        snprintf(file->name, sizeof(file->name), "inode %" PRIu64, file->key);
}

/* -1: not counted. A queue that is not in `before` started at 0. */
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

/* --- Output ---------------------------------------------------------------------------------- */

#define RATE_COLUMNS                                          \
    {"gpu_read_gb_per_s", "GPU READ", CLI_CELL_REAL},         \
        {"gpu_written_gb_per_s", "WRITE", CLI_CELL_REAL},     \
        {"bounce_read_gb_per_s", "BOUNCE RD", CLI_CELL_REAL}, \
        {"bounce_written_gb_per_s", "WRITE", CLI_CELL_REAL},  \
        {"kernel_read_gb_per_s", "KERNEL RD", CLI_CELL_REAL}, \
    {                                                         \
        "kernel_written_gb_per_s", "WRITE", CLI_CELL_REAL     \
    }

static const struct cli_column process_columns[] = {{"process", "PROCESS", CLI_CELL_NUMBER},
                                                    {"command", "COMMAND, GB/s", CLI_CELL_TEXT},
                                                    RATE_COLUMNS};
static const struct cli_column file_columns[] = {
    {"inode", "INODE", CLI_CELL_NUMBER}, {"path", "FILE, GB/s", CLI_CELL_TEXT}, RATE_COLUMNS};
static const struct cli_column queue_columns[] = {{"queue", "QUEUE", CLI_CELL_NUMBER},
                                                  {"use", "USE", CLI_CELL_TEXT},
                                                  {"commands_per_s", "COMMANDS/s", CLI_CELL_REAL},
                                                  {"process", "PROCESS", CLI_CELL_NUMBER}};

/* Prints the table. The text leaves out a table without rows. */
static void show_table(struct cli_out *out, const char *key, struct cli_table *t)
{
    if (out->json || t->n_cells || t->incomplete)
        cli_table_show(t, out, key);
}

static void show_uses(struct cli_out *out, const char *key, const struct cli_column *columns,
                      const struct cli_use *uses, size_t n)
{
    struct cli_table t = {.columns = columns, .n_columns = 2 + CLI_RATES};

    for (size_t i = 0; i < n; i++) {
        struct json_object *cells[2 + CLI_RATES] = {json_object_new_uint64(uses[i].key),
                                                    cli_text(uses[i].name)};
        for (size_t k = 0; k < CLI_RATES; k++)
            cells[2 + k] = json_object_new_double(uses[i].rates[k]);
        cli_table_add(&t, cells);
    }
    show_table(out, key, &t);
}

/* Text has no idle queues of the executor. */
static void show_queues(struct cli_out *out, const struct gpunvme_ioc_queues *before,
                        const struct gpunvme_ioc_queues *now, double seconds)
{
    static const char *const uses[] = {"-", "executor", "out of service", "leased"};
    struct cli_table t = {.columns = queue_columns, .n_columns = 4};

    for (uint32_t i = 0; i < now->count && i < GPUNVME_QUEUES_MAX; i++) {
        const struct gpunvme_queue *q = &now->queues[i];
        double commands = commands_per_s(before, q, seconds);
        char command[32];
        if (!out->json && commands == 0 && q->use == GPUNVME_QUEUE_EXECUTOR)
            continue;
        uint64_t process = (uint64_t)cli_process_of((pid_t)q->pid, command, sizeof(command));
        struct json_object *cells[] = {json_object_new_uint64(q->qid),
                                       cli_text(uses[q->use < 4 ? q->use : 0]),
                                       commands < 0 ? NULL : json_object_new_double(commands),
                                       process ? json_object_new_uint64(process) : NULL};
        cli_table_add(&t, cells);
    }
    show_table(out, "queues", &t);
}

/* Shows the rates between two readings of the file system `dev`. */
static void show_activity(struct cli_out *out, const struct cli_counts *before,
                          const struct cli_counts *now, double seconds, dev_t dev)
{
    struct cli_use *processes = calloc(2 * (size_t)ALL_USES, sizeof(*processes));
    struct cli_use *files = processes ? processes + ALL_USES : NULL;
    size_t n_processes = 0, n_files = 0;
    double rates[CLI_RATES];

    for (size_t i = 0; processes && i < now->n_files; i++) {
        if (top_activity_rates_of(before, &now->files[i], seconds, rates))
            top_activity_add_file(&now->files[i], rates, processes, &n_processes, files, &n_files);
    }
    show_uses(out, "processes", process_columns, processes, busiest(processes, n_processes));
    n_files = busiest(files, n_files);
    for (size_t i = 0; i < n_files; i++)
        name_file(&files[i], now, dev);
    show_uses(out, "files", file_columns, files, n_files);
    free(processes);
    show_queues(out, &before->queues, &now->queues, seconds);
}

/* Rates of a mount: GB/s up to COMMANDS, then 1/s. */
enum {
    GPU_READ, /* by the daemon */
    GPU_WRITTEN,
    BOUNCE_READ,
    BOUNCE_WRITTEN,
    DIRECT_READ, /* by programs */
    PIPELINE_READ,
    PIPELINE_WRITTEN,
    COMMANDS,
    LEASED_COMMANDS,
    RATES
};

static const char *const rate_keys[RATES] = {
    "gpu_read_gb_per_s",         "gpu_written_gb_per_s", "bounce_read_gb_per_s",
    "bounce_written_gb_per_s",   "direct_read_gb_per_s", "pipeline_read_gb_per_s",
    "pipeline_written_gb_per_s", "gpu_commands_per_s",   "leased_commands_per_s"};

/* The counters whose growth is a rate. */
static void top_counters(const struct gpunvme_ioc_stats *s, uint64_t counters[RATES])
{
    const struct gpunvme_calls *c = &s->calls;
    /* Bytes that the library read on the direct path, without the daemon. */
    const uint64_t direct =
        c->by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1].bytes + c->enqueued_bytes;
    const uint64_t all[RATES] = {s->gpu_read_bytes,
                                 s->gpu_written_bytes,
                                 s->bounce_read_bytes,
                                 s->bounce_written_bytes,
                                 direct,
                                 c->pipeline_read_bytes,
                                 c->pipeline_written_bytes,
                                 s->gpu_commands,
                                 s->leased_commands};

    memcpy(counters, all, sizeof(all));
}

static void top_rates_of(const struct cli_watched *m, double seconds, double rates[RATES])
{
    uint64_t before[RATES], now[RATES];

    top_counters(&m->before, before);
    top_counters(&m->now, now);
    for (size_t i = 0; i < RATES; i++)
        rates[i] =
            seconds > 0 ? (double)(now[i] - before[i]) / seconds / (i < COMMANDS ? 1e9 : 1) : 0;
}

/*
 * Returns the rate of the bounce path. The mount counts bytes of a pipeline as
 * its own, too, unless read(2) or write(2) moved them, so the larger count is
 * nearer than the sum.
 */
static double top_bounce(const double *r, unsigned of_mount, unsigned of_programs)
{
    return r[of_mount] > r[of_programs] ? r[of_mount] : r[of_programs];
}

/* Begins the group of a mount. Text has its rates in one line. */
static void show_rates(struct cli_out *out, const struct cli_watched *m, const double *r)
{
    uint64_t errors = m->now.errors - m->before.errors;
    uint64_t timeouts = m->now.timeouts - m->before.timeouts;
    char line[512];

    snprintf(line, sizeof(line),
             "%-30s %9.3f %9.3f %9.3f %9.3f %9.3f %11.0f %6" PRIu64 " %6" PRIu64, m->point,
             r[GPU_READ], r[GPU_WRITTEN], top_bounce(r, BOUNCE_READ, PIPELINE_READ),
             top_bounce(r, BOUNCE_WRITTEN, PIPELINE_WRITTEN), r[DIRECT_READ],
             r[COMMANDS] + r[LEASED_COMMANDS], errors, timeouts);
    cli_out_open(out, NULL, line);
    if (!out->json)
        return;
    cli_out_string(out, "mount", "", m->point);
    for (size_t i = 0; i < RATES; i++)
        cli_out_real(out, rate_keys[i], "", r[i]);
    cli_out_number(out, "errors", "", errors);
    cli_out_number(out, "timeouts", "", timeouts);
}

/* --- The key q, which ends the command -------------------------------------------------------- */

struct keys {
    bool on; /* keys are read; otherwise the functions only wait */
    struct termios before;
    sigset_t mask;
};

static volatile sig_atomic_t keys_signal;

static void keys_keep_signal(int number)
{
    keys_signal = number;
}

/* The signals arrive only in ppoll(2), so that none is missed before it. */
static void keys_catch_signals(struct keys *k)
{
    struct sigaction action = {.sa_handler = keys_keep_signal};
    sigset_t ours;

    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    sigprocmask(SIG_BLOCK, &ours, &k->mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/*
 * Makes the terminal deliver keys at once and without an echo, if this process
 * is in the foreground of one. keys_end() restores it, also after SIGINT or
 * SIGTERM, which end keys_wait() and then the process.
 */
static void keys_begin(struct keys *k)
{
    *k = (struct keys){.on = false};
    if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp() ||
        tcgetattr(STDIN_FILENO, &k->before) != 0)
        return;
    struct termios keys = k->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    keys_catch_signals(k);
    k->on = true;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
}

/* Reads keys. Returns true if a key is q, or if the terminal is gone. */
static bool keys_are_end(void)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

    for (ssize_t i = 0; i < n; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            return true;
    }
    return n == 0 || (n < 0 && errno != EINTR);
}

/* Waits for the time, and returns true if the user ended the command earlier. */
static bool keys_wait(struct keys *k, unsigned seconds)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    double until = now_seconds() + seconds, left;

    if (!k->on) {
        sleep(seconds);
        return false;
    }
    while (!keys_signal && (left = until - now_seconds()) > 0) {
        struct timespec t = {.tv_sec = (time_t)left,
                             .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        if (ppoll(&in, 1, &t, &k->mask) > 0 && keys_are_end())
            return true;
    }
    return keys_signal != 0;
}

static void keys_end(struct keys *k)
{
    if (!k->on)
        return;
    k->on = false;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &k->before);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &k->mask, NULL);
    if (keys_signal)
        raise(keys_signal);
}

/* --- The command ------------------------------------------------------------------------------ */

/* Stores the watched mounts, and the previous readings of their files and queues. */
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
                      struct cli_out *out)
{
    double rates[RATES];
    struct cli_counts now;
    struct stat st;

    m->before = m->now;
    if (gpunvme_stats(connection_fd(m->g), &m->now))
        return cli_error(m->point, "%s", gpunvme_error());
    if (stat(m->point, &st) != 0)
        return cli_error(m->point, "%s", strerror(errno));
    if (cli_counts_read(m->g, m->point, &now))
        return 1;
    top_rates_of(m, seconds, rates);
    show_rates(out, m, rates);
    show_activity(out, before, &now, seconds, st.st_dev);
    cli_out_close(out);
    cli_counts_free(before);
    *before = now;
    return 0;
}

/* Shows the rates since the previous turn. */
static int show_turn(struct top *t, double seconds, struct cli_out *out)
{
    int failed = 0;

    if (!out->json)
        printf("%-30s %9s %9s %9s %9s %9s %11s %6s %6s\n", "MOUNT, GB/s", "GPU READ", "WRITE",
               "BOUNCE RD", "WRITE", "DIRECT RD", "COMMANDS/s", "ERRORS", "LOST");
    for (size_t i = 0; i < t->watch.n && !failed; i++)
        failed = show_mount(&t->watch.mounts[i], &t->before[i], seconds, out);
    fflush(stdout);
    return failed;
}

static int show_turns(struct top *t, const struct cli_options *options, struct cli_out *out)
{
    uint64_t count = out->json && !options->count ? 1 : options->count; /* a document has an end */
    double last = now_seconds();
    int failed = top_begin(t);
    struct keys keys;

    keys_begin(&keys);
    for (unsigned i = 0; !failed && (!count || i < count); i++) {
        if (keys_wait(&keys, (unsigned)options->interval))
            break;
        double now = now_seconds();
        if (!out->json && isatty(STDOUT_FILENO))
            fputs("\033[H\033[J", stdout);
        failed = show_turn(t, now - last, out);
        last = now;
    }
    keys_end(&keys);
    return failed;
}

int cli_top(const struct cli_options *options, char **operands, int n)
{
    static struct top t; /* too large for a stack */
    struct cli_out out;
    int failed = cli_watch_open(&t.watch, operands, n);

    if (!t.watch.n && !failed)
        failed = cli_error("top", "no gpunvmefs mount here");
    cli_out_list_begin(&out, options->json, "samples");
    if (t.watch.n)
        failed |= show_turns(&t, options, &out);
    cli_out_list_finish(&out);
    top_end(&t);
    return failed;
}
