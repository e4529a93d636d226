/* SPDX-License-Identifier: BSD-2-Clause */
/* Collects and prints the findings of `gpunvme check`. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/check/cli_check.h"
#include "support/array.h"

static const char *const level_names[] = {"ok", "warn", "fail"};
static const char *const level_titles[] = {"OK", "WARN", "FAIL"};

void check_add(struct check *c, enum check_level level, const char *id, const char *advice,
               const char *text, ...)
{
    va_list args;

    assert(level <= CHECK_FAIL);
    if (level > c->worst)
        c->worst = level;
    if (array_grow((void **)&c->all, c->n, sizeof(*c->all))) {
        c->worst = CHECK_FAIL;
        return;
    }
    struct check_finding *f = &c->all[c->n++];
    *f = (struct check_finding){.level = level, .id = id};
    snprintf(f->advice, sizeof(f->advice), "%s", advice ? advice : "");
    va_start(args, text);
    vsnprintf(f->text, sizeof(f->text), text, args);
    va_end(args);
}

void check_free(struct check *c)
{
    free(c->all);
    *c = (struct check){0};
}

static void print_line(FILE *to, const struct check_finding *f)
{
    fprintf(to, "%-4s  %-14s  %s\n", level_titles[f->level], f->id, f->text);
    if (f->advice[0])
        fprintf(to, "%22s%s\n", "", f->advice);
}

void check_print(const struct check *c, struct cli_out *o)
{
    cli_out_list(o, "checks");
    for (size_t i = 0; i < c->n; i++) {
        const struct check_finding *f = &c->all[i];
        if (!o->json) {
            print_line(o->to, f);
            continue;
        }
        cli_out_open(o, NULL, "");
        cli_out_string(o, "id", "", f->id);
        cli_out_string(o, "level", "", level_names[f->level]);
        cli_out_string(o, "text", "", f->text);
        cli_out_string(o, "advice", "", f->advice);
        cli_out_close(o);
    }
    cli_out_list_end(o);
    if (o->json)
        cli_out_string(o, "worst", "", level_names[c->worst]);
}
