/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/client/cufile/places.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace places
{

namespace
{

constexpr size_t kSegment = 64 << 10;

template <typename F> void find(void *library, const char *name, F *out)
{
    *out = reinterpret_cast<F>(dlsym(library, name));
    if (!*out)
        abort();
}

} // namespace

Cuda::Cuda()
{
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    find(library, "cuMemAlloc_v2", &alloc);
    find(library, "cuMemFree_v2", &free);
    find(library, "cuMemcpyDtoH_v2", &copy_out);
    find(library, "cuMemcpyHtoD_v2", &copy_in);
    find(library, "cuStreamCreate", &stream_create);
    find(library, "cuStreamDestroy_v2", &stream_destroy);
    find(library, "cuStreamSynchronize", &stream_synchronize);
    find(library, "cuLaunchHostFunc", &launch);
    find(library, "fake_cuda_alloc_vmm", &alloc_vmm);
    find(library, "fake_cuda_refuse_exports", &refuse_exports);
    find(library, "fake_cuda_capture", &capture);
    find(library, "fake_cuda_refuse_waits", &refuse_waits);
    find(library, "fake_cuda_copies", &copies);
}

const Cuda &cuda()
{
    static const Cuda loaded;
    return loaded;
}

Memory::Memory(Kind kind, size_t len) : kind_(kind), len_(len)
{
    unsigned long long at = 0;
    if (kind == Kind::kHost)
        at = reinterpret_cast<uintptr_t>(calloc(len, 1));
    else if (kind == Kind::kDevice)
        cuda().alloc(&at, len);
    else
        cuda().alloc_vmm(&at, kSegment, (len + kSegment - 1) / kSegment);
    addr_ = reinterpret_cast<char *>(at);
}

Memory::~Memory()
{
    auto at = reinterpret_cast<uintptr_t>(addr_);
    if (kind_ == Kind::kHost)
        ::free(addr_);
    else if (kind_ == Kind::kDevice)
        cuda().free(at);
    for (size_t i = 0; kind_ == Kind::kVmm && i < len_; i += kSegment)
        cuda().free(at + i);
}

void Memory::put(size_t offset, const std::vector<char> &bytes)
{
    cuda().copy_in(reinterpret_cast<uintptr_t>(addr_) + offset, bytes.data(), bytes.size());
}

std::vector<char> Memory::get(size_t offset, size_t len) const
{
    std::vector<char> bytes(len);
    cuda().copy_out(bytes.data(), reinterpret_cast<uintptr_t>(addr_) + offset, len);
    return bytes;
}

Folder::Folder(Where where, std::string *why)
{
    if (where == Where::kMount) {
        *why = why_no_mount();
        if (!why->empty())
            return;
        mount_ = std::make_unique<Mounted>(128u << 20);
        if (!mount_->mount("executor=cpu"))
            *why = "the mount failed: " + mount_->log();
        dir_ = mount_->mountpoint();
        return;
    }
    std::string name = where == Where::kTmpfs ? "/dev/shm" : "/var/tmp";
    name += "/gpunvme-cufile-XXXXXX";
    if (!mkdtemp(&name[0]))
        *why = name + ": " + strerror(errno);
    dir_ = name;
}

bool Folder::end()
{
    bool ended = !mount_ || mount_->unmount();
    mount_.reset();
    return ended;
}

Folder::~Folder()
{
    std::error_code ignored;
    if (!mount_ && dir_.find("gpunvme-cufile") != std::string::npos)
        std::filesystem::remove_all(dir_, ignored);
}

std::vector<char> file_bytes(const std::string &path)
{
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    std::vector<char> bytes(in ? static_cast<size_t>(in.tellg()) : 0);
    in.seekg(0);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(in.good()) << path;
    return bytes;
}

bool make_file(const std::string &path, const std::vector<char> &bytes)
{
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return out.good();
}

} // namespace places
