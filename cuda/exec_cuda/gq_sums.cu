/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernel: CRC-32C of parts of GQ_SUM_BYTES bytes, a warp for each.
 *
 * The checksum is linear: each lane computes that of 128 bytes, and the lanes combine theirs in
 * five steps. In each step the checksum of the left half is multiplied by a power of x, as if the
 * right half were zeros, which is a 32 by 32 matrix over GF(2).
 */
#include "cuda/exec_cuda/gq_sums.h"

namespace
{

constexpr uint32_t kPoly = 0x82f63b78; /* reflected */
constexpr unsigned kLanes = 32, kWarps = 8, kBlocks = 264;
constexpr unsigned kLaneBytes = GQ_SUM_BYTES / kLanes, kSteps = 5;

struct Matrix {
    uint32_t column[32];
};

struct Matrices {
    Matrix step[kSteps];
};

__host__ __device__ constexpr uint32_t times(const Matrix &m, uint32_t v)
{
    uint32_t product = 0;

    for (unsigned i = 0; i < 32; i++)
        product ^= v >> i & 1 ? m.column[i] : 0;
    return product;
}

constexpr Matrix squared(const Matrix &m)
{
    Matrix square = {};

    for (unsigned i = 0; i < 32; i++)
        square.column[i] = times(m, m.column[i]);
    return square;
}

/* Step i appends kLaneBytes << i zero bytes. */
constexpr Matrices zeros()
{
    Matrices m = {};
    Matrix append = {};

    for (unsigned i = 0; i < 32; i++)
        append.column[i] = i ? 1u << (i - 1) : kPoly; /* one bit */
    for (unsigned bits = 1; bits < 8 * kLaneBytes; bits *= 2)
        append = squared(append);
    for (unsigned i = 0; i < kSteps; i++) {
        m.step[i] = append;
        append = squared(append);
    }
    return m;
}

__constant__ Matrices appended = zeros();

/* table[i][b]: of byte b followed by i zero bytes. */
__device__ void fill_table(uint32_t (*table)[256])
{
    for (unsigned b = threadIdx.x; b < 256; b += blockDim.x) {
        uint32_t crc = b;

        for (unsigned i = 0; i < 4; i++) {
            for (unsigned bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? kPoly : 0);
            table[i][b] = crc;
        }
    }
    __syncthreads();
}

__device__ uint32_t add_word(const uint32_t (*table)[256], uint32_t crc, uint32_t word)
{
    crc ^= word;
    return table[3][crc & 255] ^ table[2][crc >> 8 & 255] ^ table[1][crc >> 16 & 255] ^
           table[0][crc >> 24];
}

__device__ uint32_t of_lane(const uint32_t (*table)[256], const unsigned char *at, uint32_t crc)
{
    if ((uint64_t)at % sizeof(uint4) != 0) {
        for (unsigned i = 0; i < kLaneBytes; i++)
            crc = table[0][(crc ^ at[i]) & 255] ^ crc >> 8;
        return crc;
    }
    for (unsigned i = 0; i < kLaneBytes; i += sizeof(uint4)) {
        uint4 v = *(const uint4 *)(at + i);

        crc = add_word(table, crc, v.x);
        crc = add_word(table, crc, v.y);
        crc = add_word(table, crc, v.z);
        crc = add_word(table, crc, v.w);
    }
    return crc;
}

__device__ uint32_t combine(uint32_t crc)
{
    for (unsigned i = 0; i < kSteps; i++) {
        uint32_t right = __shfl_down_sync(~0u, crc, 1u << i);

        crc = times(appended.step[i], crc) ^ right;
    }
    return crc;
}

/* As from the launch on: nothing of this run is stored to the parts meanwhile. */
__global__ void __launch_bounds__(kWarps *kLanes)
    make_sums(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums)
{
    __shared__ uint32_t table[4][256];
    unsigned lane = threadIdx.x % kLanes;

    fill_table(table);
    for (uint32_t i = blockIdx.x * kWarps + threadIdx.x / kLanes; i < n; i += gridDim.x * kWarps) {
        const unsigned char *from = (const unsigned char *)(base + at[i] + lane * kLaneBytes);
        uint32_t crc = combine(of_lane(table, from, lane == 0 ? ~0u : 0));

        if (lane == 0)
            sums[i] = ~crc;
    }
}

} // namespace

extern "C" cudaError_t gq_sums_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)make_sums);
}

extern "C" cudaError_t gq_sums_launch(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums,
                                      cudaStream_t stream)
{
    unsigned blocks = (n + kWarps - 1) / kWarps;
    void *args[] = {&base, &at, &n, &sums};

    return cudaLaunchKernel((const void *)make_sums, blocks < kBlocks ? blocks : kBlocks,
                            kWarps * kLanes, args, 0, stream);
}
