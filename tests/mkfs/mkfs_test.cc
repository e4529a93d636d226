/* SPDX-License-Identifier: BSD-2-Clause */
/* mkfs.gpunvme at the command line, and mkfs_format(). */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "layout/label.h"
#include "mkfs/mkfs_core.h"
#include "tests/mkfs/mkfs_rig.h"

namespace
{

const char *const UUID = "8d0e2f5c-1b7a-4c11-9a53-1f6f0e6a7b10";
const std::vector<std::string> EPOCH = {"SOURCE_DATE_EPOCH=1000000000"};

class Mkfs : public ToolTest
{
  protected:
    Result mkfs(std::vector<std::string> args, const std::vector<std::string> &env = {})
    {
        args.insert(args.begin(), MKFS);
        args.push_back(path("img"));
        return run(args, env);
    }

    /* One line on stderr that begins so, nothing on stdout, and a status other than 0. */
    void refused(const Result &r, const std::string &line)
    {
        EXPECT_GT(r.status, 0);
        EXPECT_EQ(r.out, "");
        EXPECT_EQ(r.err.rfind("mkfs.gpunvme: " + line, 0), 0u) << r.err;
        EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    }
};

TEST_F(Mkfs, MakesAFileOfTheRequestedSize)
{
    for (const char *size : {"16M", "17000001", "1G"}) {
        EXPECT_EQ(mkfs({"-q", "-f", "-s", size}).status, 0) << size;
        EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0) << size;
    }
    EXPECT_EQ(std::filesystem::file_size(path("img")), 1u << 30);
}

/* Whose bytes are every file of every user, and the key of the hash of names. */
TEST_F(Mkfs, MakesAFileThatOnlyItsOwnerMayOpen)
{
    mode_t mask = umask(0);
    EXPECT_EQ(mkfs({"-q", "-s", "16M"}).status, 0);
    umask(mask);
    struct stat st;
    ASSERT_EQ(stat(path("img").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0600u);
}

TEST_F(Mkfs, PrintsASummary)
{
    Result r = mkfs({"-s", "64M", "-U", UUID, "-L", "data"});
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, "Device: " + path("img") + "\nFormat version: 3.1\nUUID: " + UUID +
                         "\nLabel: data\nSize: 67108864\nBlock size: 4096\nBlocks: 16384\n"
                         "Free blocks: 15352\nLog blocks: 1024\n");
    EXPECT_EQ(r.err, "");
}

TEST_F(Mkfs, ReservesRoomForChecksumsOnRequest)
{
    Result r = mkfs({"-s", "64M", "-O", "data_csum"});
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("Free blocks: 15335\nLog blocks: 1024\nChecksum blocks: 17\n"),
              std::string::npos)
        << r.out;
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
    r = mkfs({"-f", "-s", "64M", "-O", "data_csum,^data_csum"});
    EXPECT_EQ(r.out.find("Checksum"), std::string::npos);
    refused(mkfs({"-f", "-s", "64M", "-O", "data_csum,encrypt"}),
            "--features: 'encrypt' is not a feature");
}

TEST_F(Mkfs, IsQuietOnRequest)
{
    EXPECT_EQ(mkfs({"-q", "-s", "16M"}).out, "");
}

TEST_F(Mkfs, WritesTheSameBytesForTheSameUuidTimeAndSeed)
{
    const std::string seed = std::string("hash_seed=") + UUID;
    ASSERT_EQ(mkfs({"-q", "-s", "32M", "-U", UUID, "-E", seed}, EPOCH).status, 0);
    std::string first = read_file(path("img"));
    std::filesystem::remove(path("img"));
    ASSERT_EQ(mkfs({"-q", "-s", "32M", "-U", UUID, "-E", seed}, EPOCH).status, 0);
    EXPECT_TRUE(read_file(path("img")) == first);
}

TEST_F(Mkfs, UsesARandomHashSeed)
{
    ASSERT_EQ(mkfs({"-q", "-s", "16M", "-U", UUID}, EPOCH).status, 0);
    std::string first = read_file(path("img"));
    ASSERT_EQ(mkfs({"-q", "-f", "-s", "16M", "-U", UUID}, EPOCH).status, 0);
    std::string second = read_file(path("img"));
    size_t at = 2 * LAY_BLOCK_SIZE + offsetof(lay_super, hash_seed);
    EXPECT_NE(first.substr(at, 16), second.substr(at, 16));
}

