/* SPDX-License-Identifier: BSD-2-Clause */
/* Stores reasons of failures. */
#include "support/reason.h"

#include <stdarg.h>
#include <stdio.h>

int reason_set(struct reason *why, int rc, const char *sentence, ...)
{
    struct reason set;
    va_list args;

    va_start(args, sentence);
    vsnprintf(set.text, sizeof(set.text), sentence, args);
    va_end(args);
    if (why)
        *why = set;
    return rc;
}
