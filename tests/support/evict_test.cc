// SPDX-License-Identifier: BSD-2-Clause
// Which files of a tree are removed, in which order, and that every walk ends.
#include <errno.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/evict.h"

namespace
{

struct Entry {
    std::string name;
    evict_kind kind;
    uint64_t ino, bytes;
    time_t used;
};

// Directories by their inode numbers. Number 1 is the root.
class Evict : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        static const evict_ops ops = {enter, next, remove, aim};
        e.ops = &ops;
        e.arg = this;
        e.root = 1;
        e.most = 1000;
    }
    void add_file(uint64_t dir, const std::string &name, uint64_t bytes, time_t used,
                  evict_kind kind = EVICT_FILE)
    {
        tree[dir].push_back({name, kind, next_ino++, bytes, used});
    }
    void add_dir(uint64_t dir, const std::string &name, uint64_t ino)
    {
        tree[dir].push_back({name, EVICT_DIRECTORY, ino, 0, 0});
    }
    // Runs to the end, by steps of some entries.
    int run(unsigned step = 7)
    {
        int more;
        steps = 0;
        while ((more = evict_step(&e, step)) == 1 && steps < 100000)
            steps++;
        evict_end(&e);
        EXPECT_EQ(at, 0u) << "a directory was not left";
        return more;
    }
    static Evict *self(void *arg) { return static_cast<Evict *>(arg); }
    static int enter(void *arg, const evict_dir *dir)
    {
        Evict *t = self(arg);
        t->at = dir ? dir->ino : 0;
        t->index = 0;
        if (!dir)
            return 0;
        t->entered[t->at]++;
        return t->tree.count(t->at) ? t->enter_error : 1;
    }
    static int next(void *arg, evict_file *f)
    {
        Evict *t = self(arg);
        const std::vector<Entry> &all = t->tree[t->at];
        if (t->index == all.size())
            return EVICT_END;
        const Entry &entry = all[t->index++];
        *f = {entry.name.c_str(), entry.ino, entry.bytes, {entry.used, 0}};
        return entry.kind;
    }
    static bool remove(void *arg, const evict_file *f)
    {
        Evict *t = self(arg);
        std::vector<Entry> &all = t->tree[t->at];
        auto found =
            std::find_if(all.begin(), all.end(), [f](const Entry &x) { return x.name == f->name; });
        EXPECT_NE(found, all.end()) << f->name;
        if (found == all.end() || found->ino != f->ino || t->kept.count(f->name))
            return false;
        all.erase(found);
        t->removed.push_back(f->name);
        return true;
    }
    static void aim(void *arg, evict *e)
    {
        if (self(arg)->refuse_beyond && e->fixed > self(arg)->refuse_beyond)
            e->begin = e->bytes;
    }

    evict e = {};
    std::map<uint64_t, std::vector<Entry>> tree = {{1, {}}};
    std::map<uint64_t, int> entered;
    std::vector<std::string> removed;
    std::set<std::string> kept; // by remove()
    uint64_t next_ino = 1000, at = 0, refuse_beyond = 0;
    size_t index = 0, steps = 0;
    int enter_error = 0;
};

TEST_F(Evict, RemovesTheOldestOfAllDirectoriesUntilTheEnd)
{
    add_dir(1, "a", 2);
    add_dir(2, "b", 3);
    add_file(1, "new", 10, 9);
    add_file(2, "old", 10, 2);
    add_file(3, "older", 10, 1);
    add_file(3, "middle", 10, 5);
    e.begin = 35;
    e.end = 20;
    EXPECT_EQ(run(), 0);
    EXPECT_EQ(removed, (std::vector<std::string>{"older", "old"}));
    EXPECT_EQ(e.bytes, 20u);
    EXPECT_EQ(e.files, 2u);
    EXPECT_EQ(e.removed_bytes, 20u);
    EXPECT_EQ(e.removed_files, 2u);
}

