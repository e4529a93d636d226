/* SPDX-License-Identifier: BSD-2-Clause */
/* The vfio-user client with a server that goes away, and sockets that lead to none. */
#include <nvme/types.h>
#include <sys/un.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/blockdev/vfio_user/vfio_user_rig.h"

namespace
{

/* A server that ends, or falls silent, while the transport is in use. */
class Gone : public VfioUser
{
  protected:
    void everything_ends_at_once()
    {
        uint64_t iova;
        nvme_mem page = mem.piece(0, 0x1000);
        double s = seconds([&] {
            for (int i = 0; i < 100; i++) {
                EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
                EXPECT_EQ(t->ops->read(t, NVME_REG_CAP, 8), UINT64_MAX);
                t->ops->write(t, NVME_REG_CC, 1, 4);
                EXPECT_EQ(t->ops->map(t, &page, &iova), -EIO);
                EXPECT_EQ(t->ops->unmap(t, mapped), -ENOENT);
                EXPECT_EQ(t->ops->reset(t), -EIO);
            }
        });
        EXPECT_LT(s, BOUND_S);
        for (size_t i = 0; i < t->doorbells_len / 4; i++)
            t->doorbells[i] = 1;
        EXPECT_TRUE(asks_back());
    }

    bool asks_back() const
    {
        pollfd p{t->removal_fd, POLLIN, 0};
        return poll(&p, 1, 0) == 1;
    }

    void open_with_memory()
    {
        open();
        nvme_mem page = mem.piece(0, 0x1000);
        ASSERT_EQ(t->ops->map(t, &page, &mapped), 0);
        EXPECT_FALSE(asks_back());
    }
    /* The server answers nothing while `silent` is true, and else after delay_ms. */
    void open_with_hook()
    {
        server.hook = [this](Server &, const Message &) {
            std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
            return silent.load();
        };
        open_with_memory();
    }

    uint64_t mapped = 0;
    std::atomic<bool> silent{false};
    std::atomic<unsigned> delay_ms{0};
};

TEST_F(Gone, AServerThatEndsIsGone)
{
    open_with_memory();
    server.stop();
    EXPECT_TRUE(asks_back()) << "seen without a message";
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
    everything_ends_at_once();
}

TEST_F(Gone, DoorbellsOutliveTheirFile)
{
    open_with_memory();
    server.stop();
    EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
    ASSERT_EQ(ftruncate(server.doorbells, 0), 0);
    t->doorbells[0] = 1;
    EXPECT_EQ(t->doorbells[0], 1u);
}

TEST_F(Gone, DoorbellsReachNoLaterServer)
{
    open_with_memory();
    server.stop();
    EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
    t->doorbells[0] = 0x77;
    uint32_t value = 0;
    ASSERT_EQ(pread(server.doorbells, &value, 4, 0x1000), 4);
    EXPECT_EQ(value, 0u);
}

TEST_F(Gone, ASilentServerIsGone)
{
    open_with_hook();
    set_timeout(DEADLINE_MS);
    silent = true;
    double s = seconds([&] { EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX); });
    EXPECT_GE(s, DEADLINE_MS / 1000.0 - 0.01);
    EXPECT_LT(s, BOUND_S);
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
    everything_ends_at_once();
}

/* A late answer to the command that was given up must not be taken for that of another. */
TEST_F(Gone, AServerWithALateReplyIsNotGone)
{
    open_with_hook();
    uint64_t cap = t->ops->read(t, NVME_REG_CAP, 8);
    set_timeout(DEADLINE_MS, PATIENT_MS);
    EXPECT_FALSE(t->ops->silent(t));
    delay_ms = 5 * DEADLINE_MS;
    EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
    EXPECT_TRUE(t->ops->silent(t));
    EXPECT_FALSE(asks_back());
    delay_ms = 0;
    set_timeout(PATIENT_MS, PATIENT_MS);
    EXPECT_EQ(t->ops->unmap(t, mapped), 0) << "waits for the late reply";
    EXPECT_FALSE(t->ops->silent(t));
    EXPECT_EQ(t->ops->read(t, NVME_REG_CAP, 8), cap);
}

