/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps host memory behind a descriptor, allocates its pages, and releases it.
 * Finds the parts of segments that a buffer touches, and holds their handles.
 */
#include "cuda/gq_host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/gq_segments.h"

#define PAGE_MASK     ((uint64_t)NVME_PAGE_SIZE - 1)
#define POPULATE_STEP (16ull << 20) /* bytes; takes some milliseconds */

#ifndef MADV_POPULATE_WRITE /* for glibc before 2.35 */
#define MADV_POPULATE_WRITE 23
#endif

int gq_host_import(const struct gq_mem *mem, struct gq_import *out)
{
    uint64_t start = mem->offset & ~PAGE_MASK;
    uint64_t end = mem->offset + mem->len;
    struct stat st;
    void *addr;
    int fd;

    if (end < mem->offset || end > INT64_MAX - PAGE_MASK)
        return -EINVAL;
    if (fstat(mem->fd, &st))
        return -errno;
    if ((uint64_t)st.st_size < end)
        return -EFAULT;
    end = (end + PAGE_MASK) & ~PAGE_MASK;
    fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    addr = mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
    if (addr == MAP_FAILED) {
        int err = -errno;

        close(fd);
        return err == -ENOMEM ? err : -EFAULT;
    }
    out->head = mem->offset - start;
    out->base = (uint64_t)(uintptr_t)addr;
    out->mapping = addr;
    out->map_len = end - start;
    out->mem = (struct nvme_mem){.addr = addr, .len = out->map_len, .fd = fd, .fd_offset = start};
    return 0;
}

/*
 * Allocates the file's blocks instead, since kernels before 5.14 do not know
 * MADV_POPULATE_WRITE. Allocates nothing behind the file's last page, nor
 * behind its end, where seals may forbid it.
 */
static int give_blocks(const struct gq_import *imp, uint64_t at, uint64_t len)
{
    uint64_t start = imp->mem.fd_offset + at, end = start + len, size;
    struct stat st;

    if (fstat(imp->mem.fd, &st))
        return -1;
    size = (uint64_t)st.st_size;
    if (end >= size + NVME_PAGE_SIZE)
        return -1;
    end = end < size ? end : size;
    return fallocate(imp->mem.fd, FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)(end - start));
}

static int populate(const struct gq_import *imp, uint64_t at, uint64_t len)
{
    int err = madvise((char *)imp->mapping + at, len, MADV_POPULATE_WRITE);

    return err && errno == EINVAL ? give_blocks(imp, at, len) : err;
}

/*
 * Allocates in steps, because other mappings of this process wait during each
 * step.
 */
int gq_host_populate(const struct gq_import *imp)
{
    int err = 0;

    for (uint64_t at = 0; at < imp->map_len && !err; at += POPULATE_STEP) {
        uint64_t left = imp->map_len - at;

        err = populate(imp, at, left < POPULATE_STEP ? left : POPULATE_STEP);
    }
    return err ? -ENOMEM : 0;
}

int gq_host_alloc(size_t len, struct gq_import *out)
{
    int fd = memfd_create("gq-staging", MFD_CLOEXEC), err;

    *out = (struct gq_import){.mem.fd = -1};
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)len))
        err = -errno;
    else
        err = gq_host_import(&(struct gq_mem){.kind = GQ_MEM_FD, .fd = fd, .len = len}, out);
    close(fd);
    return err;
}

void gq_host_release(struct gq_import *imp)
{
    if (!imp->mapping)
        return;
    munmap(imp->mapping, imp->map_len);
    if (imp->mem.fd >= 0)
        close(imp->mem.fd);
}

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
 * Stores the part of a segment that lies in [from, to). `at`, `from` and `to`
 * count from the start of the first segment.
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
