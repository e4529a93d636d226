/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the state machine that all kinds of transfers share (gq_job.c). A
 * job reserves queues and executes lists in turn. The next list may be planned
 * while another list is in flight, and starts as soon as that list has ended.
 *
 * All functions are called by the thread of the job.
 */
#ifndef CUDA_ENGINE_GQ_JOB_H
#define CUDA_ENGINE_GQ_JOB_H

#include "cuda/engine/gq_internal.h"

struct gq_job;

/*
 * Declares the steps that differ between kinds of jobs. None of them calls the
 * state machine.
 */
struct gq_job_kind {
    /* Returns the number of queues for the remaining work. */
    uint64_t (*want)(const struct gq_job *j);
    /* Starts the remaining work after each reservation. Returns 0 or -errno. */
    int (*prepare)(struct gq_job *j);
    /*
     * Fills the next list. Returns false if no work is left, if the work depends on lists
     * in flight, or if err was set, which is only allowed without lists in flight.
     * Called again after each completion.
     */
    bool (*plan)(struct gq_job *j, struct gq_list *list);
    /*
     * The list has ended (gq_job_state()). err is 0, -ERESTART, -ETIMEDOUT or
     * -ECANCELED, from the states of its queues. Returns 0, or the error because
     * of which later lists are ignored.
     */
    int (*complete)(struct gq_job *j, const struct gq_list *list, int err);
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
    uint16_t least_portion; /* gq_run.least_portion */

    /*
     * The following members describe the current reservation. Lists are
     * numbered from 0. List i is in lists[i % GQ_JOB_LISTS] of the workspace.
     */
    struct gq_reservation reservation;
    struct gq_launch launch;         /* of the list in flight */
    unsigned filled, started, ended; /* lists */
    bool failed;                     /* the executor has failed: the state of the list is unknown */
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
 * of the engine; err is that of the call. After -ESTALE no byte counts as
 * transferred.
 */
int gq_job_enter(struct gq_engine *e, struct gq_buffer *b, struct gq_result *result);
void gq_job_leave(struct gq_engine *e, bool is_write, int err, struct gq_result *result);

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
 * Returns the state of queue i of the reservation at the end of the last list,
 * for complete().
 */
static inline const struct gq_state *gq_job_state(const struct gq_job *j, unsigned i)
{
    return &j->e->queues[j->reservation.queues[i]].state;
}

/*
 * Called before the first list of a staged job of long reads or units: makes
 * commands long_staging bytes long. A software controller spends a part of a
 * command's time independently of its length. At the end of the list queues
 * take one read at a time, because a queue with eight long ones would continue
 * after the others have ended. Changes nothing if max_command does not allow
 * longer commands.
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
 * Executes the job to its end, again after each reset. Returns 0; an error of
 * complete(), prepare() or gq_reservation_take(); -ECANCELED or -ETIMEDOUT if
 * it was too late to start the next list; or another error of the executor,
 * after which the state of the list is unknown and it was not completed.
 */
int gq_job_execute(struct gq_job *j);

#endif
