/* SPDX-License-Identifier: BSD-2-Clause */
// Two controllers of one namespace: two block devices over one memory, and a clock of the test.
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "layout/mmp.h"
#include "tests/fusefs/core/fs_fixture.h"

namespace
{

constexpr uint64_t MS = 1000000, S = 1000 * MS;

std::vector<std::string> said;

void note(int, const char *line)
{
    said.emplace_back(line);
}

bool has_said(const std::string &what)
{
    for (auto &line : said) {
        if (line.find(what) != std::string::npos)
            return true;
    }
    return false;
}

bool always()
{
    return true;
}

// The device as another controller shows it.
struct View : TestDevice {
    View(MemDevice &m, uint64_t lock) : TestDevice(m.size(), m.lba_size()), memory(m)
    {
        dev()->info = m.dev()->info;
        dev()->info.shared = true;
        dev()->info.lock = lock;
    }
    int transfer(bd_io *io) override
    {
        writes += io->op != BD_READ && io->op != BD_FLUSH;
        return memory.dev()->ops->submit(memory.dev(), io, 1);
    }

    MemDevice &memory;
    std::atomic<unsigned> writes{0};
};

// A mount over a view.
struct Mount {
    Mount(MemDevice &m, uint64_t lock) : view(m, lock)
    {
        opts.no_thread = true;
        opts.log = note;
    }
    ~Mount()
    {
        if (fs)
            ffs_unmount(fs);
    }
    int mount()
    {
        reason text = {};
        int err = ffs_mount(view.dev(), &opts, &fs, &text);
        why = text.text;
        if (err)
            fs = nullptr;
        return err;
    }
    int unmount()
    {
        int err = ffs_unmount(fs);
        fs = nullptr;
        return err;
    }
    // Makes a file durable.
    int make(const std::string &name)
    {
        ffs_cred cred = {0, 0, 0};
        Inode root, file;
        int err = ffs_iget(fs, 1, root.out());
        if (!err)
            err = ffs_mknod(root, name.c_str(), S_IFREG | 0644, 0, &cred, file.out());
        return err ? err : ffs_sync(fs);
    }
    bool has(const std::string &name)
    {
        Inode root, file;
        return ffs_iget(fs, 1, root.out()) == 0 && ffs_lookup(root, name.c_str(), file.out()) == 0;
    }

    View view;
    ffs_mount_opts opts = {};
    struct ffs *fs = nullptr;
    std::string why;
};

class MmpMount : public FsTest
{
  protected:
    MmpMount() : FsTest(16u << 20) {}
    void SetUp() override
    {
        format();
        said.clear();
        for (Mount *m : {&a, &b}) {
            clock.arg = this;
            clock.now = [](void *arg) { return static_cast<MmpMount *>(arg)->now; };
            clock.wait = [](void *arg, uint64_t ns) {
                auto *self = static_cast<MmpMount *>(arg);
                self->now += ns;
                auto happens = std::exchange(self->meanwhile, [] {}); // which may wait too
                happens();
                self->meanwhile = happens;
                return self->interrupted ? -EINTR : 0;
            };
            m->opts.clock = &clock;
        }
    }
    void TearDown() override {}
    const lay_mmp *block()
    {
        return reinterpret_cast<const lay_mmp *>(device.bytes() + LAY_BLOCK_SIZE);
    }
    std::string bytes() { return {reinterpret_cast<char *>(device.bytes()), device.size()}; }
    // The mount is gone, and the device is as it left it.
    void crash(Mount &m)
    {
        std::string image = bytes();
        EXPECT_EQ(m.unmount(), 0);
        memcpy(device.bytes(), image.data(), image.size());
    }
    uint64_t takes_ms(const std::function<void()> &act)
    {
        uint64_t begin = now;
        act();
        return (now - begin) / MS;
    }

