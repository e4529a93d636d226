/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme read` reads files into GPU memory and can print their hashes. */
#include <unistd.h>

#include "client/cli/cmd/cli_copy.h"

static int cmd_read_read_file(struct cli_session *s, struct cli_transfer *t)
{
    struct stat st;
    int fd = cli_open_regular(t->file, &st);

    if (fd < 0)
        return 1;
    int err = cli_read_all(s, fd, (uint64_t)st.st_size, false, s->options.checksum, t);
    close(fd);
    return err ? cli_error(t->file, "%s", gpunvme_error()) : 0;
}

int cli_read(const struct cli_options *options, char **operands, int n)
{
    struct cli_session s = {.options = *options};
    struct cli_out out;
    int failed = 0;

    if (cli_session_open(&s, operands[0], cli_largest(operands, n)))
        return 1;
    cli_out_list_begin(&out, options->json, "files");
    for (int i = 0; i < n; i++) {
        struct cli_transfer t = {.file = operands[i]};
        int bad = cmd_read_read_file(&s, &t);
        failed |= bad;
        if (!bad)
            cli_report(&out, &s, &t);
    }
    cli_out_list_finish(&out);
    cli_session_close(&s);
    return failed;
}
