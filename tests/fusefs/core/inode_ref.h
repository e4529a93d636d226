/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_CORE_INODE_REF_H
#define TESTS_CORE_INODE_REF_H

#include <utility>

#include "fusefs/core/ffs.h"

// Owns a reference of an inode.
class Inode
{
  public:
    Inode() = default;
    explicit Inode(ffs_inode *i) : i_(i) {}
    Inode(Inode &&o) noexcept : i_(std::exchange(o.i_, nullptr)) {}
    Inode &operator=(Inode &&o) noexcept
    {
        if (this != &o) {
            reset();
            i_ = std::exchange(o.i_, nullptr);
        }
        return *this;
    }
    ~Inode() { reset(); }
    void reset()
    {
        if (i_)
            ffs_iput(i_, 1);
        i_ = nullptr;
    }
    operator ffs_inode *() const { return i_; }
    ffs_inode *operator->() const { return i_; }
    // A function that stores a reference gets this.
    ffs_inode **out()
    {
        reset();
        return &i_;
    }

  private:
    ffs_inode *i_ = nullptr;
};

#endif
