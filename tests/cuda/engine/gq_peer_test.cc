/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests memory of another device in place of a GPU's (GQ_MEM_DEVICE). The CPU
 * executor loads and stores it, and the controller gets its handle, which is a
 * memfd here that the transport maps.
 */
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/vfio/device_mem.h"
#include "cuda/engine/gq_internal.h"
#include "tests/cuda/gq_file.h"

/*
 * The device that a memfd stands for leaves the machine after this many more
 * checks.
 */
static int stays_for = -1; /* -1: it stays */

extern "C" bool __wrap_device_mem_is_gone(int fd)
{
    EXPECT_GE(fd, 0);
    if (stays_for < 0)
        return false;
    if (stays_for == 0)
        return true;
    stays_for--;
    return false;
}

namespace
{

const Executor kCpu = {"Cpu32", GQ_EXECUTOR_CPU, 32};
const size_t kRoom = 256u << 10;

const nvme_transport_ops *original;
std::map<uint64_t, std::pair<void *, size_t>> mappings; /* mapped handles, by IOVA */
bool refuses;
unsigned late; /* so many calls of unmap() miss their deadline */

void *map_parts(const nvme_mem *mem)
{
    nvme_mem_part whole = {mem->fd, mem->fd_offset, mem->len};
    size_t bad;

    return device_mem_join(mem->parts ? mem->parts : &whole, mem->parts ? mem->n_parts : 1, &bad);
}

int map_handle(nvme_transport *t, const nvme_mem *mem, uint64_t *iova)
{
    nvme_mem host = *mem;

    if (mem->addr)
        return original->map(t, mem, iova);
    snprintf(t->device_memory, sizeof(t->device_memory), refuses ? "the handle is bad" : "a fake");
    if (refuses)
        return -EFAULT;
    host.addr = map_parts(mem);
    EXPECT_NE(host.addr, MAP_FAILED);
    host.fd = -1;
    host.parts = nullptr;
    host.n_parts = 0;
    int err = original->map(t, &host, iova);
    if (!err)
        mappings[*iova] = {host.addr, mem->len};
    return err;
}

int unmap_handle(nvme_transport *t, uint64_t iova)
{
    if (late && late--)
        return -ETIMEDOUT;
    int err = original->unmap(t, iova);
    auto found = mappings.find(iova);

    if (!err && found != mappings.end()) {
        munmap(found->second.first, found->second.second);
        mappings.erase(found);
    }
    return err;
}

const nvme_transport_ops *by_handles(const nvme_transport_ops *ops)
{
    static nvme_transport_ops table;

    original = ops;
    table = *ops;
    table.map = map_handle;
    table.unmap = unmap_handle;
    return &table;
}

/* The executor's calls, and the imports that it has released. */
const gq_exec_ops *executor;
gq_exec_ops counting;
unsigned released;

void count_release(gq_exec *x, gq_import *imp)
{
    released++;
    executor->release(x, imp);
}

int memory_file()
{
    int fd = memfd_create("device", MFD_CLOEXEC);

    EXPECT_EQ(ftruncate(fd, (off_t)kRoom), 0);
    return fd;
}

class Peer : public testing::Test
{
  protected:
    Peer()
    {
        refuses = false;
        stays_for = -1;
        late = released = 0;
        rig.with = by_handles;
        rig.is_drive = true;
        rig.opts.cpu_memories[0] = device;
        rig.opts.n_cpu_memories = 1;
    }

    ~Peer() override
    {
        if (buffer)
            gq_buffer_unregister(buffer);
        rig.close();
        EXPECT_TRUE(mappings.empty());
        close(device);
    }

    gq_info open()
    {
        gq_info info;

        rig.open();
        gq_engine_info(rig.e, &info);
        return info;
    }

    int add(int fd)
    {
        gq_mem mem = {};

        mem.kind = GQ_MEM_DEVICE;
        mem.fd = fd;
        mem.offset = 4096 + 5;
        mem.len = 100000;
        return gq_buffer_register(rig.e, &mem, &buffer);
    }

    Bytes memory(size_t offset, size_t len) const
    {
        Bytes out(len);

        EXPECT_EQ(pread(device, out.data(), len, (off_t)offset), (ssize_t)len);
        return out;
    }

