/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Notifications of controllers in software, beyond the transport interface. A
 * hardware controller is notified by its doorbells. A software controller polls
 * doorbells in memory and sleeps while idle; these calls bound the time until
 * it notices a store. It must notice stores without them as well. Only the
 * simulator (sim/) implements them.
 */
#ifndef BLOCKDEV_SOFTWARE_H
#define BLOCKDEV_SOFTWARE_H

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Any thread may call these at any time before the transport's close(). */
struct nvme_software {
    /* Wakes the controller at once after a CPU has stored to doorbells. */
    void (*kick)(struct nvme_transport *t);
    /*
     * Announces that the doorbells of `queues` queues will soon be stored to
     * without a kick.
     */
    void (*prewake)(struct nvme_transport *t, unsigned queues);
    /*
     * Adds +1 or -1 to the number of users that store to doorbells at any time
     * without a kick. While it is not 0, the controller sleeps at most 50 us at a
     * time.
     */
    void (*keep_polling)(struct nvme_transport *t, int change);
    /*
     * Like kick(), for the doorbells of one queue pair. Called by the queue's
     * owner, which waits for the commands, so they may be executed inside the call.
     * NULL means that callers use kick().
     */
    void (*kick_queue)(struct nvme_transport *t, uint16_t qid);
    /*
     * Returns the number of entries submitted to the SQ since its creation, as the
     * controller has seen it from the doorbell. NULL means that it does not count
     * them.
     */
    uint64_t (*submitted)(struct nvme_transport *t, uint16_t qid);
};

/* The following functions do nothing for a hardware controller. */
static inline void nvme_kick(struct nvme_transport *t)
{
    if (t->software)
        t->software->kick(t);
}

static inline void nvme_kick_queue(struct nvme_transport *t, uint16_t qid)
{
    if (t->software && t->software->kick_queue)
        t->software->kick_queue(t, qid);
    else
        nvme_kick(t);
}

/* Returns UINT64_MAX if only the submitter counts the SQ's entries. */
static inline uint64_t nvme_submitted(struct nvme_transport *t, uint16_t qid)
{
    return t->software && t->software->submitted ? t->software->submitted(t, qid) : UINT64_MAX;
}

static inline void nvme_prewake(struct nvme_transport *t, unsigned queues)
{
    if (t->software)
        t->software->prewake(t, queues);
}

static inline void nvme_keep_polling(struct nvme_transport *t, int change)
{
    if (t->software)
        t->software->keep_polling(t, change);
}

#ifdef __cplusplus
}
#endif

#endif
