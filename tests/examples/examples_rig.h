/* SPDX-License-Identifier: BSD-2-Clause */
// A mount with one file of known content, for the examples to be run on.
#ifndef TESTS_EXAMPLES_EXAMPLES_RIG_H
#define TESTS_EXAMPLES_EXAMPLES_RIG_H

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/mounted.h"

class Examples : public ::testing::Test
{
  protected:
    // Mounts with these options and makes the file "data" of `bytes` pseudo-random bytes.
    void start(const std::string &options, size_t bytes);
    void TearDown() override;

    // Runs a program: its output, and an expectation that it ended with this status.
    std::string run(const std::vector<std::string> &argv, int status = 0);

    std::string data() const { return mount_->path("data"); }

    std::unique_ptr<Mounted> mount_;
    std::string content_; // of "data"
};

// The bytes of a file; empty when it cannot be read.
std::string bytes_of(const std::string &name);

#endif
