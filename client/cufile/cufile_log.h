/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Logs events to $CUFILE_LOGFILE_PATH, to cufile.log in the folder logging.dir
 * of cufile.json, or to standard error, up to the configured level.
 */
#ifndef CLIENT_CUFILE_CUFILE_LOG_H
#define CLIENT_CUFILE_CUFILE_LOG_H

#include <stdbool.h>

enum cufile_level {
    CUFILE_LOG_ERROR, /* calls that failed */
    CUFILE_LOG_WARN,  /* files that leave the GPU path, once per handle */
    CUFILE_LOG_INFO,  /* handles, buffers, and totals at the end */
    CUFILE_LOG_TRACE, /* each transfer */
};

bool cufile_logs(enum cufile_level level);
void cufile_log(enum cufile_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
