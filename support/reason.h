/* SPDX-License-Identifier: BSD-2-Clause */
/* Holds the sentence that says why a function has failed. */
#ifndef SUPPORT_REASON_H
#define SUPPORT_REASON_H

#include <sys/cdefs.h>

__BEGIN_DECLS

/* Names the cause and the next step, but not the object, which the caller names. */
struct reason {
    char text[640];
};

/* Stores the sentence, cut to the size of the text, unless why is NULL, and returns rc. */
int reason_set(struct reason *why, int rc, const char *sentence, ...)
    __attribute__((format(printf, 3, 4)));

__END_DECLS

#endif
