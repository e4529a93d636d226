/* SPDX-License-Identifier: BSD-2-Clause */
/* Files that no mount serves, and what their file systems ask of O_DIRECT. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "client/lib/handle.h"
#include "support/page.h"

/* O_DIRECT would ask for a read of less than a block where the file ends. */
static int clamp_to_file(const struct gpunvme_file *f, struct range *r)
{
    struct stat st;

    if (r->write || !f->regular)
        return 0;
    if (fstat(f->fd, &st) != 0)
        return gpunvme_fail(-errno, "file: %s", strerror(errno));
    uint64_t size = (uint64_t)st.st_size;
    uint64_t left = r->file_offset < size ? size - r->file_offset : 0;
    if (r->len > left)
        r->len = (size_t)left;
    return 0;
}

/* How many bytes of the range O_DIRECT can move. */
static size_t direct_part(const struct gpunvme_file *f, const struct range *r)
{
    if (!f->direct)
        return r->len;
    return r->file_offset % PAGE_BYTES ? 0 : r->len / PAGE_BYTES * PAGE_BYTES;
}

static size_t move_cached(struct gpunvme_file *f, struct gpunvme_buffer *b, struct range *r,
                          struct gpunvme_result *result, int *err)
{
    if (f->direct)
        r->fd = file_cached(f);
    if (r->fd >= 0)
        return gpunvme_transfer_bounced(b, r, result, err);
    *err = r->fd;
    return 0;
}

size_t file_move_local(struct gpunvme_file *f, struct gpunvme_buffer *b, const struct range *r,
                       struct gpunvme_result *result, int *err)
{
    struct range part = *r;

    *err = gpunvme_use_begin(b);
    if (*err)
        return 0;
    *err = clamp_to_file(f, &part);
    struct range rest = part;
    part.direct = f->direct;
    part.len = direct_part(f, &part);
    rest.len -= part.len;
    rest.buffer_offset += part.len;
    rest.file_offset += part.len;
    size_t done = *err ? 0 : gpunvme_transfer_bounced(b, &part, result, err);
    if (!*err && done == part.len && rest.len)
        done += move_cached(f, b, &rest, result, err);
    gpunvme_use_end(b);
    return done;
}
