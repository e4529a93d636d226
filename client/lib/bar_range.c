/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocates ranges of a device's memory: a lock of the file's bytes occupies a range. */
#include "client/lib/bar_range.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool bar_range_is_set(void)
{
    const char *address = getenv("GPUNVME_CPU_MEMORY");

    return address && *address;
}

/*
 * Locks `len` bytes at *at, or at the first place behind it that is free. The lock belongs to the
 * open file description, so that it lasts until the last descriptor and mapping have ended.
 */
static int bar_range_lock(int fd, uint64_t *at, uint64_t len, uint64_t size, uint64_t page)
{
    while (len <= size && *at <= size - len) {
        struct flock lock = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)*at, .l_len = (off_t)len};

        if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
            return 0;
        if (errno != EAGAIN && errno != EACCES)
            return -errno;
        if (fcntl(fd, F_OFD_GETLK, &lock) != 0)
            return -errno;
        if (lock.l_type == F_UNLCK) /* the other lock has ended meanwhile */
            continue;
        if (lock.l_len == 0) /* up to the end of the file */
            return -ENOMEM;
        *at = ((uint64_t)lock.l_start + (uint64_t)lock.l_len + page - 1) / page * page;
    }
    return -ENOMEM;
}

static int bar_range_take(int fd, size_t len, struct bar_range *out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat st;
    int err;

    if (fstat(fd, &st) != 0)
        return -errno;
    *out = (struct bar_range){.fd = fd};
    if (len > INT64_MAX - page)
        return -ENOMEM;
    err = bar_range_lock(fd, &out->offset, (len + page - 1) / page * page, (uint64_t)st.st_size,
                         page);
    if (err)
        return err;
    out->addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)out->offset);
    return out->addr == MAP_FAILED ? -errno : 0;
}

int bar_range_alloc(const char *path, size_t len, struct bar_range *out)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), err;

    if (fd < 0)
        return -errno;
    err = bar_range_take(fd, len, out);
    if (err)
        close(fd);
    return err;
}

int bar_range_alloc_set(size_t len, struct bar_range *out)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2", getenv("GPUNVME_CPU_MEMORY"));
    return bar_range_alloc(path, len, out);
}
