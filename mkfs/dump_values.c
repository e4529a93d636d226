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

/*
 * Prints "key: value" lines, objects indented, and each element of an array in
 * a line. Recursion is as deep as the trees that are built here.
 */
static void dump_print_object(struct json_object *object, int depth)
{
    json_object_object_foreach(object, key, value)
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
}

void dump_print(struct json_object *tree, bool json)
{
    if (json)
        puts(json_object_to_json_string_ext(tree, JSON_C_TO_STRING_PRETTY |
                                                      JSON_C_TO_STRING_NOSLASHESCAPE));
    else
        dump_print_object(tree, 0);
}
