/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where staging lies, when pages of files are made, and runs that do not begin. In place of CUDA
 * the engine gets the CPU executor, which calls a part of its memory the device's: the controller
 * reaches that by a DMA engine only.
 */
#include <algorithm>
#include <cstring>
#include <map>

#include "cuda/gq_exec.h"
extern "C" {
#include "cuda/gq_host.h"
}
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/cuda/gq_file.h"

namespace
{

const Executor kCpu = {"Cpu32", GQ_EXECUTOR_CPU, 32};

/* Copies at once: a ticket is done when it is given out. */
int submit(void *, unsigned, bool to_device, const sim_copy *copies, unsigned n, uint64_t *ticket)
{
    for (unsigned i = 0; i < n; i++) {
        void *there = (void *)(uintptr_t)copies[i].device;

        memcpy(to_device ? there : copies[i].host, to_device ? copies[i].host : there,
               copies[i].len);
    }
    *ticket = 1;
    return 0;
}

const sim_dma_engine_ops kDmaOps = {64,
                                    nullptr,
                                    submit,
                                    [](void *, unsigned, uint64_t) { return 1; },
                                    [](void *, void *, size_t) { return 0; },
                                    [](void *, void *) {}};
const sim_dma_engine kDma = {&kDmaOps, nullptr, 4};

/* The allocations that there are, by address: the host's, or else the device's. */
std::map<uint64_t, bool> is_host;
gq_exec_ops cpu_ops, device_ops;

int staging_alloc(gq_exec *x, size_t len, bool host, gq_import *out)
{
    int err = cpu_ops.staging_alloc(x, len, host, out);

    if (err)
        return err;
    is_host[out->base] = host;
    if (!host) {
        out->mem.device = out->base;
        out->mem.addr = nullptr;
    }
    return 0;
}

int device_page(gq_exec *x, gq_import *out)
{
    return staging_alloc(x, NVME_PAGE_SIZE, false, out);
}

/* Buffers are the device's memory, too. */
bool imports_device;

int import(gq_exec *x, const gq_mem *mem, gq_import *out)
{
    int err = cpu_ops.import(x, mem, out);

    if (!err && imports_device) {
        out->mem.device = out->base;
        out->mem.addr = nullptr;
    }
    return err;
}

void staging_free(gq_exec *x, gq_import *imp)
{
    EXPECT_EQ(is_host.erase(imp->base), 1u);
    cpu_ops.staging_free(x, imp);
}

/* A file that is registered, and its number of pages at the time of quiesce(). */
int watched = -1;
long long there;

long long bytes_there(int fd)
{
    struct stat st = {};

    EXPECT_EQ(fstat(fd, &st), 0);
    return (long long)st.st_blocks * 512;
}

void quiesce(gq_exec *x)
{
    if (watched >= 0)
        there = bytes_there(watched);
    cpu_ops.quiesce(x);
}

/* What the executor says of a run; 0: as it is. */
int refusal;

/* Is set when a run has been started, unless it is NULL. */
uint32_t *cancel_started;

/* The last run. */
uint32_t units;

int start(gq_exec *x, gq_launch *l)
{
    units = l->list->n;
    if (cancel_started)
        *cancel_started = 1;
    return refusal ? refusal : cpu_ops.start(x, l);
}

/* Value that the device reports for the order of writes to it. */
bool orders_writes = true;

/* Kernels before 5.14 do not know MADV_POPULATE_WRITE. */
bool is_old_kernel;
size_t longest; /* that was made by one call */

unsigned allocations(bool host)
{
    unsigned n = 0;

    for (const auto &a : is_host)
        n += a.second == host;
    return n;
}

} // namespace

extern "C" int __real_madvise(void *addr, size_t len, int advice);

extern "C" int __wrap_madvise(void *addr, size_t len, int advice)
{
    longest = std::max(longest, len);
    if (!is_old_kernel)
        return __real_madvise(addr, len, advice);
    errno = EINVAL;
    return -1;
}

