/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the parameters of cuFile from defaults, cufile.json, the environment
 * and calls.
 */
#include "client/cufile/cufile_config.h"

#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct cufile_config config;
static pthread_mutex_t config_lock =
    PTHREAD_MUTEX_INITIALIZER; /* protects config after it is read */
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

#define SIZE(param, ...)   [CUFILE_PARAM_##param] = {__VA_ARGS__}
#define BOOL(param, ...)   [CUFILE_SIZE_PARAMS + CUFILE_PARAM_##param] = {__VA_ARGS__, 0, 0}
#define FIRST_STRING       (CUFILE_SIZE_PARAMS + CUFILE_BOOL_PARAMS)
#define STRING(param, ...) [FIRST_STRING + CUFILE_PARAM_##param] = {__VA_ARGS__, 0, 0, 0}

const struct cufile_param cufile_params[CUFILE_PARAMS] = {
    SIZE(PROFILE_STATS, "profile", "cufile_stats", "CUFILE_STATS", 0, 0, 3),
    SIZE(EXECUTION_MAX_IO_QUEUE_DEPTH, "execution", "max_io_queue_depth", NULL, 128, 1, 65536),
    SIZE(EXECUTION_MAX_IO_THREADS, "execution", "max_io_threads", NULL, 8, 0, 64),
    SIZE(EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, "execution", "min_io_threshold_size_kb", NULL, 8192, 4,
         1 << 24),
    SIZE(EXECUTION_MAX_REQUEST_PARALLELISM, "execution", "max_request_parallelism", NULL, 4, 0, 64),
    SIZE(PROPERTIES_MAX_DIRECT_IO_SIZE_KB, "properties", "max_direct_io_size_kb", NULL, 16384, 4,
         1 << 24),
    SIZE(PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, "properties", "max_device_cache_size_kb", NULL,
         131072, 4, UINT32_MAX),
    SIZE(PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, "properties", "per_buffer_cache_size_kb", NULL, 1024,
         4, UINT32_MAX),
    SIZE(PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, "properties", "max_device_pinned_mem_size_kb",
         NULL, 33554432, 4, UINT32_MAX),
    SIZE(PROPERTIES_IO_BATCHSIZE, "properties", "io_batchsize", NULL, 128, 1, 65536),
    SIZE(POLLTHRESHOLD_SIZE_KB, "properties", "poll_mode_max_size_kb", NULL, 4, 0, 1 << 24),
    SIZE(PROPERTIES_BATCH_IO_TIMEOUT_MS, "properties", "io_batch_timeout_ms", NULL, 0, 0,
         UINT32_MAX),
    BOOL(PROPERTIES_USE_POLL_MODE, "properties", "use_poll_mode", NULL, false),
    BOOL(PROPERTIES_ALLOW_COMPAT_MODE, "properties", "allow_compat_mode",
         "CUFILE_ALLOW_COMPAT_MODE", true),
    BOOL(FORCE_COMPAT_MODE, "properties", "force_compat_mode", "CUFILE_FORCE_COMPAT_MODE", false),
    BOOL(EXECUTION_PARALLEL_IO, "execution", "parallel_io", NULL, true),
    BOOL(PROPERTIES_ALLOW_SYSTEM_MEMORY, "properties", "allow_system_memory", NULL, true),
    STRING(LOGGING_LEVEL, "logging", "level", "CUFILE_LOGGING_LEVEL"),
    STRING(LOG_DIR, "logging", "dir", NULL),
    STRING(ENV_LOGFILE_PATH, "logging", "file", "CUFILE_LOGFILE_PATH"),
};

static void config_set_text(size_t i, const char *text)
{
    snprintf(config.strings[i - FIRST_STRING], CUFILE_STRING_MAX, "%s", text);
}

static void config_set_defaults(void)
{
    for (size_t i = 0; i < CUFILE_SIZE_PARAMS; i++)
        config.sizes[i] = cufile_params[i].initial;
    for (size_t i = 0; i < CUFILE_BOOL_PARAMS; i++)
        config.bools[i] = cufile_params[CUFILE_SIZE_PARAMS + i].initial;
    config_set_text(FIRST_STRING + CUFILE_PARAM_LOGGING_LEVEL, "ERROR");
}

static void set_from_json(size_t i, struct json_object *value)
{
    if (i >= FIRST_STRING)
        config_set_text(i, json_object_get_string(value));
    else if (i >= CUFILE_SIZE_PARAMS)
        config.bools[i - CUFILE_SIZE_PARAMS] = json_object_get_boolean(value);
    else if (json_object_get_int64(value) >= 0)
        config.sizes[i] = (size_t)json_object_get_int64(value);
}

static void config_read_file(const char *name)
{
    struct json_object *section, *value;
    struct json_object *all = json_object_from_file(name);

    if (!all) {
        fprintf(stderr, "cufile: %s: %s; the defaults are used\n", name,
                json_util_get_last_err() ? json_util_get_last_err() : "not readable");
        return;
    }
    for (size_t i = 0; i < CUFILE_PARAMS; i++) {
        const struct cufile_param *p = &cufile_params[i];
        if (p->key && json_object_object_get_ex(all, p->section, &section) &&
            json_object_object_get_ex(section, p->key, &value))
            set_from_json(i, value);
    }
    json_object_put(all);
}

static bool is_true(const char *text)
{
    return strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcasecmp(text, "yes") == 0;
}

static void read_environment(void)
{
    for (size_t i = 0; i < CUFILE_PARAMS; i++) {
        const char *variable = cufile_params[i].variable;
        const char *text = variable ? secure_getenv(variable) : NULL;
        if (!text)
            continue;
        if (i >= FIRST_STRING)
            config_set_text(i, text);
        else if (i >= CUFILE_SIZE_PARAMS)
            config.bools[i - CUFILE_SIZE_PARAMS] = is_true(text);
        else
            config.sizes[i] = strtoul(text, NULL, 0);
    }
}

static void config_read_all(void)
{
    const char *name = secure_getenv("CUFILE_ENV_PATH_JSON");
    FILE *there = name ? NULL : fopen("/etc/cufile.json", "re");

    config_set_defaults();
    if (name || there)
        config_read_file(name ? name : "/etc/cufile.json");
    if (there)
        fclose(there);
    read_environment();
}

struct cufile_config *cufile_config(void)
{
    pthread_once(&read_once, config_read_all);
    return &config;
}

void cufile_config_lock(void)
{
    cufile_config();
    pthread_mutex_lock(&config_lock);
}

void cufile_config_unlock(void)
{
    pthread_mutex_unlock(&config_lock);
}

void cufile_config_forked(void)
{
    pthread_mutex_init(&config_lock, NULL);
}
