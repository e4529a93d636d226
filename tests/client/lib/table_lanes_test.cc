/* SPDX-License-Identifier: BSD-2-Clause */
// Tests gathers as warps execute them: several groups of 32 lanes execute each
// pass, and the drive counts the commands.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/cache_stack.h"
#include "tests/client/lib/table_rig.h"
#include "tests/threads.h"

namespace
{

using cache_stack::Cached, direct_stack::expect_idle, direct_stack::kPage, direct_stack::kPages,
    direct_stack::Stack;

constexpr uint32_t kGroups = 3;
constexpr size_t kStaging = kPage;            // offset in the memory that the drive reaches
constexpr size_t kLines = kPages / 2 * kPage; // offset of the lines, behind the staging
constexpr uint64_t kFilePages = 900;

// A table over the file of a Stack.
class Rows
{
  public:
    Rows(Stack &s, uint32_t row_bytes, uint64_t head, uint32_t unit_shift, size_t most)
        : stack_(s), slots_(gd_table_slots(static_cast<uint32_t>(most))), places_(most),
          pieces_(most)
    {
        gd_row_table &t = l_.table;
        segments_ = {{0, head, 0, 0}};
        t.rows = (s.file.map.end - head) / row_bytes;
        t.stride = t.row_bytes = row_bytes;
        t.n_segments = t.n_files = 1;
        t.unit_shift = unit_shift;
        t.slot_bytes = ((row_bytes >> unit_shift) + 2) << unit_shift;
        t.turn = static_cast<uint32_t>((kLines - kStaging) / t.slot_bytes);
        t.staging = reinterpret_cast<uint64_t>(s.pages.data()) + kStaging;
        t.segments = segments_.data();
        t.only = segments_[0];
        t.slots = slots_.data();
        t.places = places_.data();
        t.pieces = pieces_.data();
        t.counts = counts_;
        t.bounds = bounds_;
        t.words = &words_;
        words_.first = UINT64_MAX;
        t.file = &s.file;
        t.files = &t.file;
        t.first_file = t.file;
        l_.status = &status_;
        l_.wide = true;
    }

    void use(Cached &c)
    {
        caches_[0].cache = &c.cache();
        l_.table.caches = caches_;
    }

    // Gathers rows into out(), and returns the number of commands that the
    // drive has executed for them.
    unsigned gather(const std::vector<int64_t> &ids)
    {
        unsigned before = stack_.commands;
        l_.ids = ids.data();
        l_.n = static_cast<uint32_t>(ids.size());
        l_.mask = gd_table_slots(l_.n) - 1;
        out_.assign(ids.size() * l_.table.row_bytes, 0x5a);
        l_.out = reinterpret_cast<uint64_t>(out_.data());
        l_.out_stride = l_.table.row_bytes;
        if (few) {
            const uint32_t n = few < l_.n ? std::max(few, (l_.n + 31) / 32) : l_.n;
            in_threads(groups, [this, n](uint32_t thread) {
                for (uint32_t rank = thread; rank < n; rank += groups)
                    table_rig_few(&l_, rank, n);
            });
            return stack_.commands - before;
        }
        for (enum gd_table_pass p : {GD_TABLE_CLEAR, GD_TABLE_CLAIM, GD_TABLE_PLACE})
            pass(p);
        for (l_.first = 0; l_.first == 0 || l_.first < l_.n; l_.first += l_.table.turn)
            turn();
        return stack_.commands - before;
    }

    // Expects that each row is the file's, and that rows that do not exist are
    // zeros.
    void expect_rows(const std::vector<int64_t> &ids)
    {
        const gd_row_table &t = l_.table;
        for (size_t i = 0; i < ids.size(); i++) {
            std::vector<uint8_t> want(t.row_bytes);
            uint64_t offset = segments_[0].offset + static_cast<uint64_t>(ids[i]) * t.stride;
            for (size_t k = 0; k < want.size() && static_cast<uint64_t>(ids[i]) < t.rows; k++)
                want[k] = stack_.on_media(offset + k);
            ASSERT_EQ(memcmp(&out_[i * t.row_bytes], want.data(), want.size()), 0) << i;
        }
    }

