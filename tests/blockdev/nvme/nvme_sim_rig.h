/* SPDX-License-Identifier: BSD-2-Clause */
/* A block device over the simulated controller, which judges the driver. */
#ifndef TESTS_BLOCKDEV_NVME_NVME_SIM_RIG_H
#define TESTS_BLOCKDEV_NVME_NVME_SIM_RIG_H

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "sim/sim.h"

inline constexpr uint64_t MIB = 1 << 20;

using Bytes = std::vector<uint8_t>;

inline Bytes random_bytes(size_t len, uint64_t seed)
{
    std::mt19937_64 rng(seed);
    Bytes v(len);
    for (auto &b : v)
        b = (uint8_t)rng();
    return v;
}

/* A simulated controller, opened, with a device over namespace 1; ends without a violation. */
class Rig
{
  public:
    Rig()
    {
        cfg.ns[0].bytes = 16 * MIB;
        cfg.ns[0].lba_size = 4096;
        cfg.namespaces = 1;
        cfg.no_prp_chains = true;
        opts.io_timeout_ms = 30000;
        opts.admin_timeout_ms = 30000;
    }

    void open(unsigned queues = 2, unsigned depth = 16)
    {
        struct reason why = {};
        ASSERT_EQ(sim_create(&cfg, &sim, &t), 0);
        opts.why = &why;
        ASSERT_EQ(nvme_ctrlr_open(t, &opts, &c), 0) << why.text;
        ASSERT_EQ(bd_nvme_open(c, 1, queues, depth, &dev), 0);
    }

    ~Rig()
    {
        if (dev)
            bd_close(dev);
        if (c)
            nvme_ctrlr_close(c);
        if (!sim)
            return;
        char text[1024];
        sim_violations_text(sim, text, sizeof(text));
        EXPECT_EQ(sim_violations(sim), 0u) << text;
        sim_free(sim);
    }

    void fault(sim_fault f) { ASSERT_EQ(sim_add_fault(sim, &f), 0); }

    Bytes peek(uint64_t offset, size_t len, uint32_t nsid = 1)
    {
        Bytes v(len);
        EXPECT_EQ(sim_peek(sim, nsid, offset, v.data(), len), 0);
        return v;
    }

    Bytes read(uint64_t offset, size_t len)
    {
        Bytes v(len);
        EXPECT_EQ(bd_read(dev, offset, v.data(), len), 0);
        return v;
    }

    sim_stats stats()
    {
        sim_stats st;
        sim_get_stats(sim, &st);
        return st;
    }

    sim_config cfg{};
    nvme_opts opts{};
    struct sim *sim = nullptr;
    nvme_transport *t = nullptr; // the controller's
    nvme_ctrlr *c = nullptr;
    bd_dev *dev = nullptr;
};

inline sim_fault status_fault(uint8_t opcode, uint16_t status, unsigned times)
{
    sim_fault f{};
    f.kind = SIM_FAULT_STATUS;
    f.opcode = opcode;
    f.match_opcode = true;
    f.status = status;
    f.times = times;
    return f;
}

inline sim_fault lose_fault(uint8_t opcode, unsigned times)
{
    sim_fault f = status_fault(opcode, 0, times);

    f.kind = SIM_FAULT_LOSE;
    return f;
}

/* Memory from bd_dma_alloc(), given back also when a test ends early. */
class Dma
{
  public:
    Dma(bd_dev *owner, size_t bytes)
        : dev(owner), len(bytes), p(static_cast<uint8_t *>(bd_dma_alloc(owner, bytes)))
    {
        EXPECT_NE(p, nullptr);
    }
    ~Dma() { bd_dma_free(dev, p, len); }
    Dma(const Dma &) = delete;
    Dma &operator=(const Dma &) = delete;

  private:
    bd_dev *dev;
    size_t len;

  public:
    uint8_t *const p;
};

/* Random writes and reads of random lengths, in place and bounced, checked against a copy. */
inline void verify_random(Rig &rig, unsigned rounds, uint64_t seed)
{
    uint64_t lba = rig.dev->info.lba_size, lbas = rig.dev->info.bytes / lba;
    size_t max = std::min<uint64_t>(2 * MIB, rig.dev->info.bytes);
    Bytes copy(rig.dev->info.bytes);
    Dma dma(rig.dev, max + 4096);

    std::mt19937_64 rng(seed);

    for (unsigned i = 0; i < rounds; i++) {
        uint64_t len = lba * (1 + rng() % (rng() % 8 ? 40 : max / lba));
        uint64_t offset = lba * (rng() % (lbas - len / lba + 1));
        bool in_place = rng() % 2;
        Bytes other(in_place ? 0 : len);
        uint8_t *buf = in_place ? dma.p + 8 * (rng() % 512) : other.data();
        if (rng() % 2) {
            std::generate((uint64_t *)buf, (uint64_t *)(buf + len), std::ref(rng));
            memcpy(&copy[offset], buf, len);
            ASSERT_EQ(bd_write(rig.dev, offset, buf, len, rng() % 4 ? 0 : BD_FUA), 0);
        } else {
            memset(buf, 0xa5, len);
            ASSERT_EQ(bd_read(rig.dev, offset, buf, len), 0);
            ASSERT_EQ(memcmp(&copy[offset], buf, len), 0) << "round " << i;
        }
    }
    EXPECT_EQ(rig.peek(0, copy.size()), copy);
}

#endif
