/* SPDX-License-Identifier: BSD-2-Clause */
/* Media of a namespace: an image file or anonymous memory, mapped shared. */
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
    int rc = 0;

    ns->fd = -1;
    ns->lba_size = cfg->lba_size ? cfg->lba_size : 4096;
    if (ns->lba_size != 512 && ns->lba_size != 4096)
        return -EINVAL;
    ns->lba_shift = ns->lba_size == 512 ? 9 : 12;
    ns->read_only = cfg->read_only;
    ns->null_media = cfg->null_media;
    if (!cfg->null_media)
        rc = cfg->path ? open_image(ns, cfg, &bytes) : media_open_memory(ns, cfg, &bytes);
    ns->lbas = bytes >> ns->lba_shift;
    ns->len = (size_t)((bytes + NVME_PAGE_SIZE - 1) & ~(uint64_t)(NVME_PAGE_SIZE - 1));
    if (rc == 0 && !ns->lbas)
        rc = -EINVAL;
    if (rc == 0 && !ns->null_media)
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
    ns->len = (size_t)((bytes + NVME_PAGE_SIZE - 1) & ~(uint64_t)(NVME_PAGE_SIZE - 1));
    madvise(ns->base + old, ns->len - old, MADV_HUGEPAGE); /* optional, as above */
    ns->lbas = lbas;
}

static int media_read_file(int fd, uint64_t offset, unsigned char *to, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, to + done, len - done, (off_t)(offset + done));

        if (n <= 0)
            return n ? -errno : -EIO; /* the file was truncated */
        done += (size_t)n;
    }
    return 0;
}

static int media_write_file(int fd, uint64_t offset, const unsigned char *from, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, from + done, len - done, (off_t)(offset + done));

        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

/* Reads the file if its mapping fails, which gives data or the error. */
uint16_t sim_media_read(const struct sim_ns *ns, uint64_t offset, void *to, size_t len)
{
    if (sim_copy_to_target(to, ns->base + offset, len) ||
        media_read_file(ns->fd, offset, to, len) == 0)
        return NVME_OK;
    return NVME_ERR_UNRECOVERED_READ;
}

/*
 * Returns whether the file has become shorter. Data is then lost, and a write
 * would hide that by extending the file.
 */
bool sim_media_is_shrunk(const struct sim_ns *ns)
{
    struct stat st;

    return ns->is_file && fstat(ns->fd, &st) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size < ns->lbas << ns->lba_shift;
}

uint16_t sim_media_write(const struct sim_ns *ns, uint64_t offset, const void *from, size_t len)
{
    if (sim_copy_from_target(ns->base + offset, from, len))
        return NVME_OK;
    if (sim_media_is_shrunk(ns))
        return NVME_ERR_WRITE_FAULT;
    int err = media_write_file(ns->fd, offset, from, len);
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

    if (ns->null_media || punch(ns, offset, bytes))
        return NVME_OK;
    for (uint64_t done = 0; done < bytes && st == NVME_OK; done += ns->lba_size)
        st = sim_media_write(ns, offset + done, zeros, ns->lba_size);
    return st;
}

/*
 * Two places of an image file are watched: the start of its last page, and of
 * the last page that had data when the file was opened. A truncation before
 * them zeroes them, even one that was followed by an extension of the file. A
 * drive of which one has become zeros without a write of the driver has lost
 * data. A place that consists of zeros is not watched.
 */
#define TAIL_BYTES 512u

/* Finds the last page with data by bisection; 0 if the file has none. */
static uint64_t tail_find(const struct sim_ns *ns)
{
    off_t end = (off_t)(ns->lbas << ns->lba_shift);
    off_t data = lseek(ns->fd, 0, SEEK_DATA);

    /* `data` has data, and nothing from `end` on has. */
    while (data >= 0 && end - data > (off_t)NVME_PAGE_SIZE) {
        off_t middle = data + (end - data) / 2;
        off_t found = lseek(ns->fd, middle, SEEK_DATA);
        if (found >= 0 && found < end)
            data = found;
        else
            end = middle;
    }
    return data < 0 ? 0 : (uint64_t)data / NVME_PAGE_SIZE * NVME_PAGE_SIZE;
}

/* Stores the offsets of the places. */
static void tail_places(const struct sim_ns *ns, uint64_t at[SIM_TAIL_PLACES])
{
    uint64_t pages = (ns->lbas << ns->lba_shift) / NVME_PAGE_SIZE;

    at[0] = pages ? (pages - 1) * NVME_PAGE_SIZE : 0;
    at[1] = ns->tail.data_at;
}

/* Lock held. A file that became shorter is reported elsewhere. */
static void check_tail(struct sim_ns *ns)
{
    static const unsigned char zeros[TAIL_BYTES];
    unsigned char bytes[TAIL_BYTES];
    struct sim_tail *t = &ns->tail;
    uint64_t at[SIM_TAIL_PLACES];

    tail_places(ns, at);
    for (unsigned i = 0; t->watched && i < SIM_TAIL_PLACES; i++) {
        if (sim_media_read(ns, at[i], bytes, sizeof(bytes)) != NVME_OK)
            return;
        bool filled = memcmp(bytes, zeros, sizeof(bytes)) != 0;
        t->lost |= t->filled[i] && !filled;
        t->filled[i] = filled;
    }
}

void sim_tail_open(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->tail.lock);
    ns->tail.watched = ns->is_file && !ns->read_only;
    ns->tail.data_at = ns->tail.watched ? tail_find(ns) : 0;
    check_tail(ns);
    pthread_mutex_unlock(&ns->tail.lock);
}

bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    uint64_t begin = lba << ns->lba_shift, end = (lba + lbas) << ns->lba_shift;
    uint64_t at[SIM_TAIL_PLACES];
    bool overlaps = false;

    tail_places(ns, at);
    for (unsigned i = 0; i < SIM_TAIL_PLACES; i++)
        overlaps |= end > at[i] && begin < at[i] + TAIL_BYTES;
    if (!overlaps)
        return false;
    pthread_mutex_lock(&ns->tail.lock);
    check_tail(ns);
    return true;
}

void sim_tail_end(struct sim_ns *ns)
{
    memset(ns->tail.filled, 0, sizeof(ns->tail.filled)); /* the driver may have written zeros */
    check_tail(ns);
    pthread_mutex_unlock(&ns->tail.lock);
}

void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    if (!sim_tail_begin(ns, lba, lbas))
        return;
    ns->tail.watched = false;
    sim_tail_end(ns);
}

bool sim_tail_is_lost(struct sim_ns *ns)
{
    pthread_mutex_lock(&ns->tail.lock);
    check_tail(ns);
    bool lost = ns->tail.lost;
    pthread_mutex_unlock(&ns->tail.lock);
    return lost;
}
