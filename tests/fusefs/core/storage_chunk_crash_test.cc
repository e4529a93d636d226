/* SPDX-License-Identifier: BSD-2-Clause */
// Files whose metadata maps and unmaps chunks: on a full file system, and after a power cut at any
// operation.
#include <string.h>

#include <iterator>
#include <set>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

const uint64_t PLACES = getenv("META_COPIES") ? 2 : 1; // places of a chunk
constexpr uint32_t EMPTY = LAY_SEGMENT_BLOCKS - 1;     // free blocks of an empty segment
constexpr unsigned VALUES_OF_FILE = 10;
constexpr ffs_cred CRED = {};

// Bytes of a value that fills this many xattr blocks.
constexpr size_t value_bytes(unsigned blocks)
{
    return blocks == 1 ? 3000 : (blocks - 1) * 4000 + 1000;
}

class ChunkFiles : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(16u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
    }

    uint64_t mapped() { return space_chunks(fs); }
    // Free blocks in chunks.
    uint64_t spare() { return space_meta_free(fs); }

    // The file that has value `n`; made if there is none. -errno if that fails.
    int file_of(unsigned n, Inode *out)
    {
        const std::string name = "f" + std::to_string(n / VALUES_OF_FILE);
        int err = ffs_lookup(root(), name.c_str(), out->out());
        return err == -ENOENT ? new_file(name.c_str(), out->out()) : err;
    }
    static std::string name_of(unsigned n) { return "user." + std::to_string(n); }
    static std::string value_of(unsigned n, unsigned blocks)
    {
        return std::string(value_bytes(blocks), static_cast<char>('a' + n % 26));
    }
    // Value `n` takes `blocks` blocks of metadata.
    int add(unsigned n, unsigned blocks = 17)
    {
        Inode file;
        std::string value = value_of(n, blocks);
        int err = file_of(n, &file);
        return err ? err : ffs_setxattr(file, name_of(n).c_str(), value.data(), value.size(), 0);
    }
    int remove(unsigned n)
    {
        Inode file;
        int err = file_of(n, &file);
        return err ? err : ffs_removexattr(file, name_of(n).c_str());
    }
    // Adds values from `n` on until there are this many chunks; returns the next number.
    unsigned add_until(uint64_t chunks, unsigned n = 0)
    {
        while (mapped() < chunks && n < 1000) {
            EXPECT_EQ(add(n), 0) << n;
            n++;
        }
        return n;
    }
    void check()
    {
        ASSERT_NO_FATAL_FAILURE(expect_sound());
        ASSERT_EQ(mount(), 0) << why;
    }
};

// Data that takes all it can get leaves the metadata of files room.
TEST_F(ChunkFiles, DataLeavesMetadataTheReserve)
{
    // The reserve is almost touched, so that the chunks have no more than that.
    unsigned n = 0;
    while (spare() >= EMPTY + 2 * 17)
        ASSERT_EQ(add(n++), 0);
    ASSERT_EQ(mapped(), 2u);
    fill_data("data");
    ASSERT_EQ(free_blocks(), 0u);
    unsigned made = 0;
    int err = 0;
    for (; made < 1000 && !err; made++)
        err = add(n + made);
    EXPECT_EQ(err, -ENOSPC);
    EXPECT_GT(made, EMPTY / 18 - 5) << "and some for handles that free";
    EXPECT_EQ(mapped(), 2u);
    check();
    for (unsigned i = 0; i < n + made - 1; i++)
        ASSERT_EQ(remove(i), 0) << i;
    EXPECT_EQ(remove_file("data"), 0);
    EXPECT_EQ(commit_freed(), 0);
    EXPECT_GT(free_blocks(), 1000u);
    check();
}

// A single free block is found, in whichever segment it is, before ENOSPC is returned.
TEST_F(ChunkFiles, AnyFreeBlockIsFound)
{
    ASSERT_EQ(unmount(), 0);
    make(32u << 20, 256);
    ASSERT_EQ(mount(), 0) << why;
    add_until(9);
    fill_data("data");
    unsigned n = 1000, from = n;
    int err = 0;
    while (!err) {
        err = add(n, 1);
        n += err == 0;
        ASSERT_LT(n, 9000u);
    }
    ASSERT_EQ(err, -ENOSPC);
    for (unsigned i = from; i < n; i += (n - from) / 23) {
        ASSERT_EQ(remove(i), 0);
        if (i % 2)
            remount(); // which knows nothing of the segments
        uint64_t left = spare();
        EXPECT_EQ(add(i, 1), 0) << i;
        EXPECT_EQ(spare(), left - 1);
        EXPECT_EQ(add(from - 1 - i % VALUES_OF_FILE, 1), -ENOSPC) << i;
    }
    check();
}

