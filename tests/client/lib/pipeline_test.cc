/* SPDX-License-Identifier: BSD-2-Clause */
// The bounce pipeline over ordinary files: bytes, ends, errors in the middle, threads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>
#include <vector>

#include "tests/client/lib/internal.h"
#include "tests/threads.h"

namespace
{

constexpr size_t kChunk = 4096;
constexpr unsigned char kUntouched = 0xa5;

std::vector<unsigned char> some_bytes(size_t n)
{
    std::vector<unsigned char> all(n);
    std::mt19937 rng(11);
    for (unsigned char &c : all)
        c = static_cast<unsigned char>(rng());
    return all;
}

// So many of the next reads and writes of files are interrupted.
std::atomic<unsigned> interrupts{0};
// Each of the next reads of files waits until this many have begun, at most five seconds.
std::atomic<unsigned> meeting{0}, inside{0};

bool is_interrupted()
{
    unsigned left = interrupts;
    while (left && !interrupts.compare_exchange_weak(left, left - 1))
        ;
    errno = EINTR;
    return left;
}

void meet()
{
    unsigned n = ++inside;
    for (int i = 0; i < 5000 && n < meeting; i++) {
        usleep(1000);
        n = inside;
    }
}

// Holds a pipeline without a mount, and a buffer in host memory.
class Rig
{
  public:
    Rig(unsigned threads, size_t chunk, std::vector<unsigned char> &memory)
    {
        handle_.fd = -1; // staging is not registered
        handle_.info.executor = GPUNVME_EXECUTOR_CUDA;
        buffer_.owner = &handle_;
        buffer_.addr = memory.data();
        buffer_.len = memory.size();
        buffer_.device = CUDA_NO_DEVICE;
        EXPECT_EQ(pipeline_new(&handle_, threads, chunk, &pipeline_), 0);
    }
    ~Rig() { pipeline_free(pipeline_); }
    Rig(const Rig &) = delete;
    Rig &operator=(const Rig &) = delete;

    // Returns the bytes moved. Stores the error of pipeline_run().
    size_t move(bool write, int fd, size_t at, uint64_t offset, size_t len, int *err)
    {
        gpunvme_result result = {};
        range r = {write, false, false, fd, at, offset, len};
        return pipeline_run(pipeline_, &buffer_, &r, &result, err);
    }
    size_t read(int fd, size_t at, uint64_t offset, size_t len, int *err)
    {
        return move(false, fd, at, offset, len, err);
    }
    size_t write(int fd, size_t at, uint64_t offset, size_t len, int *err)
    {
        return move(true, fd, at, offset, len, err);
    }
    int readv(int fd, std::vector<gpunvme_piece> &pieces, uint64_t *bytes = nullptr)
    {
        gpunvme_result result = {};
        staging_list list = {};
        uint64_t sum;
        list.b = &buffer_;
        list.fd = fd;
        list.pieces = pieces.data();
        list.n = pieces.size();
        return pipeline_readv(pipeline_, &list, bytes ? bytes : &sum, &result);
    }
    // Returns the number of lanes that were made, all of which are free.
    size_t staging()
    {
        size_t n = 0;
        for (gpunvme_buffer *b = LIST_FIRST(&handle_.buffers); b; b = LIST_NEXT(b, entry))
            n++;
        return n;
    }

  private:
    connection handle_ = {}; // with a lock that is initialised by zeros
    gpunvme_buffer buffer_ = {};
    pipeline *pipeline_ = nullptr;
};

class Pipeline : public ::testing::TestWithParam<unsigned>
{
  protected:
    void SetUp() override
    {
        fd_ = memfd_create("pipeline-test", MFD_CLOEXEC);
        ASSERT_GE(fd_, 0);
        ASSERT_EQ(write(fd_, file_.data(), file_.size()), static_cast<ssize_t>(file_.size()));
    }
    void TearDown() override { close(fd_); }

