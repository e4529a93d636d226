// SPDX-License-Identifier: BSD-2-Clause
// A tool that the environment names sees the library's ranges.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/mount_rig.h"

namespace
{

// NVTX loads the tool at the first range of the process.
const bool kNamed = setenv("NVTX_INJECTION64_PATH", FAKE_NVTX, 1) == 0;

// The tool has seen these ranges, of which each has ended. It keeps them until the process ends.
void expect_seen(const std::vector<std::string> &ranges)
{
    void *tool = dlopen(FAKE_NVTX, RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(tool, nullptr) << "the library has not loaded the tool";
    std::string log = static_cast<const char *>(dlsym(tool, "fake_nvtx_log"));
    for (const std::string &range : ranges)
        EXPECT_NE(log.find("gpunvme: " + range + "\n"), std::string::npos) << log;
    EXPECT_EQ(*static_cast<const int *>(dlsym(tool, "fake_nvtx_depth")), 0);
    dlclose(tool);
}

TEST(Trace, AToolSeesTransfers)
{
    ASSERT_TRUE(kNamed);
    int fd = memfd_create("file", MFD_CLOEXEC);
    char bytes[1000] = "some";
    struct gpunvme *io;
    struct gpunvme_file *f;
    ASSERT_EQ(gpunvme_open(nullptr, &io), 0);
    ASSERT_EQ(gpunvme_file_open(io, fd, 0, &f), 0);
    EXPECT_EQ(gpunvme_write(f, bytes, sizeof(bytes), 0, nullptr), 1000);
    EXPECT_EQ(gpunvme_read(f, bytes, 777, 1, nullptr), 777);
    gpunvme_close(io);
    close(fd);
    expect_seen({"write, bounced 1000", "read, bounced 777"});
}

using TraceOfLeases = mount_rig::MountRig;

TEST_F(TraceOfLeases, AToolSeesTheCallsOfTheDirectPath)
{
    ASSERT_NO_FATAL_FAILURE(start({"", "executor=cpu,direct=root", 0, 0}, nullptr));
    if (IsSkipped())
        return;
    struct gpunvme_piece list[3];
    int64_t bytes = -1;
    EXPECT_EQ(direct_read_wait(f_, memory_, 777, 1), 777);
    EXPECT_EQ(direct_read_async(f_, memory_, 778, 1, nullptr, &bytes), 0);
    for (unsigned i = 0; i < 3; i++)
        list[i] = {i * mount_rig::kPage, i * mount_rig::kPage, mount_rig::kPage, 0};
    EXPECT_EQ(direct_readv_async(f_, memory_, list, 3, nullptr), 0);
    expect_seen(
        {"read, direct 777", "read, direct, in a stream 778", "readv, direct, in a stream 3"});
}

} // namespace
