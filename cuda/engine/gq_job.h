/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Jobs: the state machine that all kinds of transfers share (gq_job.c). A job
 * reserves queues and executes lists, each in a chunk of its workspace. A large
 * job has two lists in flight at once, each on half of its queues, so that one
 * half works while the other is between two lists; a third list is filled
 * meanwhile. Lists are completed in the order in which they were filled, in
 * whatever order they end.
 *
 * All functions are called by the thread of the job.
 */
#ifndef CUDA_ENGINE_GQ_JOB_H
#define CUDA_ENGINE_GQ_JOB_H

#include "cuda/engine/gq_internal.h"

struct gq_job;

/*
 * The steps that differ between kinds of jobs. None of them calls the state
 * machine.
 */
struct gq_job_kind {
    /* Returns the number of queues for the remaining work. */
    uint64_t (*want)(const struct gq_job *j);
    /*
     * Starts the remaining work after each reservation, and sets split. Returns 0
     * or -errno.
     */
    int (*prepare)(struct gq_job *j);
    /*
     * Fills list i. Returns false if no work is left, if the work depends on lists
     * in flight, or if err was set, which is only allowed without lists in flight.
     * Called again after each completion.
     */
    bool (*plan)(struct gq_job *j, unsigned i, struct gq_chunk *chunk);
    /*
     * List i, the next in order, has ended. err is 0, -ERESTART, -ETIMEDOUT or
     * -ECANCELED, from the states of its queues. Returns 0, or the error because of
     * which later lists are ignored.
     */
    int (*complete)(struct gq_job *j, unsigned i, const struct gq_chunk *chunk, int err);
};

/* A share of a job's queues, and the list that they execute. */
struct gq_job_run {
    struct gq_launch launch;
    const uint16_t *queues; /* queues of the job's reservation */
    unsigned n_queues, index;
    bool failed; /* the executor has failed: the state of the list is unknown */
};

struct gq_job {
    /* Set by the caller. */
    const struct gq_job_kind *kind;
    struct gq_engine *e;
    struct gq_buffer *buffer; /* entered by the caller */
    const volatile uint32_t *cancel;
    struct gq_result *result; /* filled in here except bytes and nvme_status */
    uint64_t deadline_ns;     /* now_ns() time for the whole job; 0: none */
    uint32_t opcode;
    const struct gq_reads *reads; /* the lists are of these reads; NULL: of commands */
    uint16_t least_portion;       /* gq_run.least_portion */

    /*
     * State of the current reservation. Lists are numbered from 0; list i is in
     * chunk i % GQ_JOB_CHUNKS.
     */
    bool split; /* two lists at once if there are enough queues */
    struct gq_reservation reservation;
    struct gq_job_run runs[GQ_JOB_RUNS]; /* list i is run by runs[i % n_runs] */
    unsigned n_runs;
    unsigned filled, started, ended; /* lists */
    int err;                         /* error of the last step */
    int stop;                        /* the error because of which no further list is started */

    /*
     * True if commands of this or an earlier reservation may be in flight, which
     * only a reset later than number `settled` ends.
     */
    bool unsettled;
    unsigned settled;
};

/*
 * Start and end of each call. gq_job_enter() counts a running transfer and
 * clears its result. It returns -ESTALE if the buffer is not registered;
 * otherwise the caller calls gq_buffer_leave() before gq_job_leave().
 * gq_job_leave() follows in either case and adds the result to the statistics
 * of the engine; err is that of the call.
 */
int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result);
void gq_job_leave(struct gq_engine *e, bool is_write, int err, const struct gq_result *result);

/*
 * Returns the end of a deadline in ms from now as a time of now_ns(), or 0 if
 * deadline_ms is 0.
 */
uint64_t gq_job_deadline(unsigned deadline_ms);

/*
 * Sets up reads into the buffer, or writes from it: all members except the map
 * and the ranges.
 */
void gq_job_set_up_reads(const struct gq_engine *e, const struct gq_buffer *b,
                         struct gq_reads *reads);

/*
 * Called before the first list of a staged job of long reads or units: makes
 * commands long_staging bytes long. A software controller spends a part of a
 * command's time independently of its length. At the end of the list queues
 * take one read at a time, because a queue with eight long ones would continue
 * after the others have ended. A write fills the staging of a few lanes of a
 * queue at a time. Changes nothing if max_command does not allow longer
 * commands.
 */
void gq_job_lengthen_commands(struct gq_job *j, struct gq_reads *reads);

/*
 * Copies n extents, at most GQ_READV_EXTENTS, to the executor's memory of the
 * job's workspace, unless they are there already, and stores their address in
 * *out. No list may be in flight. Returns 0, -ENOMEM or an error of the
 * executor.
 */
int gq_job_put_map(struct gq_job *j, const struct gq_file_extent *extents, size_t n,
                   const struct gq_file_extent **out);

/*
 * Does gq_transfer() of a staged buffer after all checks (gq_staged.c); len is
 * not 0.
 */
int gq_staged_transfer(struct gq_engine *e, const struct gq_request *req, struct gq_result *result);

/*
 * Executes the job to its end, again after each reset. Returns 0; an error of
 * complete(), prepare() or gq_reservation_take(); -ECANCELED or -ETIMEDOUT if
 * it was too late to start the next list; or another error of the executor,
 * after which the state of the list is unknown and it was not completed.
 */
int gq_job_execute(struct gq_job *j);

#endif