extern "C" int __wrap_gq_cuda_open(nvme_ctrlr *c, const gq_options *opts, unsigned max_runs,
                                   gq_exec **out, struct reason *)
{
    int err = gq_cpu_open(c, opts, max_runs, out);

    if (err)
        return err;
    cpu_ops = device_ops = *(*out)->ops;
    device_ops.staging_alloc = staging_alloc;
    device_ops.staging_free = staging_free;
    device_ops.device_page = device_page;
    device_ops.import = import;
    device_ops.quiesce = quiesce;
    device_ops.start = start;
    (*out)->ops = &device_ops;
    (*out)->kind = GQ_EXECUTOR_CUDA;
    (*out)->tier = 2;
    (*out)->orders_writes = orders_writes;
    return 0;
}

namespace
{

struct Case {
    const char *name;
    bool is_drive, no_peer;
    unsigned tier;
    bool host;
};

class Staging : public testing::TestWithParam<Case>
{
  protected:
    Staging()
    {
        rig.opts.executor = GQ_EXECUTOR_CUDA;
        rig.dma = &kDma;
        rig.is_drive = GetParam().is_drive;
        rig.no_peer = GetParam().no_peer;
        rig.open();
    }

    Rig rig{kCpu};
};

/* The map of extents is the device's in any case: no controller touches it. */
TEST_P(Staging, IsWhereACqeTellsOfIt)
{
    gq_info info;

    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.tier, GetParam().tier);
    EXPECT_EQ(allocations(true), GetParam().host ? 1u : 0u);
    EXPECT_EQ(allocations(false), GetParam().host ? 1u : 2u);
    rig.close();
    EXPECT_TRUE(is_host.empty());
}

TEST_P(Staging, CarriesWhatIsNotAligned)
{
    Memory m(GQ_EXECUTOR_CPU, 64u << 10);
    gq_buffer *b = rig.add(m, 3, 40000);
    File file(rig, {{0, 100}}, 100000);
    Batch batch(b, file, {{1, 2, 300}, {4097, 2000, 5000}});
    Bytes data = random_bytes(2048, 7);

    ASSERT_EQ(rig.move(GQ_READ, b, 5, {{2000, 65536}}, 77, 1000), 0);
    EXPECT_EQ(m.read(3 + 5, 1000), rig.peek(2000 * 512 + 77, 1000));
    ASSERT_EQ(batch.run(rig), 0);
    EXPECT_EQ(m.read(3 + 2, 300), file.part(1, 300));
    EXPECT_EQ(m.read(3 + 2000, 5000), file.part(4097, 5000));
    m.write(3 + 6, data);
    ASSERT_EQ(rig.move(GQ_WRITE, b, 6, {{3000, 65536}}, 512, data.size()), 0);
    EXPECT_EQ(rig.peek(3001 * 512, data.size()), data);
}

/* A drive writes to GPU memory for the commands of any process. */
TEST_P(Staging, LeasesUseAddressesOfADriveOnly)
{
    Memory m(GQ_EXECUTOR_CPU, 8192);
    struct gq_buffer_iova where;
    gq_info info;
    bool drives = GetParam().is_drive && GetParam().tier == 2;

    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.lease_tier, drives ? 2u : 1u);
    imports_device = true;
    rig.x.staged = GetParam().tier == 1;
    gq_buffer *b = rig.add(m, 0, 8192);
    imports_device = false;
    EXPECT_EQ(gq_buffer_iova(b, &where), drives ? 0 : -ENOTSUP);
    ASSERT_EQ(rig.move(GQ_READ, b, 0, {{2000, 65536}}, 0, 4096), 0);
    EXPECT_EQ(rig.result.staged, GetParam().tier == 1) << "of the daemon's own commands";
}

/* Without staging the kernels of such a GPU would see a CQE before the data. */
TEST(StagingOfLeases, IsUsedForAGpuThatDoesNotOrderWrites)
{
    Rig rig{kCpu};
    gq_info info;

    rig.opts.executor = GQ_EXECUTOR_CUDA;
    rig.dma = &kDma;
    rig.is_drive = true;
    orders_writes = false;
    rig.open();
    orders_writes = true;
    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.tier, 2u);
    EXPECT_EQ(info.lease_tier, 1u);
    rig.close();
}

