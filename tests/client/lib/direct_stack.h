/* SPDX-License-Identifier: BSD-2-Clause */
// Queues, files and memory of the direct path in the process itself, against a controller of few
// lines that runs beside them.
#ifndef TESTS_CLIENT_LIB_DIRECT_STACK_H
#define TESTS_CLIENT_LIB_DIRECT_STACK_H

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "cuda/gq_sum_fill.h"
#include "tests/client/lib/direct_rig.h"
#include "tests/cuda/crc32c.h"
}
#include "tests/cuda/queue/host_queue.h"

namespace direct_stack
{

constexpr uint32_t kLba = 512, kMost = 8192, kTable = 1 + GD_GROUP;
constexpr size_t kPages = 256, kPage = 4096;

struct Rings : HostQueue {
    std::vector<nvme_sqe> held;        // fetched, not executed
    std::map<uint32_t, uint16_t> last; // of each index that had a command: the CID

    using HostQueue::HostQueue;
};

// Addresses of the controller are those of the process.
class Stack
{
  public:
    Stack(uint32_t n_queues, uint32_t depth, unsigned n_extents)
        : depth_(depth), queues_(n_queues), cmds_(n_queues * depth), cids(n_queues),
          locks(n_queues), states(n_queues * depth)
    {
        rings_.assign(n_queues, Rings(depth));
        make_cids(n_queues, depth - 1);
        for (uint32_t i = 0; i < n_queues; i++)
            queues_[i].port = rings_[i].port();
        make_extents(n_extents);
        uint64_t memory = reinterpret_cast<uint64_t>(pages.data());
        uint64_t staging = reinterpret_cast<uint64_t>(staging_.data());
        table_[0] = {
            memory + 64, kPages * kPage - 64, {memory, memory, 0, 64, kPages * kPage - 64}};
        file.set.queues = queues_.data();
        file.set.locks = locks.data();
        file.set.buffers = table_;
        file.set.n_buffers = &n_buffers_;
        file.set.lease = &lease;
        for (size_t i = 0; i < staging_.size(); i++)
            prps_[i] = staging + i * kPage;
        file.set.staging = {staging, staging, reinterpret_cast<uint64_t>(prps_.data()), 0, 0};
        file.set.command_ns = 600000000000u; // a loaded machine misses no deadline
        file.set.n_queues = n_queues;
        file.set.nsid = 1;
        file.set.max_command = kMost;
        file.set.cids = cids.data();
        file.set.shared_staging = {staging + kLaneParts, staging + kLaneParts, 0, 0, 0};
        file.set.lane_bytes = file.set.shared_bytes = kLba;
        file.set.staged_cids = GD_STAGED_CIDS;
        file.set.shared_inverse = gd_inverse(gd_shared_queues(n_queues));
        file.lease = &lease;
        file.checked_ns = &checked_ns_;
        controller_ = std::thread([this] {
            while (!stop_) {
                for (Rings &r : rings_)
                    serve(r);
                std::this_thread::yield();
            }
        });
    }

    ~Stack()
    {
        stop_ = true;
        controller_.join();
    }

    // Of the memory, to byte `at` of it.
    int64_t read(size_t at, uint64_t len, uint64_t offset)
    {
        return shared_read_warp(&file, reinterpret_cast<uint64_t>(pages.data()) + at, len, offset);
    }

    // Reads through a queue that no other reader has.
    int64_t read_alone(size_t at, uint32_t len, uint64_t offset)
    {
        gq_read_desc piece = {offset, 0, len, -1};
        int err = direct_list_read(&file, reinterpret_cast<uint64_t>(pages.data()) + at, &piece, 1,
                                   0, 1, nullptr);
        return err ? err : piece.result;
    }

    // The controller no longer reaches the memory that is read to.
    void stage_all()
    {
        struct gq_target *t = &table_[0].target;

        *t = {t->base + t->head, GD_UNREACHABLE, 0, 0, t->len};
        file.set.lane_bytes = file.set.shared_bytes = GD_STAGED_ALL;
    }