    gd_table_launch &launch() { return l_; }
    const gd_table_status &status() const { return status_; }
    uint64_t hits() const { return words_.hits; }

    // A group does not keep a line whose set another one locks, so tests that
    // count the kept lines have one group.
    uint32_t groups = kGroups;
    uint32_t few = 0;              // groups of the one launch that gathers the rows; 0: several
    std::function<void()> on_read; // called after a list was read

  private:
    void pass(enum gd_table_pass p)
    {
        l_.pass = p;
        in_threads(groups, [this](uint32_t rank) { table_rig_pass(&l_, rank, groups); });
    }

    void turn()
    {
        uint32_t end = std::min(bounds_[1], l_.first + l_.table.turn);
        if (end > l_.first)
            direct_list_read(&stack_.file, l_.table.staging, &pieces_[l_.first], end - l_.first, 0,
                             1, nullptr);
        if (on_read)
            on_read();
        l_.is_last = l_.first + l_.table.turn >= l_.n;
        pass(GD_TABLE_PICK);
    }

    Stack &stack_;
    gd_table_launch l_ = {};
    std::vector<gd_table_segment> segments_;
    std::vector<gd_table_slot> slots_;
    std::vector<uint32_t> places_;
    std::vector<gq_read_desc> pieces_;
    uint32_t counts_[1] = {}, bounds_[2] = {};
    gd_table_words words_ = {};
    gd_table_cache caches_[1] = {};
    gd_table_status status_ = {};
    std::vector<uint8_t> out_;
};

std::vector<int64_t> random_ids(size_t n, uint64_t rows, unsigned seed)
{
    std::mt19937 rng(seed);
    std::vector<int64_t> ids(n);
    for (int64_t &id : ids)
        id = static_cast<int64_t>(rng() % rows);
    return ids;
}

std::vector<int64_t> first_ids(size_t n)
{
    std::vector<int64_t> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

class TableLanes : public ::testing::Test
{
  protected:
    void SetUp() override { stack_.make_one_extent(kFilePages); }
    Stack stack_{2, 16, 1};
};

TEST_F(TableLanes, ARowThatRepeatsIsOneCommand)
{
    Rows rows(stack_, 256, 0, 9, 16384);
    const std::vector<int64_t> ids(16384, 5);
    EXPECT_EQ(rows.gather(ids), 1u);
    rows.expect_rows(ids);
    EXPECT_EQ(rows.status().reads, 1u);
    EXPECT_EQ(rows.status().error, 0);
}

// A block of 4 KiB has sixteen rows of 256 bytes. The list takes several turns.
TEST_F(TableLanes, NeighboursOfABlockAreOneCommand)
{
    Rows rows(stack_, 256, 0, 12, kFilePages * 16);
    std::vector<int64_t> ids = first_ids(kFilePages * 16);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    ASSERT_GT(kFilePages, 2 * rows.launch().table.turn);
    EXPECT_EQ(rows.gather(ids), kFilePages);
    rows.expect_rows(ids);
}

// The header of a safetensors file is aligned to 8 bytes only.
TEST_F(TableLanes, ARowInTwoLbasIsOneCommand)
{
    Rows rows(stack_, 272, 8104, 9, 4096);
    const auto ids = random_ids(4096, rows.launch().table.rows, 2);
    unsigned commands = rows.gather(ids);
    EXPECT_EQ(commands, rows.status().reads);
    EXPECT_LE(commands, ids.size());
    rows.expect_rows(ids);
}

// Of two rows that begin in one LBA the second one reaches into the next LBA.
TEST_F(TableLanes, RowsThatBeginInOneLbaAreOneCommand)
{
    Rows rows(stack_, 256, 128, 9, 4096);
    for (const std::vector<int64_t> &ids : {std::vector<int64_t>{0, 1}, {1, 0, 1}, {0}, {1}}) {
        EXPECT_EQ(rows.gather(ids), 1u);
        rows.expect_rows(ids);
    }
    std::vector<int64_t> ids = first_ids(1000);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    EXPECT_EQ(rows.gather(ids), 500u);
    rows.expect_rows(ids);
}

TEST_F(TableLanes, RowsThatDoNotExistAreZerosAndCounted)
{
    Rows rows(stack_, 100, 3, 9, 200);
    auto last = static_cast<int64_t>(rows.launch().table.rows) - 1;
    std::vector<int64_t> ids(200, 7);
    ids[40] = -1;
    ids[50] = last + 1;
    ids[60] = INT64_MIN;
    ids[70] = INT64_MAX;
    ids[80] = last;
    rows.gather(ids);
    rows.expect_rows(ids);
    EXPECT_EQ(rows.status().failed, 4u);
    EXPECT_EQ(rows.status().first_id, -1);
    EXPECT_EQ(rows.status().error, -ERANGE);
    rows.launch().pads = true;
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 3u);
    EXPECT_EQ(rows.status().first_id, last + 1);
    rows.launch().zeros = true;
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 0u);
    EXPECT_EQ(rows.status().error, 0);
    rows.expect_rows(ids);
}

