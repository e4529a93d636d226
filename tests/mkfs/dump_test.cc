/* SPDX-License-Identifier: BSD-2-Clause */
/* dump.gpunvme shows the objects of an image, in both formats. */
#include <fcntl.h>
#include <json-c/json.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>

#include "blockdev/bdev.h"
#include "fusefs/core/ffs.h"

#include "tests/mkfs/mkfs_rig.h"

namespace
{

class Dump : public ToolTest
{
  protected:
    Dump() { img.fill(); }

    Result dump(std::vector<std::string> args)
    {
        args.insert(args.begin(), DUMP);
        args.push_back(path("img"));
        return run(args);
    }

    bool shows(const Result &r, const std::string &text)
    {
        return r.status == 0 && r.out.find(text) != std::string::npos;
    }

    Image img{path("img")};
};

TEST_F(Dump, ShowsEachKindOfObject)
{
    const std::string last_block = std::to_string(img.file_data + 50),
                      root = std::to_string(lay_addr_index(img.extent_root)),
                      root_place = std::to_string(img.place(img.extent_root)),
                      free =
                          std::to_string(lay_get32(img.at<lay_entries>(LAY_ADDR_CHUNK(0, 0)).free)),
                      map_age =
                          std::to_string(lay_age(&img.at<lay_block>(LAY_ADDR(LAY_KIND_MAP, 0))));
    const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
        {{}, {"  uuid: 5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a\n", "  clean: no\n", "  orphan: 9\n"}},
        {{"-i", "7"}, {"  type: file\n", "    name=user.two bytes=300\n"}},
        {{"-i", "6"}, {"xxxxyy\n"}},
        {{"-i", "3"}, {"  root: 0/" + root + "\n  root_place: " + root_place + "\n"}},
        {{"-e", "3"},
         {"  file_block=100 block=" + last_block + " blocks=1 unwritten=no damaged=no\n"}},
        {{"-e", "0"}, {"  file_block=0 address=0/1 address_place=513 blocks=1 "}},
        {{"-d", "4"}, {"inode=5 type=directory name=sub\n", "inode=3 type=file name=tree2\n"}},
        {{"-s", "-c"},
         {"  chunks: 2\n", "  segment=0 chunk=0 place=512 free=" + free + "\n",
          "  segment=1 chunk=1 place=1024 free=511\n"}},
        {{"-s"}, {"  map_age: " + map_age + "\n", "  sums_age: 0\n"}},
    };
    for (const auto &[args, texts] : cases) {
        Result r = dump(args);
        for (const std::string &text : texts)
            EXPECT_TRUE(shows(r, text)) << text << r.out;
    }
}

TEST_F(Dump, ShowsTheTransactionsInTheLog)
{
    img.log({img.copy(img.root_leaf)});
    img.log({img.copy(img.geo.supers[0])});
    Result r = dump({"-j"});
    EXPECT_TRUE(shows(r, "recovered_transactions: 2\n")) << r.out;
    EXPECT_TRUE(shows(r, "tid=3 pos=4 blocks=3 images=1 ")) << r.out;
    EXPECT_TRUE(shows(r, "tid=2 kind=4 level=0 number=2 pos=2 address=0/2 address_place=" +
                             std::to_string(img.place(img.root_leaf)) + "\n"))
        << r.out;
}

TEST_F(Dump, ShowsTheBlocksOfASegment)
{
    img.at<lay_node>(img.dir_leaf).count = lay_put16(77);
    Result r = expect_exit(dump({"-g", "0"}), 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": segment: damaged, run fsck.gpunvme\n");
    const char *const holds[] = {"entries owner=0", "inodes owner=0", "names owner=1"};
    for (unsigned b = 0; b < 3; b++) {
        std::string row = "address=0/" + std::to_string(b) +
                          " address_place=" + std::to_string(512 + b) + " sound=yes stale=no age=" +
                          std::to_string(lay_age(&img.at<lay_block>(LAY_ADDR_CHUNK(0, b)))) +
                          " holds=" + holds[b] + " tid=0\n";
        EXPECT_NE(r.out.find(row), std::string::npos) << row << r.out;
    }
    std::string bad = "address=0/" + std::to_string(lay_addr_index(img.dir_leaf));
    EXPECT_NE(r.out.find(bad + " address_place=" + std::to_string(img.place(img.dir_leaf)) +
                         " sound=no\n"),
              std::string::npos)
        << r.out;
    r = expect_exit(dump({"-g", "2"}), 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": segment: not mapped\n");
}

