/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The tree of what dump.gpunvme shows: adds values to its objects, and prints
 * it. Objects own what is added to them.
 */
#ifndef MKFS_DUMP_VALUES_H
#define MKFS_DUMP_VALUES_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/format.h"

/* Each of these adds one value to an object. */
void dump_put_number(struct json_object *to, const char *key, uint64_t value);
/* LAY_NONE becomes null. */
void dump_put_link(struct json_object *to, const char *key, uint64_t value);
void dump_put_string(struct json_object *to, const char *key, const char *text);
void dump_put_flag(struct json_object *to, const char *key, int value);
void dump_put_octal(struct json_object *to, const char *key, uint64_t value);
/* Adds at most 64 bytes in hexadecimal. */
void dump_put_hex(struct json_object *to, const char *key, const void *bytes, size_t len);
void dump_put_uuid(struct json_object *to, const char *key, const uint8_t uuid[16]);
void dump_put_time(struct json_object *to, const char *key, struct lay_time t);
/*
 * Adds bytes as a string. If they are not UTF-8, unprintable ones become \xNN,
 * backslashes are doubled, and KEY_escaped is true.
 */
void dump_put_bytes(struct json_object *to, const char *key, const void *bytes, size_t len);

/* Prints the tree as JSON, or as text that indents objects and has a line for each row. */
void dump_print(struct json_object *tree, bool json);

#endif
