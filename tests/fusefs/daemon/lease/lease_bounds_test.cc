/* SPDX-License-Identifier: BSD-2-Clause */
// Limits of leases, per user and per mount.
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/fusefs/daemon/rig_test.h"
#include "tests/threads.h"

namespace
{

// As in fusefs/daemon/lease/lease.h, a C11 header.
constexpr uint64_t kSegments = 4u << 20, kOfUsers = kSegments / 8 * 7;
constexpr uint64_t kSegmentsOfUser = kOfUsers / 2; // if no other user holds any
// Segments of the file: extents and holes in turn.
constexpr uint64_t kOfFile = 70000;

class QueueLeases : public RigTest
{
  protected:
    void open(uint64_t image_bytes = 0)
    {
        open_rig(with(&rig_config::leases, true, with(&rig_config::image_bytes, image_bytes)));
    }
};

class LeaseBounds : public QueueLeases
{
  protected:
    void SetUp() override
    {
        open(256u << 20);
        ASSERT_EQ(rig_fragment(rig_, 0, kOfFile / 2 * 8192), 0);
        ASSERT_EQ(rig_write_file(rig_, kOfFile / 2 * 8192 - 1, "", 1), 0);
    }
    struct Lease {
        uint64_t id, key;
    };
    // Leases the file until a refusal; returns the error.
    int lease_all(uint32_t uid, std::vector<Lease> *leases)
    {
        for (;;) {
            gpunvme_ioc_extent_lease lease;
            int err = rig_lease_extents(rig_, uid, &lease);
            if (err)
                return err;
            leases->push_back({lease.id, lease.key});
        }
    }
};

TEST_F(LeaseBounds, SegmentsAreLimitedPerUserAndInTotal)
{
    constexpr size_t kFirst = kSegmentsOfUser / kOfFile;
    constexpr size_t kSecond = (kOfUsers - kFirst * kOfFile) / 2 / kOfFile;
    std::vector<Lease> first, second, root;
    EXPECT_EQ(lease_all(1, &first), -EDQUOT);
    EXPECT_EQ(first.size(), kFirst);
    EXPECT_EQ(lease_all(2, &second), -EDQUOT) << "has half of the rest";
    EXPECT_EQ(second.size(), kSecond);
    EXPECT_EQ(lease_all(0, &root), -EDQUOT);
    EXPECT_EQ(root.size(), (kSegments - (kFirst + kSecond) * kOfFile) / kOfFile) << "all the rest";
    ASSERT_EQ(rig_lease_end(rig_, 2, second[0].id, second[0].key), 0);
    EXPECT_EQ(lease_all(1, &first), -EDQUOT) << "what another gives back is not his";
    EXPECT_EQ(first.size(), kFirst);
}

TEST_F(LeaseBounds, ConcurrentlyMadeLeasesAreLimitedToo)
{
    std::vector<std::thread> threads;
    std::vector<std::vector<Lease>> leases(4);
    std::atomic<unsigned> refused{0};
    for (auto &mine : leases)
        threads.emplace_back([&] { refused += lease_all(1, &mine) == -EDQUOT; });
    size_t all = 0;
    for (size_t i = 0; i < threads.size(); i++) {
        threads[i].join();
        all += leases[i].size();
    }
    EXPECT_EQ(refused, threads.size());
    EXPECT_LE(all, kSegmentsOfUser / kOfFile);
    EXPECT_GE(all, 1u);
    for (const auto &mine : leases) {
        for (const Lease &lease : mine)
            ASSERT_EQ(rig_lease_end(rig_, 1, lease.id, lease.key), 0);
    }
    std::vector<Lease> again;
    EXPECT_EQ(lease_all(1, &again), -EDQUOT);
    EXPECT_EQ(again.size(), kSegmentsOfUser / kOfFile) << "all came back";
}

TEST_F(LeaseBounds, ALeaseInCreationLeavesRoomForOthers)
{
#ifdef __SANITIZE_THREAD__
    constexpr unsigned kLeases = 10; // of 70,000 segments each
#else
    constexpr unsigned kLeases = 50;
#endif
    std::atomic<unsigned> refused{0};
    in_threads(3, [&](unsigned) {
        for (unsigned k = 0; k < kLeases; k++) {
            gpunvme_ioc_extent_lease lease;
            if (rig_lease_extents(rig_, 1, &lease))
                refused++;
            else
                rig_lease_end(rig_, 1, lease.id, lease.key);
        }
    });
    EXPECT_EQ(refused, 0u) << "all of them come to a tenth of what a user may have";
}

// The page of the lease needs a descriptor, and none is free.
TEST_F(QueueLeases, ALeaseThatFailsPinsNoBlocks)
{
    constexpr uint64_t kImage = 32u << 20;
    open(kImage);
    std::vector<char> half(kImage / 2);
    ASSERT_EQ(rig_write_file(rig_, 0, half.data(), half.size()), 0);
    gpunvme_ioc_extent_lease lease;
    struct rlimit had, none;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &had), 0);
    none = {0, had.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(rig_lease_extents(rig_, 0, &lease), -EMFILE);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &had), 0);
    ASSERT_EQ(rig_truncate(rig_, 0), 0);
    EXPECT_EQ(rig_write_file(rig_, 0, half.data(), half.size()), 0) << "in the same blocks";
    ASSERT_EQ(rig_lease_extents(rig_, 0, &lease), 0);
    ASSERT_EQ(rig_truncate(rig_, 0), 0);
    EXPECT_NE(rig_write_file(rig_, 0, half.data(), half.size()), 0) << "they are pinned";
}

