/* SPDX-License-Identifier: BSD-2-Clause */
// Tests tables on a drive with injected faults, without a mount, and with
// arrays in GPU memory.
#include <csignal>

#include "tests/client/lib/table_base.h"

using namespace table_base;

namespace
{

bool launch_fails; // of the pass after the reads

} // namespace

extern "C" {

struct leased_file;
struct direct_window;

int __real_direct_list_read_window(leased_file *f, const direct_window *win, void *stream);
int __wrap_direct_list_read_window(leased_file *f, const direct_window *win, void *stream)
{
    int err = __real_direct_list_read_window(f, win, stream);
    return launch_fails ? -EIO : err;
}
}

namespace
{

constexpr int kRead = 2; // opcode

const Way kReached = {"", "executor=cpu,direct=all,deadline=2000", GPUNVME_FILE_DIRECT},
          kStaged = {"", "executor=cpu_staged,direct=all,deadline=2000", GPUNVME_FILE_DIRECT};

class TableFails : public TableBase
{
  protected:
    static void SetUpTestSuite() { puppet_ = GPUNVME_PUPPET; }
    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0)
    {
        ASSERT_NO_FATAL_FAILURE(tell_fault(control_, kind, opcode, 0, times, status));
    }
    // Gathers while the drive loses a command.
    void lose_one(const Ids &ids)
    {
        ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
        Status status = gather(ids);
        EXPECT_GE(status.failed, 1u);
        EXPECT_EQ(status.error, -ETIMEDOUT);
        EXPECT_EQ(count_zeros(ids, out_), status.failed);
    }
    void fail_launch(const Ids &ids)
    {
        Status status = {};
        struct gpunvme_gather a = gather_of(ids, &status);
        launch_fails = true;
        EXPECT_EQ(gpunvme_table_gather(table_, &a, nullptr), -EIO);
        launch_fails = false;
    }
    // Returns the ids of one row per block, for n blocks.
    static Ids blocks(size_t n)
    {
        Ids ids(n);
        for (size_t i = 0; i < n; i++)
            ids[i] = static_cast<int64_t>(i * 7919 % 4096 * (kBlock / kRow));
        return ids;
    }
};

TEST_F(TableFails, ADriveErrorFailsItsRow)
{
    start(kStaged);
    open_table();
    const Ids ids = blocks(100);
    ASSERT_NO_FATAL_FAILURE(fault("status", kRead, 3, 0x281)); // unrecovered read error
    Status status = gather(ids);
    EXPECT_EQ(status.failed, 3u);
    EXPECT_EQ(status.error, -EIO);
    EXPECT_EQ(count_zeros(ids, out_), 3u);
    expect_right(ids);
}

TEST_F(TableFails, ALostCommandEndsByTheDeadline)
{
    start(kStaged);
    open_table();
    const Ids ids = blocks(100);
    ASSERT_NO_FATAL_FAILURE(lose_one(ids));
    expect_right(ids);
}

TEST_F(TableFails, ALostCommandMayWriteToTheStaging)
{
    start(kReached);
    open_table();
    const Ids ids = blocks(100);
    ASSERT_NO_FATAL_FAILURE(lose_one(ids));
    Status status = gather(ids);
    EXPECT_EQ(status.failed, 100u);
    EXPECT_EQ(status.error, -ESTALE);
    ASSERT_EQ(gpunvme_file_renew(file_), 0) << gpunvme_error();
    expect_right(ids);
}

// The gathers fail as if CUDA did not launch their last pass, which looks for lost commands.
TEST_F(TableFails, ALostCommandOfAGatherThatFailedMayWriteToTheStaging)
{
    start(kReached);
    open_table();
    const Ids ids = blocks(100);
    ASSERT_NO_FATAL_FAILURE(fail_launch(ids));
    expect_right(ids);
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
    ASSERT_NO_FATAL_FAILURE(fail_launch(ids));
    for (int i = 0; i < 2; i++) {
        Status status = gather(ids);
        EXPECT_EQ(status.failed, 100u);
        EXPECT_EQ(status.error, -ESTALE);
    }
    ASSERT_EQ(gpunvme_file_renew(file_), 0) << gpunvme_error();
    expect_right(ids);
}