    std::vector<unsigned char> file_ = some_bytes(40 * kChunk + 123);
    std::vector<unsigned char> buffer_ = std::vector<unsigned char>(48 * kChunk, kUntouched);
    int fd_ = -1;
    Rig rig_{GetParam(), kChunk, buffer_};
};

TEST_P(Pipeline, ReadsAnyRangeAndTouchesNothingElse)
{
    std::mt19937 rng(3);
    for (int i = 0; i < 200; i++) {
        size_t offset = rng() % file_.size(), len = rng() % (file_.size() - offset);
        size_t at = rng() % (buffer_.size() - len);
        std::vector<unsigned char> expected(buffer_.size(), kUntouched);
        std::copy_n(file_.begin() + static_cast<ssize_t>(offset), len,
                    expected.begin() + static_cast<ssize_t>(at));
        std::fill(buffer_.begin(), buffer_.end(), kUntouched);
        int err;
        ASSERT_EQ(rig_.read(fd_, at, offset, len, &err), len);
        ASSERT_EQ(err, 0);
        ASSERT_EQ(buffer_, expected) << offset << "+" << len << " to " << at;
    }
    EXPECT_LE(rig_.staging(), GetParam());
}

TEST_P(Pipeline, IsShortAtTheEndOfTheFile)
{
    int err;
    EXPECT_EQ(rig_.read(fd_, 0, 10 * kChunk + 1, 48 * kChunk, &err),
              file_.size() - 10 * kChunk - 1);
    EXPECT_EQ(err, 0);
    EXPECT_EQ(rig_.read(fd_, 0, file_.size(), kChunk, &err), 0u);
    EXPECT_EQ(err, 0);
    EXPECT_EQ(rig_.read(fd_, 0, 1ull << 40, 9 * kChunk, &err), 0u);
    EXPECT_EQ(err, 0);
    EXPECT_EQ(rig_.read(fd_, 0, 0, 0, &err), 0u);
    EXPECT_EQ(err, 0);
}

// A file that fails in its middle: this process's memory, with a hole in it.
TEST_P(Pipeline, AnErrorInTheMiddleEndsItAtTheByte)
{
    const size_t good = 13 * kChunk;
    auto *memory = static_cast<unsigned char *>(
        mmap(nullptr, 24 * kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    std::copy_n(file_.begin(), 24 * kChunk, memory);
    ASSERT_EQ(munmap(memory + good, kChunk), 0);
    int self = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(self, 0);
    int err;
    const size_t skip = 777;
    size_t n = rig_.read(self, 5, reinterpret_cast<uintptr_t>(memory) + skip, 20 * kChunk, &err);
    EXPECT_EQ(n, good - skip);
    EXPECT_EQ(err, -EIO);
    EXPECT_STRNE(gpunvme_error(), "no error");
    EXPECT_TRUE(std::equal(buffer_.begin() + 5, buffer_.begin() + 5 + static_cast<ssize_t>(n),
                           file_.begin() + skip));
    close(self);
    munmap(memory, good);
    munmap(memory + good + kChunk, 10 * kChunk);
}

// As file systems in user space may say of a signal.
TEST_P(Pipeline, CallsThatAreInterruptedAreMadeAgain)
{
    const size_t n = 10 * kChunk;
    int err;
    interrupts = 5;
    EXPECT_EQ(rig_.read(fd_, 0, 7, n, &err), n);
    EXPECT_EQ(err, 0);
    EXPECT_EQ(memcmp(buffer_.data(), &file_[7], n), 0);
    interrupts = 5;
    EXPECT_EQ(rig_.write(fd_, 0, 0, n, &err), n);
    EXPECT_EQ(err, 0);
    interrupts = 0;
}

TEST_P(Pipeline, AnUnsuitableDescriptorIsAnError)
{
    int err;
    EXPECT_EQ(rig_.read(-1, 0, 0, 20 * kChunk, &err), 0u);
    EXPECT_EQ(err, -EBADF);
    int closed = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(rig_.write(closed, 0, 0, 20 * kChunk, &err), 0u);
    EXPECT_EQ(err, -EBADF);
    close(closed);
}

TEST_P(Pipeline, WritesAnyRangeAndNothingElse)
{
    std::mt19937 rng(4);
    std::vector<unsigned char> fresh = some_bytes(buffer_.size());
    std::copy(fresh.begin(), fresh.end(), buffer_.begin());
    for (int i = 0; i < 100; i++) {
        size_t offset = rng() % file_.size(), len = rng() % (file_.size() - offset);
        size_t at = rng() % (buffer_.size() - len);
        std::copy_n(buffer_.begin() + static_cast<ssize_t>(at), len,
                    file_.begin() + static_cast<ssize_t>(offset));
        int err;
        ASSERT_EQ(rig_.write(fd_, at, offset, len, &err), len);
        ASSERT_EQ(err, 0);
        std::vector<unsigned char> now(file_.size() + 1);
        ASSERT_EQ(pread(fd_, now.data(), now.size(), 0), static_cast<ssize_t>(file_.size()));
        now.pop_back();
        ASSERT_EQ(now, file_) << offset << "+" << len << " from " << at;
    }
}

TEST_P(Pipeline, AFailedWriteHasWrittenOnlyTheReportedBytes)
{
    const rlim_t room = 11 * kChunk + 99;
    struct rlimit old, limit;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    auto before = signal(SIGXFSZ, SIG_IGN);
    limit = old;
    limit.rlim_cur = room;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int err;
    size_t n = rig_.write(fd_, 0, 0, 30 * kChunk, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, before);
    if (err == 0 && n == 30 * kChunk)
        GTEST_SKIP() << "this kernel does not limit the size of a memfd";
    EXPECT_EQ(n, room);
    EXPECT_EQ(err, -EFBIG);
    EXPECT_EQ(lseek(fd_, 0, SEEK_END), static_cast<off_t>(room));
}

// The list has neighbours, gaps, the end of the file, and pieces that are too
// long or invalid.
TEST_P(Pipeline, ReadsAListAndTouchesNothingElse)
{
    std::mt19937 rng(5);
    for (int round = 0; round < 20; round++) {
        std::vector<gpunvme_piece> list;
        std::vector<unsigned char> expected(buffer_.size(), kUntouched);
        uint64_t bytes, sum = 0;
        for (size_t at = 0; at + kChunk < buffer_.size();) {
            auto len = static_cast<uint32_t>(rng() % (rng() % 4 ? 200 : kChunk + 1));
            uint64_t offset = rng() % (file_.size() + 100);
            size_t got = offset < file_.size() ? std::min<size_t>(len, file_.size() - offset) : 0;
            std::copy_n(file_.begin() + static_cast<ssize_t>(offset), got,
                        expected.begin() + static_cast<ssize_t>(at));
            list.push_back({offset, at, len, static_cast<int32_t>(got)});
            sum += got;
            at += len + (rng() % 3 ? 0 : 1 + rng() % 9);
        }
        std::vector<gpunvme_piece> odd = {{0, buffer_.size(), 1, -ERANGE},
                                          {0, 0, kChunk + 1, -E2BIG},
                                          {UINT64_MAX - 5, 0, 100, -EOVERFLOW},
                                          {0, 0, 1u << 31, -EINVAL}};
        for (const gpunvme_piece &p : odd)
            list.insert(list.begin() + static_cast<ssize_t>(rng() % list.size()), p);
        std::vector<gpunvme_piece> read = list;
        for (gpunvme_piece &p : read)
            p.result = -ECANCELED;
        std::fill(buffer_.begin(), buffer_.end(), kUntouched);
        ASSERT_EQ(rig_.readv(fd_, read, &bytes), 0) << gpunvme_error();
        EXPECT_EQ(bytes, sum);
        for (size_t i = 0; i < list.size(); i++)
            ASSERT_EQ(read[i].result, list[i].result) << i;
        ASSERT_EQ(buffer_, expected);
    }
}

TEST_P(Pipeline, AFaultyPieceOfAListHasItsOwnError)
{
    auto *memory = static_cast<unsigned char *>(
        mmap(nullptr, 3 * kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    std::copy_n(file_.begin(), 3 * kChunk, memory);
    ASSERT_EQ(munmap(memory + kChunk, kChunk), 0);
    int self = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    auto start = reinterpret_cast<uintptr_t>(memory);
    std::vector<gpunvme_piece> list;
    for (uint64_t i = 0; i < 3 * 16; i++)
        list.push_back({start + i * 256, i * 256, 256, -ECANCELED});
    ASSERT_EQ(rig_.readv(self, list), 0);
    for (size_t i = 0; i < list.size(); i++)
        EXPECT_EQ(list[i].result, i / 16 == 1 ? -EIO : 256) << i;
    EXPECT_TRUE(std::equal(file_.begin(), file_.begin() + kChunk, buffer_.begin()));
    EXPECT_EQ(buffer_[kChunk], kUntouched);
    close(self);
    munmap(memory, kChunk);
    munmap(memory + 2 * kChunk, kChunk);
}

TEST_P(Pipeline, AnErrorOfAListEndsTheList)
{
    std::vector<gpunvme_piece> list;
    for (uint64_t i = 0; i < 1900; i++)
        list.push_back({0, i * 100, 100, -ECANCELED});
    EXPECT_EQ(rig_.readv(-1, list), -EBADF);
    for (const gpunvme_piece &p : list)
        ASSERT_EQ(p.result, -ECANCELED);
    EXPECT_EQ(rig_.readv(fd_, list), 0);
    EXPECT_EQ(list.back().result, 100);
}

// One thread has the pair for long writes, in chunks of several MiB, and the
// others write by other pairs at the same time.
TEST_P(Pipeline, LongWritesOfSeveralThreadsAreWhole)
{
    constexpr size_t kLong = 20 * kChunk;
    std::vector<int> bad(4);
    in_threads(bad.size(), [&](size_t t) {
        for (int i = 0; i < 20; i++) {
            int err;
            bad[t] |= rig_.write(fd_, t * kLong / 4, t * kLong, kLong, &err) != kLong || err;
        }
    });
    std::vector<unsigned char> now(kLong);
    for (size_t t = 0; t < bad.size(); t++) {
        EXPECT_EQ(bad[t], 0);
        ASSERT_EQ(pread(fd_, now.data(), kLong, static_cast<off_t>(t * kLong)), ssize_t{kLong});
        EXPECT_TRUE(std::equal(now.begin(), now.end(), &buffer_[t * kLong / 4]));
    }
}

TEST_P(Pipeline, ServesManyThreadsWithTheLanesItHas)
{
    std::vector<int> bad(6);
    const size_t part = 8 * kChunk;
    in_threads(bad.size(), [&](size_t t) {
        int err;
        for (int i = 0; i < 50; i++)
            bad[t] |= rig_.read(fd_, t * part, t * kChunk + 1, part, &err) != part;
    });
    for (size_t t = 0; t < bad.size(); t++) {
        EXPECT_EQ(bad[t], 0);
        EXPECT_TRUE(std::equal(buffer_.begin() + static_cast<ssize_t>(t * part),
                               buffer_.begin() + static_cast<ssize_t>((t + 1) * part),
                               file_.begin() + static_cast<ssize_t>(t * kChunk + 1)));
    }
    EXPECT_LE(rig_.staging(), GetParam());
}

// The limit of threads does not apply to short reads, which their callers make.
TEST(PipelineOfShortReads, MoreCallersThanThreadsReadAtTheSameTime)
{
    std::vector<unsigned char> file = some_bytes(16 * kChunk), buffer(file.size());
    int fd = memfd_create("pipeline-test", MFD_CLOEXEC);
    ASSERT_EQ(write(fd, file.data(), file.size()), static_cast<ssize_t>(file.size()));
    Rig rig(2, 1 << 20, buffer);
    std::vector<int> bad(16);
    auto begun = std::chrono::steady_clock::now();
    inside = 0;
    meeting = static_cast<unsigned>(bad.size());
    in_threads(bad.size(), [&](size_t t) {
        int err;
        bad[t] = rig.read(fd, t * kChunk, t * kChunk, kChunk, &err) != kChunk || err;
    });
    meeting = 0;
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(4));
    EXPECT_EQ(bad, std::vector<int>(bad.size()));
    EXPECT_EQ(buffer, file);
    EXPECT_EQ(rig.staging(), bad.size());
    close(fd);
}

INSTANTIATE_TEST_SUITE_P(Threads, Pipeline, ::testing::Values(1u, 2u, 7u));

extern "C" {

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t offset)
{
    meet();
    return is_interrupted() ? -1 : __real_pread64(fd, buf, len, offset);
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t offset)
{
    return is_interrupted() ? -1 : __real_pwrite64(fd, buf, len, offset);
}

} // extern "C"

// --- Which transfers of GPU memory take the pipeline ---------------------------------------------

constexpr size_t kKib = 1024;

class Choice : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        cached_ = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        ASSERT_GE(cached_, 0);
        ASSERT_EQ(connection_local(&buffer_.owner), 0);
        buffer_.shared = true;
        range_.fd = cached_;
    }
    void TearDown() override
    {
        connection_close(buffer_.owner);
        close(cached_);
        if (direct_ >= 0)
            close(direct_);
    }
    bool open_direct()
    {
        direct_ = open("/proc/self/exe", O_RDONLY | O_DIRECT | O_CLOEXEC);
        return direct_ >= 0;
    }
    void set(uint32_t path, uint64_t crossover)
    {
        gpunvme_options options = {};
        options.path = path;
        options.crossover = crossover;
        ASSERT_EQ(bounce_set_options(buffer_.owner, &options), 0);
    }
    // Returns why a transfer of a buffer that the mount has taken bounces, or NULL if it does not.
    const char *why(size_t len)
    {
        range_.len = len;
        return gpunvme_choose_path(&buffer_, &range_, pieces_).why;
    }
    bool bounces(size_t len) { return why(len) != nullptr; }

    int cached_ = -1, direct_ = -1;
    gpunvme_buffer buffer_ = {}; // of the first GPU
    range range_ = {};
    size_t pieces_ = 0; // of a batch of range_.len bytes together; 0: no batch
};

TEST_F(Choice, ShortReadsBounceAndSaySo)
{
    EXPECT_STREQ(why(1), "shorter than the crossover");
    EXPECT_STREQ(why(4 * kKib), "shorter than the crossover");
    EXPECT_TRUE(bounces(128 * kKib - 1));
    EXPECT_FALSE(bounces(128 * kKib));
}

TEST_F(Choice, FewerReadsBounceWithoutReadAhead)
{
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    range_.fd = direct_;
    EXPECT_TRUE(bounces(16 * kKib - 1));
    EXPECT_FALSE(bounces(16 * kKib));
}

TEST_F(Choice, ShortWritesBounce)
{
    range_.write = true;
    EXPECT_STREQ(why(12 * kKib), "shorter than the crossover");
    EXPECT_FALSE(bounces(16 * kKib));
}

// The GPU path writes whole blocks.
TEST_F(Choice, WritesOfPartsOfBlocksDoNotBounce)
{
    range_.write = true;
    ASSERT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(4 * kKib + 1));
    range_.file_offset = 1;
    EXPECT_FALSE(bounces(4 * kKib));
}

