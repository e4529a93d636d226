/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme write` writes files from GPU memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "client/cli/cmd/cli_copy.h"
#include "support/clock.h"

/* Fills the buffer: its bytes, 0 at the end, or -1 after a message. */
static ssize_t load_chunk(struct cli_session *s, int source, const char *name)
{
    size_t size = buffer_len(s->buffer), done = 0;

    while (done < size) {
        ssize_t n = TEMP_FAILURE_RETRY(read(source, (char *)s->host + done, size - done));
        if (n < 0) {
            cli_error(name, "%s", strerror(errno));
            return -1;
        }
        if (n == 0)
            break;
        done += (size_t)n;
    }
    if (buffer_copy_in(s->buffer, 0, s->host, done)) {
        cli_error(name, "%s", gpunvme_error());
        return -1;
    }
    return (ssize_t)done;
}

static int store_chunk(struct cli_session *s, int fd, size_t len, struct cli_transfer *t)
{
    struct gpunvme_result r;
    double start = now_seconds();
    ssize_t n = transfer_write(s->buffer, fd, 0, t->bytes, len, &r);

    if (n < 0)
        return cli_error(t->file, "%s", gpunvme_error());
    cli_account(t, &r, (uint64_t)n, now_seconds() - start);
    return (size_t)n == len ? 0 : cli_error(t->file, "%s", gpunvme_error());
}

static int write_chunks(struct cli_session *s, int source, const char *name, int fd,
                        struct cli_transfer *t, uint64_t size)
{
    XXH3_state_t hash;
    struct cli_progress progress;
    int failed = 0;

    XXH3_64bits_reset(&hash);
    cli_progress_start(&progress, t->file, size, s->options.quiet);
    while (!failed) {
        ssize_t n = load_chunk(s, source, name);
        if (n == 0)
            break;
        failed = n < 0 ? 1 : store_chunk(s, fd, (size_t)n, t);
        if (!failed)
            XXH3_64bits_update(&hash, s->host, (size_t)n);
        cli_progress_step(&progress, t->bytes);
    }
    cli_progress_end(&progress);
    t->xxh3 = XXH3_64bits_digest(&hash);
    if (!failed && fsync(fd) != 0)
        failed = cli_error(t->file, "fsync: %s", strerror(errno));
    return failed;
}

/* Opens the file, and sets *made if it creates it. */
static int open_target(const char *file, bool *made)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    *made = fd >= 0;
    if (fd < 0 && errno == EEXIST)
        fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return fd;
}

static int cmd_write_write_file(struct cli_session *s, struct cli_out *out, int source,
                                const char *name, const char *file)
{
    struct stat st;
    struct cli_transfer t = {.file = file};
    bool made;

    if (fstat(source, &st) != 0)
        return cli_error(name, "%s", strerror(errno));
    int fd = open_target(file, &made);
    if (fd < 0)
        return cli_error(file, "%s", strerror(errno));
    uint64_t wanted = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : UINT64_MAX;
    /* A file that is not on a mount stays as it is. */
    int failed = cli_check_target(fd, file, &st) || cli_session_open(s, file, wanted) ||
                 cli_truncate(fd, file);
    if (failed && made)
        unlink(file);
    if (!failed)
        failed = write_chunks(s, source, name, fd, &t, (uint64_t)st.st_size);
    if (!failed)
        cli_report(out, s, &t);
    cli_session_close(s);
    close(fd);
    return failed;
}

int cli_write(const struct cli_options *options, char **operands, int n)
{
    struct cli_session s = {.options = *options};
    struct cli_out out;
    int source = open(operands[0], O_RDONLY | O_CLOEXEC);

    (void)n;
    if (source < 0)
        return cli_error(operands[0], "%s", strerror(errno));
    cli_out_list_begin(&out, options->json, "files");
    int failed = cmd_write_write_file(&s, &out, source, operands[0], operands[1]);
    cli_out_list_finish(&out);
    close(source);
    return failed;
}
