/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists the losses of this run: objects that the repairs gave up or could not
 * prove, and ranges of files that cannot be read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mkfs/fsck/fsck.h"

static const struct {
    const char *id, *text;
    bool is_range;
} report_kinds[] = {
    [LOSS_DATA] = {"data", "cannot be read, because a repair found no proof of its data", true},
    [LOSS_DIFFERS] = {"checksum", "cannot be read, because the data differs from its checksum",
                      true},
    [LOSS_UNVERIFIED] = {"unverified", "can be read, but has no checksum any more", true},
    [LOSS_FILE] = {"file", "the file is lost, and its name was removed", false},
    [LOSS_INODE] = {"inode", "is lost, if it was in use, with its block", false},
    [LOSS_NAMES] = {"names", "names in the directory may be lost", false},
    [LOSS_XATTRS] = {"xattrs", "extended attributes may be lost", false},
    [LOSS_TARGET] = {"target", "the target of the link may be wrong", false},
    [LOSS_FIELDS] = {"fields", "attributes and places of data come from a damaged or older block",
                     false},
    [LOSS_ENTRY] = {"entry", "its name comes from a damaged or older block and may be wrong",
                    false},
    [LOSS_NAME] = {"name", "its name is lost, so it was put in lost+found", false},
};

const char *fsck_loss_id(enum fsck_loss_kind kind)
{
    return report_kinds[kind].id;
}

bool fsck_loss_is_range(enum fsck_loss_kind kind)
{
    return report_kinds[kind].is_range;
}

/* --- Ranges that cannot be read --------------------------------------------------------------- */

static void report_add_range(struct fsck *f, const struct fsck_loss *loss)
{
    struct fsck_loss *last =
        f->ranges.count ? (struct fsck_loss *)f->ranges.items + f->ranges.count - 1 : NULL;

    if (last && last->ino == loss->ino && last->kind == loss->kind && last->end == loss->first) {
        last->end = loss->end;
        return;
    }
    f->no_memory |= fsck_append(&f->ranges, loss, sizeof(*loss)) != 0;
}

/* Adds blocks [from, to) of an extent, as far as they are in the file. */
static void report_range(struct fsck *f, const struct fsck_extent *e, uint64_t from, uint64_t to,
                         enum fsck_loss_kind kind)
{
    uint64_t first = (e->file_block + from) << LAY_BLOCK_SHIFT;
    uint64_t end = (e->file_block + to) << LAY_BLOCK_SHIFT;
    struct fsck_loss loss = {
        .ino = e->ino, .first = first, .end = end < e->size ? end : e->size, .kind = kind};

    if (loss.first < loss.end)
        report_add_range(f, &loss);
}

void fsck_look_for_losses(struct fsck *f, const struct fsck_extent *e)
{
    const struct fsck_suspect *s = f->suspects.items;

    if (e->damaged) {
        report_range(f, e, 0, e->len, LOSS_DATA);
        return;
    }
    for (size_t i = 0; i < f->suspects.count; i++) {
        uint64_t from = s[i].block > e->block ? s[i].block : e->block;
        uint64_t end =
            s[i].block + s[i].len < e->block + e->len ? s[i].block + s[i].len : e->block + e->len;
        if (from < end)
            report_range(f, e, from - e->block, end - e->block,
                         s[i].unverified ? LOSS_UNVERIFIED : LOSS_DIFFERS);
    }
}

/* --- Listing ---------------------------------------------------------------------------------- */

struct report {
    struct fsck *f;
    size_t next; /* loss whose path comes next */
    bool failed;
};

static const struct fsck_name *report_name(const struct fsck *f, const struct fsck_loss *loss)
{
    return loss->name ? (const struct fsck_name *)f->lost_names.items + loss->name - 1 : NULL;
}

/* Takes the path of the inode, or of the directory that its lost name was in. */
static void report_take_path(void *arg, uint64_t ino, const char *path)
{
    struct report *r = arg;
    struct fsck_loss *loss = (struct fsck_loss *)r->f->report.items + r->next++;
    const struct fsck_name *name = report_name(r->f, loss);
    char text[4 * LAY_NAME_MAX + 1] = "";

    (void)ino; /* paths come in the order of the report */
    if (name)
        fsck_printable(name->bytes, name->len, text);
    if (!path)
        return;
    bool is_root = strcmp(path, "/") == 0;
    size_t len = strlen(path) + strlen(text) + 2;
    loss->path = malloc(len);
    if (loss->path)
        snprintf(loss->path, len, "%s%s%s", name && is_root ? "" : path, name ? "/" : "", text);
    r->failed |= !loss->path;
}

static int report_append(struct fsck *f, const struct fsck_list *from, struct fsck_list *inos)
{
    const struct fsck_loss *l = from->items;
    int err = 0;

    for (size_t i = 0; i < from->count && !err; i++) {
        const struct fsck_name *name = report_name(f, &l[i]);
        err = fsck_append(&f->report, &l[i], sizeof(l[i]));
        if (!err)
            err = fsck_append(inos, name ? &name->dir : &l[i].ino, sizeof(l[i].ino));
    }
    return err;
}

void fsck_forget_report(struct fsck *f)
{
    struct fsck_loss *l = f->report.items;

    for (size_t i = 0; i < f->report.count; i++)
        free(l[i].path);
    f->report.count = 0;
}

int fsck_make_report(struct fsck *f)
{
    struct report r = {.f = f};
    struct fsck_list inos = {0};

    fsck_forget_report(f);
    int err = report_append(f, &f->losses, &inos);
    if (!err)
        err = report_append(f, &f->ranges, &inos);
    if (!err && inos.count > 0)
        err = fsck_paths(f, &inos, NULL, report_take_path, &r);
    free(inos.items);
    return err || !r.failed ? err : -ENOMEM;
}

static void report_print_loss(const struct fsck_loss *l, FILE *to)
{
    fprintf(to, "Loss: inode %" PRIu64, l->ino);
    if (l->path)
        fprintf(to, ", %s", l->path);
    if (report_kinds[l->kind].is_range)
        fprintf(to, ": bytes %" PRIu64 " to %" PRIu64, l->first, l->end - 1);
    fprintf(to, ": %s\n", report_kinds[l->kind].text);
}

void fsck_print_report(const struct fsck *f, FILE *to)
{
    const struct fsck_loss *l = f->report.items;

    for (size_t i = 0; i < f->report.count; i++)
        report_print_loss(&l[i], to);
}

int fsck_keep_report(struct fsck *f)
{
    char *text = NULL;
    size_t len = 0;

    if (!f->keep_report)
        return 0;
    int err = fsck_make_report(f);
    FILE *to = err ? NULL : open_memstream(&text, &len);
    if (!to)
        return err ? err : -ENOMEM;
    fsck_print_report(f, to);
    err = fclose(to) == 0 ? fsck_keep_text(f, text, len, &f->report_kept) : -ENOMEM;
    free(text);
    return err;
}
