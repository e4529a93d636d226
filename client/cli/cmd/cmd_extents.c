/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme extents` lists the extents of files. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme.h"

static void extents_print_text(const struct gpunvme_extent *e, uint64_t index)
{
    if (!index)
        printf("%6s %16s %16s %16s  %s\n", "ext", "file offset", "device offset", "length",
               "flags");
    printf("%6" PRIu64 " %16" PRIu64 " %16" PRIu64 " %16" PRIu64 "  %s%s\n", index, e->file_offset,
           e->device, e->len, e->flags & GPUNVME_EXTENT_UNWRITTEN ? "unwritten " : "",
           e->flags & GPUNVME_EXTENT_LAST ? "last" : "");
}

static struct json_object *to_json(const struct gpunvme_extent *e)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "file_offset", json_object_new_uint64(e->file_offset));
    json_object_object_add(o, "device_offset", json_object_new_uint64(e->device));
    json_object_object_add(o, "length", json_object_new_uint64(e->len));
    json_object_object_add(o, "unwritten",
                           json_object_new_boolean(e->flags & GPUNVME_EXTENT_UNWRITTEN));
    return o;
}

static void begin_list(struct cli_json_list *list, const char *file)
{
    struct json_object *root = cli_json_new();

    json_object_object_add(root, "file", json_object_new_string(file));
    cli_json_list_begin(list, root, "extents");
}

/* Prints the extents in batches, since a file may have too many for memory. */
static int list_file(int fd, const char *file, bool json)
{
    struct gpunvme_extent batch[GPUNVME_EXTENTS_MAX];
    ssize_t n = gpunvme_extents(fd, 0, batch, GPUNVME_EXTENTS_MAX);
    struct cli_json_list list;
    uint64_t index = 0;

    if (n < 0)
        return cli_error(file, "%s", gpunvme_error());
    if (json)
        begin_list(&list, file);
    while (n > 0) {
        const struct gpunvme_extent *last = &batch[n - 1];
        for (ssize_t i = 0; i < n; i++, index++) {
            if (json)
                cli_json_list_add(&list, to_json(&batch[i]));
            else
                extents_print_text(&batch[i], index);
        }
        if (last->flags & GPUNVME_EXTENT_LAST)
            break;
        n = gpunvme_extents(fd, last->file_offset + last->len, batch, GPUNVME_EXTENTS_MAX);
    }
    int failed = n < 0 ? cli_error(file, "%s", gpunvme_error()) : 0;
    if (json)
        cli_json_list_end(&list);
    return failed;
}

int cli_extents(const struct cli_options *options, char **operands, int n)
{
    const char *file = operands[0];
    int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    (void)n;
    if (fd < 0)
        return cli_error(file, "%s", strerror(errno));
    int failed = list_file(fd, file, options->json);
    close(fd);
    return failed;
}
