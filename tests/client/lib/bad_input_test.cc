/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the errors of libgpunvme for wrong arguments and for files outside of mounts.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/connection.h"
#include "tests/fd.h"

namespace
{

constexpr char kNone[] = "/nonexistent/file", kElsewhere[] = "/proc/self/exe";

using Messages = std::vector<std::pair<int, std::string>>;

void keep(void *context, int kind, const char *message)
{
    static_cast<Messages *>(context)->emplace_back(kind, message);
}

TEST(Log, ReceivesFailuresAndFallbacksAndIsSilentByDefault)
{
    Messages messages;
    std::vector<char> bytes(4096);
    struct connection *g;
    struct gpunvme_buffer *b;
    struct gpunvme_result result;
    Fd fd = open(kElsewhere, O_RDONLY);
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

TEST(Library, APathOutsideOfMountsIsENOTTYWithAMessage)
{
    struct connection *g = nullptr;
    EXPECT_EQ(connection_open(kElsewhere, &g), -ENOTTY);
    EXPECT_NE(std::string(gpunvme_error()).find(kElsewhere), std::string::npos);
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
    struct gpunvme_extent extent;
    Fd fd = open(kElsewhere, O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(gpunvme_extents(fd, 0, &extent, 1), -ENOTTY);
}

} // namespace
