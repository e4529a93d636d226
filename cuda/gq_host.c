#include "cuda/gq_host.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_MASK ((uint64_t)NVME_PAGE_SIZE - 1)

#ifndef MADV_POPULATE_WRITE /* of glibc before 2.35 */
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

/* Kernels before 5.14 do not know the advice: there the file is given its blocks, as yet unmapped.
 */
int gq_host_populate(const struct gq_import *imp)
{
    int err = madvise(imp->mapping, imp->map_len, MADV_POPULATE_WRITE) ? errno : 0;

    if (err == EINVAL)
        err = fallocate(imp->mem.fd, FALLOC_FL_KEEP_SIZE, (off_t)imp->mem.fd_offset,
                        (off_t)imp->map_len)
                  ? errno
                  : 0;
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
    close(imp->mem.fd);
}