/* Each reply arrives, but after its deadline: a reset would otherwise wait for ever. */
TEST_F(Gone, AServerWhoseRepliesAreAllLateIsGone)
{
    open_with_hook();
    set_timeout(DEADLINE_MS, 8 * DEADLINE_MS);
    delay_ms = 2 * DEADLINE_MS;
    int reads = 0;
    for (; reads < 1000 && !asks_back(); reads++)
        EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
    EXPECT_GT(reads, 2) << "replies of which each is late do not end it at once";
    EXPECT_LT(reads, 1000);
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
    everything_ends_at_once();
}

TEST_F(Gone, AReplyOfTheWrongSizeEndsTheConnection)
{
    std::atomic<bool> lies{false};
    server.hook = [&lies](Server &s, const Message &m) {
        if (!lies)
            return false;
        Bytes b = s.answer(m);
        b.pop_back();
        s.reply(m, b);
        return true;
    };
    open_with_memory();
    lies = true;
    EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX);
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
    everything_ends_at_once();
}

/* The server might still write to a region that it keeps: no connection without trust. */
TEST_F(Gone, ARefusedUnmapEndsTheConnection)
{
    server.hook = [](Server &s, const Message &m) {
        bool unmap = m.h.command == VFIO_USER_DMA_UNMAP;
        if (unmap)
            s.refuse(m, EBUSY);
        return unmap;
    };
    open_with_memory();
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
    everything_ends_at_once();
}

TEST_F(Gone, ManyWaitingThreadsEnd)
{
    open_with_hook();
    set_timeout(DEADLINE_MS);
    silent = true;
    std::vector<std::thread> threads;
    double s = seconds([&] {
        for (int i = 0; i < 8; i++)
            threads.emplace_back(
                [this] { EXPECT_EQ(t->ops->read(t, NVME_REG_CSTS, 4), UINT32_MAX); });
        for (auto &thread : threads)
            thread.join();
    });
    EXPECT_LT(s, BOUND_S) << "one deadline for all, not one for each";
    EXPECT_EQ(t->ops->unmap(t, mapped), -EIO);
}

/* Sockets in the file system. */
class Socket : public VfioUser
{
  protected:
    void SetUp() override
    {
        char pattern[] = "/tmp/vfio-user-XXXXXX";
        ASSERT_NE(mkdtemp(pattern), nullptr);
        folder = pattern;
        path = folder + "/socket";
    }

    void TearDown() override
    {
        if (listener >= 0)
            close(listener);
        VfioUser::TearDown();
        std::filesystem::remove_all(folder);
    }

    void listen_here(int backlog)
    {
        sockaddr_un addr{};
        addr.sun_family = AF_UNIX;
        strcpy(addr.sun_path, path.c_str());
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&addr), sizeof(addr)), 0);
        ASSERT_EQ(listen(listener, backlog), 0);
    }

    int open_path(const std::string &name, unsigned timeout_ms = DEADLINE_MS)
    {
        bd_open_opts opts = {};
        opts.deadline_ms = timeout_ms;
        int rc = 0;
        took = seconds([&] { rc = vfio_user_open(name.c_str(), &opts, &t, &why); });
        EXPECT_LT(took, BOUND_S);
        return rc;
    }

    std::string folder, path;
    int listener = -1;
};

TEST_F(Socket, IsConnected)
{
    listen_here(1);
    std::thread acceptor(
        [this] { server.serve(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)); });
    EXPECT_EQ(open_path(path, PATIENT_MS), 0) << why.text;
    acceptor.join();
}

TEST_F(Socket, IsRefusedIfItIsMissing)
{
    EXPECT_EQ(open_path(path), -ENOENT);
    EXPECT_STREQ(why.text, "cannot connect: No such file or directory");
}

TEST_F(Socket, IsRefusedWithoutAServer)
{
    listen_here(1);
    close(listener);
    listener = -1;
    EXPECT_EQ(open_path(path), -ECONNREFUSED);
    EXPECT_STREQ(why.text, "no server listens on it");
}

TEST_F(Socket, IsRefusedIfItIsAFolder)
{
    EXPECT_LT(open_path(folder), 0);
    EXPECT_STREQ(why.text, "a folder; name the socket in it (SPDK calls it cntrl)");
}

