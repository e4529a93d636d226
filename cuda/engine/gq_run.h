/*
 * Runs of an engine's queues: what transfers of every kind have in common. A job reservations
 * queues and works through lists, each in a chunk of its workspace. A large job has two lists under
 * way at once, each on half of its queues, so that one half works while the other is between lists;
 * a third is filled in meanwhile. Whatever order they end in, they are taken in the order they were
 * filled in.
 *
 * Everything here is called by the job's own thread.
 */
#ifndef CUDA_ENGINE_GQ_RUN_H
#define CUDA_ENGINE_GQ_RUN_H

#include "cuda/engine/gq_internal.h"
#include "support/clock.h"

/* A share of a job's queues, and the list they work on. */
struct gq_job_run {
    struct gq_launch launch;
    const uint16_t *queues; /* of the job's reservation */
    unsigned n_queues, index;
    bool failed; /* the executor: nothing is known of the list */
};

struct gq_job {
    struct gq_engine *e;
    struct gq_buffer *buffer; /* entered by the caller */
    const volatile uint32_t *cancel;
    struct gq_result *result; /* all but bytes and nvme_status are filled in here */
    uint64_t deadline_ns;     /* now_ns(), of the whole job; 0: none */
    uint64_t want;            /* queues; looked at before each reservation */
    uint32_t opcode;
    const struct gq_reads *reads; /* the list of a call, its only one; NULL: lists of commands */
    /*
     * Does all that is left, with the reservation, by gq_job_lists(). -ERESTART: a reset came, call
     * it again.
     */
    int (*work)(struct gq_job *j);

    /* Lists are numbered from 0 by each gq_job_lists(); list i is in chunk i % GQ_JOB_CHUNKS. */

    /* Fills list i in. False: there is nothing left. */
    bool (*fill)(struct gq_job *j, unsigned i, struct gq_chunk *chunk);
    /*
     * List i, the next in order, has ended: err is 0, -ERESTART, -ETIMEDOUT or -ECANCELED by what
     * the queues say. Returns 0, or why no other list counts.
     */
    int (*take)(struct gq_job *j, unsigned i, const struct gq_chunk *chunk, int err);

    struct gq_reservation reservation;
    struct gq_job_run runs[GQ_JOB_RUNS]; /* list i is run by runs[i % n_runs] */
    unsigned n_runs;
    unsigned filled, started, ended; /* lists of this call */
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
 * returned last, or why there were no queues (gq_reservation_take).
 */
int gq_job_do(struct gq_job *j);

/*
 * Works through the lists until fill() has no more, or one does not end well: then nothing more is
 * started, and what is under way is told to end. split: two at once, where there are queues for it.
 * 0; what take() said; -ECANCELED or -ETIMEDOUT when it was too late to start the next, -ERESTART
 * when a reset has to come first; another error of the executor, and nothing is known of the list,
 * nor is it taken.
 */
int gq_job_lists(struct gq_job *j, bool split);

#endif
