/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses the options of a simulated controller. */
#include "sim/sim_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_internal.h"
#include "support/processors.h"

#define KEYS        "threads, lba, mdts, latency, bandwidth, gpu"
#define MOST_BY_CPU 8u /* eight threads saturate a GPU's link */

/* True if the text is a number from min to max, which becomes *out. */
static bool options_number(const char *text, size_t n, uint64_t min, uint64_t max, uint64_t *out)
{
    char digits[24] = "";
    char *end;

    *out = 0;
    if (n == 0 || n >= sizeof(digits) || text[0] < '0' || text[0] > '9')
        return false;
    memcpy(digits, text, n);
    errno = 0;
    *out = strtoull(digits, &end, 10);
    return !errno && !*end && *out >= min && *out <= max;
}

static bool options_is(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(text, word, n) == 0;
}

static bool options_threads(struct sim_config *cfg, const char *value, size_t n)
{
    uint64_t number;
    bool ok = options_number(value, n, 1, SIM_MAX_THREADS, &number);

    cfg->threads = (unsigned)number;
    return ok;
}

static bool options_lba(struct sim_config *cfg, const char *value, size_t n)
{
    uint64_t number;
    bool ok = options_number(value, n, 512, 4096, &number);

    cfg->ns[0].lba_size = (uint32_t)number;
    return ok && (number == 512 || number == 4096);
}

static bool options_mdts(struct sim_config *cfg, const char *value, size_t n)
{
    uint64_t number;
    bool ok = options_number(value, n, 8192, 8u << 20, &number);

    cfg->mdts = (unsigned)number;
    return ok && (number & (number - 1)) == 0;
}

static bool options_latency(struct sim_config *cfg, const char *value, size_t n)
{
    uint64_t us;
    bool ok = options_number(value, n, 0, 1000000, &us);

    cfg->latency_ns = us * 1000;
    return ok;
}

static bool options_bandwidth(struct sim_config *cfg, const char *value, size_t n)
{
    uint64_t mib;
    bool ok = options_number(value, n, 1, 1u << 20, &mib);

    cfg->bytes_per_sec = mib << 20;
    return ok;
}

static bool options_gpu(struct sim_config *cfg, const char *value, size_t n)
{
    cfg->no_device_memory = options_is(value, n, "off");
    return cfg->no_device_memory || options_is(value, n, "on");
}

static const struct {
    const char *key;
    bool (*set)(struct sim_config *cfg, const char *value, size_t n); /* false if not allowed */
    const char *allowed;
} options[] = {
    {"threads", options_threads, "must be a number from 1 to 64"},
    {"lba", options_lba, "must be 512 or 4096"},
    {"mdts", options_mdts, "must be a power of two from 8192 to 8388608"},
    {"latency", options_latency, "must be a number of microseconds up to 1000000"},
    {"bandwidth", options_bandwidth, "must be a number of MiB per second from 1 to 1048576"},
    {"gpu", options_gpu, "must be on or off"},
};
static_assert(SIM_MAX_THREADS == 64, "as the text says");

/* Sets one option. Returns NULL, or the text of an error. */
static const char *options_set(struct sim_config *cfg, const char *key, size_t key_len,
                               const char *value, size_t n)
{
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (options_is(key, key_len, options[i].key))
            return options[i].set(cfg, value, n) ? NULL : options[i].allowed;
    }
    return "no such key, known are " KEYS;
}

int sim_options_parse(const char *text, struct sim_config *cfg, char *why, size_t len)
{
    unsigned half = processors_allowed() / 2;

    cfg->threads = half < 1 ? 1 : half < MOST_BY_CPU ? half : MOST_BY_CPU;
    while (text && *text) {
        size_t key = strcspn(text, ":");
        const char *value = text[key] ? text + key + 1 : text + key;
        size_t n = strcspn(value, ":");
        const char *problem = options_set(cfg, text, key, value, n);

        if (problem) {
            snprintf(why, len, "%.*s: %s", (int)key, text, problem);
            return -EINVAL;
        }
        text = value[n] ? value + n + 1 : value + n;
    }
    return 0;
}
