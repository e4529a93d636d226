/* The controller from inside the driver: for blockdev's own sources and their tests. */
#ifndef BLOCKDEV_NVME_INTERNAL_H
#define BLOCKDEV_NVME_INTERNAL_H

#include <pthread.h>

#include "blockdev/nvme.h"
#include "blockdev/nvme_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVME_ADMIN_DEPTH     32u
#define NVME_MAX_QPAIRS      1024u
#define NVME_DEFAULT_MS      10000u
#define NVME_MAX_TRANSFER    (16u << 20) /* bytes; what the driver makes PRP lists for */
#define NVME_SHUTDOWN_MS     1000u       /* at least; a controller may announce more (RTD3E) */
#define NVME_SHUTDOWN_MAX_MS 60000u

/* DMA memory that a controller may still reach although its user has let go of it. */
struct nvme_orphan {
    struct nvme_dma dma;
    struct nvme_orphan *next;
};

struct nvme_ctrlr {
    struct nvme_transport *t;
    struct nvme_ctrlr_info info;
    uint64_t cap;
    unsigned admin_timeout_ms, io_timeout_ms;
    unsigned shutdown_ms;

    pthread_mutex_t admin_lock; /* admin queue and its data page: one command at a time */
    struct nvme_dma admin_mem;  /* SQ page, CQ page, data page */
    struct nvme_ring admin_ring;
    uint16_t admin_cid;
    bool failed; /* atomic; CFS, gone, or an admin command lost: nothing is sent any more */

    pthread_mutex_t lock; /* the two below */
    uint64_t qids[NVME_MAX_QPAIRS / 64 + 1];
    struct nvme_orphan *orphans;
};

/* ctrlr.c */
bool nvme_ctrlr_failed(const struct nvme_ctrlr *c);
void nvme_ctrlr_fail(struct nvme_ctrlr *c);
/* Reads CSTS: true, and no commands from then on, when it shows a fatal status or all-ones. */
bool nvme_ctrlr_check_fatal(struct nvme_ctrlr *c);
/* Doorbell number `index`: 2 * qid for the SQ, 2 * qid + 1 for the CQ. */
volatile uint32_t *nvme_ctrlr_doorbell(const struct nvme_ctrlr *c, unsigned index);
void nvme_ctrlr_kick(struct nvme_ctrlr *c);

/* enable.c: the controller's state machine (3.5.1, 3.6.1). The ASQ and ACQ are in admin_mem. */
int nvme_check_cap(const struct nvme_ctrlr *c, const char **what);
int nvme_reset(struct nvme_ctrlr *c);   /* from any state */
int nvme_disable(struct nvme_ctrlr *c); /* from enabled, or from an enable that failed */
int nvme_enable(struct nvme_ctrlr *c);
void nvme_shutdown(struct nvme_ctrlr *c);

/* admin.c */
int nvme_admin_setup(struct nvme_ctrlr *c);
void nvme_admin_teardown(struct nvme_ctrlr *c);
int nvme_admin_identify(struct nvme_ctrlr *c, enum nvme_identify_cns cns, uint32_t nsid,
                        void *page);
/* Asks for `wanted` I/O queue pairs; *granted is what may be used, at least 1. */
int nvme_admin_set_queues(struct nvme_ctrlr *c, unsigned wanted, unsigned *granted);

/* dma.c */
/* Keeps the memory mapped until nvme_ctrlr_close() has reset the controller. */
void nvme_dma_orphan(struct nvme_ctrlr *c, const struct nvme_dma *dma);
void nvme_dma_free_orphans(struct nvme_ctrlr *c);

#ifdef __cplusplus
}
#endif

#endif
