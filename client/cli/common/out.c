/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the results of a command as text or as JSON. */
#include "client/cli/common/out.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "client/cli/common/cli.h"

#define LABEL_WIDTH 30

void cli_out_begin(struct cli_out *o, bool json, FILE *to)
{
    *o = (struct cli_out){.json = json, .to = to};
    if (json)
        o->at[0] = cli_json_new();
}

void cli_out_end(struct cli_out *o)
{
    assert(o->depth == 0);
    if (o->json)
        cli_document_end(o->at[0]);
    if (o->json)
        fprintf(o->to, "%s\n",
                json_object_to_json_string_ext(o->at[0], JSON_C_TO_STRING_PRETTY |
                                                             JSON_C_TO_STRING_SPACED |
                                                             JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o->at[0]);
    o->at[0] = NULL;
}

static void out_add(struct cli_out *o, const char *key, struct json_object *value)
{
    struct json_object *top = o->at[o->depth];

    assert(json_object_is_type(top, json_type_array) || key);
    if (json_object_is_type(top, json_type_array))
        json_object_array_add(top, value);
    else
        json_object_object_add(top, key, value);
}

static void print_label(struct cli_out *o, const char *label)
{
    int indent = 2 * (int)o->indent;

    fprintf(o->to, "%*s%-*s ", indent, "", LABEL_WIDTH - indent, label);
}

/*
 * Masks control characters, since text from devices and file names may hold any
 * byte.
 */
static void print_clean(FILE *to, const char *text)
{
    for (const char *c = text; *c; c++)
        fputc((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c, to);
}

void cli_out_string(struct cli_out *o, const char *key, const char *label, const char *value)
{
    if (o->json) {
        out_add(o, key, json_object_new_string(value));
        return;
    }
    print_label(o, label);
    print_clean(o->to, value);
    fputc('\n', o->to);
}

void cli_out_number(struct cli_out *o, const char *key, const char *label, uint64_t value)
{
    if (o->json) {
        out_add(o, key, json_object_new_uint64(value));
        return;
    }
    print_label(o, label);
    fprintf(o->to, "%" PRIu64 "\n", value);
}

void cli_out_none(struct cli_out *o, const char *key, const char *label)
{
    if (o->json) {
        out_add(o, key, NULL);
        return;
    }
    print_label(o, label);
    fputs("none\n", o->to);
}

void cli_out_real(struct cli_out *o, const char *key, const char *label, double value)
{
    if (o->json) {
        out_add(o, key, json_object_new_double(value));
        return;
    }
    print_label(o, label);
    fprintf(o->to, "%.3f\n", value);
}

void cli_out_hex(struct cli_out *o, const char *key, const char *label, uint64_t value,
                 unsigned digits)
{
    if (o->json) {
        out_add(o, key, json_object_new_uint64(value));
        return;
    }
    print_label(o, label);
    fprintf(o->to, "0x%0*" PRIx64 "\n", (int)digits, value);
}

void cli_out_flag(struct cli_out *o, const char *key, const char *label, bool value)
{
    if (o->json) {
        out_add(o, key, json_object_new_boolean(value));
        return;
    }
    print_label(o, label);
    fputs(value ? "yes\n" : "no\n", o->to);
}

static void push(struct cli_out *o, const char *key, struct json_object *group)
{
    if (group)
        out_add(o, key, group);
    assert(o->depth + 1 < CLI_OUT_DEPTH);
    o->at[++o->depth] = group;
}

void cli_out_open(struct cli_out *o, const char *key, const char *title)
{
    if (!o->json)
        fprintf(o->to, "%*s%s\n", 2 * (int)o->indent, "", title);
    o->indent++;
    push(o, key, o->json ? json_object_new_object() : NULL);
}

void cli_out_close(struct cli_out *o)
{
    assert(o->indent > 0);
    o->indent--;
    cli_out_list_end(o);
}

void cli_out_list(struct cli_out *o, const char *key)
{
    push(o, key, o->json ? json_object_new_array() : NULL);
}

void cli_out_list_end(struct cli_out *o)
{
    assert(o->depth > 0);
    o->depth--;
}