    uint64_t now = 1000 * S;
    bool interrupted = false;
    std::function<void()> meanwhile = [] {};
    ffs_clock clock{};
    Mount a{device, 1}, b{device, 2};
};

TEST_F(MmpMount, TheSecondWriterIsRefused)
{
    ASSERT_EQ(a.mount(), 0);
    unsigned n = 0;
    meanwhile = [&] { EXPECT_EQ(a.make("during" + std::to_string(n++)), 0); };
    EXPECT_EQ(b.mount(), -EBUSY);
    EXPECT_NE(b.why.find("in use by host "), std::string::npos) << b.why;
    EXPECT_EQ(b.view.writes, 0u);
    EXPECT_EQ(b.view.dev()->permit, nullptr);
    meanwhile = [] {};
    EXPECT_EQ(a.make("after"), 0);
    EXPECT_EQ(a.unmount(), 0);
    EXPECT_EQ(b.mount(), 0) << b.why;
    EXPECT_TRUE(b.has("after"));
}

TEST_F(MmpMount, AMountThatWasTakenOverStopsBeforeItsNextWrite)
{
    ASSERT_EQ(a.mount(), 0);
    ASSERT_EQ(a.make("before"), 0);
    ASSERT_EQ(b.mount(), 0) << b.why;
    EXPECT_TRUE(b.has("before"));
    ASSERT_EQ(b.make("new"), 0);
    std::string image = bytes();
    said.clear();
    EXPECT_NE(a.make("lost"), 0);
    EXPECT_TRUE(has_said("multi-mount protection: now in use by host "));
    EXPECT_EQ(said.size(), 1u);
    struct ffs_statfs s;
    ffs_statfs(a.fs, &s);
    EXPECT_TRUE(s.failed);
    EXPECT_NE(a.unmount(), 0);
    EXPECT_TRUE(bytes() == image) << "written to";
    EXPECT_EQ(b.make("later"), 0);
    EXPECT_EQ(b.unmount(), 0);
    EXPECT_EQ(fsck(), "");
}

TEST_F(MmpMount, ADeadWriterIsReplacedAfterAWait)
{
    ASSERT_EQ(a.mount(), 0);
    ASSERT_EQ(a.make("kept"), 0);
    crash(a);
    EXPECT_GE(takes_ms([&] { EXPECT_EQ(b.mount(), 0) << b.why; }), 3u * LAY_MMP_INTERVAL);
    EXPECT_TRUE(has_said("waiting up to"));
    EXPECT_TRUE(b.has("kept"));
    EXPECT_EQ(b.unmount(), 0);
    EXPECT_EQ(fsck(), "");
}

TEST_F(MmpMount, TheDeadWriterOfTheSameLockCostsNoWait)
{
    b.view.dev()->info.lock = a.view.dev()->info.lock;
    ASSERT_EQ(a.mount(), 0);
    crash(a);
    EXPECT_LT(takes_ms([&] { EXPECT_EQ(b.mount(), 0) << b.why; }), 1000u);
}

TEST_F(MmpMount, AnOrderlyUnmountCostsTheNextNoWait)
{
    ASSERT_EQ(a.mount(), 0);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_MOUNTED);
    EXPECT_EQ(a.unmount(), 0);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_FREE);
    EXPECT_LT(takes_ms([&] { EXPECT_EQ(b.mount(), 0) << b.why; }), 1000u);
}

TEST_F(MmpMount, AMountThatFailsLeavesTheBlockFree)
{
    for (le64 super : reinterpret_cast<const lay_label *>(device.bytes())->supers) // read later
        memset(device.bytes() + lay_get64(super) * LAY_BLOCK_SIZE, 0, LAY_BLOCK_SIZE);
    EXPECT_EQ(a.mount(), -EUCLEAN);
    EXPECT_GT(a.view.writes, 1u);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_FREE);
    EXPECT_EQ(a.view.dev()->permit, nullptr);
}

TEST_F(MmpMount, ADeviceOfOneHostIsNotTouched)
{
    lay_mmp before = *block();
    a.view.dev()->info.shared = false;
    ASSERT_EQ(a.mount(), 0);
    EXPECT_EQ(a.view.dev()->permit, nullptr);
    EXPECT_EQ(a.make("file"), 0);
    EXPECT_EQ(a.unmount(), 0);
    EXPECT_EQ(memcmp(&before, block(), sizeof(before)), 0);
    a.opts.mmp = FFS_MMP_ON;
    ASSERT_EQ(a.mount(), 0);
    EXPECT_NE(a.view.dev()->permit, nullptr);
}

