/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The command `gpunvme cache` removes files of a directory, least recently used
 * first, when they take more than a limit. The limit is an extended attribute
 * of the directory.
 *
 * A gpunvmefs mount enforces the limit itself: there the command sets the
 * attribute and shows the mount's state. In directories of other file systems
 * this process removes files, with the rights of the directory's owner.
 *
 * Only regular files below the directory and on its mount are removed, and only
 * if they are older than GRACE_S, so that a writer that has not renamed its file
 * yet keeps it. A file that is open keeps its blocks until it is closed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <pwd.h>
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
#include "support/evict.h"

#define LIMIT_NAME "user.gpunvme.cache_limit"
#define STATE_NAME "user.gpunvme.cache_state" /* set by a mount */
#define GRACE_S    10
#define LOW(limit) ((limit) / 10 * 9) /* the removal ends at this size */

struct cache {
    const char *dir;
    struct stat st; /* of the directory */
    int fd;         /* the directory */
    DIR *in;        /* the directory that is read, or NULL */
    bool dry;
    bool by_mount; /* the mount enforces the limit */
    uint64_t limit, bytes, files;
    uint64_t removed, removed_bytes;
    int err;
};

/* --- The directory --------------------------------------------------------------------------- */

/* The name itself is no link: another user might have put it there. */
static int cache_open(struct cache *c)
{
    char state;

    c->fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (c->fd < 0 || fstat(c->fd, &c->st) != 0)
        return cli_error(c->dir, "%s", strerror(errno));
    c->by_mount = fgetxattr(c->fd, STATE_NAME, &state, 0) > 0;
    return 0;
}

/*
 * Gives up root's rights for those of the directory's owner: a walk as root
 * would remove files that the owner cannot.
 */
static int cache_become_owner(const struct cache *c)
{
    const struct passwd *owner = getpwuid(c->st.st_uid);
    gid_t gid = owner ? owner->pw_gid : c->st.st_gid;

    if (geteuid() != 0 || c->st.st_uid == 0)
        return 0;
    if ((owner ? initgroups(owner->pw_name, gid) : setgroups(0, NULL)) == 0 &&
        setresgid(gid, gid, gid) == 0 && setresuid(c->st.st_uid, c->st.st_uid, c->st.st_uid) == 0)
        return 0;
    return cli_error(c->dir, "its owner's rights cannot be taken: %s", strerror(errno));
}

/* Returns the path of dir below the root, which the caller frees, or NULL. */
static char *cache_path(const struct evict_dir *dir)
{
    size_t len = sizeof(".");

    for (const struct evict_dir *d = dir; d->in; d = d->in)
        len += strlen(d->name) + 1;
    char *path = calloc(1, len);
    if (!path)
        return NULL;
    char *at = path + len - 1;
    for (const struct evict_dir *d = dir; d->in; d = d->in) {
        at -= strlen(d->name);
        memcpy(at, d->name, strlen(d->name));
        *--at = '/';
    }
    path[0] = '.';
    return path;
}

/*
 * Users may replace any part of the path by a symbolic link or another
 * directory, or mount something there: the kernel refuses links and mounts, and
 * the inode number shows other directories.
 */
static int cache_enter(void *arg, const struct evict_dir *dir)
{
    struct cache *c = arg;
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV |
                                      RESOLVE_NO_MAGICLINKS};
    struct stat st;

    if (c->in)
        closedir(c->in);
    c->in = NULL;
    char *path = dir ? cache_path(dir) : NULL;
    if (!path)
        return dir ? -ENOMEM : 0;
    int fd = (int)syscall(SYS_openat2, c->fd, path, &how, sizeof(how));
    int err = fd < 0 && dir->in == NULL ? -errno : 0;
    free(path);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == dir->ino)
        c->in = fdopendir(fd);
    if (fd >= 0 && !c->in)
        close(fd);
    return err ? err : !c->in;
}

