/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/core/fs_model.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

bool ModelNode::is_dir() const
{
    return S_ISDIR(mode);
}

static bool is_below(const ModelNode *node, const ModelNode *top)
{
    for (; node; node = node->parent) {
        if (node == top)
            return true;
    }
    return false;
}

Model::Model() : root(std::make_shared<ModelNode>())
{
    root->mode = S_IFDIR | 0755;
    root->nlink = 2;
}

int Model::create(const ModelRef &dir, const std::string &name, uint32_t mode,
                  const std::string &data)
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

int Model::link(const ModelRef &node, const ModelRef &dir, const std::string &name)
{
    if (node->is_dir())
        return -EPERM;
    if (dir->names.count(name))
        return -EEXIST;
    dir->names[name] = node;
    node->nlink++;
    return 0;
}

void Model::drop(const ModelRef &dir, const std::string &name)
{
    ModelRef node = dir->names[name];
    if (node->is_dir())
        dir->nlink--;
    node->nlink = node->is_dir() ? 0 : node->nlink - 1;
    dir->names.erase(name);
}

int Model::unlink(const ModelRef &dir, const std::string &name)
{
    auto it = dir->names.find(name);
    if (it == dir->names.end())
        return -ENOENT;
    if (it->second->is_dir())
        return -EISDIR;
    drop(dir, name);
    return 0;
}

int Model::rmdir(const ModelRef &dir, const std::string &name)
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

int Model::move(const ModelRef &dir, const std::string &name, const ModelRef &to,
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

void Model::exchange(const ModelRef &dir, const std::string &name, const ModelRef &to,
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

int Model::rename(const ModelRef &dir, const std::string &name, const ModelRef &to,
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
