/* SPDX-License-Identifier: BSD-2-Clause */
// Tests caches of direct files on a mount without a GPU, whose memory is that of
// the process: threads read as warps do.
#include "tests/client/lib/cache_rig.h"
#include "tests/client/lib/internal.h"
#include "tests/client/lib/table_base.h"
#include "tests/threads.h"

using namespace table_base;

namespace
{

constexpr int kRead = 2, kAny = -1; // opcodes

const Way kReached = {"Reached", "executor=cpu,direct=all,deadline=60000", GPUNVME_FILE_DIRECT},
          kStaged = {"Staged", "executor=cpu_staged,direct=all,deadline=60000",
                     GPUNVME_FILE_DIRECT},
          kShort = {"", "executor=cpu,direct=all,deadline=2000", GPUNVME_FILE_DIRECT};

class CacheTest : public TableBase, public ::testing::WithParamInterface<Way>
{
  protected:
    static void SetUpTestSuite() { puppet_ = GPUNVME_PUPPET; }
    void TearDown() override
    {
        gpunvme_cache_close(cache_);
        TableBase::TearDown();
    }

    void open_cache(size_t bytes = 1u << 20, uint32_t line = 0)
    {
        ASSERT_EQ(gpunvme_cache_open(file_, bytes, line, &cache_), 0) << gpunvme_error();
    }

    // Opens a cache of a copy of the file, which the test may change.
    void open_cache_of_copy()
    {
        ASSERT_TRUE(make_file(path("copy"), bytes_));
        file_ = open_file(path("copy"));
        content_ = bytes_;
        open_cache();
    }

    void change(size_t at, char value)
    {
        int fd = open(path("copy").c_str(), O_WRONLY | O_CLOEXEC);
        ASSERT_EQ(pwrite(fd, &value, 1, static_cast<off_t>(at)), 1);
        ASSERT_EQ(fsync(fd), 0);
        close(fd);
        content_[at] = value;
    }

    // Returns the result, or -EBADMSG if a byte is wrong.
    int64_t read(size_t n, size_t offset)
    {
        const std::vector<char> &want = content_.empty() ? bytes_ : content_;
        std::vector<char> to(n);
        int64_t got = cache_rig_read(gpunvme_cache_device(cache_), to.data(), n, offset);
        bool is = got <= 0 || memcmp(to.data(), &want[offset], static_cast<size_t>(got)) == 0;
        return is ? got : -EBADMSG;
    }

    struct gpunvme_cache_stats stats()
    {
        struct gpunvme_cache_stats s = {};
        EXPECT_EQ(gpunvme_cache_stats(cache_, &s, sizeof(s)), 0) << gpunvme_error();
        return s;
    }

    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0)
    {
        ASSERT_NO_FATAL_FAILURE(tell_fault(control_, kind, opcode, 0, times, status));
    }

    struct gpunvme_cache *cache_ = nullptr;
    std::vector<char> content_; // of the copy
};

using CacheFails = CacheTest;

INSTANTIATE_TEST_SUITE_P(Ways, CacheTest, ::testing::Values(kReached, kStaged),
                         [](const auto &info) { return info.param.name; });

TEST_P(CacheTest, ReadsTheFile)
{
    start(GetParam());
    for (uint32_t line : {512u, 4096u, 65536u}) {
        open_cache(1u << 20, line);
        std::atomic<unsigned> wrong{0};
        in_threads(4, [&](unsigned t) {
            std::mt19937 rng(t);
            for (int i = 0; i < 200; i++) {
                size_t n = 1 + rng() % 9000, offset = rng() % (kFile / 8);
                wrong += read(n, offset) != static_cast<int64_t>(n);
            }
        });
        EXPECT_EQ(wrong, 0u);
        EXPECT_EQ(read(100, kFile - 60), 60);
        EXPECT_GT(stats().hits, 0u);
        EXPECT_GT(stats().misses, 0u);
        EXPECT_EQ(stats().bytes, 1u << 20);
        EXPECT_EQ(stats().line_bytes, line);
        gpunvme_cache_close(cache_);
        cache_ = nullptr;
    }
}

