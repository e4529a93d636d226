/* SPDX-License-Identifier: BSD-2-Clause */
// Tests tables, which read rows of files by number, through leases and by
// READV.
#include "tests/client/lib/table_base.h"
#include "tests/threads.h"

using namespace table_base;

namespace
{

class Table : public TableBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override
    {
        std::unique_ptr<Mounted> &m = mounts_[GetParam().name];
        if (!m)
            mount(GetParam(), m);
        if (m)
            use(m.get(), GetParam().flags);
    }
    static void TearDownTestSuite()
    {
        for (auto &[name, m] : mounts_) {
            if (m) {
                EXPECT_TRUE(m->unmount()) << name << ": " << m->log();
            }
        }
        mounts_.clear();
    }
    // Makes a copy of the file, which the test may change.
    void use_a_copy()
    {
        ASSERT_TRUE(make_file(path("copy"), bytes_));
        file_ = open_file(path("copy"));
    }

  private:
    static inline std::map<std::string, std::unique_ptr<Mounted>> mounts_;
};

INSTANTIATE_TEST_SUITE_P(
    Mounts, Table,
    ::testing::Values(Way{"Direct", "executor=cpu,direct=all,deadline=60000,sim=lba:4096",
                          GPUNVME_FILE_DIRECT},
                      Way{"Staged", "executor=cpu_staged,direct=all,deadline=60000,sim=lba:4096",
                          GPUNVME_FILE_DIRECT},
                      Way{"Readv", "executor=cpu,deadline=60000,sim=lba:4096", 0}),
    [](const auto &info) { return info.param.name; });

// By READV of each row, each of these lists would cost 16,384 commands.
TEST_P(Table, ReadsARangeOnce)
{
    open_table();
    EXPECT_EQ(gpunvme_table_why(table_) == nullptr, is_direct());
    const Ids same(kRows, 5), neighbours = all_of(kRows);
    EXPECT_EQ(gather(same).reads, 1u);
    EXPECT_EQ(count_zeros(same, out_), 0u);
    EXPECT_EQ(commands(), is_direct() ? 0u : 1u);
    EXPECT_EQ(gather(neighbours).reads, 1024u);
    EXPECT_EQ(count_zeros(neighbours, out_), 0u);
    EXPECT_LE(commands(), is_direct() ? 0u : 1025u);
}

TEST_P(Table, ReadsARowInTwoBlocksByOneCommand)
{
    open_table(272, 8104);
    Ids ids(kRows);
    std::mt19937 rng(4);
    for (int64_t &id : ids)
        id = static_cast<int64_t>(rng() % gpunvme_table_rows(table_));
    EXPECT_LE(gather(ids).reads, 16384u);
    EXPECT_EQ(count_zeros(ids, out_), 0u);
    EXPECT_LE(commands(), 16384u);
}

TEST_P(Table, ShardsAreOneTable)
{
    constexpr uint32_t kWide = 1000;
    auto more = some_bytes(1u << 20, 9);
    ASSERT_TRUE(make_file(path("two"), more));
    struct gpunvme_file *two = open_file(path("two"));
    const struct gpunvme_segment s[] = {{file_, 77, 1000}, {two, 8, 500}, {file_, 5000001, 700}};
    struct gpunvme_table_options o = {};
    o.row_stride = 1501;
    ASSERT_EQ(gpunvme_table_open(s, 3, kWide, kRows, &o, &table_), 0) << gpunvme_error();
    gpunvme_file_close(two); // the table still holds the file
    ASSERT_EQ(gpunvme_table_rows(table_), 2200u);
    std::vector<int32_t> ids(2200);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    constexpr size_t kStride = kWide + 5;
    out_.assign(ids.size() * kStride + 3, 0x5a);
    Status status;
    struct gpunvme_gather a = gather_of({}, &status);
    a.ids = ids.data();
    a.id_bytes = 4;
    a.n = ids.size();
    a.out = &out_[3];
    a.out_stride = kStride;
    ASSERT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0) << gpunvme_error();
    EXPECT_EQ(status.failed, 0u) << status.error;
    for (size_t i = 0; i < ids.size(); i++) {
        auto id = static_cast<size_t>(ids[i]), k = size_t{id >= 1000} + (id >= 1500);
        size_t first = std::vector<size_t>{0, 1000, 1500}[k];
        const std::vector<char> &from = k == 1 ? more : bytes_;
        ASSERT_EQ(memcmp(&out_[3 + i * kStride], &from[s[k].offset + (id - first) * 1501], kWide),
                  0)
            << id;
        ASSERT_EQ(out_[3 + i * kStride + kWide], 0x5a) << "between rows";
    }
}

TEST_P(Table, LittleStagingTakesTurns)
{
    struct gpunvme_table_options o = {};
    o.staging = 40 * kBlock;
    open_table(kRow, 0, o);
    Ids ids = all_of(kRows);
    ids[7] = -5;
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    Status status = gather(ids);
    EXPECT_EQ(status.reads, 1024u);
    EXPECT_EQ(status.failed, 1u);
    EXPECT_EQ(status.first_id, -5);
    EXPECT_EQ(count_zeros(ids, out_), 1u);
}

