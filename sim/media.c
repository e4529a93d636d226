/* Where a namespace's bytes are: an image file or anonymous memory, mapped shared. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "blockdev/file_lock.h"
#include "sim/internal.h"

static bool is_in_memory(int fd)
{
    struct statfs st;

    return fstatfs(fd, &st) == 0 && (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC);
}

static int open_image(struct sim_ns *ns, const struct sim_ns_config *cfg, uint64_t *bytes)
{
    ns->fd = open(cfg->path, (cfg->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (ns->fd < 0)
        return -errno;
    /* Readers share; a writer excludes everyone, or two file systems would corrupt the image. */
    int rc = bd_file_lock(ns->fd, cfg->read_only ? LOCK_SH : LOCK_EX);
    if (rc)
        return rc;
    off_t end = lseek(ns->fd, 0, SEEK_END);
    if (end < 0)
        return -errno;
    if (cfg->bytes > (uint64_t)end)
        return -EINVAL;
    *bytes = cfg->bytes ? cfg->bytes : (uint64_t)end;
    ns->is_file = true;
    ns->in_memory = is_in_memory(ns->fd);
    return 0;
}

static int open_memory(struct sim_ns *ns, const struct sim_ns_config *cfg, uint64_t *bytes)
{
    *bytes = cfg->bytes;
    ns->fd = memfd_create("sim-media", MFD_CLOEXEC);
    if (ns->fd < 0)
        return -errno;
    return ftruncate(ns->fd, (off_t)cfg->bytes) == 0 ? 0 : -errno;
}

static int map_media(struct sim_ns *ns)
{
    int prot = PROT_READ | (ns->read_only ? 0 : PROT_WRITE);
    void *base = mmap(NULL, ns->len, prot, MAP_SHARED, ns->fd, 0);

    if (base == MAP_FAILED)
        return -errno;
    madvise(base, ns->len, MADV_HUGEPAGE); /* a wish: large copies run faster */
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
        rc = cfg->path ? open_image(ns, cfg, &bytes) : open_memory(ns, cfg, &bytes);
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
        munmap(ns->base, ns->len);
    }
    ns->base = NULL;
    if (ns->fd >= 0)
        close(ns->fd);
    ns->fd = -1;
}

/*
 * A driver may read and write the same LBA at one time; what it then reads is undefined, and that
 * is no mistake. ThreadSanitizer would call it one, so in its build the media's side of a copy is
 * hidden from it and the target's side, where a race is the driver's, is reported by hand.
 */
#if defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#endif

#ifdef SIM_TSAN
void __tsan_read_range(void *addr, unsigned long len);
void __tsan_write_range(void *addr, unsigned long len);

__attribute__((no_sanitize("thread"))) static void copy_unseen(void *to, const void *from,
                                                               size_t len)
{
    volatile unsigned char *d = to;
    const volatile unsigned char *s = from;

    for (; len >= 8 && !((uintptr_t)d & 7) && !((uintptr_t)s & 7); len -= 8, d += 8, s += 8)
        *(volatile uint64_t *)d = *(const volatile uint64_t *)s;
    while (len--)
        *d++ = *s++;
}

void sim_copy_to_target(void *target, const void *media, size_t len)
{
    __tsan_write_range(target, len);
    copy_unseen(target, media, len);
}

void sim_copy_from_target(void *media, const void *target, size_t len)
{
    __tsan_read_range((void *)(uintptr_t)target, len);
    copy_unseen(media, target, len);
}
#else
void sim_copy_to_target(void *target, const void *media, size_t len)
{
    memcpy(target, media, len);
}

void sim_copy_from_target(void *media, const void *target, size_t len)
{
    memcpy(media, target, len);
}
#endif

/* A hole gives the memory back, but pinned pages must stay the ones the device knows. */
static bool punch(struct sim_ns *ns, uint64_t offset, uint64_t bytes)
{
    const uint64_t worth_it = 1 << 20;

    if (ns->pinned || bytes < worth_it)
        return false;
    return fallocate(ns->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                     (off_t)bytes) == 0;
}

void sim_media_zero(struct sim_ns *ns, uint64_t lba, uint64_t lbas)
{
    uint64_t offset = lba << ns->lba_shift, bytes = lbas << ns->lba_shift;
    static const unsigned char zeros[NVME_PAGE_SIZE];

    if (ns->null_media || punch(ns, offset, bytes))
        return;
    for (uint64_t done = 0; done < bytes; done += ns->lba_size)
        sim_copy_from_target(ns->base + offset + done, zeros, ns->lba_size);
}

void sim_media_flush(struct sim_ns *ns)
{
    if (ns->track)
        sim_cache_flush(ns);
    if (ns->syncs)
        fdatasync(ns->fd);
}
