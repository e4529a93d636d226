/* SPDX-License-Identifier: BSD-2-Clause */
// The ioctls over a mount: results, and refusal of invalid arguments.
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"

namespace
{

constexpr size_t kBuffer = 1u << 20;

// One mount for all tests of the suite, with one file.
class IoctlTest : public ::testing::Test
{
  protected:
    static void SetUpTestSuite()
    {
        if (!why_no_mount().empty())
            return;
        mounted = new Mounted(64u << 20);
        if (!mounted->mount("executor=cpu,max_buffers=8"))
            fprintf(stderr, "%s\n", mounted->log().c_str());
        Fd fd = open_on(mounted->path("file"), O_RDWR | O_CREAT);
        std::string data(100000, 'd');
        if (write(fd, data.data(), data.size()) != static_cast<ssize_t>(data.size()))
            perror("write");
    }
    static void TearDownTestSuite()
    {
        if (mounted) {
            EXPECT_TRUE(mounted->unmount()) << mounted->log();
        }
        delete mounted;
        mounted = nullptr;
    }
    void SetUp() override
    {
        if (!mounted)
            GTEST_SKIP() << why_no_mount();
        fd_ = open_on(mounted->path("file"), O_RDWR);
        // Buffers of earlier tests end at RELEASE, for which close() does not
        // wait.
        for (int i = 0; i < 3000 && stats_of(fd_).buffers != 0; i++)
            usleep(10000);
        ASSERT_EQ(stats_of(fd_).buffers, 0u);
    }
    void TearDown() override
    {
        if (fd_ >= 0)
            close(fd_);
    }

    // Registers kBuffer bytes of the memory, by a token of it.
    gpunvme_ioc_register registration_of(int memory) const
    {
        auto reg = abi_struct<gpunvme_ioc_register>();
        reg.kind = GPUNVME_MEM_FD;
        reg.len = kBuffer;
        reg.token = token_of(fd_, memory);
        return reg;
    }

    static Mounted *mounted;
    int fd_ = -1;
};

Mounted *IoctlTest::mounted;

TEST_F(IoctlTest, InfoDescribesTheMount)
{
    auto info = abi_struct<gpunvme_ioc_info>();
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_INFO, &info), 0);
    EXPECT_EQ(info.abi.size, sizeof(info));
    EXPECT_EQ(info.executor, GPUNVME_EXECUTOR_CPU);
    EXPECT_EQ(info.tier, 1u);
    EXPECT_EQ(info.block_size, 4096u);
    EXPECT_EQ(info.max_buffers, 8u);
    EXPECT_GT(info.queues, 0u);
    EXPECT_STREQ(info.transport, "sim");
    EXPECT_EQ(info.socket[0], '@');
    EXPECT_NE(std::string(info.executor_name), "");
}

TEST_F(IoctlTest, InfoAndStatsWorkOnDirectories)
{
    Fd dir = open_on(mounted->mountpoint(), O_RDONLY | O_DIRECTORY);
    auto info = abi_struct<gpunvme_ioc_info>();
    EXPECT_EQ(issue(dir, GPUNVME_IOC_INFO, &info), 0);
    EXPECT_EQ(stats_of(dir).buffers, 0u);
}

TEST_F(IoctlTest, UnknownRequestsReturnEnotty)
{
    uint64_t word = 0;
    EXPECT_EQ(issue(fd_, _IOWR('G', 0x7e, uint64_t), &word), -ENOTTY);
    EXPECT_EQ(issue(fd_, _IOWR('Q', 0x60, uint64_t), &word), -ENOTTY);
    EXPECT_EQ(issue(fd_, _IO('G', 0x7f), nullptr), -ENOTTY);
    EXPECT_EQ(issue(fd_, TCGETS, &word), -ENOTTY);
}

TEST_F(IoctlTest, StructOfAnotherSizeOrVersionIsRefused)
{
    uint64_t word = 0;
    EXPECT_EQ(issue(fd_, _IOWR('G', 0x60, uint64_t), &word), -EINVAL);
    auto info = abi_struct<gpunvme_ioc_info>();
    info.abi.size--;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_INFO, &info), -EINVAL);
    info = abi_struct<gpunvme_ioc_info>();
    info.abi.version++;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_INFO, &info), -EPROTO);
}

