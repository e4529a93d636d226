/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares loads, stores and fences that concern the controller or the host.
 * All PTX is here.
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
 * A function that is called instead of inlined, with values only: reads that do not call it are not
 * delayed by its instructions, and need none of its registers.
 */
#define GQ_CALLED_FN static __device__ __noinline__

/*
 * Marks a function that is a step of a read. The function is inlined, unless
 * GPUNVME_DEVICE_SMALL selects few registers.
 */
#ifdef GPUNVME_DEVICE_SMALL
#define GQ_STEP static inline __device__ __noinline__
#else
#define GQ_STEP GQ_FN
#endif

/*
 * These macros define functions. Each function is one PTX instruction, or on a host a builtin of
 * the compiler with a memory order. GQ_LOAD loads a word, GQ_STORE stores to it or changes it,
 * GQ_FETCH also returns its old value. GQ_REPLACE stores `value` if the word is `expected`, and
 * returns the old value. GQ_FENCE is empty on a host, because the store after it releases and the
 * load before it acquires: fences alone would be correct, but ThreadSanitizer does not see them.
 */
#define GQ_LOAD(name, type, reg, instruction, order)                                  \
    GQ_FN type name(const volatile type *at)                                          \
    {                                                                                 \
        type value;                                                                   \
        asm volatile(instruction " %0, [%1];" : "=" reg(value) : "l"(at) : "memory"); \
                                                                                      \
        return value;                                                                 \
    }

#define GQ_STORE(name, type, reg, instruction, builtin, order)                   \
    GQ_FN void name(volatile type *at, type value)                               \
    {                                                                            \
        asm volatile(instruction " [%0], %1;" ::"l"(at), reg(value) : "memory"); \
    }

#define GQ_FETCH(name, type, reg, instruction, builtin, order) \
    GQ_FN type name(type *word, type operand)                  \
    {                                                          \
        type old;                                              \
        asm volatile(instruction " %0, [%1], %2;"              \
                     : "=" reg(old)                            \
                     : "l"(word), reg(operand)                 \
                     : "memory");                              \
                                                               \
        return old;                                            \
    }

#define GQ_REPLACE(name, type, reg, instruction)            \
    GQ_FN type name(type *word, type expected, type value)  \
    {                                                       \
        type old;                                           \
        asm volatile(instruction " %0, [%1], %2, %3;"       \
                     : "=" reg(old)                         \
                     : "l"(word), reg(expected), reg(value) \
                     : "memory");                           \
                                                            \
        return old;                                         \
    }

#define GQ_FENCE(name, instruction)                 \
    GQ_FN void name(void)                           \
    {                                               \
        asm volatile(instruction ";" ::: "memory"); \
    }

#else

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define GQ_FN        static inline
#define GQ_CALLED_FN GQ_FN
#define GQ_STEP      GQ_FN

#define GQ_LOAD(name, type, reg, instruction, order) \
    GQ_FN type name(const volatile type *at)         \
    {                                                \
        return __atomic_load_n(at, order);           \
    }

#define GQ_STORE(name, type, reg, instruction, builtin, order) \
    GQ_FN void name(volatile type *at, type value)             \
    {                                                          \
        (void)builtin(at, value, order);                       \
    }

#define GQ_FETCH(name, type, reg, instruction, builtin, order) \
    GQ_FN type name(type *word, type operand)                  \
    {                                                          \
        return builtin(word, operand, order);                  \
    }

#define GQ_REPLACE(name, type, reg, instruction)                                     \
    GQ_FN type name(type *word, type expected, type value)                           \
    {                                                                                \
        __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, \
                                    __ATOMIC_ACQUIRE);                               \
        return expected;                                                             \
    }

#define GQ_FENCE(name, instruction) \
    GQ_FN void name(void)           \
    {                               \
    }

#endif

/*
 * Stores a doorbell. `mmio` means that the store is performed exactly once,
 * neither merged nor torn, as registers of a drive require.
 */
