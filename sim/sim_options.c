/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses the options of a simulated controller. */
#include "sim/sim.h"

#include <errno.h>
#include <string.h>

#include "sim/sim_internal.h"
#include "support/number.h"
#include "support/processors.h"

#define KEYS        "threads, lba, mdts, latency, bandwidth, gpu"
#define MOST_BY_CPU 8u /* eight threads saturate a GPU's link */

enum { THREADS, LBA, MDTS, LATENCY, BANDWIDTH, GPU, OPTIONS };

static const struct {
    const char *key;
    uint64_t min, max;
    const char *allowed;
} options[OPTIONS] = {
    [THREADS] = {"threads", 1, SIM_MAX_THREADS, "must be a number from 1 to 64"},
    [LBA] = {"lba", 512, 4096, "must be 512 or 4096"},
    [MDTS] = {"mdts", 8192, 8u << 20, "must be a power of two from 8192 to 8388608"},
    [LATENCY] = {"latency", 0, 1000000, "must be a number of microseconds up to 1000000"},
    [BANDWIDTH] = {"bandwidth", 1, 1u << 20,
                   "must be a number of MiB per second from 1 to 1048576"},
    [GPU] = {"gpu", 0, 0, "must be on or off"},
};
static_assert(SIM_MAX_THREADS == 64, "as the text says");

/* Sets the option. Returns false if the value is not allowed. */
static bool options_set(struct sim_config *cfg, unsigned option, const char *value)
{
    uint64_t n;

    if (option == GPU) {
        cfg->no_device_memory = strcmp(value, "off") == 0;
        return cfg->no_device_memory || strcmp(value, "on") == 0;
    }
    if (!number_parse(value, 10, options[option].max, &n) || n < options[option].min)
        return false;
    switch (option) {
    case THREADS:
        cfg->threads = (unsigned)n;
        return true;
    case LBA:
        cfg->ns[0].lba_size = (uint32_t)n;
        return n == 512 || n == 4096;
    case MDTS:
        cfg->mdts = (unsigned)n;
        return (n & (n - 1)) == 0;
    case LATENCY:
        cfg->latency_ns = n * 1000;
        return true;
    default:
        cfg->bytes_per_sec = n << 20;
        return true;
    }
}

int sim_options_parse(const char *text, struct sim_config *cfg, struct reason *why)
{
    unsigned half = processors_allowed() / 2, most = MOST_BY_CPU * (cfg->gpus ? cfg->gpus : 1);
    char copy[256], *rest = copy;

    most = most < SIM_MAX_THREADS ? most : SIM_MAX_THREADS;
    cfg->threads = half < 1 ? 1 : half < most ? half : most;
    if (!text || !*text)
        return 0;
    if (strlen(text) >= sizeof(copy))
        return reason_set(why, -EINVAL, "too long, known keys are " KEYS);
    memcpy(copy, text, strlen(text) + 1);
    while (rest && *rest) {
        const char *key = strsep(&rest, ":"), *value = rest ? strsep(&rest, ":") : "";
        unsigned option = 0;

        while (option < OPTIONS && strcmp(key, options[option].key) != 0)
            option++;
        if (option == OPTIONS || !options_set(cfg, option, value))
            return reason_set(why, -EINVAL, "%s: %s", key,
                              option == OPTIONS ? "no such key, known are " KEYS
                                                : options[option].allowed);
    }
    return 0;
}
