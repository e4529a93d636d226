/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints a command's results as text or as JSON. Both formats are described
 * once, so that they carry the same fields.
 *
 * Text is printed at once, one "Label:   value" line per field. JSON is
 * collected and printed at the end. Strings may come from devices, so
 * unprintable characters are masked.
 */
#ifndef CLIENT_CLI_COMMON_OUT_H
#define CLIENT_CLI_COMMON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include <json-c/json.h>

#include "gpunvme/gpunvme_ioctl.h"

__BEGIN_DECLS

#define CLI_OUT_DEPTH 6

struct cli_out {
    bool json;
    FILE *to;
    unsigned indent;                       /* open groups in text, without lists */
    unsigned depth;                        /* number of open objects and arrays */
    struct json_object *at[CLI_OUT_DEPTH]; /* JSON: open objects and lists, outermost first */
};

/* `to` stays open after cli_out_end(); the caller closes it. */
void cli_out_begin(struct cli_out *o, bool json, FILE *to);
/* Prints the collected JSON and frees it. */
void cli_out_end(struct cli_out *o);

/*
 * Replaces each control character by '?', because it might move the cursor. Text
 * from devices and names of files may contain some. Returns text.
 */
char *cli_mask(char *text);

void cli_out_string(struct cli_out *o, const char *key, const char *label, const char *value);
void cli_out_number(struct cli_out *o, const char *key, const char *label, uint64_t value);
/* Prints the number in JSON; text has a unit, too: "4096 bytes (4.10 kB)". */
void cli_out_bytes(struct cli_out *o, const char *key, const char *label, uint64_t value);
/* Prints a mount's counters; those whose names end in "_bytes" as bytes. */
void cli_out_counters(struct cli_out *o, const struct gpunvme_ioc_stats *stats);
/* Prints a missing number: "none" in text, null in JSON. */
void cli_out_none(struct cli_out *o, const char *key, const char *label);
/* Text has three decimal places. */
void cli_out_real(struct cli_out *o, const char *key, const char *label, double value);
/* Text is hexadecimal, with at least `digits` digits; JSON has a decimal number. */
void cli_out_hex(struct cli_out *o, const char *key, const char *label, uint64_t value,
                 unsigned digits);
/* Text is "yes" or "no"; JSON is true or false. */
void cli_out_flag(struct cli_out *o, const char *key, const char *label, bool value);

/* Opens a group of fields; with key NULL the next element of the list. */
void cli_out_open(struct cli_out *o, const char *key, const char *title);
void cli_out_close(struct cli_out *o);
/* Opens a list of groups. Text shows nothing for the list itself. */
void cli_out_list(struct cli_out *o, const char *key);
void cli_out_list_end(struct cli_out *o);
/* These functions begin and end results on stdout that consist of one list. */
void cli_out_list_begin(struct cli_out *o, bool json, const char *key);
void cli_out_list_finish(struct cli_out *o);

/*
 * Prints records as aligned columns or as a JSON list of objects. A
 * cell without a value is printed as "-" or null.
 */
enum cli_cell {
    CLI_CELL_TEXT,
    CLI_CELL_NUMBER, /* decimal */
    CLI_CELL_BYTES,  /* decimal in JSON, with a unit in text */
    CLI_CELL_REAL,   /* decimal, with three places in text */
    CLI_CELL_FLAG,   /* "yes" or "no"; true or false in JSON */
};

/* Returns the value of a cell of texts. NULL stands for a cell without a value, also in JSON. */
static inline struct json_object *cli_text(const char *value)
{
    return value ? json_object_new_string(value) : NULL;
}

struct cli_column {
    const char *key, *title;
    enum cli_cell kind;
};

struct cli_table {
    const struct cli_column *columns;
    size_t n_columns;
    struct json_object **cells; /* row by row; NULL: none */
    size_t n_cells;
    bool incomplete; /* memory was short for a row */
};

/*
 * Adds a row, which then owns the values. If memory is short, the function frees the values and
 * marks the table as incomplete instead. cli_table_show() reports that.
 */
void cli_table_add(struct cli_table *t, struct json_object *const *cells);
/*
 * Sorts the rows by the texts of the first column, in which it compares numbers by their values.
 * Rows without a text are last.
 */
void cli_table_sort(struct cli_table *t);
void cli_table_print(const struct cli_table *t, struct cli_out *o, const char *key);
void cli_table_free(struct cli_table *t);
/* Prints the table and frees it. Calls cli_error() if the table is incomplete. */
void cli_table_show(struct cli_table *t, struct cli_out *o, const char *key);

__END_DECLS

#endif
