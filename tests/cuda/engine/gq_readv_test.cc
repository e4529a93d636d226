/* SPDX-License-Identifier: BSD-2-Clause */
/* Many reads at once, of every shape, against the bytes of the file. */
#include <cerrno>

#include "tests/cuda/gq_file.h"
#include "tests/cuda/gq_rig.h"

namespace
{

using GqReadv = GqTest;

struct Shape {
    size_t n;
    uint64_t min, max; /* bytes of a read */
    uint64_t align;    /* of offsets, addresses and lengths */
};

/* Places one after another, in no order of the file; every tenth read may reach past the end. */
std::vector<gq_read> draw_reads(const File &file, std::mt19937 &rng, const Shape &shape)
{
    std::vector<gq_read> reads;
    uint64_t at = 0, past = file.bytes.size() / 10;

    for (size_t i = 0; i < shape.n; i++) {
        uint64_t span = file.bytes.size() + (rng() % 10 == 0 ? past : 0);
        uint64_t len = shape.min + rng() % (shape.max - shape.min + 1);

        len = std::max(len / shape.align * shape.align, shape.align);
        at += rng() % 3 * shape.align;
        reads.push_back({rng() % span / shape.align * shape.align, at, len});
        at += len;
    }
    std::shuffle(reads.begin(), reads.end(), rng);
    return reads;
}

uint64_t room_for(const std::vector<gq_read> &reads)
{
    uint64_t room = 0;

    for (const gq_read &r : reads)
        room = std::max(room, r.at + r.len);
    return room;
}

/* Reads them into a buffer that begins at byte `start`; nothing else in memory may change. */
void read_and_compare(Rig &rig, const File &file, const std::vector<gq_read> &reads, size_t start)
{
    uint64_t room = room_for(reads), bytes = 0;
    Memory m(rig.x.kind, start + room + 100);
    gq_buffer *b = rig.add(m, start, room);
    Bytes want(start + room + 100, 0xa5);
    Batch batch(b, file, reads);

    EXPECT_EQ(batch.run(rig), 0);
    gq_buffer_unregister(b);
    for (size_t i = 0; i < reads.size(); i++) {
        ASSERT_TRUE(batch.is_good(i)) << "read " << i << ": " << batch.results[i];
        Bytes part = file.part(reads[i].file_offset, reads[i].len);
        std::copy(part.begin(), part.end(), want.begin() + (ptrdiff_t)(start + reads[i].at));
        bytes += part.size();
    }
    EXPECT_EQ(rig.result.bytes, bytes);
    EXPECT_EQ(rig.result.taken, bytes);
    EXPECT_FALSE(rig.result.partial);
    ASSERT_TRUE(m.holds(0, want));
}

void read_shapes(Rig &rig, const std::vector<Shape> &shapes, size_t start)
{
    std::mt19937 rng(11);

    rig.open();
    for (const Shape &shape : shapes) {
        SCOPED_TRACE(testing::Message() << shape.n << " of " << shape.min << ".." << shape.max);
        File file(rig, rng, 20, 400, true);
        read_and_compare(rig, file, draw_reads(file, rng, shape), start);
    }
}

TEST_P(GqReadv, ReadsWholeLbas)
{
    for (uint32_t lba : {512u, 4096u}) {
        Rig rig(GetParam(), lba);

        rig.cfg.reorder = true;
        read_shapes(rig,
                    {{1, lba, lba, lba},
                     {lba == 512 ? 3000u : 1500u, lba, lba, lba},
                     {600, 4096, 4096, 4096},
                     {70, 65536, 65536, lba},
                     {4, 1u << 20, 3u << 19, lba}},
                    2 * 4096);
    }
}

TEST_P(GqReadv, ReadsAnyBytesToAnyPlace)
{
    for (uint32_t lba : {512u, 4096u}) {
        Rig rig(GetParam(), lba);

        rig.cfg.reorder = true;
        read_shapes(rig,
                    {{1, 1, 1, 1},
                     {500, 1, 40, 1},
                     {300, 1, 3000, 1},
                     {20, 1, 100000, 1},
                     {200, 100, 20000, 4}},
                    lba == 512 ? 1235 : 1236);
    }
}

/* Staged, they have longer commands by fewer lanes. */
TEST_P(GqReadv, ReadsLongPiecesToAnyPlace)
{
    for (uint32_t lba_size : {512u, 4096u}) {
        Rig rig(GetParam(), lba_size);

        rig.cfg.reorder = true;
        read_shapes(rig, {{1, 65536, 65536, 1}, {60, 65536, 140000, 1}, {5, 1u << 20, 1u << 20, 4}},
                    1237);
    }
}

TEST_P(GqReadv, FindsItsWayInMapsOfAnySize)
{
    for (size_t extents : {1, 2, 3, 5, 64, 1000, 10000}) {
        OpenRig rig(GetParam(), 512);
        std::mt19937 rng(extents);

        SCOPED_TRACE(extents);
        File file(rig, rng, extents, extents > 100 ? 1 : 64, extents % 2 == 0);
        read_and_compare(rig, file, draw_reads(file, rng, {400, 1, 5000, 1}), 17);
        read_and_compare(rig, file, draw_reads(file, rng, {5, 9000, 500000, 4}), 4);
    }
}

TEST_P(GqReadv, CutsReadsAtWhatACommandCarries)
{
    for (unsigned bytes : {512, 4096, 8192, 65536, 1 << 20}) {
        Rig rig(GetParam(), 512);

        SCOPED_TRACE(bytes);
        /* A controller cannot say 4096 or less: there the engine's own limit is meant. */
        rig.cfg.mdts = std::max(bytes, 8192u);
        rig.opts.max_command = bytes;
        read_shapes(rig, {{30, 1, 200000, 4}, {40, 512, 100000, 512}}, 512);
    }
}

/* A command whose list of PRPs would leave its page of the table is cut. */
TEST_P(GqReadv, ListsStayInOnePageOfTheTable)
{
    Rig rig(GetParam(), 512, 16u << 20);
    std::vector<uint64_t> starts, lens;

    rig.cfg.mdts = 4u << 20;
    rig.open();
    File file(rig, {{0, 8}}, 12u << 20);
    for (uint64_t page : {0, 1, 2, 509, 510, 511, 512, 1021})
        starts.insert(starts.end(), {page * 4096, page * 4096 + 512, page * 4096 + 4092});
    for (uint64_t pages : {1, 2, 3, 510, 511, 512, 1024})
        lens.insert(lens.end(), {pages * 4096, pages * 4096 + 512});
    Target m(rig, 9u << 20);
    const Bytes want = file.part(1024, *std::max_element(lens.begin(), lens.end()));
    for (uint64_t at : starts) {
        for (uint64_t len : lens) {
            Batch batch(m, file, {{1024, at, len}});

            ASSERT_EQ(batch.run(rig), 0);
            ASSERT_TRUE(batch.is_good(0));
            ASSERT_TRUE(m.holds(at, want.data(), len)) << at << " " << len;
        }
    }
}

TEST_P(GqReadv, TakesLongLists)
{
    Rig rig(GetParam(), 512);
    std::mt19937 rng(5);

    rig.opts.queues = 8;
    rig.opts.depth = 64;
    rig.opts.cpu_threads = 3;
    rig.open();
    File file(rig, rng, 50, 200, true);
    read_and_compare(rig, file, draw_reads(file, rng, {60000, 1, 1024, 512}), 0);
    EXPECT_EQ(rig.stats().transfers, 1u);
    EXPECT_EQ(rig.stats().bytes_read, rig.result.bytes);
    EXPECT_EQ(rig.stats().commands, rig.result.commands);
}

TEST_P(GqReadv, HolesAreZerosAndSendNothing)
{
    OpenRig rig(GetParam());
    File file(rig, {{0, GQ_LBA_ZERO}}, 3000000);
    read_and_compare(rig, file, {{5, 3, 2000001}, {0, 2000007, 1}, {2999999, 2000009, 100}}, 1);
    EXPECT_EQ(rig.result.commands, 0u);
}

TEST_P(GqReadv, ReadsAreShortAtTheEnd)
{
    OpenRig rig(GetParam(), 4096);
    File file(rig, {{0, 7}}, 10001);
    read_and_compare(rig, file,
                     {{8192, 0, 8192},
                      {10000, 9000, 5},
                      {10001, 9008, 4096},
                      {INT64_MAX - 4096, 14000, 4096},
                      {0, 20480, 0}},
                     0);
    EXPECT_EQ(rig.result.bytes, 1810u);
    EXPECT_EQ(rig.result.commands, 2u);
}

TEST_P(GqReadv, ReadsNothingOfAnEmptyFile)
{
    OpenRig rig(GetParam());
    File file(rig, {}, 0);
    read_and_compare(rig, file, {{0, 0, 4096}, {5, 5000, 1}}, 0);
}

TEST_P(GqReadv, SendsNoMoreCommandsThanItTakes)
{
    Rig rig(GetParam(), 512);

    rig.opts.max_command = 65536;
    rig.open();
    File file(rig, {{0, 100}, {1u << 20, 5000}}, 2u << 20);
    read_and_compare(rig, file, {{0, 0, 1u << 20}}, 4096);
    EXPECT_EQ(rig.result.commands, 16u);
    read_and_compare(rig, file, {{(1u << 20) - 512, 0, 1024}}, 4096);
    EXPECT_EQ(rig.result.commands, 2u) << "one for each extent";
    read_and_compare(rig, file, {{100, 0, 65536}}, 4096);
    EXPECT_EQ(rig.result.commands, rig.x.staged ? 2u : 3u) << "an end, what is whole, an end";
}

/* Two ways to the same bytes. */
TEST_P(GqReadv, ReadsWhatTransfersRead)
{
    OpenRig rig(GetParam(), 512);
    std::mt19937 rng(77);
    const size_t room = 1u << 20;

    Target m(rig, 2 * room);
    for (unsigned round = 0; round < 30; round++) {
        File file(rig, rng, 1 + rng() % 30, 100, true);
        uint64_t offset = rng() % file.bytes.size();
        uint64_t len = 1 + rng() % std::min<uint64_t>(file.bytes.size() - offset, room);
        Batch batch(m, file, {});

        for (uint64_t at = 0; at < len;) {
            uint64_t n = std::min<uint64_t>(1 + rng() % 60000, len - at);

            batch.reads.push_back({offset + at, at, n});
            at += n;
        }
        ASSERT_EQ(batch.run(rig), 0);
        EXPECT_EQ(rig.result.bytes, len);
        ASSERT_EQ(rig.move(GQ_READ, m, room, file.stream(), offset, len), 0);
        ASSERT_TRUE(m.read(0, len) == m.read(room, len)) << "round " << round;
    }
}

TEST_P(GqReadv, PiecesOutsideTheBufferAreInvalidAndSpoilNoOther)
{
    OpenRig rig(GetParam(), 512);
    File file(rig, {{0, 100}}, 65536);
    Memory m(rig.x.kind, 16384);
    gq_buffer *b = rig.add(m, 3, 8192);
    Batch batch(b, file,
                {{4096, 0, 512},
                 {4096, 8192, 1},
                 {4096, 1, 8192},
                 {4096, UINT64_MAX, 2},
                 {4096, 2, UINT32_MAX},
                 {4096, 0, 1u << 31},
                 {5000, 512, 512},
                 {4096, 8192, 0}});
    const int32_t want[] = {512, -EFAULT, -EFAULT, -EFAULT, -EINVAL, -EINVAL, 512, 0};
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_EQ(batch.results, std::vector<int32_t>(std::begin(want), std::end(want)));
    EXPECT_EQ(rig.result.bytes, 1024u);
    EXPECT_TRUE(rig.result.partial);
    EXPECT_EQ(rig.result.nvme_status, 0u);
    EXPECT_TRUE(m.read(3 + 1024, 8192) == Bytes(8192, 0xa5));
    gq_buffer_unregister(b);
}

TEST_P(GqReadv, LeavesToTheCallerWhatTakesTooManyCommandsOrCannotBe)
{
    OpenRig rig(GetParam(), 512);
    File file(rig, {{0, 100}}, 100000);
    Memory m(rig.x.kind, 100000);
    gq_buffer *b = rig.add(m, 1, 90000);
    Batch batch(b, file,
                {{0, 0, 8193},
                 {0, 0, 8192},
                 {1, 8192, 20000},
                 {2, 30000, 20000},
                 {99000, 50000, 20000},
                 {INT64_MAX - 99, 70000, 99},
                 {INT64_MAX - 100, 80000, 100}});
    bool staged = rig.x.staged; /* then no piece takes too many */
    const int32_t want[] = {
        staged ? 8193 : -EAGAIN, 8192, 20000, staged ? 20000 : -EAGAIN, 1000, 0, 0};
    batch.odd_most = 8192;
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_EQ(batch.results, std::vector<int32_t>(std::begin(want), std::end(want)));
    batch.reads = {{INT64_MAX - 99, 0, 101}, {UINT64_MAX, 0, 1}};
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_EQ(batch.count(-EAGAIN), 2u);
    EXPECT_TRUE(rig.result.partial);
    EXPECT_EQ(rig.result.taken, 0u);
    gq_buffer_unregister(b);
}

/* A file by parts of its map, one after the other: what none of them holds whole stays. */
TEST_P(GqReadv, WithAPartOfAMapReadsWhatIsInside)
{
    OpenRig rig(GetParam(), 512);
    std::mt19937 rng(21);

    File file(rig, rng, 60, 100, true);
    std::vector<gq_read> reads = draw_reads(file, rng, {2000, 1, 3000, 1});
    uint64_t room = room_for(reads);
    Target m(rig, room);
    List list(rig, reads.size());
    for (size_t i = 0; i < reads.size(); i++)
        list.pieces[i] = {reads[i].file_offset, reads[i].at, (uint32_t)reads[i].len, kUntouched};
    Bytes want(room, 0xa5);
    for (size_t first : {0, 20, 40}) {
        bool last = first == 40;
        std::vector<gq_file_extent> map(file.extents.begin() + (ptrdiff_t)first,
                                        file.extents.begin() + (ptrdiff_t)first + 20);
        File part(map, last ? file.end : file.extents[first + 20].offset);
        Batch batch(m, part, reads);

        batch.goes_on = !last;
        EXPECT_EQ(batch.run_list(rig, list), 0);
        EXPECT_TRUE(rig.result.partial);
    }
    size_t left = 0;
    for (size_t i = 0; i < reads.size(); i++) {
        const gq_read &r = reads[i];
        Bytes bytes = file.part(r.file_offset, r.len);
        uint64_t end = r.file_offset + r.len, p1 = file.extents[20].offset;
        uint64_t p2 = file.extents[40].offset;
        bool across = (r.file_offset < p1 && end > p1) || (r.file_offset < p2 && end > p2);

        ASSERT_EQ(list.pieces[i].result, across ? kUntouched : (int32_t)bytes.size()) << i;
        left += across;
        if (!across)
            std::copy(bytes.begin(), bytes.end(), want.begin() + (ptrdiff_t)r.at);
    }
    EXPECT_GT(left, 0u);
    EXPECT_TRUE(m.holds(0, want));
}

TEST_P(GqReadv, TakesPiecesFromTheMiddleOfAList)
{
    OpenRig rig(GetParam(), 512);
    File file(rig, {{0, 100}}, 100000);
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    List list(rig, 10);
    struct gq_readv v = {};
    for (uint64_t i = 0; i < 10; i++)
        list.pieces[i] = {i, i, 1, kUntouched};
    v.buffer = b;
    v.extents = file.extents.data();
    v.n_extents = 1;
    v.end = file.end;
    v.list = list.buffer;
    v.first = 3;
    v.n = 4;
    v.most = v.odd_most = UINT64_MAX;
    EXPECT_EQ(gq_readv(rig.e, &v, &rig.result), 0);
    for (uint64_t i = 0; i < 10; i++)
        EXPECT_EQ(list.pieces[i].result, i >= 3 && i < 7 ? 1 : kUntouched) << i;
    for (uint64_t first : {(uint64_t)7, (uint64_t)10, UINT64_MAX}) {
        v.first = first;
        EXPECT_EQ(gq_readv(rig.e, &v, &rig.result), -EINVAL) << first;
    }
    v.first = 0;
    v.list = b;
    EXPECT_EQ(gq_readv(rig.e, &v, &rig.result), -EINVAL) << "no list";
    v.list = v.buffer = list.buffer;
    EXPECT_EQ(gq_readv(rig.e, &v, &rig.result), -ENOTSUP) << "no buffer";
    EXPECT_EQ(rig.move(GQ_READ, list.buffer, 0, {{0, 512}}, 0, 10), -ENOTSUP);
    gq_buffer_unregister(b);
    EXPECT_EQ(list.pieces[0].result, kUntouched);
}

TEST_P(GqReadv, ListsBeginAtMultiplesOf8OfHostMemory)
{
    OpenRig rig(GetParam(), 512);
    gq_buffer *b = nullptr;

    Memory m(rig.x.kind, 4096);
    gq_mem mem = m.part(12, 48);
    mem.is_list = true;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL);
    mem = m.part(16, 48);
    mem.is_list = true;
    bool is_host = rig.x.kind == GQ_EXECUTOR_CPU;
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), is_host ? 0 : -EINVAL);
    if (is_host) {
        EXPECT_EQ(gq_buffer_list(b), mem.addr);
        EXPECT_FALSE(gq_buffer_is_reachable(b));
        gq_buffer_unregister(b);
    }
}

