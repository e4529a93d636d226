/* SPDX-License-Identifier: BSD-2-Clause */
// The command `gpunvme` over a mount: its output is JSON that agrees with the outcome.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <sstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/cli/json.h"
#include "tests/e2e/mounted.h"

namespace
{

std::string some_bytes(size_t n)
{
    std::string all(n, '\0');
    std::mt19937 rng(5);
    for (char &c : all)
        c = static_cast<char>(rng());
    return all;
}

std::string xxh3(const std::string &bytes)
{
    char text[17];
    snprintf(text, sizeof(text), "%016llx",
             static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
    return text;
}

class CommandOnMount : public MountedTest
{
  protected:
    void set_up() override { mount("", 256u << 20); }

    void make(const std::string &name, const std::string &bytes)
    {
        std::ofstream(mounted_->path(name)) << bytes;
        struct stat st;
        ASSERT_EQ(stat(mounted_->path(name).c_str(), &st), 0);
        ASSERT_EQ(static_cast<size_t>(st.st_size), bytes.size());
    }

    std::string content(const std::string &name)
    {
        std::stringstream all;
        all << std::ifstream(mounted_->path(name)).rdbuf();
        return all.str();
    }

    // Runs `gpunvme` with -o json behind the subcommand: the document, of the known schema.
    Json json(std::vector<std::string> args)
    {
        std::string output;
        args.insert(args.begin(), GPUNVME);
        args.insert(args.begin() + 2, {"-o", "json"});
        EXPECT_EQ(run_program(args, &output), 0) << output;
        Json root(json_tokener_parse(output.c_str()));
        EXPECT_TRUE(root) << output;
        EXPECT_EQ(number(root.get(), "schema_version"), 1u);
        return root;
    }
};

TEST_F(CommandOnMount, InfoTellsWhoServesTheMount)
{
    Json root = json({"info", mounted_->mountpoint()});
    EXPECT_NE(text(root.get(), "executor"), "none");
    EXPECT_EQ(text(root.get(), "transport"), "sim");
    EXPECT_EQ(number(root.get(), "block_size"), 4096u);
    EXPECT_EQ(text(root.get(), "fs_uuid").size(), 36u);
    EXPECT_EQ(number(root.get(), "gpu_transfers"), 0u);
    EXPECT_FALSE(flag(root.get(), "direct"));
    EXPECT_EQ(number(root.get(), "lease_queues"), 0u);
}

TEST_F(CommandOnMount, InfoTellsOfTheDirectPath)
{
    ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
    ASSERT_TRUE(mounted_->mount("direct=all")) << mounted_->log();
    Json root = json({"info", mounted_->mountpoint()});
    EXPECT_TRUE(flag(root.get(), "direct"));
    EXPECT_GT(number(root.get(), "lease_queues"), 0u);
    EXPECT_EQ(number(root.get(), "lease_tier"), 1u);
    std::string output;
    EXPECT_EQ(run_program({GPUNVME, "info", mounted_->mountpoint()}, &output), 0);
    EXPECT_NE(output.find("Direct path for you:"), std::string::npos) << output;
    EXPECT_NE(output.find("Queues to lease:"), std::string::npos) << output;
}

TEST_F(CommandOnMount, ReadTellsBytesPathAndChecksumOfEachFile)
{
    std::string bytes = some_bytes(3000001);
    make("a", bytes);
    make("empty", "");
    Json root =
        json({"read", "-q", "-c", "-b", "1M", mounted_->path("a"), mounted_->path("empty")});
    struct json_object *files = member(root.get(), "files");
    ASSERT_EQ(json_object_array_length(files), 2u);
    struct json_object *a = json_object_array_get_idx(files, 0);
    EXPECT_EQ(text(a, "file"), mounted_->path("a"));
    EXPECT_EQ(number(a, "bytes"), bytes.size());
    EXPECT_EQ(text(a, "path"), "gpu");
    EXPECT_EQ(text(a, "xxh3"), xxh3(bytes));
    EXPECT_GT(number(a, "commands"), 0u);
    struct json_object *empty = json_object_array_get_idx(files, 1);
    EXPECT_EQ(number(empty, "bytes"), 0u);
    EXPECT_EQ(text(empty, "xxh3"), xxh3(""));
}

TEST_F(CommandOnMount, ThePathAskedForIsTakenAndSaid)
{
    std::string bytes = some_bytes(3000001);
    make("a", bytes);
    for (const char *path : {"bounce", "gpu", "auto"}) {
        Json root = json({"read", "-q", "-c", "-p", path, mounted_->path("a")});
        struct json_object *a = json_object_array_get_idx(member(root.get(), "files"), 0);
        bool bounce = std::string(path) == "bounce";
        EXPECT_EQ(text(a, "path"), bounce ? "bounce" : "gpu");
        EXPECT_EQ(text(a, "why"), bounce ? "asked for" : "");
        EXPECT_EQ(text(a, "xxh3"), xxh3(bytes));
    }
}

TEST_F(CommandOnMount, WriteMakesTheFileWhatTheSourceIs)
{
    std::string bytes = some_bytes(1500000), before = some_bytes(2000000);
    std::string source = mounted_->path("source");
    make("source", bytes);
    make("copy", before); // longer: nothing of it may stay
    Json root = json({"write", "-c", "-b", "1M", source, mounted_->path("copy")});
    struct json_object *file = json_object_array_get_idx(member(root.get(), "files"), 0);
    EXPECT_EQ(number(file, "bytes"), bytes.size());
    EXPECT_EQ(text(file, "xxh3"), xxh3(bytes));
    EXPECT_TRUE(content("copy") == bytes);
}

TEST_F(CommandOnMount, ExtentsCoverTheFile)
{
    make("a", some_bytes(1000000));
    int fd = open(mounted_->path("a").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(fsync(fd), 0);
    close(fd);
    Json root = json({"extents", mounted_->path("a")});
    struct json_object *extents = member(root.get(), "extents");
    uint64_t end = 0;
    for (size_t i = 0; i < json_object_array_length(extents); i++) {
        struct json_object *e = json_object_array_get_idx(extents, i);
        EXPECT_EQ(number(e, "file_offset"), end);
        end += number(e, "length");
    }
    EXPECT_GE(end, 1000000u);
}

TEST_F(CommandOnMount, AMissingFileAmongOthersIsNamedAndTheOthersAreRead)
{
    make("a", "abc");
    std::string output;
    EXPECT_EQ(run_program({GPUNVME, "read", mounted_->path("a"), mounted_->path("none")}, &output),
              1);
    EXPECT_NE(output.find(mounted_->path("a") + ": 3 bytes"), std::string::npos) << output;
    EXPECT_NE(output.find("gpunvme: " + mounted_->path("none") + ": No such file"),
              std::string::npos)
        << output;
}

TEST_F(CommandOnMount, ADirectoryIsNotRead)
{
    std::string output;
    EXPECT_EQ(run_program({GPUNVME, "read", mounted_->mountpoint()}, &output), 1);
    EXPECT_NE(output.find("not a regular file"), std::string::npos) << output;
}

TEST_F(CommandOnMount, AFullDeviceEndsAWriteWithOneLine)
{
    std::string source = mounted_->path("sparse"), output;
    make("sparse", "");
    ASSERT_EQ(truncate(source.c_str(), 1 << 30), 0);
    EXPECT_EQ(run_program({GPUNVME, "write", source, mounted_->path("big")}, &output), 1);
    EXPECT_NE(output.find("big: "), std::string::npos) << output;
    EXPECT_NE(output.find("No space left"), std::string::npos) << output;
}

} // namespace
