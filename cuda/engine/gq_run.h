/*
 * Jobs: the part that all kinds of transfers share. A job reserves queues and
 * executes lists, each in a chunk of its workspace. A large job has two lists
 * under way at once, each on half of its queues, so that one half works while
 * the other is between two lists; a third list is filled meanwhile. Lists are
 * taken in the order in which they were filled, in whatever order they end.
 *
 * All functions are called by the thread of the job.
 */
#ifndef CUDA_ENGINE_GQ_RUN_H
#define CUDA_ENGINE_GQ_RUN_H

#include "cuda/engine/gq_internal.h"
#include "support/clock.h"

/* A share of a job's queues, and the list that they execute. */
struct gq_job_run {
    struct gq_launch launch;
    const uint16_t *queues; /* of the job's reservation */
    unsigned n_queues, index;
    bool failed; /* the executor has failed: the state of the list is unknown */
};

struct gq_job {
    struct gq_engine *e;
    struct gq_buffer *buffer; /* entered by the caller */
    const volatile uint32_t *cancel;
    struct gq_result *result; /* all but bytes and nvme_status are filled in here */
    uint64_t deadline_ns;     /* now_ns(), of the whole job; 0: none */
    uint64_t want;            /* queues; read before each reservation */
    uint32_t opcode;
    const struct gq_reads
        *reads; /* the list of a call, its only one; NULL: the lists are of commands */
    /*
     * Executes the remaining work on the reserved queues, by gq_job_lists().
     * -ERESTART: a reset has interrupted it, and it is called again.
     */
    int (*work)(struct gq_job *j);

    /* Lists are numbered from 0 by each gq_job_lists(); list i is in chunk i % GQ_JOB_CHUNKS. */

    /* Fills list i. False: no work is left. */
    bool (*fill)(struct gq_job *j, unsigned i, struct gq_chunk *chunk);
    /*
     * List i, the next in order, has ended: err is 0, -ERESTART, -ETIMEDOUT or
     * -ECANCELED, from the states of its queues. Returns 0, or the error
     * because of which later lists do not count.
     */
    int (*take)(struct gq_job *j, unsigned i, const struct gq_chunk *chunk, int err);

    struct gq_reservation reservation;
    struct gq_job_run runs[GQ_JOB_RUNS]; /* list i is run by runs[i % n_runs] */
    unsigned n_runs;
    unsigned filled, started, ended; /* lists of this call */
};

/*
 * Begin and end of each call. Enter counts a transfer under way and clears its
 * result; -ESTALE: the buffer is not registered, otherwise the caller calls
 * gq_buffer_leave() before gq_job_leave(). Leave follows in either case and
 * adds the result to the statistics of the engine.
 */
int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result);
void gq_job_leave(struct gq_engine *e, bool is_write, const struct gq_result *result);

/* deadline_ms as in gq_request. */
uint64_t gq_job_deadline(unsigned deadline_ms);
/*
 * Reserves queues and calls work(), again after each reset. Returns the last
 * result of work(), or the error of gq_reservation_take().
 */
int gq_job_do(struct gq_job *j);

/*
 * Executes lists until fill() has no more or one list fails: then no further
 * list is started, and lists under way are cancelled. split: two lists at once,
 * where the queues suffice.
 *
 * Returns 0; the error of take(); -ECANCELED or -ETIMEDOUT when it is too late
 * to start the next list; -ERESTART when a reset comes first; or another error
 * of the executor: the state of the list is unknown, and it is not taken.
 */
int gq_job_lists(struct gq_job *j, bool split);

#endif
