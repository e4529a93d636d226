/* SPDX-License-Identifier: BSD-2-Clause */
/* The catalogue: JSON that another program wrote, and the files that it names. */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/io/io.h"
#include "gpunvme/gpunvme_records.h"

#define LARGEST_CATALOGUE (16 << 20)

struct kind {
    char *name;
    int fd;
    struct gpunvme_records records;
};

struct gpunvme_catalogue {
    size_t n;
    struct kind kinds[];
};

static int get_number(struct json_object *o, const char *kind, const char *name, int64_t least,
                      int64_t most, int64_t *out)
{
    struct json_object *value;

    if (!json_object_object_get_ex(o, name, &value) || !json_object_is_type(value, json_type_int))
        return gpunvme_fail(-EINVAL, "kind \"%s\": \"%s\" is no whole number", kind, name);
    *out = json_object_get_int64(value);
    if (*out < least || *out > most)
        return gpunvme_fail(-EINVAL, "kind \"%s\": \"%s\" is %lld, not %lld to %lld", kind, name,
                            (long long)*out, (long long)least, (long long)most);
    return 0;
}

/* The records have to be in the file as it is now. */
static int check_end(const struct kind *k)
{
    const struct gpunvme_records *r = &k->records;
    struct stat st;

    if (fstat(k->fd, &st) != 0)
        return gpunvme_fail(-errno, "kind \"%s\": %s", k->name, strerror(errno));
    uint64_t size = (uint64_t)st.st_size;
    if (r->offset > size || r->count > (size - r->offset) / r->size)
        return gpunvme_fail(-EINVAL, "kind \"%s\": the file has %llu bytes, fewer than its records",
                            k->name, (unsigned long long)size);
    return 0;
}

static int open_file(struct gpunvme_io *io, const char *folder, struct json_object *o,
                     struct kind *k)
{
    struct json_object *file;
    char path[PATH_MAX];

    if (!json_object_object_get_ex(o, "file", &file) ||
        !json_object_is_type(file, json_type_string))
        return gpunvme_fail(-EINVAL, "kind \"%s\": \"file\" is no string", k->name);
    const char *name = json_object_get_string(file);
    int n = snprintf(path, sizeof(path), "%s%s%s", name[0] == '/' ? "" : folder,
                     name[0] == '/' ? "" : "/", name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return gpunvme_fail(-ENAMETOOLONG, "kind \"%s\": the name of its file is too long",
                            k->name);
    k->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (k->fd < 0)
        return gpunvme_fail(-errno, "kind \"%s\": %s: %s", k->name, path, strerror(errno));
    return gpunvme_io_file_open(io, k->fd, &k->records.file);
}

static int read_kind(struct gpunvme_io *io, const char *folder, const char *name,
                     struct json_object *o, struct kind *k)
{
    int64_t offset = 0, size = 1, count = 0;

    *k = (struct kind){.name = strdup(name), .fd = -1};
    if (!k->name)
        return gpunvme_fail(-ENOMEM, "out of memory");
    int err = get_number(o, name, "offset", 0, INT64_MAX, &offset);
    if (!err)
        err = get_number(o, name, "size", 1, INT32_MAX, &size);
    if (!err)
        err = get_number(o, name, "count", 0, INT64_MAX, &count);
    if (!err)
        err = open_file(io, folder, o, k);
    if (err)
        return err;
    k->records.offset = (uint64_t)offset;
    k->records.size = (uint32_t)size;
    k->records.count = (uint64_t)count;
    return check_end(k);
}

static int read_kinds(struct gpunvme_io *io, const char *folder, struct json_object *kinds,
                      struct gpunvme_catalogue **out)
{
    size_t n = (size_t)json_object_object_length(kinds);
    struct gpunvme_catalogue *c = calloc(1, sizeof(*c) + n * sizeof(c->kinds[0]));
    int err = 0;

    if (!c)
        return gpunvme_fail(-ENOMEM, "out of memory");
    json_object_object_foreach(kinds, name, value)
    {
        if (!err)
            err = read_kind(io, folder, name, value, &c->kinds[c->n++]);
    }
    if (err)
        gpunvme_catalogue_close(c);
    else
        *out = c;
    return err;
}

static int check_form(struct json_object *o, struct json_object **kinds)
{
    struct json_object *version;
    int64_t number = 0;

    if (json_object_object_get_ex(o, "version", &version))
        number = json_object_get_int64(version);
    if (number != 1)
        return gpunvme_fail(-EINVAL, "\"version\" is not 1");
    if (!json_object_object_get_ex(o, "kinds", kinds) ||
        !json_object_is_type(*kinds, json_type_object))
        return gpunvme_fail(-EINVAL, "\"kinds\" is no object");
    return 0;
}

/* NULL, with a sentence. */
static struct json_object *parse(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size > LARGEST_CATALOGUE) {
        gpunvme_fail(-EINVAL, "%s", fd < 0 ? strerror(errno) : "too large for a catalogue");
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    struct json_object *o = json_object_from_fd(fd);
    close(fd);
    if (!o)
        gpunvme_fail(-EINVAL, "not JSON");
    return o;
}

static int named(const char *path, int err)
{
    char why[256];

    snprintf(why, sizeof(why), "%s", gpunvme_error());
    return gpunvme_fail(err, "%s: %s", path, why);
}

int gpunvme_catalogue_open(struct gpunvme_io *io, const char *path, struct gpunvme_catalogue **out)
{
    struct json_object *kinds = NULL;
    char copy[PATH_MAX];
    int err = strlen(path) < sizeof(copy) ? 0 : gpunvme_fail(-ENAMETOOLONG, "the name is too long");
    struct json_object *o = err ? NULL : parse(path);

    if (!o)
        return named(path, access(path, R_OK) ? -errno : -EINVAL);
    err = check_form(o, &kinds);
    if (!err)
        err = read_kinds(io, dirname(memcpy(copy, path, strlen(path) + 1)), kinds, out);
    json_object_put(o);
    return err ? named(path, err) : 0;
}

void gpunvme_catalogue_close(struct gpunvme_catalogue *c)
{
    for (size_t i = 0; c && i < c->n; i++) {
        gpunvme_io_file_close(c->kinds[i].records.file);
        if (c->kinds[i].fd >= 0)
            close(c->kinds[i].fd);
        free(c->kinds[i].name);
    }
    free(c);
}

int gpunvme_catalogue_find(const struct gpunvme_catalogue *c, const char *kind,
                           struct gpunvme_records *out)
{
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->kinds[i].name, kind) == 0) {
            *out = c->kinds[i].records;
            return 0;
        }
    }
    return gpunvme_fail(-ENOENT, "the catalogue has no kind \"%s\"", kind);
}

const char *gpunvme_catalogue_kind(const struct gpunvme_catalogue *c, size_t i)
{
    return i < c->n ? c->kinds[i].name : NULL;
}

int gpunvme_read_kind(const struct gpunvme_catalogue *c, const char *kind, uint64_t index,
                      size_t count, void *ptr)
{
    struct gpunvme_records r;
    int err = gpunvme_catalogue_find(c, kind, &r);

    return err ? err : gpunvme_records_read(&r, index, count, ptr, NULL);
}
