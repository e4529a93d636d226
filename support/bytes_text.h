/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints numbers of bytes as text. */
#ifndef SUPPORT_BYTES_TEXT_H
#define SUPPORT_BYTES_TEXT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

/* Formats a size in decimal units as used for drives, for example "1.92 TB". */
static inline void bytes_short(uint64_t bytes, char *out, size_t len)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        value /= 1000;
    if (unit)
        snprintf(out, len, "%.2f %s", value, units[unit]);
    else
        snprintf(out, len, "%" PRIu64 " B", bytes);
}

#define BYTES_TEXT 48

/* Formats the number and, from 1000 on, the size: "4096 bytes (4.10 kB)". */
static inline const char *bytes_text(uint64_t bytes, char out[BYTES_TEXT])
{
    char size[16];

    bytes_short(bytes, size, sizeof(size));
    if (bytes < 1000)
        snprintf(out, BYTES_TEXT, "%" PRIu64 " bytes", bytes);
    else
        snprintf(out, BYTES_TEXT, "%" PRIu64 " bytes (%s)", bytes, size);
    return out;
}

#endif
