/* SPDX-License-Identifier: BSD-2-Clause */
// The examples in CUDA, on a mount whose queues the GPU runs.
#include <cuda_runtime_api.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "tests/examples/examples_rig.h"

namespace
{

constexpr size_t kBytes = 40u << 20; // more than both chunks of stream.cu, whole blocks

class ExamplesInCuda : public Examples
{
  protected:
    void SetUp() override
    {
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
            GTEST_SKIP() << "no CUDA device";
        start("gpu=require,direct=root", kBytes);
    }
};

// What the programs print that sum the words of the file.
std::string sum_of(const std::string &content)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < kBytes; i += sizeof(sum)) {
        uint64_t word;
        memcpy(&word, &content[i], sizeof(word));
        sum += word;
    }
    char line[100];
    snprintf(line, sizeof(line), "%zu bytes, sum of words %" PRIx64 "\n", kBytes, sum);
    return line;
}

TEST_F(ExamplesInCuda, StreamSumsTheWords)
{
    EXPECT_EQ(run({EXAMPLE_STREAM, data()}), sum_of(content_));
}

// One GPU has the file twice where there is no other one.
TEST_F(ExamplesInCuda, ReplicateLoadsIntoSeveralGpus)
{
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    std::string other = std::to_string(devices > 1 ? 1 : 0), sum = sum_of(content_);
    EXPECT_EQ(run({EXAMPLE_REPLICATE, data(), "0", other}),
              "GPU 0: " + sum + "GPU " + other + ": " + sum);
}

TEST_F(ExamplesInCuda, ArrayAddsVectors)
{
    std::string output = run({EXAMPLE_ARRAY, data()}), sums = std::to_string(kBytes / 8);
    EXPECT_NE(output.find(sums + " sums, equal to those of the host\n"), std::string::npos)
        << output;
}

// The places that kernel.cu reads: 256 for each of 32 warps.
TEST_F(ExamplesInCuda, KernelCountsTheZeros)
{
    constexpr unsigned kWarps = 32, kReads = 256, kBlock = 4096;
    uint64_t zeros = 0;
    for (unsigned warp = 0; warp < kWarps; warp++) {
        uint64_t next = warp + 1;
        for (unsigned i = 0; i < kReads; i++) {
            next = next * 6364136223846793005ull + 1442695040888963407ull;
            size_t at = (next >> 16) % (kBytes / kBlock) * kBlock;
            for (size_t j = 0; j < kBlock; j++)
                zeros += content_[at + j] == 0;
        }
    }
    char expected[100];
    snprintf(expected, sizeof(expected), "%u bytes, %" PRIu64 " of them zero\n",
             kWarps * kReads * kBlock, zeros);
    EXPECT_EQ(run({EXAMPLE_KERNEL, data()}), expected);
}

} // namespace
