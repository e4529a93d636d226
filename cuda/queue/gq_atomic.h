/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Atomic words in the executor's memory, shared by the groups that share a
 * queue (gq_shared.h). Unless noted otherwise accesses are relaxed, at the
 * scope of the device, and gq_fence_device() orders them. On a host every
 * access acquires and releases, and the fence is empty, because ThreadSanitizer
 * does not see fences.
 */
#ifndef CUDA_QUEUE_GQ_ATOMIC_H
#define CUDA_QUEUE_GQ_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#ifdef __CUDACC__

/*
 * Executed by all lanes. Orders loads and stores before it before those after
 * it, at the scope of the device. It makes a relaxed store behind it a release,
 * and a relaxed load before it an acquire.
 */
GQ_FN void gq_fence_device(void)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

GQ_LOAD(gq_atomic_load, uint32_t, "r", "ld.relaxed.gpu.u32")

GQ_STORE(gq_atomic_store, uint32_t, "r", "st.relaxed.gpu.u32")

/*
 * Defines a function that changes a word by one PTX instruction and returns its
 * old value.
 */
#define GQ_ATOMIC_FETCH(name, type, reg, instruction) \
    GQ_FN type name(type *word, type operand)         \
    {                                                 \
        type old;                                     \
        asm volatile(instruction " %0, [%1], %2;"     \
                     : "=" reg(old)                   \
                     : "l"(word), reg(operand)        \
                     : "memory");                     \
                                                      \
        return old;                                   \
    }

/* Defines a function that stores `value` if the word is `expected`, and returns the old value. */
#define GQ_ATOMIC_REPLACE(name, type, reg, instruction)     \
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

GQ_ATOMIC_FETCH(gq_atomic_or, uint32_t, "r", "atom.relaxed.gpu.or.b32")
GQ_ATOMIC_FETCH(gq_atomic_and, uint32_t, "r", "atom.relaxed.gpu.and.b32")
GQ_ATOMIC_FETCH(gq_atomic_exchange, uint32_t, "r", "atom.relaxed.gpu.exch.b32")
GQ_ATOMIC_FETCH(gq_atomic_fetch_add, uint32_t, "r", "atom.relaxed.gpu.add.u32")
GQ_ATOMIC_REPLACE(gq_atomic_replace, uint32_t, "r", "atom.relaxed.gpu.cas.b32")

/* Like gq_atomic_fetch_add(), without waiting for the word. */
GQ_STORE(gq_atomic_add, uint32_t, "r", "red.relaxed.gpu.add.u32")

/*
 * Set or clear bits like gq_atomic_or() and gq_atomic_and(), without waiting
 * for the word.
 */
GQ_STORE(gq_atomic_set, uint32_t, "r", "red.relaxed.gpu.or.b32")

GQ_FN void gq_atomic_clear(uint32_t *word, uint32_t bits)
{
    asm volatile("red.relaxed.gpu.and.b32 [%0], %1;" ::"l"(word), "r"(~bits) : "memory");
}

#else

GQ_FN void gq_fence_device(void)
{
}

GQ_FN uint32_t gq_atomic_load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

GQ_FN void gq_atomic_store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

GQ_FN uint32_t gq_atomic_or(uint32_t *word, uint32_t bits)
{
    return __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
}

GQ_FN uint32_t gq_atomic_and(uint32_t *word, uint32_t bits)
{
    return __atomic_fetch_and(word, bits, __ATOMIC_ACQ_REL);
}

GQ_FN uint32_t gq_atomic_exchange(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
}

GQ_FN uint32_t gq_atomic_replace(uint32_t *word, uint32_t expected, uint32_t value)
{
    uint32_t old = expected;

    __atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return old;
}

GQ_FN uint32_t gq_atomic_fetch_add(uint32_t *word, uint32_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}

GQ_FN void gq_atomic_add(uint32_t *word, uint32_t value)
{
    __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}

GQ_FN void gq_atomic_set(uint32_t *word, uint32_t bits)
{
    __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
}

GQ_FN void gq_atomic_clear(uint32_t *word, uint32_t bits)
{
    __atomic_fetch_and(word, ~bits, __ATOMIC_ACQ_REL);
}

#endif

#endif
