/* SPDX-License-Identifier: BSD-2-Clause */
// Runs gpunvme-sim as a process.
#ifndef TESTS_SIM_SERVER_H
#define TESTS_SIM_SERVER_H

#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

class Server
{
  public:
    // Returns when the server listens at the socket, which by default is in a folder of its own.
    explicit Server(std::vector<std::string> options = {}, const std::string &socket = "");
    ~Server()
    {
        if (pid > 0)
            stop();
        std::filesystem::remove_all(dir_);
    }
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    // Returns the exit status, or -1 if a signal ended the server.
    int stop(int number = SIGTERM);
    // Returns when no thread of the server runs: SIGSTOP is asynchronous.
    void pause() const
    {
        siginfo_t info = {};
        kill(pid, SIGSTOP);
        EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED), 0);
    }
    void go_on() const { kill(pid, SIGCONT); }

    std::string path;
    pid_t pid;

  private:
    std::string dir_ = ::testing::TempDir() + "gpunvme-sim-XXXXXX";
};

#endif