TEST_F(Socket, IsRefusedIfItsPathIsTooLong)
{
    EXPECT_EQ(open_path("/tmp/" + std::string(200, 'x')), -ENAMETOOLONG);
    EXPECT_STREQ(why.text, "a socket's path has at most 107 bytes");
}

TEST_F(Socket, OfABusyServerLetsTheSecondClientWait)
{
    listen_here(1);
    EXPECT_EQ(open_path(path), -ETIMEDOUT);
    EXPECT_NE(strstr(why.text, "busy with another client"), nullptr) << why.text;
}

TEST_F(Socket, IsRefusedIfItsQueueOfClientsIsFull)
{
    listen_here(0);
    sockaddr_un addr{};
    addr.sun_family = AF_UNIX;
    strcpy(addr.sun_path, path.c_str());
    int waiting = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(waiting, reinterpret_cast<sockaddr *>(&addr), sizeof(addr)), 0);
    EXPECT_EQ(open_path(path), -ETIMEDOUT);
    EXPECT_GE(took, DEADLINE_MS / 1000.0 - 0.01);
    EXPECT_NE(strstr(why.text, "takes no connection"), nullptr) << why.text;
    close(waiting);
}

// --- Servers that pause while memory is mapped or unmapped ---------------------------------------

/* Replies to one kind of command wait for release(). */
class Late : public VfioUser
{
  protected:
    void open_held(uint16_t command)
    {
        held_command = command;
        open_with([this](Server &, const Message &m) {
            std::lock_guard<std::mutex> guard(lock);
            if (!holds || m.h.command != held_command)
                return false;
            held.push_back(m);
            come.notify_all();
            return true;
        });
    }

    void hold(uint16_t command)
    {
        std::lock_guard<std::mutex> guard(lock);
        held_command = command;
        holds = true;
    }

    /* Commands from now on are held, and miss the deadline. */
    void pause()
    {
        hold(held_command);
        set_timeout(DEADLINE_MS, PATIENT_MS);
    }

    /* The command that was held is answered; so are those to come, in time. */
    void release(uint32_t error = 0)
    {
        set_timeout(PATIENT_MS, PATIENT_MS);
        release_once(error);
        std::lock_guard<std::mutex> guard(lock);
        holds = false;
    }

    void release_once(uint32_t error = 0)
    {
        std::unique_lock<std::mutex> guard(lock);
        come.wait(guard, [this] { return !held.empty(); });
        if (error)
            server.refuse(held.front(), error);
        else
            server.reply(held.front(), server.answer(held.front()));
        held.erase(held.begin());
    }

    int map(size_t page, uint64_t *iova)
    {
        nvme_mem m = mem.piece(page * 0x1000, 0x1000);
        return t->ops->map(t, &m, iova);
    }

    bool answers() { return t->ops->read(t, NVME_REG_CC, 4) != UINT32_MAX; }

    std::vector<uint64_t> addresses(uint16_t command)
    {
        std::vector<uint64_t> found;
        for (const Message &m : server.seen(command))
            found.push_back(command == VFIO_USER_DMA_MAP
                                ? first<vfio_user_dma_map>(m.payload).addr
                                : first<vfio_user_dma_unmap>(m.payload).addr);
        return found;
    }

    uint64_t iova = 0, other = 0;

  private:
    std::mutex lock; /* the members below */
    std::condition_variable come;
    uint16_t held_command = 0;
    bool holds = false;
    std::vector<Message> held;
};

TEST_F(Late, AMapThatSucceedsAfterItsDeadlineIsUndone)
{
    open_held(VFIO_USER_DMA_MAP);
    pause();
    EXPECT_LT(seconds([&] { EXPECT_EQ(map(0, &iova), -ETIMEDOUT); }), BOUND_S);
    EXPECT_TRUE(t->ops->silent(t));
    EXPECT_LT(seconds([&] { EXPECT_EQ(map(1, &other), -ETIMEDOUT); }), BOUND_S);
    EXPECT_EQ(addresses(VFIO_USER_DMA_MAP).size(), 1u) << "nothing is sent before the reply";
    release();
    ASSERT_EQ(map(1, &other), 0);
    EXPECT_FALSE(t->ops->silent(t));
    uint64_t late = addresses(VFIO_USER_DMA_MAP)[0];
    EXPECT_EQ(addresses(VFIO_USER_DMA_UNMAP), std::vector<uint64_t>{late});
    EXPECT_NE(other, late) << "handed out while the server had it";
    ASSERT_EQ(map(2, &iova), 0);
    EXPECT_EQ(iova, late) << "free again";
}

