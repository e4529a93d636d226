/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A command's results as text or as JSON, described once so that both carry the same fields.
 *
 * Text is printed at once, a "Label:   value" line a field; JSON is collected and printed at the
 * end. Strings may come from devices: characters that are not printable are not printed.
 */
#ifndef CLIENT_CLI_COMMON_OUT_H
#define CLIENT_CLI_COMMON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <json-c/json.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLI_OUT_DEPTH 6

struct cli_out {
    bool json;
    FILE *to;
    unsigned indent;                       /* text: groups that are open, lists not counted */
    unsigned depth;                        /* of the open objects and arrays */
    struct json_object *at[CLI_OUT_DEPTH]; /* JSON: open objects and lists, outermost first */
};

/* The caller closes `to` himself, after cli_out_end(). */
void cli_out_begin(struct cli_out *o, bool json, FILE *to);
/* Prints the collected JSON, and frees it. */
void cli_out_end(struct cli_out *o);

void cli_out_string(struct cli_out *o, const char *key, const char *label, const char *value);
void cli_out_number(struct cli_out *o, const char *key, const char *label, uint64_t value);
/* A number that the object does not have. Text: none. JSON: null. */
void cli_out_none(struct cli_out *o, const char *key, const char *label);
/* Text: three places. */
void cli_out_real(struct cli_out *o, const char *key, const char *label, double value);
/* Text: hexadecimal, of at least so many digits. JSON: a decimal number like every number. */
void cli_out_hex(struct cli_out *o, const char *key, const char *label, uint64_t value,
                 unsigned digits);
/* Text: yes or no. JSON: true or false. */
void cli_out_flag(struct cli_out *o, const char *key, const char *label, bool value);

/* A group of fields, under a title. key NULL: the next element of the list that is open. */
void cli_out_open(struct cli_out *o, const char *key, const char *title);
void cli_out_close(struct cli_out *o);
/* A list of groups. Text shows nothing for the list itself. */
void cli_out_list(struct cli_out *o, const char *key);
void cli_out_list_end(struct cli_out *o);

/*
 * Records that print as aligned columns, or as a JSON list of objects. A cell is NULL where the
 * record has no such value: "-" and null.
 */
enum cli_cell {
    CLI_CELL_TEXT,
    CLI_CELL_NUMBER, /* decimal */
    CLI_CELL_BYTES,  /* decimal; text says it with a unit */
    CLI_CELL_FLAG,   /* "yes" or "no"; JSON says true or false */
};

struct cli_column {
    const char *key, *title;
    enum cli_cell kind;
};

struct cli_table {
    const struct cli_column *columns;
    size_t n_columns;
    char **cells; /* row by row */
    size_t n_cells;
};

/* Copies the cells, one a column; false when out of memory, and the table is as before. */
bool cli_table_add(struct cli_table *t, const char *const *cells);
/* By the first column; numbers in it count as numbers, records without it come last. */
void cli_table_sort(struct cli_table *t);
void cli_table_print(const struct cli_table *t, struct cli_out *o, const char *key);
void cli_table_free(struct cli_table *t);

/* "1.92 TB": decimal units, as drives are sold. */
void cli_format_bytes(uint64_t bytes, char *out, size_t len);

#ifdef __cplusplus
}
#endif

#endif
