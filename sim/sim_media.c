/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provides the media of a namespace: a shared mapping of an image file or of
 * anonymous memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "sim/sim_internal.h"
#include "support/file_lock.h"
#include "support/page.h"

/* Returns true for a regular file on tmpfs, but not for a device node on it. */
static bool is_in_memory(int fd)
{
    struct statfs fs;
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && fstatfs(fd, &fs) == 0 &&
           (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

static int open_image(struct sim_ns *ns, const struct sim_ns_config *cfg, uint64_t *bytes)
{
    ns->fd = open(cfg->path, (cfg->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (ns->fd < 0)
        return -errno;
    /* Two writers that do not know of each other would corrupt the image. */
    int rc = file_lock(ns->fd, cfg->read_only || cfg->shared ? LOCK_SH : LOCK_EX);
    if (rc)
        return rc;
    off_t end = lseek(ns->fd, 0, SEEK_END);
    if (end < 0)
        return -errno;
    if (cfg->bytes > (uint64_t)end)
        return -EINVAL;
    *bytes = cfg->bytes ? cfg->bytes : (uint64_t)end;
    ns->is_file = true;
    ns->grows = cfg->bytes == 0;
    ns->in_memory = is_in_memory(ns->fd);
    return 0;
}

static int media_open_memory(struct sim_ns *ns, const struct sim_ns_config *cfg, uint64_t *bytes)
{
    *bytes = cfg->bytes;
    ns->fd = memfd_create("sim-media", MFD_CLOEXEC);
    if (ns->fd < 0)
        return -errno;
    return ftruncate(ns->fd, (off_t)cfg->bytes) == 0 ? 0 : -errno;
}

/* Limits of the address space after a file, into which it may grow. */
#define ROOM_FACTOR 7u
#define ROOM_MAX    ((size_t)1 << 40)

static void *map_bytes(struct sim_ns *ns, size_t bytes)
{
    int prot = PROT_READ | (ns->read_only ? 0 : PROT_WRITE);

    ns->mapped = bytes;
    return mmap(NULL, bytes, prot, MAP_SHARED, ns->fd, 0);
}

static int map_media(struct sim_ns *ns)
{
    size_t room = ns->len < ROOM_MAX / ROOM_FACTOR ? ROOM_FACTOR * ns->len : ROOM_MAX;
    void *base = ns->grows ? map_bytes(ns, ns->len + room) : MAP_FAILED;

    if (base == MAP_FAILED)
        base = map_bytes(ns, ns->len);
    sim_copy_guard();
    if (base == MAP_FAILED)
        return -errno;
    madvise(base, ns->len, MADV_HUGEPAGE); /* optional: large copies are faster */
    ns->base = base;
    return 0;
}

int sim_media_open(struct sim_ns *ns, const struct sim_ns_config *cfg)
{
    uint64_t bytes = cfg->bytes;
    int rc;

    ns->fd = -1;
    ns->lba_size = cfg->lba_size ? cfg->lba_size : 4096;
    if (ns->lba_size != 512 && ns->lba_size != 4096)
        return -EINVAL;
    ns->lba_shift = ns->lba_size == 512 ? 9 : 12;
    ns->read_only = cfg->read_only;
    rc = cfg->path ? open_image(ns, cfg, &bytes) : media_open_memory(ns, cfg, &bytes);
    ns->lbas = bytes >> ns->lba_shift;
    ns->len = page_whole(bytes);
    if (rc == 0 && !ns->lbas)
        rc = -EINVAL;
    if (rc == 0)
        rc = map_media(ns);
    if (rc)
        sim_media_close(ns);
    return rc;
}

void sim_media_close(struct sim_ns *ns)
{
    if (ns->base) {
        if (!ns->read_only && ns->is_file)
            msync(ns->base, ns->len, MS_SYNC);
        munmap(ns->base, ns->mapped);
    }
    ns->base = NULL;
    if (ns->fd >= 0)
        close(ns->fd);
    ns->fd = -1;
}

void sim_media_refresh(struct sim_ns *ns)
{
    size_t old = ns->len, most = ns->mapped;

    if (!ns->grows || ns->fixed)
        return;
    off_t end = lseek(ns->fd, 0, SEEK_END);
    if (end <= 0 || (uint64_t)end <= old || (uint64_t)end > most)
        return;
    uint64_t lbas = (uint64_t)end >> ns->lba_shift;
    uint64_t bytes = lbas << ns->lba_shift;
    if (lbas <= ns->lbas)
        return;
    ns->len = page_whole(bytes);
    madvise(ns->base + old, ns->len - old, MADV_HUGEPAGE); /* optional, as above */
    ns->lbas = lbas;
}

/* Copies by calls on the file, which give an error where an access would raise a signal. */
static int media_move(const struct sim_ns *ns, bool write, const unsigned char *media, void *data,
                      size_t len)
{
    off_t offset = media - ns->base;

    for (size_t done = 0; done < len;) {
        char *at = (char *)data + done;
        ssize_t n = write ? pwrite(ns->fd, at, len - done, offset + (off_t)done)
                          : pread(ns->fd, at, len - done, offset + (off_t)done);

        if (n <= 0)
            return n ? -errno : -EIO; /* the file was truncated */
        done += (size_t)n;
    }
    return 0;
}

/* Reads the file if its mapping fails, which gives data or the error. */
uint16_t sim_media_read(const struct sim_ns *ns, const unsigned char *media, void *to, size_t len)
{
    if (sim_copy_to_target(to, media, len) || media_move(ns, false, media, to, len) == 0)
        return NVME_OK;
    return NVME_ERR_UNRECOVERED_READ;
}

/*
 * Returns true if the file has become shorter. Data is then lost, and a write
 * would hide that by extending the file.
 */
bool sim_media_is_shrunk(const struct sim_ns *ns)
{
    struct stat st;

    return ns->is_file && fstat(ns->fd, &st) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size < ns->lbas << ns->lba_shift;
}

uint16_t sim_media_write(const struct sim_ns *ns, unsigned char *media, const void *from,
                         size_t len)
{
    if (sim_copy_from_target(media, from, len))
        return NVME_OK;
    if (sim_media_is_shrunk(ns))
        return NVME_ERR_WRITE_FAULT;
    int err = media_move(ns, true, media, (void *)from, len);
    if (err == -ENOSPC || err == -EDQUOT)
        return NVME_ERR_CAPACITY;
    return err ? NVME_ERR_WRITE_FAULT : NVME_OK;
}

/* Punches a hole, which frees memory that is not pinned. */
static bool punch(struct sim_ns *ns, uint64_t offset, uint64_t bytes)
{
    const uint64_t worth_it = 1 << 20;

    if (ns->pinned || bytes < worth_it)
        return false;
    return fallocate(ns->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                     (off_t)bytes) == 0;
}

uint16_t sim_media_zero(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    uint64_t offset = lba << ns->lba_shift, bytes = lbas << ns->lba_shift;
    static const unsigned char zeros[NVME_PAGE_SIZE];
    uint16_t st = NVME_OK;

    if (punch(ns, offset, bytes))
        return NVME_OK;
    for (uint64_t done = 0; done < bytes && st == NVME_OK; done += ns->lba_size)
        st = sim_media_write(ns, ns->base + offset + done, zeros, ns->lba_size);
    return st;
}
