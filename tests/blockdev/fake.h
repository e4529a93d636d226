/*
 * A controller that does what a test says: registers in memory, admin commands answered inside
 * kick(), on the caller's thread. It can lie in ways the simulator never would.
 */
#ifndef TESTS_BLOCKDEV_FAKE_H
#define TESTS_BLOCKDEV_FAKE_H

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "blockdev/nvme.h"

struct Fake {
    nvme_transport t{};
    std::vector<uint32_t> doorbells = std::vector<uint32_t>(1024);
    std::map<uint64_t, nvme_mem> maps;
    uint64_t next_iova = 0x100000;
    bool closed = false;

    /* What a test may change before it opens the controller. MQES 63, TO 0, NVM command set. */
    uint64_t cap = 63ull | 1ull << 16 | 1ull << 37;
    bool never_ready = false, never_disabled = false, fatal_on_enable = false, gone = false;
    bool shutdown_never_ends = false;
    int lose_opcode = -1; /* admin opcode that is never completed */
    std::map<int, uint16_t> status_of_opcode;
    uint32_t queues_result = 3u << 16 | 7u;
    std::vector<uint8_t> id_ctrl = good_id_ctrl();
    std::map<uint32_t, std::vector<uint8_t>> id_ns = {{1, good_id_ns()}};
    std::vector<uint32_t> ns_list = {1};

    /* What a test may look at. */
    std::vector<nvme_sqe> seen;
    uint32_t cc = 0, csts = 0, aqa = 0;
    uint64_t asq = 0, acq = 0;
    uint32_t sq_head = 0, cq_tail = 0, phase = 1;

    Fake()
    {
        t.ops = ops();
        t.doorbells = doorbells.data();
        t.doorbells_len = doorbells.size() * 4;
    }

    static std::vector<uint8_t> good_id_ctrl()
    {
        std::vector<uint8_t> page(4096);

        memcpy(&page[4], "  SERIAL 1           ", 20);
        memcpy(&page[24], "A model                                 ", 40);
        memcpy(&page[64], "1.0\x01    ", 8);
        page[77] = 5;     /* MDTS: 128 KiB */
        page[512] = 0x66; /* SQES */
        page[513] = 0x44; /* CQES */
        page[516] = 4;    /* NN */
        page[520] = 0x0c; /* ONCS: WRITE ZEROES, DSM */
        page[525] = 1;    /* VWC */
        return page;
    }

    static std::vector<uint8_t> good_id_ns()
    {
        std::vector<uint8_t> page(4096);

        page[1] = page[9] = 0x10; /* NSZE, NCAP: 4096 LBAs */
        page[128 + 2] = 12;       /* LBADS of format 0 */
        return page;
    }

    /* The table of functions has no context: the transport is the first member. */
    static Fake *of(nvme_transport *t)
    {
        return reinterpret_cast<Fake *>(t);
    }

    uint8_t *at(uint64_t iova)
    {
        auto it = maps.upper_bound(iova);

        if (it == maps.begin())
            return nullptr;
        --it;
        return static_cast<uint8_t *>(it->second.addr) + (iova - it->first);
    }

    void write_cc(uint32_t value)
    {
        bool was = cc & NVME_CC_EN;

        cc = value;
        if (value & NVME_CC_SHN_MASK && !shutdown_never_ends)
            csts |= NVME_CSTS_SHST_COMPLETE;
        if (!was && value & NVME_CC_EN) {
            sq_head = cq_tail = 0;
            phase = 1;
            csts = fatal_on_enable ? NVME_CSTS_CFS : never_ready ? 0 : NVME_CSTS_RDY;
        }
        if (was && !(value & NVME_CC_EN) && !never_disabled)
            csts = 0;
    }

    uint32_t execute(const nvme_sqe &sqe)
    {
        uint8_t *data = sqe.prp1 ? at(sqe.prp1) : nullptr;

        if (sqe.opcode == NVME_ADMIN_SET_FEATURES)
            return queues_result;
        if (sqe.opcode != NVME_ADMIN_IDENTIFY)
            return 0;
        if (sqe.cdw10 == NVME_CNS_CTRL) {
            memcpy(data, id_ctrl.data(), 4096);
        } else if (sqe.cdw10 == NVME_CNS_ACTIVE_NS_LIST) {
            unsigned n = 0;
            for (uint32_t id : ns_list)
                if ((id > sqe.nsid || sqe.nsid == 0) && n < 1024)
                    memcpy(data + 4 * n++, &id, 4);
        } else if (id_ns.count(sqe.nsid)) {
            memcpy(data, id_ns[sqe.nsid].data(), 4096);
        }
        return 0;
    }

    void run_admin()
    {
        auto *sq = reinterpret_cast<nvme_sqe *>(at(asq));
        auto *cq = reinterpret_cast<nvme_cqe *>(at(acq));
        uint32_t entries = (aqa & 0xfff) + 1;

        while (csts & NVME_CSTS_RDY && sq_head != doorbells[0]) {
            nvme_sqe sqe = sq[sq_head];
            sq_head = (sq_head + 1) % entries;
            seen.push_back(sqe);
            if (sqe.opcode == lose_opcode)
                continue;
            nvme_cqe *cqe = &cq[cq_tail];
            uint16_t status = status_of_opcode.count(sqe.opcode) ? status_of_opcode[sqe.opcode] : 0;
            cqe->result = status ? 0 : execute(sqe);
            cqe->cid = sqe.cid;
            cqe->sq_head = (uint16_t)sq_head;
            __atomic_store_n(&cqe->status, (uint16_t)(status << 1 | phase), __ATOMIC_RELEASE);
            if (++cq_tail == entries) {
                cq_tail = 0;
                phase ^= 1;
            }
        }
    }

    unsigned count(int opcode) const
    {
        unsigned n = 0;
        for (const auto &sqe : seen)
            n += sqe.opcode == opcode;
        return n;
    }

    static const nvme_transport_ops *ops()
    {
        static const nvme_transport_ops table = {
            "fake",
            [](nvme_transport *t, uint32_t reg) -> uint32_t {
                Fake *f = of(t);
                if (f->gone)
                    return ~0u;
                return reg == NVME_REG_CC ? f->cc : reg == NVME_REG_CSTS ? f->csts : 0;
            },
            [](nvme_transport *t, uint32_t) -> uint64_t {
                return of(t)->gone ? ~0ull : of(t)->cap;
            },
            [](nvme_transport *t, uint32_t reg, uint32_t value) {
                if (reg == NVME_REG_CC)
                    of(t)->write_cc(value);
                else if (reg == NVME_REG_AQA)
                    of(t)->aqa = value;
            },
            [](nvme_transport *t, uint32_t reg, uint64_t value) {
                (reg == NVME_REG_ASQ ? of(t)->asq : of(t)->acq) = value;
            },
            [](nvme_transport *t, const nvme_mem *mem, uint64_t *iova) -> int {
                Fake *f = of(t);
                *iova = f->next_iova;
                f->next_iova += mem->len + 4096;
                f->maps[*iova] = *mem;
                return 0;
            },
            [](nvme_transport *t, uint64_t iova) -> int {
                return of(t)->maps.erase(iova) ? 0 : -ENOENT;
            },
            [](nvme_transport *t) { of(t)->run_admin(); },
            nullptr,
            [](nvme_transport *t) { of(t)->closed = true; },
        };
        return &table;
    }
};

#endif
