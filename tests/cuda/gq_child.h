/* SPDX-License-Identifier: BSD-2-Clause */
/* A program beside the test's own, with a pipe each way. It ends when its stdin does. */
#ifndef TESTS_CUDA_GQ_CHILD_H
#define TESTS_CUDA_GQ_CHILD_H

#include <csignal>
#include <gtest/gtest.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

class Child
{
  public:
    /* fds become the child's 3, 4 and so on. */
    Child(const std::string &name, const std::vector<std::string> &arguments,
          const std::vector<int> &fds = {})
    {
        int to[2], from[2];
        std::string path = beside(name);
        std::vector<std::string> words = arguments;
        std::vector<char *> argv = {path.data()};
        posix_spawn_file_actions_t actions;

        for (std::string &word : words)
            argv.push_back(word.data());
        argv.push_back(nullptr);
        if (pipe(to) || pipe(from))
            throw std::runtime_error("pipe");
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], 0);
        posix_spawn_file_actions_adddup2(&actions, from[1], 1);
        posix_spawn_file_actions_addclose(&actions, to[1]);
        posix_spawn_file_actions_addclose(&actions, from[0]);
        /* Out of the way of the numbers they are to have. */
        for (size_t i = 0; i < fds.size(); i++)
            posix_spawn_file_actions_adddup2(&actions, fds[i], 300 + (int)i);
        for (size_t i = 0; i < fds.size(); i++)
            posix_spawn_file_actions_adddup2(&actions, 300 + (int)i, 3 + (int)i);
        int err = posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv.data(), environ);
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        in_ = to[1];
        out_ = from[0];
        if (err)
            throw std::runtime_error("posix_spawn");
    }

    ~Child()
    {
        close(in_);
        close(out_);
        waitpid(pid_, nullptr, 0);
    }

    std::vector<uint8_t> read(size_t n)
    {
        std::vector<uint8_t> out(n);
        size_t done = 0;
        ssize_t got = 1;

        while (done < n && got > 0) {
            got = ::read(out_, out.data() + done, n - done);
            done += got > 0 ? (size_t)got : 0;
        }
        out.resize(done);
        return out;
    }

    void go() { EXPECT_EQ(write(in_, "x", 1), 1); }

    void send(int signal) { EXPECT_EQ(::kill(pid_, signal), 0); }

    void kill() { send(SIGKILL); }

  private:
    static std::string beside(const std::string &name)
    {
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
        std::string path(self, n > 0 ? (size_t)n : 0);

        return path.substr(0, path.rfind('/') + 1) + name;
    }

    pid_t pid_ = 0;
    int in_ = -1, out_ = -1;
};

#endif
