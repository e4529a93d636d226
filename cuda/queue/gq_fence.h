/*
 * Loads, stores and fences that the controller or the host takes part in. All PTX is here.
 *
 * Four orders matter, and each function names the one it makes:
 *  - SQEs before the doorbell: the controller that sees the new tail must see the entries;
 *  - the CQE's phase before everything read after it: the data, and the slot it frees. Either the
 *    load acquires, or a relaxed load and a fence behind it by the same lane do so together; the
 *    fence in front of a doorbell serves for both, and waits for loads and stores side by side;
 *  - all results before the state that tells the host that a queue has stopped, or a count;
 *  - a new word of a slot before everything read after it: what the host wrote before it.
 */
#ifndef CUDA_QUEUE_GQ_FENCE_H
#define CUDA_QUEUE_GQ_FENCE_H

#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#ifdef __CUDACC__

#define GQ_FN static __device__ __forceinline__

/*
 * Doorbells. mmio: the store is performed once, neither merged with another nor torn, which a
 * drive's registers demand and memory does not mind.
 */
GQ_FN void gq_store_doorbell(volatile uint32_t *doorbell, uint32_t value)
{
    asm volatile("st.mmio.relaxed.sys.u32 [%0], %1;" ::"l"(doorbell), "r"(value) : "memory");
}

/*
 * Run by all lanes, after they have met and right before lane 0 stores the doorbells. Orders, at
 * system scope, what all lanes stored before the meeting before the doorbells: a release is a fence
 * and a store of one thread, lane 0's. And it orders what a lane looked at by gq_peek_cqe() before
 * all that it reads from here on: an acquire is a load and a fence of one thread, each lane's own.
 */
GQ_FN void gq_fence_entries(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/*
 * CID in 15:0, status word with the phase in 31:16, from one load: they cannot disagree. Acquires:
 * what the same lane reads after it has seen the phase, the data say, is what the controller wrote
 * before.
 */
GQ_FN uint32_t gq_load_cqe(const struct nvme_cqe *cqe)
{
    uint32_t dw3;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(dw3) : "l"(&cqe->cid) : "memory");
    return dw3;
}

/*
 * The same, and nobody waits for it yet: relaxed, it acquires by the gq_fence_entries() that the
 * lane runs next, and its value is not to be looked at before.
 */
GQ_FN uint32_t gq_peek_cqe(const struct nvme_cqe *cqe)
{
    uint32_t dw3;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(dw3) : "l"(&cqe->cid) : "memory");
    return dw3;
}

/* Before a queue's state is stored for the host: orders what the lanes wrote before they met. */
GQ_FN void gq_fence_results(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

GQ_FN uint32_t gq_load_flag(const volatile uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

/*
 * A word of a slot that the host fills, and that says itself whether it is new. Loads of several
 * words go over the bus together when the one that acquires comes last.
 */
GQ_FN uint64_t gq_load_word(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* The same. What is read after a new word, also by lanes met since, is not older than its store. */
GQ_FN uint64_t gq_acquire_word(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/*
 * Between warps of a block: what one stored, or lanes that it met, before the release is seen by
 * the other after the acquire.
 */
GQ_FN uint32_t gq_acquire_block(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

GQ_FN void gq_release_block(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* A sign of life: carries nothing but itself, or what a fence right before it says. */
GQ_FN void gq_store_relaxed(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* Two progress, the first at a multiple of 8, by one store: who sees one of them sees the other. */
GQ_FN void gq_store_pair(uint32_t *first, uint32_t value, uint32_t second)
{
    uint64_t both = (uint64_t)second << 32 | value;
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(first), "l"(both) : "memory");
}

/* Nanoseconds of a clock that runs evenly; only differences have a meaning. */
GQ_FN uint64_t gq_clock_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* The number of the thread in its warp; blocks may have more than one dimension. */
GQ_FN uint32_t gq_thread(void)
{
    uint32_t thread;
    asm("mov.u32 %0, %%laneid;" : "=r"(thread));
    return thread;
}

#else

#include <stddef.h>
#include <time.h>

#define GQ_FN static inline

/*
 * On a host the store itself releases and the load itself acquires, so that the fences have
 * nothing left to do. Fences on their own would do as well, but ThreadSanitizer cannot see them.
 */
GQ_FN void gq_store_doorbell(volatile uint32_t *doorbell, uint32_t value)
{
    __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
}

GQ_FN void gq_fence_entries(void)
{
}

/* The four bytes are read as what they are: the last dword of an entry. */
typedef uint32_t __attribute__((may_alias)) gq_dword;

/*
 * CID in 15:0, status word with the phase in 31:16, from one load: they cannot disagree. The
 * acquire pairs with the controller's store of this dword, its last of an entry.
 */
GQ_FN uint32_t gq_load_cqe(const struct nvme_cqe *cqe)
{
    return __atomic_load_n((const gq_dword *)(const void *)&cqe->cid, __ATOMIC_ACQUIRE);
}

/* Acquires by itself, for the fence that follows does nothing here. */
GQ_FN uint32_t gq_peek_cqe(const struct nvme_cqe *cqe)
{
    return gq_load_cqe(cqe);
}

GQ_FN void gq_fence_results(void)
{
}

/* Relaxed: the flag carries nothing but itself. */
GQ_FN uint32_t gq_load_flag(const volatile uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_RELAXED);
}

GQ_FN void gq_store_relaxed(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Acquires, as on a GPU. */
GQ_FN uint64_t gq_acquire_word(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* A host has no use for one store of both: the first is the later. */
GQ_FN void gq_store_pair(uint32_t *first, uint32_t value, uint32_t second)
{
    __atomic_store_n(first + 1, second, __ATOMIC_RELAXED);
    __atomic_store_n(first, value, __ATOMIC_RELEASE);
}

GQ_FN uint64_t gq_clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif

#endif
