/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What happens, in words, to $CUFILE_LOGFILE_PATH, cufile.log in the folder of cufile.json's
 * logging.dir, or standard error; as much as the logging level says.
 */
#ifndef CLIENT_CUFILE_CUFILE_LOG_H
#define CLIENT_CUFILE_CUFILE_LOG_H

#include <stdbool.h>

enum cufile_level {
    CUFILE_LOG_ERROR, /* calls that failed */
    CUFILE_LOG_WARN,  /* files that do not take the GPU path, once for each handle */
    CUFILE_LOG_INFO,  /* handles, buffers, and the totals at the end */
    CUFILE_LOG_TRACE, /* each transfer */
};

bool cufile_logs(enum cufile_level level);
void cufile_log(enum cufile_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
