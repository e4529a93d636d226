/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the parts of segments that a buffer touches, and holds their handles. */
#include "cuda/gq_segments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE_MASK ((uint64_t)NVME_PAGE_SIZE - 1)

int gq_segments_check(const struct gq_mem *mem, uint64_t *len)
{
    *len = 0;
    if (!mem->segments || !mem->n_segments || mem->n_segments > GQ_SEGMENTS)
        return -EINVAL;
    for (unsigned i = 0; i < mem->n_segments; i++) {
        const struct gq_segment *s = &mem->segments[i];

        if (!s->len || (s->len | s->offset) & PAGE_MASK || s->len > INT64_MAX - *len ||
            s->offset > INT64_MAX - s->len)
            return -EINVAL;
        *len += s->len;
    }
    return mem->offset <= *len && mem->len <= *len - mem->offset ? 0 : -EFAULT;
}

/*
 * Stores the part of a segment at `at`, counted from the first segment, that is
 * in [from, to).
 */
static int segment_part_add(const struct gq_segment *s, uint64_t at, uint64_t from, uint64_t to,
                            bool exported, struct gq_import *out)
{
    uint64_t start = at > from ? at : from, end = at + s->len < to ? at + s->len : to;
    int fd = fcntl(exported ? s->exported : s->fd, F_DUPFD_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    out->parts[out->mem.n_parts++] = (struct nvme_mem_part){
        .fd = fd, .fd_offset = s->offset + (start - at), .len = (size_t)(end - start)};
    return 0;
}

static int add_parts(const struct gq_mem *mem, uint64_t from, uint64_t to, bool exported,
                     struct gq_import *out)
{
    uint64_t at = 0;
    int err = 0;

    for (unsigned i = 0; i < mem->n_segments && at < to && !err; at += mem->segments[i++].len) {
        if (at + mem->segments[i].len > from)
            err = segment_part_add(&mem->segments[i], at, from, to, exported, out);
    }
    return err;
}

static bool all_exported(const struct gq_mem *mem)
{
    for (unsigned i = 0; i < mem->n_segments; i++) {
        if (mem->segments[i].exported < 0)
            return false;
    }
    return true;
}

int gq_segments_describe(const struct gq_mem *mem, uint64_t base, bool exported,
                         struct gq_import *out)
{
    uint64_t from = mem->offset & ~PAGE_MASK;
    uint64_t to = (mem->offset + mem->len + PAGE_MASK) & ~PAGE_MASK;
    int err;

    out->head = mem->offset - from;
    out->base = base + from;
    out->mem = (struct nvme_mem){.device = out->base, .len = (size_t)(to - from), .fd = -1};
    out->parts = NULL;
    if (exported && !all_exported(mem))
        return 0;
    out->parts = calloc(mem->n_segments, sizeof(*out->parts));
    if (!out->parts)
        return -ENOMEM;
    out->mem.parts = out->parts;
    err = add_parts(mem, from, to, exported, out);
    if (err)
        gq_segments_forget(out);
    return err;
}

void gq_segments_forget(struct gq_import *imp)
{
    for (size_t i = 0; i < imp->mem.n_parts; i++)
        close(imp->parts[i].fd);
    free(imp->parts);
    imp->parts = NULL;
    imp->mem.parts = NULL;
    imp->mem.n_parts = 0;
}
