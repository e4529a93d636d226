/* SPDX-License-Identifier: BSD-2-Clause */
// Device strings: their devices, and the errors for strings without one.
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/device.h"

namespace
{

struct Good {
    const char *text;
    bd_kind kind;
    const char *path;
    uint32_t nsid;
    bool nsid_given;
};

void PrintTo(const Good &g, std::ostream *os)
{
    *os << g.text;
}

using GoodName = ::testing::TestWithParam<Good>;

TEST_P(GoodName, IsUnderstood)
{
    const Good &g = GetParam();
    bd_name name;
    struct reason why = {};
    ASSERT_EQ(bd_name_parse(g.text, &name, &why), 0) << why.text;
    EXPECT_EQ(name.kind, g.kind);
    EXPECT_STREQ(name.path, g.path);
    EXPECT_EQ(name.nsid, g.nsid);
    EXPECT_EQ(name.nsid_given, g.nsid_given);
    EXPECT_EQ(bd_name_is_ctrlr(&name), g.kind == BD_KIND_VFIO || g.kind == BD_KIND_VFIO_USER);
}

INSTANTIATE_TEST_SUITE_P(
    Names, GoodName,
    ::testing::Values(
        Good{"disk.img", BD_KIND_FILE, "disk.img", 1, false},
        Good{"/dev/nvme0n1", BD_KIND_FILE, "/dev/nvme0n1", 1, false},
        Good{"a:b", BD_KIND_FILE, "a:b", 1, false},
        Good{"./vfio:x", BD_KIND_FILE, "./vfio:x", 1, false},
        Good{"vfio:0000:c1:00.0", BD_KIND_VFIO, "0000:c1:00.0", 1, false},
        Good{"vfio:C1:00.0", BD_KIND_VFIO, "0000:c1:00.0", 1, false},
        Good{"vfio:c1:00.0/1", BD_KIND_VFIO, "0000:c1:00.0", 1, true},
        Good{"vfio:0001:c1:1f.7/12", BD_KIND_VFIO, "0001:c1:1f.7", 12, true},
        Good{"vfio:c1:00.0/4294967294", BD_KIND_VFIO, "0000:c1:00.0", 4294967294, true},
        Good{"vfio-user:/run/nvme/cntrl", BD_KIND_VFIO_USER, "/run/nvme/cntrl", 1, false}));

struct Bad {
    const char *text;
    const char *said;
};

void PrintTo(const Bad &b, std::ostream *os)
{
    *os << b.text;
}

using BadName = ::testing::TestWithParam<Bad>;

TEST_P(BadName, IsRefusedWithAMessage)
{
    bd_name name;
    struct reason why = {};
    EXPECT_EQ(bd_name_parse(GetParam().text, &name, &why), -EINVAL);
    EXPECT_NE(std::string(why.text).find(GetParam().said), std::string::npos) << why.text;
    EXPECT_EQ(std::string(why.text).find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Names, BadName,
    ::testing::Values(Bad{"", "nothing is named"}, Bad{"vfio-user:", "vfio-user:SOCKET"},
                      Bad{"vfio:", "no PCI address"}, Bad{"vfio:nvme0", "no PCI address"},
                      Bad{"vfio:c1:00.0 ", "no PCI address"},
                      Bad{"vfio:0000:c1:00.0000000000000000000000000000", "no PCI address"},
                      Bad{"vfio:/1", "no PCI address"}, Bad{"vfio:c1:00.0/", "no namespace id"},
                      Bad{"vfio:c1:00.0/0", "no namespace id"},
                      Bad{"vfio:c1:00.0/01", "no namespace id"},
                      Bad{"vfio:c1:00.0/-1", "no namespace id"},
                      Bad{"vfio:c1:00.0/1x", "no namespace id"},
                      Bad{"vfio:c1:00.0/4294967295", "no namespace id"},
                      Bad{"vfio:c1:00.0/99999999999999999999", "no namespace id"},
                      Bad{"0000:C1:00.0", "write vfio:0000:c1:00.0"}));

TEST(Name, LongerThanAPathIsRefused)
{
    bd_name name;
    struct reason why = {};
    for (const char *prefix : {"", "vfio-user:"}) {
        std::string text = prefix + std::string(PATH_MAX, 'x');
        EXPECT_EQ(bd_name_parse(text.c_str(), &name, &why), -EINVAL);
        EXPECT_STREQ(why.text, "longer than a path can be");
    }
}

class OpenTest : public ::testing::Test
{
  protected:
    OpenTest()
    {
        int fd = mkstemp(path_);
        EXPECT_EQ(ftruncate(fd, 1 << 20), 0);
        close(fd);
    }
    ~OpenTest() override { unlink(path_); }
    int open(const std::string &text, uint32_t flags = 0)
    {
        bd_name name;
        int err = bd_name_parse(text.c_str(), &name, &why_);
        return err ? err : bd_open(&name, flags, 0, &defaults, &opened_, &why_);
    }

    char path_[32] = "/tmp/gpunvme-device-XXXXXX";
    reason why_ = {};
    const bd_open_opts defaults = {};
    bd_opened opened_ = {};
};

TEST_F(OpenTest, FilesAreOpenedWithoutAController)
{
    ASSERT_EQ(open(path_), 0) << why_.text;
    EXPECT_EQ(opened_.ctrlr, nullptr);
    EXPECT_EQ(opened_.dev->info.bytes, 1u << 20);
    bd_opened_close(&opened_);
    EXPECT_EQ(opened_.dev, nullptr);
}

TEST_F(OpenTest, FailuresToOpenAreExplained)
{
    EXPECT_EQ(open(std::string(path_) + ".none"), -ENOENT);
    EXPECT_STREQ(why_.text, "No such file or directory");
    EXPECT_EQ(open("/dev/null"), -ENOTBLK);
    EXPECT_STREQ(why_.text, "neither a regular file nor a block device");
    bd_dev *dev;
    ASSERT_EQ(bd_file_open(path_, BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(open(path_, BD_OPEN_EXCLUSIVE), -EBUSY);
    EXPECT_NE(std::string(why_.text).find("in use"), std::string::npos);
    bd_close(dev);
    EXPECT_EQ(opened_.dev, nullptr);
    bd_opened_close(&opened_);
}

// An address that no machine has, and a socket without a listener.
TEST_F(OpenTest, MissingControllersAreExplained)
{
    for (const char *text : {"vfio:ffff:ff:1f.7", "vfio-user:/nowhere/socket"}) {
        why_.text[0] = 0;
        EXPECT_LT(open(text), 0);
        EXPECT_GT(strlen(why_.text), 0u) << text;
        EXPECT_EQ(opened_.dev, nullptr);
        EXPECT_EQ(opened_.ctrlr, nullptr);
    }
}

// The owner enters its sandbox in this callback.
TEST_F(OpenTest, CallsTheOwnerBeforeItReadsAServer)
{
    struct Owner {
        int server = -1, client = -1;
        ssize_t received = -1;
    } owner;
    sockaddr_un address = {};
    std::string path = std::string(path_) + "-socket";
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    owner.server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(owner.server, reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(owner.server, 1), 0);
    bd_open_opts opts = {};
    opts.arg = &owner;
    opts.opened = [](void *arg, struct reason *why) {
        auto *o = static_cast<Owner *>(arg);
        char byte;
        o->client = accept4(o->server, nullptr, nullptr, SOCK_CLOEXEC);
        o->received = recv(o->client, &byte, 1, MSG_DONTWAIT);
        return reason_set(why, -ENOTTY, "not wanted");
    };
    bd_name name;
    nvme_transport *t = nullptr;
    ASSERT_EQ(bd_name_parse(("vfio-user:" + path).c_str(), &name, &why_), 0);
    EXPECT_EQ(bd_open_transport(&name, &opts, &t, &why_), -ENOTTY);
    EXPECT_STREQ(why_.text, "not wanted");
    EXPECT_GE(owner.client, 0) << "connected";
    EXPECT_EQ(owner.received, -1) << "no message yet";
    char byte;
    EXPECT_EQ(recv(owner.client, &byte, 1, MSG_DONTWAIT), 0) << "closed";
    for (int fd : {owner.client, owner.server})
        close(fd);
    unlink(path.c_str());
}

TEST_F(OpenTest, CallsTheOwnerOfAFile)
{
    bd_open_opts opts = {};
    opts.opened = [](void *, struct reason *why) { return reason_set(why, -ENOTTY, "not wanted"); };
    bd_name name;
    ASSERT_EQ(bd_name_parse(path_, &name, &why_), 0);
    EXPECT_EQ(bd_open(&name, BD_OPEN_READ_ONLY, 0, &opts, &opened_, &why_), -ENOTTY);
    EXPECT_STREQ(why_.text, "not wanted");
    EXPECT_EQ(opened_.dev, nullptr);
}

TEST_F(OpenTest, AFileIsNoTransport)
{
    bd_name name;
    nvme_transport *t = nullptr;
    ASSERT_EQ(bd_name_parse(path_, &name, &why_), 0);
    EXPECT_EQ(bd_open_transport(&name, &defaults, &t, &why_), -EINVAL);
}

// --- What bd_submit() refuses before a device sees it --------------------------------------------

struct Counting {
    bd_dev dev{};
    size_t submitted = 0;
};

int count_submit(bd_dev *dev, bd_io *, size_t n)
{
    reinterpret_cast<Counting *>(dev)->submitted += n;
    return 0;
}

class Bdev : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ops.submit = count_submit;
        c.dev.ops = &ops;
        c.dev.info.bytes = 1 << 20;
        c.dev.info.lba_size = 4096;
    }

    bd_ops ops{};
    Counting c;
    std::vector<char> buf = std::vector<char>(8192);
};

TEST_F(Bdev, AcceptsTheWholeDevice)
{
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 1 << 20), 0);
    EXPECT_EQ(bd_read(&c.dev, (1 << 20) - 4096, buf.data(), 4096), 0);
    EXPECT_EQ(c.submitted, 2u);
}