// As a drive that was moved here while another host had it mounted.
TEST_F(MmpMount, ABlockInUseIsRespectedOnEveryDevice)
{
    ASSERT_EQ(a.mount(), 0);
    b.view.dev()->info.shared = false;
    meanwhile = [&] { EXPECT_EQ(a.make("file" + std::to_string(now)), 0); };
    EXPECT_EQ(b.mount(), -EBUSY);
}

TEST_F(MmpMount, WithoutProtectionNobodyLooks)
{
    a.opts.mmp = FFS_MMP_OFF;
    ASSERT_EQ(b.mount(), 0);
    lay_mmp before = *block();
    EXPECT_EQ(takes_ms([&] { EXPECT_EQ(a.mount(), 0); }), 0u);
    EXPECT_EQ(memcmp(&before, block(), sizeof(before)), 0);
}

TEST_F(MmpMount, AReadOnlyMountLooksAndWritesNothing)
{
    ASSERT_EQ(a.mount(), 0);
    ASSERT_EQ(a.make("file"), 0);
    std::string image = bytes();
    b.opts.read_only = true;
    EXPECT_EQ(takes_ms([&] { EXPECT_EQ(b.mount(), 0) << b.why; }), 0u);
    EXPECT_TRUE(has_said("in use by host "));
    EXPECT_TRUE(b.has("file"));
    EXPECT_EQ(b.unmount(), 0);
    EXPECT_TRUE(bytes() == image);
}

TEST_F(MmpMount, AnInterruptedWaitTakesNothing)
{
    ASSERT_EQ(a.mount(), 0);
    interrupted = true;
    EXPECT_EQ(b.mount(), -EINTR);
    EXPECT_EQ(b.view.writes, 0u);
    interrupted = false;
    EXPECT_EQ(a.make("file"), 0);
}

TEST_F(MmpMount, AToolSaysThatItIsOne)
{
    a.opts.tool = true;
    ASSERT_EQ(a.mount(), 0);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_CHECKED);
}

// Nobody else came while the device did not answer.
TEST_F(MmpMount, AfterALongSilenceTheBlockIsTakenAgain)
{
    ASSERT_EQ(a.mount(), 0);
    now += 600 * S;
    EXPECT_LT(takes_ms([&] { EXPECT_EQ(a.make("file"), 0); }), 1000u);
    EXPECT_EQ(a.unmount(), 0);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_FREE);
}

TEST_F(MmpMount, ADeviceThatTakesNoBlockStopsTheMount)
{
    ASSERT_EQ(a.mount(), 0);
    ASSERT_EQ(a.make("first"), 0); // so that the second needs no block of the device
    now += 600 * S;
    device.fail(MemDevice::FAIL_FROM, 0);
    EXPECT_NE(a.make("file"), 0);
    device.fail(MemDevice::FAIL_NONE, 0);
    EXPECT_TRUE(has_said("block 1 not written for 10 s"));
    EXPECT_NE(a.unmount(), 0);
}

// The same in real time, with the thread that renews the block.
class MmpThread : public MmpMount
{
  protected:
    void SetUp() override
    {
        MmpMount::SetUp();
        lay_mmp fast = *block();
        fast.interval = lay_put32(LAY_MMP_INTERVAL_MIN);
        lay_seal(&fast, 0);
        memcpy(device.bytes() + LAY_BLOCK_SIZE, &fast, sizeof(fast));
        a.opts.clock = b.opts.clock = nullptr;
    }
};

TEST_F(MmpThread, TheSecondWriterIsRefused)
{
    ASSERT_EQ(a.mount(), 0);
    EXPECT_EQ(b.mount(), -EBUSY);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    EXPECT_EQ(a.make("file"), 0) << "the block was not renewed";
    EXPECT_EQ(a.unmount(), 0);
    EXPECT_EQ(lay_get32(block()->state), LAY_MMP_FREE);
}

TEST_F(MmpThread, TheWaitCanBeInterrupted)
{
    ffs_mmp_opts opts = {};
    opts.interrupted = always;
    struct ffs_mmp *taken = nullptr;
    reason why = {};
    ASSERT_EQ(a.mount(), 0);
    EXPECT_EQ(ffs_mmp_take(b.view.dev(), &opts, &taken, &why), -EINTR);
}

} // namespace
