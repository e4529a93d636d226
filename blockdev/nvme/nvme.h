/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The user-space NVMe driver: one controller over a transport, its admin queue, its namespaces, and
 * I/O queue pairs whose rings are driven by a CPU thread or a GPU.
 *
 * Functions return 0 or -errno; every wait is bounded (CAP.TO for the controller's state, the
 * deadline in nvme_opts for commands) and ends in -ETIMEDOUT. Admin functions lock inside; each
 * takes at most admin_timeout_ms, however many commands it sends, once it has the lock. Sections
 * are of the NVM Express Base Specification 2.0.
 */
#ifndef BLOCKDEV_NVME_NVME_H
#define BLOCKDEV_NVME_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/nvme/nvme_info.h"
#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvme_ctrlr;

struct nvme_opts {
    unsigned io_queues;        /* queue pairs to ask for; 0: as many as the controller has */
    unsigned admin_timeout_ms; /* 0: 10,000 */
    unsigned io_timeout_ms;    /* for commands sent by bd_nvme_open's device; 0: 10,000 */
    char *why;                 /* NULL, or where nvme_ctrlr_open() stores why it failed */
    size_t why_len;            /* bytes of why, 0 byte included */
};

/*
 * Resets the controller (3.5.1; by CC.EN, else by the transport), enables and identifies it, asks
 * for I/O queues. One that does not become ready is reset by the transport and enabled once more.
 * Takes the transport only on success: nvme_ctrlr_close() then closes it; on failure it stays the
 * caller's. -ETIMEDOUT (not ready within CAP.TO), -EIO (CSTS.CFS, or registers that read all-ones),
 * -ENOTSUP (no NVM command set, or no 4 KiB pages), -EPROTO (invalid Identify data), errors of
 * map().
 */
int nvme_ctrlr_open(struct nvme_transport *t, const struct nvme_opts *opts,
                    struct nvme_ctrlr **out);
/* Orderly shutdown (3.6.1): queues must be gone. Disables the controller, closes the transport. */
void nvme_ctrlr_close(struct nvme_ctrlr *c);

const struct nvme_ctrlr_info *nvme_ctrlr_info(const struct nvme_ctrlr *c);
struct nvme_transport *nvme_ctrlr_transport(struct nvme_ctrlr *c);
/* -ENODEV when the namespace is not active. */
int nvme_ns_info(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out);
/*
 * The same of a namespace in use, which may have grown. -ENXIO: it has another identity or
 * format, or is smaller.
 */
int nvme_ns_refresh(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out);
/*
 * Ids of active namespaces in ascending order; returns how many there are, or -errno. Where the
 * controller has no list (NVMe 1.0), the first 1024 ids are tried.
 */
int nvme_ns_list(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max);

/*
 * A share: rings that one other process may map. Their files and DMA regions contain nothing else,
 * and their memory never comes to another share. The first `pairs` queue pairs, of one depth, take
 * one region; further ones take further regions.
 */
struct nvme_share {
    uint64_t id; /* of this share of this controller; 0: memory of the driver */
    unsigned pairs;
};
/* A share without memory yet. Its memory ends with its queue pairs. */
struct nvme_share nvme_share_new(struct nvme_ctrlr *c, unsigned pairs);

/*
 * An I/O queue pair. The rings are shared memory (memfd, MAP_SHARED, page-aligned, zeroed, phase
 * starts at 1), so they can be registered with CUDA. The driver creates and deletes the queues;
 * head, tail and phase belong to the owner of the pair.
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
    int fd;                    /* of both rings; the file may have other memory, too */
    uint64_t fd_offset;        /* of the SQ in it; the CQ follows */
    struct nvme_share share;   /* nvme_qpair_create_shared() */
    unsigned epoch;            /* of the controller when the queues were created */
};

/* -ENOSPC when all queue pairs are taken; -EINVAL when depth is < 2 or over max_queue_depth. */
int nvme_qpair_create(struct nvme_ctrlr *c, uint32_t depth, struct nvme_qpair *out);
/* With rings of the share, in a file that may be given to another process. */
int nvme_qpair_create_shared(struct nvme_ctrlr *c, uint32_t depth, struct nvme_share share,
                             struct nvme_qpair *out);
