/* Bounded waiting for something another thread or a device does. */
#ifndef SUPPORT_WAIT_H
#define SUPPORT_WAIT_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint64_t nvme_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t nvme_deadline_ms(uint64_t ms)
{
    return nvme_now_ns() + ms * 1000000u;
}

/*
 * How long to wait between two polls: a few hundred polls at once, since a fast device answers
 * within them; then the processor is offered to others, for with few cores the software
 * controller may need this very one; then sleep, for by now the answer takes its time.
 */
#define NVME_WAIT_SPINS    256u
#define NVME_WAIT_YIELDS   128u
#define NVME_WAIT_SLEEP_NS 50000

struct nvme_wait {
    unsigned polls; /* without success so far */
};

static inline void nvme_wait_reset(struct nvme_wait *w)
{
    w->polls = 0;
}

/* Waits once. Returns true when it slept: time for the rarer checks (registers, deadlines). */
static inline bool nvme_wait_once(struct nvme_wait *w)
{
    struct timespec ts = {.tv_sec = 0, .tv_nsec = NVME_WAIT_SLEEP_NS};

    if (w->polls < NVME_WAIT_SPINS) {
        w->polls++;
        return false;
    }
    if (w->polls < NVME_WAIT_SPINS + NVME_WAIT_YIELDS) {
        w->polls++;
        sched_yield();
        return false;
    }
    nanosleep(&ts, NULL);
    return true;
}

#ifdef __cplusplus
}
#endif

#endif
