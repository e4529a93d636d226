/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps device memory from its exported handle, and holds the handle. */
#include "blockdev/vfio/device_mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
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
    bool (*takes)(int fd, char *why, size_t len);
};

/* --- dma-buf --------------------------------------------------------------------------------- */

bool device_mem_exporter_stays(const char *fdinfo)
{
    const char *name = strstr(fdinfo, "exp_name:");

    if (!name)
        return false;
    name += strlen("exp_name:");
    name += strspn(name, " \t");
    return strcspn(name, "\n") == strlen("nvidia") && !strncmp(name, "nvidia", strlen("nvidia"));
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

static bool dma_buf_takes(int fd, char *why, size_t len)
{
    char text[FDINFO_LEN];

    device_mem_read_fdinfo(fd, text);
    if (device_mem_exporter_stays(text))
        return true;
    snprintf(why, len,
             "dma-buf: its exporter is not known to keep memory in place (only NVIDIA's)");
    return false;
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

static int refuse_mmap(const struct provider *p, int err, char *said, size_t len)
{
    if (err == KERNEL_ENOTSUPP)
        return nvme_why(said, len, -EFAULT,
                        "%s: the driver does not map it (error 524); NVIDIA's does from 610.43 on",
                        p->name);
    return nvme_why(said, len, err == ENOMEM ? -ENOMEM : -EFAULT, "%s: mmap: %s", p->name,
                    strerror(err));
}

/*
 * Duplicates fd to a descriptor below `drive`: F_DUPFD takes the lowest free
 * number.
 */
static int hold(int fd, int drive)
{
    int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (held < drive)
        return held;
    close(held);
    return -1;
}

int device_mem_map(const struct nvme_mem *mem, int drive, struct device_mem *out, char *said,
                   size_t len)
{
    const struct provider *p = provider_of(mem->fd);

    *out = (struct device_mem){.len = mem->len, .fd = -1};
    if (!p)
        return nvme_why(said, len, -EFAULT, "no dma-buf of the memory was exported");
    if (!mem->len || (mem->len | mem->fd_offset) % NVME_PAGE_SIZE)
        return nvme_why(said, len, -EINVAL, "%s: not whole pages", p->name);
    if (p->takes && !p->takes(mem->fd, said, len))
        return -EFAULT;
    out->addr =
        mmap(NULL, mem->len, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd, (off_t)mem->fd_offset);
    if (out->addr == MAP_FAILED)
        return refuse_mmap(p, errno, said, len);
    out->fd = hold(mem->fd, drive);
    if (out->fd < 0) {
        munmap(out->addr, out->len);
        return nvme_why(said, len, -ENOSPC, "too few descriptors are free (ulimit -n)");
    }
    snprintf(said, len, "%s", p->name);
    return 0;
}

void device_mem_unmap(struct device_mem *m)
{
    munmap(m->addr, m->len);
    close(m->fd);
}

/* --- BARs ------------------------------------------------------------------------------------ */

static bool is_ivshmem(const char *root, const char *bdf)
{
    int64_t vendor, device;

    return pci_sysfs_number(&vendor, 0, "%s/sys/bus/pci/devices/%s/vendor", root, bdf) == 0 &&
           pci_sysfs_number(&device, 0, "%s/sys/bus/pci/devices/%s/device", root, bdf) == 0 &&
           vendor == IVSHMEM_VENDOR && device == IVSHMEM_DEVICE;
}

int device_mem_open_bar(const char *root, const char *bdf, char *why, size_t len)
{
    char path[PATH_MAX], full[NVME_BDF_LEN];
    int fd;

    if (pci_parse(bdf, full))
        return nvme_why(why, len, -EINVAL, "%s is no PCI address", bdf);
    if (!is_ivshmem(root, full))
        return nvme_why(why, len, -ENODEV, "no ivshmem device of QEMU is at %s", full);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/resource2", root, full);
    fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 ? fd : nvme_why(why, len, -errno, "%s: %s", path, strerror(errno));
}
