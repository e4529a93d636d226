/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps device memory from its exported handle, and holds the handle. */
#include "blockdev/vfio/device_mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/pci/pci.h"
#include "blockdev/pci/pci_sysfs.h"

#ifndef DMA_BUF_MAGIC /* for headers before Linux 5.10 */
#define DMA_BUF_MAGIC 0x444d4142
#endif

#define IVSHMEM_VENDOR 0x1af4
#define IVSHMEM_DEVICE 0x1110

#define KERNEL_ENOTSUPP 524 /* an error of the kernel that has no name in errno.h */

struct provider {
    const char *name;
    unsigned long magic; /* of the file system of its handles (statfs(2)) */
    /* NULL, or false with one line in `why` if the handle is refused */
    bool (*takes)(int fd, struct reason *why);
};

/* --- dma-buf --------------------------------------------------------------------------------- */

/*
 * NVIDIA's driver names its exporter nv_dmabuf; older versions use the name of
 * their module.
 */
bool device_mem_exporter_stays(const char *fdinfo)
{
    static const char *const exporters[] = {"nv_dmabuf", "nvidia"};
    const char *name = strstr(fdinfo, "exp_name:");

    if (!name)
        return false;
    name += strlen("exp_name:");
    name += strspn(name, " \t");
    for (size_t i = 0; i < sizeof(exporters) / sizeof(exporters[0]); i++) {
        size_t len = strlen(exporters[i]);

        if (strcspn(name, "\n") == len && !strncmp(name, exporters[i], len))
            return true;
    }
    return false;
}

#define FDINFO_LEN 512

/* Stores the text of /proc/self/fdinfo/FD, or "". */
static void device_mem_read_fdinfo(int fd, char text[FDINFO_LEN])
{
    char path[64];
    ssize_t n = -1;
    int info;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    info = open(path, O_RDONLY | O_CLOEXEC);
    if (info >= 0) {
        n = read(info, text, FDINFO_LEN - 1);
        close(info);
    }
    text[n > 0 ? n : 0] = '\0';
}

static bool dma_buf_takes(int fd, struct reason *why)
{
    char text[FDINFO_LEN];

    device_mem_read_fdinfo(fd, text);
    if (device_mem_exporter_stays(text))
        return true;
    return reason_set(why, false,
                      "dma-buf: its exporter is not known to keep memory in place (only NVIDIA's)");
}

/* --- Mapping --------------------------------------------------------------------------------- */

static const struct provider providers[] = {
    {.name = "dma-buf", .magic = DMA_BUF_MAGIC, .takes = dma_buf_takes},
    {.name = "BAR", .magic = SYSFS_MAGIC},
};

static bool is_in_sysfs(int fd)
{
    struct statx file, sys;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &file) == 0 &&
           statx(AT_FDCWD, "/sys", AT_STATX_DONT_SYNC, 0, &sys) == 0 &&
           file.stx_dev_major == sys.stx_dev_major && file.stx_dev_minor == sys.stx_dev_minor;
}

static bool is_dma_buf(int fd)
{
    char text[FDINFO_LEN];

    device_mem_read_fdinfo(fd, text);
    return strstr(text, "\nexp_name:") != NULL;
}

/*
 * A client may send a file of a file system that never answers statfs(2), for
 * example of its own FUSE server. Two checks that the kernel answers by itself
 * therefore precede that call.
 */
static const struct provider *provider_of(int fd)
{
    struct statfs fs;

    if (fd < 0 || (!is_in_sysfs(fd) && !is_dma_buf(fd)) || fstatfs(fd, &fs))
        return NULL;
    for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
        if ((unsigned long)fs.f_type == providers[i].magic)
            return &providers[i];
    }
    return NULL;
}

bool device_mem_is_handle(int fd)
{
    return provider_of(fd) != NULL;
}

/*
 * A BAR has no read(2), so the call returns EINVAL. It returns ENODEV after sysfs
 * has removed the file.
 */
bool device_mem_is_gone(int fd)
{
    char byte;

    return pread(fd, &byte, sizeof(byte), 0) < 0 && errno == ENODEV;
}

static int refuse_mmap(const struct provider *p, int err, struct reason *why)
{
    if (err == KERNEL_ENOTSUPP)
        return reason_set(
            why, -EFAULT,
            "%s: the driver does not map it (error 524); NVIDIA's does from 610.43 on", p->name);
    return reason_set(why, err == ENOMEM ? -ENOMEM : -EFAULT, "%s: mmap: %s", p->name,
                      strerror(err));
}

/*
 * Duplicates fd to a descriptor below `drive`: F_DUPFD takes the lowest free
 * number.
 */
static int device_mem_hold(int fd, int drive)
{
    int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (held < drive)
        return held;
    close(held);
    return -1;
}

