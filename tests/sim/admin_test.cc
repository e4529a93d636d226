/* SPDX-License-Identifier: BSD-2-Clause */
/* Identify, features and log pages that NVMe 2.0 requires of a controller. */
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <string>

extern "C" {
#include "sim/sim.h"
}
#include "sim_test_rig.h"
#include "support/processors.h"

namespace
{

constexpr uint16_t NO_SUCH_LOG = 0x109, NOT_SAVEABLE = 0x10d;

struct Admin : ::testing::Test {
    explicit Admin(const struct sim_config &cfg = small_config()) : r(cfg), page(r.dma(8192)) {}

    uint16_t identify(uint32_t cns, uint32_t nsid = 0, uint32_t cdw11 = 0)
    {
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, cns, cdw11, page->iova);
        s.nsid = nsid;
        memset(page->addr, 0xee, 4096);
        return r.admin(s);
    }
    uint16_t log(uint32_t lid, uint32_t bytes, uint32_t offset = 0, uint32_t nsid = 0xffffffff)
    {
        struct nvme_sqe s =
            admin_cmd(NVME_ADMIN_GET_LOG_PAGE, lid | NVME_LOG_DWORDS(bytes / 4), 0, page->iova);
        s.nsid = nsid;
        s.cdw12 = offset;
        if (bytes > 4096)
            s.prp2 = page->iova + 4096;
        memset(page->addr, 0xee, 8192);
        return r.admin(s);
    }
    uint16_t set(uint32_t fid, uint32_t value, uint32_t nsid = 0)
    {
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_SET_FEATURES, fid, value);
        s.nsid = nsid;
        return r.admin(s);
    }
    /* The value, or 0x80000000 plus the status. */
    uint32_t get(uint32_t fid, uint32_t cdw11 = 0, uint32_t nsid = 0)
    {
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_GET_FEATURES, fid, cdw11);
        uint32_t result = 0;
        s.nsid = nsid;
        uint16_t status = r.admin(s, &result);
        return status ? 0x80000000u + status : result;
    }
    bool zeros(size_t from, size_t to) const
    {
        for (size_t i = from; i < to; i++)
            if (page->addr[i])
                return false;
        return true;
    }

    Rig r;
    std::unique_ptr<Dma> page;
};

TEST_F(Admin, IdentifyControllerHasTheMandatoryFields)
{
    ASSERT_EQ(identify(NVME_CNS_CTRL), 0);
    auto *id = page->as<struct nvme_id_ctrl>();
    EXPECT_EQ(id->vid, 0x1b36);
    EXPECT_EQ(id->ssvid, 0x1b36);
    EXPECT_EQ(id->ver, r.read32(NVME_REG_VS));
    EXPECT_EQ(id->cntrltype, NVME_CTRL_CNTRLTYPE_IO);
    EXPECT_EQ(id->frmw >> 1 & 7, 1) << "firmware slots";
    EXPECT_EQ(id->lpa & 6, 6) << "effects, offsets";
    EXPECT_EQ(id->wctemp, 343);
    EXPECT_GT(id->cctemp, id->wctemp);
    EXPECT_NE(id->psd[0].mp, 0);
}

TEST_F(Admin, IdentifyKnowsTheDataOfTheNvmCommandSet)
{
    EXPECT_EQ(identify(NVME_CNS_CTRL_NVM), 0);
    EXPECT_TRUE(zeros(0, 4096)) << "no limits";
    EXPECT_EQ(identify(0x05, 1), 0);
    EXPECT_EQ(identify(0x08, 1), 0);
    EXPECT_EQ(page->as<struct nvme_id_independent_id_ns>()->nstat, 1) << "ready";
    EXPECT_EQ(identify(0x07, 0), 0);
    EXPECT_EQ(*page->as<uint32_t>(), 1u);
    EXPECT_EQ(identify(0x1c | 1 << 16), 0);
    EXPECT_EQ(*page->as<uint64_t>(), 1u) << "one combination: the NVM command set";
    EXPECT_EQ(identify(NVME_CNS_CTRL_NVM, 0, 2 << 24), NVME_ERR_INVALID_FIELD) << "zoned";
    EXPECT_EQ(identify(0x1c | 7 << 16), NVME_ERR_INVALID_FIELD) << "another controller";
    EXPECT_EQ(identify(0x77), NVME_ERR_INVALID_FIELD);
}

