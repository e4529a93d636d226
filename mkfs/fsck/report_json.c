/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes the report of losses as JSON. */
#include <errno.h>
#include <json-c/json.h>
#include <unistd.h>

#include "mkfs/fsck/fsck.h"

static struct json_object *report_json_loss(const struct fsck_loss *l)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "inode", json_object_new_uint64(l->ino));
    json_object_object_add(o, "path", l->path ? json_object_new_string(l->path) : NULL);
    json_object_object_add(o, "kind", json_object_new_string(fsck_loss_id(l->kind)));
    if (fsck_loss_is_range(l->kind)) {
        json_object_object_add(o, "first", json_object_new_uint64(l->first));
        json_object_object_add(o, "last", json_object_new_uint64(l->end - 1));
    }
    return o;
}

int fsck_write_json(const struct fsck *f, int fd)
{
    const struct fsck_loss *l = f->report.items;
    struct json_object *o = json_object_new_object(), *losses = json_object_new_array();

    json_object_object_add(o, "device", json_object_new_string(f->path));
    json_object_object_add(o, "repaired", json_object_new_boolean(fsck_all_repaired(f)));
    json_object_object_add(o, "losses", losses);
    for (size_t i = 0; i < f->report.count; i++)
        json_object_array_add(losses, report_json_loss(&l[i]));
    errno = 0;
    int err = ftruncate(fd, 0);
    if (!err || errno == EINVAL) /* EINVAL: a pipe */
        err = json_object_to_fd(fd, o, JSON_C_TO_STRING_PRETTY);
    json_object_put(o);
    return err ? -(errno ? errno : EIO) : 0;
}
