/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares little-endian integers as structs. The compiler (gcc or nvcc)
 * refuses to mix these structs with host integers, so no field can be accessed
 * without a conversion.
 */
#ifndef LAYOUT_ENDIAN_H
#define LAYOUT_ENDIAN_H

#include <stdint.h>

typedef struct {
    uint16_t le;
} le16;
typedef struct {
    uint32_t le;
} le32;
typedef struct {
    uint64_t le;
} le64;

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LAY_SWAP16(v) __builtin_bswap16(v)
#define LAY_SWAP32(v) __builtin_bswap32(v)
#define LAY_SWAP64(v) __builtin_bswap64(v)
#else
#define LAY_SWAP16(v) (v)
#define LAY_SWAP32(v) (v)
#define LAY_SWAP64(v) (v)
#endif

static inline uint16_t lay_get16(le16 v)
{
    return LAY_SWAP16(v.le);
}
static inline uint32_t lay_get32(le32 v)
{
    return LAY_SWAP32(v.le);
}
static inline uint64_t lay_get64(le64 v)
{
    return LAY_SWAP64(v.le);
}
static inline le16 lay_put16(uint16_t v)
{
    le16 r = {LAY_SWAP16(v)};

    return r;
}
static inline le32 lay_put32(uint32_t v)
{
    le32 r = {LAY_SWAP32(v)};

    return r;
}
static inline le64 lay_put64(uint64_t v)
{
    le64 r = {LAY_SWAP64(v)};

    return r;
}

#endif