TEST_F(TableLanes, AFailedCommandFailsOnlyItsRows)
{
    Rows rows(stack_, 256, 0, 9, 128);
    std::vector<int64_t> ids = first_ids(128);
    stack_.status_of_next = 0x281; // unrecovered read error
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 2u) << "an LBA has two rows";
    EXPECT_EQ(rows.status().error, -EIO);
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 0u);
    rows.expect_rows(ids);
}

// --- Few rows by one launch -------------------------------------------------------

TEST_F(TableLanes, FewRowsTakeACommandForEachRange)
{
    Rows rows(stack_, 272, 8104, 9, 256);
    rows.few = 5;
    for (size_t n : {1, 31, 48, 256}) {
        const auto ids = random_ids(n, n % 2 ? rows.launch().table.rows : 100, 4);
        EXPECT_EQ(rows.gather(ids), rows.status().reads);
        rows.expect_rows(ids);
        rows.few = 0;
        EXPECT_EQ(rows.gather(ids), rows.status().reads) << "as many as by lists";
        rows.few = 5;
        EXPECT_EQ(rows.status().failed, 0u);
    }
    const std::vector<int64_t> same(200, 5);
    EXPECT_EQ(rows.gather(same), 1u);
    rows.expect_rows(same);
    expect_idle(stack_);
}

// A group that sends its commands at once leaves the table's staging as it is. If a CID has another
// owner, or a range is longer than the staging of a CID, the group takes the general path.
TEST_F(TableLanes, FewRowsThroughTheStagingOfCids)
{
    constexpr int kTries = 1000; // a drive that is not scheduled answers late
    stack_.stage_all();
    for (uint32_t row : {256u, 272u, 5000u, 9000u}) {
        Rows rows(stack_, row, 8104, 9, 12);
        const std::vector<int64_t> ids = random_ids(12, rows.launch().table.rows, row);
        uint8_t *staging = stack_.pages[0].bytes + kStaging;
        auto is_untouched = [&] {
            memset(staging, 0x77, kPage);
            rows.gather(ids);
            EXPECT_EQ(rows.status().failed, 0u) << row;
            rows.expect_rows(ids);
            return std::count(staging, staging + kPage, 0x77) == static_cast<long>(kPage);
        };
        rows.launch().table.file = nullptr; // no command writes to the table's staging
        rows.few = rows.groups = 1;
        bool is_short = false;
        for (int i = 0; i < kTries && !is_short && row < GD_STAGED_ALL; i++)
            is_short = is_untouched();
        EXPECT_EQ(is_short, row < GD_STAGED_ALL) << row;
        for (gq_cids &c : stack_.cids)
            c.taken[0] |= 4;
        EXPECT_FALSE(is_untouched());
        for (gq_cids &c : stack_.cids) {
            EXPECT_TRUE(c.taken[0] & 4);
            c.taken[0] &= ~4u;
        }
        if (row > GD_STAGED_ALL) {
            EXPECT_FALSE(is_untouched());
        }
        expect_idle(stack_);
    }
}

