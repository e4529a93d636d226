/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies and zeros made by several threads together. All `step` threads call
 * the function; `first` is the number of the thread. On a host there is one
 * thread.
 */
#ifndef CUDA_QUEUE_GQ_BYTES_H
#define CUDA_QUEUE_GQ_BYTES_H

#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#ifdef __CUDACC__

/*
 * Copies n units of T; both addresses are aligned to it. The source may be host
 * memory that the host writes, so each thread has `ahead` loads outstanding at
 * a time, and nothing cached is used.
 */
template <typename T, uint32_t ahead>
static __device__ __forceinline__ void gq_copy_units(uint64_t dst, uint64_t src, uint64_t n,
                                                     uint32_t first, uint32_t step)
{
    const T *from = (const T *)src;
    T *to = (T *)dst;
    uint64_t i = first;

    for (; i + (ahead - 1) * step < n; i += ahead * step) {
        T v[ahead];
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++)
            v[k] = __ldcv(&from[i + k * step]);
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++)
            to[i + k * step] = v[k];
    }
    for (; i < n; i += step)
        to[i] = __ldcv(&from[i]);
}

/*
 * Copies bytes up to an aligned address, units, and bytes after the last unit.
 * src and dst are congruent modulo the size of a unit.
 */
template <typename T, uint32_t ahead>
static __device__ __forceinline__ void gq_copy_congruent(uint64_t dst, uint64_t src, uint64_t len,
                                                         uint32_t first, uint32_t step)
{
    uint64_t head = (sizeof(T) - dst % sizeof(T)) % sizeof(T);
    uint64_t units;

    head = head < len ? head : len;
    units = (len - head) / sizeof(T);
    gq_copy_units<unsigned char, 1>(dst, src, head, first, step);
    gq_copy_units<T, ahead>(dst + head, src + head, units, first, step);
    head += units * sizeof(T);
    gq_copy_units<unsigned char, 1>(dst + head, src + head, len - head, first, step);
}

template <uint32_t ahead>
static __device__ __forceinline__ void gq_copy_ahead(uint64_t dst, uint64_t src, uint64_t len,
                                                     uint32_t first, uint32_t step)
{
    if (((dst ^ src) & 15) == 0)
        gq_copy_congruent<uint4, ahead>(dst, src, len, first, step);
    else if (((dst ^ src) & 3) == 0)
        gq_copy_congruent<unsigned int, ahead>(dst, src, len, first, step);
    else
        gq_copy_units<unsigned char, ahead>(dst, src, len, first, step);
}

GQ_FN void gq_copy_bytes(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    gq_copy_ahead<4>(dst, src, len, first, step);
}

/*
 * Copies up to `ahead` units of T per thread of a warp, in one trip over the
 * bus. The loops of gq_copy_units() take more trips for a few units and need
 * fewer registers.
 */
template <typename T, uint32_t ahead>
static __device__ __forceinline__ void gq_copy_turn(uint64_t dst, uint64_t src, uint32_t n)
{
    const T *from = (const T *)src + gq_thread();
    T *to = (T *)dst + gq_thread(), v[ahead];
    uint32_t left = n > gq_thread() ? n - gq_thread() : 0;

#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) {
        if (k * 32 < left)
            v[k] = __ldcv(&from[k * 32]);
    }
#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) {
        if (k * 32 < left)
            to[k * 32] = v[k];
    }
}

/*
 * Copies units of T between the bytes in front of an aligned address and those
 * behind the last unit; src and dst are congruent modulo the size of a unit.
 * Each thread of the warp loads one of these bytes before its first units, so
 * that both take the same trip.
 */
template <typename T, uint32_t ahead>
static __device__ __forceinline__ void gq_copy_turns(uint64_t dst, uint64_t src, uint32_t len)
{
    const uint32_t most = 32 * ahead;
    uint32_t head = (uint32_t)(-dst % sizeof(T)), units, at;
    unsigned char edge = 0;
    bool has_edge;

    head = head < len ? head : len;
    units = (len - head) / (uint32_t)sizeof(T);
    at = gq_thread() < head ? gq_thread() : gq_thread() + units * (uint32_t)sizeof(T);
    has_edge = at < len && gq_thread() < len - units * (uint32_t)sizeof(T);
    if (has_edge)
        edge = __ldcv((const unsigned char *)(src + at));
    for (uint32_t i = 0; i < units; i += most)
        gq_copy_turn<T, ahead>(dst + head + i * sizeof(T), src + head + i * sizeof(T),
                               units - i < most ? units - i : most);
    if (has_edge)
        *(unsigned char *)(dst + at) = edge;
}

/*
 * Copies bytes of any alignment by a whole warp that does nothing else. Pieces
 * of a few hundred bytes whose addresses differ take one trip, like aligned
 * ones.
 */
