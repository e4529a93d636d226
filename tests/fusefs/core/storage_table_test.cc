/* SPDX-License-Identifier: BSD-2-Clause */
// Tests tables and slabs that grow and shrink.
#include <set>

#include "tests/fusefs/core/storage_fixture.h"

extern "C" {
#define _Atomic
#include "fusefs/core/base/cache.h"
#include "fusefs/core/inode/itable.h"
#undef _Atomic
}

namespace
{

class Table : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(
            ffs_table_init(&table, FFS_INODE_BUCKETS_MIN, FFS_INODE_BUCKETS_MAX, FFS_INODE_FACTOR),
            0);
    }
    void TearDown() override { ffs_table_destroy(&table); }
    // Adds items with the numbers first, first + step and so on.
    void add(size_t n, uint64_t first, uint64_t step)
    {
        items = std::vector<ffs_item>(n);
        for (size_t i = 0; i < n; i++)
            ffs_table_add(&table, &items[i], first + i * step);
    }
    size_t longest_chain() const
    {
        size_t longest = 0;
        for (size_t b = 0; b < table.count; b++) {
            size_t n = 0;
            for (const ffs_item *item = table.buckets[b]; item; item = item->next)
                n++;
            longest = std::max(longest, n);
        }
        return longest;
    }

    ffs_table table = {};
    std::vector<ffs_item> items;
};

TEST_F(Table, EveryItemIsFoundAtEverySize)
{
    items = std::vector<ffs_item>(5000);
    for (size_t i = 0; i < items.size(); i++) {
        ffs_table_add(&table, &items[i], i * 3 + 1);
        for (size_t k = i % 7; k <= i; k += 97)
            ASSERT_EQ(ffs_table_find(&table, items[k].number), &items[k]) << i;
    }
    EXPECT_EQ(table.count, items.size());
    EXPECT_EQ(ffs_table_find(&table, 2), nullptr);
    while (!items.empty()) {
        ffs_table_remove(&table, &items.back());
        ASSERT_EQ(ffs_table_find(&table, items.back().number), nullptr);
        items.pop_back();
        for (size_t k = items.size() % 7; k < items.size(); k += 97)
            ASSERT_EQ(ffs_table_find(&table, items[k].number), &items[k]);
    }
    EXPECT_EQ(table.count, FFS_INODE_BUCKETS_MIN);
    EXPECT_EQ(table.n, 0u);
}

TEST_F(Table, ChainsStayShort)
{
    for (uint64_t step : {1, 8, 4096}) {
        add(100000, 1, step);
        EXPECT_LE(longest_chain(), 16u) << step;
        for (ffs_item &item : items)
            ffs_table_remove(&table, &item);
    }
}

TEST_F(Table, RemovingTwiceChangesNothing)
{
    add(3, 1, 1);
    ffs_table_remove(&table, &items[1]);
    ffs_table_remove(&table, &items[1]);
    EXPECT_EQ(table.n, 2u);
    EXPECT_EQ(ffs_table_find(&table, 1), &items[0]);
    EXPECT_EQ(ffs_table_find(&table, 3), &items[2]);
}

TEST_F(Table, AWalkReachesEveryItemOnce)
{
    EXPECT_EQ(ffs_table_next(&table, nullptr), nullptr);
    add(3000, 5, 7);
    std::set<const ffs_item *> seen;
    for (const ffs_item *item = nullptr; (item = ffs_table_next(&table, item));)
        EXPECT_TRUE(seen.insert(item).second);
    EXPECT_EQ(seen.size(), items.size());
}

// The size of this table is constant, so a walk may remove items.
TEST(ConstantTable, AWalkMayRemove)
{
    ffs_table table = {};
    std::vector<ffs_item> items(1000);
    ASSERT_EQ(ffs_table_init(&table, 64, 64, FFS_INODE_FACTOR), 0);
    for (size_t i = 0; i < items.size(); i++)
        ffs_table_add(&table, &items[i], i);
    EXPECT_EQ(table.count, 64u);
    ffs_item *next;
    for (ffs_item *item = ffs_table_next(&table, nullptr); item; item = next) {
        next = ffs_table_next(&table, item);
        if (item->number % 3)
            ffs_table_remove(&table, item);
    }
    EXPECT_EQ(table.count, 64u);
    EXPECT_EQ(table.n, 334u);
    for (const ffs_item &item : items)
        EXPECT_EQ(ffs_table_find(&table, item.number), item.number % 3 ? nullptr : &item);
    ffs_table_destroy(&table);
}

struct Slab : testing::TestWithParam<std::pair<size_t, size_t>> {
};

TEST_P(Slab, ReturnsMappingsAndReusesPlaces)
{
    auto [bytes, align] = GetParam();
    struct ffs_slabs slabs = {};
    ffs_slabs_init(&slabs, bytes, align);
    std::vector<uint64_t *> objects;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 3000; i++) {
            auto *object = static_cast<uint64_t *>(ffs_slab_take(&slabs));
            ASSERT_NE(object, nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(object) % align, 0u);
            object[0] = object[bytes / sizeof(uint64_t) - 1] = i;
            objects.push_back(object);
        }
        for (uint64_t i = 0; i < objects.size(); i++) {
            ASSERT_EQ(objects[i][0], i) << "a place of its own";
            ASSERT_EQ(objects[i][bytes / sizeof(uint64_t) - 1], i);
        }
#ifndef __SANITIZE_ADDRESS__
        size_t most = slabs.count;
        EXPECT_GT(most, 4u);
        EXPECT_LE(most, 3000 * bytes / (240u << 10) + 1) << "hardly any memory is lost";
#endif
        // In another order than they were taken.
        for (size_t step : {2, 1}) {
            for (size_t i = 0; i < objects.size(); i += step) {
                if (objects[i])
                    ffs_slab_give(&slabs, objects[i]);
                objects[i] = nullptr;
            }
#ifndef __SANITIZE_ADDRESS__
            EXPECT_EQ(slabs.count, step == 2 ? most : 1u);
#endif
        }
        objects.clear();
    }
    ffs_slabs_destroy(&slabs);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Slab,
                         testing::Values(std::pair(sizeof(ffs_inode), alignof(ffs_inode)),
                                         std::pair<size_t, size_t>(LAY_BLOCK_SIZE,
                                                                   LAY_BLOCK_SIZE)));

} // namespace