TEST_F(Dump, ReportsAnOlderVersionOfABlock)
{
    const lay_block old = img.at<lay_block>(img.dir_leaf);
    img.seal(img.dir_leaf, 9);
    img.at<lay_block>(img.dir_leaf) = old;
    std::string row = " address_place=" + std::to_string(img.place(img.dir_leaf)) +
                      " sound=no stale=yes age=" + std::to_string(lay_age(&old));
    expect_exit(dump({"-g", "0"}), 1, row);
    expect_exit(dump({"-d", std::to_string(INO_DIR)}), 1, "", "damaged, run fsck.gpunvme");
}

TEST_F(Dump, ShowsNoFreeBlocksByOlderEntries)
{
    const lay_block old = img.at<lay_block>(LAY_ADDR_CHUNK(1, 0));
    img.seal(LAY_ADDR_CHUNK(1, 0), 9);
    img.at<lay_block>(LAY_ADDR_CHUNK(1, 0)) = old;
    expect_exit(dump({"-c"}), 1, "segment=1 chunk=1 place=1024 free=none\n");
}

TEST_F(Dump, ReportsADamagedChunkMap)
{
    auto &map = img.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0));
    map.reserved = lay_put64(1);
    img.seal(LAY_ADDR(LAY_KIND_MAP, 0));
    Result r = expect_exit(dump({"-s", "-c"}), 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") +
                         ": chunk map, block 0: damaged (reserved), run fsck.gpunvme\n");
    EXPECT_NE(r.out.find("  chunks: 2\n"), std::string::npos) << r.out;
}

TEST_F(Dump, ReportsChunksThatOverlapOrAreMissing)
{
    auto &map = img.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0));
    map.slots[1] = map.slots[0];
    img.seal(LAY_ADDR(LAY_KIND_MAP, 0));
    expect_exit(dump({"-c"}), 1, "", "chunk map: segments overlap, run fsck.gpunvme\n");
    lay_slot_set(&map.slots[1], LAY_NONE, LAY_NONE);
    img.seal(LAY_ADDR(LAY_KIND_MAP, 0));
    expect_exit(dump({"-c"}), 1, "",
                "chunk map: the number of segments is 1 instead of 2, run fsck.gpunvme\n");
}

TEST_F(Dump, CorrectsAFlippedBitOfMetadata)
{
    img.at<lay_map_block>(LAY_ADDR(LAY_KIND_MAP, 0)).slots[3].reserved = lay_put32(4);
    Result r = dump({"-c"});
    EXPECT_TRUE(shows(r, "  segment=1 chunk=1 place=1024 free=511\n")) << r.out;
    EXPECT_NE(r.err.find(": block " + std::to_string(img.geo.map_start) +
                         ": one bit is wrong, shown as corrected\n"),
              std::string::npos)
        << r.err;
}

TEST_F(Dump, EscapesNamesThatAreNotText)
{
    add_name(img.at<lay_node>(img.root_leaf), img.geo, "a\x01\\\xff", INO_FILE, 8);
    img.seal(img.root_leaf);
    Result r = dump({"-d", "1"});
    EXPECT_TRUE(shows(r, "name=a\\x01\\\\\\xff name_escaped=yes\n")) << r.out;
}

TEST_F(Dump, PrintsJsonWithItsSchemaVersion)
{
    Result r = dump({"-s", "-i1", "-e2", "-d1", "-j", "-o", "json"});
    json_object *tree = json_tokener_parse(r.out.c_str());
    ASSERT_NE(tree, nullptr) << r.out;
    EXPECT_EQ(json_object_get_int(json_object_object_get(tree, "schema_version")), 3);
    EXPECT_EQ(json_object_array_length(json_object_object_get(tree, "extents")), 2u);
    EXPECT_EQ(json_object_array_length(json_object_object_get(tree, "directory")), 7u);
    json_object_put(tree);
}

