/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints the results of a command as text or as JSON. */
#include "client/cli/common/out.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "fusefs/metrics.h"
#include "support/bytes_text.h"

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
        cli_json_print(o->at[0], o->to);
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

char *cli_mask(char *text)
{
    for (char *c = text; *c; c++)
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    return text;
}

/*
 * Adds a field. JSON takes over the value; text has the label and the formatted
 * arguments.
 */
__attribute__((format(printf, 5, 6))) static void out_field(struct cli_out *o, const char *key,
                                                            const char *label,
                                                            struct json_object *value,
                                                            const char *format, ...)
{
    int indent = 2 * (int)o->indent;
    char *text = NULL;
    va_list args;

    if (o->json) {
        out_add(o, key, value);
        return;
    }
    json_object_put(value);
    fprintf(o->to, "%*s%-*s ", indent, "", LABEL_WIDTH - indent, label);
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    fprintf(o->to, "%s\n", len < 0 ? "" : cli_mask(text));
    free(len < 0 ? NULL : text);
}

void cli_out_string(struct cli_out *o, const char *key, const char *label, const char *value)
{
    out_field(o, key, label, json_object_new_string(value), "%s", value);
}

void cli_out_number(struct cli_out *o, const char *key, const char *label, uint64_t value)
{
    out_field(o, key, label, json_object_new_uint64(value), "%" PRIu64, value);
}

void cli_out_bytes(struct cli_out *o, const char *key, const char *label, uint64_t value)
{
    char text[BYTES_TEXT];

    out_field(o, key, label, json_object_new_uint64(value), "%s", bytes_text(value, text));
}

void cli_out_counters(struct cli_out *o, const struct gpunvme_ioc_stats *stats)
{
    for (size_t i = 0; i < metrics_n_counters; i++) {
        const struct metrics_counter *c = &metrics_counters[i];
        const char *last = strrchr(c->name, '_');
        bool bytes = last && strcmp(last, "_bytes") == 0;
        (bytes ? cli_out_bytes : cli_out_number)(o, c->name, c->label, metrics_value(stats, c));
    }
}

void cli_out_none(struct cli_out *o, const char *key, const char *label)
{
    out_field(o, key, label, NULL, "none");
}

void cli_out_real(struct cli_out *o, const char *key, const char *label, double value)
{
    out_field(o, key, label, json_object_new_double(value), "%.3f", value);
}

void cli_out_hex(struct cli_out *o, const char *key, const char *label, uint64_t value,
                 unsigned digits)
{
    out_field(o, key, label, json_object_new_uint64(value), "0x%0*" PRIx64, (int)digits, value);
}

void cli_out_flag(struct cli_out *o, const char *key, const char *label, bool value)
{
    out_field(o, key, label, json_object_new_boolean(value), "%s", value ? "yes" : "no");
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

void cli_out_list_begin(struct cli_out *o, bool json, const char *key)
{
    cli_out_begin(o, json, stdout);
    cli_out_list(o, key);
}

void cli_out_list_finish(struct cli_out *o)
{
    cli_out_list_end(o);
    cli_out_end(o);
}