// Such as a hole that splits a node.
TEST_F(ChunkFiles, TheLastBlocksAreForHandlesThatFree)
{
    fill_data("data");
    int err = 0;
    for (unsigned n = 0; !err && n < 4000; n++)
        err = add(n, 1);
    ASSERT_EQ(err, -ENOSPC);
    auto take = [this](bool use_reserve) {
        return handle([=](ffs_tx *tx) {
            uint64_t addr;
            int e = 0;
            if (use_reserve)
                ffs_tx_use_reserve(tx);
            for (int i = 0; i < 20 && !e; i++)
                e = ffs_alloc_meta(tx, 0, &addr);
            return e ? e : -EINTR;
        });
    };
    EXPECT_EQ(take(false), -ENOSPC);
    EXPECT_EQ(take(true), -EINTR) << "all of them were there";
    EXPECT_EQ(remove_file("data"), 0);
    check();
}

// --- Power cuts ---------------------------------------------------------------------------------

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM,
                                     CRASH_RANDOM};
// Every run tries all of these fates. With a sanitizer, which takes five times as long, each cut
// takes the next one.
constexpr int FATES_OF_A_CUT = kSanitized ? 1 : std::size(FATES);

// Values and a file of data, in steps that are committed one by one.
class ChunkCrash : public ChunkFiles
{
  protected:
    // What the file system has, from the operation on that made it durable.
    struct State {
        size_t begun, durable;
        std::set<unsigned> values;
        bool data;
    };

    void begin()
    {
        ASSERT_EQ(ffs_sync(fs), 0);
        ASSERT_EQ(ffs_checkpoint_now(fs), 0);
        dev->record();
        states = {{0, 0, values, false}};
    }
    void end_step(size_t begun)
    {
        ASSERT_EQ(commit(), 0);
        states.push_back({begun, dev->ops(), values, data});
    }
    void step_add(unsigned n)
    {
        size_t begun = dev->ops();
        ASSERT_EQ(add(n), 0);
        values.insert(n);
        end_step(begun);
    }
    void step_remove(unsigned n)
    {
        size_t begun = dev->ops();
        ASSERT_EQ(remove(n), 0);
        values.erase(n);
        end_step(begun);
    }
    // A file of all free space, which is written.
    void step_data()
    {
        size_t begun = dev->ops();
        Inode file;
        std::string bytes(64u << 10, 'D');
        ASSERT_EQ(new_file("data", file.out()), 0);
        uint64_t at = 0;
        while (ffs_write(file, at, bytes.data(), bytes.size()) > 0)
            at += bytes.size();
        ASSERT_GT(at, 0u);
        ASSERT_EQ(ffs_fsync(file, false), 0);
        data = true;
        end_step(begun);
    }

