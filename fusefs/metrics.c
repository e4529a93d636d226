/* SPDX-License-Identifier: BSD-2-Clause */
/* Names a mount's counters and prints them in Prometheus' text format. */
#include "fusefs/metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

const struct metrics_counter metrics_counters[] = {
#define COUNTER(field, label, help)                                           \
    {                                                                         \
#field, label, help, offsetof(struct gpunvme_ioc_stats, field), false \
    }
#define OF_PROGRAMS(field, label, help)                                                         \
    {                                                                                           \
        "programs_" #field, label, help, offsetof(struct gpunvme_ioc_stats, calls.field), false \
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
    COUNTER(metadata_reread,
            "Metadata read twice:", "Metadata blocks that the second read had right"),
    COUNTER(metadata_corrected,
            "Metadata corrected:", "Metadata blocks in which one flipped bit was corrected"),
    COUNTER(metadata_copied,
            "Metadata from copies:", "Metadata blocks that were written again from their copy"),
    COUNTER(metadata_damaged, "Metadata damaged:", "Metadata blocks that stayed bad: run fsck"),
    COUNTER(metadata_unwritten, "Metadata places failed:",
            "Failed writes of one place of metadata whose copy is right"),
    COUNTER(scrub_passes, "Scrubs:", "Complete passes of the background scrub"),
    COUNTER(scrub_bytes, "Bytes scrubbed:", "Bytes read by scrubs"),
    COUNTER(scrub_found, "Found by scrubs:", "Wrong blocks that scrubs found"),
    COUNTER(scrub_corrected, "Corrected by scrubs:", "Of those, blocks that are right now"),
    COUNTER(scrub_chunks,
            "Chunks copied by scrubs:", "Chunks of metadata that scrubs gave a second place"),
    COUNTER(fuse_requests, "Requests of the kernel:", "Requests of the kernel to the mount"),
    OF_PROGRAMS(enqueued, "Direct reads in streams:", "Direct reads and lists put into streams"),
    OF_PROGRAMS(enqueued_bytes, "Bytes of those reads:", "Bytes of direct reads put into streams"),
    OF_PROGRAMS(pipeline_read_bytes, "Pipeline bytes read:",
                "Bytes that programs read through host memory of their own"),
    OF_PROGRAMS(pipeline_written_bytes, "Pipeline bytes written:",
                "Bytes that programs wrote through host memory of their own"),
    GAUGE(buffers, "Buffers:", "Registered buffers"),
    GAUGE(scrub_last_pass,
          "Last scrub:", "End of the last complete background scrub in seconds since 1970, or 0"),
    GAUGE(quarantined_queues, "Queues out of service:", "Queue pairs that lost a command"),
#undef COUNTER
#undef OF_PROGRAMS
#undef GAUGE
};
const size_t metrics_n_counters = sizeof(metrics_counters) / sizeof(metrics_counters[0]);

const char *const metrics_ops[3] = {
    [GPUNVME_OP_READ] = "read", [GPUNVME_OP_WRITE] = "write", [GPUNVME_OP_READV] = "readv"};
const char *const metrics_paths[GPUNVME_CALLS_PATHS] = {[GPUNVME_PATH_GPU - 1] = "gpu",
                                                        [GPUNVME_PATH_BOUNCE - 1] = "bounce",
                                                        [GPUNVME_PATH_MIXED - 1] = "mixed",
                                                        [GPUNVME_CALLS_DIRECT - 1] = "direct"};
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

const char *metrics_distance(unsigned distance)
{
    static const char *const names[] = {[GPUNVME_DISTANCE_UNKNOWN] = "unknown",
                                        [GPUNVME_DISTANCE_SWITCH] = "switch",
                                        [GPUNVME_DISTANCE_ROOT] = "root complex",
                                        [GPUNVME_DISTANCE_FAR] = "far"};

    return distance < sizeof(names) / sizeof(names[0]) ? names[distance] : "unknown";
}

uint64_t metrics_value(const struct gpunvme_ioc_stats *stats, const struct metrics_counter *c)
{
    uint64_t value;

    memcpy(&value, (const char *)stats + c->at, sizeof(value));
    return value;
}

uint64_t metrics_calls(const struct gpunvme_latency *l)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < GPUNVME_LATENCY_BUCKETS; i++)
        n += l->buckets[i];
    return n;
}

