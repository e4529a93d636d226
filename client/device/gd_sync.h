/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The locks of leased queues, and the words around them. Readers share queues with all warps of all
 * kernels of the process, or with all its threads. All PTX of the direct path that the queue code
 * (cuda/gq_fence.h) does not have.
 *
 * A lock orders what its owners do to the queue: gd_try_lock() acquires, gd_unlock() releases. On a
 * GPU both are of one lane, at the scope of the device, and the lanes meet after the one and before
 * the other; the meeting hands the order on to all of them. gd_unlock_fenced() waits for nothing,
 * and releases what the same lane's last fence has ordered.
 */
#ifndef CLIENT_DEVICE_GD_SYNC_H
#define CLIENT_DEVICE_GD_SYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "client/device/gd_types.h"
#include "cuda/queue/gq_atomic.h"
#include "cuda/queue/gq_fence.h"

#ifdef __CUDACC__

GQ_ATOMIC_FETCH(gd_lock_or, "atom.acquire.gpu.or.b32")

/* The word as it was: the lock is the caller's if it was not GD_TAKEN. */
GQ_FN uint32_t gd_take_lock(uint32_t *lock)
{
    return gd_lock_or(lock, GD_TAKEN);
}

GQ_FN void gd_unlock(uint32_t *lock, uint32_t word)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(lock), "r"(word) : "memory");
}

/*
 * The same for a lane that has stored nothing to the queue since it passed a fence: fence and store
 * are the release, also of what owners before it did. It does not wait for its stores once more.
 */
GQ_FN void gd_unlock_fenced(uint32_t *lock, uint32_t word)
{
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(lock), "r"(word) : "memory");
}

/*
 * Words that other SMs change meanwhile: loaded from memory that all SMs see, not from this SM's
 * cache.
 */
GQ_FN uint32_t gd_load32(const uint32_t *at)
{
    uint32_t value;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");

    return value;
}

GQ_FN uint64_t gd_load64(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");

    return value;
}

GQ_FN void gd_store64(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* For a host that looks at the word before the stream has come this far. */
GQ_FN void gd_store_result(int64_t *at, int64_t value)
{
    asm volatile("st.release.sys.s64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/*
 * The same by the first lane of the only group that read. What a group stores to the buffer itself
 * is behind a fence for the system of this very lane (gq_end), and what the drive wrote was there
 * before its completion: nothing is left to wait for.
 */
GQ_FN void gd_store_own_result(int64_t *at, int64_t value)
{
    asm volatile("st.relaxed.sys.s64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* Pause between two loads of locks that are held. */
GQ_FN void gd_pause(void)
{
    __nanosleep(200);
}

/* Between two looks at a state in GPU memory that another group will store. */
GQ_FN void gd_rest(void)
{
    __nanosleep(50);
}

/* Between two looks at a queue: other warps run meanwhile as it is. */
GQ_FN void gd_idle(void)
{
}

/*
 * Where to begin the search for a queue: warps that run at one time have different numbers, those
 * of the same rank on all SMs adjacent ones.
 */
GQ_FN uint32_t gd_seed(void)
{
    uint32_t sm, sms, warp;

    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    asm("mov.u32 %0, %%nsmid;" : "=r"(sms));
    asm("mov.u32 %0, %%warpid;" : "=r"(warp));
    return sm + sms * warp;
}

#else

#include <sched.h>

GQ_FN uint32_t gd_take_lock(uint32_t *lock)
{
    return __atomic_fetch_or(lock, GD_TAKEN, __ATOMIC_ACQUIRE);
}

GQ_FN void gd_unlock(uint32_t *lock, uint32_t word)
{
    __atomic_store_n(lock, word, __ATOMIC_RELEASE);
}

/* There are no fences here: gq_fence.h. */
GQ_FN void gd_unlock_fenced(uint32_t *lock, uint32_t word)
{
    gd_unlock(lock, word);
}

GQ_FN uint32_t gd_load32(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

GQ_FN uint64_t gd_load64(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

GQ_FN void gd_store64(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

GQ_FN void gd_store_own_result(int64_t *at, int64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

GQ_FN void gd_pause(void)
{
    sched_yield();
}

GQ_FN void gd_rest(void)
{
    sched_yield();
}

/* The controller may need this very core. */
GQ_FN void gd_idle(void)
{
    sched_yield();
}

GQ_FN uint32_t gd_seed(void)
{
    return (uint32_t)sched_getcpu();
}

#endif

/*
 * For a reader that needs the queue for itself. The word as it was: the lock is the caller's if
 * that was GD_FREE.
 */
GQ_FN uint32_t gd_try_lock(uint32_t *lock)
{
    uint32_t word = gd_take_lock(lock);

    if (!(word & GD_TAKEN) && !GD_FREE(word))
        gd_unlock(lock, word);
    return word;
}

/* For the leader of a shared queue: the lock is the caller's if GD_LEADS of the result. */
#define GD_LEADS(word) (((word) & (GD_TAKEN | GD_LOST)) == 0)
GQ_FN uint32_t gd_try_lead(uint32_t *lock)
{
    uint32_t word = gd_take_lock(lock);

    if (!(word & GD_TAKEN) && !GD_LEADS(word))
        gd_unlock(lock, word);
    return word;
}

#endif
