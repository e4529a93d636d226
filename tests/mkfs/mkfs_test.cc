/* SPDX-License-Identifier: BSD-2-Clause */
/* mkfs.gpunvme at the command line. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>

#include "blockdev/bdev.h"
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
        EXPECT_EQ(expect_exit(mkfs({"-q", "-f", "-s", size}), 0).out, "") << size;
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
    Result r = expect_exit(mkfs({"-s", "64M", "-U", UUID, "-L", "data"}), 0);
    EXPECT_EQ(
        r.out,
        "Device: " + path("img") + "\nFormat version: 3.3\nUUID: " + UUID +
            "\nLabel: data\nSize: 67108864 bytes (67.11 MB)\nBlock size: 4096\nBlocks: 16384\n"
            "Free blocks: 14329\nLog blocks: 1024\n");
    EXPECT_EQ(r.err, "");
}

TEST_F(Mkfs, MakesCopiesOfMetadataFrom1GiBOnOrOnRequest)
{
    const struct {
        const char *size, *features;
        bool copies;
    } cases[] = {{"1023M", "", false},
                 {"1G", "", true},
                 {"1G", "^meta_copies", false},
                 {"16M", "meta_copies", true},
                 {"16M", "data_csum,meta_copies,^data_csum", true}};
    for (const auto &c : cases) {
        Result r = expect_exit(mkfs({"-f", "-s", c.size, "-O", c.features}), 0);
        EXPECT_EQ(r.out.find("Copies of metadata: yes\n") != std::string::npos, c.copies) << c.size;
        EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
        unlink(path("img").c_str());
    }
}

TEST_F(Mkfs, ReservesRoomForChecksumsOnRequest)
{
    expect_exit(mkfs({"-s", "64M", "-O", "data_csum"}), 0,
                "Free blocks: 14311\nLog blocks: 1024\nChecksum blocks: 18\n");
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
    Result r = mkfs({"-f", "-s", "64M", "-O", "data_csum,^data_csum"});
    EXPECT_EQ(r.out.find("Checksum"), std::string::npos);
    refused(mkfs({"-f", "-s", "64M", "-O", "data_csum,encrypt"}),
            "--features: 'encrypt' is not a feature");
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

TEST_F(Mkfs, ChoosesUuidAndHashSeedAtRandom)
{
    const struct {
        std::vector<std::string> given; // the other one
        size_t at;
    } random[] = {{{"-E", std::string("hash_seed=") + UUID}, offsetof(lay_label, uuid)},
                  {{"-U", UUID}, 2 * LAY_BLOCK_SIZE + offsetof(lay_super, hash_seed)}};
    for (const auto &r : random) {
        std::set<std::string> chosen;
        for (int i = 0; i < 2; i++) {
            ASSERT_EQ(mkfs({"-q", "-f", "-s", "16M", r.given[0], r.given[1]}, EPOCH).status, 0);
            chosen.insert(read_file(path("img")).substr(r.at, 16));
        }
        EXPECT_EQ(chosen.size(), 2u) << r.at;
    }
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
    uint64_t start = (LAY_LABEL_SECOND + 1 + 3126) * LAY_BLOCK_SIZE; // behind the chunk map
    std::ifstream(path("img")).seekg(start).read(&bitmaps[0], bitmaps.size());
    unsigned written = 0;
    for (size_t at = 0; at < bitmaps.size(); at += LAY_BLOCK_SIZE)
        written += bitmaps[at] != 0;
    EXPECT_EQ(written, 5u) << "two groups at the beginning, two with a superblock and the second "
                              "log, the last one";
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
}

// The bitmaps, and a nice value, give the test time enough to interrupt it.
TEST_F(Mkfs, RemovesTheFileWhenItIsInterrupted)
{
    for (int number : {SIGINT, SIGTERM, SIGHUP}) {
        std::string err = path("err");
        pid_t pid = fork();
        if (pid == 0) {
            dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
            setpriority(PRIO_PROCESS, 0, 19);
            execl(MKFS, MKFS, "-q", "-O", "data_csum", "-s", "8T", path("img").c_str(), nullptr);
            _exit(127);
        }
        struct stat st = {};
        for (int i = 0; i < 100000 && (stat(path("img").c_str(), &st) || !st.st_blocks); i++)
            usleep(100);
        kill(pid, number);
        int status;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
        EXPECT_NE(read_file(err).find("interrupted"), std::string::npos) << read_file(err);
        EXPECT_FALSE(std::filesystem::exists(path("img")));
    }
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
    expect_exit(mkfs({"-n", "-s", "16M"}), 0, "Dry run: nothing was written\n");
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

// --- tune.gpunvme --------------------------------------------------------------------------------

class Tune : public ToolTest
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(run({MKFS, "-q", "-s", "32M", "-L", "old", path("img")}).status, 0);
    }
    Result tune(std::vector<std::string> args)
    {
        args.insert(args.begin(), TUNE);
        args.push_back(path("img"));
        return run(args);
    }
    void shows(const Result &r, const std::string &label, uint64_t size)
    {
        EXPECT_EQ(r.out.rfind("Label: " + label + "\nUUID: ", 0), 0u) << r.out;
        EXPECT_NE(r.out.find("\nSize: " + std::to_string(size) + " bytes ("), std::string::npos)
            << r.out;
    }
    void refused(const Result &r, int status, const std::string &text)
    {
        EXPECT_EQ(r.status, status);
        EXPECT_EQ(r.out, "");
        EXPECT_NE(r.err.find(text), std::string::npos) << r.err;
        EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
        EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    }
};

TEST_F(Tune, TheLabelChanges)
{
    Result r = expect_exit(tune({"-L", "new"}), 0);
    shows(r, "new", 33554432);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    shows(tune({"--label="}), "", 33554432);
}

TEST_F(Tune, TheUuidChanges)
{
    const std::string uuid = "8d0e2f5c-1b7a-4c11-9a53-1f6f0e6a7b10";
    expect_exit(tune({"-U", uuid}), 0, "UUID: " + uuid + "\n");
    std::string before = run({DUMP, "-l", path("img")}).out;
    EXPECT_NE(before.find("  uuid: " + uuid + "\n"), std::string::npos) << before;
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
    EXPECT_EQ(tune({"-U", "random"}).status, 0);
    std::string after = run({DUMP, "-l", path("img")}).out;
    EXPECT_EQ(after.find("  uuid: " + uuid + "\n"), std::string::npos) << after;
    size_t at = before.find("sealing_uuid");
    EXPECT_EQ(before.substr(at, 50), after.substr(after.find("sealing_uuid"), 50));
    refused(tune({"-U", "1234"}), 2, "is not a UUID");
    refused(tune({"-U", "00000000-0000-0000-0000-000000000000"}), 2, "is not a UUID");
}

TEST_F(Tune, AFileGrows)
{
    Result r = expect_exit(tune({"-s", "300M", "-L", "both"}), 0);
    shows(r, "both", 314572800);
    EXPECT_EQ(std::filesystem::file_size(path("img")), 314572800u);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    std::filesystem::resize_file(path("img"), 400u << 20);
    shows(tune({"--size=max"}), "both", 419430400);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Tune, AFileShrinks)
{
    EXPECT_EQ(tune({"-s", "200M"}).status, 0);
    Result r = expect_exit(tune({"-s", "20M"}), 0);
    shows(r, "old", 20971520);
    EXPECT_EQ(std::filesystem::file_size(path("img")), 20971520u);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
    EXPECT_EQ(tune({"-s", "300M"}).status, 0);
    EXPECT_EQ(run({FSCK, "-n", path("img")}).status, 0);
}

TEST_F(Tune, InvalidArgumentsAreRefused)
{
    refused(tune({}), 2, "nothing to change");
    refused(tune({"-s", "x"}), 2, "is no size");
    refused(tune({"-L", std::string(64, 'x')}), 1, "at most 63 bytes");
    refused(tune({"-s", "15M"}), 1, "give 16777216 bytes or more");
    write_file(path("img"), std::string(1 << 20, 'x'));
    EXPECT_EQ(tune({"-L", "x"}).status, 1);
    write_file(path("img"), "");
    EXPECT_NE(tune({"-L", "x"}).err.find("too small to hold a file system"), std::string::npos);
}

TEST_F(Tune, AGrowthHasRoomForTheNewBitmapsAndChecksums)
{
    EXPECT_EQ(run({MKFS, "-f", "-q", "-O", "data_csum", "-s", "32M", path("img")}).status, 0);
    refused(tune({"-s", "33591296"}), 1, "give 33599488 bytes or more");
    EXPECT_EQ(tune({"-s", "33599488"}).status, 0);
    EXPECT_EQ(run({FSCK, "-f", "-n", path("img")}).status, 0);
}

TEST_F(Tune, AFullDiskLeavesTheFileUnchanged)
{
    const std::string small = path("small"), img = small + "/img";
    ASSERT_TRUE(std::filesystem::create_directory(small));
    if (mount("none", small.c_str(), "tmpfs", 0, "size=16m") != 0)
        GTEST_SKIP() << "only root mounts a small file system";
    EXPECT_EQ(run({MKFS, "-q", "-s", "32M", img}).status, 0);
    expect_exit(run({TUNE, "-s", "2T", img}), 1, "",
                "no space under it for the new bitmaps, 68177920 bytes");
    EXPECT_EQ(std::filesystem::file_size(img), 33554432u);
    EXPECT_LT(std::filesystem::space(small).capacity / 2, std::filesystem::space(small).available);
    EXPECT_EQ(run({FSCK, "-n", img}).status, 0);
    EXPECT_EQ(umount(small.c_str()), 0);
}

} // namespace
