/* SPDX-License-Identifier: BSD-2-Clause */
// Memory for pieces that the library makes: where the direct path finds it, and since when.
#include <errno.h>

#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "tests/client/lib/internal.h"

extern "C" {
#include "client/lib/socket.h"
}

namespace
{

constexpr size_t kPieces = 300;
constexpr uint64_t kGpu = 0x5000000000000000u; // what the GPU's addresses are higher by

int calls;      // of the driver that have mapped a list
int mapped;     // lists that are mapped now
int registered; // lists at the mount
bool failing;   // mapping fails

// The driver maps memory by arithmetic, and the mount takes all that it is asked to.
class ListMemory : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        calls = mapped = registered = 0;
        failing = false;
    }
    void TearDown() override
    {
        shared_lists_free(&g_);
        EXPECT_EQ(mapped, 0);
        EXPECT_EQ(registered, 0);
    }
    gpunvme_piece *alloc(size_t n = kPieces)
    {
        gpunvme_piece *pieces = nullptr;
        EXPECT_EQ(shared_list_alloc_pieces(&g_, n, &pieces), 0) << gpunvme_error();
        return pieces;
    }
    // Prepares lists as the opening of the direct path does, on a mount with a GPU or without.
    int open_direct(bool gpu)
    {
        direct_.space.cuda = gpu ? reinterpret_cast<cuda_driver *>(this) : nullptr;
        int err = shared_lists_map(&g_, &direct_.space);
        if (!err)
            LIST_INSERT_HEAD(&g_.directs, &direct_, entry);
        return err;
    }
    // What the direct path is given for them; 0: -EINVAL.
    uint64_t locate(const gpunvme_piece *pieces, size_t n)
    {
        uint64_t at = 0;
        int err = shared_list_locate(&g_, pieces, n, &at);
        EXPECT_TRUE(err == 0 || err == -EINVAL) << err;
        return err ? 0 : at;
    }
    static uint64_t on_gpu(const void *p) { return reinterpret_cast<uint64_t>(p) + kGpu; }

    connection g_ = {}; // with a lock that is initialised by zeros
    gpunvme_direct direct_ = {};
};

TEST_F(ListMemory, IsMappedWhenItIsAllocatedAndNotByItsUse)
{
    ASSERT_EQ(open_direct(true), 0);
    gpunvme_piece *one = alloc(), *other = alloc(1);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(locate(one, kPieces), on_gpu(one));
    EXPECT_EQ(locate(one + 7, 1), on_gpu(one + 7));
    EXPECT_EQ(locate(other, 1), on_gpu(other));
    EXPECT_EQ(calls, 2);
    shared_list_free_pieces(&g_, one);
    EXPECT_EQ(mapped, 1);
}

TEST_F(ListMemory, FromBeforeTheDirectPathIsMappedWhenThatIsOpened)
{
    gpunvme_piece *one = alloc(), *other = alloc();
    EXPECT_EQ(calls, 0);
    ASSERT_EQ(open_direct(true), 0);
    EXPECT_EQ(calls, 2);
    ASSERT_EQ(open_direct(true), 0) << "a brother";
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(locate(one, kPieces), on_gpu(one));
    EXPECT_EQ(locate(other, kPieces), on_gpu(other));
}

TEST_F(ListMemory, OfAMountWithoutAGpuIsMappedForNobody)
{
    gpunvme_piece *before = alloc();
    ASSERT_EQ(open_direct(false), 0);
    gpunvme_piece *after = alloc();
    for (const gpunvme_piece *pieces : {before, after}) {
        EXPECT_EQ(locate(pieces + 1, kPieces - 1), reinterpret_cast<uint64_t>(pieces + 1));
        EXPECT_EQ(locate(pieces + 1, kPieces), 0u);
    }
    EXPECT_EQ(calls, 0);
}

TEST_F(ListMemory, ExcludesPiecesPastItsEnd)
{
    ASSERT_EQ(open_direct(true), 0);
    gpunvme_piece *pieces = alloc();
    EXPECT_EQ(locate(pieces, kPieces + 1), 0u);
    EXPECT_NE(std::string(gpunvme_error()).find(std::to_string(kPieces + 1)), std::string::npos);
    EXPECT_EQ(locate(pieces + kPieces - 1, 1), on_gpu(pieces + kPieces - 1));
    EXPECT_EQ(locate(pieces + kPieces - 1, 2), 0u);
    EXPECT_EQ(locate(pieces, SIZE_MAX), 0u);
    auto *within = reinterpret_cast<gpunvme_piece *>(&pieces[1].len);
    EXPECT_EQ(locate(within, kPieces - 1), 0u) << "the last one would end outside";
    EXPECT_EQ(locate(within, kPieces - 2), on_gpu(within));
}

TEST_F(ListMemory, OfTheCallerHasItsOwnAddress)
{
    ASSERT_EQ(open_direct(true), 0);
    gpunvme_piece own[2], *pieces = alloc();
    EXPECT_EQ(locate(own, 2), reinterpret_cast<uint64_t>(own));
    EXPECT_EQ(locate(pieces + kPieces, 1), reinterpret_cast<uint64_t>(pieces + kPieces));
}

TEST_F(ListMemory, ThatCannotBeMappedIsNotAllocated)
{
    gpunvme_piece *pieces = alloc(), *none = nullptr;
    failing = true;
    EXPECT_EQ(open_direct(true), -ENOMEM);
    failing = false;
    ASSERT_EQ(open_direct(true), 0);
    failing = true;
    EXPECT_EQ(shared_list_alloc_pieces(&g_, 1, &none), -ENOMEM);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(registered, 1);
    EXPECT_EQ(locate(pieces, kPieces), on_gpu(pieces));
}

} // namespace

int cuda_driver_map(struct cuda_driver *, int, void *addr, size_t len, enum cuda_host_kind,
                    uint64_t *at)
{
    if (failing || len % 4096 != 0)
        return -ENOMEM;
    *at = reinterpret_cast<uintptr_t>(addr) + kGpu;
    calls++;
    mapped++;
    return 0;
}

void cuda_driver_unpin(struct cuda_driver *, int, void *)
{
    mapped--;
}

int socket_send_memory(struct connection *, int, uint64_t *token)
{
    *token = 1;
    return 0;
}

int gpunvme_ioctl(int, unsigned long request, void *, uint32_t)
{
    registered += request == GPUNVME_IOC_REGISTER;
    registered -= request == GPUNVME_IOC_UNREGISTER;
    return 0;
}