TEST_P(CacheTest, ElementsAndPrefetches)
{
    start(GetParam());
    open_cache(1u << 20);
    EXPECT_EQ(cache_rig_prefetch(gpunvme_cache_device(cache_), 64 * kBlock, 5), 0);
    EXPECT_EQ(stats().misses, 65u);
    std::vector<char> to(CACHE_LANES * 12);
    struct cache_element e[CACHE_LANES];
    for (size_t i = 0; i < CACHE_LANES; i++)
        e[i] = {reinterpret_cast<uint64_t>(&to[i * 12]), i * 8190, 1};
    cache_rig_elements(gpunvme_cache_device(cache_), 12, e);
    for (size_t i = 0; i < CACHE_LANES; i++) {
        EXPECT_EQ(e[i].err, 0);
        EXPECT_EQ(memcmp(&to[i * 12], &bytes_[i * 8190], 12), 0) << i;
    }
    EXPECT_EQ(stats().misses, 65u);
    EXPECT_EQ(stats().bypasses, 0u);
}

// Any number of bytes gives sets of 16 to 31 ways, or one set of fewer.
TEST_P(CacheTest, OfAnySize)
{
    start(GetParam());
    for (size_t lines : {1, 16, 31, 33, 100}) {
        open_cache(lines * kBlock + 9);
        EXPECT_LE(stats().bytes, lines * kBlock);
        EXPECT_GE(stats().bytes, lines * kBlock - lines * kBlock / 16);
        for (size_t i = 0; i < 2 * lines; i++)
            ASSERT_EQ(read(kBlock, i * kBlock), static_cast<int64_t>(kBlock));
        gpunvme_cache_close(cache_);
        cache_ = nullptr;
    }
}

TEST_F(CacheFails, ArgumentsAreChecked)
{
    start(kReached);
    EXPECT_EQ(gpunvme_cache_open(file_, 1u << 20, 3000, &cache_), -EINVAL);
    EXPECT_EQ(gpunvme_cache_open(file_, 1u << 20, 256, &cache_), -EINVAL);
    EXPECT_EQ(gpunvme_cache_open(file_, 1u << 20, 131072, &cache_), -EINVAL);
    EXPECT_NE(strstr(gpunvme_error(), "131072"), nullptr) << gpunvme_error();
    EXPECT_EQ(gpunvme_cache_open(file_, 4095, 4096, &cache_), -EINVAL);
    flags_ = 0;
    EXPECT_EQ(gpunvme_cache_open(open_file(path("one")), 1u << 20, 0, &cache_), -EINVAL);
    EXPECT_NE(strstr(gpunvme_error(), "GPUNVME_FILE_DIRECT"), nullptr) << gpunvme_error();
    gpunvme_cache_close(nullptr);
    struct gpunvme_cache_stats old = {1, 1, 1, 1, 1};
    open_cache();
    EXPECT_EQ(gpunvme_cache_stats(cache_, &old, sizeof(uint64_t)), 0);
    EXPECT_EQ(old.bytes, 1u << 20);
    EXPECT_EQ(old.hits, 1u) << "a program of an earlier version has no such field";
}

TEST_F(CacheFails, LbasAndChecksumsBoundTheLine)
{
    start({"", "executor=cpu,direct=all,deadline=60000,sim=lba:4096", GPUNVME_FILE_DIRECT},
          {"-O", "data_csum"});
    EXPECT_EQ(gpunvme_cache_open(file_, 1u << 20, 2048, &cache_), -EINVAL);
    open_cache();
    EXPECT_EQ(read(3 * kBlock, 10), static_cast<int64_t>(3 * kBlock));
    ASSERT_NO_FATAL_FAILURE(fault("corrupt", kRead, 4)); // twice as a line, twice without
    EXPECT_EQ(read(10, 100 * kBlock), -EIO);
    EXPECT_EQ(read(10, 100 * kBlock), 10);
}

// --- The end of validity -------------------------------------------------------

TEST_F(CacheFails, ADroppedCacheSeesNewData)
{
    start(kReached);
    open_cache_of_copy();
    EXPECT_EQ(read(100, 0), 100);
    ASSERT_NO_FATAL_FAILURE(change(7, 'x'));
    ASSERT_EQ(gpunvme_cache_drop(cache_), 0) << gpunvme_error();
    EXPECT_EQ(read(100, 0), 100);
    EXPECT_EQ(stats().misses, 2u);
}

