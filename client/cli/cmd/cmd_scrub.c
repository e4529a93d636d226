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
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme_ioctl.h"

/* The metadata of the file systems that were scrubbed. Counts are places, `without` blocks. */
struct scrub_metadata {
    bool done; /* of one file system at least */
    dev_t last;
    uint64_t matching, bad, corrected, copied, without, chunks;
    struct json_object *places; /* failed ones; NULL: text */
};

struct scrub {
    struct cli_options options;
    struct cli_progress progress;
    struct scrub_metadata metadata;
    struct json_object *blocks; /* failed blocks; NULL: text */
    uint64_t passed;            /* bytes of files before the current one */
    uint64_t files, matching, added, without, corrected;
    uint64_t bad; /* except the corrected ones */
    bool failed;  /* cli_error() has reported it */
    bool ended;   /* another file would fail in the same way */
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

/* --- Metadata -------------------------------------------------------------------------------- */

static const char *scrub_kind(uint64_t address)
{
    static const char *const kinds[16] = {
        [0] = "label",   [2] = "superblock",        [3] = "chunk map",
        [5] = "bitmaps", [6] = "checksums of data", [4] = "inodes, trees or attributes",
        [7] = "journal"};
    const char *kind = kinds[address >> 60];

    return kind ? kind : "unknown";
}

/* Adds a failed place to the counts, and returns what it is called in JSON. */
static const char *scrub_count_place(struct scrub_metadata *m, uint32_t problem, const char **text)
{
    switch (problem) {
    case GPUNVME_SCRUB_COPIED:
        m->copied++;
        *text = "was wrong, and has been written again from its other place";
        return "copied";
    case GPUNVME_SCRUB_CORRECTED:
        m->corrected++;
        *text = "had one flipped bit, which was corrected";
        return "corrected";
    case GPUNVME_SCRUB_UNREADABLE:
        m->bad++;
        *text = "cannot be read";
        return "unreadable";
    default:
        m->bad++;
        *text = "is wrong, run fsck.gpunvme";
        return "differs";
    }
}

static void scrub_complain_place(struct scrub *s, const char *path,
                                 const struct gpunvme_scrub_block *b)
{
    const char *text, *name = scrub_count_place(&s->metadata, b->problem, &text);

    cli_progress_end(&s->progress);
    cli_error(path, "metadata (%s, byte %" PRIu64 " of the device) %s", scrub_kind(b->file_offset),
              b->device, text);
    if (!s->metadata.places)
        return;
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "kind", json_object_new_string(scrub_kind(b->file_offset)));
    json_object_object_add(o, "address", json_object_new_uint64(b->file_offset));
    json_object_object_add(o, "device_offset", json_object_new_uint64(b->device));
    json_object_object_add(o, "problem", json_object_new_string(name));
    json_object_array_add(s->metadata.places, o);
}

