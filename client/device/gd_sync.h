/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Accesses the locks of leased queues, and the words around them. Readers share
 * queues with all warps of all kernels of the process, or with all threads of
 * the process. This file has all PTX of the direct path except for the PTX of
 * the queue code (cuda/queue/gq_fence.h).
 *
 * A lock orders the accesses of its owners to the queue. gd_try_lock()
 * acquires, and gd_unlock() releases. On a GPU one lane executes both, at
 * device scope. The lanes of the group converge after gd_try_lock() and before
 * gd_unlock(), which extends the order to all of them. gd_unlock_fenced() does
 * not wait. It releases the accesses that the last fence of the same lane has
 * ordered.
 */
#ifndef CLIENT_DEVICE_GD_SYNC_H
#define CLIENT_DEVICE_GD_SYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "client/device/gd_types.h"
#include "cuda/queue/gq_atomic.h"
#include "cuda/queue/gq_fence.h"

GQ_FETCH(gd_lock_or, uint32_t, "r", "atom.acquire.gpu.or.b32", __atomic_fetch_or, __ATOMIC_ACQUIRE)

/* Returns the previous word. If it lacks GD_TAKEN, the caller has the lock. */
GQ_FN uint32_t gd_take_lock(uint32_t *lock)
{
    return gd_lock_or(lock, GD_TAKEN);
}

GQ_STORE(gd_unlock, uint32_t, "r", "st.release.gpu.u32", __atomic_store_n, __ATOMIC_RELEASE)

/*
 * Unlocks for a lane that has stored nothing to the queue since its last fence.
 * That fence and this store are the release, also for stores of earlier owners;
 * the lane does not wait for them again.
 */
GQ_STORE(gd_unlock_fenced, uint32_t, "r", "st.relaxed.gpu.u32", __atomic_store_n, __ATOMIC_RELEASE)

/*
 * Loads a word that other SMs store, from the L2 instead of the cache of this
 * SM.
 */
GQ_LOAD(gd_load32, uint32_t, "r", "ld.relaxed.gpu.u32", __ATOMIC_RELAXED)
GQ_LOAD(gd_load64, uint64_t, "l", "ld.relaxed.gpu.u64", __ATOMIC_RELAXED)
GQ_STORE(gd_store64, uint64_t, "l", "st.relaxed.gpu.u64", __atomic_store_n, __ATOMIC_RELAXED)

GQ_REPLACE(gd_replace64, uint64_t, "l", "atom.relaxed.gpu.cas.b64")
GQ_FETCH(gd_add64, uint64_t, "l", "atom.relaxed.gpu.add.u64", __atomic_fetch_add, __ATOMIC_ACQ_REL)
GQ_FETCH(gd_or64, uint64_t, "l", "atom.relaxed.gpu.or.b64", __atomic_fetch_or, __ATOMIC_ACQ_REL)
GQ_FETCH(gd_and64, uint64_t, "l", "atom.relaxed.gpu.and.b64", __atomic_fetch_and, __ATOMIC_ACQ_REL)

/*
 * Stores with release at system scope, because the host may poll the word
 * before the kernel has ended.
 */
GQ_STORE(gd_store_result, int64_t, "l", "st.release.sys.s64", __atomic_store_n, __ATOMIC_RELEASE)

/*
 * Stores relaxed, for the first lane of the only group that read: this lane's
 * system fence (gq_end) has ordered what the group stored to the buffer, and
 * the drive wrote its data before the CQE.
 */
GQ_STORE(gd_store_own_result, int64_t, "l", "st.relaxed.sys.s64", __atomic_store_n,
         __ATOMIC_RELEASE)

#ifdef __CUDACC__

/* Loads two adjacent words, each by a relaxed load. `at` is a multiple of 16. */
GQ_FN void gd_load_pair(const uint64_t *at, uint64_t *out)
{
    asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];"
                 : "=l"(out[0]), "=l"(out[1])
                 : "l"(at)
                 : "memory");
}

/* Pauses between two loads of locks that are held. */
GQ_FN void gd_pause(void)
{
    __nanosleep(200);
}

/*
 * Pauses between two polls of a state in GPU memory that another group stores.
 */
GQ_FN void gd_rest(void)
{
    __nanosleep(50);
}

/*
 * Called between two polls of a queue. Does not pause, because the SM runs
 * other warps meanwhile.
 */
GQ_FN void gd_idle(void)
{
}

GQ_FN uint32_t gd_sm(void)
{
    uint32_t sm;

    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

/*
 * Returns the number of the kernel's launch. Launches that run at a time have
 * different ones. An instance of a graph keeps those of its kernels, but does
 * not run twice at a time.
 */
GQ_FN uint64_t gd_launch_number(void)
{
    uint64_t number;

    asm("mov.u64 %0, %%gridid;" : "=l"(number));
    return number;
}

/*
 * Returns the number at which the search for a queue begins. Warps that run at the same time have
 * different numbers. Warps of the same rank on all SMs have adjacent numbers. The distance between
 * warps of an SM is odd, because with an even distance the eight warps of a block began at only
 * three of 36 queues.
 */
GQ_FN uint32_t gd_seed(void)
{
    uint32_t sms, warp;

    asm("mov.u32 %0, %%nsmid;" : "=r"(sms));
    asm("mov.u32 %0, %%warpid;" : "=r"(warp));
    return gd_sm() + (sms | 1u) * warp;
}

#else

#include <sched.h>

GQ_FN void gd_load_pair(const uint64_t *at, uint64_t *out)
{
    out[0] = gd_load64(&at[0]);
    out[1] = gd_load64(&at[1]);
}

GQ_FN void gd_pause(void)
{
    sched_yield();
}

GQ_FN void gd_rest(void)
{
    sched_yield();
}

/* The controller's thread may need this processor. */
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
 * Returns the previous word. The caller has the lock if the word has none of
 * the bits in `others`, which is GD_BUSY or GD_LED.
 */
GQ_FN uint32_t gd_try_lock(uint32_t *lock, uint32_t others)
{
    uint32_t word = gd_take_lock(lock);

    if (!(word & GD_TAKEN) && (word & others))
        gd_unlock(lock, word);
    return word;
}

#endif