// The file has other blocks then.
TEST_F(CacheFails, ARefreshEndsAllLines)
{
    start(kReached);
    open_cache_of_copy();
    for (int turn = 0; turn < 5; turn++) {
        EXPECT_EQ(read(100, kFile / 2), 100);
        int fd = open(path("copy").c_str(), O_WRONLY | O_CLOEXEC);
        ASSERT_EQ(ftruncate(fd, 100), 0);
        ASSERT_EQ(ftruncate(fd, kFile), 0);
        std::fill(content_.begin() + 100, content_.end(), 0);
        ASSERT_NO_FATAL_FAILURE(change(kFile / 2 + 5, static_cast<char>('a' + turn)));
        close(fd);
        gpunvme_cache *c;
        LIST_FOREACH(c, &file_->leased->caches, entry)
        {
            if (turn == 2)
                c->device.generation = GD_CACHE_GENERATIONS - 1; // of a word, which has few bits
        }
        ASSERT_EQ(gpunvme_file_refresh(file_), 1) << gpunvme_error();
        EXPECT_EQ(read(100, kFile / 2), 100) << turn;
        EXPECT_EQ(gpunvme_file_refresh(file_), 0);
    }
    EXPECT_EQ(stats().misses, 6u);
    EXPECT_EQ(stats().bypasses, 0u);
}

TEST_F(CacheFails, AKilledDaemonEndsHits)
{
    start(kShort);
    open_cache();
    EXPECT_EQ(read(100, 0), 100);
    kill(mount_->pid(), SIGKILL);
    EXPECT_FALSE(mount_->ended());
    EXPECT_LT(read(100, 50 * kBlock), 0) << "no drive completes the command";
    EXPECT_LT(gpunvme_file_renew(file_), 0);
    EXPECT_EQ(read(100, 0), -ESTALE);
}

// --- Faults --------------------------------------------------------------------

TEST_F(CacheFails, ALostCommandEndsByTheDeadline)
{
    start(kShort);
    open_cache();
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
    EXPECT_EQ(read(100, 0), -ETIMEDOUT);
    EXPECT_EQ(gpunvme_cache_drop(cache_), -EBUSY);
    EXPECT_EQ(read(100, 0), 100) << "without the line, on another queue";
    EXPECT_EQ(stats().bypasses, 1u);
    ASSERT_EQ(gpunvme_file_renew(file_), 0) << gpunvme_error();
    EXPECT_EQ(read(100, 0), 100);
    EXPECT_EQ(read(100, 0), 100);
    EXPECT_EQ(stats().bypasses, 1u);
    EXPECT_EQ(stats().misses, 2u);
    EXPECT_EQ(gpunvme_cache_drop(cache_), 0);
}

// Few lines under many warps, while the drive fails commands.
TEST_F(CacheFails, NoWrongByteWithSuccess)
{
    start(kReached);
    open_cache(64 * kBlock);
    std::atomic<unsigned> wrong{0}, failed{0};
    for (unsigned i = 0; i < 60; i++)
        tell_fault(control_, "status", kRead, i * 20, 1 + i % 3, 0x281);
    in_threads(6, [&](unsigned t) {
        std::mt19937 rng(t);
        for (int i = 0; i < 400; i++) {
            size_t n = 1 + rng() % 6000, offset = rng() % (rng() % 2 ? 1u << 18 : kFile / 2);
            int64_t got = read(n, offset);
            failed += got == -EIO;
            wrong += got != -EIO && got != static_cast<int64_t>(n);
        }
    });
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(stats().bypasses, 0u);
}

// --- Gathers of tables through caches of their files ---------------------------------------------

class TableCache : public TableBase, public ::testing::WithParamInterface<Way>
{
  protected:
    static void SetUpTestSuite() { puppet_ = GPUNVME_PUPPET; }
    void TearDown() override
    {
        gpunvme_table_close(table_);
        table_ = nullptr;
        for (struct gpunvme_cache *c : caches_)
            gpunvme_cache_close(c);
        TableBase::TearDown();
    }

    // Opens a cache of a file with lines as long as the units of the table.
    struct gpunvme_cache *open_cache(struct gpunvme_file *f, size_t bytes = 4u << 20)
    {
        struct gpunvme_cache *c = nullptr;
        EXPECT_EQ(gpunvme_cache_open(f, bytes, gpunvme_table_unit(table_), &c), 0)
            << gpunvme_error();
        caches_.push_back(c);
        return c;
    }