// The number of an ioctl contains the size of its struct, which must be the current one.
TEST_F(IoctlTest, StructsOfOtherSizesAreRefused)
{
    auto info = abi_struct<gpunvme_ioc_info>();
    info.abi.size = offsetof(gpunvme_ioc_info, tier_note);
    EXPECT_EQ(issue(fd_, _IOC(_IOC_READ | _IOC_WRITE, 'G', 0x60, info.abi.size), &info), -EINVAL);
    auto stats = abi_struct<gpunvme_ioc_stats>();
    stats.abi.size = offsetof(gpunvme_ioc_stats, latency);
    EXPECT_EQ(issue(fd_, _IOC(_IOC_READ | _IOC_WRITE, 'G', 0x66, stats.abi.size), &stats), -EINVAL);
}

struct BadTransfer {
    const char *name;
    std::function<void(gpunvme_ioc_rw &)> spoil;
    int error;
};

class BadTransferTest : public IoctlTest, public ::testing::WithParamInterface<BadTransfer>
{
};

TEST_P(BadTransferTest, IsRefusedByReadAndWrite)
{
    Buffer buffer(fd_, kBuffer);
    ASSERT_EQ(buffer.error(), 0);
    memset(buffer.data(), 0x5a, kBuffer);
    for (unsigned long request : {GPUNVME_IOC_READ, GPUNVME_IOC_WRITE}) {
        gpunvme_ioc_rw rw = buffer.request(0, 0, 4096);
        GetParam().spoil(rw);
        EXPECT_EQ(issue(fd_, request, &rw), GetParam().error);
    }
    char byte = 0;
    EXPECT_EQ(buffer.data()[0], 0x5a) << "nothing was read";
    EXPECT_EQ(pread(fd_, &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'd') << "nothing was written";
    EXPECT_EQ(buffer.unregister(fd_), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Transfers, BadTransferTest,
    ::testing::Values(
        BadTransfer{"size", [](auto &rw) { rw.abi.size = 8; }, -EINVAL},
        BadTransfer{"version", [](auto &rw) { rw.abi.version = 0; }, -EPROTO},
        BadTransfer{"unknown_flag", [](auto &rw) { rw.flags = 4; }, -EINVAL},
        BadTransfer{"foreign_id", [](auto &rw) { rw.id++; }, -ENOENT},
        BadTransfer{"zero_id", [](auto &rw) { rw.id = 0; }, -ENOENT},
        BadTransfer{"wrong_key", [](auto &rw) { rw.key++; }, -EACCES},
        BadTransfer{"past_the_buffer", [](auto &rw) { rw.len = kBuffer + 1; }, -ERANGE},
        BadTransfer{"offset_past_the_buffer", [](auto &rw) { rw.buffer_offset = kBuffer - 4095; },
                    -ERANGE},
        BadTransfer{"buffer_overflow", [](auto &rw) { rw.buffer_offset = UINT64_MAX - 100; },
                    -EOVERFLOW},
        BadTransfer{"file_overflow", [](auto &rw) { rw.file_offset = UINT64_MAX - 100; },
                    -EOVERFLOW},
        BadTransfer{"file_offset_negative", [](auto &rw) { rw.file_offset = 1ull << 63; },
                    -EOVERFLOW},
        BadTransfer{"length_huge", [](auto &rw) { rw.len = UINT64_MAX; }, -EOVERFLOW}),
    [](const auto &info) { return info.param.name; });

struct BadRegistration {
    const char *name;
    std::function<void(gpunvme_ioc_register &)> spoil;
    int error;
};

class BadRegistrationTest : public IoctlTest, public ::testing::WithParamInterface<BadRegistration>
{
};

TEST_P(BadRegistrationTest, IsRefusedAndLeavesNothing)
{
    int memory = shared_memory(kBuffer);
    gpunvme_ioc_register reg = registration_of(memory);
    close(memory);
    ASSERT_NE(reg.token, 0u);
    GetParam().spoil(reg);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), GetParam().error);
    EXPECT_EQ(stats_of(fd_).buffers, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Registrations, BadRegistrationTest,
    ::testing::Values(
        BadRegistration{"size", [](auto &r) { r.abi.size++; }, -EINVAL},
        BadRegistration{"version", [](auto &r) { r.abi.version = 9; }, -EPROTO},
        BadRegistration{"unknown_flag", [](auto &r) { r.flags = 16; }, -EINVAL},
        BadRegistration{"staging_without_leases",
                        [](auto &r) { r.flags = GPUNVME_REGISTER_STAGING; }, -EPERM},
        BadRegistration{"list_and_host", [](auto &r) { r.flags = 3; }, -EINVAL},
        BadRegistration{"host_of_gpu_memory",
                        [](auto &r) {
                            r.kind = GPUNVME_MEM_CUDA_IPC;
                            r.flags = GPUNVME_REGISTER_HOST;
                        },
                        -EINVAL},
        BadRegistration{"unknown_kind", [](auto &r) { r.kind = 77; }, -EINVAL},
        BadRegistration{"kind_of_another_executor", [](auto &r) { r.kind = GPUNVME_MEM_CUDA_IPC; },
                        -EOPNOTSUPP},
        BadRegistration{"list_of_gpu_memory",
                        [](auto &r) {
                            r.kind = GPUNVME_MEM_CUDA_IPC;
                            r.flags = GPUNVME_REGISTER_LIST;
                        },
                        -EINVAL},
        BadRegistration{"list_at_an_odd_offset",
                        [](auto &r) {
                            r.flags = GPUNVME_REGISTER_LIST;
                            r.offset = 4;
                            r.len = 4096;
                        },
                        -EINVAL},
        BadRegistration{"another_gpu", [](auto &r) { r.gpu_uuid[0] = 1; }, -EXDEV},
        BadRegistration{"empty", [](auto &r) { r.len = 0; }, -EINVAL},
        BadRegistration{"longer_than_the_memory", [](auto &r) { r.len = kBuffer + 1; }, -ERANGE},
        BadRegistration{"offset_past_the_memory", [](auto &r) { r.offset = kBuffer; }, -ERANGE},
        BadRegistration{"overflow", [](auto &r) { r.offset = UINT64_MAX - 4096; }, -EOVERFLOW},
        BadRegistration{"no_such_token", [](auto &r) { r.token ^= 1; }, -ENOENT}),
    [](const auto &info) { return info.param.name; });

TEST_F(IoctlTest, MemoryThatCouldShrinkIsRefused)
{
    int memory = shared_memory(kBuffer, false);
    gpunvme_ioc_register reg = registration_of(memory);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), -EPERM) << "cannot be sealed";
    close(memory);
    memory = open_on(mounted->path("file"), O_RDWR);
    EXPECT_EQ(token_of(fd_, memory), 0u) << "a file";
    close(memory);
}

