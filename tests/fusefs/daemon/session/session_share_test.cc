/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests the shares of session threads, and requests that wait for them. */
#include <gtest/gtest.h>

#include <linux/fuse.h>

#include <cstring>
#include <vector>

#include "fusefs/daemon/session/session_share.h"

namespace
{

using Request = std::vector<char>;

Request request(uid_t uid, uint32_t opcode, uint64_t unique = 0, size_t body = 0)
{
    Request r(sizeof(fuse_in_header) + body);
    fuse_in_header in{};
    in.uid = uid;
    in.opcode = opcode;
    in.unique = unique;
    memcpy(r.data(), &in, sizeof(in));
    return r;
}

class SessionShare : public ::testing::Test
{
  protected:
    void open(unsigned threads, unsigned for_root, size_t bytes = 1 << 20)
    {
        s = session_share_new(threads, for_root, bytes);
    }
    ~SessionShare() override { session_share_free(s); }
    // Keeps the charge if the request is to be served.
    bool begin(const Request &r)
    {
        session_charge c;
        bool now = session_share_begin(s, r.data(), r.size(), &c);
        if (now)
            charges.push_back(c);
        return now;
    }
    // Returns how many are to be served at once, before one must wait.
    unsigned most(uid_t uid, unsigned tries = 100)
    {
        unsigned n = 0;
        while (n < tries && begin(request(uid, FUSE_READ)))
            n++;
        return n;
    }
    // Ends a request. Returns `unique` of the one that goes on, with its charge, or 0.
    uint64_t end(size_t i = 0)
    {
        char buf[4096];
        session_charge c = charges[i];
        size_t len = session_share_end(s, &c, buf);
        charges.erase(charges.begin() + (long)i);
        if (!len)
            return 0;
        charges.push_back(c);
        fuse_in_header in;
        memcpy(&in, buf, sizeof(in));
        return in.unique;
    }

    session_share *s = nullptr;
    std::vector<session_charge> charges;
};

TEST_F(SessionShare, AUserLeavesHalfToNewcomersAndAPartToRoot)
{
    open(60, 8);
    EXPECT_EQ(most(1000), 26u);
    EXPECT_EQ(most(1001), 13u);
    EXPECT_TRUE(begin(request(1002, FUSE_READ)));
    EXPECT_GE(most(0), 8u);
}

TEST_F(SessionShare, QueuedRequestsGoOnInTheirOrder)
{
    open(4, 0);
    ASSERT_TRUE(begin(request(1000, FUSE_READ, 1)));
    ASSERT_TRUE(begin(request(1000, FUSE_READ, 2)));
    ASSERT_FALSE(begin(request(1000, FUSE_READ, 3)));
    ASSERT_FALSE(begin(request(1000, FUSE_READ, 4)));
    EXPECT_EQ(end(), 3u);
    EXPECT_EQ(end(), 4u);
    EXPECT_EQ(end(), 0u);
    EXPECT_EQ(end(), 0u);
    EXPECT_EQ(most(1000), 2u) << "charges were not given back";
}

TEST_F(SessionShare, UsersTakeTurns)
{
    open(2, 0);
    ASSERT_TRUE(begin(request(1000, FUSE_READ, 1)));
    ASSERT_TRUE(begin(request(1001, FUSE_READ, 2)));
    ASSERT_FALSE(begin(request(1000, FUSE_READ, 3)));
    ASSERT_FALSE(begin(request(1000, FUSE_READ, 4)));
    ASSERT_FALSE(begin(request(1001, FUSE_READ, 5)));
    EXPECT_EQ(end(), 3u);
    EXPECT_EQ(end(), 5u);
    EXPECT_EQ(end(), 4u);
}

// A full share of one user does not keep back what others wait for.
TEST_F(SessionShare, WhatOthersWaitForIsServedAtOnce)
{
    open(2, 1);
    ASSERT_TRUE(begin(request(1000, FUSE_READ)));
    ASSERT_FALSE(begin(request(1000, FUSE_READ)));
    for (uint32_t opcode : {FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_INTERRUPT, FUSE_RELEASE,
                            FUSE_RELEASEDIR, FUSE_INIT, FUSE_DESTROY, FUSE_NOTIFY_REPLY})
        EXPECT_TRUE(begin(request(1000, opcode))) << opcode;
    Request write = request(1000, FUSE_WRITE, 0, sizeof(fuse_write_in));
    EXPECT_FALSE(begin(write));
    fuse_write_in body{};
    body.write_flags = FUSE_WRITE_CACHE;
    memcpy(write.data() + sizeof(fuse_in_header), &body, sizeof(body));
    EXPECT_TRUE(begin(write));
    write.resize(sizeof(fuse_in_header) + 4);
    EXPECT_FALSE(begin(write)) << "too short to be write-back";
    EXPECT_TRUE(begin(Request(4))) << "for libfuse to refuse";
}

// Memory of the queues is bounded, and one user leaves half of it.
TEST_F(SessionShare, AFullQueueIsServedAtOnce)
{
    size_t one = sizeof(fuse_in_header) + 100;
    open(4, 0, 4 * one);
    ASSERT_EQ(most(1000), 2u); // the third is queued, without a body
    ASSERT_FALSE(begin(request(1000, FUSE_WRITE, 0, 100)));
    EXPECT_TRUE(begin(request(1000, FUSE_WRITE, 7, 100)));
    EXPECT_FALSE(charges.back().charged);
    EXPECT_EQ(most(1001), 1u);
    EXPECT_EQ(end(2), 0u) << "one without a charge ends without a successor";
}

} // namespace