    // Data has checksums now, but for holes; parts of blocks are staged.
    void add_sums()
    {
        gq_sum_fill(&sum_table_);
        for (size_t at = 0; at < content_.size(); at += kPage)
            sums.push_back(is_hole(at) ? 0 : crc32c(&content_[at], kPage));
        file.sums = {sums.data(), &sum_table_};
        file.bad_block = &bad_block;
        if (file.set.lane_bytes != GD_STAGED_ALL)
            file.set.lane_bytes = file.set.shared_bytes = GD_STAGED_ENDS;
    }

    // The file is one extent of so many pages.
    void make_one_extent(uint64_t n)
    {
        extents_ = {{0, 40}};
        content_.assign(&media_[40 * kLba], &media_[40 * kLba + n * kPage]);
        file.map = {extents_.data(), content_.size(), 1, kLba};
    }

    // Readers check the leases again.
    void forget_check() { checked_ns_ = 0; }

    // They were checked so long ago; another group checks them now. Readers may store it as well.
    void set_checked(uint64_t age_ns = 0, bool another_checks = false)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t at = static_cast<uint64_t>(now.tv_sec) * 1000000000u +
                      static_cast<uint64_t>(now.tv_nsec) - age_ns;
        at = (at & ~uint64_t{GD_CHECKING}) | (another_checks ? GD_CHECKING : 0);
        __atomic_store_n(&checked_ns_, at, __ATOMIC_RELAXED);
    }

    uint64_t checked() const { return __atomic_load_n(&checked_ns_, __ATOMIC_RELAXED); }

    bool is_hole(uint64_t offset) const
    {
        size_t i = extents_.size() - 1;
        while (extents_[i].offset > offset)
            i--;
        return extents_[i].lba == GQ_LBA_ZERO;
    }

    // The byte of the file on the drive, which is no hole's.
    uint8_t &on_media(uint64_t offset)
    {
        size_t i = extents_.size() - 1;
        while (extents_[i].offset > offset)
            i--;
        return media_[extents_[i].lba * kLba + (offset - extents_[i].offset)];
    }

    // Returns true if the bytes are those of the file on the drive, which has no hole there.
    bool are_on_media(const uint8_t *bytes, uint64_t len, uint64_t offset)
    {
        for (uint64_t done = 0, n; done < len; done += n) {
            n = std::min(len - done, kLba - (offset + done) % kLba);
            if (memcmp(bytes + done, &on_media(offset + done), n) != 0)
                return false;
        }
        return true;
    }

    // Of the memory that is read to.
    gd_buffer buffer() const { return table_[0]; }

    bool holds(size_t at, uint64_t len, uint64_t offset) const
    {
        return memcmp(pages[0].bytes + at, &content_[offset], len) == 0;
    }

    /* The same, and the bytes in front and behind have the value `around`. */
    bool holds_alone(size_t at, uint64_t len, uint64_t offset, unsigned char around) const
    {
        return holds(at, len, offset) && pages[0].bytes[at - 1] == around &&
               pages[0].bytes[at + len] == around;
    }

    bool is_media(size_t at, uint64_t len, uint64_t lba) const
    {
        return memcmp(pages[0].bytes + at, &media_[lba * kLba], len) == 0;
    }

    uint32_t lost_queues()
    {
        uint32_t n = 0;
        for (uint32_t queue = 0; queue < locks.size(); queue++)
            n += (lock(queue) & GD_LOST) != 0;
        return n;
    }

    uint32_t lock(uint32_t queue) { return __atomic_load_n(&locks[queue], __ATOMIC_ACQUIRE); }

  private:
    // Of some pages each, every third a hole, not in the order of the media.
    void make_extents(unsigned n)
    {
        for (unsigned i = 0; i < n; i++) {
            uint64_t len = (2 + i % 3) * kPage, lba = (n - i) * 40;
            bool hole = i % 3 == 2;
            extents_.push_back({content_.size(), hole ? GQ_LBA_ZERO : lba});
            content_.resize(content_.size() + len);
            if (!hole)
                memcpy(&content_.back() + 1 - len, &media_[lba * kLba], len);
        }
        file.map = {extents_.data(), content_.size(), n, kLba};
    }

    void make_cids(uint32_t n_queues, uint32_t n_cids)
    {
        for (uint32_t i = 0; i < n_queues; i++) {
            cids[i] = {};
            for (uint32_t k = n_cids; k < GQ_MAX_CIDS; k++)
                cids[i].taken[k / 32] |= 1u << k % 32;
            cids[i].n_cids = n_cids;
            cids[i].cmds = &cmds_[i * n_cids];
            cids[i].states = &states[i * n_cids];
        }
    }