TEST_F(Mkfs, GivesTheRootDirectoryToTheUserOrTheRequestedOwner)
{
    for (const char *owner : {"", "1000:2000"}) {
        std::vector<std::string> args = {"-q", "-f", "-s", "16M"};
        if (*owner)
            args.insert(args.end(), {"-E", std::string("root_owner=") + owner});
        ASSERT_EQ(mkfs(args).status, 0);
        std::string out = run({DUMP, "-i", "1", path("img")}).out;
        unsigned uid = *owner ? 1000 : geteuid(), gid = *owner ? 2000 : geteuid() ? getegid() : 0;
        EXPECT_NE(out.find("uid: " + std::to_string(uid) + "\n"), std::string::npos) << out;
        EXPECT_NE(out.find("gid: " + std::to_string(gid) + "\n"), std::string::npos) << out;
    }
}

TEST_F(Mkfs, RefusesWrongExtendedOptions)
{
    for (const char *list : {"root_owner", "root_owner=7", "root_owner=x:1", "root_owner=1:-1",
                             "root_owner=4294967295:0", "hash_seed=12", "hash_seed", "stride=4"})
        refused(mkfs({"-s", "16M", "-E", list}), "--extended: ");
    EXPECT_FALSE(std::filesystem::exists(path("img")));
}

TEST_F(Mkfs, RefusesASizeWhoseBitmapsHaveNoRoom)
{
    Result r = mkfs({"-s", "50000T"});
    refused(r, path("img") + ": needs ");
    EXPECT_FALSE(std::filesystem::exists(path("img")));
}

TEST_F(Mkfs, WritesNoBitmapsOfFreeGroups)
{
    ASSERT_EQ(mkfs({"-q", "-s", "1T"}).status, 0);
    std::string bitmaps(8323 * LAY_BLOCK_SIZE, 'x');
    uint64_t start = (LAY_LABEL_SECOND + 1) * LAY_BLOCK_SIZE;
    std::ifstream(path("img")).seekg(start).read(&bitmaps[0], bitmaps.size());
    unsigned written = 0;
    for (size_t at = 0; at < bitmaps.size(); at += LAY_BLOCK_SIZE)
        written += bitmaps[at] != 0;
    EXPECT_EQ(written, 4u) << "two groups at the beginning, one with a superblock, the last one";
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
}

// Eight terabytes have 8 GiB of checksums: time enough to be interrupted in.
TEST_F(Mkfs, RemovesTheFileWhenItIsInterrupted)
{
    for (int number : {SIGINT, SIGTERM, SIGHUP}) {
        std::string err = path("err");
        pid_t pid = fork();
        if (pid == 0) {
            dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
            execl(MKFS, MKFS, "-q", "-O", "data_csum", "-s", "8T", path("img").c_str(), nullptr);
            _exit(127);
        }
        struct stat st = {};
        for (int ms = 0; ms < 10000 && (stat(path("img").c_str(), &st) || !st.st_blocks); ms++)
            usleep(1000);
        kill(pid, number);
        int status;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
        EXPECT_NE(read_file(err).find("interrupted"), std::string::npos) << read_file(err);
        EXPECT_FALSE(std::filesystem::exists(path("img")));
    }
}

TEST_F(Mkfs, GivesEachFileSystemADifferentUuid)
{
    ASSERT_EQ(mkfs({"-q", "-s", "16M"}, EPOCH).status, 0);
    std::string first = read_file(path("img"));
    ASSERT_EQ(mkfs({"-q", "-f", "-s", "16M"}, EPOCH).status, 0);
    EXPECT_FALSE(read_file(path("img")) == first);
}

