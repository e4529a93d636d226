/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme extents`: lists the extents of files. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme.h"

static void print_text(const struct gpunvme_extent *e, uint64_t index)
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

/* Lists batch by batch: a file may have more extents than anyone wants in memory at once. */
static int list(int fd, struct json_object *array)
{
    struct gpunvme_extent batch[GPUNVME_EXTENTS_MAX];
    uint64_t offset = 0, index = 0;
    ssize_t n;

    do {
        n = gpunvme_extents(fd, offset, batch, GPUNVME_EXTENTS_MAX);
        for (ssize_t i = 0; i < n; i++, index++) {
            if (array)
                json_object_array_add(array, to_json(&batch[i]));
            else
                print_text(&batch[i], index);
        }
        if (n > 0)
            offset = batch[n - 1].file_offset + batch[n - 1].len;
    } while (n > 0 && !(batch[n - 1].flags & GPUNVME_EXTENT_LAST));
    return n < 0 ? (int)n : 0;
}

static int list_file(int fd, const char *file, bool json)
{
    struct json_object *array = json ? json_object_new_array() : NULL;
    int err = list(fd, array);

    if (err) {
        json_object_put(array);
        return cli_error(file, "%s", gpunvme_error());
    }
    if (json) {
        struct json_object *root = cli_json_new();
        json_object_object_add(root, "file", json_object_new_string(file));
        json_object_object_add(root, "extents", array);
        cli_json_print(root);
    }
    return 0;
}

int cli_extents(int argc, char **argv)
{
    struct cli_options options;
    const char *file;
    int stop = cli_parse_one(argc, argv, "o", &options, "one file", &file);

    if (stop)
        return stop - 1;
    int fd = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return cli_error(file, "%s", strerror(errno));
    int failed = list_file(fd, file, options.json);
    close(fd);
    return failed;
}