TEST_F(QueueLeases, AUserLeavesLeasesForOthers)
{
    open();
    gpunvme_ioc_extent_lease lease;
    for (auto [uid, share] : {std::pair{1u, 1792u}, {2u, 896u}, {0u, 1408u}}) {
        int err;
        unsigned n = 0;
        while ((err = rig_lease_extents(rig_, uid, &lease)) == 0)
            n++;
        EXPECT_EQ(err, -EMFILE);
        EXPECT_EQ(n, share) << "user " << uid << ", of 4,096 with 512 for root";
    }
}

TEST_F(QueueLeases, AUserLeavesQueuesForOthers)
{
    open();
    gpunvme_ioc_queue_lease lease;
    unsigned first = 0, second = 0, rest = 0;
    while (first < 1000 && rig_lease_queue(rig_, 1, &lease) == 0)
        first++;
    while (second < 1000 && rig_lease_queue(rig_, 2, &lease) == 0)
        second++;
    while (rest < 1000 && rig_lease_queue(rig_, 0, &lease) == 0)
        rest++;
    unsigned all = first + second + rest, users = all - all / 8;
    EXPECT_EQ(first, (users + 1) / 2);
    EXPECT_EQ(second, (users - first + 1) / 2);
}

using LeaseChecksums = RigTest;

// Checksums are compared, or given up by a flag. They count as segments do.
TEST_F(LeaseChecksums, AreRequestedOrWaivedAndAreLimited)
{
    open_rig(with(&rig_config::data_csum, true, with(&rig_config::leases, true)));
    auto lease = [r = rig_](uint32_t flags, int result, uint32_t reply) {
        for (int i = 0; i < 3; i++) {
            uint32_t f = flags;
            EXPECT_EQ(rig_lease_with(r, &f), result) << flags;
            EXPECT_TRUE(result || f == reply) << f;
        }
    };
    ASSERT_EQ(rig_write_file(rig_, 0, "data", 4), 0);
    lease(0, -EOPNOTSUPP, 0);
    lease(GPUNVME_LEASE_SUMS, 0, GPUNVME_LEASE_SUMS);
    lease(GPUNVME_LEASE_UNVERIFIED, 0, 0);
    // A word for each block, 24 words for a segment; the file is sparse.
    ASSERT_EQ(rig_write_file(rig_, kSegments * 24 * 4096, "end", 3), 0);
    lease(GPUNVME_LEASE_SUMS, -EDQUOT, 0);
    lease(GPUNVME_LEASE_UNVERIFIED, 0, 0);
}

// --- Shares of users in host memory, which is sparse here ----------------------------------------

constexpr uint64_t kList = 4080;

uint64_t half_of_memory()
{
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

class HostBytes : public RigTest
{
  protected:
    void SetUp() override { open_rig(); }
    // Registers a sparse memfd, whose bytes count whether they were touched or
    // not.
    int add(uint64_t len, uint32_t uid)
    {
        rig_buffer b = {};
        int err = rig_register(rig_, len, uid, &b);
        rig_forget(&b);
        last_ = err ? last_ : b;
        return err;
    }
    int add_list(uint64_t len, uint32_t uid)
    {
        rig_buffer b = {};
        int err = rig_register_list(rig_, len, uid, &b);
        rig_forget(&b);
        last_ = err ? last_ : b;
        return err;
    }

    const uint64_t half_ = half_of_memory(), users_ = half_ - half_ / 8;
    const uint64_t one_ = users_ - users_ / 2; // limit of one user, if no other has any
    rig_buffer last_ = {};                     // that was registered
};

TEST_F(HostBytes, IsHalfOfTheMachinesMemoryAtMost)
{
    EXPECT_EQ(add(one_, 1), 0);
    uint64_t left = users_ - one_, second = left - left / 2;
    EXPECT_EQ(add(second + 1, 2), -ENOMEM);
    EXPECT_EQ(add(second, 2), 0) << "half of what the first one left";
    rig_buffer of_second = last_;
    EXPECT_EQ(add(left - second, 3), -ENOMEM);
    EXPECT_EQ(add(half_ - one_ - second + 1, 0), -ENOMEM);
    EXPECT_EQ(add(half_ - one_ - second, 0), 0) << "root may take all that is left";
    EXPECT_EQ(add(1, 4), -ENOMEM);
    EXPECT_EQ(add_list(24, 4), -ENOMEM);
    EXPECT_EQ(rig_unregister(rig_, &of_second, 2), 0);
    EXPECT_EQ(add(1, 4), 0);
    EXPECT_EQ(rig_buffers(rig_), 3u);
}

TEST_F(HostBytes, OneUserHasHalfOfThatAtMost)
{
    EXPECT_EQ(add(one_ + 1, 1), -ENOMEM);
    EXPECT_EQ(add_list(kList, 1), 0) << "counts, too";
    EXPECT_EQ(add(one_ - kList + 1, 1), -ENOMEM);
    EXPECT_EQ(add(one_ - kList, 1), 0);
    rig_buffer most = last_;
    EXPECT_EQ(add(1, 1), -ENOMEM);
    EXPECT_EQ(add_list(24, 1), -ENOMEM);
    EXPECT_EQ(add(one_ / 2, 2), 0) << "another's";
    EXPECT_EQ(rig_unregister(rig_, &most, 1), 0);
    EXPECT_EQ(add((users_ - one_ / 2) / 2 - kList, 1), 0) << "half of what the other left";
}

} // namespace
