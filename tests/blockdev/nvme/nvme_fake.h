/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A controller that does what a test says: registers in memory, commands answered inside kick(),
 * on the caller's thread. It can lie and fail in ways the simulator never would. Its functions lock
 * inside; a test looks at and changes it while no other thread uses it.
 */
#ifndef TESTS_BLOCKDEV_NVME_NVME_FAKE_H
#define TESTS_BLOCKDEV_NVME_NVME_FAKE_H

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nvme/types.h>
#include <utility>
#include <vector>

#include "blockdev/nvme/nvme.h"
#include "blockdev/nvme/nvme_queue.h"

/* An I/O queue pair as the controller keeps it; cq alone while there is no SQ yet. */
struct FakeQueue {
    uint64_t sq = 0, cq = 0;
    uint32_t depth = 0, head = 0, tail = 0, phase = 1;
};

struct Fake {
    static constexpr size_t MEDIA_BYTES = 4096 * 4096;

    nvme_transport t{};
    std::mutex lock;
    std::vector<uint32_t> doorbells = std::vector<uint32_t>(1024);
    std::map<uint64_t, nvme_mem> maps;
    uint64_t next_iova = 0x100000;
    bool closed = false;

    /* What a test may change before it opens the controller. MQES 63, TO 0, NVM command set. */
    uint64_t cap = 63ull | 1ull << 16 | 1ull << 37;
    bool never_ready = false, never_disabled = false, fatal_on_enable = false, gone = false;
    bool shutdown_never_ends = false;
    bool keeps_queues = false;       /* over CC.EN = 0: Create is refused while they exist */
    bool refuse_queues_once = false; /* Set Features finds I/O queues, once */
    unsigned silent = 0; /* so many register reads return gone_value; writes meanwhile are lost */
    uint32_t silence = ~0u; /* their value; 0 in QEMU */
    bool has_reset = false, reset_fails = false;
    size_t longest_map = SIZE_MAX; /* longer regions are refused */
    unsigned late_unmaps = 0;      /* so many calls of unmap() miss their deadline */
    int lose_opcode = -1;          /* admin opcode that is never completed */
    bool abort_works = false;
    std::function<void(unsigned qid, unsigned cid)> on_abort = [](unsigned, unsigned) {};
    std::function<void()> on_enable = [] {}, on_read = [] {};
    /* Says of an I/O command whether it is lost. */
    std::function<bool(const nvme_sqe &)> loses = [](const nvme_sqe &) { return false; };
    std::function<uint16_t(const nvme_sqe &)> io_status = [](const nvme_sqe &) { return 0; };
    std::map<int, uint16_t> status_of_opcode, status_of_cns;
    unsigned busy = 0; /* so many admin commands are answered with "not now" first */
    uint32_t version = 0x00010400;
    std::vector<uint8_t> id_nvm = std::vector<uint8_t>(4096);
    uint32_t queues_result = 3u << 16 | 7u;
    std::vector<uint8_t> id_ctrl = good_id_ctrl();
    std::map<uint32_t, std::vector<uint8_t>> id_ns = {{1, good_id_ns()}};
    std::vector<uint32_t> ns_list = {1};

    /* What a test may look at. */
    std::vector<nvme_sqe> seen; /* admin commands */
    std::vector<nvme_sqe> sent; /* I/O commands */
    unsigned enables = 0, device_resets = 0, mistakes = 0;
    /* calloc() provides the zeros, because it does not write to pages that it has just mapped. */
    std::unique_ptr<uint8_t[], decltype(&free)> media{
        static_cast<uint8_t *>(calloc(MEDIA_BYTES, 1)), free};
    std::map<unsigned, FakeQueue> queues;
    std::vector<std::pair<unsigned, nvme_sqe>> lost; /* queue id and command */
    uint32_t cc = 0, csts = 0, aqa = 0;
    uint64_t asq = 0, acq = 0;
    uint32_t sq_head = 0, cq_tail = 0, phase = 1;