uint64_t metrics_bucket_us(unsigned i)
{
    return i + 1 < GPUNVME_LATENCY_BUCKETS ? UINT64_C(2) << i : 0;
}

/* --- Prometheus ------------------------------------------------------------------------------ */

/* Prints a label value with backslashes, quotes and newlines escaped. */
static void print_escaped(const char *text, FILE *to)
{
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", to);
        else if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else
            fputc(*text, to);
    }
}

static void print_mount(const char *text, FILE *to)
{
    fputs("{mount=\"", to);
    print_escaped(text, to);
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

/* Describes the calls of one kind by one path, which one metric counts. */
struct kind {
    const struct metrics_mount *mount;
    unsigned op, path;
};

static void print_kind(const char *name, const struct kind *k, FILE *to)
{
    fprintf(to, "gpunvme_%s", name);
    print_mount(k->mount->point, to);
    fprintf(to, ",op=\"%s\",path=\"%s\"", metrics_ops[k->op], metrics_paths[k->path]);
}

static void print_sample(const char *family, const char *end, const struct kind *k, FILE *to)
{
    char name[64];

    snprintf(name, sizeof(name), "%s_%s", family, end);
    print_kind(name, k, to);
}

/* Prints a histogram; each bucket of Prometheus includes the smaller ones. */
static void print_histogram(const char *family, const struct kind *k,
                            const struct gpunvme_latency *l, FILE *to)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < GPUNVME_LATENCY_BUCKETS; i++) {
        uint64_t us = metrics_bucket_us(i);
        count += l->buckets[i];
        print_sample(family, "bucket", k, to);
        if (us)
            fprintf(to, ",le=\"%" PRIu64 ".%06" PRIu64 "\"} %" PRIu64 "\n", us / 1000000,
                    us % 1000000, count);
        else
            fprintf(to, ",le=\"+Inf\"} %" PRIu64 "\n", count);
    }
    print_sample(family, "sum", k, to);
    fprintf(to, "} %" PRIu64 ".%09" PRIu64 "\n", l->ns / 1000000000, l->ns % 1000000000);
    print_sample(family, "count", k, to);
    fprintf(to, "} %" PRIu64 "\n", count);
}

/* Prints latencies measured by the daemon. */
static void print_transfers(const struct metrics_mount *mounts, size_t n, FILE *to)
{
    print_head("transfer_seconds", "Time in the daemon of transfers that moved bytes", "histogram",
               to);
    for (size_t i = 0; i < 9 * n; i++) {
        const struct kind k = {&mounts[i / 9], i / 3 % 3, i % 3};
        print_histogram("transfer_seconds", &k, &k.mount->stats->latency[k.op][k.path], to);
    }
}

/*
 * i enumerates the pairs of op and path of all mounts, whose latencies were
 * reported by programs.
 */
#define PAIRS (3 * GPUNVME_CALLS_PATHS)
static struct kind pair_of(const struct metrics_mount *mounts, size_t i)
{
    return (struct kind){&mounts[i / PAIRS], i / GPUNVME_CALLS_PATHS % 3, i % GPUNVME_CALLS_PATHS};
}

static void metrics_print_programs(const struct metrics_mount *mounts, size_t n, FILE *to)
{
    print_head("programs_bytes_total", "Bytes of the library's calls in programs", "counter", to);
    for (size_t i = 0; i < PAIRS * n; i++) {
        const struct kind k = pair_of(mounts, i);
        print_kind("programs_bytes_total", &k, to);
        fprintf(to, "} %" PRIu64 "\n", k.mount->stats->calls.by[k.op][k.path].bytes);
    }
    print_head("programs_call_seconds", "Time in programs of the library's calls that moved bytes",
               "histogram", to);
    for (size_t i = 0; i < PAIRS * n; i++) {
        const struct kind k = pair_of(mounts, i);
        print_histogram("programs_call_seconds", &k,
                        &k.mount->stats->calls.by[k.op][k.path].latency, to);
    }
}

static void metrics_print_fallbacks(const struct metrics_mount *m, FILE *to)
{
    for (size_t i = 0; i < sizeof(metrics_fallbacks) / sizeof(metrics_fallbacks[0]); i++) {
        fputs("gpunvme_fallbacks_total", to);
        print_mount(m->point, to);
        fprintf(to, ",reason=\"%s\"} %" PRIu64 "\n", metrics_fallbacks[i], m->stats->fallbacks[i]);
    }
}