TEST_F(Evict, RemovesNothingUpToTheBegin)
{
    for (int i = 0; i < 10; i++)
        add_file(1, "f" + std::to_string(i), 10, i);
    e.begin = 100;
    e.end = 1;
    EXPECT_EQ(run(), 0);
    EXPECT_TRUE(removed.empty());
    EXPECT_EQ(e.bytes, 100u);
}

TEST_F(Evict, CountsFixedFilesAndKeepsThem)
{
    add_file(1, "fixed", 100, 1, EVICT_FIXED);
    add_file(1, "link", 100, 1, EVICT_OTHER);
    add_file(1, "kept", 10, 2);
    add_file(1, "f", 10, 3);
    kept = {"kept"};
    EXPECT_EQ(run(), 0);
    EXPECT_EQ(removed, (std::vector<std::string>{"f"}));
    EXPECT_EQ(e.fixed, 100u);
    EXPECT_EQ(e.bytes, 110u);
    EXPECT_EQ(e.files, 2u);
}

TEST_F(Evict, TheAimIsSetAfterTheWalk)
{
    add_file(1, "fixed", 100, 1, EVICT_FIXED);
    add_file(1, "f", 10, 3);
    refuse_beyond = 50;
    EXPECT_EQ(run(), 0);
    EXPECT_TRUE(removed.empty());
}

// A directory that names itself, its parent and another one, each many times over.
TEST_F(Evict, ReadsADirectoryOnceHoweverOftenItIsNamed)
{
    for (uint64_t dir = 1; dir <= 20; dir++) {
        tree[dir] = {};
        for (uint64_t other = 1; other <= 20; other++) {
            add_dir(dir, "x" + std::to_string(other), other);
            add_dir(dir, "y" + std::to_string(other), other);
        }
        add_file(dir, "f" + std::to_string(dir), 1, static_cast<time_t>(dir));
    }
    e.begin = e.end = 15;
    EXPECT_EQ(run(), 0);
    EXPECT_LT(steps, 1000u);
    EXPECT_EQ(e.files, 15u);
    EXPECT_EQ(removed, (std::vector<std::string>{"f1", "f2", "f3", "f4", "f5"}));
}

TEST_F(Evict, ADirectoryThatDisappearsIsIgnored)
{
    add_dir(1, "gone", 77);
    add_file(1, "f", 10, 3);
    EXPECT_EQ(run(), 0);
    EXPECT_EQ(removed.size(), 1u);
}

TEST_F(Evict, ErrorsEndTheWalk)
{
    add_file(1, "f", 10, 3);
    enter_error = -EIO;
    EXPECT_EQ(run(), -EIO);
    EXPECT_TRUE(removed.empty());
}

// More files than a pass remembers: the order holds over all passes.
TEST_F(Evict, PassesFollowUntilTheEndIsReached)
{
    std::mt19937 random(20);
    std::vector<int> order(1000);
    for (int i = 0; i < 1000; i++)
        order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (int i = 2; i < 12; i++)
        add_dir(1, "d" + std::to_string(i), static_cast<uint64_t>(i));
    for (int i : order)
        add_file(static_cast<uint64_t>(2 + i % 10), std::to_string(i), 1, i);
    e.most = 40;
    e.begin = e.end = 400;
    EXPECT_EQ(run(), 0);
    ASSERT_EQ(removed.size(), 600u);
    for (int i = 0; i < 600; i++)
        EXPECT_EQ(removed[i], std::to_string(i));
    EXPECT_EQ(entered[1], 15);
}

TEST_F(Evict, FilesThatStayEndTheWalk)
{
    for (int i = 0; i < 300; i++) {
        add_file(1, std::to_string(i), 1, i);
        kept.insert(std::to_string(i));
    }
    e.most = 40;
    EXPECT_EQ(run(), 0);
    EXPECT_EQ(e.files, 300u);
    EXPECT_EQ(entered[1], 2);
}

TEST_F(Evict, StepsAreBounded)
{
    for (int i = 0; i < 100; i++)
        add_file(1, std::to_string(i), 1, i, i % 2 ? EVICT_FILE : EVICT_OTHER);
    EXPECT_EQ(run(1), 0);
    EXPECT_GE(steps, 150u) << "an entry or a removal each";
}

} // namespace
