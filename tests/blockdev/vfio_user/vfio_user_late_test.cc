/* SPDX-License-Identifier: BSD-2-Clause */
/* The vfio-user client with a server that pauses while memory is mapped or unmapped. */
#include <gtest/gtest.h>
#include <nvme/types.h>

#include <condition_variable>
#include <mutex>

#include "tests/blockdev/vfio_user/vfio_user_rig.h"

namespace
{

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

    bool answers() { return t->ops->read32(t, NVME_REG_CC) != UINT32_MAX; }

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
