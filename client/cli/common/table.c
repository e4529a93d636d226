/* SPDX-License-Identifier: BSD-2-Clause */
/* Prints tables of text with aligned columns. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "support/array.h"
#include "support/bytes_text.h"

void cli_table_add(struct cli_table *t, struct json_object *const *cells)
{
    bool has_room =
        array_resize((void **)&t->cells, (t->n_cells + t->n_columns) * sizeof(*t->cells)) == 0;

    for (size_t i = 0; i < t->n_columns; i++) {
        if (has_room)
            t->cells[t->n_cells++] = cells[i];
        else
            json_object_put(cells[i]);
    }
    t->incomplete |= !has_room;
}

void cli_table_free(struct cli_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        json_object_put(t->cells[i]);
    free(t->cells);
    t->cells = NULL;
    t->n_cells = 0;
}

/* Compares the first cells, with which the rows begin. */
static int compare_rows(const void *a, const void *b)
{
    const char *x = json_object_get_string(*(struct json_object *const *)a);
    const char *y = json_object_get_string(*(struct json_object *const *)b);

    if (!x || !y)
        return !x - !y;
    return strverscmp(x, y);
}

void cli_table_sort(struct cli_table *t)
{
    assert(!t->n_cells || t->n_cells % t->n_columns == 0);
    if (t->n_cells && t->n_columns)
        qsort(t->cells, t->n_cells / t->n_columns, t->n_columns * sizeof(*t->cells), compare_rows);
}

/* Returns a cell's text, possibly in buf, without control characters. */
static const char *cell_text(const struct cli_table *t, size_t cell, char *buf, size_t len)
{
    struct json_object *value = t->cells[cell];

    if (!value)
        return "-";
    switch (t->columns[cell % t->n_columns].kind) {
    case CLI_CELL_BYTES:
        bytes_short(json_object_get_uint64(value), buf, len);
        break;
    case CLI_CELL_REAL:
        snprintf(buf, len, "%.3f", json_object_get_double(value));
        break;
    case CLI_CELL_FLAG:
        snprintf(buf, len, "%s", json_object_get_boolean(value) ? "yes" : "no");
        break;
    default:
        snprintf(buf, len, "%s", json_object_get_string(value));
    }
    return cli_mask(buf);
}

#define CELL_TEXT 256 /* longer cells are truncated, in text only */

static bool to_the_right(const struct cli_table *t, size_t column)
{
    return t->columns[column].kind != CLI_CELL_TEXT && t->columns[column].kind != CLI_CELL_FLAG;
}

static size_t column_width(const struct cli_table *t, size_t column)
{
    char buf[CELL_TEXT];
    size_t width = strlen(t->columns[column].title);

    for (size_t cell = column; cell < t->n_cells; cell += t->n_columns) {
        size_t len = strlen(cell_text(t, cell, buf, sizeof(buf)));
        width = len > width ? len : width;
    }
    return width;
}

static void print_cell(const struct cli_table *t, FILE *to, const char *text, size_t column,
                       size_t width)
{
    bool last = column + 1 == t->n_columns;

    if (to_the_right(t, column))
        fprintf(to, "%*s", (int)width, text);
    else
        fprintf(to, "%-*s", last ? 0 : (int)width, text);
    fputs(last ? "\n" : "  ", to);
}

static void table_print_text(const struct cli_table *t, FILE *to, int indent)
{
    size_t widths[16];

    assert(t->n_columns > 0 && t->n_columns <= sizeof(widths) / sizeof(widths[0]));
    for (size_t i = 0; i < t->n_columns; i++)
        widths[i] = column_width(t, i);
    fprintf(to, "%*s", indent, "");
    for (size_t i = 0; i < t->n_columns; i++)
        print_cell(t, to, t->columns[i].title, i, widths[i]);
    for (size_t i = 0; i < t->n_cells; i++) {
        char buf[CELL_TEXT];
        size_t column = i % t->n_columns;
        if (column == 0)
            fprintf(to, "%*s", indent, "");
        print_cell(t, to, cell_text(t, i, buf, sizeof(buf)), column, widths[column]);
    }
}

void cli_table_print(const struct cli_table *t, struct cli_out *o, const char *key)
{
    if (!o->json) {
        table_print_text(t, o->to, 2 * (int)o->indent);
        return;
    }
    struct json_object *list = json_object_new_array();
    for (size_t row = 0; row < t->n_cells; row += t->n_columns) {
        struct json_object *record = json_object_new_object();
        for (size_t i = 0; i < t->n_columns; i++)
            json_object_object_add(record, t->columns[i].key, json_object_get(t->cells[row + i]));
        json_object_array_add(list, record);
    }
    json_object_object_add(o->at[o->depth], key, list);
}

void cli_table_show(struct cli_table *t, struct cli_out *o, const char *key)
{
    if (t->incomplete)
        cli_error(key, "out of memory");
    cli_table_print(t, o, key);
    cli_table_free(t);
}
