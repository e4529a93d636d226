/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates memory of a device in place of a GPU's, for tests in which the CPU
 * executor serves a mount with the option cpu_memory=. The environment variable
 * GPUNVME_CPU_MEMORY names the device, an ivshmem device of QEMU, by its PCI
 * address (0000:00:12.0).
 */
#ifndef CLIENT_LIB_BAR_RANGE_H
#define CLIENT_LIB_BAR_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct bar_range {
    void *addr;
    int fd;          /* of the whole memory */
    uint64_t offset; /* bytes; a multiple of the page size */
};

/* Returns true if the environment names a device. */
bool bar_range_is_set(void);

/*
 * Maps len > 0 bytes of the file that no range includes, of this or another process. A range is
 * occupied while any duplicate of its descriptor or any mapping of it exists, also in the daemon,
 * as memory of a GPU is. Returns 0, -ENOMEM (no range of that length is free) or another -errno.
 * The caller ends the range by munmap(2) and close(2).
 */
int bar_range_alloc(const char *path, size_t len, struct bar_range *out);

/* Like bar_range_alloc(), in the memory of the device that the environment names. */
int bar_range_alloc_set(size_t len, struct bar_range *out);

__END_DECLS

#endif
