/* SPDX-License-Identifier: BSD-2-Clause */
// Answers of the kernel that are longer than the buffer, or become longer between two calls.
#include <gtest/gtest.h>

#include <sys/ioctl.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <vector>

#include "blockdev/vfio/vfio_internal.h"

namespace
{

constexpr int kFile = -77; // no descriptor: the calls for it are the test's
constexpr uint32_t kFixed = sizeof(vfio_iommu_type1_info);

// What the kernel puts into argsz in one call after the other; negative: its error.
std::vector<int64_t> says;
std::vector<uint32_t> asked;

int kernel(void *arg)
{
    auto *argsz = static_cast<uint32_t *>(arg);
    int64_t said = says.at(asked.size());

    asked.push_back(*argsz);
    if (said < 0) {
        errno = static_cast<int>(-said);
        return -1;
    }
    memset(argsz + 1, 0xff, *argsz - sizeof(*argsz)); // as much as was asked for
    *argsz = static_cast<uint32_t>(said);
    return 0;
}

} // namespace

extern "C" {
// NOLINTBEGIN: the linker's names (--wrap)
int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *arg = va_arg(args, void *);
    va_end(args);
    return fd == kFile ? kernel(arg) : __real_ioctl(fd, request, arg);
}
// NOLINTEND
}

namespace
{

int query(const std::vector<int64_t> &kernel_says)
{
    std::vector<uint64_t> answer(VFIO_ANSWER / sizeof(uint64_t));

    says = kernel_says;
    asked.clear();
    return vfio_query(kFile, VFIO_IOMMU_GET_INFO, kFixed, answer.data());
}

TEST(VfioQuery, CallsOnceForAReplyWithoutCapabilities)
{
    EXPECT_EQ(query({kFixed}), 0);
    EXPECT_EQ(asked, std::vector<uint32_t>({kFixed}));
    EXPECT_EQ(query({kFixed - 8}), 0) << "an old kernel, whose struct is shorter";
    EXPECT_EQ(asked.size(), 1u);
}

TEST(VfioQuery, CallsAgainWithRoomForTheWholeReply)
{
    EXPECT_EQ(query({200, 200}), 0);
    EXPECT_EQ(asked, std::vector<uint32_t>({kFixed, 200}));
    EXPECT_EQ(query({VFIO_ANSWER, VFIO_ANSWER}), 0);
}

TEST(VfioQuery, RefusesAReplyThatDoesNotFit)
{
    EXPECT_EQ(query({VFIO_ANSWER + 1}), -E2BIG);
    EXPECT_EQ(query({UINT32_MAX}), -E2BIG);
    EXPECT_EQ(query({200, 208}), -E2BIG) << "it has grown";
    EXPECT_EQ(query({200, VFIO_ANSWER + 8}), -E2BIG);
}

TEST(VfioQuery, ReturnsTheErrorOfEachCall)
{
    EXPECT_EQ(query({-ENODEV}), -ENODEV);
    EXPECT_EQ(query({200, -EFAULT}), -EFAULT);
}

} // namespace