    void open_all(uint32_t row = kRow, uint64_t head = 0, size_t bytes = 4u << 20)
    {
        open_table(row, head);
        ASSERT_EQ(gpunvme_table_use_cache(table_, open_cache(file_, bytes)), 0) << gpunvme_error();
    }

    struct gpunvme_table_stats stats() const
    {
        struct gpunvme_table_stats s = {};
        EXPECT_EQ(gpunvme_table_stats(table_, &s, sizeof(s)), 0);
        return s;
    }

    std::vector<struct gpunvme_cache *> caches_;
};

using TableCacheFails = TableCache;

INSTANTIATE_TEST_SUITE_P(Ways, TableCache, ::testing::Values(kReached, kStaged),
                         [](const auto &info) { return info.param.name; });

TEST_P(TableCache, RowsThatAreCachedAreNotRead)
{
    start(GetParam());
    open_all(272, 8104);
    Ids ids(500);
    std::mt19937 rng(4);
    for (int64_t &id : ids)
        id = rng() % 2000;
    EXPECT_GT(gather(ids).reads, 0u);
    EXPECT_EQ(count_zeros(ids, out_), 0u);
    EXPECT_EQ(stats().hits, 0u);
    EXPECT_EQ(gather(ids).reads, 0u);
    EXPECT_EQ(count_zeros(ids, out_), 0u);
    EXPECT_EQ(stats().hits, 500u);
    ids.push_back(30000);
    EXPECT_EQ(gather(ids).reads, 1u);
    EXPECT_EQ(count_zeros(ids, out_), 0u);
}

TEST_P(TableCache, EachFileHasACacheOrNone)
{
    start(GetParam());
    auto more = some_bytes(1u << 20, 9);
    for (const char *name : {"two", "three"})
        ASSERT_TRUE(make_file(path(name), more));
    struct gpunvme_file *two = open_file(path("two")), *three = open_file(path("three"));
    const struct gpunvme_segment s[] = {{file_, 77, 100}, {two, 8, 100}, {three, 5, 100}};
    ASSERT_EQ(gpunvme_table_open(s, 3, kRow, kRows, nullptr, &table_), 0) << gpunvme_error();
    for (struct gpunvme_file *f : {file_, three})
        ASSERT_EQ(gpunvme_table_use_cache(table_, open_cache(f)), 0) << gpunvme_error();
    Ids ids = all_of(300);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    out_.resize(kRows * kRow);
    for (int turn = 0; turn < 2; turn++) {
        EXPECT_EQ(gather(ids).failed, 0u);
        for (size_t i = 0; i < ids.size(); i++) {
            auto k = static_cast<size_t>(ids[i]) / 100, row = static_cast<size_t>(ids[i]) % 100;
            ASSERT_EQ(memcmp(&out_[i * kRow], &(k ? more : bytes_)[s[k].offset + row * kRow], kRow),
                      0)
                << ids[i];
        }
    }
    EXPECT_EQ(stats().hits, 200u);
}

TEST_P(TableCache, TablesAndThreadsShareACache)
{
    start(GetParam());
    open_all(kRow, 0, 64u << 10);
    const struct gpunvme_segment s = {file_, 0, kFile / kRow};
    in_threads(4, [&](int t) {
        struct gpunvme_table *own = nullptr;
        ASSERT_EQ(gpunvme_table_open(&s, 1, kRow, 500, nullptr, &own), 0);
        ASSERT_EQ(gpunvme_table_use_cache(own, caches_[0]), 0) << gpunvme_error();
        for (unsigned round = 0; round < 20; round++)
            ASSERT_NO_FATAL_FAILURE(
                gather_any(own, round % 2 ? 400 : 65536, static_cast<unsigned>(t) * 100 + round));
        gpunvme_table_close(own);
    });
}