/* The persistent kernel executes the command and the copy. */
TEST_P(Staging, AShortReadIsOneCommand)
{
    constexpr size_t kShort = 16u << 10;
    Memory m(GQ_EXECUTOR_CPU, 64u << 10);
    bool all = GetParam().tier == 1;
    imports_device = true;
    rig.x.staged = all;
    gq_buffer *b = rig.add(m, 3, 40000);
    imports_device = false;
    const struct {
        size_t at, len;
        uint64_t offset;
    } reads[] = {{0, 1, 0}, {5, 4096, 77}, {13, 512, 1024}, {13, 4096, 4096}, {1, 4608, 512}};

    for (const auto &r : reads) {
        m.write(0, Bytes(64u << 10, 0xa5));
        ASSERT_EQ(rig.move(GQ_READ, b, r.at, {{2000, 65536}}, r.offset, r.len), 0);
        EXPECT_EQ(m.read(3 + r.at, r.len), rig.peek(2000 * 512 + r.offset, r.len)) << r.len;
        EXPECT_EQ(m.read(3 + r.at + r.len, 100), Bytes(100, 0xa5)) << "no byte behind it";
        EXPECT_EQ(rig.result.staged, all);
        EXPECT_EQ(units, 1u);
        EXPECT_EQ(rig.result.commands, 1u);
    }
    ASSERT_EQ(rig.move(GQ_READ, b, 1, {{2000, 65536}}, 0, kShort + 512), 0);
    EXPECT_EQ(units > 1, all) << "copies overlap reading";
    EXPECT_EQ(m.read(4, kShort + 512), rig.peek(2000 * 512, kShort + 512));
    ASSERT_EQ(rig.move(GQ_READ, b, 1, {{2000, 4096}, {3000, 4096}}, 0, 8192), 0);
    EXPECT_EQ(rig.result.commands, 2u) << "more than one extent";
    EXPECT_EQ(m.read(4 + 4096, 4096), rig.peek(3000 * 512, 4096));
}

/* A run whose turn did not come in time says nothing against the executor, nor about queues. */
TEST(Runs, ThatDidNotBeginLeaveTheEngineInService)
{
    Rig rig(kCpu);
    Memory m(GQ_EXECUTOR_CPU, 64u << 10);

    rig.opts.executor = GQ_EXECUTOR_CUDA;
    rig.dma = &kDma;
    rig.open();
    gq_buffer *b = rig.add(m, 0, 40000);
    File file(rig, {{0, 100}}, 100000);
    Batch batch(b, file, {{1, 2, 300}});
    for (int err : {-ETIMEDOUT, -ECANCELED}) {
        refusal = err;
        EXPECT_EQ(rig.move(GQ_READ, b, 0, {{2000, 65536}}, 0, 4096), err);
        EXPECT_EQ(batch.run(rig), err);
        refusal = 0;
        EXPECT_EQ(rig.move(GQ_READ, b, 0, {{2000, 65536}}, 0, 4096), 0);
        EXPECT_EQ(batch.run(rig), 0);
    }
    gq_stats stats = {};
    gq_engine_stats(rig.e, &stats);
    EXPECT_EQ(stats.quarantined, 0u);
}

/* The queue's state is still that of its previous run, which transferred all. */
TEST(Runs, ThatAreCancelledBeforeTheyBeginTransferNothing)
{
    Rig rig(kCpu);
    Memory m(GQ_EXECUTOR_CPU, 64u << 10);
    uint32_t cancel = 0;

    rig.opts.executor = GQ_EXECUTOR_CUDA;
    rig.dma = &kDma;
    rig.open();
    gq_buffer *b = rig.add(m, 0, 40000);
    ASSERT_EQ(rig.move(GQ_READ, b, 0, {{2000, 65536}}, 0, 4096), 0);
    cancel_started = &cancel;
    rig.req.cancel = &cancel;
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{2000, 65536}}, 0, 4096), -ECANCELED);
    cancel_started = nullptr;
    EXPECT_EQ(rig.result.bytes, 0u);
    EXPECT_TRUE(rig.result.cancelled);
}

