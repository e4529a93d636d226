/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_SPAWN_H
#define TESTS_SPAWN_H

#include <spawn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

/*
 * Starts a program with these descriptors as its standard ones, and returns its process, or -1. If
 * `in` is -1, the program reads from the caller's standard input. fork(2) would copy the page
 * tables of the caller, which are large in builds with sanitizers.
 */
inline pid_t spawn_program(const std::vector<std::string> &args, int in, int out, int err,
                           char *const *env = environ)
{
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;

    std::vector<char *> argv;
    for (const std::string &arg : args)
        argv.push_back(const_cast<char *>(arg.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_init(&actions);
    if (in >= 0)
        posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
    if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), env) != 0)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* Returns what was written to a file from memfd_create(2), and closes it. */
inline std::string take_text(int fd)
{
    off_t len = lseek(fd, 0, SEEK_END);

    std::string text(len > 0 ? static_cast<size_t>(len) : 0, 0);
    ssize_t n = pread(fd, text.data(), text.size(), 0);
    close(fd);
    return n == len ? text : "";
}

#endif
