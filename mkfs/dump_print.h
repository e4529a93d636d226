/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the findings of dump.gpunvme, a tree of JSON objects, as text or as JSON. */
#ifndef MKFS_DUMP_PRINT_H
#define MKFS_DUMP_PRINT_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/layout.h"

/*
 * Prints "Key: value" lines with nested objects indented. Each element of an
 * array is one line.
 */
void dump_print_text(struct json_object *tree);
void dump_print_json(struct json_object *tree);

/* Each of these adds one value to an object. */
void dump_put_number(struct json_object *to, const char *key, uint64_t value);
/* LAY_NONE becomes null. */
void dump_put_link(struct json_object *to, const char *key, uint64_t value);
void dump_put_octal(struct json_object *to, const char *key, uint64_t value);
void dump_put_hex(struct json_object *to, const char *key, const void *bytes, size_t len);
void dump_put_uuid(struct json_object *to, const char *key, const uint8_t uuid[16]);
void dump_put_time(struct json_object *to, const char *key, struct lay_time t);
void dump_put_string(struct json_object *to, const char *key, const char *text);
/*
 * Adds bytes as a string. If they are not UTF-8, unprintable ones become \xNN,
 * backslashes are doubled, and KEY_escaped is true.
 */
void dump_put_bytes(struct json_object *to, const char *key, const void *bytes, size_t len);
void dump_put_flag(struct json_object *to, const char *key, int value);

#endif
