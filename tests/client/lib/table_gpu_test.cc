/* SPDX-License-Identifier: BSD-2-Clause */
// Tests tables on a machine with a GPU: gathers in streams and in a graph.
#include <cuda_runtime_api.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/gpu_mount.h"
#include "tests/some_bytes.h"

namespace
{

constexpr size_t kFile = 32u << 20, kMost = 16384;
constexpr uint32_t kRow = 272, kHead = 8104;
constexpr int64_t kRows = (kFile - kHead) / kRow;

using Ids = std::vector<int64_t>;
using Status = struct gpunvme_table_status;

// A table with a stream, and arrays in device memory.
struct Gathers {
    struct gpunvme_table *table = nullptr;
    cudaStream_t stream = nullptr;
    int64_t *ids = nullptr;
    char *out = nullptr;
    Status *status = nullptr;

    void open(struct gpunvme_file *f)
    {
        const struct gpunvme_segment all = {f, kHead, kRows};
        ASSERT_EQ(gpunvme_table_open(&all, 1, kRow, kMost, nullptr, &table), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_table_why(table), nullptr);
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void **>(&ids), kMost * sizeof(*ids)), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void **>(&out), kMost * kRow), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void **>(&status), sizeof(*status)), cudaSuccess);
    }
    void close()
    {
        cudaStreamSynchronize(stream);
        gpunvme_table_close(table);
        cudaFree(ids);
        cudaFree(out);
        cudaFree(status);
        cudaStreamDestroy(stream);
    }
    void put(const Ids &host)
    {
        ASSERT_EQ(cudaMemcpyAsync(ids, host.data(), host.size() * sizeof(*ids),
                                  cudaMemcpyHostToDevice, stream),
                  cudaSuccess);
    }
    int gather(size_t n, uint32_t flags = 0)
    {
        struct gpunvme_gather a = {};
        a.ids = ids;
        a.id_bytes = sizeof(*ids);
        a.flags = flags;
        a.n = n;
        a.out = out;
        a.status = status;
        return gpunvme_table_gather(table, &a, stream);
    }
    Status result() const
    {
        Status found = {};
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(&found, status, sizeof(found), cudaMemcpyDeviceToHost), cudaSuccess);
        return found;
    }
};