TEST_F(Late, AMapThatIsRefusedAfterItsDeadlineLeavesNothing)
{
    open_held(VFIO_USER_DMA_MAP);
    pause();
    EXPECT_EQ(map(0, &iova), -ETIMEDOUT);
    release(ENOSPC);
    EXPECT_TRUE(answers());
    ASSERT_EQ(map(0, &iova), 0);
    EXPECT_EQ(addresses(VFIO_USER_DMA_MAP), std::vector<uint64_t>(2, iova));
    EXPECT_TRUE(addresses(VFIO_USER_DMA_UNMAP).empty());
}

TEST_F(Late, TheUnmapOfAMapMayAlsoBeLate)
{
    open_held(VFIO_USER_DMA_MAP);
    pause();
    EXPECT_EQ(map(0, &iova), -ETIMEDOUT);
    hold(VFIO_USER_DMA_UNMAP);
    release_once();
    EXPECT_FALSE(answers()) << "waits for the unmap";
    EXPECT_TRUE(t->ops->silent(t));
    release();
    EXPECT_TRUE(answers());
    uint64_t late = addresses(VFIO_USER_DMA_MAP)[0];
    EXPECT_EQ(addresses(VFIO_USER_DMA_UNMAP), std::vector<uint64_t>{late});
    ASSERT_EQ(map(0, &iova), 0);
    EXPECT_EQ(iova, late);
}

TEST_F(Late, ASecondUnmapReturnsTheLateResult)
{
    open_held(VFIO_USER_DMA_UNMAP);
    ASSERT_EQ(map(0, &iova), 0);
    pause();
    EXPECT_LT(seconds([&] { EXPECT_EQ(t->ops->unmap(t, iova), -ETIMEDOUT); }), BOUND_S);
    EXPECT_EQ(t->ops->unmap(t, iova), -ETIMEDOUT) << "the server may have it still";
    release();
    EXPECT_TRUE(answers());
    ASSERT_EQ(map(1, &other), 0);
    EXPECT_NE(other, iova) << "the driver does not know yet";
    EXPECT_EQ(t->ops->unmap(t, iova), 0);
    EXPECT_EQ(addresses(VFIO_USER_DMA_UNMAP), std::vector<uint64_t>{iova}) << "asked once";
    EXPECT_EQ(t->ops->unmap(t, iova), -ENOENT);
}

TEST_F(Late, AnUnmapBehindASilentReadIsSentLater)
{
    open_held(VFIO_USER_REGION_READ);
    ASSERT_EQ(map(0, &iova), 0);
    pause();
    EXPECT_FALSE(answers());
    EXPECT_EQ(t->ops->unmap(t, iova), -ETIMEDOUT);
    EXPECT_TRUE(addresses(VFIO_USER_DMA_UNMAP).empty());
    release();
    EXPECT_EQ(t->ops->unmap(t, iova), 0);
    EXPECT_EQ(addresses(VFIO_USER_DMA_UNMAP), std::vector<uint64_t>{iova});
}

TEST_F(Late, AnUnmapThatIsRefusedAfterItsDeadlineEndsTheConnection)
{
    open_held(VFIO_USER_DMA_UNMAP);
    ASSERT_EQ(map(0, &iova), 0);
    pause();
    EXPECT_EQ(t->ops->unmap(t, iova), -ETIMEDOUT);
    release(EBUSY);
    EXPECT_EQ(t->ops->unmap(t, iova), -EIO);
    EXPECT_EQ(map(1, &other), -EIO);
    EXPECT_FALSE(t->ops->silent(t));
}

TEST_F(Late, AServerThatEndsBeforeItsReplyIsGone)
{
    open_held(VFIO_USER_DMA_UNMAP);
    ASSERT_EQ(map(0, &iova), 0);
    pause();
    EXPECT_EQ(t->ops->unmap(t, iova), -ETIMEDOUT);
    server.stop();
    EXPECT_EQ(t->ops->unmap(t, iova), -EIO);
    EXPECT_EQ(t->ops->unmap(t, iova), -ENOENT);
}

} // namespace
