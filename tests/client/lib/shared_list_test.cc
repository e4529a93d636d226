/* SPDX-License-Identifier: BSD-2-Clause */
// Memory for pieces that the library makes: where the direct path finds it, and since when.
#include <errno.h>

#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "tests/client/lib/shared_list_rig.h"

namespace
{

constexpr size_t kPieces = 300;

class ListMemory : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        list_rig_close(rig_);
        EXPECT_EQ(counts().mapped, 0);
        EXPECT_EQ(counts().registered, 0);
    }
    struct gpunvme_piece *alloc(size_t n = kPieces)
    {
        struct gpunvme_piece *pieces = nullptr;
        EXPECT_EQ(shared_list_alloc_pieces(list_rig_handle(rig_), n, &pieces), 0)
            << gpunvme_error();
        return pieces;
    }
    // What the direct path is given for them; 0: -EINVAL.
    uint64_t locate(const struct gpunvme_piece *pieces, size_t n)
    {
        uint64_t at = 0;
        int err = list_rig_locate(rig_, pieces, n, &at);
        EXPECT_TRUE(err == 0 || err == -EINVAL) << err;
        return err ? 0 : at;
    }
    static uint64_t on_gpu(const void *p) { return reinterpret_cast<uint64_t>(p) + LIST_RIG_GPU; }
    static struct list_rig_counts counts() { return list_rig_counts(); }

    struct list_rig *rig_ = list_rig_open();
};

TEST_F(ListMemory, IsMappedWhenItIsAllocatedAndNotByItsUse)
{
    ASSERT_EQ(list_rig_direct(rig_, true), 0);
    struct gpunvme_piece *one = alloc(), *other = alloc(1);
    EXPECT_EQ(counts().calls, 2);
    EXPECT_EQ(locate(one, kPieces), on_gpu(one));
    EXPECT_EQ(locate(one + 7, 1), on_gpu(one + 7));
    EXPECT_EQ(locate(other, 1), on_gpu(other));
    EXPECT_EQ(counts().calls, 2);
    shared_list_free_pieces(list_rig_handle(rig_), one);
    EXPECT_EQ(counts().mapped, 1);
}

TEST_F(ListMemory, FromBeforeTheDirectPathIsMappedWhenThatIsOpened)
{
    struct gpunvme_piece *one = alloc(), *other = alloc();
    EXPECT_EQ(counts().calls, 0);
    ASSERT_EQ(list_rig_direct(rig_, true), 0);
    EXPECT_EQ(counts().calls, 2);
    ASSERT_EQ(list_rig_direct(rig_, true), 0) << "a brother";
    EXPECT_EQ(counts().calls, 2);
    EXPECT_EQ(locate(one, kPieces), on_gpu(one));
    EXPECT_EQ(locate(other, kPieces), on_gpu(other));
}

TEST_F(ListMemory, OfAMountWithoutAGpuIsMappedForNobody)
{
    struct gpunvme_piece *before = alloc();
    ASSERT_EQ(list_rig_direct(rig_, false), 0);
    struct gpunvme_piece *after = alloc();
    for (const struct gpunvme_piece *pieces : {before, after}) {
        EXPECT_EQ(locate(pieces + 1, kPieces - 1), reinterpret_cast<uint64_t>(pieces + 1));
        EXPECT_EQ(locate(pieces + 1, kPieces), 0u);
    }
    EXPECT_EQ(counts().calls, 0);
}

TEST_F(ListMemory, EndsWhereItEnds)
{
    ASSERT_EQ(list_rig_direct(rig_, true), 0);
    struct gpunvme_piece *pieces = alloc();
    EXPECT_EQ(locate(pieces, kPieces + 1), 0u);
    EXPECT_NE(std::string(gpunvme_error()).find(std::to_string(kPieces + 1)), std::string::npos);
    EXPECT_EQ(locate(pieces + kPieces - 1, 1), on_gpu(pieces + kPieces - 1));
    EXPECT_EQ(locate(pieces + kPieces - 1, 2), 0u);
    EXPECT_EQ(locate(pieces, SIZE_MAX), 0u);
    auto *within = reinterpret_cast<struct gpunvme_piece *>(&pieces[1].len);
    EXPECT_EQ(locate(within, kPieces - 1), 0u) << "the last one would end outside";
    EXPECT_EQ(locate(within, kPieces - 2), on_gpu(within));
}

TEST_F(ListMemory, OfOthersIsWhereItIs)
{
    ASSERT_EQ(list_rig_direct(rig_, true), 0);
    struct gpunvme_piece own[2], *pieces = alloc();
    EXPECT_EQ(locate(own, 2), reinterpret_cast<uint64_t>(own));
    EXPECT_EQ(locate(pieces + kPieces, 1), reinterpret_cast<uint64_t>(pieces + kPieces));
}

TEST_F(ListMemory, ThatCannotBeMappedIsNotAllocated)
{
    struct gpunvme_piece *pieces = alloc(), *none = nullptr;
    list_rig_fail(true);
    EXPECT_EQ(list_rig_direct(rig_, true), -ENOMEM);
    list_rig_fail(false);
    ASSERT_EQ(list_rig_direct(rig_, true), 0);
    list_rig_fail(true);
    EXPECT_EQ(shared_list_alloc_pieces(list_rig_handle(rig_), 1, &none), -ENOMEM);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(counts().registered, 1);
    EXPECT_EQ(locate(pieces, kPieces), on_gpu(pieces));
}

} // namespace