class TableGpu : public GpuMountedTest, public ::testing::WithParamInterface<const char *>
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount(GetParam(), 128u << 20));
        ASSERT_NO_FATAL_FAILURE(create_file("table", bytes_.data(), kFile));
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(io_, fd_, GPUNVME_FILE_DIRECT, &file_), 0) << gpunvme_error();
        one_.open(file_);
    }
    void let_go() override
    {
        if (one_.table)
            one_.close();
        gpunvme_close(io_);
    }
    static Ids any_ids(size_t n, unsigned seed)
    {
        std::mt19937 rng(seed);
        Ids ids(n);
        for (int64_t &id : ids)
            id = rng() % kRows;
        return ids;
    }
    // Expects that each row is the file's, and that an id out of range gives
    // zeros.
    void expect_rows(const Gathers &g, const Ids &ids)
    {
        std::vector<char> found(ids.size() * kRow), zeros(kRow);
        ASSERT_EQ(cudaStreamSynchronize(g.stream), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(found.data(), g.out, found.size(), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        for (size_t i = 0; i < ids.size(); i++) {
            bool is_row = ids[i] >= 0 && ids[i] < kRows;
            const char *want =
                is_row ? &bytes_[kHead + static_cast<size_t>(ids[i]) * kRow] : zeros.data();
            ASSERT_EQ(memcmp(&found[i * kRow], want, kRow), 0) << i;
        }
    }

    const std::vector<char> bytes_ = some_bytes(kFile, 5);
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    Gathers one_;
};

TEST_P(TableGpu, GathersInAStream)
{
    for (size_t n : {1, 48, 3072, 16384}) {
        Ids ids = any_ids(n, static_cast<unsigned>(n));
        one_.put(ids);
        ASSERT_EQ(one_.gather(n), 0) << gpunvme_error();
        EXPECT_EQ(one_.result().failed, 0u);
        expect_rows(one_, ids);
    }
    const Ids same(kMost, 7);
    one_.put(same);
    ASSERT_EQ(one_.gather(kMost), 0);
    EXPECT_EQ(one_.result().reads, 1u);
    expect_rows(one_, same);
}

TEST_P(TableGpu, IdsThatAreNoRows)
{
    Ids ids = any_ids(500, 1);
    ids[100] = kRows;
    ids[400] = -1;
    one_.put(ids);
    ASSERT_EQ(one_.gather(ids.size(), GPUNVME_GATHER_PAD), 0);
    EXPECT_EQ(one_.result().failed, 1u);
    EXPECT_EQ(one_.result().first_id, kRows);
    EXPECT_EQ(one_.result().error, -ERANGE);
    expect_rows(one_, ids);
}

// A gather of few rows makes one launch.
TEST_P(TableGpu, GathersInAGraph)
{
    for (size_t n : {100u, 3072u}) {
        cudaGraph_t graph;
        cudaGraphExec_t instance;
        size_t launches = 0;
        ASSERT_EQ(cudaStreamBeginCapture(one_.stream, cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        ASSERT_EQ(one_.gather(n), 0) << gpunvme_error();
        ASSERT_EQ(cudaStreamEndCapture(one_.stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &launches), cudaSuccess);
        EXPECT_EQ(launches, n == 100 ? 1u : 5u);
        ASSERT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
        for (unsigned round = 0; round < 5; round++) {
            Ids ids = any_ids(n, round);
            one_.put(ids);
            ASSERT_EQ(cudaGraphLaunch(instance, one_.stream), cudaSuccess);
            EXPECT_EQ(one_.result().failed, 0u);
            expect_rows(one_, ids);
        }
        cudaGraphExecDestroy(instance);
        cudaGraphDestroy(graph);
    }
}

TEST_P(TableGpu, TwoTablesInTwoStreams)
{
    Gathers two;
    ASSERT_NO_FATAL_FAILURE(two.open(file_));
    for (unsigned round = 0; round < 10; round++) {
        const Ids a = any_ids(5000, round), b = any_ids(5000, 100 + round);
        one_.put(a);
        two.put(b);
        ASSERT_EQ(one_.gather(5000), 0);
        ASSERT_EQ(two.gather(5000), 0);
        EXPECT_EQ(one_.result().failed + two.result().failed, 0u);
        expect_rows(one_, a);
        expect_rows(two, b);
    }
    two.close();
}

// Skewed ids, through a cache that is smaller than the rows that they name.
TEST_P(TableGpu, GathersThroughACache)
{
    struct gpunvme_cache *cache = nullptr;
    ASSERT_EQ(gpunvme_cache_open(file_, kFile / 8, gpunvme_table_unit(one_.table), &cache), 0)
        << gpunvme_error();
    ASSERT_EQ(gpunvme_table_use_cache(one_.table, cache), 0) << gpunvme_error();
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    ASSERT_EQ(cudaStreamBeginCapture(one_.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(one_.gather(kMost), 0) << gpunvme_error();
    ASSERT_EQ(cudaStreamEndCapture(one_.stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
    for (unsigned round = 0; round < 10; round++) {
        Ids ids = any_ids(kMost, round);
        for (size_t i = 0; i < kMost; i++)
            ids[i] %= i % 16 ? 5000 : kRows;
        bool second = round % 4 == 3;
        ASSERT_EQ(gpunvme_cache_set_insertion(cache, second ? GPUNVME_CACHE_SECOND_TOUCH
                                                            : GPUNVME_CACHE_ALL),
                  0);
        one_.put(ids);
        if (round % 2) {
            ASSERT_EQ(cudaGraphLaunch(instance, one_.stream), cudaSuccess);
        } else {
            ASSERT_EQ(one_.gather(kMost), 0) << gpunvme_error();
        }
        EXPECT_EQ(one_.result().failed, 0u);
        expect_rows(one_, ids);
    }
    struct gpunvme_table_stats stats = {};
    ASSERT_EQ(gpunvme_table_stats(one_.table, &stats, sizeof(stats)), 0);
    EXPECT_GT(stats.hits, 2 * kMost);
    ASSERT_EQ(gpunvme_cache_set_insertion(cache, GPUNVME_CACHE_ALL), 0);
    const Ids few = any_ids(100, 1);
    for (int turn = 0; turn < 3; turn++) {
        one_.put(few);
        ASSERT_EQ(one_.gather(few.size()), 0);
        EXPECT_EQ(one_.result().failed, 0u);
    }
    EXPECT_EQ(one_.result().reads, 0u);
    expect_rows(one_, few);
    cudaGraphExecDestroy(instance);
    cudaGraphDestroy(graph);
    one_.close();
    one_.table = nullptr;
    gpunvme_cache_close(cache);
}

INSTANTIATE_TEST_SUITE_P(Mounts, TableGpu,
                         ::testing::Values("direct=root,deadline=5000",
                                           "direct=root,deadline=5000,sim=gpu:off",
                                           "direct=root,deadline=5000,sim=lba:4096"));

} // namespace
