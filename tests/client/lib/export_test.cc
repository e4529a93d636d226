/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests the export of GPU memory for drives as dma-bufs, with a fake driver and
 * no GPU.
 */
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

extern "C" {
#include "client/lib/cuda_driver.h"
}
#include "tests/client/cufile/places.h"

namespace
{

class Export : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        places::cuda(); /* has the name of the driver's library */
        ASSERT_EQ(cuda_driver_open(&driver), 0);
        ASSERT_EQ(places::cuda().alloc(&memory, 16384), 0);
    }

    void TearDown() override
    {
        places::cuda().free(memory);
        cuda_driver_close(driver);
    }

    struct cuda_driver *driver = nullptr;
    unsigned long long memory = 0;
};

TEST_F(Export, HasTheWholePagesAroundTheMemory)
{
    std::string text = "bytes of the device", got(text.size(), '\0');
    struct stat st = {};

    ASSERT_EQ(places::cuda().copy_in(memory + 5000, text.data(), text.size()), 0);
    Fd fd = cuda_driver_export_pages(driver, 0, memory + 5000, 8000);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(fstat(fd, &st), 0);
    EXPECT_EQ(st.st_size, 12288);
    EXPECT_EQ(pread(fd, got.data(), got.size(), 5000 - 4096), (ssize_t)got.size());
    EXPECT_EQ(got, text);
}

TEST_F(Export, IsRefusedPastTheAllocation)
{
    EXPECT_EQ(cuda_driver_export_pages(driver, 0, memory + 12288, 4097), -ENOTSUP);
    EXPECT_EQ(cuda_driver_export_pages(driver, 0, memory + (1u << 30), 4096), -ENOTSUP);
    EXPECT_EQ(cuda_driver_export_pages(driver, 77, memory, 4096), -ENODEV);
}

} // namespace