    Fake()
    {
        t.ops = ops();
        t.doorbells = doorbells.data();
        t.doorbells_len = doorbells.size() * 4;
    }

    std::vector<uint8_t> content() const { return {media.get(), media.get() + MEDIA_BYTES}; }

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
    static Fake *of(nvme_transport *t) { return reinterpret_cast<Fake *>(t); }

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
        bool was = cc & NVME_CC_ENABLE;

        cc = value;
        if (was && !(value & NVME_CC_ENABLE))
            stop();
        if (value & NVME_CC_SHN_BITS && !shutdown_never_ends)
            csts |= NVME_CSTS_SHST_COMPLETE;
        if (!was && value & NVME_CC_ENABLE) {
            enables++;
            stop();
            sq_head = cq_tail = 0;
            phase = 1;
            std::fill(doorbells.begin(), doorbells.end(), 0);
            csts = fatal_on_enable ? NVME_CSTS_FATAL : never_ready ? 0 : NVME_CSTS_READY;
            on_enable();
        }
        if (was && !(value & NVME_CC_ENABLE) && !never_disabled)
            csts = 0;
    }

    void stop()
    {
        if (!keeps_queues)
            queues.clear();
        lost.clear();
    }

    void identify(const nvme_sqe &sqe, uint8_t *data)
    {
        if (sqe.cdw10 == NVME_CNS_CTRL) {
            memcpy(data, id_ctrl.data(), 4096);
        } else if (sqe.cdw10 == NVME_CNS_CTRL_NVM) {
            memcpy(data, id_nvm.data(), 4096);
        } else if (sqe.cdw10 == NVME_CNS_ACTIVE_NS_LIST) {
            unsigned n = 0;
            for (uint32_t id : ns_list)
                if ((id > sqe.nsid || sqe.nsid == 0) && n < 1024)
                    memcpy(data + 4 * n++, &id, 4);
        } else if (id_ns.count(sqe.nsid)) {
            memcpy(data, id_ns[sqe.nsid].data(), 4096);
        }
    }

    void create(const nvme_sqe &sqe)
    {
        FakeQueue &q = queues[sqe.cdw10 & 0xffff];

        if (sqe.opcode == NVME_ADMIN_CREATE_SQ) {
            mistakes += q.cq == 0 || q.sq != 0;
            q.sq = sqe.prp1;
            q.head = 0;
            return;
        }
        mistakes += q.cq != 0;
        q = {0, sqe.prp1, (sqe.cdw10 >> 16) + 1, 0, 0, 1};
        std::fill_n(&doorbells[2 * (sqe.cdw10 & 0xffff)], 2, 0);
    }

    void remove(const nvme_sqe &sqe)
    {
        auto it = queues.find(sqe.cdw10);
        bool sq = sqe.opcode == NVME_ADMIN_DELETE_SQ;

        if (it == queues.end() || (it->second.sq != 0) != sq) {
            mistakes++;
            return;
        }
        if (sq)
            it->second.sq = 0;
        else
            queues.erase(it);
    }

    /* Ends a lost command. */
    bool end(unsigned qid, unsigned cid, uint16_t status)
    {
        for (size_t i = 0; i < lost.size(); i++)
            if (lost[i].first == qid && lost[i].second.cid == cid) {
                complete_io(qid, lost[i].second, status);
                lost.erase(lost.begin() + (long)i);
                return true;
            }
        return false;
    }

    uint32_t execute(const nvme_sqe &sqe)
    {
        switch (sqe.opcode) {
        case NVME_ADMIN_SET_FEATURES:
            return queues_result;
        case NVME_ADMIN_IDENTIFY:
            identify(sqe, at(sqe.prp1));
            return 0;
        case NVME_ADMIN_CREATE_CQ:
        case NVME_ADMIN_CREATE_SQ:
            create(sqe);
            return 0;
        case NVME_ADMIN_DELETE_CQ:
        case NVME_ADMIN_DELETE_SQ:
            remove(sqe);
            return 0;
        case NVME_ADMIN_ABORT:
            on_abort(sqe.cdw10 & 0xffff, sqe.cdw10 >> 16);
            return !abort_works ||
                   !end(sqe.cdw10 & 0xffff, sqe.cdw10 >> 16, NVME_ERR_ABORT_REQUESTED);
        default:
            return 0;
        }
    }

    /* CID and status go out as one dword, as the driver reads them. */
    static void post(nvme_cqe *cqe, const nvme_sqe &sqe, uint32_t head, uint16_t status, uint32_t p)
    {
        cqe->sq_head = (uint16_t)head;
        __atomic_store_n(reinterpret_cast<nvme_cqe_dword *>(&cqe->cid),
                         (uint32_t)(status << 1 | p) << 16 | sqe.cid, __ATOMIC_RELEASE);
    }

    uint16_t status_for(const nvme_sqe &sqe)
    {
        if (busy && busy--)
            return NVME_ERR_INTERRUPTED;
        if (sqe.opcode == NVME_ADMIN_IDENTIFY && status_of_cns.count((int)sqe.cdw10))
            return status_of_cns[(int)sqe.cdw10];
        if (refuse_queues_once && sqe.opcode == NVME_ADMIN_SET_FEATURES &&
            (sqe.cdw10 & 0xff) == 7) {
            refuse_queues_once = false;
            return NVME_ERR_SEQUENCE;
        }
        if (keeps_queues && sqe.opcode == NVME_ADMIN_CREATE_CQ && queues.count(sqe.cdw10 & 0xffff))
            return NVME_ERR_QID_INVALID;
        return status_of_opcode.count(sqe.opcode) ? status_of_opcode[sqe.opcode] : 0;
    }

    void run_admin()
    {
        auto *sq = reinterpret_cast<nvme_sqe *>(at(asq));
        auto *cq = reinterpret_cast<nvme_cqe *>(at(acq));
        uint32_t entries = (aqa & 0xfff) + 1;

        while (csts & NVME_CSTS_READY &&
               sq_head != __atomic_load_n(&doorbells[0], __ATOMIC_ACQUIRE)) {
            nvme_sqe sqe = sq[sq_head];
            sq_head = (sq_head + 1) % entries;
            seen.push_back(sqe);
            if (sqe.opcode == lose_opcode)
                continue;
            uint16_t status = status_for(sqe);
            cq[cq_tail].result = status ? 0 : execute(sqe);
            post(&cq[cq_tail], sqe, sq_head, status, phase);
            if (++cq_tail == entries) {
                cq_tail = 0;
                phase ^= 1;
            }
        }
    }

    /* Data of a command: PRP1, then PRP2 or the entries of one list page. */
    void move(const nvme_sqe &sqe)
    {
        size_t len = ((sqe.cdw12 & 0xffff) + 1) * 4096ul, done = 0;
        uint64_t first = 4096 - sqe.prp1 % 4096, rest = len > first ? len - first : 0;
        uint8_t *disk = &media[sqe.cdw10 * 4096ul];

        for (unsigned page = 0; done < len; page++) {
            uint64_t from = sqe.prp1;
            if (page > 0)
                from =
                    rest <= 4096 ? sqe.prp2 : reinterpret_cast<uint64_t *>(at(sqe.prp2))[page - 1];
            size_t n = std::min<size_t>(len - done, 4096 - from % 4096);
            if (sqe.opcode == NVME_IO_READ)
                memcpy(at(from), disk + done, n);
            else
                memcpy(disk + done, at(from), n);
            done += n;
        }
    }

    void complete_io(unsigned qid, const nvme_sqe &sqe, uint16_t status)
    {
        FakeQueue &q = queues[qid];
        auto *cq = reinterpret_cast<nvme_cqe *>(at(q.cq));

        if (!status && (sqe.opcode == NVME_IO_READ || sqe.opcode == NVME_IO_WRITE))
            move(sqe);
        post(&cq[q.tail], sqe, q.head, status, q.phase);
        if (++q.tail == q.depth) {
            q.tail = 0;
            q.phase ^= 1;
        }
    }

    void run_queue(unsigned qid, FakeQueue &q)
    {
        auto *sq = reinterpret_cast<nvme_sqe *>(at(q.sq));

        while (csts == NVME_CSTS_READY &&
               q.head != __atomic_load_n(&doorbells[2 * qid], __ATOMIC_ACQUIRE)) {
            nvme_sqe sqe = sq[q.head];
            q.head = (q.head + 1) % q.depth;
            sent.push_back(sqe);
            if (loses(sqe))
                lost.emplace_back(qid, sqe);
            else
                complete_io(qid, sqe, io_status(sqe));
        }
    }

    void run()
    {
        std::lock_guard<std::mutex> guard(lock);

        run_admin();
        for (auto &q : queues)
            if (q.second.sq)
                run_queue(q.first, q.second);
    }

    int device_reset()
    {
        if (!has_reset)
            return -ENOTSUP;
        device_resets++;
        if (reset_fails)
            return -EIO;
        stop();
        cc = csts = 0;
        never_ready = never_disabled = false;
        return 0;
    }

    /* A reset by another process: the next `reads` of registers find no controller. */
    void reset_from_outside(unsigned reads)
    {
        cc = csts = 0;
        silent = reads;
    }

    bool answers()
    {
        on_read();
        return !gone && !(silent && silent--);
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
            [](nvme_transport *t, uint32_t reg, unsigned) -> uint64_t {
                Fake *f = of(t);
                std::lock_guard<std::mutex> guard(f->lock);
                bool answers = f->answers();
                if (reg == NVME_REG_CAP)
                    return answers ? f->cap : f->silence * 0x100000001ull;
                if (!answers)
                    return f->silence;
                return reg == NVME_REG_CC     ? f->cc
                       : reg == NVME_REG_CSTS ? f->csts
                       : reg == NVME_REG_VS   ? f->version
                                              : 0;
            },
            [](nvme_transport *t, uint32_t reg, uint64_t value, unsigned) {
                std::lock_guard<std::mutex> guard(of(t)->lock);
                if (of(t)->silent)
                    return;
                if (reg == NVME_REG_CC)
                    of(t)->write_cc(static_cast<uint32_t>(value));
                else if (reg == NVME_REG_AQA)
                    of(t)->aqa = static_cast<uint32_t>(value);
                else
                    (reg == NVME_REG_ASQ ? of(t)->asq : of(t)->acq) = value;
            },
            [](nvme_transport *t, const nvme_mem *mem, uint64_t *iova) -> int {
                Fake *f = of(t);
                std::lock_guard<std::mutex> guard(f->lock);
                if (mem->len > f->longest_map)
                    return -EINVAL;
                *iova = f->next_iova;
                f->next_iova += mem->len + 4096;
                f->maps[*iova] = *mem;
                return 0;
            },
            [](nvme_transport *t, uint64_t iova) -> int {
                std::lock_guard<std::mutex> guard(of(t)->lock);
                if (of(t)->late_unmaps && of(t)->late_unmaps--)
                    return -ETIMEDOUT;
                return of(t)->maps.erase(iova) ? 0 : -ENOENT;
            },
            [](nvme_transport *t) -> int {
                std::lock_guard<std::mutex> guard(of(t)->lock);
                return of(t)->device_reset();
            },
            nullptr, /* silent */
            [](nvme_transport *t, unsigned) { of(t)->run(); },
            nullptr, /* kick */
            nullptr, /* keep_polling */
            nullptr, /* submitted */
            [](nvme_transport *t) { of(t)->closed = true; },
        };
        return &table;
    }
};

#endif