// The daemon's process runs the drive here, so no command completes after its
// death.
TEST_F(TableFails, AKilledDaemonEndsByTheDeadline)
{
    start(kReached);
    open_table();
    const Ids ids = blocks(100);
    kill(mount_->pid(), SIGKILL);
    EXPECT_FALSE(mount_->ended());
    Status status = {};
    for (int i = 0; i < 50 && !status.failed; i++)
        status = gather(ids);
    EXPECT_TRUE(status.error == -ETIMEDOUT || status.error == -ESTALE) << status.error;
    EXPECT_EQ(count_zeros(ids, out_), status.failed);
    EXPECT_LT(gpunvme_file_renew(file_), 0);
    Status after = {};
    struct gpunvme_gather a = gather_of(ids, &after);
    EXPECT_EQ(gpunvme_table_gather(table_, &a, nullptr), -ESTALE);
}

TEST_F(TableFails, ChecksumsAreCompared)
{
    start({"", "executor=cpu,direct=all,deadline=60000", GPUNVME_FILE_DIRECT}, {"-O", "data_csum"});
    open_table();
    Ids ids = all_of(kRows);
    expect_right(ids);
    EXPECT_EQ(gather(ids).reads, 1024u) << "whole blocks";
    ASSERT_NO_FATAL_FAILURE(tell_fault(control_, "corrupt", kRead, 0, 2,
                                       0)); // both the first read and the second one are corrupt
    Status status = gather(Ids(1, 5));
    EXPECT_EQ(status.failed, 1u);
    EXPECT_EQ(status.error, -EIO);
    expect_right(ids);
}

TEST_F(TableFails, AKilledDaemonFailsTheRowsOfReadv)
{
    start({"", "executor=cpu", 0});
    open_table();
    expect_right({1, 2});
    kill(mount_->pid(), SIGKILL);
    EXPECT_FALSE(mount_->ended());
    Status status = gather({1, 2});
    EXPECT_EQ(status.failed, 2u);
    EXPECT_LT(status.error, 0);
}

TEST_F(TableFails, FilesOfOtherFileSystems)
{
    std::string why;
    Folder tmpfs(Where::kTmpfs, &why);
    ASSERT_TRUE(make_file(tmpfs.path("file"), bytes_));
    ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
    file_ = open_file(tmpfs.path("file"));
    open_table(kRow, 104);
    ASSERT_NE(gpunvme_table_why(table_), nullptr);
    EXPECT_NE(strstr(gpunvme_table_why(table_), "not on a gpunvmefs mount"), nullptr);
    EXPECT_EQ(gather(Ids(kRows, 3)).reads, 1u);
    expect_right({1, 65534, 7});
    gpunvme_table_close(table_);
    gpunvme_close(io_);
    table_ = nullptr;
    io_ = nullptr;
    EXPECT_TRUE(tmpfs.end());
}

// A driver of CUDA is loaded, and a table without a direct path copies ids and
// rows to and from GPU memory.
TEST_F(TableFails, ArraysInGpuMemoryAreCopied)
{
    cuda();
    start({"", "executor=cpu", 0});
    open_table();
    const Ids ids = {5, -1, 60000, 5};
    Memory on_gpu(Kind::kDevice, 4096);
    std::vector<char> raw(sizeof(int64_t) * ids.size());
    memcpy(raw.data(), ids.data(), raw.size());
    on_gpu.put(0, raw);
    struct gpunvme_gather a = gather_of({}, reinterpret_cast<Status *>(on_gpu.at(4000)));
    a.ids = on_gpu.at();
    a.n = ids.size();
    a.out = on_gpu.at(512);
    for (size_t stride : {size_t{0}, size_t{300}}) {
        a.out_stride = stride;
        ASSERT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0) << gpunvme_error();
        for (size_t i : {0, 2, 3})
            EXPECT_EQ(memcmp(on_gpu.get(512 + i * (stride ? stride : kRow), kRow).data(),
                             &bytes_[static_cast<size_t>(ids[i]) * kRow], kRow),
                      0);
    }
    Status status;
    memcpy(&status, on_gpu.get(4000, sizeof(status)).data(), sizeof(status));
    EXPECT_EQ(status.failed, 1u);
    EXPECT_EQ(status.error, -ERANGE);
    a.n = 0;
    ASSERT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0) << gpunvme_error();
    memcpy(&status, on_gpu.get(4000, sizeof(status)).data(), sizeof(status));
    EXPECT_EQ(status.failed, 0u) << "no rows, with a stride";
    cuda().capture(1);
    EXPECT_EQ(gpunvme_table_gather(table_, &a, nullptr), -ENOTSUP);
    EXPECT_NE(strstr(gpunvme_error(), "GPUNVME_FILE_DIRECT"), nullptr) << gpunvme_error();
    cuda().capture(0);
}

} // namespace
