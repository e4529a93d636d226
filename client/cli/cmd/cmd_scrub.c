/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme scrub` lets the daemon compare the data of files with its checksums,
 * and the places of metadata with their ages.
 */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme_ioctl.h"

/*
 * Counts what a scrub has found: blocks of files, or places of metadata. For metadata, `without`
 * counts blocks that were left out, and `added` counts chunks that got a second place.
 */
struct scrub_found {
    uint64_t matching, bad, corrected, copied, without, added;
    struct json_object *problems; /* NULL: text */
};

struct scrub {
    struct cli_options options;
    struct cli_progress progress;
    struct scrub_found data, metadata;
    uint64_t passed; /* bytes of files before the current one */
    uint64_t files;
    bool has_metadata;   /* the metadata of one file system at least was scrubbed */
    dev_t last_metadata; /* file system whose metadata was scrubbed last */
    bool failed;         /* cli_error() has reported it */
    bool ended;          /* another file would fail in the same way */
};

#define ROOT_INODE 1u

static volatile sig_atomic_t stopped; /* set by a signal */

static void scrub_stop(int signal)
{
    (void)signal;
    stopped = 1;
}

/* Omits SA_RESTART, so that a signal ends a waiting call. */
static void scrub_catch_signals(void)
{
    struct sigaction action = {.sa_handler = scrub_stop};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* --- Problems -------------------------------------------------------------------------------- */

static const char *scrub_kind(uint64_t address)
{
    static const char *const kinds[16] = {
        [0] = "label",   [2] = "superblock",        [3] = "chunk map",
        [5] = "bitmaps", [6] = "checksums of data", [4] = "inodes, trees or attributes",
        [7] = "journal"};
    const char *kind = kinds[address >> 60];

    return kind ? kind : "unknown";
}

static const struct scrub_problem {
    const char *name, *data, *metadata;
} scrub_problems[] = {
    [GPUNVME_SCRUB_DIFFERS] = {"differs", "does not match its checksum",
                               "is wrong, run fsck.gpunvme"},
    [GPUNVME_SCRUB_UNREADABLE] = {"unreadable", "cannot be read", "cannot be read"},
    [GPUNVME_SCRUB_CORRECTED] = {"corrected", "had one flipped bit, which was corrected",
                                 "had one flipped bit, which was corrected"},
    [GPUNVME_SCRUB_COPIED] = {"copied", NULL,
                              "was wrong, and has been written again from its other place"},
};

/* Counts a problem and returns its texts. An unknown one counts as GPUNVME_SCRUB_DIFFERS. */
static const struct scrub_problem *scrub_count_problem(struct scrub_found *found, uint32_t problem,
                                                       bool metadata)
{
    uint32_t last = metadata ? GPUNVME_SCRUB_COPIED : GPUNVME_SCRUB_CORRECTED;

    if (problem < GPUNVME_SCRUB_DIFFERS || problem > last)
        problem = GPUNVME_SCRUB_DIFFERS;
    *(problem == GPUNVME_SCRUB_CORRECTED ? &found->corrected
      : problem == GPUNVME_SCRUB_COPIED  ? &found->copied
                                         : &found->bad) += 1;
    return &scrub_problems[problem];
}

static void scrub_complain(struct scrub *s, const FTSENT *f, struct scrub_found *found,
                           const struct gpunvme_scrub_block *b)
{
    bool metadata = found == &s->metadata;
    const struct scrub_problem *problem = scrub_count_problem(found, b->problem, metadata);
    uint64_t ino = f->fts_statp->st_ino;

    cli_progress_end(&s->progress);
    if (metadata)
        cli_error(f->fts_path, "metadata (%s, byte %" PRIu64 " of the device) %s",
                  scrub_kind(b->file_offset), b->device, problem->metadata);
    else
        cli_error(f->fts_path,
                  "block %" PRIu64 " (inode %" PRIu64 ", byte %" PRIu64 " of the device) %s",
                  b->file_offset / 4096, ino, b->device, problem->data);
    if (!found->problems)
        return;
    struct json_object *o = json_object_new_object();
    if (metadata) {
        json_object_object_add(o, "kind", json_object_new_string(scrub_kind(b->file_offset)));
    } else {
        json_object_object_add(o, "file", json_object_new_string(f->fts_path));
        json_object_object_add(o, "inode", json_object_new_uint64(ino));
    }
    json_object_object_add(o, metadata ? "address" : "file_offset",
                           json_object_new_uint64(b->file_offset));
    json_object_object_add(o, "device_offset", json_object_new_uint64(b->device));
    json_object_object_add(o, "problem", json_object_new_string(problem->name));
    json_object_array_add(found->problems, o);
}

static void scrub_count(struct scrub *s, const FTSENT *f, struct scrub_found *found,
                        const struct gpunvme_ioc_scrub *arg)
{
    found->matching += arg->matching;
    found->added += arg->added;
    found->without += arg->without;
    for (uint32_t i = 0; i < arg->count && i < GPUNVME_SCRUB_BLOCKS_MAX; i++)
        scrub_complain(s, f, found, &arg->blocks[i]);
}

/* Scrubs the file, or the metadata of its mount, in parts. Returns 0 or errno. */
static int scrub_parts(struct scrub *s, const FTSENT *f, int fd, uint32_t flags)
{
    static struct gpunvme_ioc_scrub arg; /* too large for a stack */
    bool metadata = flags & GPUNVME_SCRUB_METADATA;
    uint64_t at = 0, end = metadata ? 0 : (uint64_t)f->fts_statp->st_size;
    bool more = metadata || end;

    while (more && !stopped) {
        arg = (struct gpunvme_ioc_scrub){
            .abi = {sizeof(arg), GPUNVME_ABI_VERSION}, .flags = flags, .offset = at, .end = end};
        if (ioctl(fd, GPUNVME_IOC_SCRUB, &arg) != 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        s->has_metadata |= metadata;
        scrub_count(s, f, metadata ? &s->metadata : &s->data, &arg);
        at = arg.offset;
        more = metadata ? at != 0 : at < end;
        if (!metadata)
            cli_progress_step(&s->progress, s->passed + at);
    }
    return 0;
}

/* --- Metadata -------------------------------------------------------------------------------- */

/*
 * Scrubs the metadata of the file system that an operand is on, if that was
 * asked for, or if the operand is its root and the caller may. Each file system
 * is scrubbed once if operands of one follow each other.
 */
static void scrub_metadata(struct scrub *s, const FTSENT *f)
{
    bool asked = s->options.metadata, root = f->fts_statp->st_ino == ROOT_INODE;

    if ((!asked && !root) || (s->has_metadata && s->last_metadata == f->fts_statp->st_dev))
        return;
    int fd = open(f->fts_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int err = fd < 0 ? errno : scrub_parts(s, f, fd, GPUNVME_SCRUB_METADATA);
    if (fd >= 0)
        close(fd);
    s->last_metadata = f->fts_statp->st_dev;
    /* The files of a mount of another kind report it themselves. */
    if (!err || (!asked && (err == EPERM || err == ENOTTY)))
        return;
    s->failed = true;
    cli_error(f->fts_path, "%s",
              err == ENOTTY  ? "is on no gpunvmefs mount, or on one of an older version"
              : err == EPERM ? "only root may scrub metadata"
                             : strerror(err));
}

/* --- One file -------------------------------------------------------------------------------- */

/* Reports why a file cannot be scrubbed. */
static void scrub_refuse(struct scrub *s, const FTSENT *f, int err)
{
    const char *why = strerror(err);

    s->failed = true;
    s->ended = err == ENOTTY || err == EOPNOTSUPP || err == EPROTO || err == EROFS;
    if (err == ENOTTY)
        why = "is on no gpunvmefs mount, or on one of an older version";
    else if (err == EOPNOTSUPP)
        why = "the file system has no checksums of data that could be compared, "
              "see mkfs.gpunvme(8), -O data_csum";
    cli_error(f->fts_path, "%s", why);
}

static uint32_t scrub_flags(const struct scrub *s)
{
    return (s->options.add ? GPUNVME_SCRUB_ADD : 0) |
           (s->options.correct ? GPUNVME_SCRUB_CORRECT : 0);
}

static void scrub_file(struct scrub *s, const FTSENT *f)
{
    int flags = scrub_flags(s) ? O_RDWR : O_RDONLY;

    /* Only operands may be links; another file may have become one. */
    if (f->fts_level > 0)
        flags |= O_NOFOLLOW;
    int fd = open(f->fts_path, flags | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        s->failed = true;
        cli_error(f->fts_path, "%s", strerror(errno));
        return;
    }
    int err = scrub_parts(s, f, fd, scrub_flags(s));
    close(fd);
    if (err)
        scrub_refuse(s, f, err);
    else
        s->files += !stopped;
    s->passed += (uint64_t)f->fts_statp->st_size;
}

/* --- Trees of files -------------------------------------------------------------------------- */

/* Reports an operand that is a device, a FIFO or a socket, or a link to nothing. */
static void scrub_refuse_operand(struct scrub *s, const FTSENT *f)
{
    if (f->fts_level > 0)
        return;
    s->failed = true;
    cli_error(f->fts_path, "%s",
              f->fts_info == FTS_SLNONE ? "is a link to nothing"
                                        : "is no file and no directory, name one of the mount");
}

static void scrub_visit(struct scrub *s, const FTSENT *f)
{
    if (f->fts_level == 0 && (f->fts_info == FTS_F || f->fts_info == FTS_D))
        scrub_metadata(s, f);
    switch (f->fts_info) {
    case FTS_F:
        if (!s->options.metadata)
            scrub_file(s, f);
        break;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        s->failed = true;
        cli_error(f->fts_path, "%s", strerror(f->fts_errno));
        break;
    case FTS_SLNONE:
    case FTS_DEFAULT:
        scrub_refuse_operand(s, f);
        break;
    default: /* directories, and links in them */
        break;
    }
}

static void add_size(struct scrub *s, const FTSENT *f)
{
    if (f->fts_info == FTS_F)
        s->passed += (uint64_t)f->fts_statp->st_size;
}

/* Walks the trees without leaving the file systems of the operands. */
static void scrub_walk(struct scrub *s, char **paths, void (*each)(struct scrub *, const FTSENT *))
{
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_XDEV | FTS_NOCHDIR, NULL);
    FTSENT *f;

    if (!tree) {
        s->failed = true;
        cli_error(paths[0], "%s", strerror(errno));
        return;
    }
    /* glibc's fts_close() frees the operands only after an fts_read(). */
    while ((f = fts_read(tree)) != NULL && !s->ended && !stopped) {
        each(s, f);
        if (s->options.metadata)
            fts_set(tree, f, FTS_SKIP);
    }
    fts_close(tree);
}

static void scrub_print_metadata(const struct scrub_found *m)
{
    printf("metadata: %" PRIu64 " places match, %" PRIu64 " bad, %" PRIu64 " corrected, %" PRIu64
           " written from the other place, %" PRIu64 " blocks in use left out",
           m->matching, m->bad, m->corrected, m->copied, m->without);
    if (m->added)
        printf(", %" PRIu64 " chunks have a second place now", m->added);
    putchar('\n');
}

static void scrub_print_text(const struct scrub *s)
{
    const struct scrub_found *d = &s->data;

    if (s->has_metadata)
        scrub_print_metadata(&s->metadata);
    if (s->options.metadata)
        return;
    printf("%" PRIu64 " files: %" PRIu64 " blocks match, %" PRIu64 " bad, %" PRIu64
           " without checksum, %" PRIu64 " checksums added",
           s->files, d->matching, d->bad, d->without, d->added);
    if (s->options.correct)
        printf(", %" PRIu64 " corrected", d->corrected);
    printf("%s\n", stopped ? " (interrupted)" : "");
}

/* Adds the counts to o. Three keys of metadata have other names. */
static void scrub_json_counts(struct json_object *o, const struct scrub_found *found, bool metadata)
{
    json_object_object_add(o, "matching", json_object_new_uint64(found->matching));
    json_object_object_add(o, "bad", json_object_new_uint64(found->bad));
    json_object_object_add(o, "corrected", json_object_new_uint64(found->corrected));
    if (metadata)
        json_object_object_add(o, "copied", json_object_new_uint64(found->copied));
    json_object_object_add(o, metadata ? "left_out" : "without",
                           json_object_new_uint64(found->without));
    json_object_object_add(o, metadata ? "chunks_copied" : "added",
                           json_object_new_uint64(found->added));
    json_object_object_add(o, metadata ? "places" : "blocks", json_object_get(found->problems));
}

/* The metadata is null if it was not scrubbed. */
static void print_json(const struct scrub *s)
{
    struct json_object *root = cli_json_new();
    struct json_object *metadata = s->has_metadata ? json_object_new_object() : NULL;

    json_object_object_add(root, "complete", json_object_new_boolean(!stopped && !s->failed));
    json_object_object_add(root, "files", json_object_new_uint64(s->files));
    scrub_json_counts(root, &s->data, false);
    if (metadata)
        scrub_json_counts(metadata, &s->metadata, true);
    json_object_object_add(root, "metadata", metadata);
    cli_json_print(root, stdout);
}

int cli_scrub(const struct cli_options *options, char **operands, int n)
{
    struct scrub s = {.options = *options};

    (void)n; /* the operands end with NULL */
    scrub_catch_signals();
    if (!s.options.quiet && isatty(STDERR_FILENO))
        scrub_walk(&s, operands, add_size);
    cli_progress_start(&s.progress, "scrub", s.passed, s.options.quiet);
    s.passed = 0;
    s.data.problems = s.options.json ? json_object_new_array() : NULL;
    s.metadata.problems = s.options.json ? json_object_new_array() : NULL;
    scrub_walk(&s, operands, scrub_visit);
    cli_progress_end(&s.progress);
    if (s.options.json)
        print_json(&s);
    else
        scrub_print_text(&s);
    json_object_put(s.data.problems);
    json_object_put(s.metadata.problems);
    return s.failed || s.data.bad || s.metadata.bad || stopped;
}