TEST_F(Bdev, RefusesUnalignedTransfers)
{
    EXPECT_EQ(bd_read(&c.dev, 512, buf.data(), 4096), -EINVAL);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4095), -EINVAL);
    EXPECT_EQ(bd_write(&c.dev, 4097, buf.data(), 4096, 0), -EINVAL);
    EXPECT_EQ(bd_discard(&c.dev, 0, 1), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesTransfersPastTheEnd)
{
    EXPECT_EQ(bd_read(&c.dev, 1 << 20, buf.data(), 4096), -EINVAL);
    EXPECT_EQ(bd_read(&c.dev, (1 << 20) - 4096, buf.data(), 8192), -EINVAL);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, (1 << 20) + 4096), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesRangesThatOverflow)
{
    EXPECT_EQ(bd_discard(&c.dev, UINT64_MAX - 4095, 8192), -EINVAL);
    EXPECT_EQ(bd_discard(&c.dev, 4096, UINT64_MAX - 4095), -EINVAL);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 1ull << 63, 1ull << 63), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, RefusesUnknownFlags)
{
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 4), -EINVAL);
    bd_io io{};
    io.op = BD_FLUSH;
    io.flags = BD_FUA;
    EXPECT_EQ(bd_submit(&c.dev, &io, 1), -EINVAL);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, ReadOnlyDeviceAcceptsOnlyReads)
{
    c.dev.info.read_only = true;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 0), -EROFS);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 4096), -EROFS);
    EXPECT_EQ(bd_discard(&c.dev, 0, 4096), -EROFS);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4096), 0);
    EXPECT_EQ(bd_flush(&c.dev), 0);
}

