/* SPDX-License-Identifier: BSD-2-Clause */
// Random operations on a tree, each compared with a model; the whole compared after remounts.
#include <stdio.h>

#include <random>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/fs_model.h"
#include "tests/rounds.h"

class FsModel : public FsTest, public ::testing::WithParamInterface<int>
{
  protected:
    // A directory in both worlds.
    struct Dir {
        ModelRef model;
        Inode inode;
    };

    unsigned pick(unsigned n)
    {
        return static_cast<unsigned>(rng() % n);
    }
    // Few names, so that they collide; some long, so that nodes split.
    std::string name()
    {
        unsigned n = pick(40);
        return std::string(n % 4 == 0 ? 200 : 1, 'n') + std::to_string(n);
    }
    Dir walk();
    void step();
    void change_names();
    void change_file();
    void change_xattr(const ModelRef &node, ffs_inode *inode);
    void rename_something();
    void compare(const ModelRef &node, ffs_inode *inode, const std::string &path);
    void compare_file(const ModelRef &node, ffs_inode *inode, const std::string &path);

    std::mt19937_64 rng{static_cast<uint64_t>(GetParam())};
    Model model;
};

// A random way down from the root.
FsModel::Dir FsModel::walk()
{
    Dir d = {model.root, lookup(".")};
    for (unsigned left = pick(4); left > 0; left--) {
        auto it = d.model->names.find(name());
        if (it == d.model->names.end() || !it->second->is_dir())
            continue;
        d.inode = lookup(d.inode, it->first);
        d.model = it->second;
    }
    return d;
}

void FsModel::change_names()
{
    Dir d = walk();
    std::string n = name(), target(1 + pick(4095), 't');
    Inode made;
    switch (pick(7)) {
    case 0:
    case 1:
        EXPECT_EQ(ffs_mknod(d.inode, n.c_str(), S_IFREG | 0600, 0, &cred, made.out()),
                  model.create(d.model, n, S_IFREG | 0600));
        break;
    case 2:
        EXPECT_EQ(ffs_mkdir(d.inode, n.c_str(), 0700, &cred, made.out()),
                  model.create(d.model, n, S_IFDIR | 0700));
        break;
    case 3:
        EXPECT_EQ(ffs_symlink(d.inode, n.c_str(), target.c_str(), &cred, made.out()),
                  model.create(d.model, n, S_IFLNK | 0777, target));
        break;
    case 4:
        EXPECT_EQ(ffs_unlink(d.inode, n.c_str()), model.unlink(d.model, n));
        break;
    case 5:
        EXPECT_EQ(ffs_rmdir(d.inode, n.c_str()), model.rmdir(d.model, n));
        break;
    default:
        Dir e = walk();
        auto it = e.model->names.find(name());
        if (it == e.model->names.end())
            break;
        EXPECT_EQ(ffs_link(lookup(e.inode, it->first), d.inode, n.c_str()),
                  model.link(it->second, d.model, n));
    }
}

void FsModel::rename_something()
{
    static const unsigned flags[] = {0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    Dir from = walk(), to = walk();
    std::string a = name(), b = name();
    unsigned f = flags[pick(4)];
    EXPECT_EQ(ffs_rename(from.inode, a.c_str(), to.inode, b.c_str(), f),
              model.rename(from.model, a, to.model, b, f));
}

void FsModel::change_xattr(const ModelRef &node, ffs_inode *inode)
{
    std::string key = "user." + std::to_string(pick(6)), value = pattern(rng(), pick(1500));
    if (pick(3) == 0) {
        EXPECT_EQ(ffs_removexattr(inode, key.c_str()), node->xattrs.erase(key) ? 0 : -ENODATA);
        return;
    }
    EXPECT_EQ(ffs_setxattr(inode, key.c_str(), value.data(), value.size(), 0), 0);
    node->xattrs[key] = value;
}

void FsModel::change_file()
{
    Dir d = walk();
    auto it = d.model->names.find(name());
    if (it == d.model->names.end())
        return;
    const ModelRef &node = it->second;
    Inode inode = lookup(d.inode, it->first);
    uint64_t offset = pick(60000);
    if (pick(4) == 0) {
        change_xattr(node, inode);
    } else if (!S_ISREG(node->mode)) {
        return;
    } else if (pick(4) == 0) {
        EXPECT_EQ(truncate(inode, offset), 0);
        node->data.resize(offset);
    } else {
        std::string bytes = pattern(rng(), 1 + pick(20000));
        EXPECT_EQ(write(inode, offset, bytes), static_cast<ssize_t>(bytes.size()));
        if (node->data.size() < offset + bytes.size())
            node->data.resize(offset + bytes.size());
        node->data.replace(offset, bytes.size(), bytes);
    }
}

void FsModel::step()
{
    unsigned n = pick(10);
    if (n < 6)
        change_names();
    else if (n < 8)
        change_file();
    else
        rename_something();
}

void FsModel::compare_file(const ModelRef &node, ffs_inode *inode, const std::string &path)
{
    if (S_ISLNK(node->mode)) {
        std::string target(4096, 0);
        target.resize(static_cast<size_t>(ffs_readlink(inode, target.data(), target.size())));
        EXPECT_EQ(target, node->data) << path;
    } else {
        EXPECT_TRUE(read_all(inode) == node->data) << path;
    }
    size_t listed = 0;
    for (const auto &[key, value] : node->xattrs) {
        std::string got(4096, 0);
        ssize_t len = ffs_getxattr(inode, key.c_str(), got.data(), got.size());
        EXPECT_EQ(got.substr(0, static_cast<size_t>(len)), value) << path << " " << key;
        listed += key.size() + 1;
    }
    EXPECT_EQ(ffs_listxattr(inode, nullptr, 0), static_cast<ssize_t>(listed)) << path;
}

void FsModel::compare(const ModelRef &node, ffs_inode *inode, const std::string &path)
{
    EXPECT_EQ(attr(inode).mode, node->mode) << path;
    EXPECT_EQ(attr(inode).nlink, node->nlink) << path;
    if (!node->is_dir()) {
        compare_file(node, inode, path);
        return;
    }
    std::vector<std::string> listed = names(inode);
    EXPECT_EQ(listed.size(), node->names.size() + 2) << path;
    for (const auto &[name, child] : node->names)
        compare(child, lookup(inode, name), path + "/" + name);
}

TEST_P(FsModel, AgreesWithTheModelAcrossRemounts)
{
    model.root->mode = attr(root).mode;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 400 && !HasFailure(); i++)
            step();
        compare(model.root, root, "");
        remount();
        compare(model.root, root, "");
        ASSERT_FALSE(HasFailure()) << "seed " << GetParam() << " round " << round;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FsModel, ::testing::Range(1, 1 + test_rounds(8, 64)));
