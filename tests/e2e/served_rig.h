/* SPDX-License-Identifier: BSD-2-Clause */
// gpunvme-sim as the drive of a mount, and files of known content on it.
#ifndef TESTS_E2E_SERVED_RIG_H
#define TESTS_E2E_SERVED_RIG_H

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/sim/server.h"

inline constexpr uint64_t kImage = 384u << 20;
inline constexpr uint64_t kFile = 16u << 20;

class Served : public MountingTest
{
  protected:
    void set_up() override
    {
        char name[] = "/dev/shm/gpunvme-served-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        dir_ = name;
        image_ = dir_ + "/image";
        device_ = "vfio-user:" + dir_ + "/socket";
        std::ofstream(image_).close();
        std::filesystem::resize_file(image_, kImage);
        serve();
        setenv("GPUNVME_TEST_DEVICE", device_.c_str(), 1);
    }
    void TearDown() override
    {
        unsetenv("GPUNVME_TEST_DEVICE");
        if (server_) {
            EXPECT_EQ(server_->stop(SIGTERM), 0) << "mistakes of the driver";
        }
        server_.reset();
        if (!dir_.empty())
            std::filesystem::remove_all(dir_);
    }
    // A server in place of the one before: with more options. strict: a mistake of the driver fails
    // the test.
    void serve(std::vector<std::string> options = {}, bool strict = true)
    {
        options.push_back("--no-prp-chains");
        if (strict)
            options.push_back("--strict");
        options.insert(options.end(), {"-i", image_});
        server_.reset();
        server_ = std::make_unique<Server>(options, dir_ + "/socket");
    }

    std::string dir_, image_, device_;
    std::unique_ptr<Server> server_;
};

// A new file of kFile bytes, content_fill() of the seed; open.
int write_content(const std::string &path, uint64_t seed);
::testing::AssertionResult has_content(const std::string &path, uint64_t seed);

#endif
