/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Formats the values that dump.gpunvme prints. Values are added to objects,
 * which own the values. Each object or row is printed when it is complete, so
 * that memory does not grow with the output.
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

/*
 * Describes the output, which is JSON, or text that indents objects and has a
 * line for each row. The functions below own the objects that are passed to
 * them.
 */
struct dump_out {
    bool json;
    struct json_object *head; /* values to be printed before the first other one */
    bool begun;
    const char *key; /* of the array whose rows are printed */
    uint64_t rows;   /* of it, so far */
};

void dump_out_start(struct dump_out *out, bool json);
/* Adds a value to the head, or prints one. */
void dump_out_head(struct dump_out *out, const char *key, struct json_object *value);
void dump_out_value(struct dump_out *out, const char *key, struct json_object *value);
/*
 * These functions print an array row by row. `key` must stay valid until the
 * array ends. An array that `failed` without a row is not printed.
 */
void dump_out_begin_rows(struct dump_out *out, const char *key);
void dump_out_row(struct dump_out *out, struct json_object *row);
void dump_out_end_rows(struct dump_out *out, bool failed);
/* Ends the output. Prints nothing if there was no value or row. */
void dump_out_end(struct dump_out *out);

#endif
