/* SPDX-License-Identifier: BSD-2-Clause */
/* The vfio-user client with servers that lie, break off, or say nothing: bounded, and no leak. */
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "tests/blockdev/vfio_user/vfio_user_rig.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" unsigned fuzz_vfio_user_maps;

namespace
{

class Hostile : public VfioUser
{
  protected:
    void refused(int err, const char *says)
    {
        EXPECT_EQ(start(err == -ETIMEDOUT ? DEADLINE_MS : PATIENT_MS), err) << why.text;
        EXPECT_NE(std::string(why.text).find(says), std::string::npos) << why.text;
        EXPECT_LT(took, BOUND_S);
        EXPECT_EQ(t, nullptr);
    }
};

/* What a reply can look like. In each, the answer to one command of the opening. */
struct Manner {
    const char *name;
    int err;
    const char *says;
    void (*answer)(Server &s, const Message &m);
};

void send_header(Server &s, const Message &m, uint32_t size, uint32_t flags, uint16_t id,
                 uint16_t command)
{
    send_raw(s.fd, bytes_of(vfio_user_header{id, command, size, flags, 0}) + s.answer(m),
             s.answer_fds(m));
}

uint32_t good_size(Server &s, const Message &m)
{
    return static_cast<uint32_t>(sizeof(vfio_user_header) + s.answer(m).size());
}

const Manner manners[] = {
    {"WrongId", -EPROTO, "the id of another command",
     [](Server &s, const Message &m) {
         send_header(s, m, good_size(s, m), 1, static_cast<uint16_t>(m.h.id + 1), m.h.command);
     }},
    {"WrongCommand", -EPROTO, "a reply to another command",
     [](Server &s, const Message &m) { send_header(s, m, good_size(s, m), 1, m.h.id, 14); }},
    {"WrongType", -EPROTO, "neither command nor reply",
     [](Server &s, const Message &m) {
         send_header(s, m, good_size(s, m), 2, m.h.id, m.h.command);
     }},
    {"SizeZero", -EPROTO, "shorter than its header",
     [](Server &s, const Message &m) { send_header(s, m, 0, 1, m.h.id, m.h.command); }},
    {"TwoGibibytes", -EPROTO, "longer than was asked for",
     [](Server &s, const Message &m) { send_header(s, m, 1u << 31, 1, m.h.id, m.h.command); }},
    {"FourGibibyteError", -EPROTO, "longer than was asked for",
     [](Server &s, const Message &m) {
         send_header(s, m, UINT32_MAX, 1 | VFIO_USER_ERROR, m.h.id, m.h.command);
     }},
    {"TwoGibibyteCommand", -EPROTO, "a command longer than there is",
     [](Server &s, const Message &m) { send_header(s, m, 1u << 31, 0, m.h.id, 11); }},
    {"NoPayload", -EPROTO, "", [](Server &s, const Message &m) { s.reply(m, {}); }},
    {"HalfAPayload", -ETIMEDOUT, "no answer to",
     [](Server &s, const Message &m) {
         send_header(s, m, good_size(s, m) + 8, 1, m.h.id, m.h.command);
     }},
    {"Silence", -ETIMEDOUT, "no answer to", [](Server &, const Message &) {}},
    {"Refusal", -EPROTO, "the server refuses",
     [](Server &s, const Message &m) { s.refuse(m, EINVAL); }},
    {"RefusalWithoutReason", -EPROTO, "the server refuses",
     [](Server &s, const Message &m) { s.refuse(m, 0); }},
    {"RefusalWithNonsense", -EPROTO, "the server refuses",
     [](Server &s, const Message &m) { s.refuse(m, 0xffffffff); }},
    {"RefusalWithPayload", -EPROTO, "the server refuses",
     [](Server &s, const Message &m) {
         send_header(s, m, good_size(s, m), 1 | VFIO_USER_ERROR, m.h.id, m.h.command);
     }},
    {"ClosesInstead", -EPROTO, "closed the connection",
     [](Server &s, const Message &) { shutdown(s.fd, SHUT_RDWR); }},
    {"ClosesInTheHeader", -EPROTO, "closed the connection",
     [](Server &s, const Message &m) {
         Bytes header = bytes_of(m.h);
         header.resize(9);
         send_raw(s.fd, header, s.answer_fds(m));
         shutdown(s.fd, SHUT_RDWR);
     }},
    {"TooManyDescriptors", -EPROTO, "more descriptors than",
     [](Server &s, const Message &m) {
         s.reply(m, s.answer(m), std::vector<int>(20, s.doorbells));
     }},
    {"CommandsForEver", -ETIMEDOUT, "no answer to",
     [](Server &s, const Message &) {
         timeval quick{0, 50000};
         setsockopt(s.fd, SOL_SOCKET, SO_SNDTIMEO, &quick, sizeof(quick));
         Bytes command = bytes_of(vfio_user_header{1, 11, 16, VFIO_USER_NO_REPLY, 0});
         while (send_raw(s.fd, command)) {
         }
     }},
};

/* The messages of an opening, in their order. */
const char *const steps[] = {"Version",   "DeviceInfo",   "ConfigInfo", "IdsRead",
                             "ClassRead", "CommandWrite", "Bar0Info"};

class AtEachStep : public Hostile, public ::testing::WithParamInterface<std::tuple<int, size_t>>
{
};

TEST_P(AtEachStep, AFailureEndsTheOpening)
{
    auto [step, manner] = GetParam();
    const Manner &m = manners[manner];
    int n = 0;

    server.hook = [&, wanted = step](Server &s, const Message &msg) {
        if (msg.h.flags & VFIO_USER_TYPE_REPLY || n++ != wanted)
            return false;
        m.answer(s, msg);
        return true;
    };
    int err = m.err;
    const char *says = m.says;
    /* Of an answer that has one size only, the size in the header says enough. */
    if (std::string(m.name) == "HalfAPayload" && (step == 1 || (step >= 3 && step <= 5))) {
        err = -EPROTO;
        says = "longer than was asked for";
    }
    refused(err, says);
}

INSTANTIATE_TEST_SUITE_P(All, AtEachStep,
                         ::testing::Combine(::testing::Range(0, 7),
                                            ::testing::Range(size_t(0), std::size(manners))),
                         [](const auto &info) {
                             return std::string(steps[std::get<0>(info.param)]) +
                                    manners[std::get<1>(info.param)].name;
                         });

/* As many as a message may carry, with each of its two parts. */
TEST_F(Hostile, DescriptorsBeyondAMessagesShareAreClosed)
{
    bool sent = false;

    server.hook = [&](Server &s, const Message &m) {
        const std::vector<int> eight(8, s.doorbells);
        Bytes payload = s.answer(m);
        if (sent || m.h.flags & VFIO_USER_TYPE_REPLY || payload.empty())
            return false;
        sent = true;
        auto size = static_cast<uint32_t>(sizeof(vfio_user_header) + payload.size());
        send_raw(s.fd, bytes_of(vfio_user_header{m.h.id, m.h.command, size, 1, 0}), eight);
        send_raw(s.fd, payload, eight);
        return true;
    };
    EXPECT_EQ(start(PATIENT_MS), 0) << why.text;
    EXPECT_TRUE(sent);
}

/* What the server says of itself in VERSION. */
struct Greeting {
    const char *name;
    uint16_t major, minor;
    std::string data;
    int err;
    const char *says;
};

std::string caps(const std::string &inside)
{
    return "{\"capabilities\":{" + inside + "}}" + '\0';
}

class Version : public Hostile, public ::testing::WithParamInterface<Greeting>
{
};

TEST_P(Version, IsAcceptedOrRefused)
{
    const Greeting &g = GetParam();
    server.hook = [&](Server &s, const Message &m) {
        if (m.h.command != VFIO_USER_VERSION)
            return false;
        s.reply(m, bytes_of(vfio_user_version{g.major, g.minor}) +
                       Bytes(g.data.begin(), g.data.end()));
        return true;
    };
    if (g.err)
        refused(g.err, g.says);
    else
        open();
}

INSTANTIATE_TEST_SUITE_P(
    All, Version,
    ::testing::Values(
        Greeting{"NoCapabilities", 0, 1, "", 0, ""},
        Greeting{"EarlierMinor", 0, 0, caps(""), 0, ""},
        Greeting{"EmptyText", 0, 1, std::string(1, '\0'), 0, ""},
        Greeting{"EmptyObject", 0, 1, std::string("{}\0", 3), 0, ""},
        Greeting{"UnknownOnes", 0, 1, caps("\"twin\":{\"a\":[1]},\"migration\":{\"pgsize\":4096}"),
                 0, ""},
        Greeting{"AllPageSizes", 0, 1, caps("\"pgsizes\":2101248"), 0, ""},
        Greeting{"ManyMaps", 0, 1, caps("\"max_dma_maps\":1099511627776"), 0, ""},
        Greeting{"NotTerminated", 0, 1, "{\"capabilities\":{}}", 0, ""},
        Greeting{"LaterMajor", 1, 0, caps(""), -EPROTO, "version 1.0"},
        Greeting{"LaterMinor", 0, 2, caps(""), -EPROTO, "version 0.2"},
        Greeting{"Garbage", 0, 1, "\x01\xff\x80garbage", -EPROTO, "no JSON"},
        Greeting{"CutOff", 0, 1, "{\"capabilities\":{\"max_msg", -EPROTO, "no JSON"},
        Greeting{"AnArray", 0, 1, "[1,2]", -EPROTO, "no JSON object"},
        Greeting{"Null", 0, 1, "null", -EPROTO, "no JSON"},
        Greeting{"ANumber", 0, 1, "{\"capabilities\":5}", -EPROTO, "no JSON object"},
        Greeting{"Deep", 0, 1, std::string(3000, '['), -EPROTO, "no JSON"},
        Greeting{"FdsAsText", 0, 1, caps("\"max_msg_fds\":\"8\""), -EPROTO, "no sensible number"},
        Greeting{"FdsNegative", 0, 1, caps("\"max_msg_fds\":-1"), -EPROTO, "no sensible number"},
        Greeting{"FdsFraction", 0, 1, caps("\"max_msg_fds\":1.5"), -EPROTO, "no sensible number"},
        Greeting{"NoFds", 0, 1, caps("\"max_msg_fds\":0"), -ENOTSUP, "no descriptors"},
        Greeting{"NoMaps", 0, 1, caps("\"max_dma_maps\":0"), -EPROTO, "no sensible number"},
        Greeting{"NullMaps", 0, 1, caps("\"max_dma_maps\":null"), -EPROTO, "no sensible number"},
        Greeting{"SmallTransfers", 0, 1, caps("\"max_data_xfer_size\":4"), -ENOTSUP, "64-bit"},
        Greeting{"HugePagesOnly", 0, 1, caps("\"pgsizes\":2097152"), -ENOTSUP, "4 KiB"}),
    [](const auto &info) { return std::string(info.param.name); });

TEST_F(Hostile, OtherDevicesAreRefused)
{
    server.device.flags = 0;
    refused(-ENOTSUP, "no PCI device");
}

TEST_F(Hostile, ADeviceWithoutConfigurationSpaceIsRefused)
{
    server.device.num_regions = 7;
    refused(-ENOTSUP, "no configuration space");
}

TEST_F(Hostile, AnotherClassOfDeviceIsRefused)
{
    server.config[10] = 0x06;
    refused(-ENOTSUP, "no NVMe controller (PCI class 010602)");
    EXPECT_EQ(server.config[4] | server.config[5], 0) << "touched although it is none of ours";
}

/* How BAR0 may be described so that it cannot be used. */
struct Lie {
    const char *name;
    int err;
    const char *says;
    std::function<void(Server &s)> tell;
};

class Region : public Hostile, public ::testing::WithParamInterface<Lie>
{
};

TEST_P(Region, IsRefused)
{
    GetParam().tell(server);
    refused(GetParam().err, GetParam().says);
}

std::function<void(Server &s)> areas(const std::vector<vfio_region_sparse_mmap_area> &of_bar0)
{
    return [=](Server &s) { s.areas = of_bar0; };
}

const Lie lies[] = {
    {"NoMmap", -ENOTSUP, "no doorbells that can be mapped",
     [](Server &s) { s.bar0.flags &= ~VFIO_REGION_INFO_FLAG_MMAP; }},
    {"NoAreas", -ENOTSUP, "no doorbells that can be mapped", [](Server &s) { s.areas.clear(); }},
    {"AreaBehindTheFirstDoorbell", -ENOTSUP, "no doorbells that can be mapped",
     areas({{0x2000, 0x2000}})},
    {"AreaBeforeTheDoorbells", -ENOTSUP, "no doorbells that can be mapped", areas({{0, 0x1000}})},
    {"AreaOfHalfAPage", -ENOTSUP, "no doorbells that can be mapped", areas({{0x1000, 0x800}})},
    {"AreaOfNothing", -EPROTO, "not inside its region", areas({{0x1000, 0}})},
    {"AreaPastTheRegion", -EPROTO, "not inside its region", areas({{0x1000, 0x4000}})},
    {"AreaFarAway", -EPROTO, "not inside its region", areas({{1ull << 63, 0x1000}})},
    {"AreaThatOverflows", -EPROTO, "not inside its region", areas({{0x1000, UINT64_MAX - 0xfff}})},
    {"AreasThatOverlap", -EPROTO, "overlap", areas({{0x1000, 0x2000}, {0x2000, 0x1000}})},
    {"TheSameAreaTwice", -EPROTO, "overlap", areas({{0x1000, 0x1000}, {0x1000, 0x1000}})},
    {"TooManyAreas", -ENOTSUP, "over 64 mappable areas",
     [](Server &s) {
         s.areas.clear();
         for (uint64_t i = 0; i < 65; i++)
             s.areas.push_back({0x1000 + 16 * i, 16});
     }},
    {"MoreAreasThanFitAMessage", -EPROTO, "longer than was asked for",
     [](Server &s) { s.areas.resize(300); }},
    {"EmptyRegion", -ENOTSUP, "no doorbells that can be mapped",
     [](Server &s) {
         s.bar0.size = 0;
         s.areas.clear();
     }},
    {"OffsetThatOverflows", -EPROTO, "lie at no page",
     [](Server &s) { s.bar0.offset = UINT64_MAX - 0xfff; }},
    {"OffsetBehindAllFiles", -EPROTO, "lie at no page",
     [](Server &s) { s.bar0.offset = INT64_MAX & ~0xfffull; }},
    {"OffsetInsideAPage", -EPROTO, "lie at no page", [](Server &s) { s.bar0.offset = 512; }},
    {"OffsetPastTheFile", -EPROTO, "ends before them", [](Server &s) { s.bar0.offset = 0x4000; }},
    {"AFileTooShort", -EPROTO, "ends before them",
     [](Server &s) { EXPECT_EQ(ftruncate(s.doorbells, 0x1800), 0); }},
    {"NotReadable", -ENOTSUP, "cannot be read and written", [](Server &s) { s.bar0.flags = 4; }},
    {"AnotherRegion", -EPROTO, "region 5 instead of 0", [](Server &s) { s.bar0.index = 5; }},
    {"CapsInTheHeader", -EPROTO, "lead nowhere", [](Server &s) { s.bar0.cap_offset = 8; }},
    {"CapsBehindTheEnd", -EPROTO, "lead nowhere", [](Server &s) { s.bar0.cap_offset = 4096; }},
    {"CapsOnTheEdge", -EPROTO, "lead nowhere", [](Server &s) { s.bar0.cap_offset = 57; }},
    {"CapsFarAway", -EPROTO, "lead nowhere", [](Server &s) { s.bar0.cap_offset = 0xfffffff0; }},
};

INSTANTIATE_TEST_SUITE_P(All, Region, ::testing::ValuesIn(lies),
                         [](const auto &info) { return std::string(info.param.name); });

/* Answers to the question for BAR0 that are wrong in their bytes or descriptors. */
class Bar0 : public Hostile
{
  protected:
    void answer(std::function<void(Server &, const Message &)> f)
    {
        server.hook = [f](Server &s, const Message &m) {
            bool bar0 = !s.answer_fds(m).empty();
            if (bar0)
                f(s, m);
            return bar0;
        };
    }
};

TEST_F(Bar0, IsRefusedWithoutADescriptor)
{
    answer([](Server &s, const Message &m) { s.reply(m, s.answer(m)); });
    refused(-EPROTO, "no descriptor");
}

TEST_F(Bar0, IsRefusedWithADescriptorOfAnotherFile)
{
    answer([](Server &s, const Message &m) { s.reply(m, s.answer(m), {s.fd}); });
    refused(-ENOTSUP, "no shared memory");
}

TEST_F(Bar0, IsRefusedIfItCannotBeWritten)
{
    int sealed = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(sealed, Server::BAR0), 0);
    ASSERT_EQ(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE), 0);
    answer([sealed](Server &s, const Message &m) { s.reply(m, s.answer(m), {sealed}); });
    refused(-ENOTSUP, "cannot be mapped");
    close(sealed);
}

