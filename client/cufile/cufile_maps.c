/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Places this library first in /proc/self/maps. Programs that look for cuFile
 * there (InstantTensor) use the lowest mapping of that name. torch may have
 * loaded NVIDIA's library by its full path, which LD_PRELOAD does not prevent.
 * Mapping a page of this library's file at the lowest free address makes it the
 * first one.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/page.h"

#define LOWEST 0x10000u /* the usual vm.mmap_min_addr */
#define TRIES  16u

static void map_low(int fd)
{
    for (uintptr_t i = 0; i < TRIES; i++) {
        void *at = (void *)(LOWEST + i * PAGE_BYTES); /* NOLINT(performance-no-int-to-ptr) */
        void *page = mmap(at, PAGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);

        if (page == at)
            return;
        if (page != MAP_FAILED) /* kernels before 4.17 treat the address as a hint */
            munmap(page, PAGE_BYTES);
    }
}

__attribute__((constructor)) static void be_first(void)
{
    Dl_info self;

    if (!dladdr((void *)(uintptr_t)be_first, &self))
        return;
    int fd = open(self.dli_fname, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    map_low(fd);
    close(fd);
}