// Each of the two files has a lease, and that of the second one ends.
TEST_F(TableLanes, FewRowsOfTwoFiles)
{
    Rows rows(stack_, 256, 8104, 9, 200);
    uint32_t lease = GD_LEASE_VALID;
    uint64_t checked_ns = 0;
    gpunvme_device_file second = stack_.file;
    second.lease = &lease;
    second.checked_ns = &checked_ns;
    const gpunvme_device_file *files[] = {&stack_.file, &second};
    gd_row_table &t = rows.launch().table;
    const uint64_t half = t.rows / 2;
    const gd_table_segment segments[] = {{0, 8104, 0, 0}, {half, 8104 + half * t.stride, 1, 0}};
    t.segments = segments;
    t.files = files;
    t.n_segments = t.n_files = 2;
    rows.few = 3;
    const std::vector<int64_t> ids = random_ids(90, t.rows, 7);
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 0u);
    rows.expect_rows(ids);
    lease = GD_LEASE_REVOKED;
    checked_ns = 0;
    rows.gather(ids);
    EXPECT_EQ(rows.status().error, -ESTALE);
    EXPECT_EQ(rows.status().failed,
              static_cast<uint64_t>(std::count_if(ids.begin(), ids.end(), [half](int64_t id) {
                  return static_cast<uint64_t>(id) >= half;
              })));
    stack_.lease = GD_LEASE_REVOKED;
    stack_.forget_check();
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, ids.size());
    expect_idle(stack_);
}

TEST_F(TableLanes, FewRowsThatDoNotExistOrFail)
{
    Rows rows(stack_, 256, 0, 9, 128);
    std::vector<int64_t> ids = first_ids(128);
    ids[40] = -1;
    ids[50] = static_cast<int64_t>(rows.launch().table.rows);
    rows.few = 5;
    rows.launch().pads = true;
    rows.gather(ids);
    rows.expect_rows(ids);
    EXPECT_EQ(rows.status().failed, 1u);
    EXPECT_EQ(rows.status().first_id, ids[50]);
    EXPECT_EQ(rows.status().error, -ERANGE);
    ids[40] = 40;
    ids[50] = 50;
    stack_.status_of_next = 0x281; // unrecovered read error
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 2u) << "an LBA has two rows";
    EXPECT_EQ(rows.status().error, -EIO);
    stack_.file.map.end = 100;
    rows.gather({0});
    EXPECT_EQ(rows.status().error, -ENODATA);
    stack_.file.map.end = kFilePages * kPage;
    EXPECT_EQ(rows.gather(ids), 64u);
    EXPECT_EQ(rows.status().failed, 0u);
    rows.expect_rows(ids);
}

// The command may still write to the staging, over what later gathers read.
TEST_F(TableLanes, FewRowsFailAfterALostCommand)
{
    Rows rows(stack_, 256, 0, 9, 64);
    stack_.file.set.command_ns = 200000000;
    stack_.on_command = [&] { return stack_.commands != 3; };
    rows.few = 5;
    rows.gather(random_ids(64, 1000, 3));
    EXPECT_EQ(rows.status().error, -ETIMEDOUT);
    rows.gather({1, 2, 3});
    EXPECT_EQ(rows.status().failed, 3u);
    EXPECT_EQ(rows.status().error, -ESTALE);
    stack_.file.set.number++;
    rows.gather({1, 2, 3});
    EXPECT_EQ(rows.status().failed, 0u) << "the leases were renewed";
    rows.expect_rows({1, 2, 3});
}

// --- Through a cache -------------------------------------------------------------

