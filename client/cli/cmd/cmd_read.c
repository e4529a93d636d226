/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme read` reads files into GPU memory and can print their hashes. */
#include <unistd.h>

#include "client/cli/cmd/cli_copy.h"

static int read_file(struct cli_session *s, struct cli_out *out, const char *file)
{
    struct cli_transfer t = {.file = file};
    struct stat st;
    int fd = cli_open_regular(file, &st);

    if (fd < 0)
        return 1;
    int err = cli_read_all(s, fd, (uint64_t)st.st_size, false, s->options.checksum, &t);
    close(fd);
    if (err)
        return cli_error(file, "%s", gpunvme_error());
    cli_report(out, s, &t);
    return 0;
}

int cli_read(const struct cli_options *options, char **operands, int n)
{
    return cli_each_file(options, operands, n, read_file);
}
