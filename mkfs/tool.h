/*
 * What the three tools share: how they speak, and how they read numbers and open devices.
 */
#ifndef MKFS_TOOL_H
#define MKFS_TOOL_H

#include <stdint.h>
#include <stdio.h>

#include "blockdev/bdev.h"

/* "PROGRAM: OBJECT: what is wrong, what to do" on stderr; returns -1. */
int tool_error(const char *object, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The program's name and version, on stdout. */
void tool_version(void);
/* Text for -errno from blockdev and layout. */
const char *tool_strerror(int err);

/* A count of bytes with an optional suffix K, M, G or T (powers of 1024). 0 or -EINVAL. */
int tool_parse_size(const char *text, uint64_t *bytes);
/* Digits only. 0 or -EINVAL. */
int tool_parse_number(const char *text, uint64_t *value);

/* Opens a file or block device; says why when it cannot. 0 or -1. */
int tool_open(const char *path, uint32_t flags, struct bd_dev **dev);

void tool_print_uuid(FILE *out, const char *key, const uint8_t uuid[16]);

#endif
