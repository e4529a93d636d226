/* SPDX-License-Identifier: BSD-2-Clause */
// Random operations on a tree, each compared with a model; the whole compared after remounts.
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include <map>
#include <memory>
#include <random>
#include <string>

#include "tests/fusefs/core/fs_fixture.h"
#include "tests/rounds.h"

namespace
{

// What a file system should look like: the same operations on maps and strings.
struct ModelNode {
    uint32_t mode = 0;
    unsigned nlink = 0;
    std::string data; // or the target of a symbolic link
    std::map<std::string, std::string> xattrs;
    std::map<std::string, std::shared_ptr<ModelNode>> names;
    ModelNode *parent = nullptr; // directories

    bool is_dir() const { return S_ISDIR(mode); }
};
using ModelRef = std::shared_ptr<ModelNode>;

bool is_below(const ModelNode *node, const ModelNode *top)
{
    for (; node; node = node->parent) {
        if (node == top)
            return true;
    }
    return false;
}

// Each returns 0 or -errno, as the function of the file system does.
class Model
{
  public:
    Model() : root(std::make_shared<ModelNode>())
    {
        root->mode = S_IFDIR | 0755;
        root->nlink = 2;
    }
    ModelRef root;

    int create(const ModelRef &dir, const std::string &name, uint32_t mode,
               const std::string &data = "")
    {
        if (dir->names.count(name))
            return -EEXIST;
        auto node = std::make_shared<ModelNode>();
        node->mode = mode;
        node->data = data;
        node->nlink = node->is_dir() ? 2 : 1;
        if (node->is_dir()) {
            node->parent = dir.get();
            dir->nlink++;
        }
        dir->names[name] = node;
        return 0;
    }
    int link(const ModelRef &node, const ModelRef &dir, const std::string &name)
    {
        if (node->is_dir())
            return -EPERM;
        if (dir->names.count(name))
            return -EEXIST;
        dir->names[name] = node;
        node->nlink++;
        return 0;
    }
    int unlink(const ModelRef &dir, const std::string &name)
    {
        auto it = dir->names.find(name);
        if (it == dir->names.end())
            return -ENOENT;
        if (it->second->is_dir())
            return -EISDIR;
        drop(dir, name);
        return 0;
    }
    int rmdir(const ModelRef &dir, const std::string &name)
    {
        auto it = dir->names.find(name);
        if (it == dir->names.end())
            return -ENOENT;
        if (!it->second->is_dir())
            return -ENOTDIR;
        if (!it->second->names.empty())
            return -ENOTEMPTY;
        drop(dir, name);
        return 0;
    }
    int rename(const ModelRef &dir, const std::string &name, const ModelRef &to,
               const std::string &new_name, unsigned flags)
    {
        auto from = dir->names.find(name);
        if (from == dir->names.end())
            return -ENOENT;
        ModelRef node = from->second;
        auto old = to->names.find(new_name);
        bool exists = old != to->names.end();
        if (exists && (flags & RENAME_NOREPLACE))
            return -EEXIST;
        if (node->is_dir() && is_below(to.get(), node.get()))
            return -EINVAL;
        if (exists && old->second == node)
            return 0;
        if (!(flags & RENAME_EXCHANGE))
            return move(dir, name, to, new_name);
        if (!exists)
            return -ENOENT;
        if (old->second->is_dir() && is_below(dir.get(), old->second.get()))
            return -EINVAL;
        exchange(dir, name, to, new_name);
        return 0;
    }

  private:
    static void drop(const ModelRef &dir, const std::string &name)
    {
        ModelRef node = dir->names[name];
        if (node->is_dir())
            dir->nlink--;
        node->nlink = node->is_dir() ? 0 : node->nlink - 1;
        dir->names.erase(name);
    }
    int move(const ModelRef &dir, const std::string &name, const ModelRef &to,
             const std::string &new_name)
    {
        ModelRef node = dir->names[name];
        auto old = to->names.find(new_name);
        if (old != to->names.end()) {
            const ModelRef &victim = old->second;
            if (victim->is_dir() && !node->is_dir())
                return -EISDIR;
            if (!victim->is_dir() && node->is_dir())
                return -ENOTDIR;
            if (!victim->names.empty())
                return -ENOTEMPTY;
            drop(to, new_name);
        }
        dir->names.erase(name);
        to->names[new_name] = node;
        if (node->is_dir()) {
            dir->nlink--;
            to->nlink++;
            node->parent = to.get();
        }
        return 0;
    }
    void exchange(const ModelRef &dir, const std::string &name, const ModelRef &to,
                  const std::string &new_name)
    {
        ModelRef &a = dir->names[name];
        ModelRef &b = to->names[new_name];
        dir->nlink += unsigned(b->is_dir()) - unsigned(a->is_dir());
        to->nlink += unsigned(a->is_dir()) - unsigned(b->is_dir());
        if (a->is_dir())
            a->parent = to.get();
        if (b->is_dir())
            b->parent = dir.get();
        std::swap(a, b);
    }
};

} // namespace

class FsModel : public FsTest, public ::testing::WithParamInterface<int>
{
  protected:
    // A directory in both worlds.
    struct Dir {
        ModelRef model;
        Inode inode;
    };

    unsigned pick(unsigned n) { return static_cast<unsigned>(rng() % n); }
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
    EXPECT_EQ(ffs_listxattr(inode, true, nullptr, 0), static_cast<ssize_t>(listed)) << path;
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
