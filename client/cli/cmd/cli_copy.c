/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the parts that the commands on files share. */
#include "client/cli/cmd/cli_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "client/lib/client_internal.h"
#include "support/bytes_text.h"

int cli_open_regular(const char *file, struct stat *st)
{
    int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 || fstat(fd, st) != 0)
        cli_error(file, "%s", strerror(errno));
    else if (!S_ISREG(st->st_mode))
        cli_error(file, "not a regular file, name files");
    else
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

int cli_check_target(int fd, const char *file, const struct stat *source)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return cli_error(file, "%s", strerror(errno));
    if (st.st_dev == source->st_dev && st.st_ino == source->st_ino)
        return cli_error(file, "the same file as the source, name another");
    return 0;
}

int cli_truncate(int fd, const char *file)
{
    return ftruncate(fd, 0) == 0 ? 0 : cli_error(file, "%s", strerror(errno));
}

uint64_t cli_largest(char **files, int n)
{
    uint64_t max = 0;

    for (int i = 0; i < n; i++) {
        struct stat st;
        if (stat(files[i], &st) == 0 && (uint64_t)st.st_size > max)
            max = (uint64_t)st.st_size;
    }
    return max;
}

int cli_session_open(struct cli_session *s, const char *path, uint64_t wanted)
{
    size_t size = wanted < s->options.buffer ? (size_t)wanted : s->options.buffer;

    if (!size)
        size = 1;
    s->host = malloc(size);
    if (!s->host)
        return cli_error(path, "out of memory for a buffer of %zu bytes", size);
    if (connection_open(path, &s->mount) || gpunvme_info(connection_fd(s->mount), &s->info) ||
        bounce_set_options(s->mount, &(struct gpunvme_options){.path = s->options.path}) ||
        buffer_alloc(s->mount, size, &s->buffer)) {
        cli_error(path, "%s", gpunvme_error());
        cli_session_close(s);
        return 1;
    }
    return 0;
}

void cli_session_close(struct cli_session *s)
{
    connection_close(s->mount);
    free(s->host);
    s->mount = NULL;
    s->host = NULL;
}

int cli_each_file(const struct cli_options *options, char **files, int n,
                  int (*one)(struct cli_session *s, struct cli_out *out, const char *file))
{
    struct cli_session s = {.options = *options};
    struct cli_out out;
    int failed = 0;

    if (cli_session_open(&s, files[0], cli_largest(files, n)))
        return 1;
    cli_out_list_begin(&out, options->json, "files");
    for (int i = 0; i < n; i++)
        failed |= one(&s, &out, files[i]);
    cli_out_list_finish(&out);
    cli_session_close(&s);
    return failed;
}

void cli_account(struct cli_transfer *t, const struct gpunvme_result *r, uint64_t bytes,
                 double seconds)
{
    t->bytes += bytes;
    t->seconds += seconds;
    gpunvme_add_result(&t->result, r->path, r->commands, r->nvme_status, r->staged);
    if (!t->result.why || !*t->result.why)
        t->result.why = r->why;
}

static ssize_t cli_read_chunk(struct cli_session *s, int fd, uint64_t at, bool by_syscall,
                              struct gpunvme_result *r)
{
    if (!by_syscall)
        return transfer_read(s->buffer, fd, 0, at, buffer_len(s->buffer), r);
    ssize_t n = pread(fd, s->host, buffer_len(s->buffer), (off_t)at);
    return n < 0 ? gpunvme_fail(-errno, "%s", strerror(errno)) : n;
}

static int cli_hash_chunk(struct cli_session *s, XXH3_state_t *hash, size_t len, bool by_syscall)
{
    int err = by_syscall ? 0 : buffer_copy_out(s->buffer, 0, s->host, len);

    if (!err)
        XXH3_64bits_update(hash, s->host, len);
    return err;
}

int cli_read_all(struct cli_session *s, int fd, uint64_t size, bool by_syscall, bool hashes,
                 struct cli_transfer *t)
{
    struct cli_progress progress;
    XXH3_state_t hash;
    ssize_t n;
    int err = 0;

    XXH3_64bits_reset(&hash);
    cli_progress_start(&progress, t->file, size, s->options.quiet);
    do {
        struct gpunvme_result r = {.why = ""};
        double start = now_seconds();
        n = cli_read_chunk(s, fd, t->bytes, by_syscall, &r);
        if (n >= 0)
            cli_account(t, &r, (uint64_t)n, now_seconds() - start);
        if (n < 0 || hashes)
            err = n < 0 ? (int)n : cli_hash_chunk(s, &hash, (size_t)n, by_syscall);
        cli_progress_step(&progress, t->bytes);
    } while (!err && n > 0);
    cli_progress_end(&progress);
    t->xxh3 = XXH3_64bits_digest(&hash);
    return err;
}

static double gb_per_s(const struct cli_transfer *t)
{
    return t->seconds > 0 ? (double)t->bytes / 1e9 / t->seconds : 0;
}

static const char *why_of(const struct cli_transfer *t)
{
    return t->result.why ? t->result.why : "";
}

static void report_text(const struct cli_session *s, const struct cli_transfer *t)
{
    char bytes[BYTES_TEXT];

    printf("%s: %s, path %s (%s), %" PRIu64 " NVMe commands, %.3f s, %.2f GB/s", t->file,
           bytes_text(t->bytes, bytes), cli_path_name(t->result.path), s->info.executor_name,
           t->result.commands, t->seconds, gb_per_s(t));
    if (s->options.checksum)
        printf(", XXH3 %016" PRIx64, t->xxh3);
    if (*why_of(t))
        printf(" (%s)", why_of(t));
    putchar('\n');
}

void cli_report(struct cli_out *out, const struct cli_session *s, const struct cli_transfer *t)
{
    char hash[17];

    if (!out->json) {
        report_text(s, t);
        return;
    }
    snprintf(hash, sizeof(hash), "%016" PRIx64, t->xxh3);
    cli_out_open(out, NULL, "");
    cli_out_string(out, "file", "", t->file);
    cli_out_number(out, "bytes", "", t->bytes);
    cli_out_string(out, "path", "", cli_path_name(t->result.path));
    cli_out_string(out, "why", "", why_of(t));
    cli_out_string(out, "executor", "", cli_executor_name(s->info.executor));
    cli_out_string(out, "executor_name", "", s->info.executor_name);
    cli_out_flag(out, "staged", "", t->result.staged != 0);
    cli_out_number(out, "commands", "", t->result.commands);
    cli_out_number(out, "nvme_status", "", t->result.nvme_status);
    cli_out_real(out, "seconds", "", t->seconds);
    cli_out_real(out, "gb_per_s", "", gb_per_s(t));
    if (s->options.checksum)
        cli_out_string(out, "xxh3", "", hash);
    cli_out_close(out);
}
