/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads into GPU memory that consists of several allocations of VMM. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "blockdev/vfio/device_mem.h"
#include "tests/cuda/gq_rig.h"

namespace
{

template <typename F> F driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *address = library ? dlsym(library, name) : nullptr;

    EXPECT_NE(address, nullptr) << name;
    return reinterpret_cast<F>(address);
}

#define DRIVER(name) driver<decltype(&name)>(#name)

/* Maps allocations one after another into one address range of this process. */
class Vmm
{
  public:
    explicit Vmm(size_t count)
    {
        CUmemAllocationProp prop = {};
        CUmemAccessDesc access = {};
        CUdeviceptr at;

        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        access.location = prop.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
        EXPECT_EQ(DRIVER(cuMemGetAllocationGranularity)(&segment, &prop,
                                                        CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuMemAddressReserve)(&at, segment * count, 0, 0, 0), CUDA_SUCCESS);
        for (size_t i = 0; i < count; i++)
            add(prop, at + i * segment);
        EXPECT_EQ(DRIVER(cuMemSetAccess)(at, segment * count, &access, 1), CUDA_SUCCESS);
        base = at;
    }

    ~Vmm()
    {
        for (const gq_segment &s : segments)
            close(s.fd);
        unmap();
        DRIVER(cuMemAddressFree)(base, segments.size() * segment);
    }

    /* Ends the owner's mapping of the memory. */
    void unmap()
    {
        for (size_t i = 0; mapped && i < segments.size(); i++)
            EXPECT_EQ(DRIVER(cuMemUnmap)(base + i * segment, segment), CUDA_SUCCESS);
        mapped = false;
    }

    gq_mem memory(uint64_t offset, uint64_t len) const
    {
        gq_mem m = {};

        m.kind = GQ_MEM_SEGMENTS;
        m.fd = -1;
        m.offset = offset;
        m.len = len;
        m.segments = segments.data();
        m.n_segments = (unsigned)segments.size();
        return m;
    }

    Bytes bytes(uint64_t offset, size_t len) const
    {
        Bytes out(len);

        EXPECT_EQ(cudaMemcpy(out.data(), (void *)(base + offset), len, cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return out;
    }

    CUdeviceptr address(size_t i) const { return base + i * segment; }

    size_t segment = 0;
    std::vector<gq_segment> segments;

  private:
    void add(const CUmemAllocationProp &prop, CUdeviceptr at)
    {
        CUmemGenericAllocationHandle handle;
        int fd = -1;

        EXPECT_EQ(DRIVER(cuMemCreate)(&handle, segment, &prop, 0), CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuMemMap)(at, segment, 0, handle, 0), CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuMemExportToShareableHandle)(&fd, handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);
        segments.push_back({fd, -1, 0, segment});
    }

    CUdeviceptr base = 0;
    bool mapped = true;
};

class GqVmm : public GqTest
{
};

/* The daemon takes no other device files from clients (fdsocket.c). */
TEST_P(GqVmm, HasHandlesThatAreDescriptorsOfTheControlDevice)
{
    Vmm vmm(1);
    struct stat st = {};

    ASSERT_EQ(fstat(vmm.segments[0].fd, &st), 0);
    EXPECT_TRUE(S_ISCHR(st.st_mode));
    EXPECT_EQ(major(st.st_rdev), 195u);
    EXPECT_EQ(minor(st.st_rdev), 255u);
}

TEST_P(GqVmm, FillsABufferThatCrossesSegments)
{
    OpenRig rig(GetParam(), 512);
    gq_buffer *b = nullptr;

    Vmm vmm(3);
    gq_mem mem = vmm.memory(vmm.segment - 70001, vmm.segment + 140000);
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{16, 1u << 20}}, 3, 140000), 0);
    EXPECT_TRUE(vmm.bytes(vmm.segment - 70001, 140000) == rig.peek(16 * 512 + 3, 140000));
    EXPECT_EQ(rig.move(GQ_READ, b, vmm.segment + 100, {{16, 1u << 20}}, 3, 139000), 0);
    EXPECT_TRUE(vmm.bytes(2 * vmm.segment - 70001 + 100, 139000) == rig.peek(16 * 512 + 3, 139000));
    gq_buffer_unregister(b);
}

TEST_P(GqVmm, KeepsTheMemoryOfAnOwnerThatHasUnmappedIt)
{
    OpenRig rig(GetParam(), 4096);
    gq_buffer *b = nullptr;

    Vmm vmm(2);
    gq_mem mem = vmm.memory(0, 2 * vmm.segment);
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    vmm.unmap();
    EXPECT_EQ(rig.move(GQ_READ, b, vmm.segment - 4096, {{16, 1u << 20}}, 0, 65536), 0);
    Bytes got(65536);
    EXPECT_EQ(gq_buffer_get(b, vmm.segment - 4096, got.data(), got.size()), 0);
    EXPECT_TRUE(got == rig.peek(16 * 4096, 65536));
    gq_buffer_unregister(b);
}

TEST_P(GqVmm, RefusesHandlesOfAnotherForm)
{
    OpenRig rig(GetParam(), 512);
    gq_buffer *b = nullptr;

    Vmm vmm(2);
    gq_mem mem = vmm.memory(0, 4096);
    vmm.segments[0].len *= 2;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "longer than the allocation";
    vmm.segments[0].len /= 2;
    vmm.segments[0].offset = 4096;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "not at its start";
    vmm.segments[0].offset = 0;
    int handle = vmm.segments[1].fd;
    vmm.segments[1].fd = 0;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "no handle";
    vmm.segments[1].fd = handle;
}

/* Each segment has a dma-buf, which drivers before 610.43 do not map. */
TEST_P(GqVmm, IsMappedForADriveOrTheDriverIsNamed)
{
    Vmm vmm(2);
    std::vector<nvme_mem_part> parts;
    nvme_mem mem = {};
    device_mem *mapped = nullptr;
    struct reason said = {};

    for (size_t i = 0; i < 2; i++) {
        int fd = -1;
        ASSERT_EQ(DRIVER(cuMemGetHandleForAddressRange)(&fd, vmm.address(i), vmm.segment,
                                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                  CUDA_SUCCESS);
        EXPECT_TRUE(device_mem_is_handle(fd));
        parts.push_back({fd, 0, vmm.segment});
    }
    mem.fd = -1;
    mem.len = 2 * vmm.segment;
    mem.parts = parts.data();
    mem.n_parts = parts.size();
    int err = device_mem_map(&mem, 1 << 20, &mapped, &said);
    printf("the driver: %d, %s\n", err, said.text);
    if (err)
        EXPECT_STREQ(said.text,
                     "dma-buf: the driver does not map it (error 524); NVIDIA's does from "
                     "610.43 on");
    else
        device_mem_unmap(mapped);
    for (const nvme_mem_part &part : parts)
        close(part.fd);
}

INSTANTIATE_TEST_SUITE_P(Executors, GqVmm, testing::Values(kExecutors[2]),
                         [](const testing::TestParamInfo<Executor> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
