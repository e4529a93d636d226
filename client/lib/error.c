/* SPDX-License-Identifier: BSD-2-Clause */
/* Stores the text of each thread's last error, and the log of the process. */
#include "client/lib/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "gpunvme/gpunvme.h"

static _Thread_local char last_error[256] = "no error";

/* Set only while no other call is in flight. */
static gpunvme_log_fn log_fn;
static void *log_context;

void gpunvme_set_log(gpunvme_log_fn log, void *context)
{
    log_fn = log;
    log_context = context;
}

const char *gpunvme_log_bounce(const char *why)
{
    if (log_fn)
        log_fn(log_context, GPUNVME_LOG_BOUNCE, why);
    return why;
}

int gpunvme_fail(int err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, args);
    va_end(args);
    if (log_fn)
        log_fn(log_context, GPUNVME_LOG_ERROR, last_error);
    return err;
}

const char *gpunvme_error(void)
{
    return last_error;
}
