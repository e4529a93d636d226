/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_CORE_INODE_REF_H
#define TESTS_CORE_INODE_REF_H

#include <cstdint>

#include "fusefs/core/ffs.h"

// An inode of which a reference is held, or none.
struct Ref {
    ffs_inode *i = nullptr;
    Ref() = default;
    Ref(const Ref &) = delete;
    Ref &operator=(const Ref &) = delete;
    ~Ref()
    {
        if (i)
            ffs_iput(i, 1);
    }
};

#endif