TEST_F(Bar0, IsRefusedIfItsCapabilitiesFormARing)
{
    answer([](Server &s, const Message &m) {
        Bytes b = s.answer(m);
        vfio_info_cap_header ring{99, 1, 32};
        memcpy(&b[32], &ring, sizeof(ring));
        s.reply(m, b, s.answer_fds(m));
    });
    refused(-EPROTO, "lead nowhere");
}

TEST_F(Bar0, IsRefusedIfItAnnouncesMoreAreasThanItSends)
{
    answer([](Server &s, const Message &m) {
        Bytes b = s.answer(m);
        uint32_t n = UINT32_MAX;
        memcpy(&b[40], &n, sizeof(n));
        s.reply(m, b, s.answer_fds(m));
    });
    refused(-EPROTO, "cannot be");
}

TEST_F(Bar0, IsRefusedIfItsListIsTruncated)
{
    answer([](Server &s, const Message &m) {
        Bytes b = s.answer(m);
        b.resize(42);
        s.reply(m, b, s.answer_fds(m));
    });
    refused(-EPROTO, "cut off");
}

// --- Random changes of answers, for builds without libFuzzer -------------------------------------

size_t open_fds()
{
    size_t n = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
        n += !entry.path().empty();
    return n;
}

class VfioUserMutation : public ::testing::Test
{
  protected:
    void TearDown() override { EXPECT_EQ(open_fds(), before); }