TEST_F(Admin, IdentifyOfAMissingNamespaceIsReported)
{
    for (uint32_t cns : {0x05, 0x08})
        EXPECT_EQ(identify(cns, 9), NVME_ERR_INVALID_NS);
    EXPECT_TRUE(r.only(SIM_EV_BAD_NSID, 2));
}

TEST_F(Admin, SupportedLogsAreThoseThatCanBeRead)
{
    ASSERT_EQ(log(0, 1024), 0);
    std::vector<uint32_t> ids(256);
    memcpy(ids.data(), page->addr, 1024);
    for (uint32_t lid = 0; lid < 256; lid++)
        EXPECT_EQ(log(lid, 64), ids[lid] & 1 ? 0 : NO_SUCH_LOG) << lid;
    for (uint32_t lid : {0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x12})
        EXPECT_TRUE(ids[lid] & 1) << lid << " is mandatory, or promised";
}

TEST_F(Admin, SmartCountsTheCommands)
{
    Queue &q = r.create(1, 16);
    auto data = r.dma(65536);
    auto list = r.dma(4096);
    for (int i = 1; i < 16; i++)
        list->as<uint64_t>()[i - 1] = data->iova + static_cast<uint64_t>(i) * 4096;
    for (int i = 0; i < 9; i++)
        ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 0, 16, data->iova, list->iova)), 0);
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 0, 1, data->iova)), 0);
    for (uint32_t nsid : {0u, 0xffffffffu}) {
        ASSERT_EQ(log(2, 512, 0, nsid), 0);
        auto *smart = page->as<struct nvme_smart_log>();
        EXPECT_EQ(smart->critical_warning, 0);
        EXPECT_EQ(smart->temperature[0] | smart->temperature[1] << 8, 310);
        EXPECT_EQ(smart->avail_spare, 100);
        EXPECT_EQ(smart->data_units_read[0], 1) << "rounded up";
        EXPECT_EQ(smart->data_units_written[0], 2) << "589,824 bytes";
        EXPECT_EQ(smart->host_reads[0], 1);
        EXPECT_EQ(smart->host_writes[0], 9);
        EXPECT_EQ(smart->power_cycles[0], 1);
    }
    EXPECT_EQ(log(2, 512, 0, 1), NVME_ERR_INVALID_FIELD) << "not of a namespace";
}

TEST_F(Admin, FirmwareAndErrorsAreDescribed)
{
    ASSERT_EQ(log(3, 512), 0);
    auto *slots = page->as<struct nvme_firmware_slot>();
    EXPECT_EQ(slots->afi, 1);
    EXPECT_EQ(memcmp(slots->frs[0], "1       ", 8), 0);
    EXPECT_TRUE(zeros(16, 512));
    ASSERT_EQ(log(1, 64), 0);
    EXPECT_TRUE(zeros(0, 64)) << "no errors";
}

TEST_F(Admin, EffectsNameTheCommands)
{
    ASSERT_EQ(log(5, 4096), 0);
    auto *log = page->as<struct nvme_cmd_effects_log>();
    for (unsigned op : {0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c})
        EXPECT_EQ(log->acs[op], 1u) << op;
    EXPECT_EQ(log->acs[0x80], 0u) << "no Format";
    EXPECT_EQ(log->iocs[NVME_IO_READ], 1u);
    for (unsigned op : {NVME_IO_WRITE, NVME_IO_WRITE_ZEROES, NVME_IO_DSM})
        EXPECT_EQ(log->iocs[op], 3u) << op << " changes the contents";
}

