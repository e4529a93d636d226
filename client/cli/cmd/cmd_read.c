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
