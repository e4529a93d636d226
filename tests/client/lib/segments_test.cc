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
}
#include "support/fd_message.h"
#include "tests/client/cufile/places.h"
#include "tests/client/lib/internal.h"

namespace
{

constexpr size_t kSegment = 65536;
constexpr uint64_t kToken = 0x1234567890abcdef;

// Describes what a client has sent to register memory.
struct Seen {
    uint32_t kind = 0; // 0: nothing was registered
    uint64_t offset = 0, len = 0, token = 0;
    size_t descriptors = 0; // of the message
    size_t segments = 0;    // elements of the table in the first one
    gpunvme_memory_segment table[8] = {};
};

Seen seen;

// Stands in for a mount with a CUDA executor, by a socket and an ioctl.
class Mount
{
  public:
    explicit Mount(unsigned tier)
    {
        seen = {};
        g_.calls_offered = true; // this mount takes no counters
        g_.info.executor = GPUNVME_EXECUTOR_CUDA;
        g_.info.tier = tier;
        snprintf(g_.info.transport, sizeof(g_.info.transport), "vfio");
        listen_at("@segments-test-" + std::to_string(getpid()));
        EXPECT_EQ(cuda_driver_open(&g_.cuda), 0);
    }
    ~Mount()
    {
        if (thread_.joinable())
            close();
    }
    Mount(const Mount &) = delete;
    Mount &operator=(const Mount &) = delete;

    int add(unsigned long long addr, size_t len, bool held)
    {
        return buffer_register(&g_, reinterpret_cast<void *>(addr), len, held, &buffer_);
    }
    // Closes the buffer and the mount.
    void close()
    {
        if (buffer_)
            buffer_unregister(buffer_);
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        ::close(listener_);
        cuda_driver_close(g_.cuda);
    }

  private:
    void listen_at(const std::string &name)
    {
        sockaddr_un addr = {};
        addr.sun_family = AF_UNIX;
        memcpy(g_.info.socket, name.data(), name.size());
        memcpy(addr.sun_path + 1, name.data() + 1, name.size() - 1);
        auto len = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr *>(&addr), len), 0);
        EXPECT_EQ(listen(listener_, 1), 0);
        thread_ = std::thread([this] { serve(); });
    }
    void serve() const
    {
        int s = accept(listener_, nullptr, nullptr);
        if (s < 0) // nothing was sent
            return;
        if (receive(s)) {
            EXPECT_EQ(write(s, &kToken, sizeof(kToken)), ssize_t{sizeof(kToken)});
        }
        ::close(s);
    }
    // Receives the cookie and a message with descriptors. Returns true if they came.
    static bool receive(int s)
    {
        fd_message in = {};
        uint64_t word;
        constexpr ssize_t kWord = sizeof(word);
        if (recv(s, &word, sizeof(word), MSG_WAITALL) != kWord ||
            fd_message_receive(s, &word, sizeof(word), &in, FD_MESSAGE_MAX, 0) != kWord || !in.n)
            return false;
        ssize_t n = pread(in.fd[0], seen.table, sizeof(seen.table), 0);
        seen.descriptors = in.n;
        seen.segments = n > 0 ? static_cast<size_t>(n) / sizeof(seen.table[0]) : 0;
        fd_message_close(&in);
        return true;
    }

    connection g_ = {}; // with a lock that is initialised by zeros
    gpunvme_buffer *buffer_ = nullptr;
    int listener_ = -1;
    std::thread thread_;
};

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
    Mount mount(2);
    ASSERT_EQ(mount.add(memory + kSegment + 100, 2 * kSegment, true), 0);
    mount.close();
    EXPECT_EQ(seen.kind, GPUNVME_MEM_SEGMENTS);
    EXPECT_EQ(seen.offset, 100u);
    EXPECT_EQ(seen.len, 2 * kSegment);
    EXPECT_EQ(seen.token, kToken);
    EXPECT_EQ(seen.descriptors, 1u + 2 * 3) << "a table, and two of each segment";
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
    Mount mount(1);
    ASSERT_EQ(mount.add(memory, kSegment, true), 0);
    mount.close();
    EXPECT_EQ(seen.descriptors, 2u);
    EXPECT_EQ(seen.table[0].flags, 0u);
}

TEST_F(Segments, OfOneTransferAreNotRegistered)
{
    Mount mount(2);
    ASSERT_EQ(mount.add(memory, kSegment, false), 0);
    mount.close();
    EXPECT_EQ(seen.kind, 0u) << "they take the bounce pipeline";
}

extern "C" int __wrap_gpunvme_ioctl(int, unsigned long, void *, uint32_t);
int __wrap_gpunvme_ioctl(int, unsigned long request, void *arg, uint32_t)
{
    const auto *reg = static_cast<const gpunvme_ioc_register *>(arg);

    if (request != GPUNVME_IOC_REGISTER)
        return 0;
    seen.kind = reg->kind;
    seen.offset = reg->offset;
    seen.len = reg->len;
    seen.token = reg->token;
    return 0;
}

// --- Export of GPU memory for drives as dma-bufs -------------------------------------------------

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