template <uint32_t ahead>
static __device__ __forceinline__ void gq_copy_warp(uint64_t dst, uint64_t src, uint32_t len)
{
    uint32_t differ = (uint32_t)(dst ^ src) & 15;

    if (differ == 0)
        gq_copy_turns<uint4, ahead>(dst, src, len);
    else if (differ == 8)
        gq_copy_turns<uint2, ahead>(dst, src, len);
    else if (differ % 4 == 0)
        gq_copy_turns<unsigned int, ahead>(dst, src, len);
    else
        gq_copy_turns<unsigned char, ahead>(dst, src, len);
}

/* A lane's part of 4 KiB that a warp copies; both addresses are multiples of 16. */
struct gq_page_part {
    uint4 units[8];
};

/* Issues all loads at once; nothing waits for them. */
GQ_FN void gq_load_page(uint64_t src, uint32_t lane, struct gq_page_part *part)
{
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        part->units[k] = __ldcv((const uint4 *)src + lane + k * 32);
}

GQ_FN void gq_store_page(uint64_t dst, uint32_t lane, const struct gq_page_part *part)
{
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        ((uint4 *)dst)[lane + k * 32] = part->units[k];
}

/*
 * Copies like gq_copy_bytes(), but a warp copies 4 KiB in one trip over the
 * bus. With GPUNVME_DEVICE_SMALL the copy uses fewer registers and takes two
 * trips.
 */
GQ_FN void gq_copy_4k(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
#ifdef GPUNVME_DEVICE_SMALL
    gq_copy_ahead<4>(dst, src, len, first, step);
#else
    gq_copy_ahead<8>(dst, src, len, first, step);
#endif
}

/*
 * Copies up to 4 KiB of any alignment by a whole warp. Pieces of up to 1 KiB
 * whose addresses differ by a multiple of 4 take one trip over the bus.
 */
GQ_FN void gq_copy_any(uint64_t dst, uint64_t src, uint32_t len)
{
    if (((dst ^ src) & 3) == 0)
        gq_copy_turns<uint32_t, 8>(dst, src, len);
    else
        gq_copy_turns<unsigned char, 8>(dst, src, len);
}

/* Outstanding loads per lane in a long copy. */
#ifdef GPUNVME_DEVICE_SMALL
#define GQ_COPY_LONG 4u
#else
#define GQ_COPY_LONG 16u
#endif

/*
 * Like gq_copy_4k(), for many bytes. If the addresses are multiples of 16, a
 * warp with 16 loads per lane copies 8 KiB in one trip over the bus.
 */
GQ_FN void gq_copy_long(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    uint64_t turn = GQ_COPY_LONG * sizeof(uint4) * step;
    uint64_t whole = ((dst | src) & 15) == 0 ? len / turn * turn : 0;

    gq_copy_units<uint4, GQ_COPY_LONG>(dst, src, whole / sizeof(uint4), first, step);
    gq_copy_4k(dst + whole, src + whole, len - whole, first, step);
}

GQ_FN void gq_zero_bytes(uint64_t dst, uint64_t len, uint64_t first, uint64_t step)
{
    uint64_t head = (16 - dst % 16) % 16;
    uint64_t units, tail;

    head = head < len ? head : len;
    units = (len - head) / 16;
    tail = head + units * 16;
    for (uint64_t i = first; i < head; i += step)
        ((unsigned char *)dst)[i] = 0;
    for (uint64_t i = first; i < units; i += step)
        ((uint4 *)(dst + head))[i] = make_uint4(0, 0, 0, 0);
    for (uint64_t i = tail + first; i < len; i += step)
        ((unsigned char *)dst)[i] = 0;
}

#else

#include <string.h>

GQ_FN void gq_copy_bytes(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    (void)step;
    if (first == 0)
        memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, len);
}

GQ_FN void gq_copy_long(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    gq_copy_bytes(dst, src, len, first, step);
}

GQ_FN void gq_copy_4k(uint64_t dst, uint64_t src, uint64_t len, uint32_t first, uint32_t step)
{
    gq_copy_bytes(dst, src, len, first, step);
}

/* Holds the bytes of a 4 KiB page that one lane copies. */
struct gq_page_part {
    unsigned char bytes[4096 / 32];
};

GQ_FN void gq_load_page(uint64_t src, uint32_t lane, struct gq_page_part *part)
{
    memcpy(part, (const struct gq_page_part *)(uintptr_t)src + lane, sizeof(*part));
}

GQ_FN void gq_store_page(uint64_t dst, uint32_t lane, const struct gq_page_part *part)
{
    memcpy((struct gq_page_part *)(uintptr_t)dst + lane, part, sizeof(*part));
}

/* Called by each lane of a warp. */
GQ_FN void gq_copy_any(uint64_t dst, uint64_t src, uint32_t len)
{
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, len);
}

GQ_FN void gq_zero_bytes(uint64_t dst, uint64_t len, uint64_t first, uint64_t step)
{
    (void)step;
    if (first == 0)
        memset((void *)(uintptr_t)dst, 0, len);
}

#endif

#endif
