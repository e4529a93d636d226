/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What fsck says: findings on stdout, each at most MAX_LINES times; progress on a terminal.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "mkfs/fsck.h"

#define MAX_LINES 100

static const struct {
    const char *id, *text;
} problems[] = {
#define PROBLEM(name, id, text) {id, text},
#include "mkfs/problems.def"
#undef PROBLEM
};

static void clear_progress(const struct fsck *f)
{
    if (f->progress)
        fputs("\r\033[K", stderr);
}

void fsck_report(struct fsck *f, enum problem problem, const char *detail, const char *object, ...)
{
    uint64_t count = ++f->found[problem];
    va_list args;

    if (count > MAX_LINES + 1)
        return;
    clear_progress(f);
    if (count > MAX_LINES) {
        printf("%s and more: %s\n", problems[problem].id, problems[problem].text);
        return;
    }
    printf("%s ", problems[problem].id);
    va_start(args, object);
    vprintf(object, args);
    va_end(args);
    printf(": %s", problems[problem].text);
    if (detail)
        printf(" (%s)", detail);
    putchar('\n');
}

uint64_t fsck_problems(const struct fsck *f)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < PROBLEM_COUNT; i++)
        sum += f->found[i];
    return sum;
}

void fsck_progress(struct fsck *f, const char *pass, uint64_t done, uint64_t all)
{
    if (f->progress && (done & 1023) == 0)
        fprintf(stderr, "\r%s: %" PRIu64 "%%\033[K", pass, all ? done * 100 / all : 100);
    if (f->progress && done == all)
        clear_progress(f);
}
