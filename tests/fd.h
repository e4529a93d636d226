/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_FD_H
#define TESTS_FD_H

#include <unistd.h>

// Closes a file descriptor at the end of its scope.
class Fd
{
  public:
    Fd(int fd) : fd_(fd) {}
    ~Fd()
    {
        if (fd_ >= 0)
            close(fd_);
    }
    Fd(const Fd &) = delete;
    Fd &operator=(const Fd &) = delete;
    operator int() const { return fd_; }

  private:
    int fd_;
};

#endif
