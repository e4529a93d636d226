/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme cp` copies files to, from and within mounts, through memory that a
 * mount reaches directly.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "client/cli/cmd/cli_copy.h"
#include "client/lib/client_internal.h"
#include "support/bytes_text.h"

#define MODE_BITS 0777u

/* Describes a copy with its totals. */
struct copy {
    const char *source, *target;
    int from, to;
    struct gpunvme_file *reader, *writer;
    void *memory;
    size_t size; /* bytes of memory */
    uint64_t bytes, xxh3;
    struct gpunvme_result read, written; /* only their paths */
    double seconds;
};

struct copying {
    struct cli_options options;
    struct gpunvme *io;
    struct cli_out out;
};

/* Copies one buffer. Returns its bytes, 0 at the end, or -1 after a message. */
static ssize_t copy_chunk(struct copy *c, XXH3_state_t *hash)
{
    struct gpunvme_result r;
    ssize_t n = gpunvme_read(c->reader, c->memory, c->size, c->bytes, &r);

    if (n < 0) {
        cli_error(c->source, "%s", gpunvme_error());
        return -1;
    }
    gpunvme_add_result(&c->read, r.path, 0, 0, false);
    if (hash)
        XXH3_64bits_update(hash, c->memory, (size_t)n);
    ssize_t written = n ? gpunvme_write(c->writer, c->memory, (size_t)n, c->bytes, &r) : 0;
    if (written != n) {
        cli_error(c->target, "%s", written < 0 ? gpunvme_error() : strerror(ENOSPC));
        return -1;
    }
    gpunvme_add_result(&c->written, n ? r.path : 0, 0, 0, false);
    c->bytes += (uint64_t)n;
    return n;
}

static int copy_bytes(struct copy *c, const struct cli_options *options, uint64_t size)
{
    struct cli_progress progress;
    XXH3_state_t hash;
    double start = now_seconds();
    ssize_t n;

    XXH3_64bits_reset(&hash);
    cli_progress_start(&progress, c->target, size, options->quiet);
    do {
        n = copy_chunk(c, options->checksum ? &hash : NULL);
        cli_progress_step(&progress, c->bytes);
    } while (n > 0);
    cli_progress_end(&progress);
    c->xxh3 = XXH3_64bits_digest(&hash);
    int failed = n != 0;
    if (!failed && fsync(c->to) != 0)
        failed = cli_error(c->target, "fsync: %s", strerror(errno));
    c->seconds = now_seconds() - start;
    return failed;
}

/* Allocates memory at the mount of the target or, if it has none, of the source. */
static int copy_with_memory(struct copying *p, struct copy *c, uint64_t size)
{
    struct gpunvme_file *host =
        gpunvme_file_why(c->writer) && !gpunvme_file_why(c->reader) ? c->reader : c->writer;

    c->size = size < p->options.buffer ? (size_t)size : p->options.buffer;
    c->size = c->size ? c->size : 1;
    if (gpunvme_alloc_host(host, c->size, &c->memory))
        return cli_error(c->target, "%s", gpunvme_error());
    int failed = copy_bytes(c, &p->options, size);
    gpunvme_unregister(p->io, c->memory);
    return failed;
}

static int copy_open_files(struct copying *p, struct copy *c, uint64_t size)
{
    int failed = 1;

    if (gpunvme_file_open(p->io, c->from, 0, &c->reader))
        return cli_error(c->source, "%s", gpunvme_error());
    if (gpunvme_file_open(p->io, c->to, 0, &c->writer))
        cli_error(c->target, "%s", gpunvme_error());
    else
        failed = copy_with_memory(p, c, size);
    gpunvme_file_close(c->writer);
    gpunvme_file_close(c->reader);
    return failed;
}

static void cp_report(struct cli_out *out, const struct copy *c, bool checksum)
{
    double rate = c->seconds > 0 ? (double)c->bytes / 1e9 / c->seconds : 0;
    char hash[17], bytes[BYTES_TEXT];

    snprintf(hash, sizeof(hash), "%016" PRIx64, c->xxh3);
    if (!out->json) {
        printf("%s: %s, read by path %s, written by path %s, %.3f s, %.2f GB/s%s%s\n", c->target,
               bytes_text(c->bytes, bytes), cli_path_name(c->read.path),
               cli_path_name(c->written.path), c->seconds, rate, checksum ? ", XXH3 " : "",
               checksum ? hash : "");
        return;
    }
    cli_out_open(out, NULL, "");
    cli_out_string(out, "source", "", c->source);
    cli_out_string(out, "file", "", c->target);
    cli_out_number(out, "bytes", "", c->bytes);
    cli_out_string(out, "read_path", "", cli_path_name(c->read.path));
    cli_out_string(out, "write_path", "", cli_path_name(c->written.path));
    cli_out_real(out, "seconds", "", c->seconds);
    cli_out_real(out, "gb_per_s", "", rate);
    if (checksum)
        cli_out_string(out, "xxh3", "", hash);
    cli_out_close(out);
}

static int copy_from(struct copying *p, struct copy *c, const struct stat *source)
{
    c->to = open(c->target, O_RDWR | O_CREAT | O_CLOEXEC, source->st_mode & MODE_BITS);
    if (c->to < 0)
        return cli_error(c->target, "%s", strerror(errno));
    int failed = cli_check_target(c->to, c->target, source) || cli_truncate(c->to, c->target);
    if (!failed)
        failed = copy_open_files(p, c, (uint64_t)source->st_size);
    if (close(c->to) != 0 && !failed)
        failed = cli_error(c->target, "%s", strerror(errno));
    if (!failed)
        cp_report(&p->out, c, p->options.checksum);
    return failed;
}

static int copy_one(struct copying *p, const char *source, const char *target)
{
    struct copy c = {.source = source, .target = target};
    struct stat st;

    c.from = cli_open_regular(source, &st);
    if (c.from < 0)
        return 1;
    int failed = copy_from(p, &c, &st);
    close(c.from);
    return failed;
}

static int copy_into(struct copying *p, const char *source, const char *directory)
{
    char name[PATH_MAX], target[2 * PATH_MAX];

    if (strlen(source) >= sizeof(name) || strlen(directory) >= PATH_MAX)
        return cli_error(source, "%s", strerror(ENAMETOOLONG));
    snprintf(name, sizeof(name), "%s", source);
    snprintf(target, sizeof(target), "%s/%s", directory, basename(name));
    return copy_one(p, source, target);
}

static int cp_copy_all(struct copying *p, char **names, int n)
{
    struct stat st;
    const char *target = names[n - 1];
    bool into = stat(target, &st) == 0 && S_ISDIR(st.st_mode);
    int failed = 0;

    if (n > 2 && !into)
        return cli_error(target, "not a directory, which several files need");
    for (int i = 0; i < n - 1; i++)
        failed |= into ? copy_into(p, names[i], target) : copy_one(p, names[i], target);
    return failed;
}

int cli_cp(const struct cli_options *options, char **operands, int n)
{
    struct copying p = {.options = *options};

    if (gpunvme_open(&(struct gpunvme_options){.path = p.options.path}, &p.io))
        return cli_error("cp", "%s", gpunvme_error());
    cli_out_list_begin(&p.out, options->json, "files");
    int failed = cp_copy_all(&p, operands, n);
    gpunvme_close(p.io);
    cli_out_list_finish(&p.out);
    return failed;
}
