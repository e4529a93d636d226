/* SPDX-License-Identifier: BSD-2-Clause */
/* Builds and prints what dump.gpunvme shows. */
#include "mkfs/dump_values.h"

#include <inttypes.h>
#include <stdio.h>
#include <uuid/uuid.h>

#include "layout/layout.h"

/* Room for a symbolic link's target with every byte escaped. */
#define ESCAPED_MAX (4 * (LAY_SYMLINK_MAX + 1) + 1)

void dump_put_number(struct json_object *to, const char *key, uint64_t value)
{
    json_object_object_add(to, key, json_object_new_uint64(value));
}

void dump_put_link(struct json_object *to, const char *key, uint64_t value)
{
    json_object_object_add(to, key, value == LAY_NONE ? NULL : json_object_new_uint64(value));
}

void dump_put_string(struct json_object *to, const char *key, const char *text)
{
    json_object_object_add(to, key, json_object_new_string(text));
}

void dump_put_flag(struct json_object *to, const char *key, int value)
{
    json_object_object_add(to, key, json_object_new_boolean(value));
}

void dump_put_octal(struct json_object *to, const char *key, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%07" PRIo64, value);
    dump_put_string(to, key, text);
}

void dump_put_hex(struct json_object *to, const char *key, const void *bytes, size_t len)
{
    char text[2 * 64 + 1] = "";
    const uint8_t *b = bytes;

    for (size_t i = 0; i < len && i < 64; i++)
        snprintf(text + 2 * i, 3, "%02x", b[i]);
    dump_put_string(to, key, text);
}

void dump_put_uuid(struct json_object *to, const char *key, const uint8_t uuid[16])
{
    char text[UUID_STR_LEN];

    uuid_unparse_lower(uuid, text);
    dump_put_string(to, key, text);
}

void dump_put_time(struct json_object *to, const char *key, struct lay_time t)
{
    char text[48];

    snprintf(text, sizeof(text), "%" PRId64 ".%09" PRIu32, lay_time_sec(t), lay_get32(t.nsec));
    dump_put_string(to, key, text);
}

static void dump_escape(const uint8_t *bytes, size_t len, char *out)
{
    size_t pos = 0;

    for (size_t i = 0; i < len && pos + 5 < ESCAPED_MAX; i++) {
        uint8_t c = bytes[i];
        if (c == '\\')
            pos += (size_t)sprintf(out + pos, "\\\\");
        else if (c < 0x20 || c >= 0x7f)
            pos += (size_t)sprintf(out + pos, "\\x%02x", c);
        else
            out[pos++] = (char)c;
    }
    out[pos] = 0;
}

void dump_put_bytes(struct json_object *to, const char *key, const void *bytes, size_t len)
{
    char text[ESCAPED_MAX];
    char flag[64];

    if (lay_text_ok(bytes, len)) {
        json_object_object_add(to, key, json_object_new_string_len(bytes, (int)len));
        return;
    }
    dump_escape(bytes, len, text);
    dump_put_string(to, key, text);
    snprintf(flag, sizeof(flag), "%s_escaped", key);
    dump_put_flag(to, flag, 1);
}

static const char *dump_plain(struct json_object *value)
{
    if (!value)
        return "none";
    if (json_object_is_type(value, json_type_boolean))
        return json_object_get_boolean(value) ? "yes" : "no";
    return json_object_get_string(value);
}

static void dump_print_object(struct json_object *object, int depth);

/* Prints "key=value key=value ...". */
static void dump_print_row(struct json_object *row, int depth)
{
    const char *space = "";

    printf("%*s", 2 * depth, "");
    if (!json_object_is_type(row, json_type_object)) {
        puts(dump_plain(row));
        return;
    }
    json_object_object_foreach(row, key, value)
    {
        printf("%s%s=%s", space, key, dump_plain(value));
        space = " ";
    }
    putchar('\n');
}

static void dump_print_member(const char *key, struct json_object *value, int depth)
{
    printf("%*s%s:", 2 * depth, "", key);
    if (value && json_object_is_type(value, json_type_object)) {
        putchar('\n');
        dump_print_object(value, depth + 1);
    } else if (value && json_object_is_type(value, json_type_array)) {
        putchar('\n');
        for (size_t i = 0; i < json_object_array_length(value); i++)
            dump_print_row(json_object_array_get_idx(value, i), depth + 1);
    } else {
        printf(" %s\n", dump_plain(value));
    }
}

/*
 * Prints "key: value" lines, objects indented, and each element of an array in
 * a line. Recursion is as deep as the trees that are built here.
 */
static void dump_print_object(struct json_object *object, int depth)
{
    json_object_object_foreach(object, key, value)
    {
        dump_print_member(key, value, depth);
    }
}

/* --- Output ----------------------------------------------------------------------------------- */

/* Prints a value as JSON, indented. Strings in JSON have no line breaks. */
static void dump_print_json(struct json_object *value, int depth)
{
    const char *c = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PRETTY |
                                                              JSON_C_TO_STRING_NOSLASHESCAPE);

    for (; *c; c++) {
        putchar(*c);
        if (*c == '\n')
            printf("%*s", 2 * depth, "");
    }
}

static void dump_out_member(struct dump_out *out, const char *key, struct json_object *value)
{
    if (!out->json) {
        dump_print_member(key, value, 0);
        return;
    }
    printf("%s  \"%s\":", out->begun ? ",\n" : "{\n", key);
    dump_print_json(value, 1);
    out->begun = true;
}

/* Prints the head once. */
static void dump_out_flush_head(struct dump_out *out)
{
    if (!out->head)
        return;
    json_object_object_foreach(out->head, key, value)
    {
        dump_out_member(out, key, value);
    }
    json_object_put(out->head);
    out->head = NULL;
    out->begun = true;
}

void dump_out_start(struct dump_out *out, bool json)
{
    *out = (struct dump_out){.json = json, .head = json_object_new_object()};
}

void dump_out_head(struct dump_out *out, const char *key, struct json_object *value)
{
    json_object_object_add(out->head, key, value);
}

void dump_out_value(struct dump_out *out, const char *key, struct json_object *value)
{
    dump_out_flush_head(out);
    dump_out_member(out, key, value);
    json_object_put(value);
}

void dump_out_begin_rows(struct dump_out *out, const char *key)
{
    out->key = key;
    out->rows = 0;
}

static void dump_out_start_array(struct dump_out *out)
{
    dump_out_flush_head(out);
    if (out->json)
        printf(",\n  \"%s\":[", out->key);
    else
        printf("%s:\n", out->key);
}

void dump_out_row(struct dump_out *out, struct json_object *row)
{
    if (out->rows == 0)
        dump_out_start_array(out);
    if (out->json) {
        printf("%s    ", out->rows ? ",\n" : "\n");
        dump_print_json(row, 2);
    } else {
        dump_print_row(row, 1);
    }
    out->rows++;
    json_object_put(row);
}

void dump_out_end_rows(struct dump_out *out, bool failed)
{
    if (out->rows == 0 && failed)
        return;
    if (out->rows == 0)
        dump_out_start_array(out);
    if (out->json)
        printf("\n  ]");
}

void dump_out_end(struct dump_out *out)
{
    json_object_put(out->head);
    out->head = NULL;
    if (out->begun && out->json)
        puts("\n}");
}
