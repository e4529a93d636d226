/* SPDX-License-Identifier: BSD-2-Clause */
// The tools on a controller of another process: their output agrees with its server's options.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include <unistd.h>

#include "tests/client/cli/cli_report.h"
#include "tests/sim/serve_rig.h"

namespace
{

struct Outcome {
    int status;
    std::string output;
};

// stdout and stderr together.
Outcome outcome_of(const std::string &command)
{
    Outcome run = {-1, ""};
    std::array<char, 4096> chunk{};
    FILE *p = popen((command + " 2>&1").c_str(), "r");
    if (!p)
        return run;
    for (size_t n; (n = fread(chunk.data(), 1, chunk.size(), p)) > 0;)
        run.output.append(chunk.data(), n);
    int status = pclose(p);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
}

Outcome gpunvme(const std::string &arguments)
{
    return outcome_of(std::string(GPUNVME) + " " + arguments);
}

Json json_of(const std::string &arguments)
{
    Outcome run = gpunvme(arguments);
    EXPECT_EQ(run.status, 0) << run.output;
    Json root(json_tokener_parse(run.output.c_str()));
    EXPECT_TRUE(root) << run.output;
    return root;
}

TEST(Served, IdentifyShowsEveryNamespaceOfTheServer)
{
    Server server({"--namespaces", "2", "--lba", "512", "--size", "32M", "--mdts", "64K"});
    Json root = json_of("identify -o json vfio-user:" + server.path);
    struct json_object *ctrlr = member(root.get(), "controller");
    EXPECT_EQ(text(root.get(), "through"), "vfio-user");
    EXPECT_EQ(number(ctrlr, "max_transfer"), 65536u);
    EXPECT_TRUE(flag(ctrlr, "usable"));
    struct json_object *all = member(root.get(), "namespaces");
    ASSERT_EQ(json_object_array_length(all), 2u);
    struct json_object *second = json_object_array_get_idx(all, 1);
    EXPECT_EQ(number(second, "nsid"), 2u);
    EXPECT_EQ(number(second, "bytes"), 32u << 20);
    EXPECT_EQ(number(second, "lba_size"), 512u);
}

TEST(Served, WhatTheDriverDoesForAKnownControllerIsTold)
{
    Server known({"--strict", "--pci-id", "126f:2263"}), other;
    EXPECT_EQ(text(json_of("identify -o json vfio-user:" + known.path).get(), "quirks"),
              "no namespace descriptors");
    EXPECT_EQ(text(json_of("identify -o json vfio-user:" + other.path).get(), "quirks"), "none");
    Outcome run = gpunvme("check vfio-user:" + known.path);
    EXPECT_NE(run.output.find("workarounds for this controller: no namespace descriptors"),
              std::string::npos)
        << run.output;
    run = outcome_of(std::string(GPUNVME_SIM) + " --pci-id 126f:x /none");
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_EQ(known.stop(), 0) << "mistakes of the driver";
}

TEST(Served, RegistersAreThoseOfTheServer)
{
    Server server({"--max-depth", "64"});
    Json root = json_of("regs -o json vfio-user:" + server.path);
    EXPECT_EQ(number(member(root.get(), "cap"), "mqes"), 63u);
    EXPECT_EQ(number(member(root.get(), "vs"), "major"), 2u);
    EXPECT_FALSE(flag(root.get(), "reset"));
}

TEST(Served, CheckLooksIntoTheController)
{
    Server server({"--no-volatile-cache", "--max-depth", "32"});
    Outcome run = gpunvme("check vfio-user:" + server.path);
    EXPECT_NE(run.output.find("no volatile write cache"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find("queues of up to 32 entries"), std::string::npos) << run.output;
    EXPECT_NE(run.output.find("LBAs of 4096 bytes"), std::string::npos) << run.output;
}

TEST(Served, CheckSaysHowManyRegionsTheServerKeeps)
{
    Server silent({"--dma-maps", "64"}), told;
    Outcome run = gpunvme("check vfio-user:" + silent.path);
    EXPECT_NE(run.output.find("64 DMA regions at most"), std::string::npos) << run.output;
    run = gpunvme("check vfio-user:" + told.path);
    EXPECT_NE(run.output.find("4096 DMA regions at most"), std::string::npos) << run.output;
}

TEST(Served, AServerOfTooFewRegionsIsNamedWithTheRemedy)
{
    const std::string mkfs = std::string(GPUNVME_MKFS) + " -q -f";
    const std::string check = std::string(GPUNVME) + " check --data";
    for (const auto &[maps, tool] : {std::pair("1", mkfs), {"1", check}, {"3", mkfs}}) {
        Server server({"--dma-maps", maps});
        Outcome run = outcome_of(tool + " vfio-user:" + server.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find(std::string(maps) + " DMA regions do not suffice: raise the "
                                                      "limit of the drive's server"),
                  std::string::npos)
            << run.output;
    }
}

// A controller that becomes ready only after DEVICE_RESET, and one that never does.
TEST(Served, AStuckControllerIsResetAtOpen)
{
    Server stuck({"--strict", "--stuck"}), never({"--stuck", "--no-reset"});
    Outcome run = outcome_of(std::string(GPUNVME_MKFS) + " -q -f vfio-user:" + stuck.path);
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_EQ(stuck.stop(), 0) << "mistakes of the driver";
    run = outcome_of(std::string(GPUNVME_MKFS) + " -q -f vfio-user:" + never.path);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_NE(run.output.find("start its server again"), std::string::npos) << run.output;
}

TEST(Served, AServerThatDoesNotAnswerIsNamedWithinTheDeadline)
{
    Server server({"--second-client=wait"});
    Outcome run;
    {
        Client first(server.path);
        run = outcome_of(std::string(GPUNVME_MKFS) +
                         " -q -f --deadline=300 vfio-user:" + server.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find("no answer to VERSION within 300 ms"), std::string::npos)
            << run.output;
        EXPECT_NE(run.output.find("end that client"), std::string::npos) << run.output;
    }
    run =
        outcome_of(std::string(GPUNVME_MKFS) + " -q -f --deadline=60000 vfio-user:" + server.path);
    EXPECT_EQ(run.status, 0) << run.output;
    run = outcome_of(std::string(GPUNVME_MKFS) + " -q -f --deadline=0 vfio-user:" + server.path);
    EXPECT_EQ(run.status, 2) << run.output;
}

// The text of the line; empty when there is none.
std::string tier_of(const std::string &environment, const std::string &path)
{
    Outcome run = outcome_of(environment + " " + GPUNVME + " check -o json vfio-user:" + path);
    Json root(json_tokener_parse(run.output.c_str()));
    struct json_object *all = root ? member(root.get(), "checks") : nullptr;
    for (size_t i = 0; all && i < json_object_array_length(all); i++) {
        struct json_object *finding = json_object_array_get_idx(all, i);
        if (text(finding, "id") == "tier")
            return text(finding, "text");
    }
    return "";
}

// A driver in place of CUDA's maps any doorbells.
TEST(Served, CheckSaysAtWhichTierTheServerIsUsedAndWhy)
{
    Server server;
    const std::string by_cpu = "tier 1, the CPU executor runs the queues";
    std::string said = tier_of("CUDA_VISIBLE_DEVICES=", server.path);
    EXPECT_EQ(said.find(by_cpu), 0u) << said;
    EXPECT_NE(said.find("host memory"), std::string::npos) << said;
    said = tier_of("LD_LIBRARY_PATH=" FAKE_CUDA, server.path);
#ifdef GPUNVME_HAVE_CUDA
    EXPECT_EQ(said.find("tier 1, the GPU ("), 0u) << said;
    EXPECT_NE(said.find("staged"), std::string::npos) << said;
#else
    EXPECT_EQ(said.find(by_cpu), 0u) << said;
    EXPECT_NE(said.find("built without CUDA"), std::string::npos) << said;
#endif
}

TEST(Served, CheckFindsThatReadsFailOrAreRefusedIfTheyAreLong)
{
    using Options = std::vector<std::string>;
    for (const auto &[options, said] :
         {std::pair(Options{"--no-mdts"},
                    "is refused by the controller, although reads of single pages"),
          std::pair(Options{"--fault", "status,op=read,status=0x281"},
                    "a read of single pages at byte 0 of the device fails")}) {
        Server server(options);
        Outcome run = gpunvme("check --data vfio-user:" + server.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find(said), std::string::npos) << run.output;
    }
}

TEST(Served, CheckReadsDataOnRequest)
{
    std::string image = ::testing::TempDir() + "gpunvme-check-data-" + std::to_string(getpid());
    std::ofstream out(image, std::ios::binary);
    for (uint64_t i = 0; i < (8u << 20) / 8; i++)
        out.write(reinterpret_cast<const char *>(&i), 8);
    out.close();
    Server good({"--strict", "--no-prp-chains"}), bad({"--swaps-prps", "-i", image});
    Outcome run = gpunvme("check vfio-user:" + good.path);
    EXPECT_EQ(run.output.find("single pages"), std::string::npos) << run.output;
    run = gpunvme("check --data vfio-user:" + good.path);
    EXPECT_NE(run.output.find("commands of every length return what"), std::string::npos)
        << run.output;
    run = gpunvme("check --data vfio-user:" + bad.path);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_NE(run.output.find("wrong data by commands of the processor"), std::string::npos)
        << run.output;
    std::remove(image.c_str());
    run = gpunvme("check --data");
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_EQ(good.stop(), 0) << "mistakes of the driver";
}

std::string content(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Served, CheckWritesOnRequestAndPutsBack)
{
    std::string image = ::testing::TempDir() + "gpunvme-check-scratch-" + std::to_string(getpid());
    std::ofstream(image, std::ios::binary) << std::string(8 << 20, 'x');
    {
        Server good({"--strict", "--no-prp-chains", "-i", image});
        Outcome run = gpunvme("check --data --scratch=1M vfio-user:" + good.path);
        EXPECT_NE(run.output.find("commands of every length read and write what"),
                  std::string::npos)
            << run.output;
        run = gpunvme("check --data --scratch=9M vfio-user:" + good.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find("no scratch area at byte 9437184"), std::string::npos)
            << run.output;
        EXPECT_EQ(good.stop(), 0) << "mistakes of the driver";
    }
    for (const char *swaps :
         {"--swaps-prps=5,write", "--swaps-prps=29,write", "--swaps-prps=5,read"}) {
        Server bad({swaps, "-i", image});
        Outcome run = gpunvme("check --data --scratch=0 vfio-user:" + bad.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find("wrong data"), std::string::npos) << swaps << run.output;
    }
    EXPECT_EQ(content(image), std::string(8 << 20, 'x'));
    std::remove(image.c_str());
    for (const char *wrong :
         {"--data --scratch=x /none", "--scratch=0 /none", "--data --cufile /none"})
        EXPECT_EQ(gpunvme(std::string("check ") + wrong).status, 2) << wrong;
    EXPECT_EQ(outcome_of(std::string(GPUNVME_SIM) + " --swaps-prps=0 /none").status, 2);
    EXPECT_EQ(outcome_of(std::string(GPUNVME_SIM) + " --swaps-prps=3,flush /none").status, 2);
}

TEST(Served, OneAfterTheOther)
{
    Server server({"--strict"}); // a mistake of the driver would be the server's exit status
    for (const char *command : {"identify", "regs", "check", "identify"}) {
        Outcome run = gpunvme(std::string(command) + " vfio-user:" + server.path);
        EXPECT_EQ(run.output.find("gpunvme: "), std::string::npos) << run.output;
    }
    EXPECT_TRUE(server.alive());
}

TEST(Served, TheDeadlineBoundsTheWaitForASilentServer)
{
    Server server;
    server.pause();
    for (const char *command : {"identify", "regs", "check"}) {
        Outcome run = gpunvme(std::string(command) + " --deadline=300 vfio-user:" + server.path);
        EXPECT_EQ(run.status, 1) << run.output;
        EXPECT_NE(run.output.find("within 300 ms"), std::string::npos) << run.output;
    }
    server.go_on();
    EXPECT_EQ(gpunvme("identify -t 0 vfio-user:" + server.path).status, 2);
}

struct Unusable {
    const char *name;
    std::vector<std::string> server;
    const char *said;
    const char *remedy; // of check
};

using UnusableTest = ::testing::TestWithParam<Unusable>;

// By identify, check and mkfs, before a write.
TEST_P(UnusableTest, IsRefusedWithTheReason)
{
    Server server(GetParam().server);
    std::string device = "vfio-user:" + server.path, said = GetParam().said;
    Outcome run = gpunvme("identify " + device);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_NE(run.output.find("namespace 1 cannot be used: "), std::string::npos) << run.output;
    EXPECT_NE(run.output.find(said), std::string::npos) << run.output;
    run = gpunvme("check " + device);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_NE(run.output.find(said), std::string::npos) << run.output;
    EXPECT_NE(run.output.find(GetParam().remedy), std::string::npos) << run.output;
    run = outcome_of(std::string(GPUNVME_MKFS) + " -q -f " + device);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_NE(run.output.find(said), std::string::npos) << run.output;
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
    EXPECT_EQ(server.stop(), 0) << "mistakes of the driver";
}

INSTANTIATE_TEST_SUITE_P(
    Namespaces, UnusableTest,
    ::testing::Values(
        Unusable{"zoned", {"--zoned", "--strict"}, "it is zoned", "nvme-create-ns(1)"},
        Unusable{"metadata", {"--metadata", "8", "--strict"}, "carry metadata", "nvme-format(1)"}),
    [](const auto &info) { return info.param.name; });

TEST(Served, AWriteProtectedNamespaceIsRefusedByMkfs)
{
    Server server({"--read-only", "--strict"});
    Outcome run = outcome_of(std::string(GPUNVME_MKFS) + " -q -f vfio-user:" + server.path);
    EXPECT_EQ(run.status, 1);
    EXPECT_NE(run.output.find("write protected"), std::string::npos) << run.output;
    EXPECT_EQ(server.stop(), 0) << "mistakes of the driver";
}

struct Wrong {
    const char *name;
    std::vector<std::string> server;
    const char *said;
};

using WrongServerTest = ::testing::TestWithParam<Wrong>;

TEST_P(WrongServerTest, IsOneLine)
{
    Server server(GetParam().server);
    Outcome run = gpunvme("identify vfio-user:" + server.path);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_EQ(run.output.find("gpunvme: vfio-user:" + server.path + ": "), 0u) << run.output;
    EXPECT_NE(run.output.find(GetParam().said), std::string::npos) << run.output;
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
}

INSTANTIATE_TEST_SUITE_P(
    Servers, WrongServerTest,
    ::testing::Values(
        Wrong{"no_doorbells", {"--no-mmap"}, "doorbells"},
        Wrong{"fatal", {"--fault", "fatal,op=identify"}, "does not start"},
        Wrong{"identify_fails", {"--fault", "status,op=identify,status=6"}, "Identify"}),
    [](const auto &info) { return info.param.name; });

TEST(Served, ABusyServerEndsInALine)
{
    Server server;
    Client first(server.path);
    Outcome run = gpunvme("identify vfio-user:" + server.path);
    EXPECT_EQ(run.status, 1) << run.output;
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
}

} // namespace