    uint8_t odd_value()
    {
        static const uint8_t values[] = {0, 1, 2, 0x10, 0x7f, 0x80, 0xfe, 0xff};
        return rng() % 4 ? values[rng() % 8] : static_cast<uint8_t>(rng());
    }

    /* One to four changes, most of them in what the messages have. */
    std::vector<uint8_t> input()
    {
        std::vector<uint8_t> in;
        for (unsigned n = 1 + rng() % 4; n; n--) {
            size_t offset = rng() % (rng() % 16 ? 100 : 6144), len = 1 + rng() % 8;
            in.push_back(static_cast<uint8_t>(rng() % 13 | (rng() % 16 ? 0 : 0x80)));
            in.push_back(static_cast<uint8_t>(offset));
            in.push_back(static_cast<uint8_t>(offset >> 8));
            in.push_back(static_cast<uint8_t>(len));
            while (len--)
                in.push_back(odd_value());
        }
        return in;
    }

    std::mt19937 rng{7};
    size_t before = open_fds();
};

TEST_F(VfioUserMutation, TheUnchangedConversationSucceeds)
{
    fuzz_vfio_user_maps = 0;
    EXPECT_EQ(LLVMFuzzerTestOneInput(nullptr, 0), 0);
    EXPECT_EQ(fuzz_vfio_user_maps, 1u);
}

TEST_F(VfioUserMutation, ChangedRepliesAreSurvived)
{
    fuzz_vfio_user_maps = 0;
    for (int i = 0; i < 4000; i++) {
        std::vector<uint8_t> in = input();
        ASSERT_EQ(LLVMFuzzerTestOneInput(in.data(), in.size()), 0);
    }
    EXPECT_GT(fuzz_vfio_user_maps, 200u);
    EXPECT_LT(fuzz_vfio_user_maps, 3800u);
}

} // namespace