TEST_F(Mkfs, LeavesNothingOfAnOldLog)
{
    {
        Image img(path("img"));
        img.fill();
        img.log({img.copy(img.root_leaf)});
    }
    ASSERT_EQ(mkfs({"-q", "-f", "-U", "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a"}).status, 0);
    Result r = run({DUMP, "-j", path("img")});
    EXPECT_NE(r.out.find("recovered_transactions: 0"), std::string::npos) << r.out;
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Mkfs, ExtendsAFileAndUsesTheBeginningOfALongerOne)
{
    write_file(path("img"), "");
    EXPECT_EQ(mkfs({"-q", "-s", "32M"}).status, 0);
    EXPECT_EQ(std::filesystem::file_size(path("img")), 32u << 20);
    EXPECT_EQ(mkfs({"-q", "-f", "-s", "16M"}).status, 0);
    EXPECT_EQ(std::filesystem::file_size(path("img")), 32u << 20);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Mkfs, DryRunTouchesNothing)
{
    Result r = mkfs({"-n", "-s", "16M"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_NE(r.out.find("Dry run: nothing was written\n"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("img")));

    std::string bytes(20 << 20, '\0');
    write_file(path("img"), bytes);
    EXPECT_EQ(mkfs({"-n", "-s", "32M"}).status, 0);
    EXPECT_TRUE(read_file(path("img")) == bytes);
}

TEST_F(Mkfs, RefusesItsOwnFormatWithoutForce)
{
    ASSERT_EQ(mkfs({"-q", "-s", "16M"}).status, 0);
    std::string before = read_file(path("img"));
    refused(mkfs({"-q"}), path("img") + ": holds a gpunvmefs file system, -f overwrites it");
    EXPECT_TRUE(read_file(path("img")) == before);
    EXPECT_EQ(mkfs({"-q", "-f"}).status, 0);
}

/* A signature that libblkid knows, in a few bytes: swap space. */
std::string swap_image()
{
    std::string image(16 << 20, '\0');
    image.replace(4096 - 10, 10, "SWAPSPACE2");
    image[1024] = 1;
    image[1028] = 100;
    return image;
}

TEST_F(Mkfs, RefusesAForeignSignatureAndWipesItWithForce)
{
    write_file(path("img"), swap_image());
    refused(mkfs({"-q"}), path("img") + ": holds a signature of swap, -f overwrites it");
    EXPECT_TRUE(read_file(path("img")) == swap_image());
    EXPECT_EQ(mkfs({"-q", "-f"}).status, 0);
    EXPECT_EQ(read_file(path("img")).find("SWAPSPACE2"), std::string::npos);
}

TEST_F(Mkfs, RefusesAPartitionTable)
{
    std::string image(16 << 20, '\0');
    image[446 + 4] = '\x83';
    image[446 + 8] = 63;
    image[446 + 12] = 100;
    image[510] = '\x55';
    image[511] = '\xaa';
    write_file(path("img"), image);
    refused(mkfs({"-q"}), path("img") + ": holds a partition table (dos), -f overwrites it");
}

TEST_F(Mkfs, RefusesAnImageInUse)
{
    write_file(path("img"), std::string(16 << 20, '\0'));
    bd_dev *dev;
    ASSERT_EQ(bd_file_open(path("img").c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    refused(mkfs({"-q"}), path("img") + ": cannot open: in use");
    bd_close(dev);
}

TEST_F(Mkfs, RefusesUnsuitableTargets)
{
    refused(mkfs({}), path("img") + ": does not exist, --size creates it");
    write_file(path("img"), "");
    refused(mkfs({}), path("img") + ": too small, at least 16M is needed");
    refused(run({MKFS, "/dev/null"}), "/dev/null: cannot open: neither");
    refused(run({MKFS, dir}), dir + ": cannot open: Is a directory");
    refused(run({MKFS, "-s", "16M", dir + "/no/img"}), dir + "/no/img: cannot create: No such");
}

TEST_F(Mkfs, RefusesInvalidOptions)
{
    refused(mkfs({"-b", "512"}), "--block-size: '512': blocks are 4096 bytes");
    refused(mkfs({"-s", "1M"}), "--size: 1M is too small");
    refused(mkfs({"-s", "12X"}), "--size: '12X' is not a size");
    refused(mkfs({"-s", "-1"}), "--size: '-1' is not a size");
    refused(mkfs({"-s", "99999999999T"}), "--size: '99999999999T' is not a size");
    refused(mkfs({"-s", "999999T"}), "--size: 999999T is more than the format can hold");
    refused(mkfs({"-U", "1234"}), "--uuid: '1234' is not a UUID");
    refused(mkfs({"-L", std::string(64, 'x')}), "--label: 64 bytes, at most 63 fit");
    refused(mkfs({"-L", "\xff"}), "--label: not UTF-8");
    refused(run({MKFS}), "arguments: one DEVICE is needed");
    EXPECT_FALSE(std::filesystem::exists(path("img")));
}

TEST_F(Mkfs, RefusesInvalidDeviceNames)
{
    refused(run({MKFS, "vfio:nvme0"}), "vfio:nvme0: no PCI address");
    refused(run({MKFS, "vfio:c1:00.0/0"}), "vfio:c1:00.0/0: no namespace id");
    refused(run({MKFS, "c1:00.0"}), "c1:00.0: a PCI address; to use the drive there write vfio:");
    refused(run({MKFS, "vfio:ffff:ff:1f.7"}), "vfio:ffff:ff:1f.7: cannot open: ");
    refused(run({MKFS, "vfio-user:"}), "vfio-user:: nothing is named, give vfio-user:SOCKET");
    refused(run({MKFS, "vfio-user:" + dir + "/none"}), "vfio-user:" + dir + "/none: cannot open: ");
    refused(mkfs({"-N", "0"}), "--namespace: '0' is no namespace id");
    refused(mkfs({"-N", "2"}), path("img") + ": --namespace: this is no controller");
    refused(mkfs({"--noiommu"}), path("img") + ": --noiommu is for vfio: devices");
    refused(run({MKFS, "-N", "2", "vfio:c1:00.0/1"}), "vfio:c1:00.0/1: --namespace names another");
    for (const char *tool : {FSCK, DUMP}) {
        Result r = run({tool, "-n", "vfio:nvme0"});
        EXPECT_GT(r.status, 0);
        EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    }
}

TEST_F(Mkfs, RefusesAnInvalidTime)
{
    refused(mkfs({"-s", "16M"}, {"SOURCE_DATE_EPOCH=soon"}),
            "SOURCE_DATE_EPOCH: 'soon' is not a count of seconds");
    EXPECT_FALSE(std::filesystem::exists(path("img")));
}

TEST_F(Mkfs, AcceptsItsOneBlockSizeHoweverItIsWritten)
{
    EXPECT_EQ(mkfs({"-q", "-b", "4K", "-s", "16M"}).status, 0);
    EXPECT_EQ(mkfs({"-q", "-f", "--block-size=4096"}).status, 0);
}

/* --- mkfs_lay_out ----------------------------------------------------------------------------- */

class Plan : public ::testing::TestWithParam<uint64_t>
{
};

TEST_P(Plan, IsAGeometryThatTheChecksAccept)
{
    mkfs_params params{};
    mkfs_plan plan;
    params.uuid[0] = 1;
    ASSERT_EQ(mkfs_lay_out(&params, GetParam(), &plan), 0);
    EXPECT_TRUE(lay_range_ok(&plan.geo, plan.inode_block, 2));
    EXPECT_EQ(plan.root_node, plan.inode_block + 1);
    EXPECT_LE(plan.geo.log_blocks, plan.geo.blocks / 16);
    EXPECT_GE(plan.geo.log_blocks, LAY_MIN_LOG);
}

TEST_P(Plan, HasAreasThatDoNotOverlapAndCountsTheRestAsFree)
{
    for (bool data_csum : {false, true}) {
        mkfs_params params{};
        mkfs_plan plan;
        params.data_csum = data_csum;
        ASSERT_EQ(mkfs_lay_out(&params, GetParam(), &plan), 0);
        const lay_geometry &geo = plan.geo;
        std::map<uint64_t, uint64_t> areas = {{0, 1},
                                              {LAY_MMP_BLOCK, 1},
                                              {LAY_LABEL_SECOND, 1},
                                              {geo.supers[0], 1},
                                              {geo.supers[1], 1},
                                              {geo.bitmap_start, geo.bitmap_blocks},
                                              {geo.log_start, geo.log_blocks},
                                              {plan.inode_block, 2}};
        if (data_csum)
            areas[geo.sums_start] = geo.sums_blocks;
        EXPECT_EQ(areas.size(), data_csum ? 9u : 8u);
        uint64_t end = 0, used = 0;
        for (const auto &[start, len] : areas) {
            EXPECT_GE(start, end);
            end = start + len;
            used += len;
        }
        EXPECT_LE(end, geo.blocks);
        EXPECT_EQ(plan.free_blocks, geo.blocks - used);
    }
}

const uint64_t GROUP_BYTES = uint64_t{LAY_GROUP_BLOCKS} << LAY_BLOCK_SHIFT;
INSTANTIATE_TEST_SUITE_P(Sizes, Plan,
                         ::testing::Values(MKFS_MIN_BYTES, MKFS_MIN_BYTES + 511, GROUP_BYTES - 4096,
                                           GROUP_BYTES, GROUP_BYTES + 4096, 2 * GROUP_BYTES,
                                           uint64_t{1} << 40, uint64_t{LAY_MAX_BLOCKS} << 12));

/* A device in memory that inverts a byte of each write to one of its blocks. */
struct Wrong {
    bd_dev dev{};
    std::vector<uint8_t> bytes;
    std::vector<uint64_t> written; /* blocks */
    uint64_t block;

    explicit Wrong(uint64_t block) : bytes(MKFS_MIN_BYTES), block(block)
    {
        static const bd_ops ops = {
            submit, [](bd_dev *, size_t len) { return memset(aligned_alloc(4096, len), 0, len); },
            [](bd_dev *, void *buf, size_t) { free(buf); }, nullptr, nullptr};
        dev.ops = &ops;
        dev.info.bytes = MKFS_MIN_BYTES;
        dev.info.lba_size = 4096;
    }

    void write(const bd_io &io)
    {
        memcpy(&bytes[io.offset], io.buf, io.len);
        for (uint64_t at = io.offset; at < io.offset + io.len; at += 4096) {
            written.push_back(at / 4096);
            bytes[at] ^= at / 4096 == block ? 0xff : 0;
        }
    }

    static int submit(bd_dev *dev, bd_io *ios, size_t n)
    {
        auto *w = reinterpret_cast<Wrong *>(dev);

        for (size_t i = 0; i < n; i++) {
            if (ios[i].op == BD_READ)
                memcpy(ios[i].buf, &w->bytes[ios[i].offset], ios[i].len);
            else if (ios[i].op == BD_WRITE)
                w->write(ios[i]);
        }
        return 0;
    }

    /* Is there a label, in one of its places? */
    bool mountable()
    {
        const lay_io io = {[](void *arg, uint64_t block, void *data) {
                               memcpy(data, &static_cast<Wrong *>(arg)->bytes[block * 4096], 4096);
                               return 0;
                           },
                           nullptr, nullptr, this};
        lay_labels labels;

        return lay_labels_read(&io, bytes.size() / 4096, true, &labels) == 0;
    }
};

// A drive on which pages 4 and 5 of each command change places, of writes and of reads; a command
// has 32 pages at most.
struct Swapping : Wrong {
    bd_ops ops;

    Swapping() : Wrong(UINT64_MAX), ops(*dev.ops)
    {
        ops.submit = [](bd_dev *dev, bd_io *ios, size_t n) {
            for (size_t i = 0; i < n; i++) {
                Wrong::submit(dev, ios + i, 1);
                reinterpret_cast<Swapping *>(dev)->swap(ios[i]);
            }
            return 0;
        };
        dev.ops = &ops;
    }
    void swap(const bd_io &io)
    {
        if (io.op != BD_WRITE && io.op != BD_READ)
            return;
        uint8_t *data = io.op == BD_WRITE ? &bytes[io.offset] : static_cast<uint8_t *>(io.buf);
        for (size_t at = 0; at + 6 * 4096 <= io.len; at += 32 * 4096)
            std::swap_ranges(data + at + 4 * 4096, data + at + 5 * 4096, data + at + 5 * 4096);
    }
};

TEST(Format, ADriveThatReordersPagesIsDetected)
{
    mkfs_params params{};
    mkfs_plan plan;
    Swapping dev;
    EXPECT_EQ(mkfs_format(&dev.dev, &params, &plan), -EUCLEAN);
    EXPECT_FALSE(dev.mountable());
}

// So that a mount's self-test sees which page is where.
TEST(Format, NoTwoPagesAtTheStartOfTheLogAreEqual)
{
    mkfs_params params{};
    mkfs_plan plan;
    Wrong dev(UINT64_MAX);
    std::set<std::string> seen;
    ASSERT_EQ(mkfs_format(&dev.dev, &params, &plan), 0);
    uint64_t n = std::min<uint64_t>(plan.geo.log_blocks, 1024);
    for (uint64_t i = 0; i < n; i++) {
        const auto *page =
            reinterpret_cast<const char *>(&dev.bytes[(plan.geo.log_start + i) * 4096]);
        seen.insert(std::string(page + 2048, 2048));
    }
    EXPECT_EQ(seen.size(), n);
}

int checks_left;

TEST(Format, AFailureLeavesNothingThatCanBeMounted)
{
    mkfs_params params{};
    mkfs_plan plan;
    Wrong good(UINT64_MAX);
    params.uuid[0] = 1;
    ASSERT_EQ(mkfs_format(&good.dev, &params, &plan), 0);
    ASSERT_TRUE(good.mountable());
    for (uint64_t block : std::set<uint64_t>(good.written.begin(), good.written.end())) {
        Wrong bad(block);
        EXPECT_EQ(mkfs_format(&bad.dev, &params, &plan), -EUCLEAN) << block;
        EXPECT_FALSE(bad.mountable()) << block;
    }
}

TEST(Format, AnInterruptionLeavesNothingThatCanBeMounted)
{
    mkfs_params params{};
    mkfs_plan plan;
    int err = -EINTR;
    params.uuid[0] = 1;
    params.interrupted = [] { return checks_left-- <= 0; };
    for (int checks = 0; err; checks++) {
        Wrong dev(UINT64_MAX);
        checks_left = checks;
        err = mkfs_format(&dev.dev, &params, &plan);
        ASSERT_TRUE(err == 0 || err == -EINTR) << err;
        EXPECT_EQ(dev.mountable(), err == 0) << checks;
    }
}

// Until something is written, all of the older one is left.
TEST(Format, AnInterruptionLeavesNoOlderFileSystemThatCanBeMounted)
{
    mkfs_params old{}, params{};
    mkfs_plan plan;
    Wrong before(UINT64_MAX);
    int err = -EINTR;
    old.uuid[0] = 2;
    params.uuid[0] = 1;
    params.interrupted = [] { return checks_left-- <= 0; };
    ASSERT_EQ(mkfs_format(&before.dev, &old, &plan), 0);
    for (int checks = 0; err; checks++) {
        Wrong dev(UINT64_MAX);
        dev.bytes = before.bytes;
        checks_left = checks;
        err = mkfs_format(&dev.dev, &params, &plan);
        ASSERT_TRUE(err == 0 || err == -EINTR) << err;
        EXPECT_TRUE(err == 0 || dev.bytes == before.bytes || !dev.mountable()) << checks;
    }
}

/* The identifiers that nobody gives follow from the hash seed, and differ from each other. */
TEST(Format, IdentifiersAreDerivedFromTheParameters)
{
    std::set<std::string> seen;
    mkfs_params params{};
    mkfs_plan plan;
    params.uuid[0] = 7;
    for (int round = 0; round < 4; round++) {
        params.hash_seed[0] = round == 1;
        params.time_sec = round == 2;
        params.uuid[1] = round == 3;
        Wrong dev(UINT64_MAX);
        ASSERT_EQ(mkfs_format(&dev.dev, &params, &plan), 0);
        const auto *label = reinterpret_cast<const lay_label *>(dev.bytes.data());
        EXPECT_EQ(memcmp(label->uuid, params.uuid, 16), 0);
        for (const void *id : {static_cast<const void *>(label->head.uuid),
                               static_cast<const void *>(label->members[0].uuid)})
            EXPECT_TRUE(seen.insert(std::string(static_cast<const char *>(id), 16)).second);
        for (const le64 &id : {label->log_id, label->incarnation.id})
            EXPECT_TRUE(seen.insert(std::string(reinterpret_cast<const char *>(&id), 8)).second);
    }
}

TEST(PlanLimits, HaveDistinctErrors)
{
    mkfs_params params{};
    mkfs_plan plan;
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES - 1, &plan), -EINVAL);
    EXPECT_EQ(mkfs_lay_out(&params, (uint64_t{LAY_MAX_BLOCKS} << 12) + 4096, &plan), -EFBIG);
    params.bytes = 2 * MKFS_MIN_BYTES;
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), -ENOSPC);
    params.bytes = 0;
    params.log_blocks = LAY_MIN_LOG - 1;
    EXPECT_EQ(mkfs_lay_out(&params, MKFS_MIN_BYTES, &plan), -EINVAL);
}

} // namespace