TEST_F(IoctlTest, RegisteredMemoryCannotShrink)
{
    Fd memory = shared_memory(kBuffer);
    gpunvme_ioc_register reg = registration_of(memory);
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), 0);
    EXPECT_EQ(ftruncate(memory, 0), -1);
    EXPECT_EQ(errno, EPERM);
}

TEST_F(IoctlTest, TokenIsGoodForOneRegistration)
{
    int memory = shared_memory(kBuffer);
    gpunvme_ioc_register reg = registration_of(memory);
    close(memory);
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), 0);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), -ENOENT);
}

TEST_F(IoctlTest, StatsCountTheRegionsOfBuffers)
{
    gpunvme_ioc_stats before = stats_of(fd_);
    int memory = shared_memory(kBuffer);
    gpunvme_ioc_register reg = registration_of(memory);
    close(memory);
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &reg), 0);
    gpunvme_ioc_stats after = stats_of(fd_);
    EXPECT_GT(before.dma_regions, 0u) << "the daemon's own";
    EXPECT_GT(after.dma_regions, before.dma_regions);
    EXPECT_EQ(after.dma_region_limit, 0u);
}

TEST_F(IoctlTest, BuffersAreLimitedInNumber)
{
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (int i = 0; i < 8; i++) {
        buffers.push_back(std::make_unique<Buffer>(fd_, 4096));
        ASSERT_EQ(buffers.back()->error(), 0);
    }
    EXPECT_EQ(Buffer(fd_, 4096).error(), -EMFILE);
    EXPECT_EQ(buffers[0]->unregister(fd_), 0);
    EXPECT_EQ(Buffer(fd_, 4096).error(), 0);
}

