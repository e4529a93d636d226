/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes leases of extents, and the pages that leases share with their holders.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/queue/gq_abi.h"
#include "fusefs/daemon/lease/lease_internal.h"
#include "fusefs/daemon/state/daemon.h"
#include "support/page.h"

#define SUM_BLOCK 4096u /* bytes of data per checksum */

static struct gpunvme_lease_extent *extents_of(const struct lease *l)
{
    return (struct gpunvme_lease_extent *)((char *)l->page + GPUNVME_LEASE_EXTENTS_AT);
}

/*
 * Only this mapping writes to the memory, and the file keeps its size under the
 * mapping.
 */
static int seal(int fd)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

    return fcntl(fd, F_ADD_SEALS, seals) == 0 ? 0 : -errno;
}

/*
 * Replaces fd by a descriptor without write access. Without /proc, fd is kept:
 * the seals forbid writing.
 */
static int read_only(int fd)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int other = open(path, O_RDONLY | O_CLOEXEC);
    if (other < 0)
        return fd;
    close(fd);
    return other;
}

int lease_page_make(struct lease *l, uint64_t extents, uint64_t sums)
{
    uint64_t len = GPUNVME_LEASE_EXTENTS_AT + extents * sizeof(struct gpunvme_lease_extent) +
                   sums * sizeof(uint32_t);

    l->page_len = page_whole(len);
    int fd = memfd_create("gpunvme-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    void *at = MAP_FAILED;
    /*
     * Allocates all pages now, since a page that cannot be allocated at a fault
     * raises SIGBUS.
     */
    if (fallocate(fd, 0, 0, (off_t)l->page_len) == 0)
        at = mmap(NULL, l->page_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int err = at == MAP_FAILED ? -errno : seal(fd);
    if (!err) {
        l->page = at;
        l->page_fd = read_only(fd);
        __atomic_store_n(&l->page->state, GPUNVME_LEASE_VALID, __ATOMIC_RELEASE);
        return 0;
    }
    if (at != MAP_FAILED)
        munmap(at, l->page_len);
    close(fd);
    return err;
}

void lease_page_end(struct lease *l)
{
    if (!l->page)
        return;
    munmap(l->page, l->page_len);
    close(l->page_fd);
}

static void lease_extents_publish(struct lease *l, const struct gpu_extents *x)
{
    struct gpunvme_lease_extent *out = extents_of(l);

    for (size_t i = 0; i < x->count; i++)
        out[i] = (struct gpunvme_lease_extent){x->extents[i].offset, x->extents[i].lba};
}

/* --- Segments -------------------------------------------------------------------------------- */

/*
 * The caller holds the lock. Charges the user of l with n segments for l,
 * replacing the previous charge. Either ledger_left() has allowed n, or n is
 * less than that charge.
 */
static void count_for(struct leases *t, struct lease *l, uint32_t n)
{
    ledger_give(&t->segments, l->uid, l->segments);
    ledger_take(&t->segments, l->uid, n);
    l->segments = n;
}

void lease_extents_forget(struct leases *t, struct lease *l)
{
    count_for(t, l, 0);
}

/* The caller holds the lock. Returns the error for a lack of segments. */
static int count_error(const struct leases *t)
{
    bool none = t->segments.total - t->segments.of_root - t->segments.of_users == 0;

    return none ? -EBUSY : -EDQUOT;
}

/*
 * Replaces the charge of l by n segments, or by as many as its user has left.
 * Stores the error for a lack of more in *refused, and returns it if none is
 * left.
 */
static int take_segments(struct leases *t, struct lease *l, uint32_t n, int *refused)
{
    pthread_mutex_lock(&t->lock);
    count_for(t, l, 0);
    uint64_t left = ledger_left(&t->segments, l->uid);
    *refused = count_error(t);
    count_for(t, l, n < left ? n : (uint32_t)left);
    pthread_mutex_unlock(&t->lock);
    return l->segments ? 0 : *refused;
}

/* Charges l with n more segments, or with none. */
static int take_more(struct leases *t, struct lease *l, uint64_t n)
{
    pthread_mutex_lock(&t->lock);
    int err = ledger_take(&t->segments, l->uid, n) ? 0 : count_error(t);
    if (!err)
        l->segments += (uint32_t)n;
    pthread_mutex_unlock(&t->lock);
    return err;
}

/* Maps the whole file, within the segments left. */
static int map_whole(struct leases *t, struct lease *l, struct ffs_inode *inode)
{
    int refused = 0;

    for (uint32_t n = LEASE_SEGMENTS_FEW; n <= LEASE_SEGMENTS_MAX; n *= LEASE_SEGMENTS_MORE) {
        int err = take_segments(t, l, n, &refused);
        if (!err)
            err = ffs_map_read_some(inode, 0, INT64_MAX, l->segments, &l->map);
        if (err)
            return err;
        if (l->map.len == l->map.size) {
            pthread_mutex_lock(&t->lock);
            count_for(t, l, (uint32_t)l->map.count);
            pthread_mutex_unlock(&t->lock);
            return 0;
        }
        ffs_map_release(&l->map);
        if (l->segments < n)
            break;
    }
    return refused;
}

/* Makes the page with the extents, and the checksums of n_sums blocks. */
static int lease_extents_make_page(struct lease *l, struct ffs_inode *inode,
                                   const struct gpu_extents *x, uint64_t n_sums)
{
    int err = lease_page_make(l, x->count, n_sums);

    if (err)
        return err;
    lease_extents_publish(l, x);
    return n_sums ? ffs_watch_sums(inode, &l->watch, &l->map,
                                   (uint32_t *)(extents_of(l) + x->count), n_sums)
                  : 0;
}

static int publish_map(struct leases *t, struct lease *l, struct ffs_inode *inode, bool with_sums,
                       uint64_t *count)
{
    uint64_t n_sums = with_sums ? (l->map.size + SUM_BLOCK - 1) / SUM_BLOCK : 0;
    struct gpu_extents x;
    int err = n_sums ? take_more(t, l, n_sums / LEASE_SUMS_A_SEGMENT) : 0;

    if (!err)
        err = gpu_extents_make(&l->map, t->d->stack.bdev->info.lba_size, false, &x);
    if (err)
        return err;
    *count = x.count;
    err = lease_extents_make_page(l, inode, &x, n_sums);
    free(x.extents);
    return err;
}

/*
 * The watch precedes the map: a change between the two increments the
 * generation.
 */
int lease_extents_make(struct lease *l, struct ffs_inode *inode, struct leases *t, bool with_sums,
                       uint64_t *count)
{
    ffs_watch_add(inode, &l->watch);
    int err = file_refuse_writers(t->d, inode);
    if (!err)
        err = map_whole(t, l, inode);
    if (err)
        goto unwatch;
    err = publish_map(t, l, inode, with_sums, count);
    if (err)
        goto release;
    ffs_watch_share(inode, &l->watch, &l->page->generation);
    ffs_iref(inode, 1);
    l->inode = inode;
    return 0;
release:
    ffs_map_release(&l->map);
unwatch:
    ffs_watch_remove(inode, &l->watch);
    return err;
}

/* Unpins the blocks. */
void lease_extents_end(struct lease *l)
{
    if (!l->inode)
        return;
    ffs_watch_remove(l->inode, &l->watch);
    ffs_map_release(&l->map);
    ffs_iput(l->inode, 1);
    l->inode = NULL;
}
