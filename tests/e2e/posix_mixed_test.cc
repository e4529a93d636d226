/* SPDX-License-Identifier: BSD-2-Clause */
// One file under random operations of every kind, compared with a string.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/e2e/posix.h"

namespace
{

constexpr size_t kMax = 1u << 20, kBlock = 4096;

class Mixed : public Posix
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(Posix::set_up());
        fd_ = make("f");
        direct_ = open(p("f").c_str(), O_RDWR | O_DIRECT);
        ASSERT_GE(direct_, 0) << strerror(errno);
        aligned_ = static_cast<char *>(aligned_alloc(kBlock, kMax));
    }
    void TearDown() override
    {
        free(aligned_);
        close(direct_);
        close(fd_);
    }
    size_t draw(size_t below) { return rng_() % below; }
    void reach(size_t end) { model_.resize(std::max(model_.size(), end)); }
    void put(size_t at, const char *data, size_t len)
    {
        reach(at + len);
        model_.replace(at, len, data, len);
    }
    void write_some(int fd, size_t at, size_t len)
    {
        for (size_t i = 0; i < len; i++)
            aligned_[i] = static_cast<char>(rng_());
        ASSERT_EQ(pwrite(fd, aligned_, len, static_cast<off_t>(at)), static_cast<ssize_t>(len));
        put(at, aligned_, len);
    }
    void read_some(int fd, size_t at, size_t len)
    {
        ssize_t n = pread(fd, aligned_, len, static_cast<off_t>(at));
        size_t want = at < model_.size() ? std::min(len, model_.size() - at) : 0;
        ASSERT_EQ(n, static_cast<ssize_t>(want));
        ASSERT_EQ(memcmp(aligned_, model_.data() + std::min(at, model_.size()), want), 0);
    }
    void allocate(int mode, size_t at, size_t len)
    {
        ASSERT_EQ(fallocate(fd_, mode, static_cast<off_t>(at), static_cast<off_t>(len)), 0);
        if (!(mode & FALLOC_FL_KEEP_SIZE))
            reach(at + len);
        size_t end = std::min(at + len, model_.size());
        if (mode && at < end)
            std::fill(model_.begin() + static_cast<long>(at),
                      model_.begin() + static_cast<long>(end), 0);
    }
    void map_some(size_t at, size_t len, bool sync)
    {
        if (model_.empty())
            return;
        at %= model_.size();
        len = std::min(len, model_.size() - at);
        void *m = mmap(nullptr, model_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        ASSERT_NE(m, MAP_FAILED);
        char *bytes = static_cast<char *>(m);
        EXPECT_EQ(memcmp(bytes + at, model_.data() + at, len), 0);
        memset(bytes + at, static_cast<char>(rng_()), len);
        put(at, bytes + at, len);
        EXPECT_EQ(sync ? msync(m, model_.size(), MS_SYNC) : 0, 0);
        munmap(m, model_.size());
    }
    void change()
    {
        const size_t at = draw(kMax), most[] = {200, 5000, 70000, 300000};
        const size_t len = 1 + draw(std::min(kMax - at, most[draw(4)]));
        const size_t block = at / kBlock * kBlock;
        const size_t blocks = std::min((len + kBlock - 1) / kBlock * kBlock, kMax - block);
        switch (draw(10)) {
        case 0:
            return write_some(fd_, at, len);
        case 1:
            return read_some(fd_, at, len);
        case 2:
            return write_some(direct_, block, blocks);
        case 3:
            return read_some(direct_, block, blocks);
        case 4:
            ASSERT_EQ(ftruncate(fd_, static_cast<off_t>(at)), 0);
            return model_.resize(at);
        case 5:
            return allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len);
        case 6:
            return allocate(FALLOC_FL_ZERO_RANGE, at, len);
        case 7:
            return allocate(0, at, len);
        case 8:
            return map_some(at, len, draw(2) == 0);
        default: // the next read comes from the file system, not from the page cache
            ASSERT_EQ(fsync(fd_) | posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
        }
    }
    int fd_ = -1, direct_ = -1;
    char *aligned_ = nullptr;
    std::string model_;
    std::mt19937_64 rng_{20};
};

TEST_F(Mixed, EveryWayOfChangingAFileAgreesWithTheOthers)
{
    for (int i = 0; i < 1500; i++) {
        SCOPED_TRACE(i);
        change();
        ASSERT_FALSE(HasFailure());
        ASSERT_EQ(st("f").st_size, static_cast<off_t>(model_.size()));
    }
    read_some(fd_, 0, kMax);
}

} // namespace
