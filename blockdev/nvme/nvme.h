/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the user-space NVMe driver: one controller over a transport, its
 * admin queue, its namespaces, and I/O queue pairs whose rings are driven by a
 * CPU thread or a GPU.
 *
 * Functions return 0 or -errno. Every wait is bounded (by CAP.TO for the
 * controller's state, by the deadline in nvme_opts for commands) and ends in
 * -ETIMEDOUT. Admin functions lock internally. A function that has the lock
 * returns within admin_timeout_ms, however many commands it sends. Section
 * numbers refer to the NVM Express Base Specification 2.0.
 */
#ifndef BLOCKDEV_NVME_NVME_H
#define BLOCKDEV_NVME_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/queue.h>

#include "blockdev/nvme/nvme_info.h"
#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/transport.h"
#include "support/reason.h"

__BEGIN_DECLS

struct nvme_ctrlr;

struct nvme_opts {
    unsigned io_queues;        /* queue pairs to request; 0: as many as the controller has */
    unsigned admin_timeout_ms; /* 0: 10,000 */
    unsigned io_timeout_ms;    /* limit for I/O of bd_nvme_open() devices; 0: 10,000 */
    struct reason *why;        /* receives the reason if nvme_ctrlr_open() fails; may be NULL */
};

/*
 * Resets the controller (3.5.1; by CC.EN, else by the transport), enables and
 * identifies it, and requests I/O queues. If it does not become ready, the
 * transport resets it and it is enabled once more. Takes ownership of the
 * transport only on success: nvme_ctrlr_close() then closes it. Returns
 * -ETIMEDOUT if the controller is not ready within CAP.TO, -EIO for CSTS.CFS or
 * registers that read all-ones, -ENOTSUP without the NVM command set or 4 KiB
 * pages, -EPROTO for invalid Identify data, and errors of map().
 */
int nvme_ctrlr_open(struct nvme_transport *t, const struct nvme_opts *opts,
                    struct nvme_ctrlr **out);
/*
 * Shuts the controller down (3.6.1), disables it and closes the transport. All
 * its queue pairs must have been deleted.
 */
void nvme_ctrlr_close(struct nvme_ctrlr *c);

/*
 * Return properties and the transport; both are valid until nvme_ctrlr_close().
 */
const struct nvme_ctrlr_info *nvme_ctrlr_info(const struct nvme_ctrlr *c);
struct nvme_transport *nvme_ctrlr_transport(struct nvme_ctrlr *c);
/*
 * Identifies a namespace and records it as in use. Returns -ENODEV if it is not
 * active.
 */
int nvme_ns_info(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out);
/*
 * Like nvme_ns_info(), for a namespace in use, which may have grown. Returns
 * -ENXIO if its identity or format has changed or it is smaller.
 */
int nvme_ns_refresh(struct nvme_ctrlr *c, uint32_t nsid, struct nvme_ns_info *out);
/*
 * Checks whether the controller has reported a changed namespace, and then
 * compares the namespaces in use. If one has another identity or format, or is
 * smaller, or another host has reserved it, the controller is stopped and counts
 * as failed, so that no later write reaches data of others. A namespace that has
 * grown stays in use. The call costs three loads while there is no report. The caller owns no queue
 * and holds no lock of the driver. Returns 0, or -EIO if the controller has failed.
 */
int nvme_ctrlr_watch(struct nvme_ctrlr *c);
/* Returns true once nvme_ctrlr_watch() or a reset has found another namespace. */
bool nvme_ctrlr_replaced(const struct nvme_ctrlr *c);
/*
 * The next two functions use reservations (BASE 8.19). They create a queue pair
 * for their commands, and may be called only while there is no other one.
 *
 * nvme_reserve() makes this host, by nvme_transport.host_id, the only one that
 * may write to the namespace. With `preempt` it takes a reservation away from
 * another host, whose commands are aborted. Returns 0 also if the host holds the
 * reservation already, -ENOTSUP if the controller or the namespace has none or
 * knows no host by its identifier, -EBUSY with the holder in *holder, or another
 * error of the commands.
 */
struct nvme_holder {
    uint8_t host_id[16]; /* the last 8 bytes are 0 if the controller keeps 8 */
    uint64_t key;
};
int nvme_reserve(struct nvme_ctrlr *c, uint32_t nsid, bool preempt, struct nvme_holder *holder);
/*
 * Ends the reservation and the registration of this host. Failures are ignored:
 * they leave the namespace reserved for this host.
 */
void nvme_unreserve(struct nvme_ctrlr *c, uint32_t nsid);
/*
 * Records that a command got the status Reservation Conflict: another host has
 * the namespace. The next nvme_ctrlr_watch() stops the controller, so that
 * nothing is written when that reservation ends. Any thread may call it.
 */
void nvme_ctrlr_set_taken(struct nvme_ctrlr *c);
/* Returns true after nvme_ctrlr_set_taken(), and after the controller has reported the same. */
bool nvme_ctrlr_taken(const struct nvme_ctrlr *c);
/*
 * Stores up to max IDs of active namespaces in ascending order. Returns how
 * many there are, or -errno. If the controller has no list (NVMe 1.0), the
 * first 1024 IDs are tried.
 */
int nvme_ns_list(struct nvme_ctrlr *c, uint32_t *nsids, unsigned max);

/*
 * A share: rings that one other process may map. Its files and DMA regions
 * contain nothing else, and its memory never becomes part of another share. The
 * first `pairs` queue pairs of equal depth take one region; further ones take
 * further regions.
 */
struct nvme_share {
    uint64_t id; /* number of this share; 0 means memory of the driver */
    unsigned pairs;
};
/* Returns a share without memory. Its memory ends with its queue pairs. */
struct nvme_share nvme_share_new(struct nvme_ctrlr *c, unsigned pairs);

/*
 * Describes an I/O queue pair. The rings are shared memory (memfd, MAP_SHARED,
 * page-aligned, zeroed, phase starts at 1), so they can be registered with
 * CUDA. The driver creates and deletes the queues; head, tail and phase belong
 * to the owner of the pair.
 */
struct nvme_qpair {
    uint16_t qid;
    uint32_t depth; /* entries of both rings; at most depth - 1 commands in flight */
    struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell;
    volatile uint32_t *cq_doorbell;
    size_t sq_len, cq_len;     /* bytes mapped at sq and cq, whole pages */
    uint64_t sq_iova, cq_iova; /* addresses for the controller */
    int fd;                    /* file of both rings; it may contain other memory, too */
    uint64_t fd_offset;        /* offset of the SQ; the CQ follows */
    struct nvme_share share;   /* nvme_qpair_create_shared() */
    unsigned epoch;            /* the controller's epoch when the queues were created */
};

/*
 * Creates a queue pair. Returns -ENOSPC if all queue pairs are taken, and
 * -EINVAL if depth is below 2 or above max_queue_depth.
 */
int nvme_qpair_create(struct nvme_ctrlr *c, uint32_t depth, struct nvme_qpair *out);
/*
 * Like nvme_qpair_create(), with rings of the share, in a file that may be
 * given to another process.
 */
int nvme_qpair_create_shared(struct nvme_ctrlr *c, uint32_t depth, struct nvme_share share,
                             struct nvme_qpair *out);
/*
 * Deletes the SQ, then the CQ (5.7, 5.6), then frees the rings. After it
 * returns 0, no command of this queue can touch memory. On an error the driver
 * keeps the rings mapped until the controller is reset, because the controller
 * may still reach them. The pair is gone for the caller in either case. Returns
 * -ENODEV if the pair was gone already.
 */
int nvme_qpair_delete(struct nvme_ctrlr *c, struct nvme_qpair *qp);
/*
 * Deletes the queues and creates them again with zeroed rings, phase 1. After a
 * controller reset, which has ended the queues, it only creates them. Memory
 * and qid stay the same, unless the controller keeps the queues and refuses to
 * delete them; then qid, rings and doorbells change. On an error the queues may
 * still exist: nothing is freed, and only nvme_ctrlr_reset() helps.
 */
int nvme_qpair_recreate(struct nvme_ctrlr *c, struct nvme_qpair *qp);
/*
 * Allocates rings for the queue ID of `of`. A controller has one pair of queues
 * with an ID, so nvme_qpair_recreate() of one pair ends the other one. The
 * caller first sets the pair's epoch to that of the other pair. Returns errors
 * like nvme_qpair_create().
 */
int nvme_qpair_twin(struct nvme_ctrlr *c, const struct nvme_qpair *of, uint32_t depth,
                    struct nvme_qpair *out);
/*
 * Frees the rings of a twin. If `ended` is false, its queues may exist, and the
 * rings stay mapped until the controller is reset.
 */
void nvme_qpair_twin_free(struct nvme_ctrlr *c, struct nvme_qpair *twin, bool ended);

/*
 * Recovery has four steps of increasing cost, each of which is bounded. An
 * owner of a queue pair that misses a completion reads CSTS (nvme_ctrlr_alive),
 * aborts the command, recreates the queue pair, and resets the controller. If
 * that fails, every later call ends with -EIO.
 */

/*
 * Reads CSTS. Returns false if the controller has failed, reports a fatal
 * status, is not ready, or is gone. Returns true while a software controller is
 * late with a reply (the transport's silent()), for example to a map: its
 * registers then read as all-ones, and only the deadlines of commands count.
 */
bool nvme_ctrlr_alive(struct nvme_ctrlr *c);

/*
 * Sends Abort (5.1) for command cid of queue qid. Returns 0 if the controller
 * reports that it has ended the command; the completion is in the queue or
 * arrives at once. Returns -EAGAIN if the command was not aborted; with
 * NVME_QUIRK_NO_ABORT nothing is sent. Other errors are those of nvme_admin().
 */
int nvme_abort(struct nvme_ctrlr *c, uint16_t qid, uint16_t cid);

/* A user drives queue pairs; a reset stops and resumes it through these calls. */
struct nvme_user {
    /*
     * On return, and until resume(), the user rings no doorbell and reads no ring
     * of its queue pairs. Bounded. Must not call the driver, since the reset holds
     * its locks.
     */
    void (*stop)(struct nvme_user *u);
    /*
     * If err is 0, the controller works again and has no I/O queues: recreate each
     * pair, then send the commands in flight again. Otherwise the controller has
     * failed for good, and the commands in flight end with err (-EIO). In either
     * case no earlier command can touch memory, unless nvme_ctrlr_settled() is
     * false.
     */
    void (*resume)(struct nvme_user *u, int err);
    LIST_ENTRY(nvme_user) entry; /* in the controller's users */
};
/* The caller keeps u until it has been removed. */
void nvme_ctrlr_add_user(struct nvme_ctrlr *c, struct nvme_user *u);
void nvme_ctrlr_remove_user(struct nvme_ctrlr *c, struct nvme_user *u); /* waits for a reset */

/*
 * Returns the number of resets so far. Read it before or directly after sending
 * a command.
 */
unsigned nvme_ctrlr_epoch(const struct nvme_ctrlr *c);
/*
 * Resets the controller (3.7.2) if it is still in the state of `epoch`. Stops
 * all users, disables the controller (by CC.EN, else by the transport's
 * reset()), enables it, checks that it is the same controller with the same
 * namespaces, and resumes the users. A reset from outside meanwhile makes it
 * start again. A call for an epoch that was already reset returns the result of
 * that reset. The calling user must be stopped itself: its own stop() is called
 * too and must not wait for the calling thread. Returns 0, or -EIO if the
 * controller has failed for good. A controller that completes no I/O command
 * between NVME_MAX_RESET_RETRIES resets counts as failed.
 */
#define NVME_MAX_RESET_RETRIES 3
int nvme_ctrlr_reset(struct nvme_ctrlr *c, unsigned epoch);
/*
 * Records that an I/O command has completed, so resets make progress. Cheap
 * enough to be called once per poll.
 */
void nvme_ctrlr_progress(struct nvme_ctrlr *c);
/* Counters since nvme_ctrlr_open(). */
struct nvme_counters {
    /*
     * These four cover devices of bd_nvme_open(). `errors` counts commands that
     * ended with an error status, retried or not, and transfers that ended
     * because the controller is gone or no queue became free. `timeouts` counts
     * commands that missed their deadline, `aborts` commands that an Abort
     * ended, and `recreates` queue pairs that were deleted and created again.
     */
    uint64_t errors, timeouts, aborts, recreates;
    uint64_t resets; /* controller resets begun, including failed ones */
};
void nvme_ctrlr_counters(const struct nvme_ctrlr *c, struct nvme_counters *out);
/*
 * Returns false if a controller that failed for good could not be stopped: it
 * may still write to mapped memory until that is unmapped (transport.h). A
 * controller that is gone (its registers read all-ones) counts as stopped,
 * unless addresses are physical. A vfio-user server whose connection was ended
 * because it did not answer also counts as stopped, since it cannot be reached
 * any more.
 */
bool nvme_ctrlr_settled(const struct nvme_ctrlr *c);
/*
 * Time limit in ms of a transport's reset(), in the formula below. For a PCI
 * drive that does not become ready, the kernel may wait a minute, also in an
 * access to config space while another process resets it. Only a thread that
 * nothing waits for is delayed by that.
 */
#define NVME_DEVICE_RESET_MS 5000u
/*
 * Time in ms for which registers must read all-ones before the controller
 * counts as gone. They also read all-ones while another process resets the
 * controller (through sysfs, the kernel disables memory decoding meanwhile),
 * and PCI Express allows a function one second to become ready.
 */
#define NVME_GONE_MS 1000u
/*
 * Returns the longest time in ms that nvme_ctrlr_reset() takes, without its
 * users' stop() and resume(): 7 * (CAP.TO + 1) * 500 + 5 * admin_timeout_ms + 2
 * * (NVME_DEVICE_RESET_MS + NVME_GONE_MS). A controller that answers takes as
 * long as its CSTS.RDY; one that is gone takes NVME_GONE_MS.
 */
unsigned nvme_ctrlr_reset_ms(const struct nvme_ctrlr *c);

/*
 * Sends one admin command and waits for its completion. data may be NULL; it is
 * bounced, and len is at most 4 KiB. A status other than success returns its
 * nvme_status_errno(). cqe may be NULL.
 *
 * -ETIMEDOUT means that the command missed its deadline. It may still be
 * executed and write to the driver's own page, but not to data. From then on,
 * as after a fatal status, the admin queue is unusable: every call fails with
 * -EIO at once until nvme_ctrlr_reset() has succeeded.
 */
int nvme_admin(struct nvme_ctrlr *c, struct nvme_sqe *sqe, void *data, size_t len, bool to_device,
               struct nvme_cqe *cqe);

/*
 * Describes zeroed shared memory (memfd) that is mapped into the controller, for
 * PRP lists, staging and bounce buffers. Because a controller keeps a limited
 * number of regions, allocations share a few of them (arenas), unless addresses
 * are physical.
 */
struct nvme_dma {
    void *addr;
    size_t len; /* bytes, whole pages */
    uint64_t iova;
    int fd; /* file of the memory; other allocations may share it */
    uint64_t fd_offset;
};
int nvme_dma_alloc(struct nvme_ctrlr *c, size_t len, struct nvme_dma *out);
/*
 * Allocates memory of the share. A region created for it has room for
 * share.pairs allocations of len.
 */
int nvme_dma_alloc_shared(struct nvme_ctrlr *c, struct nvme_share share, size_t len,
                          struct nvme_dma *out);
/* Frees memory of either function. No command that uses it may be in flight. */
void nvme_dma_free(struct nvme_ctrlr *c, struct nvme_dma *dma);

/* Selects the regions that nvme_map() leaves free. */
enum nvme_map_for {
    NVME_MAP_BUFFER, /* leaves regions to the driver and to leases */
    NVME_MAP_LEASE,  /* leaves regions only to the driver: for memory that cannot be staged */
};
/*
 * Maps the caller's memory like the transport's map(), and counts the region.
 * Returns -ENOSPC if the controller keeps no more regions than must stay free for
 * `purpose`. If the transport maps files,
 * all memory of one file (open file description) shares a region, which covers
 * as much of the file as the controller accepts and lasts until the last of it
 * is unmapped.
 */
int nvme_map(struct nvme_ctrlr *c, const struct nvme_mem *mem, enum nvme_map_for purpose,
             uint64_t *iova);
/*
 * Removes a mapping of nvme_map(). Returns errors of unmap(). After -ETIMEDOUT
 * the memory must not be used for anything else. The driver then tries again on
 * its own; the caller tries again only after the controller has failed.
 */
int nvme_unmap(struct nvme_ctrlr *c, uint64_t iova);
/*
 * Unmaps what nvme_unmap() could not unmap in time, unless another thread is
 * mapping. A daemon calls it now and then, since the memory is others' by now.
 * A paused controller costs at most one deadline.
 */
void nvme_dma_unmap_late(struct nvme_ctrlr *c);
/*
 * Returns true while the controller may reach a region whose unmap has missed
 * its deadline. If it returns false after nvme_unmap() of a region has returned
 * -ETIMEDOUT, that region's memory may be used for other purposes.
 */
bool nvme_dma_is_late(const struct nvme_ctrlr *c);

struct nvme_dma_budget {
    unsigned used;
    unsigned limit;      /* 0: unknown */
    bool full;           /* nvme_map() fails: the remaining ones are for the driver and leases */
    bool refused;        /* nvme_map() or the driver itself failed because none was left */
    unsigned refused_at; /* number that the controller kept when it last refused one */
};
/* Returns the use of regions. Takes no lock. */
void nvme_dma_regions(const struct nvme_ctrlr *c, struct nvme_dma_budget *out);

__END_DECLS

#endif
