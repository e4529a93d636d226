/* SPDX-License-Identifier: BSD-2-Clause */
/* Processor time of the process. */
#include "bench/lib/cpu.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DRIVE_THREAD "sim" /* name of the threads of the simulated drive */

static const char *daemon_pid(void)
{
    const char *pid = getenv("BENCH_DAEMON");

    return pid && *pid ? pid : "0";
}

/*
 * Reads the first line of a file of the daemon, below /proc. Returns false if
 * there is none.
 */
static bool cpu_read_line(const char *thread, const char *file, char *line, int len)
{
    char path[512];
    bool got;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%s/task/%s/%s", daemon_pid(), thread, file);
    f = fopen(path, "re");
    if (!f)
        return false;
    got = fgets(line, len, f) != NULL;
    fclose(f);
    return got;
}

bool bench_cpu_knows_daemon(void)
{
    char line[128];

    return cpu_read_line(daemon_pid(), "schedstat", line, sizeof(line));
}

/* schedstat begins with the nanoseconds that the thread ran. */
static void cpu_add_thread(const char *thread, struct bench_cpu *out)
{
    char name[128], line[128];
    double used;

    if (!cpu_read_line(thread, "comm", name, sizeof(name)) ||
        !cpu_read_line(thread, "schedstat", line, sizeof(line)))
        return;
    used = strtod(line, NULL) * 1e-9;
    if (strcmp(name, DRIVE_THREAD "\n") == 0)
        out->drive += used;
    else
        out->daemon += used;
}

static void add_daemon(struct bench_cpu *out)
{
    const struct dirent *entry;
    char path[512];
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%s/task", daemon_pid());
    threads = opendir(path);
    if (!threads)
        return;
    while ((entry = readdir(threads))) {
        if (entry->d_name[0] != '.')
            cpu_add_thread(entry->d_name, out);
    }
    closedir(threads);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double used_here(void)
{
    struct rusage used;

    return getrusage(RUSAGE_SELF, &used) ? 0 : seconds(used.ru_utime) + seconds(used.ru_stime);
}

/*
 * Reads this process last here and first in bench_cpu_add(), so that the time
 * of these functions is not counted.
 */
struct bench_cpu bench_cpu_now(void)
{
    struct bench_cpu now = {.self = 0};

    if (bench_cpu_knows_daemon())
        add_daemon(&now);
    now.self = used_here();
    return now;
}

void bench_cpu_add(struct bench_cpu *sum, const struct bench_cpu *start)
{
    double self = used_here();
    struct bench_cpu now = bench_cpu_now();

    sum->self += self - start->self;
    sum->daemon += now.daemon - start->daemon;
    sum->drive += now.drive - start->drive;
}
