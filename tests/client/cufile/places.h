/* SPDX-License-Identifier: BSD-2-Clause */
// Files and memory of every kind that a transfer may meet.
#ifndef TESTS_CUFILE_PLACES_H
#define TESTS_CUFILE_PLACES_H

#include <gtest/gtest.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/client/cufile/fake_cuda.h"
#include "tests/e2e/mounted.h"
#include "tests/some_bytes.h"

namespace places
{

// The driver without a GPU, loaded as a CUDA program has it.
class Cuda
{
  public:
    Cuda();
    decltype(&cuMemAlloc_v2) alloc;
    decltype(&cuMemFree_v2) free;
    decltype(&cuMemcpyDtoH_v2) copy_out;
    decltype(&cuMemcpyHtoD_v2) copy_in;
    decltype(&cuStreamCreate) stream_create;
    decltype(&cuStreamDestroy_v2) stream_destroy;
    decltype(&cuStreamSynchronize) stream_synchronize;
    decltype(&cuLaunchHostFunc) launch;
    decltype(&fake_cuda_alloc_vmm) alloc_vmm;
    decltype(&fake_cuda_refuse_exports) refuse_exports;
    decltype(&fake_cuda_capture) capture;
    decltype(&fake_cuda_refuse_waits) refuse_waits;
    decltype(&fake_cuda_copies) copies;
};
const Cuda &cuda();

enum class Kind { kHost, kDevice, kVmm };

// Zeroed memory, with access from the host by copies.
class Memory
{
  public:
    Memory(Kind kind, size_t len);
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    char *at(size_t offset = 0) const { return addr_ + offset; }
    void put(size_t offset, const std::vector<char> &bytes);
    std::vector<char> get(size_t offset, size_t len) const;

  private:
    Kind kind_;
    size_t len_;
    char *addr_;
};

// A folder: of a mount of ours, of memory, or of the disk.
enum class Where { kMount, kTmpfs, kDisk };

class Folder
{
  public:
    // why: not empty when there is none here.
    explicit Folder(Where where, std::string *why);
    ~Folder();
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::string path(const std::string &name) const { return dir_ + "/" + name; }
    // True when the mount was not busy any more; always for other places.
    bool end();

  private:
    std::unique_ptr<Mounted> mount_;
    std::string dir_;
};

// Of the whole file, by pread(2); empty when it cannot be read.
std::vector<char> file_bytes(const std::string &path);
bool make_file(const std::string &path, const std::vector<char> &bytes);

// A test with a folder at GetParam().where; skipped where there is none.
template <class Param> class InFolder : public ::testing::TestWithParam<Param>
{
  protected:
    void SetUp() override
    {
        cuda();
        std::string why;
        folder_ = std::make_unique<Folder>(this->GetParam().where, &why);
        if (!why.empty())
            GTEST_SKIP() << why;
    }
    // SetUp(), and a file of these bytes. False: the test is skipped or has failed.
    bool begin(const std::vector<char> &bytes)
    {
        InFolder::SetUp();
        if (this->IsSkipped())
            return false;
        EXPECT_TRUE(make_file(folder_->path("file"), bytes));
        return !this->HasFailure();
    }
    std::unique_ptr<Folder> folder_;
};

} // namespace places

#endif
