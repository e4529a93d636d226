/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A queue pair in memory of the process, and the controller's position in it.
 * Each suite decides what its controller executes and completes, and when.
 */
#ifndef TESTS_CUDA_QUEUE_HOST_QUEUE_H
#define TESTS_CUDA_QUEUE_HOST_QUEUE_H

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
#include "cuda/queue/gq_work.h"
}

struct HostQueue {
    uint32_t depth;
    std::vector<nvme_sqe> sq;
    std::vector<nvme_cqe> cq;
    std::vector<gq_tracker> trackers;
    std::vector<uint32_t> free_cids;
    uint32_t sq_doorbell, cq_doorbell;
    uint32_t head;   /* index of the next entry that the controller fetches */
    uint32_t posted; /* completions so far, including `start` */

    /* Makes rings whose first `start` entries have been used and given back. */
    explicit HostQueue(uint32_t n, uint32_t start = 0)
        : depth(n), sq(n), cq(n), trackers(n - 1), free_cids(n - 1), sq_doorbell(start),
          cq_doorbell(start), head(start), posted(start)
    {
        for (uint32_t i = 0; i < start; i++)
            cq[i].status = 1;
    }

    gq_port port()
    {
        return {sq.data(),       cq.data(),        &sq_doorbell, &cq_doorbell,
                trackers.data(), free_cids.data(), depth,        0};
    }

    /* Returns the number of entries that the doorbell has published since the last fetch(). */
    uint32_t fresh() const
    {
        /* Acquire: the published entries are read after the doorbell. */
        return (__atomic_load_n(&sq_doorbell, __ATOMIC_ACQUIRE) + depth - head) % depth;
    }

    /* Returns the next published entry; there must be one. */
    const nvme_sqe &fetch()
    {
        const nvme_sqe &sqe = sq[head];

        head = (head + 1) % depth;
        return sqe;
    }

    uint32_t tail() const { return posted % depth; }

    /* Returns how many completions the CQ has room for. */
    uint32_t room() const
    {
        /* Acquire: an entry is written after the reader has given it back. */
        return (__atomic_load_n(&cq_doorbell, __ATOMIC_ACQUIRE) + depth - 1 - tail()) % depth;
    }

    void post(uint16_t cid, uint16_t status = 0)
    {
        uint32_t phase = (posted / depth & 1) ^ 1;

        /* Release: the data of the command is visible before its completion. */
        __atomic_store_n(reinterpret_cast<uint32_t *>(&cq[tail()].cid),
                         cid | (static_cast<uint32_t>(status) << 1 | phase) << 16,
                         __ATOMIC_RELEASE);
        posted++;
    }
};

/* Returns media whose bytes depend on their place. */
inline std::vector<uint8_t> host_media(size_t bytes)
{
    std::vector<uint8_t> media(bytes);

    uint8_t *to = media.data();
    for (size_t i = 0; i < bytes; i++)
        to[i] = static_cast<uint8_t>(i * 7 + i / 512);
    return media;
}

struct alignas(4096) Page {
    uint8_t bytes[4096];
};

#endif
