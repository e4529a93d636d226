/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes the log of cuFile. */
#include "client/cufile/cufile_log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "client/cufile/cufile_config.h"

static FILE *output;
static int highest = -1; /* highest level that is written; -1: none */
static pthread_once_t open_once = PTHREAD_ONCE_INIT;

static int log_level_of(const char *name)
{
    static const struct {
        const char *name;
        int level;
    } levels[] = {
        {"ERROR", CUFILE_LOG_ERROR}, {"WARN", CUFILE_LOG_WARN},   {"NOTICE", CUFILE_LOG_WARN},
        {"INFO", CUFILE_LOG_INFO},   {"DEBUG", CUFILE_LOG_TRACE}, {"TRACE", CUFILE_LOG_TRACE},
    };
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcasecmp(name, levels[i].name) == 0)
            return levels[i].level;
    }
    return -1;
}

static void open_log(void)
{
    const struct cufile_config *c = cufile_config();
    char name[CUFILE_STRING_MAX + sizeof("/cufile.log")];

    highest = log_level_of(c->strings[CUFILE_PARAM_LOGGING_LEVEL]);
    if (c->strings[CUFILE_PARAM_ENV_LOGFILE_PATH][0])
        snprintf(name, sizeof(name), "%s", c->strings[CUFILE_PARAM_ENV_LOGFILE_PATH]);
    else if (c->strings[CUFILE_PARAM_LOG_DIR][0])
        snprintf(name, sizeof(name), "%s/cufile.log", c->strings[CUFILE_PARAM_LOG_DIR]);
    else
        name[0] = '\0';
    output = name[0] ? fopen(name, "ae") : stderr;
    if (!output) {
        output = stderr;
        fprintf(stderr, "cufile: %s: the log cannot be written there\n", name);
    }
}

bool cufile_logs(enum cufile_level level)
{
    pthread_once(&open_once, open_log);
    return (int)level <= highest;
}

void cufile_log(enum cufile_level level, const char *fmt, ...)
{
    char text[600];
    va_list args;

    if (!cufile_logs(level))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(output, "cufile[%d]: %s\n", (int)getpid(), text);
    fflush(output);
}