TEST_P(GqReadv, RefusesMapsThatCannotBe)
{
    OpenRig rig(GetParam(), 512);
    struct {
        const char *why;
        std::vector<gq_file_extent> extents;
        uint64_t end;
    } maps[] = {
        {"an extent in the middle of an LBA", {{0, 0}, {100, 5}}, 4096},
        {"not ascending", {{0, 0}, {4096, 5}, {4096, 9}}, 8192},
        {"ends before its last extent", {{0, 0}, {4096, 5}}, 4096},
        {"past the namespace", {{0, 16380}}, 4096},
        {"an LBA that wraps", {{0, UINT64_MAX - 1}}, 4096},
        {"longer than the namespace", {{0, 1}}, UINT64_MAX},
        {"no extents, but an end", {}, 512},
    };

    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    for (auto &map : maps) {
        File file(map.extents, map.end);
        Batch batch(b, file, {{0, 0, 512}});

        EXPECT_EQ(batch.run(rig), -EINVAL) << map.why;
        EXPECT_EQ(batch.results[0], kUntouched);
    }
    File large(std::vector<gq_file_extent>(GQ_READV_EXTENTS + 1), 512);
    EXPECT_EQ(Batch(b, large, {{0, 0, 512}}).run(rig), -E2BIG);
    File good(rig, {{0, 0}}, 4096);
    EXPECT_EQ(Batch(b, good, {}).run(rig), 0) << "nothing is nothing";
    EXPECT_EQ(rig.stats().commands, 0u);
    List list(rig, 1);
    gq_buffer_unregister(b);
    EXPECT_EQ(Batch(b, good, {{0, 0, 512}}).run_list(rig, list), -ESTALE);
}