/* Scrubs the metadata of the mount in parts. Returns 0 or errno. */
static int scrub_metadata_of(struct scrub *s, const char *path, int fd)
{
    static struct gpunvme_ioc_scrub arg; /* too large for a stack */
    struct scrub_metadata *m = &s->metadata;
    uint64_t at = 0;
    bool more = true;

    while (more && !stopped) {
        arg = (struct gpunvme_ioc_scrub){.abi = {sizeof(arg), GPUNVME_ABI_VERSION},
                                         .flags = GPUNVME_SCRUB_METADATA,
                                         .offset = at};
        if (ioctl(fd, GPUNVME_IOC_SCRUB, &arg) != 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        m->done = true;
        m->matching += arg.matching;
        m->without += arg.without;
        m->chunks += arg.added;
        for (uint32_t i = 0; i < arg.count && i < GPUNVME_SCRUB_BLOCKS_MAX; i++)
            scrub_complain_place(s, path, &arg.blocks[i]);
        at = arg.offset;
        more = at != 0;
    }
    return 0;
}

/*
 * Scrubs the metadata of the file system that an operand is on, if that was
 * asked for, or if the operand is its root and the caller may. Each file system
 * is scrubbed once if operands of one follow each other.
 */
static void scrub_metadata(struct scrub *s, const FTSENT *f)
{
    bool asked = s->options.metadata, root = f->fts_statp->st_ino == ROOT_INODE;
    struct scrub_metadata *m = &s->metadata;

    if ((!asked && !root) || (m->done && m->last == f->fts_statp->st_dev))
        return;
    int fd = open(f->fts_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int err = fd < 0 ? errno : scrub_metadata_of(s, f->fts_path, fd);
    if (fd >= 0)
        close(fd);
    m->last = f->fts_statp->st_dev;
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

static void scrub_complain(struct scrub *s, const FTSENT *f, const struct gpunvme_scrub_block *b)
{
    static const struct {
        const char *text, *name;
    } problems[] = {
        [GPUNVME_SCRUB_DIFFERS] = {"does not match its checksum", "differs"},
        [GPUNVME_SCRUB_UNREADABLE] = {"cannot be read", "unreadable"},
        [GPUNVME_SCRUB_CORRECTED] = {"had one flipped bit, which was corrected", "corrected"},
    };
    bool known = b->problem >= GPUNVME_SCRUB_DIFFERS && b->problem <= GPUNVME_SCRUB_CORRECTED;
    uint32_t problem = known ? b->problem : GPUNVME_SCRUB_DIFFERS;
    uint64_t ino = f->fts_statp->st_ino;

    *(problem == GPUNVME_SCRUB_CORRECTED ? &s->corrected : &s->bad) += 1;
    cli_progress_end(&s->progress);
    cli_error(f->fts_path,
              "block %" PRIu64 " (inode %" PRIu64 ", byte %" PRIu64 " of the device) %s",
              b->file_offset / 4096, ino, b->device, problems[problem].text);
    if (!s->blocks)
        return;
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "file", json_object_new_string(f->fts_path));
    json_object_object_add(o, "inode", json_object_new_uint64(ino));
    json_object_object_add(o, "file_offset", json_object_new_uint64(b->file_offset));
    json_object_object_add(o, "device_offset", json_object_new_uint64(b->device));
    json_object_object_add(o, "problem", json_object_new_string(problems[problem].name));
    json_object_array_add(s->blocks, o);
}

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

static void scrub_count(struct scrub *s, const FTSENT *f, const struct gpunvme_ioc_scrub *arg)
{
    s->matching += arg->matching;
    s->added += arg->added;
    s->without += arg->without;
    for (uint32_t i = 0; i < arg->count && i < GPUNVME_SCRUB_BLOCKS_MAX; i++)
        scrub_complain(s, f, &arg->blocks[i]);
    cli_progress_step(&s->progress, s->passed + arg->offset);
}

static uint32_t scrub_flags(const struct scrub *s)
{
    return (s->options.add ? GPUNVME_SCRUB_ADD : 0) |
           (s->options.correct ? GPUNVME_SCRUB_CORRECT : 0);
}

static void scrub_open(struct scrub *s, const FTSENT *f, int fd)
{
    static struct gpunvme_ioc_scrub arg; /* too large for a stack */
    uint64_t size = (uint64_t)f->fts_statp->st_size, at = 0;

    while (at < size && !stopped) {
        arg = (struct gpunvme_ioc_scrub){.abi = {sizeof(arg), GPUNVME_ABI_VERSION},
                                         .flags = scrub_flags(s),
                                         .offset = at,
                                         .end = size};
        if (ioctl(fd, GPUNVME_IOC_SCRUB, &arg) != 0) {
            if (errno == EINTR)
                continue;
            scrub_refuse(s, f, errno);
            return;
        }
        scrub_count(s, f, &arg);
        at = arg.offset;
    }
    s->files += !stopped;
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
    scrub_open(s, f, fd);
    close(fd);
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
    while (!s->ended && !stopped && (f = fts_read(tree)) != NULL) {
        each(s, f);
        if (s->options.metadata)
            fts_set(tree, f, FTS_SKIP);
    }
    fts_close(tree);
}

static void scrub_print_metadata(const struct scrub_metadata *m)
{
    if (!m->done)
        return;
    printf("metadata: %" PRIu64 " places match, %" PRIu64 " bad, %" PRIu64 " corrected, %" PRIu64
           " written from the other place, %" PRIu64 " blocks in use left out",
           m->matching, m->bad, m->corrected, m->copied, m->without);
    if (m->chunks)
        printf(", %" PRIu64 " chunks have a second place now", m->chunks);
    putchar('\n');
}

static void scrub_print_text(const struct scrub *s)
{
    scrub_print_metadata(&s->metadata);
    if (s->options.metadata)
        return;
    printf("%" PRIu64 " files: %" PRIu64 " blocks match, %" PRIu64 " bad, %" PRIu64
           " without checksum, %" PRIu64 " checksums added",
           s->files, s->matching, s->bad, s->without, s->added);
    if (s->options.correct)
        printf(", %" PRIu64 " corrected", s->corrected);
    printf("%s\n", stopped ? " (interrupted)" : "");
}

/* Returns what becomes of the metadata in JSON: null if it was not scrubbed. */
static struct json_object *scrub_json_metadata(const struct scrub_metadata *m)
{
    struct json_object *o = m->done ? json_object_new_object() : NULL;

    if (!o) {
        json_object_put(m->places);
        return NULL;
    }
    json_object_object_add(o, "matching", json_object_new_uint64(m->matching));
    json_object_object_add(o, "bad", json_object_new_uint64(m->bad));
    json_object_object_add(o, "corrected", json_object_new_uint64(m->corrected));
    json_object_object_add(o, "copied", json_object_new_uint64(m->copied));
    json_object_object_add(o, "left_out", json_object_new_uint64(m->without));
    json_object_object_add(o, "chunks_copied", json_object_new_uint64(m->chunks));
    json_object_object_add(o, "places", m->places);
    return o;
}

static void print_json(struct scrub *s)
{
    struct json_object *root = cli_json_new();

    json_object_object_add(root, "complete", json_object_new_boolean(!stopped && !s->failed));
    json_object_object_add(root, "files", json_object_new_uint64(s->files));
    json_object_object_add(root, "matching", json_object_new_uint64(s->matching));
    json_object_object_add(root, "bad", json_object_new_uint64(s->bad));
    json_object_object_add(root, "corrected", json_object_new_uint64(s->corrected));
    json_object_object_add(root, "without", json_object_new_uint64(s->without));
    json_object_object_add(root, "added", json_object_new_uint64(s->added));
    json_object_object_add(root, "blocks", s->blocks);
    json_object_object_add(root, "metadata", scrub_json_metadata(&s->metadata));
    cli_json_print(root);
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
    s.blocks = s.options.json ? json_object_new_array() : NULL;
    s.metadata.places = s.options.json ? json_object_new_array() : NULL;
    scrub_walk(&s, operands, scrub_visit);
    cli_progress_end(&s.progress);
    if (s.options.json)
        print_json(&s);
    else
        scrub_print_text(&s);
    return s.failed || s.bad || s.metadata.bad || stopped;
}
