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

enum kind { SIZE, BOOL, STRING };

/* A parameter in cufile.json, and the variable that overrides it. */
static const struct source {
    enum kind kind;
    int param;
    const char *section, *key, *variable;
} sources[] = {
    {SIZE, CUFILE_PARAM_PROFILE_STATS, "profile", "cufile_stats", "CUFILE_STATS"},
    {SIZE, CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, "execution", "max_io_queue_depth", NULL},
    {SIZE, CUFILE_PARAM_EXECUTION_MAX_IO_THREADS, "execution", "max_io_threads", NULL},
    {SIZE, CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, "execution", "min_io_threshold_size_kb",
     NULL},
    {SIZE, CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM, "execution", "max_request_parallelism",
     NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, "properties", "max_direct_io_size_kb",
     NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, "properties",
     "max_device_cache_size_kb", NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, "properties",
     "per_buffer_cache_size_kb", NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, "properties",
     "max_device_pinned_mem_size_kb", NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, "properties", "io_batchsize", NULL},
    {SIZE, CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, "properties", "poll_mode_max_size_kb", NULL},
    {SIZE, CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, "properties", "io_batch_timeout_ms", NULL},
    {BOOL, CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, "properties", "use_poll_mode", NULL},
    {BOOL, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, "properties", "allow_compat_mode",
     "CUFILE_ALLOW_COMPAT_MODE"},
    {BOOL, CUFILE_PARAM_FORCE_COMPAT_MODE, "properties", "force_compat_mode",
     "CUFILE_FORCE_COMPAT_MODE"},
    {BOOL, CUFILE_PARAM_EXECUTION_PARALLEL_IO, "execution", "parallel_io", NULL},
    {BOOL, CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, "properties", "allow_system_memory", NULL},
    {STRING, CUFILE_PARAM_LOGGING_LEVEL, "logging", "level", "CUFILE_LOGGING_LEVEL"},
    {STRING, CUFILE_PARAM_LOG_DIR, "logging", "dir", NULL},
    {STRING, CUFILE_PARAM_ENV_LOGFILE_PATH, "logging", "file", "CUFILE_LOGFILE_PATH"},
};
#define N_SOURCES (sizeof(sources) / sizeof(sources[0]))

static void config_set_text(int param, const char *text)
{
    snprintf(config.strings[param], CUFILE_STRING_MAX, "%s", text);
}

static void config_set_defaults(void)
{
    static const size_t sizes[CUFILE_SIZE_PARAMS] = {
        [CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH] = 128,
        [CUFILE_PARAM_EXECUTION_MAX_IO_THREADS] = 8,
        [CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB] = 8192,
        [CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM] = 4,
        [CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB] = 16384,
        [CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB] = 131072,
        [CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB] = 1024,
        [CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB] = 33554432,
        [CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE] = 128,
        [CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB] = 4,
    };

    memcpy(config.sizes, sizes, sizeof(sizes));
    config.bools[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE] = true;
    config.bools[CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY] = true;
    config.bools[CUFILE_PARAM_EXECUTION_PARALLEL_IO] = true;
    config_set_text(CUFILE_PARAM_LOGGING_LEVEL, "ERROR");
}

static void set_from_json(const struct source *s, struct json_object *value)
{
    if (s->kind == SIZE && json_object_get_int64(value) >= 0)
        config.sizes[s->param] = (size_t)json_object_get_int64(value);
    else if (s->kind == BOOL)
        config.bools[s->param] = json_object_get_boolean(value);
    else if (s->kind == STRING)
        config_set_text(s->param, json_object_get_string(value));
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
    for (size_t i = 0; i < N_SOURCES; i++) {
        if (json_object_object_get_ex(all, sources[i].section, &section) &&
            json_object_object_get_ex(section, sources[i].key, &value))
            set_from_json(&sources[i], value);
    }
    json_object_put(all);
}

static bool is_true(const char *text)
{
    return strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcasecmp(text, "yes") == 0;
}

static void read_environment(void)
{
    for (size_t i = 0; i < N_SOURCES; i++) {
        const struct source *s = &sources[i];
        const char *text = s->variable ? secure_getenv(s->variable) : NULL;
        if (!text)
            continue;
        if (s->kind == SIZE)
            config.sizes[s->param] = strtoul(text, NULL, 0);
        else if (s->kind == BOOL)
            config.bools[s->param] = is_true(text);
        else
            config_set_text(s->param, text);
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
