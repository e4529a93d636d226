/* SPDX-License-Identifier: BSD-2-Clause */
// End to end: format, mount, write files by system calls, read them on both
// paths during concurrent writes, truncates and renames, and compare again
// after a remount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "client/lib/connection.h"
#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"
#include "tests/rounds.h"

namespace
{

// The same shape with fewer bytes for a sanitizer, and still fewer with GPUNVME_TEST_SMALL in the
// environment: an emulated processor.
struct Scale {
    uint64_t largest;
    int files, reads, changes;
};
constexpr Scale kUsual =
    kSanitized ? Scale{64u << 20, 300, 300, 150} : Scale{1u << 30, 1000, 1500, 500};
const Scale kScale = getenv("GPUNVME_TEST_SMALL") ? Scale{8u << 20, 80, 60, 40} : kUsual;
// A drive without an IOMMU reaches no buffers.
const uint32_t kGpuPath = getenv("GPUNVME_TEST_NOIOMMU") ? GPUNVME_PATH_BOUNCE : GPUNVME_PATH_GPU;
// No larger than needed: a mount with a GPU pins all of it, and a virtual
// machine regains unused memory at less than 0.5 GB/s.
const uint64_t kImage = 2 * kScale.largest + std::min<uint64_t>(8 * kScale.largest, 1u << 29);
constexpr size_t kBuffer = 4u << 20;

using Rng = std::mt19937_64;

uint64_t draw(Rng &rng, uint64_t below)
{
    return below ? rng() % below : 0;
}

::testing::AssertionResult write_range(int fd, uint64_t seed, uint64_t offset, uint64_t len)
{
    std::vector<uint8_t> chunk(std::min<uint64_t>(len, 1u << 20));
    for (uint64_t done = 0; done < len;) {
        size_t n = std::min<uint64_t>(chunk.size(), len - done);
        content_fill(seed, offset + done, chunk.data(), n);
        ssize_t w = pwrite(fd, chunk.data(), n, static_cast<off_t>(offset + done));
        if (w <= 0)
            return ::testing::AssertionFailure() << "pwrite: " << strerror(errno);
        done += static_cast<uint64_t>(w);
    }
    return ::testing::AssertionSuccess();
}

// Odd sizes around each boundary, then random ones.
uint64_t pick_size(Rng &rng, int i)
{
    static const uint64_t edges[] = {0,    1,    3,     511,   512,    513,    4095,    4096,
                                     4097, 8192, 12289, 65535, 131072, 262145, 1048576, 1048577};
    if (i < 64)
        return edges[i % 16];
    return i % 50 == 0 ? draw(rng, 8u << 20) : draw(rng, 200000);
}

class EndToEnd : public MountingTest
{
  protected:
    void set_up() override
    {
        mount_ = std::make_unique<Mounted>(kImage);
        ASSERT_TRUE(mount_->mount()) << mount_->log();
    }