/* A permit that counts how often it is asked. */
struct Permit {
    bd_permit base{};
    int answer = 0;
    unsigned asked = 0;
};

int permit_answer(bd_permit *permit, bool wait)
{
    Permit *g = reinterpret_cast<Permit *>(permit);

    EXPECT_TRUE(wait);
    g->asked++;
    return g->answer;
}

TEST_F(Bdev, ThePermitStopsWhatChangesTheDevice)
{
    Permit g;
    g.base.may_write = permit_answer;
    c.dev.permit = &g.base;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, 0), 0);
    EXPECT_EQ(g.asked, 1u);
    EXPECT_EQ(c.submitted, 1u);
    g.answer = -EIO;
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, BD_FUA), -EIO);
    EXPECT_EQ(bd_write_zeroes(&c.dev, 0, 4096), -EIO);
    EXPECT_EQ(bd_discard(&c.dev, 0, 4096), -EIO);
    EXPECT_EQ(c.submitted, 1u);
    EXPECT_EQ(bd_read(&c.dev, 0, buf.data(), 4096), 0);
    EXPECT_EQ(bd_flush(&c.dev), 0);
    EXPECT_EQ(bd_write(&c.dev, 0, buf.data(), 4096, BD_ALWAYS), 0);
    EXPECT_EQ(c.submitted, 4u);
    EXPECT_EQ(g.asked, 4u);
}

TEST_F(Bdev, ThePermitStopsTheWholeBatch)
{
    Permit g;
    g.base.may_write = permit_answer;
    g.answer = -EIO;
    c.dev.permit = &g.base;
    bd_io ios[2]{};
    ios[0].op = BD_READ;
    ios[1].op = BD_WRITE;
    for (auto &io : ios) {
        io.len = 4096;
        io.buf = buf.data();
    }
    EXPECT_EQ(bd_submit(&c.dev, ios, 2), -EIO);
    EXPECT_EQ(ios[0].error, -ECANCELED);
    EXPECT_EQ(ios[1].error, -EIO);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, LocksAreOneOnlyIfAllOfThemIsEqual)
{
    uint64_t id = bd_lock_id(BD_LOCK_FILE, 1, 2);
    EXPECT_NE(id, 0u);
    EXPECT_EQ(bd_lock_id(BD_LOCK_FILE, 1, 2), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_FILE, 2, 1), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_FILE, 1, 3), id);
    EXPECT_NE(bd_lock_id(BD_LOCK_SOCKET, 1, 2), id);
}

TEST_F(Bdev, OneInvalidTransferPreventsAll)
{
    bd_io ios[3]{};
    for (auto &io : ios) {
        io.op = BD_READ;
        io.len = 4096;
        io.buf = buf.data();
    }
    ios[1].offset = 1;
    EXPECT_EQ(bd_submit(&c.dev, ios, 3), -EINVAL);
    EXPECT_EQ(ios[0].error, -ECANCELED);
    EXPECT_EQ(ios[1].error, -EINVAL);
    EXPECT_EQ(ios[2].error, -ECANCELED);
    EXPECT_EQ(c.submitted, 0u);
}

TEST_F(Bdev, AnEmptyBatchSendsNothing)
{
    EXPECT_EQ(bd_submit(&c.dev, nullptr, 0), 0);
    EXPECT_EQ(c.submitted, 0u);
}

} // namespace