/*
 * A piece to an address that is no multiple of 4, longer than odd_most: staged, it costs no more.
 */
TEST_P(GqReadv, LongPiecesToOddAddressesAreLeftUnlessStaged)
{
    OpenRig rig(GetParam(), 512);
    File file(rig, {{0, 0}}, 1u << 20);
    Target m(rig, 1u << 20);
    Batch batch(m, file, {{0, 1, 300000}});
    batch.odd_most = 65536;
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_EQ(batch.results[0], rig.x.staged ? 300000 : -EAGAIN);
    EXPECT_EQ(rig.result.staged, rig.x.staged);
    if (rig.x.staged) {
        EXPECT_TRUE(m.holds(1, file.part(0, 300000)));
        EXPECT_LT(rig.result.commands, 300000u / 512 / 2);
        EXPECT_EQ(rig.stats().staged_read, 300000u);
    }
}

/* Partial LBAs, and addresses that are no multiples of 4. */
TEST_P(GqReadv, OneCommandReadsAllLbasThatAPieceTouches)
{
    OpenRig rig(GetParam(), 512);
    File file(rig, {{0, 0}}, 1u << 20);
    Target m(rig, 1u << 20);
    Batch batch(m, file, {{0, 1, 4096}, {8104, 8192, 256}, {1000, 16390, 4096}});
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_EQ(batch.count_good(), 3u);
    EXPECT_EQ(rig.result.commands, 3u);
    EXPECT_TRUE(m.holds(1, file.part(0, 4096)));
    EXPECT_TRUE(m.holds(8192, file.part(8104, 256)));
    EXPECT_TRUE(m.holds(16390, file.part(1000, 4096)));
}

GQ_FOR_EXECUTORS(GqReadv);

} // namespace
