// SPDX-License-Identifier: BSD-2-Clause
// A tool that the environment names sees the library's ranges.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gpunvme/gpunvme_io.h"

namespace
{

TEST(Trace, AToolSeesTransfers)
{
    ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", FAKE_NVTX, 1), 0);
    int fd = memfd_create("file", MFD_CLOEXEC);
    char bytes[1000] = "some";
    struct gpunvme_io *io;
    struct gpunvme_io_file *f;
    ASSERT_EQ(gpunvme_io_open(nullptr, &io), 0);
    ASSERT_EQ(gpunvme_io_file_open(io, fd, &f), 0);
    EXPECT_EQ(gpunvme_io_write(f, bytes, sizeof(bytes), 0, nullptr), 1000);
    EXPECT_EQ(gpunvme_io_read(f, bytes, 777, 1, nullptr), 777);
    gpunvme_io_close(io);
    close(fd);
    void *tool = dlopen(FAKE_NVTX, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(tool, nullptr) << "the library has not loaded the tool";
    std::string log = static_cast<const char *>(dlsym(tool, "fake_nvtx_log"));
    EXPECT_NE(log.find("gpunvme: write, bounced 1000\n"), std::string::npos) << log;
    EXPECT_NE(log.find("gpunvme: read, bounced 777\n"), std::string::npos) << log;
    EXPECT_EQ(*static_cast<const int *>(dlsym(tool, "fake_nvtx_depth")), 0);
    dlclose(tool);
}

} // namespace