TEST_F(Admin, LogsAreReadInPieces)
{
    ASSERT_EQ(log(5, 4096), 0);
    std::vector<unsigned char> whole(page->addr, page->addr + 4096);
    ASSERT_EQ(log(5, 100, 1024), 0);
    EXPECT_EQ(memcmp(page->addr, whole.data() + 1024, 100), 0);
    EXPECT_EQ(page->addr[100], 0xee) << "no more than asked for";
    ASSERT_EQ(log(5, 4, 4096), 0);
    EXPECT_TRUE(zeros(0, 4)) << "after the end";
    ASSERT_EQ(log(5, 8192, 2048), 0);
    EXPECT_EQ(memcmp(page->addr, whole.data() + 2048, 2048), 0);
    EXPECT_TRUE(zeros(2048, 8192));
    EXPECT_EQ(log(5, 4, 4100), NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(log(5, 4, 2), NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(log(5, 128 << 10), NVME_ERR_INVALID_FIELD);
    EXPECT_TRUE(r.only(SIM_EV_TRANSFER_TOO_LARGE));
}

TEST_F(Admin, TheChangedListIsClearedByARead)
{
    const uint32_t retain = 1 << 15;
    ASSERT_EQ(sim_change_ns(r.sim, 1, false), 0);
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(log(NVME_LOG_CHANGED_NS | retain, 4096), 0);
        EXPECT_EQ(*page->as<uint32_t>(), 1u) << "the event is retained";
    }
    ASSERT_EQ(log(NVME_LOG_CHANGED_NS, 4), 0);
    EXPECT_EQ(*page->as<uint32_t>(), 1u);
    ASSERT_EQ(log(NVME_LOG_CHANGED_NS, 4096), 0);
    EXPECT_TRUE(zeros(0, 4096));
}

/* Defaults and a value that is accepted, for each mandatory feature. */
TEST_F(Admin, FeaturesAreKeptUntilAReset)
{
    const struct {
        uint32_t fid, initial, value;
    } features[] = {{0x01, 7, 0x01020303}, {0x02, 0, 0x40},   {0x04, 343, 320}, {0x05, 0, 100},
                    {0x06, 1, 0},          {0x08, 0, 0x0a03}, {0x0a, 0, 1},     {0x0b, 0, 0x10f}};
    for (int round = 0; round < 2; round++) {
        for (const auto &f : features)
            EXPECT_EQ(get(f.fid, 0, 0xffffffff), f.initial) << f.fid;
        for (const auto &f : features)
            EXPECT_EQ(set(f.fid, f.value, 0xffffffff), 0) << f.fid;
        for (const auto &f : features)
            EXPECT_EQ(get(f.fid, 0, 0xffffffff), f.value) << f.fid;
        r.disable();
        r.enable();
    }
}

TEST_F(Admin, InvalidFeaturesAreRefused)
{
    const uint32_t refused = 0x80000000u + NVME_ERR_INVALID_FIELD;
    EXPECT_EQ(set(0x02, 1), NVME_ERR_INVALID_FIELD) << "no power state 1";
    EXPECT_EQ(set(0x0b, 1 << 9), NVME_ERR_INVALID_FIELD) << "an event that is not offered";
    EXPECT_EQ(set(0x05, 1), NVME_ERR_INVALID_FIELD) << "without a namespace";
    EXPECT_EQ(set(0x05, 1 << 16, 1), NVME_ERR_INVALID_FIELD) << "DULBE";
    EXPECT_EQ(set(0x01u | 1u << 31, 7), NOT_SAVEABLE);
    EXPECT_EQ(get(0x01 | 1 << 8), refused) << "the default is not offered";
    for (uint32_t fid : {0x00, 0x03, 0x0c, 0x0f, 0xc0}) {
        EXPECT_EQ(get(fid), refused) << fid;
        EXPECT_EQ(set(fid, 0), NVME_ERR_INVALID_FIELD) << fid;
    }
}

TEST_F(Admin, TemperatureThresholdsDecideTheWarning)
{
    const uint32_t under = 1 << 20;
    auto warning = [&] {
        EXPECT_EQ(log(2, 512), 0);
        return page->addr[0];
    };
    EXPECT_EQ(get(0x04, under), 0u);
    ASSERT_EQ(set(0x04, 310), 0);
    EXPECT_EQ(warning(), 2) << "310 K, and no less";
    ASSERT_EQ(set(0x04, 311), 0);
    EXPECT_EQ(warning(), 0);
    ASSERT_EQ(set(0x04, under | 310), 0);
    EXPECT_EQ(warning(), 2);
    ASSERT_EQ(set(0x04, under | 309), 0);
    EXPECT_EQ(warning(), 0);
    ASSERT_EQ(set(0x04, 0xf << 16 | 300), 0) << "of all sensors";
    EXPECT_EQ(get(0x04), 300u);
    EXPECT_EQ(set(0x04, 1 << 16 | 300), NVME_ERR_INVALID_FIELD) << "no sensor 1";
    EXPECT_EQ(get(0x04, 0xf << 16), 0x80000000u + NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(set(0x04, 2 << 20 | 300), NVME_ERR_INVALID_FIELD);
}

struct AdminVectors : Admin {
    static struct sim_config config()
    {
        struct sim_config c = small_config();
        c.vectors = 70;
        c.pci_vendor = 0x144d;
        return c;
    }
    AdminVectors() : Admin(config()) {}
};

TEST_F(AdminVectors, CoalescingIsConfiguredByVector)
{
    const uint32_t off = 1 << 16;
    for (uint32_t v : {0u, 69u}) {
        EXPECT_EQ(get(0x09, v), v);
        ASSERT_EQ(set(0x09, v | off), 0);
        EXPECT_EQ(get(0x09, v), v | off);
    }
    ASSERT_EQ(set(0x09, 69), 0);
    EXPECT_EQ(get(0x09, 69), 69u);
    EXPECT_EQ(get(0x09, 0), off) << "the other one is as it was";
    EXPECT_EQ(get(0x09, 70), 0x80000000u + NVME_ERR_INVALID_FIELD);
    EXPECT_EQ(set(0x09, 70), NVME_ERR_INVALID_FIELD);
}

TEST_F(AdminVectors, IdentifyHasTheVendorOfPci)
{
    ASSERT_EQ(identify(NVME_CNS_CTRL), 0);
    EXPECT_EQ(page->as<struct nvme_id_ctrl>()->vid, 0x144d);
}

TEST_F(Admin, FeaturesWithEffectsAreListed)
{
    ASSERT_EQ(log(0x12, 1024), 0);
    std::vector<uint32_t> ids(256);
    memcpy(ids.data(), page->addr, 1024);
    for (uint32_t fid = 0; fid < 256; fid++)
        EXPECT_EQ(get(fid, 0, 0xffffffff) != 0x80000000u + NVME_ERR_INVALID_FIELD, ids[fid] & 1)
            << fid;
}

TEST_F(Admin, ReadyIncludesTheMedia)
{
    EXPECT_EQ(r.read64(NVME_REG_CAP) >> 59 & 3, 1u) << "CAP.CRMS";
    EXPECT_EQ(r.read32(NVME_REG_CRTO), NVME_CAP_TO(r.read64(NVME_REG_CAP)));
}

// --- Queues, and data in both directions ---------------------------------------------------------

TEST(SimBasic, CapabilitiesReflectTheConfiguration)
{
    struct sim_config c = small_config();
    c.max_depth = 128;
    c.doorbell_stride = 2;
    Rig r(c);
    uint64_t cap = r.read64(NVME_REG_CAP);
    EXPECT_EQ(NVME_CAP_MQES(cap), 127u);
    EXPECT_EQ(NVME_CAP_CQR(cap), 1u);
    EXPECT_EQ(NVME_CAP_DSTRD(cap), 2u);
    EXPECT_EQ(NVME_CAP_CSS(cap) & 1, 1u);
    EXPECT_EQ(NVME_CAP_MPSMIN(cap), 0u);
}

TEST(SimBasic, IdentifyDescribesControllerAndNamespace)
{
    Rig r(small_config());
    auto page = r.dma(4096);
    ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, page->iova)), 0);
    EXPECT_EQ(page->addr[77], 4); /* MDTS: 64 KiB is 2^4 pages */
    EXPECT_EQ(memcmp(page->addr + 24, "gpunvmefs simulated", 19), 0);
    struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_NS, 0, page->iova);
    s.nsid = 1;
    ASSERT_EQ(r.admin(s), 0);
    EXPECT_EQ(*page->as<uint64_t>(), 1024u);
    EXPECT_EQ(page->addr[130], 12); /* LBAF0.LBADS */
}

