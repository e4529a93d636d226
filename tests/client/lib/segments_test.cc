/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests the registration of VMM memory by segments, with a fake driver and in
 * place of the mount a socket and an ioctl of this test.
 */
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "client/lib/cuda_driver.h"
#include "client/lib/error.h"
}
#include "client/lib/connection.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "tests/client/cufile/places.h"
#include "tests/client/lib/segments_rig.h"

namespace
{

constexpr size_t kSegment = 65536;

class Segments : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        places::cuda(); /* has the name of the driver's library */
        ASSERT_EQ(cuda_driver_open(&driver), 0);
        ASSERT_EQ(places::cuda().alloc_vmm(&memory, kSegment, 4), 0);
        places::cuda().refuse_exports(0);
    }

    void TearDown() override
    {
        for (size_t i = 0; i < 4; i++)
            places::cuda().free(memory + i * kSegment);
        cuda_driver_close(driver);
    }

    int exported(uint64_t offset, size_t len, bool pages = true, unsigned max = 8)
    {
        return cuda_driver_export_segments(driver, 0, memory + offset, len, pages, found, max);
    }

    struct cuda_driver *driver = nullptr;
    unsigned long long memory = 0;
    cuda_segment found[8];
};

std::string bytes_of(int fd, off_t at, size_t len)
{
    std::string out(len, '\0');

    EXPECT_EQ(pread(fd, &out[0], len, at), (ssize_t)len);
    return out;
}

TEST_F(Segments, AreExportedOneByOne)
{
    const std::string text = "crosses segments";
    struct stat st = {};

    ASSERT_EQ(places::cuda().copy_in(memory + 2 * kSegment - 8, text.data(), text.size()), 0);
    ASSERT_EQ(exported(kSegment + 100, kSegment), 2);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(found[i].base, memory + (i + 1) * kSegment);
        EXPECT_EQ(found[i].len, kSegment);
        ASSERT_EQ(fstat(found[i].exported, &st), 0);
        EXPECT_EQ(st.st_size, (off_t)kSegment);
    }
    EXPECT_EQ(bytes_of(found[0].handle, kSegment - 8, 8) + bytes_of(found[1].handle, 0, 8), text);
    EXPECT_EQ(bytes_of(found[0].exported, kSegment - 8, 8), text.substr(0, 8));
    cuda_driver_close_segments(found, 2);
}

TEST_F(Segments, NeedNoPages)
{
    ASSERT_EQ(exported(0, 1, false), 1);
    EXPECT_EQ(found[0].exported, -1);
    cuda_driver_close_segments(found, 1);
}

TEST_F(Segments, AreRefusedAsAWhole)
{
    unsigned long long other = 0;

    EXPECT_EQ(exported(0, 4 * kSegment, true, 3), -ENOTSUP) << "too many";
    EXPECT_EQ(exported(0, 4 * kSegment + 1), -ENOTSUP) << "nothing is mapped behind them";
    ASSERT_EQ(places::cuda().free(memory + kSegment), 0);
    EXPECT_EQ(exported(0, 3 * kSegment), -ENOTSUP) << "a hole";
    ASSERT_EQ(places::cuda().alloc(&other, 4096), 0);
    EXPECT_EQ(cuda_driver_export_segments(driver, 0, other, 4096, true, found, 8), -ENOTSUP);
    places::cuda().free(other);
}

TEST_F(Segments, WithoutHandlesAreRefusedWithASentence)
{
    places::cuda().refuse_exports(1);
    EXPECT_EQ(exported(0, 1), -ENOTSUP);
    EXPECT_NE(std::string(gpunvme_error()).find("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"),
              std::string::npos);
}

TEST_F(Segments, RegisterAtAMount)
{
    segments_rig *rig = segments_rig_open(2, "vfio");
    gpunvme_buffer *buffer = nullptr;
    void *addr = (void *)(uintptr_t)(memory + kSegment + 100);

    ASSERT_EQ(buffer_register(segments_rig_connection(rig), addr, 2 * kSegment, true, &buffer), 0);
    const segments_rig_seen &seen = *segments_rig_close(rig, buffer);
    EXPECT_EQ(seen.kind, GPUNVME_MEM_SEGMENTS);
    EXPECT_EQ(seen.offset, 100u);
    EXPECT_EQ(seen.len, 2 * kSegment);
    EXPECT_EQ(seen.token, SEGMENTS_RIG_TOKEN);
    EXPECT_EQ(seen.descriptors, 1 + 2 * 3) << "a table, and two of each segment";
    ASSERT_EQ(seen.segments, 3u);
    for (unsigned i = 0; i < 3; i++) {
        EXPECT_EQ(seen.table[i].offset, 0u);
        EXPECT_EQ(seen.table[i].len, kSegment);
        EXPECT_EQ(seen.table[i].flags, GPUNVME_MEMORY_EXPORTED);
        EXPECT_EQ(seen.table[i].reserved, 0u);
    }
}

TEST_F(Segments, HaveNoExportsWhereTheDriveTakesNone)
{
    segments_rig *rig = segments_rig_open(1, "vfio");
    gpunvme_buffer *buffer = nullptr;

    ASSERT_EQ(buffer_register(segments_rig_connection(rig), (void *)(uintptr_t)memory, kSegment,
                              true, &buffer),
              0);
    const segments_rig_seen &seen = *segments_rig_close(rig, buffer);
    EXPECT_EQ(seen.descriptors, 2);
    EXPECT_EQ(seen.table[0].flags, 0u);
}

TEST_F(Segments, OfOneTransferAreNotRegistered)
{
    segments_rig *rig = segments_rig_open(2, "vfio");
    gpunvme_buffer *buffer = nullptr;

    ASSERT_EQ(buffer_register(segments_rig_connection(rig), (void *)(uintptr_t)memory, kSegment,
                              false, &buffer),
              0);
    EXPECT_EQ(segments_rig_close(rig, buffer)->kind, 0u) << "they take the bounce pipeline";
}

} // namespace