// A row lies in several lines, or several rows lie in a line, or a unit has
// several lines.
TEST_F(TableLanes, RowsInLinesTakeNoCommand)
{
    struct Case {
        uint32_t row, unit_shift, line_shift;
        uint64_t head;
    };
    for (const Case &k : {Case{256, 9, 9, 8104},
                          {272, 9, 9, 8104},
                          {100, 12, 12, 3},
                          {1500, 9, 9, 8},
                          {256, 12, 9, 8104},
                          {4096, 12, 12, 77}}) {
        Rows rows(stack_, k.row, k.head, k.unit_shift, 300);
        Cached c(stack_, k.line_shift, 13 - k.line_shift, 20, kLines);
        rows.use(c);
        rows.groups = 1;
        std::vector<int64_t> ids = random_ids(8, rows.launch().table.rows, k.row);
        ids.resize(300, ids[0]);
        ids[100] = -1;
        unsigned first = rows.gather(ids);
        EXPECT_GT(first, 0u);
        EXPECT_LE(first, 9u) << "each range once";
        EXPECT_EQ(rows.hits(), 0u);
        rows.expect_rows(ids);
        EXPECT_EQ(rows.gather(ids), 0u) << k.row;
        EXPECT_EQ(rows.hits(), 299u);
        EXPECT_EQ(rows.status().reads, 0u);
        EXPECT_EQ(rows.status().failed, 1u);
        rows.expect_rows(ids);
        c.expect_idle_words();
    }
}

TEST_F(TableLanes, RowsAreKeptAtTheirSecondTouch)
{
    Rows rows(stack_, 256, 0, 9, 64);
    Cached c(stack_, 9, 2, 16, kLines);
    c.cache().second_touch = 1;
    rows.use(c);
    const std::vector<int64_t> ids(64, 5);
    EXPECT_EQ(rows.gather(ids), 1u);
    EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u) << "touched 64 times by one gather";
    EXPECT_EQ(rows.gather(ids), 1u);
    EXPECT_EQ(rows.gather(ids), 0u);
    rows.expect_rows(ids);
    EXPECT_EQ(c.bypasses(), 1u);
    EXPECT_EQ(c.misses(), 1u);
    EXPECT_EQ(c.hits(), 64u);
}

// Small sets, of which most lines are displaced while other groups read them.
TEST_F(TableLanes, FewLinesServeManyRows)
{
    Rows rows(stack_, 272, 8104, 9, 2000);
    Cached c(stack_, 9, 2, 4, kLines);
    rows.use(c);
    for (unsigned turn = 0; turn < 20; turn++) {
        c.cache().second_touch = turn % 2;
        const auto ids = random_ids(2000, turn % 4 ? 100 : rows.launch().table.rows, turn);
        rows.gather(ids);
        EXPECT_EQ(rows.status().failed, 0u);
        rows.expect_rows(ids);
        c.expect_idle_words();
    }
    EXPECT_GT(rows.hits(), 0u);
    expect_idle(stack_);
}

TEST_F(TableLanes, LinesOfAnEarlierGenerationAreNotUsed)
{
    Rows rows(stack_, 256, 0, 9, 64);
    Cached c(stack_, 9, 2, 16, kLines);
    rows.use(c);
    rows.groups = 1;
    const auto ids = random_ids(64, 32, 1);
    rows.gather(ids);
    for (uint64_t i = 0; i < 32; i++)
        stack_.on_media(i * 256 + 9) ^= 1;
    c.cache().generation++;
    EXPECT_GT(rows.gather(ids), 0u);
    rows.expect_rows(ids);
    EXPECT_EQ(rows.gather(ids), 0u);
    rows.expect_rows(ids);
}

// The rows are those of before, which a later gather must not find in lines.
TEST_F(TableLanes, ARefreshDuringAGatherKeepsNoLine)
{
    Rows rows(stack_, 256, 0, 9, 64);
    Cached c(stack_, 9, 2, 16, kLines);
    rows.use(c);
    rows.on_read = [&] { c.cache().generation++; };
    rows.gather(random_ids(64, 32, 1));
    EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u);
    EXPECT_EQ(c.misses(), 0u);
}

