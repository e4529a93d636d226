/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/examples/examples_rig.h"

#include <fstream>
#include <random>
#include <sstream>

void Examples::start(const std::string &options, size_t bytes)
{
    std::string why = why_no_mount();
    if (!why.empty())
        GTEST_SKIP() << why;
    mount_ = std::make_unique<Mounted>(256u << 20);
    ASSERT_TRUE(mount_->mount(options)) << mount_->log();
    std::mt19937 rng(17);
    content_.resize(bytes);
    for (char &c : content_)
        c = static_cast<char>(rng());
    std::ofstream(data()) << content_;
    ASSERT_EQ(bytes_of(data()), content_);
}

void Examples::TearDown()
{
    if (mount_ && mount_->pid() > 0) {
        EXPECT_TRUE(mount_->unmount()) << mount_->log();
    }
}

std::string Examples::run(const std::vector<std::string> &argv, int status)
{
    std::string output;
    EXPECT_EQ(run_program(argv, &output), status) << output;
    return output;
}

std::string bytes_of(const std::string &name)
{
    std::stringstream all;
    all << std::ifstream(name).rdbuf();
    return all.str();
}
