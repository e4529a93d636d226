/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses numbers of command lines and option strings. */
#ifndef SUPPORT_NUMBER_H
#define SUPPORT_NUMBER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Parses decimal digits, or with base 0 also a number like 0x1f. Returns false,
 * with *out unchanged, for another text or a number above `max`.
 */
static inline bool number_parse(const char *text, int base, uint64_t max, uint64_t *out)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, base);
    if (errno || *end || n > max)
        return false;
    *out = n;
    return true;
}

/* Parses bytes with an optional suffix K, M, G or T (powers of 1024), likewise. */
static inline bool number_parse_size(const char *text, uint64_t max, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    char digits[24] = "";
    size_t len = strlen(text);
    const char *suffix = len ? strchr(suffixes, text[len - 1]) : NULL;
    unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;

    len -= suffix != NULL;
    if (len >= sizeof(digits))
        return false;
    memcpy(digits, text, len);
    if (!number_parse(digits, 10, max >> shift, out))
        return false;
    *out <<= shift;
    return true;
}

#endif