TEST_F(Dump, ReportsMissingObjects)
{
    Result r = expect_exit(dump({"-i", "15"}), 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": inode: no such inode in use\n");
    EXPECT_EQ(r.out, "") << "no document beside the error";
    r = expect_exit(dump({"-i", "15", "-e", "2"}), 1);
    EXPECT_EQ(r.out.find("inode"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("extents"), std::string::npos) << "but what there is, is shown";
    r = expect_exit(dump({"-d", "2"}), 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": directory: not a directory\n");
}

TEST_F(Dump, UsesTheOtherCopyOfADamagedLabel)
{
    img.label().head.crc = lay_put32(0);
    Result r = expect_exit(dump({"-l"}), 0, "",
                           "label in block 0: damaged (checksum), using that in block 2048");
    EXPECT_TRUE(shows(r, "  uuid: 5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a\n")) << r.out;
}

TEST_F(Dump, CorrectsAFlippedBitOfTheLabel)
{
    img.label().label[5] ^= 4;
    Result r = dump({"-l"});
    EXPECT_TRUE(shows(r, "  label: \n")) << r.out;
    EXPECT_NE(r.err.find("label in block 0: one bit is wrong, shown as corrected"),
              std::string::npos)
        << r.err;
}

TEST_F(Dump, ShowsTheStateBeforeDamageOfTheLog)
{
    img.log({img.copy(img.root_leaf)});
    img.log({img.copy(img.root_leaf)});
    std::memset(&img.at<uint8_t>(img.geo.log_start + 5), 0, LAY_BLOCK_SIZE); // the second image
    Result r = expect_exit(dump({"-j"}), 1, "recovered_transactions: 1\n",
                           "log: damaged (a transaction is not whole)");
    EXPECT_NE(r.out.find("  state: damaged\n"), std::string::npos) << r.out;
}

// The most memory that a dump of this inode's extents had, in KiB.
long peak_of_dump(const std::string &image, const std::string &ino, const char *format)
{
    const char *args[] = {DUMP, "-e", ino.c_str(), "-o", format, image.c_str(), nullptr};
    posix_spawn_file_actions_t actions;
    struct rusage usage;
    pid_t pid;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    EXPECT_EQ(posix_spawn(&pid, DUMP, &actions, nullptr, const_cast<char **>(args), environ), 0);
    EXPECT_EQ(wait4(pid, &status, 0, &usage), pid);
    EXPECT_EQ(status, 0);
    posix_spawn_file_actions_destroy(&actions);
    return usage.ru_maxrss;
}

// Each extent took 1.3 KB when all of them were kept.
TEST_F(Dump, OfManyExtentsNeedsNoMoreMemory)
{
    constexpr uint64_t EXTENTS = 40000;
    const std::string image = path("large");
    bd_dev *dev;
    ffs_mount_opts opts = {};
    struct ffs *fs;
    ffs_inode *root, *file;
    const ffs_cred cred = {0, 0, 0};
    struct reason why = {};
    ASSERT_EQ(run({MKFS, "-q", "-s", "512M", image}).status, 0);
    ASSERT_EQ(bd_file_open(image.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    ASSERT_EQ(ffs_mount(dev, &opts, &fs, &why), 0) << why.text;
    ASSERT_EQ(ffs_iget(fs, 1, &root), 0);
    ASSERT_EQ(ffs_mknod(root, "file", S_IFREG | 0644, 0, &cred, &file), 0);
    for (uint64_t i = 0; i < EXTENTS; i++)
        ASSERT_EQ(ffs_fallocate(file, 0, i * 8192, 4096), 0);
    const std::string ino = std::to_string(ffs_ino(file));
    ffs_iput(file, 1);
    ffs_iput(root, 1);
    ASSERT_EQ(ffs_unmount(fs), 0);
    bd_close(dev);
    // AddressSanitizer keeps freed memory.
    const char *options = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", (std::string(options ? options : "") + ":quarantine_size_mb=1").c_str(),
           1);
    for (const char *format : {"text", "json"})
        EXPECT_LT(peak_of_dump(image, ino, format) - peak_of_dump(image, "0", format), 24 << 10);
    Result r = run({DUMP, "-e", ino, "-o", "json", image});
    json_object *tree = json_tokener_parse(r.out.c_str()), *rows = nullptr;
    ASSERT_TRUE(tree && json_object_object_get_ex(tree, "extents", &rows));
    EXPECT_EQ(json_object_array_length(rows), EXTENTS);
    json_object_put(tree);
}

TEST_F(Dump, RefusesAnOlderFormat)
{
    img.label().version_major = lay_put16(2);
    img.seal(0);
    Result r = expect_exit(dump({}), 1);
    EXPECT_NE(
        r.err.find("has an older format, which only older releases read: mount it with one of "
                   "them and copy its files"),
        std::string::npos)
        << r.err;
}

TEST_F(Dump, RefusesInvalidOptions)
{
    EXPECT_EQ(dump({"-i", "x"}).status, 2);
    EXPECT_EQ(dump({"-o", "xml"}).status, 2);
    EXPECT_EQ(run({DUMP}).status, 2);
}

TEST_F(Dump, RefusesADeviceWithoutAFileSystem)
{
    write_file(path("other"), std::string(1 << 20, 'x'));
    expect_exit(run({DUMP, path("other")}), 1, "", "holds no gpunvmefs file system");
}

} // namespace
