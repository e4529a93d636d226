/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Accesses atomic words in the executor's memory, for groups that share a queue
 * (gq_shared.h). Unless noted otherwise, accesses are relaxed at the scope of
 * the device, and gq_fence_device() orders them. On a host every access
 * acquires and releases, and the fence is empty, because ThreadSanitizer does
 * not see fences.
 */
#ifndef CUDA_QUEUE_GQ_ATOMIC_H
#define CUDA_QUEUE_GQ_ATOMIC_H

#include <stdint.h>

#include "cuda/queue/gq_fence.h"

/*
 * Executed by all lanes. Orders loads and stores before it before those after
 * it, at the scope of the device. It makes a relaxed store behind it a release,
 * and a relaxed load before it an acquire.
 */
GQ_FENCE(gq_fence_device, "fence.acq_rel.gpu")

GQ_LOAD(gq_atomic_load, uint32_t, "r", "ld.relaxed.gpu.u32", __ATOMIC_ACQUIRE)
GQ_STORE(gq_atomic_store, uint32_t, "r", "st.relaxed.gpu.u32", __atomic_store_n, __ATOMIC_RELEASE)

GQ_FETCH(gq_atomic_or, uint32_t, "r", "atom.relaxed.gpu.or.b32", __atomic_fetch_or,
         __ATOMIC_ACQ_REL)
GQ_FETCH(gq_atomic_and, uint32_t, "r", "atom.relaxed.gpu.and.b32", __atomic_fetch_and,
         __ATOMIC_ACQ_REL)
GQ_FETCH(gq_atomic_exchange, uint32_t, "r", "atom.relaxed.gpu.exch.b32", __atomic_exchange_n,
         __ATOMIC_ACQ_REL)
GQ_FETCH(gq_atomic_fetch_add, uint32_t, "r", "atom.relaxed.gpu.add.u32", __atomic_fetch_add,
         __ATOMIC_ACQ_REL)
GQ_REPLACE(gq_atomic_replace, uint32_t, "r", "atom.relaxed.gpu.cas.b32")

/* Like gq_atomic_fetch_add(), without waiting for the word. */
GQ_STORE(gq_atomic_add, uint32_t, "r", "red.relaxed.gpu.add.u32", __atomic_fetch_add,
         __ATOMIC_ACQ_REL)

/*
 * Set or clear bits like gq_atomic_or() and gq_atomic_and(), without waiting
 * for the word.
 */
GQ_STORE(gq_atomic_set, uint32_t, "r", "red.relaxed.gpu.or.b32", __atomic_fetch_or,
         __ATOMIC_ACQ_REL)
GQ_STORE(gq_atomic_keep, uint32_t, "r", "red.relaxed.gpu.and.b32", __atomic_fetch_and,
         __ATOMIC_ACQ_REL)

GQ_FN void gq_atomic_clear(uint32_t *word, uint32_t bits)
{
    gq_atomic_keep(word, ~bits);
}

#endif