    // Errors here are reported by the thread that reads, when the test asks.
    void serve(Rings &r)
    {
        while (r.fresh())
            r.held.push_back(r.fetch());
        most_held = std::max<size_t>(most_held, r.held.size());
        while (!r.held.empty()) {
            if (r.room() == 0)
                return;
            size_t i = out_of_order ? rng_() % r.held.size() : 0;
            if (out_of_order && rng_() % 4 == 0)
                return; // the rest is for later
            nvme_sqe sqe = r.held[i];
            r.held.erase(r.held.begin() + static_cast<ptrdiff_t>(i));
            execute(r, sqe);
        }
    }

    void execute(Rings &r, const nvme_sqe &sqe)
    {
        uint64_t slba = sqe.cdw10 | static_cast<uint64_t>(sqe.cdw11) << 32;
        uint64_t len = (sqe.cdw12 + 1) * kLba, first = kPage - sqe.prp1 % kPage;
        auto cid = static_cast<uint16_t>(sqe.cid + cid_error.exchange(0));
        commands++;
        odd_commands += (len <= first && sqe.prp2) || sqe.opcode != NVME_IO_READ || sqe.flags ||
                        sqe.nsid != 1 || sqe.cdw2 || sqe.cdw3 || sqe.mptr || sqe.cdw13 ||
                        sqe.cdw14 || sqe.cdw15;
        if ((on_command && !on_command()) || sqe.prp1 == never_to)
            return;
        if (!is_repeated(r, sqe.cid, &cid))
            move(sqe, slba, len, first);
        r.post(cid, static_cast<uint16_t>(status_of_next.exchange(0)));
    }

    // Is the command never executed, and the last one with its index completed again instead?
    bool is_repeated(Rings &r, uint16_t own, uint16_t *cid)
    {
        uint32_t bits = 1;
        while (bits < depth_ - 1)
            bits = bits << 1 | 1;
        uint32_t index = own & bits;
        bool had_one = r.last.count(index) != 0, repeated = had_one && repeat.exchange(false);
        if (repeated)
            *cid = r.last[index];
        r.last[index] = own;
        return repeated;
    }

    void move(const nvme_sqe &sqe, uint64_t slba, uint64_t len, uint64_t first)
    {
        memcpy(reinterpret_cast<void *>(sqe.prp1), &media_[slba * kLba], std::min(len, first));
        if (len > first && len <= first + kPage) // longer ones: their memory is in one piece
            memcpy(reinterpret_cast<void *>(sqe.prp2), &media_[slba * kLba + first], len - first);
        else if (len > first && is_in_table(sqe.prp2))
            move_pages(reinterpret_cast<const uint64_t *>(sqe.prp2), &media_[slba * kLba + first],
                       len - first);
        else if (len > first)
            memcpy(reinterpret_cast<void *>(sqe.prp1 + first), &media_[slba * kLba + first],
                   len - first);
    }

    bool is_in_table(uint64_t prp2) const
    {
        auto from = reinterpret_cast<uint64_t>(prps_.data());
        return prp2 >= from && prp2 < from + prps_.size() * sizeof(prps_[0]);
    }

    // The list of staged data may not leave its page of the table.
    void move_pages(const uint64_t *prps, const uint8_t *from, uint64_t len)
    {
        auto first = static_cast<size_t>(prps - prps_.data());
        odd_commands +=
            (first + (len - 1) / kPage) / NVME_PRP_PER_PAGE != first / NVME_PRP_PER_PAGE;
        for (uint64_t at = 0; at < len; at += kPage)
            memcpy(reinterpret_cast<void *>(*prps++), from + at, std::min(len - at, kPage));
    }

    // Returns the first content of the drive. It is made once, because that takes
    // long with a sanitizer.
    static const std::vector<uint8_t> &initial_media()
    {
        static const std::vector<uint8_t> media = host_media(4u << 20);
        return media;
    }