    /*
     * Checks the contents of the buffer after a read, and whether it was
     * staged.
     */
    void expect_read(bool staged)
    {
        ASSERT_EQ(add(device), 0);
        ASSERT_EQ(rig.move(GQ_READ, buffer, 3, {{2000, 65536}}, 77, 50000), 0);
        EXPECT_EQ(memory(4096 + 5 + 3, 50000), rig.peek(2000 * 512 + 77, 50000));
        EXPECT_EQ(rig.result.staged, staged);
        EXPECT_EQ(rig.stats().staged_read > 0, staged);
    }

    /* Registers memory and ends it, which the controller does not do in time. */
    void add_and_end_late(unsigned times)
    {
        executor = rig.e->exec->ops;
        counting = *executor;
        counting.release = count_release;
        rig.e->exec->ops = &counting;
        ASSERT_EQ(add(device), 0);
        late = times;
        gq_buffer_unregister(buffer);
        buffer = nullptr;
    }

    int device = memory_file();
    Rig rig{kCpu};
    gq_buffer *buffer = nullptr;
};

TEST_F(Peer, IsReachedByItsHandle)
{
    gq_info info = open();

    EXPECT_EQ(info.tier, 2u);
    EXPECT_EQ(info.lease_tier, 2u) << "loads of the data follow what is on the way";
    EXPECT_TRUE(info.reaches);
    EXPECT_STREQ(info.tier_note, "the drive reaches GPU memory by VFIO (a fake)");
    expect_read(false);
    EXPECT_FALSE(mappings.empty());
    gq_buffer_unregister(buffer);
    buffer = nullptr;
    EXPECT_TRUE(mappings.empty());
}

TEST_F(Peer, IsReachedByTheHandlesOfItsSegments)
{
    gq_segment segments[] = {
        {device, -1, 65536, 8192}, {device, -1, 0, 16384}, {device, -1, 32768, 4096}};
    gq_mem mem = {};

    mem.kind = GQ_MEM_SEGMENTS;
    mem.fd = -1;
    mem.offset = 8192 - 100;
    mem.len = 18000;
    mem.segments = segments;
    mem.n_segments = 3;
    open();
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &buffer), 0);
    ASSERT_EQ(rig.move(GQ_READ, buffer, 1, {{2000, 65536}}, 77, 17990), 0);
    Bytes expected = rig.peek(2000 * 512 + 77, 17990);
    EXPECT_EQ(memory(65536 + 8192 - 99, 99), Bytes(expected.begin(), expected.begin() + 99));
    EXPECT_EQ(memory(0, 16384), Bytes(expected.begin() + 99, expected.begin() + 99 + 16384));
    EXPECT_EQ(memory(32768, 1507), Bytes(expected.begin() + 99 + 16384, expected.end()));
    EXPECT_FALSE(rig.result.staged);
}

TEST_F(Peer, SegmentsOfAnotherFormAreRefused)
{
    gq_segment segments[] = {{device, -1, 0, 8192}, {device, -1, 8192, 4096}};
    gq_mem good = {};

    good.kind = GQ_MEM_SEGMENTS;
    good.fd = -1;
    good.len = 12288;
    good.segments = segments;
    good.n_segments = 2;
    open();
    auto refused = [&](gq_mem mem) { return gq_buffer_register(rig.e, &mem, &buffer); };
    gq_mem mem = good;
    mem.offset = 1;
    EXPECT_EQ(refused(mem), -EFAULT) << "past the last segment";
    mem = good;
    mem.n_segments = 0;
    EXPECT_EQ(refused(mem), -EINVAL);
    mem.n_segments = GQ_SEGMENTS + 1;
    EXPECT_EQ(refused(mem), -EINVAL);
    segments[0].len = 100;
    EXPECT_EQ(refused(good), -EINVAL) << "not whole pages";
    segments[0].len = 1ull << 63;
    EXPECT_EQ(refused(good), -EINVAL) << "overflow";
    segments[0] = {0, -1, 0, 8192};
    EXPECT_EQ(refused(good), -EINVAL) << "not a device of the mount";
    buffer = nullptr;
}

TEST_F(Peer, IsWrittenFrom)
{
    Bytes data = random_bytes(8192, 3);

    open();
    ASSERT_EQ(add(device), 0);
    ASSERT_EQ(pwrite(device, data.data(), data.size(), 4096 + 5), (ssize_t)data.size());
    ASSERT_EQ(rig.move(GQ_WRITE, buffer, 0, {{3000, 65536}}, 512, data.size()), 0);
    EXPECT_EQ(rig.peek(3001 * 512, data.size()), data);
    EXPECT_EQ(rig.stats().staged_written, 0u);
}