/* Returns the provider of the part, or NULL with one line that says why it has none. */
static const struct provider *accept_part(const struct nvme_mem_part *part, int *rc,
                                          struct reason *why)
{
    const struct provider *p = provider_of(part->fd);

    *rc = -EFAULT;
    if (!p)
        *rc = reason_set(why, -EFAULT, "no dma-buf of the memory was exported");
    else if (!part->len || (part->len | part->fd_offset) % NVME_PAGE_SIZE)
        *rc = reason_set(why, -EINVAL, "%s: not whole pages", p->name);
    else if (!p->takes || p->takes(part->fd, why))
        return p;
    return NULL;
}

static int accept_parts(const struct nvme_mem_part *parts, size_t n, const struct provider **p,
                        struct reason *why)
{
    int rc = 0;

    if (!n || n > DEVICE_MEM_PARTS)
        return reason_set(why, -EINVAL, "%zu parts: 1 to %u are possible", n, DEVICE_MEM_PARTS);
    for (size_t i = 0; i < n; i++) {
        *p = accept_part(&parts[i], &rc, why);
        if (!*p)
            return rc;
    }
    return 0;
}

static bool hold_parts(struct device_mem *m, const struct nvme_mem_part *parts, size_t n, int drive)
{
    for (size_t i = 0; i < n; i++) {
        int fd = device_mem_hold(parts[i].fd, drive);

        if (fd < 0)
            return false;
        m->fds[m->n_fds++] = fd;
    }
    return true;
}

static size_t whole_len(const struct nvme_mem_part *parts, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++)
        len += parts[i].len;
    return len;
}

void *device_mem_join(const struct nvme_mem_part *parts, size_t n, size_t *bad)
{
    size_t len = whole_len(parts, n), at = 0;
    char *range = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *bad = 0;
    for (size_t i = 0; i < n && range != MAP_FAILED; at += parts[i++].len) {
        if (mmap(range + at, parts[i].len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 parts[i].fd, (off_t)parts[i].fd_offset) != MAP_FAILED)
            continue;
        int err = errno;
        munmap(range, len);
        errno = err;
        *bad = i;
        return MAP_FAILED;
    }
    return range;
}

static int map_parts(const struct nvme_mem_part *parts, size_t n, int drive,
                     struct device_mem **out, struct reason *why)
{
    const struct provider *p = NULL;
    size_t bad;
    int rc = accept_parts(parts, n, &p, why);
    struct device_mem *m = rc ? NULL : calloc(1, sizeof(*m) + n * sizeof(m->fds[0]));

    if (!m)
        return rc ? rc : reason_set(why, -ENOMEM, "out of memory");
    m->len = whole_len(parts, n);
    m->addr = device_mem_join(parts, n, &bad);
    if (m->addr == MAP_FAILED) {
        rc = refuse_mmap(provider_of(parts[bad].fd), errno, why);
        free(m);
        return rc;
    }
    if (!hold_parts(m, parts, n, drive)) {
        device_mem_unmap(m);
        return reason_set(why, -ENOSPC, "too few descriptors are free (ulimit -n)");
    }
    reason_set(why, 0, "%s", p->name);
    *out = m;
    return 0;
}

int device_mem_map(const struct nvme_mem *mem, int drive, struct device_mem **out,
                   struct reason *why)
{
    const struct nvme_mem_part whole = {
        .fd = mem->fd, .fd_offset = mem->fd_offset, .len = mem->len};

    if (!mem->parts)
        return map_parts(&whole, 1, drive, out, why);
    return map_parts(mem->parts, mem->n_parts, drive, out, why);
}

void device_mem_unmap(struct device_mem *m)
{
    munmap(m->addr, m->len);
    for (size_t i = 0; i < m->n_fds; i++)
        close(m->fds[i]);
    free(m);
}

/* --- BARs ------------------------------------------------------------------------------------ */

static bool is_ivshmem(const char *root, const char *bdf)
{
    int64_t vendor, device;

    return pci_sysfs_number(&vendor, 0, "%s/sys/bus/pci/devices/%s/vendor", root, bdf) == 0 &&
           pci_sysfs_number(&device, 0, "%s/sys/bus/pci/devices/%s/device", root, bdf) == 0 &&
           vendor == IVSHMEM_VENDOR && device == IVSHMEM_DEVICE;
}

int device_mem_open_bar(const char *root, const char *bdf, struct reason *why)
{
    char path[PATH_MAX], full[NVME_BDF_LEN];
    int fd;

    if (pci_parse(bdf, full))
        return reason_set(why, -EINVAL, "%s is no PCI address", bdf);
    if (!is_ivshmem(root, full))
        return reason_set(why, -ENODEV, "no ivshmem device of QEMU is at %s", full);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/resource2", root, full);
    fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 ? fd : reason_set(why, -errno, "%s: %s", path, strerror(errno));
}
