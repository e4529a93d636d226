/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executor: drives the queue pairs and copies bytes, on a GPU or on host
 * threads. The engine above it (planning, reservations, quarantine) is the same
 * for both.
 */
#ifndef CUDA_GQ_EXEC_H
#define CUDA_GQ_EXEC_H

#include "cuda/gq.h"
#include "cuda/queue/gq_reads.h"
#include "cuda/queue/gq_work.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_CHUNK_CMDS   16384u
#define GQ_CHUNK_COPIES 4096u

/*
 * A bounded part of a transfer, ready to run. The arrays are the executor's, in
 * memory of both sides, except stream, which only the host reads. For a list of
 * reads only n_cmds is used.
 */
struct gq_chunk {
    struct gq_cmd *cmds;
    uint32_t *results;
    struct gq_copy *copies;
    uint64_t *stream; /* position in the transfer of each command's first byte */
    uint32_t n_cmds, n_copies;
    uint64_t start, end; /* positions in the transfer */
    uint64_t staging_used;
};

/* Parameters of one run: its queues and their state. */
struct gq_launch {
    struct gq_run run;
    const struct gq_reads *reads;    /* NULL: the run is of commands; else of these reads */
    unsigned index;                  /* of the run, from 0; one run at a time for each index */
    uint16_t queues[GQ_MAX_QUEUES];  /* numbers, as given to port_add() */
    struct gq_state *states;         /* run.n_queues of them, from run_states() */
    const volatile uint32_t *cancel; /* NULL: never; may be replaced before wait() */
    bool is_write;
    bool beside;         /* the caller has another run under way */
    uint64_t started_ns; /* this and the next: the executor's */
    bool persistent;
};

/* Memory imported by the executor: whole pages around the requested range. */
struct gq_import {
    struct nvme_mem mem;
    uint64_t base;  /* the first page at the executor's address */
    uint64_t head;  /* bytes from the first page to the first byte of the buffer */
    void *mapping;  /* of release() */
    size_t map_len; /* bytes */
};

struct gq_exec;

struct gq_exec_ops {
    /*
     * For GQ_MEM_FD *out is the result of gq_host_import(), which stays the
     * caller's on an error.
     */
    int (*import)(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out);
    void (*release)(struct gq_exec *x, struct gq_import *imp);
    /*
     * Page-aligned memory for staging, not yet mapped for the controller. host:
     * host memory, for controllers that cannot reach device memory, or whose
     * CQEs do not cover it.
     */
    int (*staging_alloc)(struct gq_exec *x, size_t len, bool host, struct gq_import *out);
    void (*staging_free)(struct gq_exec *x, struct gq_import *imp);
    /* Zeroed pages that the executor and the host reach at the same address. */
    int (*shared_alloc)(struct gq_exec *x, size_t len, void **out);
    void (*shared_free)(struct gq_exec *x, void *addr);
    /*
     * Adds queue i. Its doorbells are the controller's, or, for an executor
     * that does not store to them itself, proxied doorbells in memory from
     * shared_alloc(). Once there are runs, both calls are made between
     * quiesce() and resume().
     */
    int (*port_add)(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp);
    void (*port_remove)(struct gq_exec *x, unsigned i);
    /* The trackers of queue i as its last run left them: depth - 1. */
    int (*port_trackers)(struct gq_exec *x, unsigned i, struct gq_tracker *out);
    /* The arrays of the chunk: GQ_CHUNK_CMDS commands, GQ_CHUNK_COPIES copies. */
    int (*chunk_alloc)(struct gq_exec *x, struct gq_chunk *chunk);
    void (*chunk_free)(struct gq_exec *x, struct gq_chunk *chunk);
    struct gq_state *(*run_states)(struct gq_exec *x, unsigned index);
    /*
     * Runs the chunk: its copies before its commands (writes) or after them
     * (reads); a run of reads has an area of staging for each queue number.
     * start() may return before the run has ended; wait() does not. Errors of
     * start() before which nothing has begun: -EAGAIN, not beside another run
     * of the same caller, because a writer waits for the gate; -ECANCELED,
     * -ETIMEDOUT, the run was cancelled or its budget spent while it waited;
     * -ERESTART, all runs were asked to leave. Any other error means that the
     * executor has failed: the state of the commands and of the run is unknown,
     * and the executor frees no memory that the run may reach.
     */
    int (*start)(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk);
    int (*wait)(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk);
    /* Copies from and to host memory. */
    int (*put)(struct gq_exec *x, uint64_t dst, const void *src, size_t len);
    int (*get)(struct gq_exec *x, void *dst, uint64_t src, size_t len);
    /* gq_buffer_sums(): base is the buffer's address; at NULL: parts one after the other. */
    int (*sums)(struct gq_exec *x, uint64_t base, const uint64_t *at, size_t n, uint32_t *sums);
    /*
     * Calls that may make the device wait for running kernels are made between
     * these two. quiesce() waits for the runs under way, each of which ends by
     * its deadlines, and selects the device for the calling thread.
     */
    void (*quiesce)(struct gq_exec *x);
    void (*resume)(struct gq_exec *x);
    void (*close)(struct gq_exec *x);
};

struct gq_exec {
    const struct gq_exec_ops *ops;
    enum gq_executor_kind kind;
    unsigned tier;  /* of data and queues: 1 or 2 */
    bool rings;     /* stores to the controller's doorbells */
    char note[192]; /* the reason why it does not, and a remedy */
    bool in_reach;  /* the controller may still reach memory of it: it is not closed */
    uint32_t flags; /* atomic; GQ_FLAG_LEAVE asks all runs to leave */
    char device[128];
    uint8_t gpu_uuid[16]; /* zero without a GPU */
};

/*
 * Is data that a read wrote to device memory complete there when its CQE is
 * seen in host memory? A software controller, whose doorbells are ordinary
 * memory, posts a CQE after its copies are complete. The writes of a drive go
 * to two targets, and PCIe does not order them.
 */
static inline bool gq_cqe_covers_device(const struct nvme_transport *t)
{
    return !t->doorbells_are_mmio;
}

#define GQ_NOTE_REQUESTED "a CPU thread rings the doorbells, as asked"

/* max_runs: runs at once. */
int gq_cpu_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                struct gq_exec **out);
/* -ENODEV without a device, with a sentence in why; in a build without CUDA always. */
int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                 struct gq_exec **out, char *why, size_t why_len);

#ifdef __cplusplus
}
#endif

#endif
