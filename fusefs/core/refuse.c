/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reason why a mount fails.
 */
#include <stdarg.h>
#include <stdio.h>

#include "fusefs/core/mount.h"

int ffs_refuse(const struct ffs_reason *r, int err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (r->len > 0)
        vsnprintf(r->text, r->len, fmt, ap);
    va_end(ap);
    return err;
}
