/* SPDX-License-Identifier: BSD-2-Clause */
/* The counters of a mount by name, and all of them as Prometheus' text format. */
#include "support/metrics.h"

#include <inttypes.h>
#include <string.h>

const struct metrics_counter metrics_counters[] = {
#define COUNTER(field, label, help)                                           \
    {                                                                         \
#field, label, help, offsetof(struct gpunvme_ioc_stats, field), false \
    }
#define GAUGE(field, label, help)                                            \
    {                                                                        \
#field, label, help, offsetof(struct gpunvme_ioc_stats, field), true \
    }
    COUNTER(gpu_transfers, "GPU transfers:", "Transfers by queue pairs of the executor"),
    COUNTER(gpu_commands, "GPU commands:", "NVMe commands of the executor"),
    COUNTER(gpu_read_bytes, "GPU bytes read:", "Bytes read by the executor"),
    COUNTER(gpu_written_bytes, "GPU bytes written:", "Bytes written by the executor"),
    COUNTER(gpu_staged_read_bytes, "GPU bytes read, staged:", "Of those, through host memory"),
    COUNTER(gpu_staged_written_bytes,
            "GPU bytes written, staged:", "Of those, through host memory"),
    COUNTER(bounce_transfers, "Bounce transfers:", "Transfers through host memory of the daemon"),
    COUNTER(bounce_read_bytes, "Bounce bytes read:", "Bytes read through host memory"),
    COUNTER(bounce_written_bytes, "Bounce bytes written:", "Bytes written through host memory"),
    COUNTER(leased_commands,
            "Commands of leased queues:", "NVMe commands of programs on leased queues"),
    COUNTER(errors, "Errors:", "Transfers that ended with an error"),
    COUNTER(timeouts, "Timeouts:", "Commands that were lost"),
    COUNTER(cancelled, "Cancelled:", "Transfers that were cancelled"),
    COUNTER(aborts, "Aborts:", "Commands that Abort ended"),
    COUNTER(queue_recreations, "Queues recreated:", "Queue pairs deleted and created again"),
    COUNTER(controller_resets, "Controller resets:", "Resets of the controller"),
    COUNTER(fuse_requests, "Requests of the kernel:", "Requests of the kernel to the mount"),
    GAUGE(buffers, "Buffers:", "Registered buffers"),
    GAUGE(quarantined_queues, "Queues out of service:", "Queue pairs that lost a command"),
#undef COUNTER
#undef GAUGE
};
const size_t metrics_n_counters = sizeof(metrics_counters) / sizeof(metrics_counters[0]);

const char *const metrics_ops[3] = {
    [GPUNVME_OP_READ] = "read", [GPUNVME_OP_WRITE] = "write", [GPUNVME_OP_READV] = "readv"};
const char *const metrics_paths[3] = {[GPUNVME_PATH_GPU - 1] = "gpu",
                                      [GPUNVME_PATH_BOUNCE - 1] = "bounce",
                                      [GPUNVME_PATH_MIXED - 1] = "mixed"};
const char *const metrics_fallbacks[8] = {
    [GPUNVME_FALLBACK_NO_EXECUTOR] = "no_executor",
    [GPUNVME_FALLBACK_DRIVE_ERROR] = "drive_error",
    [GPUNVME_FALLBACK_LOST_COMMAND] = "lost_command",
    [GPUNVME_FALLBACK_NO_MEMORY] = "no_memory",
    [GPUNVME_FALLBACK_BUSY] = "busy",
    [GPUNVME_FALLBACK_NO_QUEUE] = "no_queue",
    [GPUNVME_FALLBACK_UNSUPPORTED] = "unsupported",
    [GPUNVME_FALLBACK_NO_SPACE] = "no_space",
};

uint64_t metrics_value(const struct gpunvme_ioc_stats *stats, const struct metrics_counter *c)
{
    uint64_t value;

    memcpy(&value, (const char *)stats + c->at, sizeof(value));
    return value;
}

uint64_t metrics_bucket_us(unsigned i)
{
    return i + 1 < GPUNVME_LATENCY_BUCKETS ? UINT64_C(2) << i : 0;
}

/* --- Prometheus ------------------------------------------------------------------------------ */

/* A label's value: backslashes, quotes and newlines are escaped. */
static void print_mount(const char *text, FILE *to)
{
    fputs("{mount=\"", to);
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", to);
        else if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

static void print_head(const char *name, const char *help, const char *type, FILE *to)
{
    fprintf(to, "# HELP gpunvme_%s %s\n# TYPE gpunvme_%s %s\n", name, help, name, type);
}

static void print_counter(const struct metrics_mount *mounts, size_t n,
                          const struct metrics_counter *c, FILE *to)
{
    char name[64];

    snprintf(name, sizeof(name), "%s%s", c->name, c->gauge ? "" : "_total");
    print_head(name, c->help, c->gauge ? "gauge" : "counter", to);
    for (size_t i = 0; i < n; i++) {
        fprintf(to, "gpunvme_%s", name);
        print_mount(mounts[i].point, to);
        fprintf(to, "} %" PRIu64 "\n", metrics_value(mounts[i].stats, c));
    }
}

static void print_sample(const struct metrics_mount *m, const char *end, unsigned op, unsigned path,
                         FILE *to)
{
    fprintf(to, "gpunvme_transfer_seconds_%s", end);
    print_mount(m->point, to);
    fprintf(to, ",op=\"%s\",path=\"%s\"", metrics_ops[op], metrics_paths[path]);
}

/* A bucket of Prometheus includes the smaller ones. */
static void print_histogram(const struct metrics_mount *m, unsigned op, unsigned path, FILE *to)
{
    const struct gpunvme_latency *l = &m->stats->latency[op][path];
    uint64_t count = 0;

    for (unsigned i = 0; i < GPUNVME_LATENCY_BUCKETS; i++) {
        uint64_t us = metrics_bucket_us(i);
        count += l->buckets[i];
        print_sample(m, "bucket", op, path, to);
        if (us)
            fprintf(to, ",le=\"%" PRIu64 ".%06" PRIu64 "\"} %" PRIu64 "\n", us / 1000000,
                    us % 1000000, count);
        else
            fprintf(to, ",le=\"+Inf\"} %" PRIu64 "\n", count);
    }
    print_sample(m, "sum", op, path, to);
    fprintf(to, "} %" PRIu64 ".%09" PRIu64 "\n", l->ns / 1000000000, l->ns % 1000000000);
    print_sample(m, "count", op, path, to);
    fprintf(to, "} %" PRIu64 "\n", count);
}

static void print_fallbacks(const struct metrics_mount *m, FILE *to)
{
    for (size_t i = 0; i < sizeof(metrics_fallbacks) / sizeof(metrics_fallbacks[0]); i++) {
        fputs("gpunvme_fallbacks_total", to);
        print_mount(m->point, to);
        fprintf(to, ",reason=\"%s\"} %" PRIu64 "\n", metrics_fallbacks[i], m->stats->fallbacks[i]);
    }
}

void metrics_print(const struct metrics_mount *mounts, size_t n, FILE *to)
{
    for (size_t k = 0; k < metrics_n_counters; k++)
        print_counter(mounts, n, &metrics_counters[k], to);
    print_head("fallbacks_total", "Transfers that left the GPU path or had none", "counter", to);
    for (size_t i = 0; i < n; i++)
        print_fallbacks(&mounts[i], to);
    print_head("transfer_seconds", "Time in the daemon of transfers that moved bytes", "histogram",
               to);
    for (size_t i = 0; i < 9 * n; i++)
        print_histogram(&mounts[i / 9], i / 3 % 3, i % 3, to);
}
