/* Reads into GPU memory that belongs to another process. */
#include <cerrno>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/gq_rig.h"

namespace
{

/* The program beside this one, with a pipe each way. It ends when its stdin does. */
class Child
{
  public:
    explicit Child(size_t len)
    {
        int to[2], from[2];
        std::string size = std::to_string(len), path = program();
        char *argv[] = {path.data(), size.data(), nullptr};
        posix_spawn_file_actions_t actions;

        if (pipe(to) || pipe(from))
            throw std::runtime_error("pipe");
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], 0);
        posix_spawn_file_actions_adddup2(&actions, from[1], 1);
        posix_spawn_file_actions_addclose(&actions, to[1]);
        posix_spawn_file_actions_addclose(&actions, from[0]);
        int err = posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        in_ = to[1];
        out_ = from[0];
        if (err)
            throw std::runtime_error("posix_spawn");
    }

    ~Child()
    {
        close(in_);
        close(out_);
        waitpid(pid_, nullptr, 0);
    }

    Bytes read(size_t n)
    {
        Bytes out(n);
        size_t done = 0;
        ssize_t got = 1;

        while (done < n && got > 0) {
            got = ::read(out_, out.data() + done, n - done);
            done += got > 0 ? (size_t)got : 0;
        }
        out.resize(done);
        return out;
    }

    void go()
    {
        EXPECT_EQ(write(in_, "x", 1), 1);
    }

  private:
    static std::string program()
    {
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
        std::string path(self, n > 0 ? (size_t)n : 0);

        return path.substr(0, path.rfind('/')) + "/gq_ipc_child";
    }

    pid_t pid_ = 0;
    int in_ = -1, out_ = -1;
};

class GqIpc : public GqTest
{
  protected:
    static gq_mem memory(const Bytes &handle, uint64_t offset, uint64_t len)
    {
        gq_mem m = {};

        m.kind = GQ_MEM_CUDA_IPC;
        m.fd = -1;
        m.offset = offset;
        m.len = len;
        std::copy(handle.begin(), handle.end(), m.ipc);
        return m;
    }
};

constexpr size_t kLen = 1u << 20;

TEST_P(GqIpc, FillsExactlyTheBufferInTheOtherProcess)
{
    Rig rig(GetParam(), 512);

    rig.open();
    Child child(kLen);
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    gq_mem mem = memory(handle, 70001, 900000);
    gq_buffer *b = nullptr;
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{16, kLen}}, 3, 900000), 0);
    gq_buffer_unregister(b);
    Bytes want(kLen, 0xa5);
    std::copy_n(rig.media.begin() + 16 * 512 + 3, 900000, want.begin() + 70001);
    child.go();
    EXPECT_TRUE(child.read(kLen) == want);
}

/* Two buffers of one allocation: the handle is opened twice, and closed twice. */
TEST_P(GqIpc, SharesOneAllocationBetweenBuffers)
{
    Rig rig(GetParam(), 4096);
    gq_buffer *b[2] = {};

    rig.open();
    Child child(kLen);
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    for (unsigned i = 0; i < 2; i++) {
        gq_mem mem = memory(handle, i * kLen / 2, kLen / 2);
        ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b[i]), 0);
    }
    EXPECT_EQ(rig.move(GQ_READ, b[0], 0, {{0, kLen / 2}}, 0, kLen / 2), 0);
    gq_buffer_unregister(b[0]);
    EXPECT_EQ(rig.move(GQ_READ, b[1], 0, {{128, kLen / 2}}, 0, kLen / 2), 0);
    gq_buffer_unregister(b[1]);
    child.go();
    EXPECT_TRUE(child.read(kLen) == Bytes(rig.media.begin(), rig.media.begin() + kLen));
}

TEST_P(GqIpc, RefusesHandlesAndRangesThatCannotBe)
{
    Rig rig(GetParam(), 4096);
    gq_buffer *b = nullptr;

    rig.open();
    Child child(kLen);
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    for (auto [offset, len] : {std::pair<uint64_t, uint64_t>{64u << 20, 4096},
                               {0, 1ull << 40},
                               {UINT64_MAX - 100, 4096},
                               {4096, UINT64_MAX - 100}}) {
        gq_mem mem = memory(handle, offset, len);
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << offset << " " << len;
    }
    gq_mem mem = memory(Bytes(64, 0x77), 0, 4096);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "no handle at all";
    EXPECT_EQ(rig.stats().buffers, 0u);
}

INSTANTIATE_TEST_SUITE_P(Executors, GqIpc, testing::Values(kExecutors[2]),
                         [](const testing::TestParamInfo<Executor> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