    // What is wrong with the values of a mounted file system, or "".
    std::string look(const State &s, unsigned most)
    {
        std::string got(65536, 0);
        for (unsigned n = 0; n < most; n++) {
            Inode file;
            int err = file_of(n, &file);
            ssize_t len =
                err ? err : ffs_getxattr(file, name_of(n).c_str(), got.data(), got.size());
            bool has = len == static_cast<ssize_t>(value_bytes(17));
            if (has != (s.values.count(n) > 0))
                return "value " + std::to_string(n) + ": " + std::to_string(len);
            if (has && got.compare(0, static_cast<size_t>(len), value_of(n, 17)) != 0)
                return "value " + std::to_string(n) + " has other bytes";
        }
        return s.data ? look_at_data() : "";
    }
    std::string look_at_data()
    {
        Inode file = lookup("data");
        ffs_attr attr;
        std::string bytes(1u << 20, 0);
        if (!file)
            return "no data";
        ffs_getattr(file, &attr);
        for (uint64_t at = 0; at < attr.size;) {
            ssize_t n = ffs_read(file, at, bytes.data(), bytes.size());
            if (n <= 0)
                return "data cannot be read";
            if (bytes.find_first_not_of('D') < static_cast<size_t>(n))
                return "data has other bytes";
            at += static_cast<uint64_t>(n);
        }
        return "";
    }
    // The state is the last one that was durable, or the one that had begun after it.
    std::string check_cut(CrashDevice *d, size_t ops, unsigned most)
    {
        struct ffs *whole = fs;
        std::string wrong = "mount: ";
        if (mount(d) == 0) {
            wrong = "";
            for (const State &s : states) {
                if (s.durable <= ops)
                    wrong = look(s, most);
                else if (s.begun <= ops && !wrong.empty())
                    wrong = look(s, most);
            }
            if (unmount())
                wrong += " unmount";
            if (image_check(d->dev()) != 0)
                wrong += " fsck";
        } else {
            wrong += why;
        }
        fs = whole;
        return wrong;
    }
    unsigned logged(uint64_t segment);
    // Cuts power after each operation, with these fates of what was not durable.
    void cut_everywhere(unsigned most)
    {
        constexpr int ALL = std::size(FATES);
        const uint64_t fates = static_cast<uint64_t>(test_rounds(FATES_OF_A_CUT, ALL));
        size_t all = dev->ops();
        ASSERT_GT(all, 10u);
        for (size_t ops = 0; ops <= all; ops++) {
            for (uint64_t seed = ops; seed < ops + fates; seed++) {
                Device cut = dev->cut(ops, FATES[seed % ALL], seed);
                ASSERT_EQ(check_cut(cut.get(), ops, most), "")
                    << "after " << ops << " of " << all << ", seed " << seed;
            }
        }
    }

    std::vector<State> states;
    std::set<unsigned> values;
    bool data = false;
};

// Images in the log, from the tail on, of blocks in a segment.
unsigned ChunkCrash::logged(uint64_t segment)
{
    const lay_geometry *geo = ffs_geometry(fs);
    const lay_log_commit *newest = newest_of(dev.get());
    unsigned n = 0;
    for (uint64_t pos = lay_get64(newest->tail_pos);
         LAY_ADDR(LAY_KIND_LOG, pos) != lay_get64(newest->head.block);
         pos = lay_log_after(geo, pos)) {
        const auto *head = reinterpret_cast<const lay_head *>(
            dev->bytes() + ((geo->log_start + pos) << LAY_BLOCK_SHIFT));
        n += lay_addr_kind(lay_get64(head->block)) == LAY_KIND_CHUNK &&
             lay_addr_segment(lay_get64(head->block)) == segment;
    }
    return n;
}

TEST_F(ChunkCrash, WhileOneIsMapped)
{
    unsigned n = 0;
    for (; spare() >= EMPTY + 17; n++) {
        ASSERT_EQ(add(n), 0);
        values.insert(n);
    }
    uint64_t before = mapped();
    begin();
    step_add(n);
    step_add(n + 1);
    step_add(n + 2);
    ASSERT_EQ(mapped(), before + 1);
    ASSERT_EQ(ffs_checkpoint_now(fs), 0);
    step_remove(0);
    ASSERT_EQ(unmount(), 0);
    cut_everywhere(n + 3);
}

// Its space is then used for data, while the log has images of its blocks.
TEST_F(ChunkCrash, WhileOneIsUnmappedAndItsSpaceIsUsed)
{
    unsigned n = add_until(4);
    // All but those in the last segment of one chunk that will be empty.
    std::vector<unsigned> order;
    for (unsigned i = n; i-- > 0;)
        order.push_back(i);
    size_t last = 0;
    for (; mapped() == 4 && last < order.size(); last++)
        ASSERT_EQ(remove(order[last]), 0);
    ASSERT_EQ(mapped(), 3u);
    // Once more, up to there.
    ASSERT_EQ(unmount(), 0);
    make(16u << 20, 256);
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(add_until(4), n);
    for (unsigned i = 0; i < n; i++)
        values.insert(i);
    for (size_t i = 0; i + 2 < last; i++) {
        ASSERT_EQ(remove(order[i]), 0);
        values.erase(order[i]);
    }
    std::set<uint64_t> before = segments();
    begin();
    step_remove(order[last - 2]);
    ASSERT_EQ(mapped(), 4u);
    step_remove(order[last - 1]);
    ASSERT_EQ(mapped(), 3u);
    for (uint64_t s : segments())
        before.erase(s);
    ASSERT_EQ(before.size(), 1u);
    EXPECT_GT(logged(*before.begin()), 0u);
    ASSERT_EQ(commit_freed(), 0);
    step_data();
    EXPECT_EQ(free_blocks(), 0u) << "the former chunk has data";
    EXPECT_GT(logged(*before.begin()), 0u) << "which recovery must not overwrite";
    ASSERT_EQ(unmount(), 0);
    cut_everywhere(n);
}

