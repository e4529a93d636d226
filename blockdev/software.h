/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Controllers in software: notifications beyond the transport interface. A
 * controller of hardware is notified by its doorbells. A software controller
 * polls doorbells in memory and sleeps when idle; these calls bound the time
 * until it notices a store. It must notice stores without them as well. Only
 * the simulator (sim/) implements them.
 */
#ifndef BLOCKDEV_SOFTWARE_H
#define BLOCKDEV_SOFTWARE_H

#include "blockdev/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Any thread may call them, at any time before the transport's close(). */
struct nvme_software {
    /* A CPU has stored to doorbells: wakes the controller at once. */
    void (*kick)(struct nvme_transport *t);
    /* Doorbells of so many queues will be stored to soon, without a kick. */
    void (*prewake)(struct nvme_transport *t, unsigned queues);
    /*
     * +1 or -1: number of holders of queues that store to doorbells at any time
     * without a kick. While there is one, the sleep is at most 50 us.
     */
    void (*keep_polling)(struct nvme_transport *t, int change);
    /*
     * As kick(), for the doorbells of one queue pair, by its owner, which waits for the commands:
     * they may be executed inside the call. NULL: kick() serves.
     */
    void (*kick_queue)(struct nvme_transport *t, uint16_t qid);
    /*
     * Entries that were submitted to the SQ since it was created, as the controller has seen its
     * doorbell. NULL: not counted.
     */
    uint64_t (*submitted)(struct nvme_transport *t, uint16_t qid);
};

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

/* UINT64_MAX: nothing counts the entries of the SQ but their submitter. */
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