/*
 * Deletes SQ, then CQ (5.7, 5.6), then frees the rings: after it returns 0 no command of this
 * queue can touch memory any more. On an error the rings stay mapped, for the controller may
 * still reach them, until the controller is reset: the controller keeps them from then on, and
 * the pair is gone for the caller either way. -ENODEV for a pair that is gone already.
 */
int nvme_qpair_delete(struct nvme_ctrlr *c, struct nvme_qpair *qp);
/*
 * Deletes and creates the queues again with zeroed rings, phase 1. After a controller reset, which
 * has ended the queues already, it only creates. Same memory, same qid; but another qid, other
 * rings and doorbells where the controller keeps the queues and refuses to delete them. On an error
 * the queues may still exist: nothing is freed, and only nvme_ctrlr_reset() helps.
 */
int nvme_qpair_recreate(struct nvme_ctrlr *c, struct nvme_qpair *qp);

/*
 * Recovery, in steps of increasing cost, each of which is bounded. An owner of a queue pair that
 * misses a completion reads CSTS (nvme_ctrlr_alive), aborts the command, recreates the queue pair,
 * and resets the controller. When that fails, every later call ends with -EIO.
 */

/* Reads CSTS: false when the controller has failed, shows a fatal status, is not ready or gone. */
bool nvme_ctrlr_alive(struct nvme_ctrlr *c);

/*
 * Abort (5.1) of command cid of queue qid. 0: the controller reports that it has ended the command,
 * whose completion is in the queue or will be at once. -EAGAIN: the command was not aborted; under
 * NVME_QUIRK_NO_ABORT nothing was sent. Other errors as nvme_admin().
 */
int nvme_abort(struct nvme_ctrlr *c, uint16_t qid, uint16_t cid);

/* A user drives queue pairs; a reset stops and resumes it through these calls. */
struct nvme_user {
    /*
     * On return, and until resume(), the user rings no doorbell and reads no ring of its queue
     * pairs. Bounded. Must not call the driver: the reset holds its locks.
     */
    void (*stop)(struct nvme_user *u);
    /*
     * err 0: the controller works again and has no I/O queues; recreate each pair, then send
     * commands under way again. Otherwise the controller has failed for good, and commands under
     * way end with err (-EIO). Either way no earlier command can touch memory any more, unless
     * nvme_ctrlr_settled() says otherwise.
     */
    void (*resume)(struct nvme_user *u, int err);
    struct nvme_user *next; /* the controller's */
};
void nvme_ctrlr_add_user(struct nvme_ctrlr *c, struct nvme_user *u);
void nvme_ctrlr_remove_user(struct nvme_ctrlr *c, struct nvme_user *u); /* waits for a reset */

/* Counts resets. To be read before a command is sent, or right after. */
unsigned nvme_ctrlr_epoch(const struct nvme_ctrlr *c);
/*
 * Controller reset (3.7.2) of the controller in its state of `epoch`: stops all users, disables it
 * (CC.EN, or else the transport's reset()), enables it, checks that it is the same controller with
 * the same namespaces, lets the users resume. A reset from outside meanwhile makes it begin again.
 * A call for an epoch that was reset already returns the outcome of that reset. The calling user
 * must be stopped itself: its own stop() is called too and must not wait for the calling thread. 0;
 * -EIO: failed for good. A controller that completes no I/O command between NVME_MAX_RESET_RETRIES
 * resets is given up.
 */
#define NVME_MAX_RESET_RETRIES 3
int nvme_ctrlr_reset(struct nvme_ctrlr *c, unsigned epoch);
/* Some I/O command has completed, so resets make progress. Cheap; call it once a poll. */
void nvme_ctrlr_progress(struct nvme_ctrlr *c);
/* Counts since nvme_ctrlr_open(). */
struct nvme_counters {
    /*
     * Of devices of bd_nvme_open(): commands that ended with an error status, retried or not, and
     * transfers that ended because the controller is gone or no queue became free; commands that
     * missed their deadline; commands that an Abort ended; queue pairs that were deleted and
     * created again.
     */
    uint64_t errors, timeouts, aborts, recreates;
    uint64_t resets; /* of the controller that were begun, also those that failed */
};
void nvme_ctrlr_counters(const struct nvme_ctrlr *c, struct nvme_counters *out);
/*
 * False when a controller that failed for good could not be stopped: it may still write to mapped
 * memory, until that is unmapped (transport.h). A controller that is gone (its registers read
 * all-ones) counts as stopped, unless addresses are physical. So does a vfio-user server whose
 * connection was ended because it did not answer, since it cannot be stopped any more.
 */