// The log is so large that no checkpoint comes between: the next chunk has another number.
TEST_F(ChunkCrash, WhileAnotherNumberIsUsed)
{
    ASSERT_EQ(unmount(), 0);
    make(64u << 20, 2048);
    ASSERT_EQ(mount(), 0) << why;
    unsigned n = add_until(4);
    ASSERT_EQ(ffs_sync(fs), 0);
    ASSERT_EQ(ffs_checkpoint_now(fs), 0);
    std::set<uint64_t> before = segments();
    for (unsigned i = 0; i < n; i++)
        values.insert(i);
    begin();
    for (unsigned i = n; i-- > 0 && mapped() == 4;) {
        ASSERT_EQ(remove(i), 0);
        values.erase(i);
    }
    end_step(0);
    std::set<uint64_t> after = segments();
    ASSERT_EQ(after.size(), 3u);
    for (unsigned i = n; mapped() == 3 && i < 2 * n; i++) {
        size_t begun = dev->ops();
        ASSERT_EQ(add(i), 0);
        values.insert(i);
        if (i % 8 == 0 || mapped() == 4)
            end_step(begun);
    }
    ASSERT_EQ(mapped(), 4u);
    after = segments();
    EXPECT_FALSE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
    ASSERT_EQ(unmount(), 0);
    cut_everywhere(2 * n);
}

// --- Chunks of two segments ---------------------------------------------------------------------

class WideChunks : public ChunkFiles
{
  protected:
    // The two chunks of mkfs become one.
    void SetUp() override
    {
        make(64u << 20, 512);
        const lay_geometry geo = geometry_of(dev.get());
        auto *map = reinterpret_cast<lay_map_block *>(dev->bytes() + geo.map_start * 4096);
        ASSERT_EQ(geo.reserve, 1u);
        ASSERT_EQ(lay_get64(map->slots[0].places[0]) + LAY_SEGMENT_BLOCKS,
                  lay_get64(map->slots[1].places[0]));
        super_of(dev.get())->chunk_shift = lay_put32(1);
        super_of(dev.get())->chunks = lay_put64(1);
        image_seal_super(dev->bytes(), &geo);
        ASSERT_EQ(image_check(dev->dev()), 0);
        ASSERT_EQ(mount(), 0) << why;
    }
};

TEST_F(WideChunks, StayWhileASegmentIsInUse)
{
    unsigned n = add_until(5);
    // About 30 values fill a segment; segments 1 to 3 come first, and values of segment 3 stay.
    const unsigned from = 65, to = 85;
    for (unsigned i = to; i < n; i++)
        ASSERT_EQ(remove(i), 0);
    for (unsigned i = 0; i < from; i++)
        ASSERT_EQ(remove(i), 0);
    EXPECT_LT(mapped(), 5u) << "others are empty";
    check();
    for (unsigned i = from; i < to; i++)
        ASSERT_EQ(remove(i), 0) << i;
    check();
}

TEST_F(WideChunks, AreMappedAndUnmappedAsWholes)
{
    uint64_t data = free_blocks();
    ASSERT_EQ(mapped(), 1u);
    unsigned n = add_until(4);
    EXPECT_EQ(segments(), (std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(free_blocks(), data - 3 * 2 * PLACES * LAY_SEGMENT_BLOCKS);
    check();
    EXPECT_EQ(mapped(), 4u);
    for (unsigned i = 0; i < n; i++)
        ASSERT_EQ(remove(i), 0);
    ASSERT_EQ(commit_freed(), 0);
    EXPECT_EQ(mapped(), 3u);
    EXPECT_EQ(segments().size(), 6u);
    EXPECT_EQ(free_blocks(), data - 2 * 2 * PLACES * LAY_SEGMENT_BLOCKS);
    check();
}

} // namespace
