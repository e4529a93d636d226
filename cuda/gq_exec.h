/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An executor drives the queue pairs and copies bytes, on a GPU or on host
 * threads. The engine above it (lists, reservations, quarantine) is the same for
 * both kinds.
 */
#ifndef CUDA_GQ_EXEC_H
#define CUDA_GQ_EXEC_H

#include <sys/cdefs.h>

#include "cuda/gq.h"
#include "cuda/queue/gq_reads.h"
#include "cuda/queue/gq_work.h"
#include "support/reason.h"

__BEGIN_DECLS

/*
 * A list of reads or writes, in memory that both sides access
 * (gq_exec_ops.shared_alloc). It remains in place and unchanged during its run.
 */
#define GQ_FEW_EXTENTS 8u
struct gq_list {
    struct gq_reads reads;
    /*
     * Memory for a map of so few extents: a lane loads each of them over the bus
     * once, which takes less time than a copy to the executor's memory.
     */
    struct gq_file_extent few[GQ_FEW_EXTENTS];
    uint64_t start, end; /* the part of the transfer in bytes; for the host only */
    uint32_t n;          /* reads or units */
};

/* Parameters of one run: its queues and their state. */
struct gq_launch {
    struct gq_run run;
    const struct gq_list *list;
    unsigned index;                  /* number of the run; one run at a time per index */
    uint16_t queues[GQ_MAX_QUEUES];  /* queue numbers of port_add() */
    struct gq_state *states;         /* run.n_queues of them, from run_states() */
    const volatile uint32_t *cancel; /* NULL means never; may be replaced before wait() */
    uint64_t started_ns;             /* used by the executor, like the next two */
    bool persistent;                 /* the list is in a slot of the persistent kernel: */
    int slot;
};

/*
 * Describes memory imported by the executor: whole pages around the requested
 * range.
 */
struct gq_import {
    struct nvme_mem mem;
    uint64_t base;  /* address of the first page for the executor */
    uint64_t head;  /* bytes from the first page to the first byte of the buffer */
    void *mapping;  /* argument of release() */
    size_t map_len; /* bytes */
    /* mem.parts of GQ_MEM_SEGMENTS with their own descriptors, otherwise NULL */
    struct nvme_mem_part *parts;
};

struct gq_exec;

struct gq_exec_ops {
    /*
     * Imports memory. For GQ_MEM_FD *out holds the result of gq_host_import(),
     * which the caller keeps on an error.
     */
    int (*import)(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out);
    void (*release)(struct gq_exec *x, struct gq_import *imp);
    /*
     * Allocates page-aligned memory for staging, not yet mapped for the controller.
     * `host` selects host memory, for controllers that cannot reach device memory
     * or whose CQEs do not cover it.
     */
    int (*staging_alloc)(struct gq_exec *x, size_t len, bool host, struct gq_import *out);
    void (*staging_free)(struct gq_exec *x, struct gq_import *imp);
    /*
     * Imports a page of device memory, to find out whether the controller
     * reaches such memory; staging_free() releases it. Called only at tier 2.
     */
    int (*device_page)(struct gq_exec *x, struct gq_import *out);
    /* Allocates zeroed pages that executor and host reach at the same address. */
    int (*shared_alloc)(struct gq_exec *x, size_t len, void **out);
    void (*shared_free)(struct gq_exec *x, void *addr);
    /*
     * Adds queue i. Its doorbells are the controller's, or proxied doorbells in
     * memory of shared_alloc() for an executor that cannot store to the
     * controller's. Once there are runs, port_add() and port_remove() are called
     * only between quiesce() and resume().
     */
    int (*port_add)(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp);
    void (*port_remove)(struct gq_exec *x, unsigned i);
    /* Copies the depth - 1 trackers of queue i as its last run left them. */
    int (*port_trackers)(struct gq_exec *x, unsigned i, struct gq_tracker *out);
    /* Returns the states of run `index`, one per queue. */
    struct gq_state *(*run_states)(struct gq_exec *x, unsigned index);
    /*
     * Runs the list. Each queue number has an area of staging. start() may return
     * before the run has ended; wait() does not. After these errors of start()
     * nothing has begun: -ECANCELED and -ETIMEDOUT (the run was cancelled or its
     * budget spent while it waited for the gate), and -ERESTART (all runs were asked
     * to leave). Any other error means that the executor has failed: the state of
     * the commands and of the run is unknown, and the executor frees no memory
     * that the run may reach.
     */
    int (*start)(struct gq_exec *x, struct gq_launch *l);
    int (*wait)(struct gq_exec *x, struct gq_launch *l);
    /* put() copies from host memory to the executor's memory, and get() copies back. */
    int (*put)(struct gq_exec *x, uint64_t dst, const void *src, size_t len);
    int (*get)(struct gq_exec *x, void *dst, uint64_t src, size_t len);
    /*
     * Implements gq_buffer_sums(). base is the buffer's address. If at is NULL, the
     * parts are contiguous.
     */
    int (*sums)(struct gq_exec *x, uint64_t base, const uint64_t *at, size_t n, uint32_t *sums);
    /*
     * Calls that may make the device wait for running kernels are made between
     * these two. quiesce() waits for the runs in flight of all executors on the
     * device, each of which ends by its deadlines, and selects the device for the
     * calling thread.
     */
    void (*quiesce)(struct gq_exec *x);
    void (*resume)(struct gq_exec *x);
    void (*close)(struct gq_exec *x);
};

struct gq_exec {
    const struct gq_exec_ops *ops;
    enum gq_executor_kind kind;
    unsigned tier;  /* tier of data and queues: 1 or 2 */
    bool rings;     /* stores to the controller's doorbells itself */
    char note[192]; /* why it does not, and a remedy */
    /*
     * Set if a kernel that sees a CQE in host memory also sees the data that
     * the controller wrote to device memory before it, without a flush by the
     * host (device_mem.h).
     */
    bool orders_writes;
    bool in_reach;  /* the controller may still reach its memory, so it is not closed */
    uint32_t flags; /* atomic; GQ_FLAG_LEAVE makes all runs leave */
    char device[128];
    uint8_t gpu_uuid[16]; /* see gq_info */
};

/*
 * Returns true if data that a read wrote to device memory is complete there
 * when its CQE is visible in host memory. A software controller, whose
 * doorbells are ordinary memory, posts a CQE after its copies are complete. A
 * drive writes to two targets, and PCIe does not order these writes.
 */
static inline bool gq_cqe_covers_device(const struct nvme_transport *t)
{
    return !t->doorbells_are_mmio;
}

#define GQ_NOTE_LENT      "the only queue pair is lent run by run, a CPU thread rings the doorbells"
#define GQ_NOTE_REQUESTED "a CPU thread rings the doorbells, as asked"

/* Open an executor for up to max_runs concurrent runs. */
int gq_cpu_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                struct gq_exec **out);
/*
 * Returns -ENODEV with a sentence in `why` if there is no device, and always in
 * a build without CUDA.
 */
int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                 struct gq_exec **out, struct reason *why);

__END_DECLS

#endif
