/* SPDX-License-Identifier: BSD-2-Clause */
// What the command `gpunvme` and libgpunvme say to wrong arguments and to files that are not on a
// mount of ours.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "client/lib/connection.h"
#include "tests/e2e/mounted.h"

namespace
{

struct Refusal {
    const char *name, *args; // FILE: an ordinary file, elsewhere
    int status;
    const char *said;
};

// A file on no mount of ours, with some bytes in it.
class Elsewhere
{
  public:
    Elsewhere()
    {
        Fd fd = mkstemp(&name_[0]);
        if (fd < 0 || write(fd, "precious", 8) != 8)
            ADD_FAILURE() << name_ << ": " << strerror(errno);
    }
    ~Elsewhere() { unlink(name_.c_str()); }
    Elsewhere(const Elsewhere &) = delete;
    Elsewhere &operator=(const Elsewhere &) = delete;

    const std::string &name() const { return name_; }
    std::string content() const
    {
        std::stringstream all;
        all << std::ifstream(name_).rdbuf();
        return all.str();
    }

  private:
    std::string name_ = "/tmp/gpunvme-client-XXXXXX";
};

using RefusalTest = ::testing::TestWithParam<Refusal>;

TEST_P(RefusalTest, IsOneLineWithTheObjectAndLosesNothing)
{
    Elsewhere file;
    std::vector<std::string> argv = {GPUNVME};
    std::istringstream words(GetParam().args);
    for (std::string arg; words >> arg;)
        argv.push_back(arg == "FILE" ? file.name() : arg);
    std::string output;
    EXPECT_EQ(run_program(argv, &output), GetParam().status) << output;
    EXPECT_EQ(output.find("gpunvme: "), 0u) << output;
    EXPECT_NE(output.find(GetParam().said), std::string::npos) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    EXPECT_EQ(output.find(": " + file.name() + ": " + file.name()), std::string::npos) << output;
    EXPECT_EQ(file.content(), "precious");
}

constexpr char kNone[] = "/nonexistent/file";

INSTANTIATE_TEST_SUITE_P(
    CommandLine, RefusalTest,
    ::testing::Values(Refusal{"no_such_command", "raed FILE", 2, "raed: no such command"},
                      Refusal{"bad_format", "info -o xml FILE", 2, "xml: no such output format"},
                      Refusal{"bad_size", "read -b 12Q FILE", 2, "12Q: not a buffer size"},
                      Refusal{"no_size", "read -b 0 FILE", 2, "0: not a buffer size"},
                      Refusal{"negative_size", "read -b -4K FILE", 2, "-4K: not a buffer size"},
                      Refusal{"huge_size", "read -b 99999999999G FILE", 2, "not a buffer size"},
                      Refusal{"bad_path", "read -p fast FILE", 2, "fast: no such path"},
                      Refusal{"read_nothing", "read", 2, "files are needed"},
                      Refusal{"write_one", "write FILE", 2, "a source and a file"},
                      Refusal{"extents_two", "extents FILE FILE", 2, "one file is needed"},
                      Refusal{"info_nothing", "info", 2, "one path is needed"},
                      Refusal{"check_two", "check FILE FILE", 2, "one device at most"},
                      Refusal{"identify_nothing", "identify", 2, "one device is needed"},
                      Refusal{"regs_two", "regs FILE FILE", 2, "one device is needed"},
                      Refusal{"bind_nothing", "bind", 2, "one PCI address is needed"},
                      Refusal{"bind_no_address", "bind c1:00", 2, "c1:00: no PCI address"},
                      Refusal{"unbind_force", "unbind -f c1:00.0", 2,
                              "option -f (--force) not understood"}),
    [](const auto &info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Files, RefusalTest,
    ::testing::Values(
        Refusal{"read_missing", "read /nonexistent/file", 1, "No such file"},
        Refusal{"write_from_missing", "write /nonexistent/file FILE", 1, "No such file"},
        Refusal{"write_to_missing", "write FILE /nonexistent/file", 1, "No such file"},
        Refusal{"label_elsewhere", "label FILE", 1, "not on a gpunvmefs mount"},
        Refusal{"new_label_elsewhere", "label FILE x", 1, "not on a gpunvmefs mount"},
        Refusal{"extents_missing", "extents /nonexistent/file", 1, "No such file"},
        Refusal{"info_missing", "info /nonexistent/file", 1, "No such file"},
        Refusal{"read_elsewhere", "read FILE", 1, "not on a gpunvmefs mount"},
        Refusal{"write_elsewhere", "write /dev/null FILE", 1, "not on a gpunvmefs mount"},
        Refusal{"write_to_itself", "write FILE FILE", 1, "the same file"},
        Refusal{"extents_elsewhere", "extents FILE", 1, "not a file of a gpunvmefs mount"},
        Refusal{"info_elsewhere", "info FILE", 1, "not on a gpunvmefs mount"},
        Refusal{"info_of_a_device", "info /dev/null", 1, "not on a gpunvmefs mount"}),
    [](const auto &info) { return info.param.name; });

// No machine has the device 0000:ff:1f.7, by a convention of chipsets.
INSTANTIATE_TEST_SUITE_P(
    Drives, RefusalTest,
    ::testing::Values(
        Refusal{"bind_absent", "bind 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"bind_forced_absent", "bind --force 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"unbind_absent", "unbind 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"identify_absent", "identify 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"identify_absent_vfio", "identify vfio:0000:ff:1f.7", 1, "vfio:"},
        Refusal{"regs_absent", "regs 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"check_absent", "check 0000:ff:1f.7", 1, "no such PCI device"},
        Refusal{"identify_file", "identify FILE", 1, "no device"},
        Refusal{"identify_null", "identify /dev/null", 1, "not a whole drive"},
        Refusal{"identify_bad_string", "identify vfio:c1", 1, "no PCI address"},
        Refusal{"identify_no_socket", "identify vfio-user:/nonexistent", 1, "vfio-user"},
        Refusal{"regs_missing", "regs /nonexistent/file", 1, "No such file"},
        Refusal{"check_missing", "check /nonexistent/file", 1, "No such file"}),
    [](const auto &info) { return info.param.name; });

using Messages = std::vector<std::pair<int, std::string>>;

void keep(void *context, int kind, const char *message)
{
    static_cast<Messages *>(context)->emplace_back(kind, message);
}

TEST(Log, IsToldOfFailuresAndFallbacksAndSilentByDefault)
{
    Messages messages;
    std::vector<char> bytes(4096);
    struct connection *g;
    struct gpunvme_buffer *b;
    struct gpunvme_result result;
    Fd fd = open("/proc/self/exe", O_RDONLY);
    gpunvme_set_log(keep, &messages);
    EXPECT_EQ(connection_open("/none", &g), -ENOENT);
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].first, GPUNVME_LOG_ERROR);
    EXPECT_EQ(messages[0].second, gpunvme_error());
    ASSERT_EQ(connection_local(&g), 0);
    ASSERT_EQ(buffer_register(g, bytes.data(), bytes.size(), true, &b), 0) << gpunvme_error();
    messages.clear();
    ASSERT_EQ(transfer_read(b, fd, 0, 0, 100, &result), 100) << gpunvme_error();
    const std::pair<int, std::string> bounced(GPUNVME_LOG_BOUNCE, result.why);
    EXPECT_EQ(std::count(messages.begin(), messages.end(), bounced), 1);
    gpunvme_set_log(nullptr, nullptr);
    messages.clear();
    EXPECT_EQ(transfer_read(b, fd, 0, 0, 100, &result), 100);
    EXPECT_TRUE(messages.empty());
    connection_close(g);
}

// Uses a device of another class if this machine has one.
TEST(Command, WhatIsNoNvmeDriveIsRefused)
{
    std::string output, other;
    for (int i = 0; i < 32 && other.empty(); i++) {
        char bdf[32], line[16] = "";
        snprintf(bdf, sizeof(bdf), "0000:00:%02x.0", i);
        std::ifstream(std::string("/sys/bus/pci/devices/") + bdf + "/class")
            .getline(line, sizeof(line));
        if (line[0] && std::string(line) != "0x010802")
            other = bdf;
    }
    if (other.empty())
        GTEST_SKIP() << "no PCI device on this machine";
    for (const char *command : {"bind", "unbind", "identify", "regs", "check"}) {
        EXPECT_EQ(run_program({GPUNVME, command, other}, &output), 1) << output;
        EXPECT_NE(output.find("not an NVMe controller"), std::string::npos) << output;
    }
}

TEST(Command, ListAndCheckComeToAnEndOnAnyMachine)
{
    std::string output;
    EXPECT_EQ(run_program({GPUNVME, "list"}, &output), 0) << output;
    EXPECT_EQ(run_program({GPUNVME, "list", "-o", "json"}, &output), 0) << output;
    EXPECT_NE(output.find("\"schema_version\": 1"), std::string::npos) << output;
    int status = run_program({GPUNVME, "check"}, &output);
    EXPECT_TRUE(status == 0 || status == 1) << output;
    EXPECT_EQ(status == 1, output.find("\nFAIL") != std::string::npos || output.find("FAIL") == 0)
        << output;
}

TEST(Command, WritingElsewhereLeavesNoNewFile)
{
    Elsewhere source;
    std::string target = source.name() + ".new", output;
    EXPECT_EQ(run_program({GPUNVME, "write", source.name(), target}, &output), 1) << output;
    EXPECT_NE(access(target.c_str(), F_OK), 0);
    unlink(target.c_str());
}

TEST(Command, HelpAndVersionGoWithStatusZero)
{
    std::string output;
    EXPECT_EQ(run_program({GPUNVME, "--help"}, &output), 0);
    EXPECT_EQ(output.find("usage: gpunvme COMMAND"), 0u) << output;
    EXPECT_EQ(run_program({GPUNVME, "read", "--help"}, &output), 0);
    EXPECT_EQ(output.find("usage: gpunvme read"), 0u) << output;
    EXPECT_EQ(run_program({GPUNVME, "--version"}, &output), 0);
    EXPECT_EQ(output.find("gpunvme "), 0u) << output;
}

TEST(Command, NoArgumentIsAWrongCommandLine)
{
    std::string output;
    EXPECT_EQ(run_program({GPUNVME}, &output), 2);
    EXPECT_EQ(output.find("usage: gpunvme COMMAND"), 0u) << output;
}

TEST(Library, APathOnNoMountIsENOTTYInWords)
{
    Elsewhere file;
    struct connection *g = nullptr;
    EXPECT_EQ(connection_open(file.name().c_str(), &g), -ENOTTY);
    EXPECT_NE(std::string(gpunvme_error()).find(file.name()), std::string::npos);
    EXPECT_EQ(connection_open("/", &g), -ENOTTY);
    EXPECT_EQ(g, nullptr);
}

TEST(Library, OptionsOutOfRangeAreEINVAL)
{
    struct gpunvme_options bad[6] = {};
    bad[0].path = GPUNVME_PATH_BOUNCE + 1;
    bad[1].threads = 100000;
    bad[2].chunk = 4097;
    bad[3].lease_queues = GPUNVME_LEASE_MAX + 1;
    bad[4].lease_depth = 1;
    bad[5].flags = ~GPUNVME_UNVERIFIED;
    struct gpunvme *g;
    for (const auto &options : bad)
        EXPECT_EQ(gpunvme_open(&options, &g), -EINVAL) << &options - bad;
}

TEST(Library, AMissingPathIsENOENT)
{
    struct connection *g = nullptr;
    EXPECT_EQ(connection_open(kNone, &g), -ENOENT);
    EXPECT_NE(std::string(gpunvme_error()).find(kNone), std::string::npos);
}

TEST(Library, ExtentsOfAFileOnNoMountAreENOTTY)
{
    Elsewhere file;
    struct gpunvme_extent extent;
    Fd fd = open(file.name().c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(gpunvme_extents(fd, 0, &extent, 1), -ENOTTY);
}

} // namespace