TEST_F(TableCacheFails, InsertionAtTheSecondTouch)
{
    start(kReached);
    open_all();
    EXPECT_EQ(gpunvme_cache_set_insertion(caches_[0], 2), -EINVAL);
    ASSERT_EQ(gpunvme_cache_set_insertion(caches_[0], GPUNVME_CACHE_SECOND_TOUCH), 0);
    EXPECT_EQ(gather({1, 1}).reads, 1u);
    EXPECT_EQ(gather({1, 1}).reads, 1u);
    EXPECT_EQ(gather({1, 1}).reads, 0u);
    ASSERT_EQ(gpunvme_cache_set_insertion(caches_[0], GPUNVME_CACHE_ALL), 0);
    EXPECT_EQ(gather({100}).reads, 1u);
    EXPECT_EQ(gather({100}).reads, 0u);
    EXPECT_EQ(count_zeros({100}, out_), 0u);
}

TEST_F(TableCacheFails, ACacheThatDoesNotSuitIsRefused)
{
    start(kReached);
    open_table();
    ASSERT_TRUE(make_file(path("two"), bytes_));
    EXPECT_EQ(gpunvme_table_use_cache(table_, open_cache(open_file(path("two")))), -EINVAL);
    struct gpunvme_cache *longer = nullptr;
    ASSERT_EQ(gpunvme_cache_open(file_, 1u << 20, 65536, &longer), 0) << gpunvme_error();
    caches_.push_back(longer);
    EXPECT_EQ(gpunvme_table_use_cache(table_, longer), -EINVAL);
    EXPECT_NE(strstr(gpunvme_error(), "65536"), nullptr) << gpunvme_error();
    flags_ = 0;
    const struct gpunvme_segment s = {open_file(path("two")), 0, 10};
    struct gpunvme_table *readv = nullptr;
    ASSERT_EQ(gpunvme_table_open(&s, 1, kRow, 10, nullptr, &readv), 0);
    EXPECT_EQ(gpunvme_table_use_cache(readv, longer), -ENOTSUP);
    gpunvme_table_close(readv);
}

TEST_F(TableCacheFails, ARefreshOrADropEndsHits)
{
    start(kReached);
    std::vector<char> content = bytes_;
    ASSERT_TRUE(make_file(path("copy"), content));
    file_ = open_file(path("copy"));
    open_all();
    const Ids ids = {1000, 1, 1000};
    expect_right(ids);
    expect_right(ids);
    EXPECT_EQ(stats().hits, 3u);
    int fd = open(path("copy").c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, "x", 1, 1000 * kRow), 1);
    ASSERT_EQ(fsync(fd), 0);
    ASSERT_EQ(gpunvme_cache_drop(caches_[0]), 0) << gpunvme_error();
    EXPECT_EQ(gather(ids).failed, 0u);
    EXPECT_EQ(out_[0], 'x');
    EXPECT_EQ(stats().hits, 3u);
    ASSERT_EQ(ftruncate(fd, 900 * kRow), 0); // the file has other blocks then
    ASSERT_EQ(ftruncate(fd, kFile), 0);
    close(fd);
    ASSERT_EQ(gpunvme_file_refresh(file_), 1) << gpunvme_error();
    EXPECT_EQ(gather(ids).failed, 0u);
    EXPECT_EQ(out_[0], 0);
    EXPECT_EQ(stats().hits, 3u);
}

TEST_F(TableCacheFails, RevokedLeasesEndHits)
{
    start({"", "executor=cpu_staged,direct=all,deadline=2000", GPUNVME_FILE_DIRECT});
    open_all();
    const Ids ids = all_of(100);
    expect_right(ids);
    ASSERT_NO_FATAL_FAILURE(tell_fault(control_, "fatal", kAny, 0, 1, 0));
    Status status = {};
    for (int64_t i = 1; i < 50 && !status.failed; i++)
        status = gather({i * 1000});
    EXPECT_TRUE(status.error == -ETIMEDOUT || status.error == -ESTALE) << status.error;
    ASSERT_TRUE(make_file(path("other"), {'x'})); // makes the daemon notice, and reset the drive
    for (int i = 0; i < 10000 && status.failed != ids.size(); i++) {
        status = gather(ids);
        usleep(1000);
    }
    EXPECT_EQ(status.failed, ids.size()) << "of lines that were valid";
    ASSERT_EQ(gpunvme_file_renew(file_), 0) << gpunvme_error();
    EXPECT_GT(gather(ids).reads, 0u) << "no line is valid";
    EXPECT_EQ(count_zeros(ids, out_), 0u);
    expect_right(ids);
}

} // namespace
