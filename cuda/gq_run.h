/*
 * Runs of an engine's queues: what transfers of every kind have in common. A job leases queues, and
 * its runs, each on a share of them, work through lists, one list at a time.
 *
 * Everything here is called by the job's own thread.
 */
#ifndef CUDA_GQ_RUN_H
#define CUDA_GQ_RUN_H

#include "cuda/gq_internal.h"

/* A share of a job's queues, and the list they work on. */
struct gq_job_run {
    struct gq_launch launch;
    const uint16_t *queues; /* of the job's lease */
    unsigned n_queues, slot;
    bool failed; /* the executor: nothing is known of the list */
};

struct gq_job {
    struct gq_engine *e;
    struct gq_buffer *buffer; /* entered by the caller */
    const volatile uint32_t *cancel;
    struct gq_result *result; /* all but bytes and nvme_status are filled in here */
    uint64_t deadline_ns;     /* gq_now_ns(), of the whole job; 0: none */
    uint64_t want;            /* queues; looked at before each lease */
    /* Does all that is left, with the lease. -ERESTART: a reset came, call it again. */
    int (*work)(struct gq_job *j);
    struct gq_lease lease;
};

/*
 * Around each call: it counts as a transfer under way, and its result begins empty. -ESTALE: there
 * is no such buffer; otherwise the caller leaves it (gq_buffer_leave) before gq_job_leave(), which
 * follows in any case and adds the result to what the engine has counted.
 */
int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result);
void gq_job_leave(struct gq_engine *e, bool is_write, const struct gq_result *result);

/* deadline_ms as in gq_request. */
uint64_t gq_job_deadline(unsigned deadline_ms);
/*
 * Leases queues and works, for as long as nobody resets the controller, and then again. What work()
 * returned last, or why there were no queues (gq_lease_take).
 */
int gq_job_do(struct gq_job *j);

/* Deals the queues of the lease to n runs, no more than there are queues. */
void gq_job_share(const struct gq_job *j, struct gq_job_run *runs, unsigned n);
/*
 * Starts chunk. The caller has set in run->launch what tells of the list: n_cmds, opcode, and what
 * the executor needs beside the chunk; the rest is filled in. beside: another run of the job is
 * under way. -ECANCELED, -ETIMEDOUT: it is too late to start any; -EAGAIN: not beside another;
 * another error of the executor.
 */
int gq_job_start(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk,
                 bool beside);
/*
 * Waits for what was started. 0, -ERESTART, -ETIMEDOUT, -ECANCELED by what the queues say; another
 * error of the executor, with run->failed.
 */
int gq_job_wait(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk);
/* The same for a run whose results are of no use any more: it is told to end. */
void gq_job_abandon(struct gq_job *j, struct gq_job_run *run, const struct gq_chunk *chunk);

#endif
