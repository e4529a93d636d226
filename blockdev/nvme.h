/*
 * The user-space NVMe driver: one controller over a transport, its admin queue, its namespaces,
 * and I/O queue pairs whose rings are handed to whoever drives them (a CPU thread, a GPU).
 *
 * Functions return 0 or -errno; every wait is bounded (CAP.TO for the controller's state, the
 * deadline in nvme_opts for commands) and ends in -ETIMEDOUT. Admin functions lock inside.
 * Sections are of the NVM Express Base Specification 2.0.
 */
#ifndef BLOCKDEV_NVME_H
#define BLOCKDEV_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme_info.h"
#include "blockdev/nvme_spec.h"
#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvme_ctrlr;

struct nvme_opts {
    unsigned io_queues;        /* queue pairs to ask for; 0: as many as the controller has */
    unsigned admin_timeout_ms; /* 0: 10,000 */
    unsigned io_timeout_ms;    /* for commands sent by bd_nvme_open's device; 0: 10,000 */
    char *why;                 /* when not NULL: nvme_ctrlr_open() says here why it failed */
    size_t why_len;            /* bytes of why, 0 byte included */
};

/*
 * Resets and enables the controller (3.5.1), identifies it, asks for I/O queues. Takes the
 * transport only on success: nvme_ctrlr_close() then closes it; on failure it stays the caller's.
 * -ETIMEDOUT (not ready within CAP.TO), -EIO (CSTS.CFS, or registers that read all-ones), -ENOTSUP
 * (no NVM command set, or no 4 KiB pages), -EPROTO (Identify data that cannot be).
 */
int nvme_ctrlr_open(struct nvme_transport *t, const struct nvme_opts *opts,
                    struct nvme_ctrlr **out);
/* Orderly shutdown (3.6.1): queues must be gone. Disables the controller, closes the transport. */
void nvme_ctrlr_close(struct nvme_ctrlr *c);

const struct nvme_ctrlr_info *nvme_ctrlr_info(const struct nvme_ctrlr *c);
struct nvme_transport *nvme_ctrlr_transport(struct nvme_ctrlr *c);
/* -ENODEV when the namespace is not active. */
int nvme_ns_info(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out);
/* Ids of active namespaces in ascending order; returns how many there are, or -errno. */
int nvme_ns_list(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max);

/*
 * An I/O queue pair. The rings are shared memory (memfd, MAP_SHARED, page-aligned, zeroed, phase
 * starts at 1), so they can be registered with CUDA. The driver creates and deletes the queues;
 * head, tail and phase belong to whoever drives them.
 */
struct nvme_qpair {
    uint16_t qid;
    uint32_t depth; /* entries of both rings; at most depth - 1 commands in flight */
    struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell;
    volatile uint32_t *cq_doorbell;
    size_t sq_len, cq_len;     /* bytes mapped behind sq and cq, whole pages */
    uint64_t sq_iova, cq_iova; /* where the controller sees them */
    int fd;                    /* the memory behind both rings */
};

/* -ENOSPC when all queue pairs are taken; -EINVAL when depth is < 2 or over max_queue_depth. */
int nvme_qpair_create(struct nvme_ctrlr *c, uint32_t depth, struct nvme_qpair *out);
/*
 * Deletes SQ, then CQ (5.6, 5.5), then frees the rings: after it returns 0 no command of this
 * queue can touch memory any more. On an error the rings stay mapped, for the controller may
 * still reach them, until the controller is reset: the controller keeps them from then on, and
 * the pair is gone for the caller either way. -ENODEV for a pair that is gone already.
 */
int nvme_qpair_delete(struct nvme_ctrlr *c, struct nvme_qpair *qp);
/*
 * Deletes and creates the queues again with zeroed rings, phase 1. Same memory, same qid. On an
 * error the pair is gone, as after a delete that failed.
 */
int nvme_qpair_recreate(struct nvme_ctrlr *c, struct nvme_qpair *qp);

/*
 * Sends one admin command and waits. data (may be NULL) is bounced; 4 KiB at most. A status other
 * than success returns nvme_status_errno() of it. cqe may be NULL. After a deadline has passed
 * every later call fails with -EIO: the command may still write its data.
 */
int nvme_admin(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len, bool to_device,
               struct nvme_cqe *cqe);

/* Shared memory (memfd) mapped into the controller: for PRP lists, staging, bounce buffers. */
struct nvme_dma {
    void *addr;
    size_t len; /* bytes, whole pages */
    uint64_t iova;
    int fd;
};
int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out);
void nvme_dma_free(struct nvme_ctrlr *c, struct nvme_dma *dma);

#ifdef __cplusplus
}
#endif

#endif