TEST(SimBasic, SharedNamespacesAreReported)
{
    struct sim_config c = small_config();
    for (bool shared : {false, true}) {
        c.ns[0].shared = shared;
        Rig r(c);
        auto page = r.dma(4096);
        ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, page->iova)), 0);
        EXPECT_EQ(page->addr[76], shared ? 2 : 0); /* CMIC */
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_NS, 0, page->iova);
        s.nsid = 1;
        ASSERT_EQ(r.admin(s), 0);
        EXPECT_EQ(page->addr[30], shared ? 1 : 0); /* NMIC */
    }
}

TEST(SimBasic, WrittenDataIsReadBack)
{
    Rig r(small_config());
    Queue &q = r.create(1, 16);
    auto a = r.dma(4096), b = r.dma(4096);
    fill(a->addr, 4096, 7);
    ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 5, 1, a->iova)), 0);
    ASSERT_EQ(r.run(q, io(NVME_IO_READ, 5, 1, b->iova)), 0);
    EXPECT_TRUE(holds(b->addr, 4096, 7));
    struct nvme_sqe f = {};
    f.nsid = 1;
    EXPECT_EQ(r.run(q, f), 0);
    EXPECT_EQ(r.stats().reads, 1u);
    EXPECT_EQ(r.stats().writes, 1u);
    EXPECT_EQ(r.stats().flushes, 1u);
}

