/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates IOVAs, for transports that may choose addresses (VFIO, vfio-user).
 *
 * Ranges lie in windows that the system allows. One page between two ranges
 * remains unmapped, and page 0 is never allocated, so that a wrong address of a
 * controller hits no range. The caller locks.
 */
#ifndef BLOCKDEV_NVME_NVME_IOVA_H
#define BLOCKDEV_NVME_NVME_IOVA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct nvme_iova_range {
    uint64_t start, len; /* bytes, whole 4 KiB pages; start is first, for array_lower() */
    void *owner;         /* any pointer of the transport */
};

struct nvme_iova {
    struct nvme_iova_range *windows; /* allowed ranges, ascending, disjoint */
    size_t n_windows;
    /* Ascending. A range that was freed keeps its place until the next take; its len is 0. */
    struct nvme_iova_range *used;
    size_t n_places;
    size_t n_used; /* ranges that are not free */
    size_t first;  /* gap i lies below range i; those before this gap have no room for a page */
};

void nvme_iova_init(struct nvme_iova *v);
void nvme_iova_destroy(struct nvme_iova *v);
/*
 * Allows [first, last], rounded inwards to whole pages. Calls must ascend.
 * Returns -EINVAL otherwise or if no page is left, and -ENOMEM.
 */
int nvme_iova_allow(struct nvme_iova *v, uint64_t first, uint64_t last);
/*
 * Allocates len bytes (whole pages) and stores their address. align is a power
 * of two >= 4096. Returns 0, -ENOSPC or -ENOMEM.
 */
int nvme_iova_take(struct nvme_iova *v, size_t len, size_t align, void *owner, uint64_t *iova);
/*
 * Returns the range that starts at iova, or NULL. Valid until the next take or
 * give.
 */
const struct nvme_iova_range *nvme_iova_find(const struct nvme_iova *v, uint64_t iova);
/* Sets the owner of the range that starts at iova, which must exist. */
void nvme_iova_set_owner(struct nvme_iova *v, uint64_t iova, void *owner);
/* Frees the range that starts at iova. Returns -ENOENT if there is none. */
int nvme_iova_give(struct nvme_iova *v, uint64_t iova);

__END_DECLS

#endif
