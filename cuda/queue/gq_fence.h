/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loads, stores and fences that concern the controller or the host. All PTX is
 * here.
 *
 * Five orders matter, and each function names the one that it makes:
 * - SQEs before the doorbell: a controller that sees the new tail must see the
 *   entries;
 * - the CQE's phase before later loads of the data and of memory that the
 *   completion frees: either the load acquires, or a relaxed load and a fence
 *   behind it by the same lane do so together; the fence before a doorbell
 *   serves for both and waits for loads and stores at once;
 * - all results before the state that tells the host that a queue has stopped,
 *   or before a counter;
 * - a new word of a tagged slot before later loads of memory that the host
 *   wrote before it;
 * - the announcement of a kernel before its loads of work that the host
 *   cancels.
 */
#ifndef CUDA_QUEUE_GQ_FENCE_H
#define CUDA_QUEUE_GQ_FENCE_H

#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#ifdef __CUDACC__

#define GQ_FN static __device__ __forceinline__

/*
 * A step of a read. It is inlined too, unless a source asks for few registers;
 * then it is called.
 */
#ifdef GPUNVME_DEVICE_SMALL
#define GQ_STEP static inline __device__ __noinline__
#else
#define GQ_STEP GQ_FN
#endif

/* Defines a function that loads a word by one PTX instruction. */
#define GQ_LOAD(name, type, reg, instruction)                                         \
    GQ_FN type name(const volatile type *at)                                          \
    {                                                                                 \
        type value;                                                                   \
        asm volatile(instruction " %0, [%1];" : "=" reg(value) : "l"(at) : "memory"); \
                                                                                      \
        return value;                                                                 \
    }

/* Defines a function that stores to a word, or changes it, by one PTX instruction. */
#define GQ_STORE(name, type, reg, instruction)                                   \
    GQ_FN void name(volatile type *at, type value)                               \
    {                                                                            \
        asm volatile(instruction " [%0], %1;" ::"l"(at), reg(value) : "memory"); \
    }

/*
 * Stores a doorbell. `mmio` means that the store is performed exactly once,
 * neither merged nor torn, as registers of a drive require.
 */
GQ_STORE(gq_store_doorbell, uint32_t, "r", "st.mmio.relaxed.sys.u32")

/*
 * Executed by all lanes that have stored entries or peeked at CQEs, after they
 * have converged and directly before lane 0 stores the doorbells. Orders, at
 * system scope, the stores of all lanes before the convergence before the
 * doorbells: a fence and a store of one thread, lane 0, form a release. It also
 * orders the loads of gq_peek_cqe() before all later loads of the same lane:
 * each lane's load and fence form an acquire.
 */
GQ_FN void gq_fence_entries(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/*
 * Returns the CID in 15:0 and the status word with the phase in 31:16. A single
 * load reads both, so that they belong to the same CQE. Acquires: later loads
 * of the same lane see everything that the controller wrote before the CQE,
 * including the data.
 */
GQ_FN uint32_t gq_load_cqe(const struct nvme_cqe *cqe)
{
    uint32_t dw3;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(dw3) : "l"(&cqe->cid) : "memory");

    return dw3;
}

/*
 * Like gq_load_cqe(), without waiting for the value. The load is relaxed; it
 * acquires by the gq_fence_entries() that the lane executes next, and its value
 * must not be used before that.
 */
GQ_FN uint32_t gq_peek_cqe(const struct nvme_cqe *cqe)
{
    uint32_t dw3;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(dw3) : "l"(&cqe->cid) : "memory");

    return dw3;
}

/*
 * A release at system scope. A fence that also acquires empties the L1, for
 * which a load behind it waits: 0.17 us on an H100. PTX has the weaker fence
 * since version 8.6.
 */
