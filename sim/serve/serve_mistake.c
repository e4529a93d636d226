/* SPDX-License-Identifier: BSD-2-Clause */
/* Records the last protocol violation of a client as text. */
#include <stdarg.h>
#include <stdio.h>

#include "sim/serve/serve_session.h"

void serve_mistake(struct serve_session *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->last_mistake, sizeof(s->last_mistake), fmt, ap);
    va_end(ap);
    s->mistakes++;
}