/* Of a machine's processors, with taskset(1) or in a container. */
TEST(Processors, AreThoseThatTheThreadMayRunOn)
{
    cpu_set_t all, one;

    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    EXPECT_EQ(processors_allowed(), static_cast<unsigned>(CPU_COUNT(&all)));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++) {
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(processors_allowed(), 1u);
    ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

// --- Options as text -----------------------------------------------------------------------------

TEST(SimOptions, SetFieldsOfTheConfiguration)
{
    sim_config cfg = {};
    struct reason why = {};

    cfg.ns[0].lba_size = 4096;
    cfg.mdts = 131072;
    ASSERT_EQ(sim_options_parse("threads:3:latency:20:bandwidth:100:gpu:off", &cfg, &why), 0)
        << why.text;
    EXPECT_EQ(cfg.threads, 3u);
    EXPECT_EQ(cfg.latency_ns, 20000u);
    EXPECT_EQ(cfg.bytes_per_sec, 100u << 20);
    EXPECT_TRUE(cfg.no_device_memory);
    EXPECT_EQ(cfg.ns[0].lba_size, 4096u) << "not named";
    EXPECT_EQ(cfg.mdts, 131072u) << "not named";
    ASSERT_EQ(sim_options_parse("lba:512:mdts:8192:gpu:on", &cfg, &why), 0) << why.text;
    EXPECT_EQ(cfg.ns[0].lba_size, 512u);
    EXPECT_EQ(cfg.mdts, 8192u);
    EXPECT_FALSE(cfg.no_device_memory);
}

TEST(SimOptions, ThreadsAreHalfOfTheProcessorsAtMostEight)
{
    const unsigned half = processors_allowed() / 2;

    for (const char *text : {static_cast<const char *>(nullptr), "", "lba:512"}) {
        sim_config cfg = {};
        struct reason why = {};
        ASSERT_EQ(sim_options_parse(text, &cfg, &why), 0) << why.text;
        EXPECT_EQ(cfg.threads, half < 1 ? 1 : half > 8 ? 8 : half);
        cfg.gpus = 16;
        ASSERT_EQ(sim_options_parse(text, &cfg, &why), 0) << why.text;
        EXPECT_EQ(cfg.threads, half < 1 ? 1 : half > 64 ? 64 : half);
    }
}

struct Bad {
    const char *text, *said;
};

using BadSimOptions = ::testing::TestWithParam<Bad>;

TEST_P(BadSimOptions, AreRefusedWithAMessage)
{
    sim_config cfg = {};
    struct reason why = {};

    EXPECT_EQ(sim_options_parse(GetParam().text, &cfg, &why), -EINVAL);
    EXPECT_NE(std::string(why.text).find(GetParam().said), std::string::npos) << why.text;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadSimOptions,
    ::testing::Values(Bad{"thread:8",
                          "thread: no such key, known are threads, lba, mdts, latency, bandwidth"},
                      Bad{":8", "no such key"}, Bad{"threads", "threads: must"},
                      Bad{"threads:", "threads: must"}, Bad{"threads:0", "from 1 to 64"},
                      Bad{"threads:65", "from 1 to 64"}, Bad{"threads:8x", "from 1 to 64"},
                      Bad{"threads:-1", "from 1 to 64"},
                      Bad{"threads:99999999999999999999999999", "from 1 to 64"},
                      Bad{"lba:513", "512 or 4096"}, Bad{"lba:512:mdts:4096", "mdts: must"},
                      Bad{"mdts:12288", "power of two"}, Bad{"latency:1000001", "microseconds"},
                      Bad{"bandwidth:0", "MiB per second"}, Bad{"gpu:maybe", "on or off"}));

} // namespace