    std::vector<uint8_t> media_ = initial_media(), content_;
    // Of four queues: of a group, and two pages for each CID with staging. A table of its PRPs.
    static constexpr size_t kLaneParts = 4 * GD_STAGED_QUEUE;
    std::vector<Page> staging_ =
        std::vector<Page>(kLaneParts / kPage + 4 * GD_STAGED_CIDS * GD_STAGED_ALL / kPage);
    std::vector<uint64_t> prps_ = std::vector<uint64_t>(staging_.size());
    std::vector<Rings> rings_;
    std::vector<gq_file_extent> extents_;
    uint32_t depth_;
    std::vector<gd_queue> queues_;
    std::vector<gq_cmd> cmds_;
    gd_buffer table_[kTable] = {};
    gq_sum_table sum_table_ = {};
    uint32_t n_buffers_ = 1;
    uint64_t checked_ns_ = 0;
    std::mt19937 rng_{7};
    std::atomic<bool> stop_{false};
    std::thread controller_;

  public:
    std::vector<gq_cids> cids;
    std::vector<uint32_t> locks, states, sums;
    uint64_t bad_block = 0;
    std::vector<Page> pages = std::vector<Page>(kPages);
    uint32_t lease = GD_LEASE_VALID;
    gpunvme_device_file file = {};
    bool out_of_order = false; // set before the first read
    // Of the controller; on_command: set before the first read, false: never completed.
    std::function<bool()> on_command;
    std::atomic<size_t> most_held{0};  // commands of a queue
    std::atomic<bool> repeat{false};   // set once an index has a second command
    std::atomic<uint64_t> never_to{0}; // the address whose commands are never completed
    std::atomic<unsigned> commands{0}, odd_commands{0}, status_of_next{0}, cid_error{0};
};

// Returns the address of byte `at` of the memory that is read to.
inline uint64_t address(const Stack &s, size_t at)
{
    return reinterpret_cast<uint64_t>(s.pages.data()) + at;
}

// A read of a file of Stack's extents, 2 pages, 3 pages, 4 of a hole, 2 pages..., to byte `at`.
struct Case {
    const char *name;
    size_t at;
    uint64_t len, offset;
    unsigned commands; // that it takes
};

inline const Case kCases[] = {
    {"a_page", kPage, kPage, 0, 1},
    {"an_lba", kPage, kLba, 1536, 1},
    {"to_a_multiple_of_4", kPage + 4, kPage, kPage, 1},
    {"two_pages_whole_extent", kPage, 2 * kPage, 0, 1},
    {"in_the_second_extent", kPage, 2 * kPage, 3 * kPage, 1},
    {"behind_a_hole", 2 * kPage, kPage, 9 * kPage, 1},
    {"to_an_odd_address", kPage + 1, kLba, 0, 1},
    {"from_within_an_lba", kPage, kLba, 100, 2},
    {"ends_within_an_lba", kPage, kPage + 100, 0, 2},
    {"over_two_extents", kPage, 2 * kPage, kPage, 2},
    {"over_the_edge_of_a_hole", kPage, 2 * kPage, 4 * kPage, 1},
    {"in_a_hole", kPage, kPage, 5 * kPage, 0},
};

// read(at, len, offset): brings the file's bytes, with as many commands; other bytes stay.
template <typename Read> void expect_read(Stack &s, const Case &c, const Read &read)
{
    memset(s.pages[0].bytes, 0x5a, kPages * kPage);
    ASSERT_EQ(read(c.at, c.len, c.offset), static_cast<int64_t>(c.len));
    EXPECT_TRUE(s.holds(c.at, c.len, c.offset));
    EXPECT_EQ(s.pages[0].bytes[c.at - 1], 0x5a);
    EXPECT_EQ(s.pages[0].bytes[c.at + c.len], 0x5a);
    EXPECT_EQ(s.commands, c.commands);
}

// Nothing is claimed, pending or lost, and each queue is free.
inline void expect_idle(Stack &s)
{
    for (size_t q = 0; q < s.cids.size(); q++) {
        EXPECT_TRUE(GD_FREE(s.locks[q])) << q << ": " << s.locks[q];
        EXPECT_EQ(s.cids[q].lost, 0u) << q;
        for (uint32_t i = 0; i < s.cids[q].n_cids; i++)
            EXPECT_EQ(s.cids[q].taken[i / 32] >> i % 32 & 1, 0u) << q << ", " << i;
        for (uint32_t word : s.cids[q].pending)
            EXPECT_EQ(word, 0u) << q;
    }
}

} // namespace direct_stack

#endif