TEST_F(IoctlTest, TransferNeedsTheOpenModeOfReadAndWrite)
{
    Buffer buffer(fd_, 4096);
    int reader = open_on(mounted->path("file"), O_RDONLY);
    int writer = open_on(mounted->path("file"), O_WRONLY);
    int appender = open_on(mounted->path("file"), O_RDWR | O_APPEND);
    EXPECT_EQ(buffer.read(reader, 0, 0, 4096), 4096);
    EXPECT_EQ(buffer.write(reader, 0, 0, 4096), -EBADF);
    EXPECT_EQ(buffer.read(writer, 0, 0, 4096), -EBADF);
    EXPECT_EQ(buffer.write(writer, 0, 0, 4096), 4096);
    EXPECT_EQ(buffer.read(appender, 0, 0, 4096), 4096);
    EXPECT_EQ(buffer.write(appender, 0, 0, 4096), -EBADF);
    for (int fd : {reader, writer, appender})
        close(fd);
}

TEST_F(IoctlTest, DirectoriesAreNotRead)
{
    Fd dir = open_on(mounted->mountpoint(), O_RDONLY | O_DIRECTORY);
    Buffer buffer(dir, 4096);
    ASSERT_EQ(buffer.error(), 0) << "but they can own buffers";
    EXPECT_EQ(buffer.read(dir, 0, 0, 4096), -EISDIR);
    EXPECT_EQ(buffer.read(fd_, 0, 0, 4096), 4096);
}