bool nvme_ctrlr_settled(const struct nvme_ctrlr *c);
/*
 * Bound of a transport's reset(), ms, in the formula below. The kernel may wait for a minute for a
 * PCI drive that does not become ready, also in an access to config space while another process
 * resets it: only a thread that nothing waits for is delayed by that.
 */
#define NVME_DEVICE_RESET_MS 5000u
/*
 * Time, ms, for which registers must read all-ones before the controller counts as gone. They also
 * read so while another process resets the controller (the kernel, through sysfs, turns memory
 * decoding off meanwhile), and PCI Express allows a function a second until it is ready.
 */
#define NVME_GONE_MS 1000u
/*
 * Longest time nvme_ctrlr_reset() takes besides its users' stop() and resume(), ms:
 * 7 * (CAP.TO + 1) * 500 + 5 * admin_timeout_ms + 2 * (NVME_DEVICE_RESET_MS + NVME_GONE_MS). A
 * controller that answers takes as long as its CSTS.RDY does, one that is gone NVME_GONE_MS.
 */
unsigned nvme_ctrlr_reset_ms(const struct nvme_ctrlr *c);

/*
 * Sends one admin command and waits. data (may be NULL) is bounced; 4 KiB at most. A status other
 * than success returns nvme_status_errno() of it. cqe may be NULL.
 *
 * -ETIMEDOUT: the command missed its deadline. It may still be carried out, and write into the
 * driver's own page; it does not touch data. From then on, as after a fatal status, the admin queue
 * is unusable: every call fails with -EIO at once, until nvme_ctrlr_reset() has succeeded.
 */
int nvme_admin(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len, bool to_device,
               struct nvme_cqe *cqe);

/*
 * Shared memory (memfd), zeroed and mapped into the controller: for PRP lists, staging, bounce
 * buffers. Allocations share few regions (arenas), where addresses are not physical: a controller
 * keeps a limited number. -EINVAL; -E2BIG (more than a large page, where addresses are physical);
 * -ENOMEM; errors of map().
 */
struct nvme_dma {
    void *addr;
    size_t len; /* bytes, whole pages */
    uint64_t iova;
    int fd; /* of the memory, which other allocations may share */
    uint64_t fd_offset;
};
int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out);
/* Memory of the share. A region that it needs has room for share.pairs allocations of len. */
int nvme_dma_alloc_shared(struct nvme_ctrlr *c, struct nvme_share share, size_t len,
                          struct nvme_dma *out);
/* Frees memory of either. The controller must not have commands that use it. */
void nvme_dma_free(struct nvme_ctrlr *c, struct nvme_dma *dma);

/*
 * Maps memory of the caller as the transport's map() does, and counts it: -ENOSPC when the
 * controller keeps no more regions than the driver and leases need themselves. Where the transport
 * maps files, all memory of one file (open file description) shares a region, which has the whole
 * file as far as the controller takes it, until the last of it is unmapped.
 */
int nvme_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, uint64_t *iova);
/* nvme_map() has the purpose NVME_MAP_BUFFER. */
enum nvme_map_for {
    NVME_MAP_BUFFER, /* leaves regions to the driver, and to leases */
    NVME_MAP_LEASE,  /* leaves those to the driver alone: for memory that cannot be staged */
};
int nvme_map_for(struct nvme_ctrlr *c, const struct nvme_mem *mem, enum nvme_map_for purpose,
                 uint64_t *iova);
/*
 * Removes a mapping of nvme_map(); errors of unmap(). After -ETIMEDOUT the memory must not be used
 * for anything else; the driver tries again by itself, the caller only once the controller has
 * failed.
 */
int nvme_unmap(struct nvme_ctrlr *c, uint64_t iova);

struct nvme_dma_budget {
    unsigned used;
    unsigned limit;      /* 0: none is known */
    bool full;           /* nvme_map() fails: the remaining ones are the driver's and for leases */
    bool refused;        /* nvme_map() or the driver itself has failed for want of one */
    unsigned refused_at; /* how many the controller kept when it last did */
};
void nvme_dma_regions(const struct nvme_ctrlr *c, struct nvme_dma_budget *out);

#ifdef __cplusplus
}
#endif

#endif
