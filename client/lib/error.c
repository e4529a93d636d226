/* SPDX-License-Identifier: BSD-2-Clause */
/* The words of the last error, for each thread. */
#include "client/lib/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "gpunvme/gpunvme.h"

static _Thread_local char last_error[256] = "no error";

int gpunvme_fail(int err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, args);
    va_end(args);
    return err;
}

const char *gpunvme_error(void)
{
    return last_error;
}
