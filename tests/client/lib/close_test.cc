/* SPDX-License-Identifier: BSD-2-Clause */
// Closing a handle while a kernel of another direct path does not end frees no memory, for which
// CUDA would wait.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "gpunvme/gpunvme.h"

// Within its scope, LeakSanitizer takes no allocation for a leak.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
using AllocatesForGood = __lsan::ScopedDisabler;
#else
struct AllocatesForGood {
    AllocatesForGood() {}
};
#endif

static bool stuck;

extern "C" bool __wrap_direct_service_any_stuck(void)
{
    return stuck;
}

namespace
{

constexpr size_t kBytes = 4u << 20;

bool is_mapped(void *addr)
{
    unsigned char pages[kBytes / 4096];

    return mincore(addr, kBytes, pages) == 0;
}

// Returns memory of the library after the handle was closed.
void *close_with_memory()
{
    struct gpunvme *g = nullptr;
    struct gpunvme_file *f = nullptr;
    void *memory = nullptr;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

    EXPECT_EQ(gpunvme_open(nullptr, &g), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_file_open(g, fd, 0, &f), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_alloc_host(f, kBytes, &memory), 0) << gpunvme_error();
    gpunvme_close(g);
    close(fd);
    return memory;
}

TEST(Close, FreesMemory)
{
    stuck = false;
    void *memory = close_with_memory();
    EXPECT_FALSE(is_mapped(memory));
    EXPECT_EQ(errno, ENOMEM);
}

TEST(Close, FreesNothingWhileAKernelDoesNotEnd)
{
    AllocatesForGood handle;

    stuck = true;
    void *memory = close_with_memory();
    EXPECT_TRUE(is_mapped(memory));
    munmap(memory, kBytes);
    stuck = false;
}

} // namespace