static const struct {
    const char *name, *help, *type;
} metrics_of_gpus[] = {
    {"device_transfers_total", "Transfers by the executor of a GPU", "counter"},
    {"device_read_bytes_total", "Bytes read by the executor of a GPU", "counter"},
    {"device_written_bytes_total", "Bytes written by the executor of a GPU", "counter"},
    {"device_errors_total", "Transfers of a GPU that ended with an error", "counter"},
    {"device_lost", "1 if the executor of a GPU has failed", "gauge"},
    {"device_tier", "Tier of the executor of a GPU", "gauge"},
    {"device_queues", "Queue pairs of the executor of a GPU, 0 while it is closed", "gauge"},
};

/* Returns the value of an element of metrics_of_gpus. */
static uint64_t metrics_gpu_value(const struct gpunvme_gpu *g, size_t k)
{
    const uint64_t values[] = {
        g->transfers, g->read_bytes, g->written_bytes, g->errors, g->state == GPUNVME_GPU_LOST,
        g->tier,      g->queues};

    static_assert(sizeof(values) / sizeof(values[0]) ==
                      sizeof(metrics_of_gpus) / sizeof(metrics_of_gpus[0]),
                  "a value for each metric");
    return values[k];
}

/* A GPU that is named twice has two samples. The second sample has a number. */
static void print_gpu_labels(const char *name, const struct metrics_mount *m, uint32_t i, FILE *to)
{
    const struct gpunvme_gpu *g = &m->gpus->gpus[i];
    unsigned before = 0;

    for (uint32_t j = 0; j < i; j++)
        before += memcmp(m->gpus->gpus[j].uuid, g->uuid, sizeof(g->uuid)) == 0;
    fprintf(to, "gpunvme_%s", name);
    print_mount(m->point, to);
    fputs(",gpu=\"", to);
    for (unsigned j = 0; j < sizeof(g->uuid); j++)
        fprintf(to, "%s%02x", j >= 4 && j <= 10 && j % 2 == 0 ? "-" : "", g->uuid[j]);
    if (before)
        fprintf(to, "/%u", before);
    fputc('"', to);
}

/* Prints constants of a GPU as labels, as is usual for Prometheus. */
static void print_gpu_info(const struct metrics_mount *m, uint32_t i, FILE *to)
{
    const struct gpunvme_gpu *g = &m->gpus->gpus[i];

    print_gpu_labels("device_info", m, i, to);
    fputs(",name=\"", to);
    print_escaped(g->name, to);
    fprintf(to, "\",numa=\"%d\",distance=\"%s\"} 1\n", g->numa_node, metrics_distance(g->distance));
}

static void metrics_print_gpus(const struct metrics_mount *mounts, size_t n, FILE *to)
{
    for (size_t k = 0; k < sizeof(metrics_of_gpus) / sizeof(metrics_of_gpus[0]); k++) {
        const char *name = metrics_of_gpus[k].name;
        print_head(name, metrics_of_gpus[k].help, metrics_of_gpus[k].type, to);
        for (size_t m = 0; m < n; m++) {
            for (uint32_t i = 0; i < mounts[m].gpus->count; i++) {
                print_gpu_labels(name, &mounts[m], i, to);
                fprintf(to, "} %" PRIu64 "\n", metrics_gpu_value(&mounts[m].gpus->gpus[i], k));
            }
        }
    }
    print_head("device_info", "Name of a GPU, NUMA node (-1: unknown), bridge to the drive",
               "gauge", to);
    for (size_t m = 0; m < n; m++) {
        for (uint32_t i = 0; i < mounts[m].gpus->count; i++)
            print_gpu_info(&mounts[m], i, to);
    }
}

void metrics_print(const struct metrics_mount *mounts, size_t n, FILE *to)
{
    for (size_t k = 0; k < metrics_n_counters; k++)
        print_counter(mounts, n, &metrics_counters[k], to);
    print_head("fallbacks_total", "Transfers that left the GPU path or had none", "counter", to);
    for (size_t i = 0; i < n; i++)
        metrics_print_fallbacks(&mounts[i], to);
    metrics_print_gpus(mounts, n, to);
    print_transfers(mounts, n, to);
    metrics_print_programs(mounts, n, to);
}