TEST_F(Peer, IsStagedWhereItsHandleIsRefused)
{
    refuses = true;
    gq_info info = open();

    EXPECT_EQ(info.tier, 1u);
    EXPECT_FALSE(info.reaches);
    EXPECT_STREQ(info.tier_note,
                 "the controller cannot reach GPU memory: data is staged (the handle is bad)");
    expect_read(true);
}

TEST_F(Peer, IsRefusedOnRequestWhereItsHandleIs)
{
    rig.opts.p2p = GQ_P2P_REQUIRE;
    open();
    refuses = true;
    EXPECT_EQ(add(device), -ENOTSUP);
    refuses = false;
    expect_read(false);
}

TEST_F(Peer, IsStagedOnRequest)
{
    rig.opts.p2p = GQ_P2P_OFF;
    gq_info info = open();

    EXPECT_EQ(info.tier, 1u);
    EXPECT_STREQ(info.tier_note,
                 "the controller cannot reach GPU memory: data is staged (p2p=off)");
    expect_read(true);
}

TEST_F(Peer, IsRefusedForUnnamedDevices)
{
    int other = memory_file();

    open();
    EXPECT_EQ(add(other), -EINVAL);
    EXPECT_EQ(add(-1), -EINVAL);
    EXPECT_TRUE(mappings.empty());
    close(other);
}

TEST_F(Peer, IsRefusedAfterItsDeviceHasLeft)
{
    char byte = 0;
    uint32_t sum;
    uint64_t at = 0;

    open();
    ASSERT_EQ(add(device), 0);
    EXPECT_EQ(gq_engine_revoke_gone(rig.e), 0u);
    stays_for = 0;
    EXPECT_EQ(rig.move(GQ_READ, buffer, 0, {{2000, 65536}}, 0, 4096), -ESTALE);
    EXPECT_EQ(gq_buffer_put(buffer, 0, &byte, 1), -ESTALE);
    EXPECT_EQ(gq_buffer_get(buffer, 0, &byte, 1), -ESTALE);
    EXPECT_EQ(gq_buffer_sums(buffer, &at, 1, &sum), -ESTALE);
    EXPECT_EQ(gq_buffer_range_sums(buffer, 0, 1, &sum), -ESTALE);
    EXPECT_FALSE(mappings.empty());
    EXPECT_EQ(gq_engine_revoke_gone(rig.e), 1u);
    EXPECT_TRUE(mappings.empty()) << "another device may have its addresses";
    EXPECT_EQ(gq_engine_revoke_gone(rig.e), 0u);
}

TEST_F(Peer, AReadWhoseDeviceHasLeftMeanwhileFails)
{
    open();
    ASSERT_EQ(add(device), 0);
    stays_for = 1;
    EXPECT_EQ(rig.move(GQ_READ, buffer, 0, {{2000, 65536}}, 0, 4096), -ESTALE)
        << "its command has succeeded";
    EXPECT_EQ(rig.result.bytes, 0u);
}

TEST_F(Peer, AWriteWhoseDeviceHasLeftMeanwhileWritesNothing)
{
    open();
    ASSERT_EQ(add(device), 0);
    stays_for = 1;
    EXPECT_EQ(rig.move(GQ_WRITE, buffer, 0, {{3000, 65536}}, 0, 4096), -ESTALE);
    EXPECT_EQ(rig.result.bytes, 0u) << "the drive has written what no device has sent";
    EXPECT_EQ(rig.stats().bytes_written, 0u);
}

TEST_F(Peer, IsFreedAfterALateUnmap)
{
    open();
    add_and_end_late(2);
    gq_engine_free_late(rig.e);
    nvme_dma_unmap_late(rig.c); /* late again */
    gq_engine_free_late(rig.e);
    EXPECT_EQ(released, 0u) << "the controller may still write to it";
    EXPECT_FALSE(mappings.empty());
    nvme_dma_unmap_late(rig.c);
    EXPECT_TRUE(mappings.empty());
    gq_engine_free_late(rig.e);
    EXPECT_EQ(released, 1u);
    gq_engine_free_late(rig.e);
    EXPECT_EQ(released, 1u);
}

TEST_F(Peer, IsFreedAtTheEndIfItWasUnmappedUntilThen)
{
    open();
    add_and_end_late(1);
    nvme_dma_unmap_late(rig.c);
    EXPECT_EQ(released, 0u);
    rig.close();
    EXPECT_EQ(released, 1u);
}

} // namespace
