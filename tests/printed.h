/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_PRINTED_H
#define TESTS_PRINTED_H

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

/*
 * Calls run() and returns what it printed on standard output. GoogleTest's CaptureStdout() makes a
 * file for each call, which takes as long as a check of a small image.
 */
template <typename Run> std::string printed_by(const Run &run)
{
    std::fflush(stdout);
    int terminal = dup(STDOUT_FILENO), memory = memfd_create("stdout", MFD_CLOEXEC);
    EXPECT_TRUE(terminal >= 0 && memory >= 0 && dup2(memory, STDOUT_FILENO) == STDOUT_FILENO);
    run();
    std::fflush(stdout);
    EXPECT_EQ(dup2(terminal, STDOUT_FILENO), STDOUT_FILENO);
    std::string text(static_cast<size_t>(lseek(memory, 0, SEEK_END)), 0);
    EXPECT_EQ(pread(memory, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    close(memory);
    close(terminal);
    return text;
}

#endif