// write(2) would send SIGXFSZ.
TEST_F(Choice, WritesPastTheLimitOfFileSizesAreTheMounts)
{
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = {1 << 20, before.rlim_max};
    range_.write = true;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    range_.file_offset = (1 << 20) - 4 * kKib;
    EXPECT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(8 * kKib));
    range_.file_offset = 2 << 20;
    EXPECT_FALSE(bounces(4 * kKib));
    setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(Choice, ListsOfFewPiecesBounce)
{
    pieces_ = 4;
    EXPECT_STREQ(why(128 * kKib - 1), "shorter than the crossover");
    EXPECT_FALSE(bounces(128 * kKib));
    pieces_ = 5;
    EXPECT_FALSE(bounces(20 * kKib));
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    pieces_ = 2;
    range_.fd = direct_;
    EXPECT_FALSE(bounces(8 * kKib));
}

TEST_F(Choice, ACrossoverReplacesTheSizes)
{
    set(0, 8192);
    EXPECT_STREQ(why(8191), "shorter than the crossover");
    EXPECT_FALSE(bounces(8192));
    range_.write = true;
    EXPECT_TRUE(bounces(8191));
    range_.write = false;
    pieces_ = 2;
    EXPECT_FALSE(bounces(4 * kKib));
    pieces_ = 0;
    set(0, 1);
    EXPECT_FALSE(bounces(1));
}

TEST_F(Choice, APathThatWasAskedForIsTheOnlyOne)
{
    set(GPUNVME_PATH_GPU, 0);
    EXPECT_FALSE(bounces(4 * kKib));
    set(GPUNVME_PATH_BOUNCE, 0);
    EXPECT_STREQ(why(1024 * kKib), "asked for");
}

TEST_F(Choice, HostMemoryTakesTheMount)
{
    buffer_.device = CUDA_NO_DEVICE;
    EXPECT_FALSE(bounces(4 * kKib));
}

TEST_F(Choice, WritesBesideTheKernelsCacheAlwaysBounce)
{
    range_.write = true;
    buffer_.owner->info.writeback_cache = true;
    EXPECT_TRUE(bounces(1024 * kKib));
}

} // namespace
