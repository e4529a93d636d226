/* SPDX-License-Identifier: BSD-2-Clause */
// Options of a simulated controller as text.
#include <cerrno>
#include <string>

#include <gtest/gtest.h>

#include "support/processors.h"

extern "C" {
#include "sim/sim.h"
}

namespace
{

TEST(SimOptions, SetFieldsOfTheConfiguration)
{
    sim_config cfg = {};
    struct reason why = {};

    cfg.ns[0].lba_size = 4096;
    cfg.mdts = 131072;
    ASSERT_EQ(sim_options_parse("threads:3:latency:20:bandwidth:100:gpu:off", &cfg, &why), 0)
        << why.text;
    EXPECT_EQ(cfg.threads, 3u);
    EXPECT_EQ(cfg.latency_ns, 20000u);
    EXPECT_EQ(cfg.bytes_per_sec, 100u << 20);
    EXPECT_TRUE(cfg.no_device_memory);
    EXPECT_EQ(cfg.ns[0].lba_size, 4096u) << "not named";
    EXPECT_EQ(cfg.mdts, 131072u) << "not named";
    ASSERT_EQ(sim_options_parse("lba:512:mdts:8192:gpu:on", &cfg, &why), 0) << why.text;
    EXPECT_EQ(cfg.ns[0].lba_size, 512u);
    EXPECT_EQ(cfg.mdts, 8192u);
    EXPECT_FALSE(cfg.no_device_memory);
}

TEST(SimOptions, ThreadsAreHalfOfTheProcessorsAtMostEight)
{
    const unsigned half = processors_allowed() / 2;

    for (const char *text : {static_cast<const char *>(nullptr), "", "lba:512"}) {
        sim_config cfg = {};
        struct reason why = {};
        ASSERT_EQ(sim_options_parse(text, &cfg, &why), 0) << why.text;
        EXPECT_EQ(cfg.threads, half < 1 ? 1 : half > 8 ? 8 : half);
        cfg.gpus = 16;
        ASSERT_EQ(sim_options_parse(text, &cfg, &why), 0) << why.text;
        EXPECT_EQ(cfg.threads, half < 1 ? 1 : half > 64 ? 64 : half);
    }
}

struct Bad {
    const char *text, *said;
};

using BadSimOptions = ::testing::TestWithParam<Bad>;

TEST_P(BadSimOptions, AreRefusedWithAMessage)
{
    sim_config cfg = {};
    struct reason why = {};

    EXPECT_EQ(sim_options_parse(GetParam().text, &cfg, &why), -EINVAL);
    EXPECT_NE(std::string(why.text).find(GetParam().said), std::string::npos) << why.text;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadSimOptions,
    ::testing::Values(Bad{"thread:8",
                          "thread: no such key, known are threads, lba, mdts, latency, bandwidth"},
                      Bad{":8", "no such key"}, Bad{"threads", "threads: must"},
                      Bad{"threads:", "threads: must"}, Bad{"threads:0", "from 1 to 64"},
                      Bad{"threads:65", "from 1 to 64"}, Bad{"threads:8x", "from 1 to 64"},
                      Bad{"threads:-1", "from 1 to 64"},
                      Bad{"threads:99999999999999999999999999", "from 1 to 64"},
                      Bad{"lba:513", "512 or 4096"}, Bad{"lba:512:mdts:4096", "mdts: must"},
                      Bad{"mdts:12288", "power of two"}, Bad{"latency:1000001", "microseconds"},
                      Bad{"bandwidth:0", "MiB per second"}, Bad{"gpu:maybe", "on or off"}));

} // namespace