TEST_P(Table, IdsThatAreNoRows)
{
    open_table();
    auto rows = static_cast<int64_t>(gpunvme_table_rows(table_));
    const Ids ids = {1, rows, -1, INT64_MIN, INT64_MAX, rows - 1, 2};
    Status status = gather(ids);
    EXPECT_EQ(status.failed, 4u);
    EXPECT_EQ(status.first_id, rows);
    EXPECT_EQ(status.error, -ERANGE);
    EXPECT_EQ(count_zeros(ids, out_), 4u);
    struct gpunvme_gather a = gather_of(ids, &status);
    a.flags = GPUNVME_GATHER_PAD;
    ASSERT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0);
    EXPECT_EQ(status.failed, 3u);
    a.flags = GPUNVME_GATHER_ZEROS;
    ASSERT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0);
    EXPECT_EQ(status.failed, 0u);
    EXPECT_EQ(status.error, 0);
    EXPECT_EQ(count_zeros(ids, out_), 4u);
    struct gpunvme_table_stats stats;
    ASSERT_EQ(gpunvme_table_stats(table_, &stats, sizeof(stats)), 0);
    EXPECT_EQ(stats.gathers, 3u);
    EXPECT_EQ(stats.rows, 21u);
    EXPECT_EQ(stats.failed, 7u);
}

TEST_P(Table, AWrongGatherReadsNothing)
{
    open_table();
    const Ids ids = all_of(kRows + 1);
    Status status = {7, 7, 7, 7};
    const struct gpunvme_gather good = gather_of({}, &status);
    auto refused = [&](auto change) {
        struct gpunvme_gather a = good;
        a.ids = ids.data();
        a.n = 3;
        change(a);
        return gpunvme_table_gather(table_, &a, nullptr);
    };
    EXPECT_EQ(refused([](auto &a) { a.n = kRows + 1; }), -EINVAL);
    EXPECT_NE(strstr(gpunvme_error(), "16384"), nullptr) << gpunvme_error();
    EXPECT_EQ(refused([](auto &a) { a.n = SIZE_MAX; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.id_bytes = 2; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.flags = 4; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.ids = nullptr; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.ids = static_cast<const char *>(a.ids) + 1; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.out = nullptr; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.out_stride = kRow - 1; }), -EINVAL);
    EXPECT_EQ(refused([](auto &a) { a.status = nullptr; }), -EINVAL);
    EXPECT_EQ(status.failed, 7u);
    EXPECT_EQ(gather({}).failed, 0u) << "no rows are no error";
}

TEST_P(Table, AWrongTableIsRefused)
{
    struct Call {
        struct gpunvme_segment s;
        struct gpunvme_table_options o;
        uint32_t row;
        size_t n, most;
    };
    auto opened = [&](auto change) {
        Call c = {{file_, 0, 100}, {}, kRow, 1, 10};
        change(c);
        int err = gpunvme_table_open(&c.s, c.n, c.row, c.most, &c.o, &table_);
        gpunvme_table_close(err ? nullptr : table_);
        table_ = nullptr;
        return err;
    };
    EXPECT_EQ(opened([](Call &) {}), 0) << gpunvme_error();
    EXPECT_EQ(opened([](Call &c) { c.s.rows = 0; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.s.rows = 65537; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.s.rows = UINT64_MAX; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.s.offset = UINT64_MAX - 8; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.s.file = nullptr; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.o.row_stride = 8; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.o.row_stride = UINT64_MAX; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.o.unit = 5000; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.o.unit = 1u << 17; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.o.staging = 100; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.row = 0; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.row = UINT32_MAX; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.n = 0; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.n = SIZE_MAX; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.most = 0; }), -EINVAL);
    EXPECT_EQ(opened([](Call &c) { c.most = SIZE_MAX; }), -EINVAL);
}

// Leases show the file as of the last refresh; READV sees the current file.
TEST_P(Table, RowsThatTheFileHasLostFail)
{
    use_a_copy();
    open_table();
    const Ids ids = {10, 65535, 40000, 20};
    ASSERT_EQ(truncate(path("copy").c_str(), 40000 * kRow + 10), 0);
    if (is_direct()) {
        expect_right({10, 65535, 20});
        ASSERT_EQ(gpunvme_file_refresh(file_), 1) << gpunvme_error();
    }
    Status status = gather(ids);
    EXPECT_EQ(status.failed, 2u);
    EXPECT_EQ(status.first_id, 65535);
    EXPECT_EQ(status.error, -ENODATA);
    EXPECT_EQ(count_zeros(ids, out_), 2u);
}

TEST_P(Table, AFileThatIsReplacedKeepsItsRows)
{
    use_a_copy();
    open_table();
    ASSERT_TRUE(make_file(path("new"), some_bytes(kFile, 11)));
    ASSERT_EQ(rename(path("new").c_str(), path("copy").c_str()), 0);
    expect_right({1, 1000, 65535});
}

TEST_P(Table, TablesAndThreadsAtOnce)
{
    open_table();
    const struct gpunvme_segment s = {file_, 0, kFile / kRow};
    in_threads(4, [&](int t) {
        struct gpunvme_table *own = table_; // two threads share one table
        if (t > 1) {
            ASSERT_EQ(gpunvme_table_open(&s, 1, kRow, 500, nullptr, &own), 0);
        }
        for (unsigned round = 0; round < 10; round++)
            ASSERT_NO_FATAL_FAILURE(gather_any(own, 65536, static_cast<unsigned>(t) * 100 + round));
        if (t > 1)
            gpunvme_table_close(own);
    });
}

} // namespace
