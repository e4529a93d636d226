/*
 * An executor: who drives the queue pairs and copies bytes, a GPU or host threads. Everything
 * above it (planning, leases, quarantine) is the same for both.
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
 * A bounded part of a transfer, ready to run. The arrays are the executor's (both sides reach
 * them) but for stream, which only the host reads. Of a list of reads n_cmds is all there is.
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

/* Where one run takes place: which queues, with what state. */
struct gq_launch {
    struct gq_run run;
    const struct gq_reads *reads;    /* NULL: run is of commands; else of these (asked) */
    unsigned index;                  /* numbered from 0; one run at a time in each */
    uint16_t queues[GQ_MAX_QUEUES];  /* numbers, as given to port_add() */
    struct gq_state *states;         /* run.n_queues of them, from run_states() */
    const volatile uint32_t *cancel; /* NULL: never; may become another before wait() */
    bool is_write;
    bool beside;         /* the caller has another run under way */
    uint64_t started_ns; /* the executor's, and the next */
    bool persistent;
};

/* Memory taken in by the executor, whole pages around what was asked for. */
struct gq_import {
    struct nvme_mem mem;
    uint64_t base;  /* the first page, as the executor addresses it */
    uint64_t head;  /* bytes from the first page to the first byte of the buffer */
    void *mapping;  /* what release() needs */
    size_t map_len; /* bytes */
};

struct gq_exec;

struct gq_exec_ops {
    /* Of GQ_MEM_FD *out is what gq_host_import() made, which stays the caller's on an error. */
    int (*import)(struct gq_exec *x, const struct gq_mem *mem, struct gq_import *out);
    void (*release)(struct gq_exec *x, struct gq_import *imp);
    /*
     * Page-aligned memory for staging, not yet mapped for the controller. host: not the device's,
     * for controllers that cannot reach that, or whose CQEs do not cover it.
     */
    int (*staging_alloc)(struct gq_exec *x, size_t len, bool host, struct gq_import *out);
    void (*staging_free)(struct gq_exec *x, struct gq_import *imp);
    /* Zeroed pages that the executor and the host reach at the same address. */
    int (*shared_alloc)(struct gq_exec *x, size_t len, void **out);
    void (*shared_free)(struct gq_exec *x, void *addr);
    /*
     * Makes queue number i known. Its doorbells are the controller's, or, for an executor that
     * does not ring itself, proxied doorbells in memory from shared_alloc().
     */
    int (*port_add)(struct gq_exec *x, unsigned i, const struct nvme_qpair *qp);
    void (*port_remove)(struct gq_exec *x, unsigned i);
    /* The commands of queue i as its last run left them: depth - 1, by CID. */
    int (*port_trackers)(struct gq_exec *x, unsigned i, struct gq_tracker *out);
    /* The chunk's arrays: GQ_CHUNK_CMDS commands, GQ_CHUNK_COPIES pieces. */
    int (*chunk_alloc)(struct gq_exec *x, struct gq_chunk *chunk);
    void (*chunk_free)(struct gq_exec *x, struct gq_chunk *chunk);
    struct gq_state *(*run_states)(struct gq_exec *x, unsigned index);
    /*
     * Runs the chunk: its pieces before its commands (writes) or after them (reads); a run of
     * reads has an area of staging for each queue number. start()
     * may return before the run has ended; wait() does not. -EAGAIN from start(): not beside
     * another run of the same caller, since somebody waits for all runs to end; -ECANCELED,
     * -ETIMEDOUT: the run was cancelled, or its budget spent, before its turn came; -ERESTART: so
     * were all runs asked to leave. None of these has begun. Any other error means that the
     * executor itself failed, and that nothing is known about the commands, nor whether the run has
     * ended: the executor frees nothing any more that it may reach.
     */
    int (*start)(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk);
    int (*wait)(struct gq_exec *x, struct gq_launch *l, const struct gq_chunk *chunk);
    /* Between host memory and the executor's; zero() writes zeros. */
    int (*put)(struct gq_exec *x, uint64_t dst, const void *src, size_t len);
    int (*get)(struct gq_exec *x, void *dst, uint64_t src, size_t len);
    int (*zero)(struct gq_exec *x, uint64_t dst, size_t len);
    /* Calls that may make the device wait for running kernels go between these two. */
    void (*quiesce)(struct gq_exec *x);
    void (*resume)(struct gq_exec *x);
    void (*close)(struct gq_exec *x);
};

struct gq_exec {
    const struct gq_exec_ops *ops;
    enum gq_executor_kind kind;
    unsigned tier;  /* of data and queues: 1 or 2 */
    bool rings;     /* stores to the controller's doorbells itself */
    char note[192]; /* why it does not ring itself, and what to do */
    bool in_reach;  /* memory of it that the controller may still reach: it is not closed */
    uint32_t flags; /* atomic; GQ_FLAG_LEAVE asks all runs to leave */
    char device[128];
    uint8_t gpu_uuid[16]; /* zero without a GPU */
};

/*
 * Has what a read wrote to device memory arrived there once its CQE is seen in host memory? A
 * software controller, whose doorbells are ordinary memory, posts a CQE after its copies are
 * complete. A drive's writes go to two targets, and nothing orders the two.
 */
static inline bool gq_cqe_covers_device(const struct nvme_transport *t)
{
    return !t->doorbells_are_mmio;
}

#define GQ_NOTE_REQUESTED "a CPU thread rings the doorbells, as asked"

/* max_runs: runs at once. */
int gq_cpu_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                struct gq_exec **out);
/* -ENODEV without a device, with a sentence in why; without CUDA in the build always so. */
int gq_cuda_open(struct nvme_ctrlr *c, const struct gq_options *opts, unsigned max_runs,
                 struct gq_exec **out, char *why, size_t why_len);

#ifdef __cplusplus
}
#endif

#endif
