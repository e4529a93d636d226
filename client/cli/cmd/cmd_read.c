/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme read` reads files into GPU memory and can print their hashes. */
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "client/cli/cmd/cli_copy.h"
#include "support/clock.h"

static int hash_chunk(struct cli_session *s, XXH3_state_t *hash, size_t len)
{
    if (!s->options.checksum)
        return 0;
    int err = buffer_copy_out(s->buffer, 0, s->host, len);
    if (!err)
        XXH3_64bits_update(hash, s->host, len);
    return err;
}

static int cmd_read_chunks(struct cli_session *s, int fd, uint64_t size, struct cli_transfer *t)
{
    XXH3_state_t hash;
    struct cli_progress progress;
    ssize_t n;
    int err = 0;

    XXH3_64bits_reset(&hash);
    cli_progress_start(&progress, t->file, size, s->options.quiet);
    do {
        struct gpunvme_result r;
        double start = now_seconds();
        n = transfer_read(s->buffer, fd, 0, t->bytes, buffer_len(s->buffer), &r);
        double seconds = now_seconds() - start;
        if (n < 0) {
            err = (int)n;
        } else {
            cli_account(t, &r, (uint64_t)n, seconds);
            err = hash_chunk(s, &hash, (size_t)n);
        }
        cli_progress_step(&progress, t->bytes);
    } while (!err && n > 0);
    cli_progress_end(&progress);
    t->xxh3 = XXH3_64bits_digest(&hash);
    return err ? cli_error(t->file, "%s", gpunvme_error()) : 0;
}

static int cmd_read_read_file(struct cli_session *s, struct cli_transfer *t)
{
    struct stat st;
    int fd = cli_open_regular(t->file, &st);

    if (fd < 0)
        return 1;
    int failed = cmd_read_chunks(s, fd, (uint64_t)st.st_size, t);
    close(fd);
    return failed;
}

static int cmd_read_read_files(struct cli_session *s, char **files, int n)
{
    struct json_object *array = json_object_new_array();
    int failed = 0;

    for (int i = 0; i < n; i++) {
        struct cli_transfer t = {.file = files[i]};
        int bad = cmd_read_read_file(s, &t);
        failed |= bad;
        if (!bad && s->options.json)
            json_object_array_add(array, cli_report_json(s, &t));
        else if (!bad)
            cli_report_text(s, &t);
    }
    if (!s->options.json) {
        json_object_put(array);
        return failed;
    }
    cli_json_print_list("files", array);
    return failed;
}

int cli_read(const struct cli_options *options, char **operands, int n)
{
    struct cli_session s = {.options = *options};

    if (cli_session_open(&s, operands[0], cli_largest(operands, n)))
        return 1;
    int failed = cmd_read_read_files(&s, operands, n);
    cli_session_close(&s);
    return failed;
}