class Pages : public testing::TestWithParam<bool>
{
  protected:
    Pages()
    {
        is_old_kernel = GetParam();
        longest = 0;
    }

    ~Pages() override
    {
        if (mem.fd >= 0)
            close(mem.fd);
        watched = -1;
        is_old_kernel = false;
    }

    /* Of len bytes, without a page. */
    void make(long long len)
    {
        mem.kind = GQ_MEM_FD;
        mem.fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ASSERT_EQ(ftruncate(mem.fd, len), 0);
    }

    /* Its pages from `offset` on, up to `end`. */
    int populate(long long offset, long long end)
    {
        gq_import import = {};

        mem.offset = (uint64_t)offset;
        mem.len = (uint64_t)(end - offset);
        EXPECT_EQ(gq_host_import(&mem, &import), 0);
        int err = gq_host_populate(&import);
        gq_host_release(&import);
        return err;
    }

    gq_mem mem = {};
};

/* Pinning does not wait for the allocation of pages, because no run is possible meanwhile. */
TEST_P(Pages, OfAFileAreThereBeforeTheExecutorRests)
{
    constexpr long long kLen = 1 << 20;
    Rig rig(kCpu);

    rig.opts.executor = GQ_EXECUTOR_CUDA;
    rig.dma = &kDma;
    rig.open();
    for (bool is_list : {false, true}) {
        gq_buffer *b = nullptr;

        make(kLen);
        watched = mem.fd;
        mem.len = kLen - 100;
        mem.offset = 8;
        mem.is_list = is_list;
        ASSERT_EQ(pwrite(mem.fd, "kept", 4, 4096), 4);
        EXPECT_LT(bytes_there(mem.fd), kLen);
        ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
        EXPECT_EQ(there, kLen);
        char kept[5] = "";
        EXPECT_EQ(pread(mem.fd, kept, 4, 4096), 4);
        EXPECT_STREQ(kept, "kept");
        watched = -1;
        gq_buffer_unregister(b);
        close(mem.fd);
        mem.fd = -1;
    }
}

TEST_P(Pages, ThatCannotBeAreAnError)
{
    gq_import import = {};

    make(1 << 20);
    mem.len = 1 << 20;
    ASSERT_EQ(gq_host_import(&mem, &import), 0);
    EXPECT_EQ(gq_host_populate(&import), 0);
    ASSERT_EQ(ftruncate(mem.fd, 4096), 0);
    EXPECT_EQ(gq_host_populate(&import), -ENOMEM);
    EXPECT_EQ(bytes_there(mem.fd), 4096) << "none past the file's end";
    gq_host_release(&import);
}

/* A file has whole pages, whatever its length, and may be sealed against growth. */
TEST_P(Pages, AreThoseThatWereAskedFor)
{
    make(40000);
    ASSERT_EQ(fcntl(mem.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    EXPECT_EQ(populate(5000, 9000), 0);
    EXPECT_EQ(bytes_there(mem.fd), 8192);
    EXPECT_EQ(populate(36000, 40000), 0);
    EXPECT_EQ(bytes_there(mem.fd), 8192 + 8192);
    struct stat st = {};
    EXPECT_EQ(fstat(mem.fd, &st), 0);
    EXPECT_EQ(st.st_size, 40000);
}

/* Other threads that map memory meanwhile do not wait for all steps. */
TEST_P(Pages, AreMadeInSteps)
{
    constexpr long long kLen = (40 << 20) + 4096;

    make(kLen);
    EXPECT_EQ(populate(0, kLen), 0);
    EXPECT_EQ(bytes_there(mem.fd), kLen);
    EXPECT_LE(longest, 16u << 20);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Pages, testing::Bool(),
                         [](const testing::TestParamInfo<bool> &i) {
                             return std::string(i.param ? "Old" : "New");
                         });

const Case kCases[] = {
    {"Simulated", false, false, 2, false},
    {"SimulatedWithoutPeers", false, true, 1, true},
    {"Drive", true, false, 2, true},
    {"DriveWithoutPeers", true, true, 1, true},
};

INSTANTIATE_TEST_SUITE_P(Controllers, Staging, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