static int cache_next(void *arg, struct evict_file *f)
{
    struct cache *c = arg;
    struct stat st;
    const struct dirent *e = readdir(c->in);

    if (!e)
        return EVICT_END;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
        fstatat(dirfd(c->in), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        st.st_dev != c->st.st_dev || !(S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        return EVICT_OTHER;
    *f = (struct evict_file){.name = e->d_name,
                             .ino = st.st_ino,
                             .bytes = (uint64_t)st.st_blocks * 512,
                             .used = evict_later(st.st_atim, st.st_mtim) ? st.st_atim : st.st_mtim};
    return S_ISDIR(st.st_mode) ? EVICT_DIRECTORY : EVICT_FILE;
}

/* Returns false for a new file, another one, or one used since the tree was read. */
static bool may_go(const struct cache *c, const struct evict_file *f)
{
    struct stat st;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (fstatat(dirfd(c->in), f->name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        st.st_ino != f->ino || st.st_dev != c->st.st_dev)
        return false;
    return !evict_later(st.st_atim, f->used) && !evict_later(st.st_mtim, f->used) &&
           f->used.tv_sec + GRACE_S < now.tv_sec;
}

static bool cache_remove(void *arg, const struct evict_file *f)
{
    struct cache *c = arg;

    if (!may_go(c, f))
        return false;
    if (c->dry || unlinkat(dirfd(c->in), f->name, 0) == 0)
        return true;
    if (errno != ENOENT && errno != EBUSY && errno != EACCES && errno != EPERM)
        c->err = cli_error(f->name, "%s", strerror(errno));
    return false;
}

static int cache_evict(struct cache *c)
{
    static const struct evict_ops ops = {
        .enter = cache_enter, .next = cache_next, .remove = cache_remove};
    struct evict e = {.ops = &ops,
                      .arg = c,
                      .root = c->st.st_ino,
                      .most = SIZE_MAX,
                      .begin = c->limit,
                      .end = LOW(c->limit)};
    int more;

    while ((more = evict_step(&e, 1024)) == 1)
        ;
    evict_end(&e);
    if (more < 0)
        return cli_error(c->dir, "%s", strerror(-more));
    c->bytes = e.bytes;
    c->files = e.files;
    c->removed = e.removed_files;
    c->removed_bytes = e.removed_bytes;
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

/* Reads the state, with removals since the mount. */
static int get_state(struct cache *c)
{
    char text[256] = "";

    if (fgetxattr(c->fd, STATE_NAME, text, sizeof(text) - 1) < 0)
        return cli_error(c->dir, "%s", strerror(errno));
    c->limit = number_of(text, "limit");
    c->bytes = number_of(text, "bytes");
    c->files = number_of(text, "files");
    c->removed = number_of(text, "removed_files");
    c->removed_bytes = number_of(text, "removed_bytes");
    return 0;
}

/* --- The limit ------------------------------------------------------------------------------- */

static int set_limit(struct cache *c, uint64_t limit)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%" PRIu64, limit);

    if (fsetxattr(c->fd, LIMIT_NAME, text, (size_t)n, 0) != 0)
        return cli_error(c->dir, "the limit cannot be kept there: %s", strerror(errno));
    c->limit = limit;
    c->by_mount = fgetxattr(c->fd, STATE_NAME, text, 0) > 0;
    return 0;
}

/*
 * Other file systems let everybody who may write a directory set its attribute,
 * unless it is sticky; the limit of a mount is set by the owner only.
 */
static int get_limit(struct cache *c)
{
    char text[24] = "", *end = text;
    ssize_t n = fgetxattr(c->fd, LIMIT_NAME, text, sizeof(text) - 1);

    if (n >= 0 && !c->by_mount && (c->st.st_mode & (S_IWGRP | S_IWOTH)) &&
        !(c->st.st_mode & S_ISVTX))
        return cli_error(c->dir, "its limit may be anybody's who can write there, "
                                 "use --limit or chmod +t");
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
    cli_out_bytes(&out, "limit", "Limit:", c->limit);
    cli_out_bytes(&out, "bytes", "Size:", c->bytes);
    cli_out_number(&out, "files", "Files:", c->files);
    cli_out_number(&out, "removed_files", "Files removed:", c->removed);
    cli_out_bytes(&out, "removed_bytes", "Removed:", c->removed_bytes);
    cli_out_end(&out);
}

/* On a gpunvmefs mount only --dry-run scans the files here. */
static int cache_look(struct cache *c)
{
    return c->by_mount && !c->dry ? get_state(c) : cache_evict(c);
}

/* Repeats until a signal. Each turn reports its own removals. */
static int cache_watch(struct cache *c, const struct cli_options *options)
{
    for (uint64_t turn = 0; !options->count || turn < options->count; turn++) {
        if (turn)
            sleep((unsigned)options->interval);
        int failed = cache_look(c);
        if (failed)
            return failed;
        if (c->removed && !options->json)
            cache_report(c, false);
        fflush(stdout);
    }
    return 0;
}

static int cache_run(struct cache *c, const struct cli_options *options)
{
    int failed = cache_open(c);

    if (failed)
        return failed;
    c->dry = options->dry_run;
    if (options->limit && c->dry)
        c->limit = options->limit;
    else
        failed = options->limit ? set_limit(c, options->limit) : get_limit(c);
    if (!failed && (c->dry || !c->by_mount))
        failed = cache_become_owner(c);
    if (!failed)
        failed = options->keeps_on ? cache_watch(c, options) : cache_look(c);
    if (!failed)
        cache_report(c, options->json);
    return failed;
}

int cli_cache(const struct cli_options *options, char **operands, int n)
{
    struct cache c = {.fd = -1, .dir = operands[0]};
    int failed = cache_run(&c, options);

    (void)n;
    if (c.fd >= 0)
        close(c.fd);
    return failed;
}
