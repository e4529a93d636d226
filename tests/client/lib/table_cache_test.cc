/* SPDX-License-Identifier: BSD-2-Clause */
// Tests gathers of tables through caches of their files, on a mount without a
// GPU.
#include "tests/client/lib/table_base.h"
#include "tests/threads.h"

using namespace table_base;

namespace
{

constexpr int kAny = -1; // opcode

const Way kReached = {"Reached", "executor=cpu,direct=all,deadline=60000", GPUNVME_FILE_DIRECT},
          kStaged = {"Staged", "executor=cpu_staged,direct=all,deadline=60000",
                     GPUNVME_FILE_DIRECT};

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