TEST_F(IoctlTest, ReadIsShortAtTheEndOfTheFileOnly)
{
    Buffer buffer(fd_, kBuffer);
    gpunvme_ioc_rw rw;
    EXPECT_EQ(buffer.read(fd_, 0, 0, kBuffer, &rw), 100000);
    EXPECT_EQ(rw.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(buffer.read(fd_, 99999, 7, 4096), 1);
    EXPECT_EQ(buffer.data()[7], 'd');
    EXPECT_EQ(buffer.read(fd_, 100000, 0, 4096), 0);
    EXPECT_EQ(buffer.read(fd_, 1ull << 60, 0, 4096), 0);
    EXPECT_EQ(buffer.read(fd_, 0, 0, 0), 0);
}

// As write(2): set-id bits end with the contents, unless root changes these.
TEST_F(IoctlTest, WriteOfAnotherRemovesSetIdBits)
{
    struct stat st;
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to become another user";
    Buffer buffer(fd_, kBuffer);
    ASSERT_EQ(buffer.error(), 0);
    ASSERT_EQ(fchmod(fd_, 04755), 0);
    ASSERT_EQ(buffer.write(fd_, 0, 0, 4096), 4096);
    ASSERT_EQ(fstat(fd_, &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 04755u);
    ASSERT_EQ(seteuid(1234), 0);
    {
        Buffer other(fd_, kBuffer);
        EXPECT_EQ(other.error(), 0);
        EXPECT_EQ(other.write(fd_, 0, 0, 4096), 4096);
    }
    ASSERT_EQ(seteuid(0), 0);
    ASSERT_EQ(fstat(fd_, &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0755u);
}

// As write(2): the file's capabilities end with its contents.
TEST_F(IoctlTest, WriteRemovesCapabilities)
{
    // VFS_CAP_REVISION_2 with CAP_NET_RAW permitted.
    const uint32_t caps[5] = {0x02000000, 1u << 13, 0, 0, 0};
    Buffer buffer(fd_, kBuffer);
    ASSERT_EQ(buffer.error(), 0);
    if (fsetxattr(fd_, "security.capability", caps, sizeof(caps), 0) != 0)
        GTEST_SKIP() << "cannot set capabilities: " << strerror(errno);
    ASSERT_EQ(buffer.write(fd_, 0, 0, 4096), 4096);
    EXPECT_EQ(fgetxattr(fd_, "security.capability", nullptr, 0), -1);
    EXPECT_EQ(errno, ENODATA);
}

// As write(2), without SIGXFSZ.
TEST_F(IoctlTest, WriteStopsAtTheLimitOfTheFileSize)
{
    rlimit before;
    Buffer buffer(fd_, kBuffer);
    ASSERT_EQ(buffer.error(), 0);
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = {6000, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    gpunvme_ioc_rw rw;
    ssize_t across = buffer.write(fd_, 4096, 0, 8192, &rw);
    ssize_t beyond = buffer.write(fd_, 6000, 0, 1);
    ssize_t below = buffer.write(fd_, 0, 0, 6000);
    ssize_t nothing = buffer.write(fd_, 9000, 0, 0);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(across, 6000 - 4096);
    EXPECT_EQ(rw.len, 8192u) << "the request is unchanged";
    EXPECT_EQ(beyond, -EFBIG);
    EXPECT_EQ(below, 6000);
    EXPECT_EQ(nothing, 0);
}

// --- Lists and batches ---------------------------------------------------------------------------

struct BadBatch {
    const char *name;
    std::function<void(gpunvme_ioc_readv &)> spoil;
    int error;
};

class BadBatchTest : public IoctlTest, public ::testing::WithParamInterface<BadBatch>
{
};

TEST_P(BadBatchTest, IsRefusedAndChangesNothing)
{
    Buffer buffer(fd_, kBuffer), list(fd_, 4096, GPUNVME_REGISTER_LIST);
    ASSERT_EQ(list.error(), 0);
    list.pieces()[0] = {0, 0, 4096, 77};
    gpunvme_ioc_readv v = buffer.batch(list, 1);
    GetParam().spoil(v);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_READV, &v), GetParam().error);
    EXPECT_EQ(list.pieces()[0].result, 77);
    EXPECT_EQ(buffer.data()[0], 0);
    EXPECT_EQ(list.unregister(fd_), 0);
    EXPECT_EQ(buffer.unregister(fd_), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Batches, BadBatchTest,
    ::testing::Values(
        BadBatch{"size", [](auto &v) { v.abi.size = 80; }, -EINVAL},
        BadBatch{"version", [](auto &v) { v.abi.version = 0; }, -EPROTO},
        BadBatch{"unknown_flag", [](auto &v) { v.flags = 4; }, -EINVAL},
        BadBatch{"empty", [](auto &v) { v.count = 0; }, -EINVAL},
        BadBatch{"too_long", [](auto &v) { v.count = GPUNVME_PIECES_MAX + 1; }, -EINVAL},
        BadBatch{"past_the_list", [](auto &v) { v.first = 4096 / 24; }, -ERANGE},
        BadBatch{"longer_than_the_list", [](auto &v) { v.count = 4096 / 24 + 1; }, -ERANGE},
        BadBatch{"far_past_the_list", [](auto &v) { v.first = UINT64_MAX; }, -ERANGE},
        BadBatch{"list_key", [](auto &v) { v.list_key++; }, -EACCES},
        BadBatch{"list_id", [](auto &v) { v.list_id++; }, -ENOENT},
        BadBatch{"buffer_key", [](auto &v) { v.key++; }, -EACCES},
        BadBatch{"buffer_as_list",
                 [](auto &v) {
                     v.list_id = v.id;
                     v.list_key = v.key;
                 },
                 -EINVAL},
        BadBatch{"list_as_buffer",
                 [](auto &v) {
                     v.id = v.list_id;
                     v.key = v.list_key;
                 },
                 -EINVAL}),
    [](const auto &info) { return info.param.name; });

TEST_F(IoctlTest, TransfersRefuseLists)
{
    Buffer list(fd_, 8192, GPUNVME_REGISTER_LIST);
    ASSERT_EQ(list.error(), 0);
    EXPECT_EQ(list.read(fd_, 0, 0, 4096), -EINVAL);
    EXPECT_EQ(list.write(fd_, 0, 0, 4096), -EINVAL);
    EXPECT_EQ(stats_of(fd_).buffers, 1u);
}

TEST_F(IoctlTest, ABatchNeedsTheOpenModeOfReadAndTheSameUser)
{
    Buffer buffer(fd_, 4096), list(fd_, 4096, GPUNVME_REGISTER_LIST);
    list.pieces()[0] = {99990, 0, 4096, 77};
    Fd writer = open_on(mounted->path("file"), O_WRONLY);
    Fd dir = open_on(mounted->mountpoint(), O_RDONLY | O_DIRECTORY);
    gpunvme_ioc_readv v = buffer.batch(list, 1);
    EXPECT_EQ(issue(writer, GPUNVME_IOC_READV, &v), -EBADF);
    EXPECT_EQ(issue(dir, GPUNVME_IOC_READV, &v), -EISDIR);
    if (geteuid() == 0) {
        ASSERT_EQ(seteuid(1234), 0);
        int err = issue(fd_, GPUNVME_IOC_READV, &v);
        int unregister_err = buffer.unregister(fd_);
        ASSERT_EQ(seteuid(0), 0);
        EXPECT_EQ(err, -EACCES);
        EXPECT_EQ(unregister_err, -EACCES);
    }
    EXPECT_EQ(list.pieces()[0].result, 77);
    gpunvme_ioc_stats before = stats_of(fd_);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_READV, &v), 0);
    EXPECT_EQ(list.pieces()[0].result, 10);
    EXPECT_EQ(buffer.data()[9], 'd');
    EXPECT_EQ(v.bytes, 10u);
    EXPECT_EQ(v.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(stats_of(fd_).gpu_read_bytes, before.gpu_read_bytes + 10);
    EXPECT_GT(stats_of(fd_).gpu_commands, before.gpu_commands);
    auto calls = [](const gpunvme_ioc_stats &of) {
        auto &l = of.latency[GPUNVME_OP_READV][GPUNVME_PATH_GPU - 1];
        return std::accumulate(std::begin(l.buckets), std::end(l.buckets), uint64_t{0});
    };
    EXPECT_EQ(calls(stats_of(fd_)), calls(before) + 1);
}

gpunvme_ioc_extents extents_of(int fd, uint64_t offset, uint32_t max, int *err)
{
    auto e = abi_struct<gpunvme_ioc_extents>();
    e.file_offset = offset;
    e.max = max;
    *err = issue(fd, GPUNVME_IOC_EXTENTS, &e);
    return e;
}

TEST_F(IoctlTest, ExtentsOmitHolesAndMarkTheLastOne)
{
    int err, fd = open_on(mounted->path("sparse"), O_RDWR | O_CREAT | O_TRUNC);
    ASSERT_EQ(pwrite(fd, "a", 1, 0), 1);
    ASSERT_EQ(pwrite(fd, "b", 1, 1 << 20), 1);
    ASSERT_EQ(fallocate(fd, 0, 2 << 20, 8192), 0);
    gpunvme_ioc_extents e = extents_of(fd, 0, GPUNVME_EXTENTS_MAX, &err);
    ASSERT_EQ(err, 0);
    ASSERT_EQ(e.count, 3u);
    EXPECT_EQ(e.extents[0].file_offset, 0u);
    EXPECT_EQ(e.extents[1].file_offset, 1u << 20);
    EXPECT_EQ(e.extents[2].file_offset, 2u << 20);
    EXPECT_EQ(e.extents[0].flags, 0u);
    EXPECT_EQ(e.extents[2].flags, GPUNVME_EXTENT_UNWRITTEN | GPUNVME_EXTENT_LAST);
    EXPECT_EQ(e.extents[1].device % 4096, 0u);
    e = extents_of(fd, 0, 1, &err);
    EXPECT_EQ(e.count, 1u);
    EXPECT_EQ(e.extents[0].flags, 0u) << "others follow";
    e = extents_of(fd, 3 << 20, 1, &err);
    EXPECT_EQ(e.count, 0u);
    close(fd);
}

TEST_F(IoctlTest, ExtentsRefuseInvalidArguments)
{
    int err;
    extents_of(fd_, 0, 0, &err);
    EXPECT_EQ(err, -EINVAL);
    extents_of(fd_, 0, GPUNVME_EXTENTS_MAX + 1, &err);
    EXPECT_EQ(err, -EINVAL);
    extents_of(fd_, UINT64_MAX, 1, &err);
    EXPECT_EQ(err, -EOVERFLOW);
}

TEST_F(IoctlTest, ShutdownIsForRootAndTheRootDirectory)
{
    uint32_t flags = 0;
    EXPECT_EQ(issue(fd_, 0x8004587dul, &flags), -ENOTTY);
    ASSERT_EQ(seteuid(1234), 0);
    int err = issue(fd_, 0x8004587dul, &flags);
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(err, -EPERM);
}

} // namespace
