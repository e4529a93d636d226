/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prints findings on stdout, each kind at most MAX_LINES times, and progress on
 * a terminal.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

#define MAX_LINES 100
#define BAR_WIDTH 40

enum findings_safety { ASK, SAFE, NEVER };

static const struct {
    const char *id, *text, *remedy;
    enum findings_safety safety;
} problems[] = {
#define PROBLEM(name, id, text, safety, remedy) {id, text, remedy, safety},
#include "mkfs/fsck/problems.def"
#undef PROBLEM
};

static void clear_progress(const struct fsck *f)
{
    if (f->progress)
        fputs("\r\033[K", stderr);
}

static void print_finding(enum problem problem, const char *detail, const char *object,
                          va_list args)
{
    printf("%s ", problems[problem].id);
    vprintf(object, args);
    printf(": %s", problems[problem].text);
    if (detail)
        printf(" (%s)", detail);
}

/* Ends the line of a finding and decides whether to repair it. */
static bool decide(struct fsck *f, enum problem problem, bool shown)
{
    const char *remedy = problems[problem].remedy;
    bool possible = problems[problem].safety != NEVER;
    /* Later rounds find the consequences of repairs: bitmaps and counts. */
    bool unasked = f->mode == FSCK_PREEN || (f->mode == FSCK_ASK && f->round > 1);
    bool yes = possible && (f->mode == FSCK_YES || (unasked && problems[problem].safety == SAFE));

    if (f->mode == FSCK_PREEN && possible && !yes)
        f->unsafe = true;
    if (f->mode == FSCK_ASK && possible && !yes) {
        printf(". %c%s? [y/n/a] ", remedy[0] - 'a' + 'A', remedy + 1);
        fflush(stdout);
        assert(f->ask); /* set in every run in FSCK_ASK */
        return f->ask(f);
    }
    if (shown && yes)
        printf(": %s", remedy);
    if (shown)
        putchar('\n');
    return yes;
}

static uint64_t hash_finding(enum problem problem, const char *object, va_list args)
{
    static const uint8_t key[16];
    char text[1200];
    int head = snprintf(text, sizeof(text), "%s ", problems[problem].id);

    vsnprintf(text + head, sizeof(text) - (size_t)head, object, args);
    return lay_siphash(key, text, strlen(text));
}

static void findings_show(struct fsck *f, enum problem problem, const char *detail,
                          const char *object, va_list args)
{
    uint64_t count = ++f->found[problem];
    bool shown = count <= MAX_LINES || f->mode == FSCK_ASK;

    if (shown) {
        clear_progress(f);
        print_finding(problem, detail, object, args);
    } else if (count == MAX_LINES + 1) {
        clear_progress(f);
        printf("%s and more: %s\n", problems[problem].id, problems[problem].text);
    }
    f->agreed = decide(f, problem, shown);
}

bool fsck_report(struct fsck *f, enum problem problem, const char *detail, const char *object, ...)
{
    uint64_t hash = 0;
    va_list args;

    f->agreed = false;
    if (f->ask) {
        va_start(args, object);
        hash = hash_finding(problem, object, args);
        va_end(args);
    }
    /* A finding that the user has declined recurs in the next round. */
    if (!f->ask || !fsck_has(&f->declined, hash)) {
        va_start(args, object);
        findings_show(f, problem, detail, object, args);
        va_end(args);
        if (f->ask && f->mode == FSCK_ASK && !f->agreed)
            (void)fsck_append(&f->declined, &hash,
                              sizeof(hash)); /* a failure repeats the question */
    }
    if (f->agreed)
        f->wanted++;
    else
        f->left++;
    return f->agreed;
}

void fsck_want(struct fsck *f, enum problem problem, const char *detail, uint64_t ino, uint16_t fix)
{
    if (fsck_report(f, problem, detail, "inode %" PRIu64, ino))
        fsck_mark(f, ino, fix);
}

void fsck_range_add(struct fsck_range *r, enum problem problem, uint64_t block)
{
    if (problem == r->problem)
        return;
    if (r->problem != PROBLEM_COUNT)
        r->fix |= fsck_report(r->f, r->problem, NULL, "%sblocks %" PRIu64 " to %" PRIu64, r->where,
                              r->first, block - 1);
    r->problem = problem;
    r->first = block;
}

uint64_t fsck_problems(const struct fsck *f)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < PROBLEM_COUNT; i++)
        sum += f->found[i];
    return sum;
}

void fsck_say(struct fsck *f, const char *format, ...)
{
    va_list args;

    clear_progress(f);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

void fsck_progress(struct fsck *f, const char *pass, uint64_t done, uint64_t all)
{
    static const char marks[BAR_WIDTH + 1] = "========================================";

    if (!f->progress)
        return;
    if ((done & 1023) == 0 && all > 0) {
        int full = (int)(done * BAR_WIDTH / all);
        fprintf(stderr, "\r%-12s [%.*s%*s] %3" PRIu64 "%%\033[K", pass, full, marks,
                BAR_WIDTH - full, "", done * 100 / all);
    }
    if (done == all)
        clear_progress(f);
}

char *fsck_printable(const uint8_t *name, unsigned len, char *out)
{
    char *to = out;

    for (unsigned i = 0; i < len; i++) {
        if (name[i] < 0x20 || name[i] >= 0x7f || name[i] == '\\')
            to += sprintf(to, "\\x%02x", name[i]);
        else
            *to++ = (char)name[i];
    }
    *to = 0;
    return out;
}

/* --- Losses ----------------------------------------------------------------------------------- */

/* Returns the loss, which is new if there was none, or NULL without memory. */
static struct fsck_loss *findings_lose(struct fsck *f, uint64_t ino, enum fsck_loss_kind kind)
{
    struct fsck_loss *l = f->losses.items;

    f->gave_up |= f->mode != FSCK_CHECK;
    for (size_t i = f->losses.count; i-- > 0;) {
        if (l[i].ino == ino && l[i].kind == kind)
            return &l[i];
    }
    struct fsck_loss *loss = fsck_grow(&f->losses, sizeof(*loss));
    if (loss)
        *loss = (struct fsck_loss){.ino = ino, .kind = kind};
    else
        f->no_memory = true;
    return loss;
}

struct fsck_name fsck_name_of(uint64_t dir, const struct lay_dirent *d)
{
    struct fsck_name name = {.ino = lay_get64(d->ino), .dir = dir, .len = d->name_len};

    memcpy(name.bytes, (const uint8_t *)d + offsetof(struct lay_dirent, name), d->name_len);
    return name;
}

void fsck_lose(struct fsck *f, uint64_t ino, enum fsck_loss_kind kind)
{
    findings_lose(f, ino, kind);
}

void fsck_lose_name(struct fsck *f, uint64_t dir, const struct lay_dirent *d)
{
    struct fsck_loss *loss = findings_lose(f, lay_get64(d->ino), LOSS_FILE);
    struct fsck_name *name = loss && !loss->name ? fsck_grow(&f->lost_names, sizeof(*name)) : NULL;

    if (!name) {
        f->no_memory |= loss && !loss->name;
        return;
    }
    loss->name = f->lost_names.count;
    *name = fsck_name_of(dir, d);
}