TEST_F(TableLanes, HitsEndWithTheLease)
{
    Rows rows(stack_, 256, 0, 9, 64);
    Cached c(stack_, 9, 2, 16, kLines);
    rows.use(c);
    rows.groups = 1;
    const auto ids = random_ids(64, 32, 1);
    rows.gather(ids);
    EXPECT_EQ(rows.gather(ids), 0u);
    __atomic_store_n(&stack_.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    stack_.forget_check();
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 64u);
    EXPECT_EQ(rows.status().error, -ESTALE);
}

// A line that ends with the file is shorter. Bytes behind its end are no row's.
TEST_F(TableLanes, ARowBehindTheEndIsNotInALine)
{
    Rows rows(stack_, 256, 0, 12, 8);
    Cached c(stack_, 12, 0, 16, kLines);
    rows.use(c);
    stack_.file.map.end = 4 * kPage + 300;
    const std::vector<int64_t> ids = {64, 65};
    for (int turn = 0; turn < 2; turn++) {
        EXPECT_EQ(rows.gather(ids), 1u);
        EXPECT_EQ(rows.status().failed, 1u);
        EXPECT_EQ(rows.status().first_id, 65);
        EXPECT_EQ(rows.status().error, -ENODATA);
    }
    EXPECT_EQ(rows.hits(), 1u);
    EXPECT_EQ(rows.gather({64}), 0u);
    rows.expect_rows({64});
}

TEST_F(TableLanes, AFailedRangeIsNotKept)
{
    Rows rows(stack_, 256, 0, 9, 128);
    Cached c(stack_, 9, 2, 20, kLines);
    rows.use(c);
    rows.groups = 1;
    std::vector<int64_t> ids = first_ids(128);
    stack_.status_of_next = 0x281; // unrecovered read error
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 2u);
    EXPECT_EQ(rows.gather(ids), 1u);
    EXPECT_EQ(rows.status().failed, 0u);
    rows.expect_rows(ids);
    EXPECT_EQ(rows.gather(ids), 0u);
}

// The command may still write to the staging.
TEST_F(TableLanes, ALostCommandEndsKeeping)
{
    Rows rows(stack_, 256, 0, 9, 128);
    Cached c(stack_, 9, 2, 20, kLines);
    rows.use(c);
    stack_.file.set.command_ns = 200000000;
    stack_.on_command = [&] { return stack_.commands != 3; };
    rows.gather(random_ids(128, 128, 3));
    EXPECT_EQ(rows.status().error, -ETIMEDOUT);
    EXPECT_EQ(c.words_in(GD_CACHE_VALID), 0u);
    c.expect_idle_words();
}

// The command may still write to the staging, over what later turns and gathers
// have read.
TEST_F(TableLanes, ALostCommandEndsReadsUntilTheLeasesAreRenewed)
{
    Rows rows(stack_, 256, 0, 9, 128);
    const std::vector<int64_t> ids = {0, 2, 4};
    rows.launch().table.turn = 1;
    stack_.file.set.command_ns = 200000000;
    stack_.on_command = [&] { return stack_.commands != 1; };
    rows.on_read = [&] { stack_.file.set.command_ns = 60000000000u; };
    rows.gather(ids);
    EXPECT_EQ(rows.status().failed, 3u);
    for (int turn = 0; turn < 2; turn++) {
        rows.gather({-1, 4});
        EXPECT_EQ(rows.status().failed, 2u);
        EXPECT_EQ(rows.status().error, -ERANGE);
        rows.gather({4});
        EXPECT_EQ(rows.status().failed, 1u);
        EXPECT_EQ(rows.status().error, -ESTALE);
    }
    stack_.file.set.number++;
    for (int turn = 0; turn < 2; turn++) {
        rows.gather(ids);
        EXPECT_EQ(rows.status().failed, 0u);
        rows.expect_rows(ids);
    }
}

TEST_F(TableLanes, NoRowsAreRead)
{
    Rows rows(stack_, 256, 0, 9, 1);
    EXPECT_EQ(rows.gather({}), 0u);
    EXPECT_EQ(rows.status().reads, 0u);
    EXPECT_EQ(rows.status().failed, 0u);
}

} // namespace
