/* SPDX-License-Identifier: BSD-2-Clause */
// The library on a mount: a file with a hole, and buffers that the mount takes and does not take.
#ifndef TESTS_CLIENT_LIB_HOLE_RIG_H
#define TESTS_CLIENT_LIB_HOLE_RIG_H

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/e2e/mounted.h"
#include "tests/some_bytes.h"

namespace hole_rig
{

constexpr size_t kFile = (3u << 20) + 4321, kHole = 1u << 20, kHoleLength = 300000;
constexpr size_t kRoom = 4u << 20;

// Way::options are those of the mount.
template <class Way> class HoleRig : public MountedTest, public ::testing::WithParamInterface<Way>
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount(this->GetParam().options, 128u << 20));
        ASSERT_EQ(connection_open(mounted_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(buffer_alloc(g_, kRoom, &shared_), 0) << gpunvme_error();
        ASSERT_EQ(buffer_register(g_, own_.data(), own_.size(), true, &local_), 0)
            << gpunvme_error();
        make_file();
    }

    void let_go() override { connection_close(g_); }

    struct connection *g_ = nullptr;
    struct gpunvme_buffer *shared_ = nullptr, *local_ = nullptr;
    std::vector<char> file_ = some_bytes(kFile, 2), own_ = std::vector<char>(kRoom);

  private:
    void make_file()
    {
        std::fill_n(file_.begin() + kHole, kHoleLength, 0);
        fd_ = open(mounted_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd_, 0);
        size_t rest = kHole + kHoleLength;
        ASSERT_EQ(pwrite(fd_, file_.data(), kHole, 0), static_cast<ssize_t>(kHole));
        ASSERT_EQ(pwrite(fd_, &file_[rest], kFile - rest, static_cast<off_t>(rest)),
                  static_cast<ssize_t>(kFile - rest));
    }
};

} // namespace hole_rig

#endif