GQ_FN void gq_fence_release(void)
{
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1207
    asm volatile("fence.release.sys;" ::: "memory");
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/*
 * Like gq_fence_entries(), executed only by lane 0 after the convergence. It
 * acquires nothing, because the lane has not peeked at a CQE.
 */
GQ_FN void gq_fence_entry(void)
{
    gq_fence_release();
}

/*
 * Executed before a queue's state is stored for the host. Orders the loads and
 * stores of the lanes before their convergence.
 */
GQ_FN void gq_fence_results(void)
{
    gq_fence_release();
}

GQ_LOAD(gq_load_flag, uint32_t, "r", "ld.relaxed.sys.u32")

/*
 * Loads a word of a tagged slot. Loads of several words travel over the bus
 * together if the acquiring one is last.
 */
GQ_LOAD(gq_load_word, uint64_t, "l", "ld.relaxed.sys.u64")

/*
 * Like gq_load_word(), but acquires: loads after a new word, also by lanes that
 * converge later, are not older than the word.
 */
GQ_LOAD(gq_acquire_word, uint64_t, "l", "ld.acquire.sys.u64")

/*
 * For use between warps of a block. Stores before the release, also those of
 * lanes that had converged with the storing one, are visible after the acquire.
 */
GQ_LOAD(gq_acquire_block, uint32_t, "r", "ld.acquire.cta.u32")

GQ_STORE(gq_release_block, uint32_t, "r", "st.release.cta.u32")

/* Stores a counter, or a word that a fence directly before it orders. */
GQ_STORE(gq_store_relaxed, uint32_t, "r", "st.relaxed.sys.u32")

/*
 * Stores two words, the first at a multiple of 8, with one store: an observer
 * of one sees the other.
 */
GQ_FN void gq_store_pair(uint32_t *first, uint32_t value, uint32_t second)
{
    uint64_t both = (uint64_t)second << 32 | value;
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(first), "l"(both) : "memory");
}

/* Returns nanoseconds of a monotonic clock; only differences have a meaning. */
GQ_FN uint64_t gq_clock_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");

    return ns;
}

/*
 * Returns the number of the thread in its warp; blocks may have more than one
 * dimension.
 */
GQ_FN uint32_t gq_thread(void)
{
    uint32_t thread;

    asm("mov.u32 %0, %%laneid;" : "=r"(thread));
    return thread;
}

#else

#include <stddef.h>
#include <time.h>

#define GQ_FN   static inline
#define GQ_STEP GQ_FN

/*
 * On a host the store releases and the load acquires, and the fences are empty.
 * Fences alone would be correct, but ThreadSanitizer does not see them.
 */
GQ_FN void gq_store_doorbell(volatile uint32_t *doorbell, uint32_t value)
{
    __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
}

GQ_FN void gq_fence_entries(void)
{
}

GQ_FN void gq_fence_entry(void)
{
}

/* The four bytes are accessed as the last dword of an entry. */
typedef uint32_t __attribute__((may_alias)) gq_dword;

/*
 * Returns the CID in 15:0 and the status word with the phase in 31:16. A single
 * load reads both, so that they belong to the same CQE. The acquire pairs with
 * the controller's store of this dword, the last one of an entry.
 */
GQ_FN uint32_t gq_load_cqe(const struct nvme_cqe *cqe)
{
    return __atomic_load_n((const gq_dword *)(const void *)&cqe->cid, __ATOMIC_ACQUIRE);
}

/* Acquires by itself, because the fence that follows is empty here. */
GQ_FN uint32_t gq_peek_cqe(const struct nvme_cqe *cqe)
{
    return gq_load_cqe(cqe);
}

GQ_FN void gq_fence_results(void)
{
}

/* The load is relaxed because the flag orders nothing. */
GQ_FN uint32_t gq_load_flag(const volatile uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_RELAXED);
}

GQ_FN void gq_store_relaxed(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Acquires, like on a GPU. */
GQ_FN uint64_t gq_acquire_word(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

GQ_FN uint32_t gq_acquire_block(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

GQ_FN void gq_release_block(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* A host needs no single store for both: the first word is stored last. */
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