    void make_dense(const std::string &name, uint64_t size, uint64_t seed)
    {
        Fd f(open(mount_->path(name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        ASSERT_GE(f, 0) << strerror(errno);
        ASSERT_TRUE(write_range(f, seed, 0, size)) << name;
        files_.push_back({name, seed, size, false, {}});
    }

    void make_sparse(const std::string &name, uint64_t size, uint64_t seed, Rng &rng)
    {
        Fd f(open(mount_->path(name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        ASSERT_GE(f, 0) << strerror(errno);
        ASSERT_EQ(ftruncate(f, static_cast<off_t>(size)), 0);
        StaticFile file{name, seed, size, true, {}};
        for (uint64_t at = draw(rng, size / 8); at < size; at += size / 10 + draw(rng, size / 10)) {
            uint64_t n = std::min<uint64_t>(1 + draw(rng, 50000), size - at);
            ASSERT_TRUE(write_range(f, seed, at, n));
            file.data.emplace_back(at, n);
            at += n;
        }
        files_.push_back(file);
    }

    // Two files that grow block by block in turn, so that neither has two blocks in a row.
    void make_fragmented(const std::string &a, const std::string &b, uint64_t blocks)
    {
        Fd fa(open(mount_->path(a).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        Fd fb(open(mount_->path(b).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        ASSERT_GE(std::min<int>(fa, fb), 0);
        for (uint64_t i = 0; i < blocks; i++) {
            ASSERT_TRUE(write_range(fa, 501, i * 4096, 4096));
            ASSERT_TRUE(write_range(fb, 502, i * 4096, 4096));
        }
        files_.push_back({a, 501, blocks * 4096, false, {}});
        files_.push_back({b, 502, blocks * 4096, false, {}});
    }

    void make_files()
    {
        Rng rng(7);
        make_dense("largest", kScale.largest, 1);
        make_sparse("sparse-largest", kScale.largest, 2, rng);
        make_fragmented("fragmented-a", "fragmented-b", 512);
        for (int i = 4; i < kScale.files && !HasFatalFailure(); i++) {
            std::string name = "file-" + std::to_string(i);
            uint64_t size = pick_size(rng, i), seed = 1000 + static_cast<uint64_t>(i);
            if (i % 10 == 9)
                make_sparse(name, size + 100000, seed, rng);
            else
                make_dense(name, size, seed);
        }
    }

    std::unique_ptr<Mounted> mount_;
    std::vector<StaticFile> files_;
};

// One reader: a registered buffer, and host memory for both results.
class Reader
{
  public:
    // A reader without its parts cannot continue.
    explicit Reader(const std::string &mountpoint) : expected_(kBuffer), got_(kBuffer)
    {
        // No crossover: short reads take the tested path, too.
        struct gpunvme_options options = {};
        options.crossover = 1;
        if (connection_open(mountpoint.c_str(), &mount_) != 0 ||
            bounce_set_options(mount_, &options) != 0 ||
            buffer_alloc(mount_, kBuffer, &buffer_) != 0)
            throw std::runtime_error(gpunvme_error());
    }
    ~Reader() { connection_close(mount_); }
    Reader(const Reader &) = delete;
    Reader &operator=(const Reader &) = delete;

    // Reads the range on both paths and compares every byte with the expected
    // one.
    ::testing::AssertionResult check(const StaticFile &file, int fd, uint64_t offset, size_t len,
                                     size_t buffer_offset)
    {
        size_t exists = offset < file.size ? std::min<uint64_t>(len, file.size - offset) : 0;
        file.expect(offset, expected_.data(), exists);
        ssize_t n = pread(fd, got_.data(), len, static_cast<off_t>(offset));
        if (n != static_cast<ssize_t>(exists) || memcmp(got_.data(), expected_.data(), exists) != 0)
            return ::testing::AssertionFailure() << file.name << ": read(2) at " << offset << "+"
                                                 << len << " gave " << n << " of " << exists;
        return check_gpu(file, fd, offset, len, buffer_offset, exists);
    }

    struct gpunvme_buffer *buffer() { return buffer_; }
    struct connection *mount() { return mount_; }

  private:
    ::testing::AssertionResult check_gpu(const StaticFile &file, int fd, uint64_t offset,
                                         size_t len, size_t buffer_offset, size_t exists)
    {
        struct gpunvme_result r;
        ssize_t n = transfer_read(buffer_, fd, buffer_offset, offset, len, &r);
        if (n != static_cast<ssize_t>(exists))
            return ::testing::AssertionFailure()
                   << file.name << ": GPU read at " << offset << "+" << len << " gave " << n
                   << " of " << exists << ", " << gpunvme_error();
        if (buffer_copy_out(buffer_, buffer_offset, got_.data(), exists) != 0)
            return ::testing::AssertionFailure() << gpunvme_error();
        // memcmp: a loop over every byte takes half of the test under a sanitizer.
        if (memcmp(got_.data(), expected_.data(), exists) != 0) {
            auto bad = std::mismatch(got_.begin(), got_.begin() + n, expected_.begin());
            return ::testing::AssertionFailure()
                   << file.name << ": GPU read at " << offset << "+" << len << " into buffer byte "
                   << buffer_offset << " is wrong at byte " << (bad.first - got_.begin());
        }
        if (n > 0 && r.path != kGpuPath)
            return ::testing::AssertionFailure() << file.name << ": took path " << r.path;
        if (r.staged && has_peer_memory())
            return ::testing::AssertionFailure() << file.name << ": was staged";
        return ::testing::AssertionSuccess();
    }

    struct connection *mount_ = nullptr;
    struct gpunvme_buffer *buffer_ = nullptr;
    std::vector<uint8_t> expected_, got_;
};

void read_at_random(Reader &reader, const std::vector<StaticFile> &files,
                    const std::vector<std::unique_ptr<Fd>> &fds, uint64_t seed)
{
    Rng rng(seed);
    for (int i = 0; i < kScale.reads && !::testing::Test::HasFailure(); i++) {
        size_t f = draw(rng, files.size());
        size_t len = 1 + draw(rng, draw(rng, 8) ? 20000 : kBuffer / 2);
        size_t buffer_offset = draw(rng, kBuffer - len);
        uint64_t offset = draw(rng, files[f].size + 100);
        if (draw(rng, 4) == 0) { // what aligned programs do
            offset &= ~4095ull;
            buffer_offset &= ~size_t{4095};
        }
        EXPECT_TRUE(reader.check(files[f], *fds[f], offset, len, buffer_offset));
    }
}

// Grows, shrinks, overwrites and renames its own file; each change must be
// visible at once on both paths.
void change_at_random(Reader &reader, const Mounted &mount, uint64_t seed)
{
    Rng rng(seed);
    std::string name = mount.path("churn-" + std::to_string(seed));
    Fd f(open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_GE(f, 0);
    StaticFile file{name, seed, 0, false, {}};
    for (int i = 0; i < kScale.changes && !::testing::Test::HasFailure(); i++) {
        uint64_t offset = draw(rng, file.size + 1), len = 1 + draw(rng, 100000);
        if (draw(rng, 4) == 0) {
            file.size = draw(rng, file.size + 1);
            ASSERT_EQ(ftruncate(f, static_cast<off_t>(file.size)), 0) << strerror(errno);
        } else {
            ASSERT_TRUE(write_range(f, seed, offset, len));
            file.size = std::max(file.size, offset + len);
        }
        if (draw(rng, 5) == 0) {
            std::string other = name + "'";
            ASSERT_EQ(rename(name.c_str(), other.c_str()), 0);
            std::swap(name, other);
        }
        offset = draw(rng, file.size + 1);
        EXPECT_TRUE(reader.check(file, f, offset, 50000, draw(rng, 5000)));
    }
    EXPECT_EQ(unlink(name.c_str()), 0);
}

TEST_F(EndToEnd, BothPathsAgreeWhileOthersChangeFilesAndAfterANewMount)
{
    make_files();
    ASSERT_FALSE(HasFatalFailure());
    std::vector<std::unique_ptr<Fd>> fds;
    for (const StaticFile &f : files_) {
        fds.push_back(std::make_unique<Fd>(open(mount_->path(f.name).c_str(), O_RDONLY)));
        ASSERT_GE(*fds.back(), 0) << f.name << ": " << strerror(errno);
    }
    {
        std::vector<std::unique_ptr<Reader>> readers;
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            readers.push_back(std::make_unique<Reader>(mount_->path("")));
        for (uint64_t i = 0; i < 2; i++) {
            threads.emplace_back([&, i] { read_at_random(*readers[i], files_, fds, 11 + i); });
            threads.emplace_back([&, i] { change_at_random(*readers[2 + i], *mount_, 91 + i); });
        }
        for (std::thread &t : threads)
            t.join();
    }
    fds.clear();
    std::string report;
    ASSERT_TRUE(mount_->unmount()) << mount_->log();
    ASSERT_EQ(mount_->fsck(&report), 0) << report;
    ASSERT_TRUE(mount_->mount()) << mount_->log();
    {
        Reader reader(mount_->path(""));
        for (const StaticFile &f : files_) {
            Fd fd(open(mount_->path(f.name).c_str(), O_RDONLY | O_CLOEXEC));
            for (uint64_t at = 0; at <= f.size; at += kBuffer)
                ASSERT_TRUE(reader.check(f, fd, at, kBuffer, 0));
        }
    }
    ASSERT_TRUE(mount_->unmount()) << mount_->log();
    ASSERT_EQ(mount_->fsck(&report), 0) << report;
}

TEST_F(EndToEnd, AFileWrittenFromABufferReadsBackOnBothPaths)
{
    Reader reader(mount_->path(""));
    StaticFile file{"from-buffer", 77, 3 * kBuffer + 12345, false, {}};
    Fd f(open(mount_->path(file.name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    ASSERT_GE(f, 0);
    std::vector<uint8_t> chunk(kBuffer);
    for (uint64_t at = 0; at < file.size; at += kBuffer) {
        size_t n = std::min<uint64_t>(kBuffer, file.size - at);
        content_fill(file.seed, at, chunk.data(), n);
        ASSERT_EQ(buffer_copy_in(reader.buffer(), 0, chunk.data(), n), 0);
        ASSERT_EQ(transfer_write(reader.buffer(), f, 0, at, n, nullptr), static_cast<ssize_t>(n))
            << gpunvme_error();
    }
    for (uint64_t at = 0; at <= file.size; at += kBuffer)
        EXPECT_TRUE(reader.check(file, f, at, kBuffer, 0));
}

} // namespace
