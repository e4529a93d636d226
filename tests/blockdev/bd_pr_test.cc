/* SPDX-License-Identifier: BSD-2-Clause */
// Tests persistent reservations of a block device. The test answers the kernel's calls, as an NVMe
// driver of two hosts does.
#include <gtest/gtest.h>

#include <linux/pr.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdarg>
#include <iterator>
#include <map>
#include <string>

#include "blockdev/bd_pr.h"
#include "blockdev/bd_reserve.h"

namespace
{

constexpr int kHostA = -71, kHostB = -72; // no descriptors: the calls for them are the test's
constexpr uint64_t kKeyA = 0xaaaa, kKeyB = 0xbbbb;

struct Held {
    uint64_t key;
    uint32_t generation, type;
};
constexpr unsigned long kReadReservation = _IOR('p', 207, Held);

struct Namespace {
    bool reports = true;        // the kernel has IOC_PR_READ_RESERVATION
    int conflict = 0x18;        // the driver's result for a conflict
    int refusal = 0;            // errno of every call, if not 0
    std::map<int, uint64_t> of; // keys of registered hosts
    int holder = 0;             // host with the reservation; 0: none
    uint32_t type = 0;
    bool aborted = false;

    bool all_hold() const
    {
        return type == PR_WRITE_EXCLUSIVE_ALL_REGS || type == PR_EXCLUSIVE_ACCESS_ALL_REGS;
    }
    int enroll(int host, const pr_registration &r)
    {
        bool known = of.count(host) > 0;

        if (r.old_key ? !known : known && of[host] != r.new_key)
            return conflict;
        if (r.old_key && !(r.flags & PR_FL_IGNORE_KEY) && of[host] != r.old_key)
            return conflict;
        if (r.new_key) {
            of[host] = r.new_key;
            return 0;
        }
        of.erase(host);
        if (holder == host)
            holder = 0;
        return 0;
    }
    bool is(int host, uint64_t key) const
    {
        auto at = of.find(host);
        return at != of.end() && at->second == key;
    }
    int reserve(int host, const pr_reservation &r)
    {
        if (!is(host, r.key) || (holder && (holder != host || type != r.type)))
            return conflict;
        holder = host;
        type = r.type;
        return 0;
    }
    int release(int host, const pr_reservation &r)
    {
        if (!is(host, r.key) || (holder == host && type != r.type))
            return conflict;
        if (holder == host)
            holder = 0;
        return 0;
    }
    int preempt(int host, const pr_preempt &p)
    {
        if (!is(host, p.old_key) || (p.new_key == 0 && !all_hold()))
            return conflict;
        for (auto at = of.begin(); at != of.end();) {
            bool ends = at->first != host && (p.new_key == 0 || at->second == p.new_key);
            at = ends ? of.erase(at) : std::next(at);
        }
        if (!of.count(holder)) {
            holder = host;
            type = p.type;
        }
        return 0;
    }
    int clear(int host, const pr_clear &c)
    {
        if (!is(host, c.key))
            return conflict;
        of.clear();
        holder = 0;
        return 0;
    }
    int report(Held *held) const
    {
        *held = {};
        if (holder)
            *held = {all_hold() ? 0 : of.at(holder), 1, type};
        return 0;
    }
    int call(int host, unsigned long request, void *arg)
    {
        if (refusal || (request == kReadReservation && !reports)) {
            errno = refusal ? refusal : ENOTTY;
            return -1;
        }
        aborted = aborted || request == IOC_PR_PREEMPT_ABORT;
        switch (request) {
        case IOC_PR_REGISTER:
            return enroll(host, *static_cast<pr_registration *>(arg));
        case IOC_PR_RESERVE:
            return reserve(host, *static_cast<pr_reservation *>(arg));
        case IOC_PR_RELEASE:
            return release(host, *static_cast<pr_reservation *>(arg));
        case IOC_PR_PREEMPT_ABORT:
            return preempt(host, *static_cast<pr_preempt *>(arg));
        case IOC_PR_CLEAR:
            return clear(host, *static_cast<pr_clear *>(arg));
        case kReadReservation:
            return report(static_cast<Held *>(arg));
        default:
            ADD_FAILURE() << request;
            return -1;
        }
    }
};

Namespace ns;

class Pr : public testing::TestWithParam<bool> // true: a kernel that reports reservations
{
  protected:
    void SetUp() override
    {
        ns = {};
        ns.reports = GetParam();
        ns.conflict = GetParam() ? 0x18 : 0x4083;
    }
    static int take(int host, uint64_t key, bool preempt = false)
    {
        return bd_pr_take(host, key, preempt, &holder_);
    }
    static inline uint64_t holder_;
};

TEST_P(Pr, OneHostAtATime)
{
    ASSERT_EQ(take(kHostA, kKeyA), 0);
    EXPECT_EQ(ns.type, (uint32_t)PR_WRITE_EXCLUSIVE);
    EXPECT_EQ(take(kHostB, kKeyB), -EBUSY);
    EXPECT_EQ(holder_, GetParam() ? kKeyA : 0);
    EXPECT_EQ(ns.of.count(kHostB), 0u) << "it leaves no registration";
    EXPECT_EQ(bd_pr_keep(kHostA, kKeyA), 0);
    EXPECT_EQ(bd_pr_release(kHostA, kKeyA), 0);
    EXPECT_TRUE(ns.of.empty());
    EXPECT_EQ(take(kHostB, kKeyB), 0);
}

TEST_P(Pr, AHostContinuesAfterACrashAlsoWithAnotherKey)
{
    ASSERT_EQ(take(kHostA, kKeyA), 0);
    EXPECT_EQ(take(kHostA, kKeyA), 0);
    EXPECT_EQ(take(kHostA, kKeyA + 1), 0);
    EXPECT_EQ(ns.of[kHostA], kKeyA + 1);
    EXPECT_EQ(ns.holder, kHostA);
}

TEST_P(Pr, AReservationIsTakenAwayOnlyOnRequest)
{
    ASSERT_EQ(take(kHostA, kKeyA), 0);
    ASSERT_EQ(take(kHostB, kKeyB, true), 0);
    EXPECT_EQ(ns.holder, kHostB);
    EXPECT_EQ(ns.of.count(kHostA), 0u);
    EXPECT_EQ(ns.aborted, GetParam()) << "without a report nobody knows whose commands to abort";
    EXPECT_EQ(bd_pr_keep(kHostA, kKeyA), -EACCES);
}

TEST_P(Pr, AReservationOfAllRegistrantsIsTakenAway)
{
    ns.of = {{kHostA, kKeyA}};
    ns.holder = kHostA;
    ns.type = PR_WRITE_EXCLUSIVE_ALL_REGS;
    EXPECT_EQ(take(kHostB, kKeyB), -EBUSY);
    ASSERT_EQ(take(kHostB, kKeyB, true), 0);
    EXPECT_EQ(ns.holder, kHostB);
    EXPECT_EQ(ns.type, (uint32_t)PR_WRITE_EXCLUSIVE);
}

TEST_P(Pr, AnotherTypeOfThisHostIsReplaced)
{
    ns.of = {{kHostA, kKeyA}};
    ns.holder = kHostA;
    ns.type = PR_EXCLUSIVE_ACCESS;
    EXPECT_EQ(take(kHostA, kKeyA, !GetParam()), 0);
    EXPECT_EQ(ns.type, (uint32_t)PR_WRITE_EXCLUSIVE);
}

TEST_P(Pr, ErrorsOfTheDeviceAreErrors)
{
    for (int refusal : {EOPNOTSUPP, ENOTTY, EINVAL}) {
        ns.refusal = refusal;
        EXPECT_EQ(take(kHostA, kKeyA), -ENOTSUP) << refusal;
    }
    ns.refusal = EPERM;
    EXPECT_EQ(take(kHostA, kKeyA), -EPERM);
    ns.refusal = 0;
    ns.conflict = 0x2; // and no conflict at all
    ns.of = {{kHostA, kKeyB}};
    EXPECT_EQ(take(kHostA, kKeyA), -EIO);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Pr, testing::Bool(), [](const auto &info) {
    return std::string(info.param ? "Linux7" : "Linux6");
});

// --- Decisions and words ---------------------------------------------------------------------

int answer; // of the device

int reserve_device(bd_dev *, uint64_t key, bool preempt, uint64_t *holder)
{
    EXPECT_EQ(key, 0x0807060504030201u);
    *holder = 0x1234;
    return preempt ? 0 : answer;
}

struct Case {
    bool shared, has;
    int answer;
    enum bd_reserve how;
    int result;
    const char *says; // a part of the sentence; empty: there is none
};

TEST(Reserve, ADiskIsReservedAsANamespaceIs)
{
    const Case cases[] = {
        {false, true, 0, BD_RESERVE_AUTO, 0, ""},
        {true, true, 0, BD_RESERVE_AUTO, 1, ""},
        {true, true, 0, BD_RESERVE_OFF, 0, ""},
        {false, true, 0, BD_RESERVE_REQUIRE, 1, ""},
        {true, false, 0, BD_RESERVE_AUTO, 0, ""},
        {true, false, 0, BD_RESERVE_REQUIRE, -ENOTSUP, "has no reservations"},
        {true, true, -ENOTSUP, BD_RESERVE_AUTO, 0, ""},
        {true, true, -EIO, BD_RESERVE_AUTO, 0, "cannot be reserved: Input/output error"},
        {true, true, -EIO, BD_RESERVE_REQUIRE, -EIO, "cannot be reserved"},
        {true, true, -EBUSY, BD_RESERVE_AUTO, -EBUSY,
         "reserved by the host with the key 0x1234: unmount it there first, or mount it once with "
         "reservation=preempt if that host is dead"},
        {true, true, -EBUSY, BD_RESERVE_PREEMPT, 1, ""},
    };
    const uint8_t host_id[16] = {1, 2, 3, 4, 5, 6, 7, 8};

    for (const Case &c : cases) {
        bd_ops ops = {};
        bd_dev dev = {};
        struct reason why = {"before"};

        ops.reserve = c.has ? reserve_device : nullptr;
        dev.ops = &ops;
        dev.info.shared = c.shared;
        answer = c.answer;
        int index = static_cast<int>(&c - cases);
        EXPECT_EQ(bd_reserve_disk(&dev, host_id, c.how, &why), c.result) << index;
        EXPECT_NE(std::string(why.text).find(c.says), std::string::npos) << index << why.text;
        EXPECT_EQ(why.text[0] == '\0', c.says[0] == '\0') << index << why.text;
    }
}

} // namespace

extern "C" {
// NOLINTBEGIN: the linker's names (--wrap)
int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *arg = va_arg(args, void *);
    va_end(args);
    return fd == kHostA || fd == kHostB ? ns.call(fd, request, arg)
                                        : __real_ioctl(fd, request, arg);
}
// NOLINTEND
}
