/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme cache` removes files of a directory, least recently used
 * first, when they take more than a limit. The limit is an extended attribute
 * of the directory.
 *
 * A gpunvmefs mount enforces the limit itself: there the command sets the
 * attribute and shows the mount's state. In directories of other file systems
 * this process removes files.
 *
 * Only regular files below the directory and on its file system are removed,
 * and only if they are older than GRACE_S, so that a writer that has not
 * renamed its file yet keeps it. A file that is open keeps its blocks until it
 * is closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <libgen.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"

#define LIMIT_NAME "user.gpunvme.cache_limit"
#define STATE_NAME "user.gpunvme.cache_state" /* set by a mount */
#define GRACE_S    10
#define LOW(limit) ((limit) / 10 * 9) /* an eviction ends at this size */
#define FOLDERS    64                 /* open at a time while the tree is walked */

struct cached {
    char *path; /* below the directory */
    ino_t ino;
    uint64_t bytes;       /* disk usage */
    struct timespec used; /* the later of atime and mtime */
};

struct cache {
    const char *dir;
    int fd; /* the directory; -1 before the first walk */
    uint64_t limit;
    struct cached *all;
    size_t n, room;
    uint64_t bytes;
    uint64_t removed, removed_bytes;
    uint64_t files; /* remaining files */
    bool by_mount;  /* the mount enforces the limit */
    int err;
};

/* --- The files ------------------------------------------------------------------------------- */

static struct cache *walked; /* for the callback of nftw(), which gets no argument */
static dev_t walked_dev;

static bool cache_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

static int cache_add_file(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    struct cache *c = walked;

    (void)at;
    if (kind != FTW_F || !S_ISREG(st->st_mode) || st->st_dev != walked_dev)
        return 0;
    if (c->n == c->room) {
        size_t room = c->room ? 2 * c->room : 256;
        struct cached *grown = realloc(c->all, room * sizeof(*grown));
        if (!grown)
            return -1;
        c->all = grown;
        c->room = room;
    }
    struct cached *f = &c->all[c->n];
    *f = (struct cached){.path = strdup(path + strlen(c->dir)),
                         .ino = st->st_ino,
                         .bytes = (uint64_t)st->st_blocks * 512};
    if (!f->path)
        return -1;
    f->used = cache_later(st->st_atim, st->st_mtim) ? st->st_atim : st->st_mtim;
    c->n++;
    c->bytes += f->bytes;
    return 0;
}

static int cache_by_use(const void *a, const void *b)
{
    const struct cached *x = a, *y = b;

    return cache_later(x->used, y->used)   ? 1
           : cache_later(y->used, x->used) ? -1
                                           : strcmp(x->path, y->path);
}

static void cache_forget(struct cache *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->all[i].path);
    free(c->all);
    c->all = NULL;
    c->n = c->room = 0;
    c->bytes = 0;
}

/* Reads the tree. Ignores files that disappear, and follows no links. */
static int scan(struct cache *c)
{
    struct stat st;

    cache_forget(c);
    if (c->fd < 0)
        c->fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->fd < 0 || fstat(c->fd, &st) != 0)
        return cli_error(c->dir, "%s", strerror(errno));
    walked = c;
    walked_dev = st.st_dev;
    int failed = nftw(c->dir, cache_add_file, FOLDERS, FTW_PHYS | FTW_MOUNT);
    walked = NULL;
    if (failed)
        return cli_error(c->dir, "%s", strerror(errno));
    if (c->n)
        qsort(c->all, c->n, sizeof(c->all[0]), cache_by_use);
    return 0;
}

/* --- Eviction -------------------------------------------------------------------------------- */

/*
 * Opens the directory of a file that the walk found, below the directory that
 * was named and on its file system. Users may replace any part of the path by a
 * symbolic link meanwhile: the kernel refuses all of them.
 */
static int open_parent(const struct cache *c, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV |
                                      RESOLVE_NO_MAGICLINKS};
    char *copy = strdup(path);
    const char *parent = copy ? dirname(copy) : NULL;
    const char *below = parent ? parent + strspn(parent, "/") : NULL;
    int fd = -1;

    if (below)
        fd = (int)syscall(SYS_openat2, c->fd, *below ? below : ".", &how, sizeof(how));
    free(copy);
    return fd;
}

/* False for a new file, another one, or one used since the tree was read. */
static bool may_go(const struct cached *f, int parent, const char *name)
{
    struct stat st;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        st.st_ino != f->ino || st.st_dev != walked_dev)
        return false;
    return !cache_later(st.st_atim, f->used) && !cache_later(st.st_mtim, f->used) &&
           f->used.tv_sec + GRACE_S < now.tv_sec;
}

static void remove_one(struct cache *c, const struct cached *f, bool dry)
{
    const char *name = strrchr(f->path, '/');
    int parent = open_parent(c, f->path);

    name = name ? name + 1 : f->path;
    bool gone = parent >= 0 && may_go(f, parent, name);
    if (gone && !dry && unlinkat(parent, name, 0) != 0) {
        gone = false;
        if (errno != ENOENT)
            c->err = cli_error(f->path, "%s", strerror(errno));
    }
    if (parent >= 0)
        close(parent);
    if (!gone)
        return;
    c->removed++;
    c->removed_bytes += f->bytes;
    c->bytes -= f->bytes;
}

static int cache_evict(struct cache *c, bool dry)
{
    int failed = scan(c);

    c->files = c->n;
    if (failed || c->bytes <= c->limit)
        return failed;
    for (size_t i = 0; i < c->n && c->bytes > LOW(c->limit); i++)
        remove_one(c, &c->all[i], dry);
    c->files = c->n - c->removed;
    return c->err;
}

/* --- A mount's state ------------------------------------------------------------------------- */

/* Returns the number after "key=" in the mount's text, or 0. */
static uint64_t number_of(const char *text, const char *key)
{
    size_t len = strlen(key);

    for (const char *at = text; (at = strstr(at, key)); at += len) {
        if ((at == text || at[-1] == ' ') && at[len] == '=')
            return strtoull(at + len + 1, NULL, 10);
    }
    return 0;
}

/* Reads the state, with removals since the mount, if the mount has one. */
static void get_state(struct cache *c)
{
    char text[256] = "";

    c->by_mount = getxattr(c->dir, STATE_NAME, text, sizeof(text) - 1) > 0;
    if (!c->by_mount)
        return;
    c->limit = number_of(text, "limit");
    c->bytes = number_of(text, "bytes");
    c->files = number_of(text, "files");
    c->removed = number_of(text, "removed_files");
    c->removed_bytes = number_of(text, "removed_bytes");
}

/* --- The limit ------------------------------------------------------------------------------- */

static int set_limit(struct cache *c, uint64_t limit)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%" PRIu64, limit);

    if (setxattr(c->dir, LIMIT_NAME, text, (size_t)n, 0) != 0)
        return cli_error(c->dir, "the limit cannot be kept there: %s", strerror(errno));
    c->limit = limit;
    return 0;
}

static int get_limit(struct cache *c)
{
    char text[24] = "", *end = text;
    ssize_t n = getxattr(c->dir, LIMIT_NAME, text, sizeof(text) - 1);

    if (n < 0)
        return cli_error(c->dir, errno == ENODATA ? "no limit is set, use --limit" : "%s",
                         strerror(errno));
    c->limit = strtoull(text, &end, 10);
    return *end || !c->limit ? cli_error(c->dir, LIMIT_NAME ": not a number of bytes") : 0;
}

static void cache_report(const struct cache *c, bool json)
{
    struct cli_out out;

    cli_out_begin(&out, json, stdout);
    cli_out_string(&out, "directory", "Directory:", c->dir);
    cli_out_string(&out, "kept_by", "Kept by:", c->by_mount ? "the mount" : "this command");
    cli_out_number(&out, "limit", "Limit, bytes:", c->limit);
    cli_out_number(&out, "bytes", "Bytes:", c->bytes);
    cli_out_number(&out, "files", "Files:", c->files);
    cli_out_number(&out, "removed_files", "Files removed:", c->removed);
    cli_out_number(&out, "removed_bytes", "Bytes removed:", c->removed_bytes);
    cli_out_end(&out);
}

/* On a gpunvmefs mount only --dry-run scans the files here. */
static int cache_look(struct cache *c, bool dry)
{
    if (!dry)
        get_state(c);
    return c->by_mount && !dry ? 0 : cache_evict(c, dry);
}

/* Repeats until a signal. Each turn reports its own removals. */
static int cache_watch(struct cache *c, const struct cli_options *options)
{
    for (unsigned turn = 0; !options->count || turn < options->count; turn++) {
        c->removed = c->removed_bytes = 0;
        if (turn)
            sleep(options->interval);
        int failed = cache_look(c, options->dry_run);
        if (failed)
            return failed;
        if (c->removed && !options->json)
            cache_report(c, false);
        fflush(stdout);
    }
    return 0;
}

int cli_cache(int argc, char **argv)
{
    struct cli_options options;
    struct cache c = {.fd = -1};
    int failed = 0, stop = cli_parse_one(argc, argv, "olniC", &options, "one directory", &c.dir);

    if (stop)
        return stop - 1;
    if (options.limit && options.dry_run)
        c.limit = options.limit;
    else
        failed = options.limit ? set_limit(&c, options.limit) : get_limit(&c);
    if (!failed && options.keeps_on)
        failed = cache_watch(&c, &options);
    else if (!failed)
        failed = cache_look(&c, options.dry_run);
    if (!failed)
        cache_report(&c, options.json);
    cache_forget(&c);
    if (c.fd >= 0)
        close(c.fd);
    return failed;
}
