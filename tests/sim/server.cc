/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/server.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/spawn.h"

Server::Server(std::vector<std::string> options, const std::string &socket) : path(socket)
{
    int out[2];
    char byte;
    if (path.empty()) {
        EXPECT_NE(mkdtemp(dir_.data()), nullptr);
        path = dir_ + "/socket";
    }
    options.insert(options.begin(), GPUNVME_SIM);
    options.push_back(path);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    pid = spawn_program(options, -1, out[1], STDERR_FILENO);
    close(out[1]);
    EXPECT_EQ(read(out[0], &byte, 1), 1) << "it does not listen";
    close(out[0]);
}

int Server::stop(int number)
{
    int status = 0;
    kill(pid, number);
    for (int i = 0; waitpid(pid, &status, WNOHANG) == 0; i++) {
        if (i == 60000) {
            ADD_FAILURE() << "the server does not end";
            kill(pid, SIGKILL);
        }
        usleep(1000);
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