GQ_STORE(gq_store_doorbell, uint32_t, "r", "st.mmio.relaxed.sys.u32", __atomic_store_n,
         __ATOMIC_RELEASE)

/*
 * Executed by all lanes that have stored entries or peeked at CQEs, after they
 * have converged and directly before lane 0 stores the doorbells. Orders, at
 * system scope, the stores of all lanes before the convergence before the
 * doorbells: a fence and a store of one thread, lane 0, form a release. It also
 * orders the loads of gq_peek_cqe() before all later loads of the same lane:
 * each lane's load and fence form an acquire.
 */
GQ_FENCE(gq_fence_entries, "fence.acq_rel.sys")

/*
 * GQ_RELEASE releases at system scope. A fence that also acquires empties the
 * L1, for which a load behind it waits: 0.17 us on an H100. PTX has the weaker
 * fence since version 8.6.
 */
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1207
#define GQ_RELEASE "fence.release.sys"
#else
#define GQ_RELEASE "fence.acq_rel.sys"
#endif

/*
 * Executed by a lane after the lanes have converged. Orders all their earlier
 * loads and stores before its later store of the queue's state for the host.
 */
GQ_FENCE(gq_fence_results, GQ_RELEASE)

/* A gq_dword has the last four bytes of a CQE, which the controller stores last. */
typedef uint32_t __attribute__((may_alias)) gq_dword;

GQ_LOAD(gq_acquire_dword, gq_dword, "r", "ld.acquire.sys.u32", __ATOMIC_ACQUIRE)
GQ_LOAD(gq_peek_dword, gq_dword, "r", "ld.relaxed.sys.u32", __ATOMIC_ACQUIRE)

/*
 * Returns the CID in 15:0 and the status word with the phase in 31:16. A single
 * load reads both, so that they belong to the same CQE. Acquires: later loads
 * of the same lane see everything that the controller wrote before the CQE,
 * including the data.
 */
GQ_FN uint32_t gq_load_cqe(const struct nvme_cqe *cqe)
{
    return gq_acquire_dword((const gq_dword *)(const void *)&cqe->cid);
}

/*
 * Loads like gq_load_cqe(), but does not wait for the value. On a GPU the load
 * is relaxed. The lane must execute gq_fence_entries() before it uses the value,
 * which makes the load an acquire.
 */
GQ_FN uint32_t gq_peek_cqe(const struct nvme_cqe *cqe)
{
    return gq_peek_dword((const gq_dword *)(const void *)&cqe->cid);
}

/* The flag orders nothing. */
GQ_LOAD(gq_load_flag, uint32_t, "r", "ld.relaxed.sys.u32", __ATOMIC_RELAXED)

/*
 * Loads a word of a tagged slot. Loads of several words travel over the bus
 * together if the acquiring one is last.
 */
GQ_LOAD(gq_load_word, uint64_t, "l", "ld.relaxed.sys.u64", __ATOMIC_RELAXED)

/*
 * Like gq_load_word(), but acquires: loads after a new word, also by lanes that
 * converge later, are not older than the word.
 */
GQ_LOAD(gq_acquire_word, uint64_t, "l", "ld.acquire.sys.u64", __ATOMIC_ACQUIRE)

/*
 * Orders accesses between warps of a block. Stores before the release are
 * visible after the acquire, including stores of lanes that had converged with
 * the storing lane.
 */
GQ_LOAD(gq_acquire_block, uint32_t, "r", "ld.acquire.cta.u32", __ATOMIC_ACQUIRE)
GQ_STORE(gq_release_block, uint32_t, "r", "st.release.cta.u32", __atomic_store_n, __ATOMIC_RELEASE)

/* Stores a counter, or a word that a fence directly before it orders. */
GQ_STORE(gq_store_relaxed, uint32_t, "r", "st.relaxed.sys.u32", __atomic_store_n, __ATOMIC_RELAXED)

#ifdef __CUDACC__

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
