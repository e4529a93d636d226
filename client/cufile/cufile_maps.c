/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The library's place in /proc/self/maps. Programs that seek cuFile there (InstantTensor) take the
 * first file of that name, by address, and torch may have loaded NVIDIA's under its full name,
 * which no preload prevents. A page of this library's file at the lowest address that is free makes
 * this one the first.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/page.h"

#define LOWEST 0x10000u /* vm.mmap_min_addr, as it is usually */
#define TRIES  16u

static void map_low(int fd)
{
    for (uintptr_t i = 0; i < TRIES; i++) {
        void *at = (void *)(LOWEST + i * PAGE_BYTES); /* NOLINT(performance-no-int-to-ptr) */
        void *page = mmap(at, PAGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);

        if (page == at)
            return;
        if (page != MAP_FAILED) /* a kernel before 4.17 takes it for a wish */
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
