/* SPDX-License-Identifier: BSD-2-Clause */
/* dump.gpunvme shows the objects of an image, in both formats. */
#include <json-c/json.h>

#include <cstring>

#include "tests/mkfs/mkfs_rig.h"

namespace
{

class Dump : public ToolTest
{
  protected:
    Dump()
    {
        img.fill();
    }

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

TEST_F(Dump, ShowsLabelAndSuperblockByDefault)
{
    Result r = dump({});
    EXPECT_TRUE(shows(r, "  uuid: 5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a\n")) << r.out;
    EXPECT_TRUE(shows(r, "  clean: no\n")) << r.out;
    EXPECT_TRUE(shows(r, "  orphan: 9\n")) << r.out;
}

TEST_F(Dump, ShowsAnInodeWithItsAttributes)
{
    Result r = dump({"-i", "7"});
    EXPECT_TRUE(shows(r, "  type: file\n")) << r.out;
    EXPECT_TRUE(shows(r, "    name=user.two bytes=300\n")) << r.out;
}

TEST_F(Dump, ShowsALongTarget)
{
    EXPECT_TRUE(shows(dump({"-i", "6"}), "xxxxyy\n"));
}

TEST_F(Dump, ShowsTheExtentsOfATree)
{
    Result r = dump({"-e", "3"});
    std::string last = "  file_block=1000 block=" + std::to_string(img.file_data + 50) +
                       " blocks=1 unwritten=no damaged=no\n";
    EXPECT_TRUE(shows(r, last)) << r.out;
}

TEST_F(Dump, ShowsTheNamesOfADirectoryOfTwoLevels)
{
    Result r = dump({"-d", "4"});
    EXPECT_TRUE(shows(r, "inode=5 type=directory name=sub\n")) << r.out;
    EXPECT_TRUE(shows(r, "inode=3 type=file name=tree2\n")) << r.out;
}

TEST_F(Dump, ShowsTheTransactionsInTheLog)
{
    img.log({img.copy(img.root_leaf)});
    img.log({img.copy(img.geo.supers[0])}, {img.dir_leaf});
    Result r = dump({"-j"});
    EXPECT_TRUE(shows(r, "recovered_transactions: 2\n")) << r.out;
    EXPECT_TRUE(shows(r, "tid=3 pos=4 blocks=4 images=1 revokes=1")) << r.out;
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
    EXPECT_EQ(json_object_get_int(json_object_object_get(tree, "schema_version")), 2);
    EXPECT_EQ(json_object_array_length(json_object_object_get(tree, "extents")), 2u);
    EXPECT_EQ(json_object_array_length(json_object_object_get(tree, "directory")), 7u);
    json_object_put(tree);
}

TEST_F(Dump, ReportsMissingObjects)
{
    Result r = dump({"-i", "15"});
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": inode: no such inode in use\n");
    EXPECT_EQ(r.out, "") << "no document beside the error";
    r = dump({"-i", "15", "-e", "2"});
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.out.find("inode"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("extents"), std::string::npos) << "but what there is, is shown";
    r = dump({"-d", "2"});
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "dump.gpunvme: " + path("img") + ": directory: not a directory\n");
}

TEST_F(Dump, UsesTheOtherCopyOfADamagedLabel)
{
    img.label().head.crc = lay_put32(0);
    Result r = dump({"-l"});
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.err.find("label in block 0: damaged (checksum), using that in block 2048"),
              std::string::npos)
        << r.err;
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
    Result r = dump({"-j"});
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.err.find("log: damaged (a transaction is not whole)"), std::string::npos) << r.err;
    EXPECT_NE(r.out.find("recovered_transactions: 1\n"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("  state: damaged\n"), std::string::npos) << r.out;
}

TEST_F(Dump, RefusesAnOlderFormat)
{
    img.label().version_major = lay_put16(2);
    img.seal(0);
    Result r = dump({});
    EXPECT_EQ(r.status, 1);
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
    Result r = run({DUMP, path("other")});
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.err.find("holds no gpunvmefs file system"), std::string::npos);
}

} // namespace
