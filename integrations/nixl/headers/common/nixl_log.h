/* SPDX-License-Identifier: BSD-2-Clause */
// Replaces NIXL's header of this name, which needs Abseil, with the macros that
// its public headers use.
#ifndef INTEGRATIONS_NIXL_LOG_H
#define INTEGRATIONS_NIXL_LOG_H

#include <cassert>
#include <iostream>

#define NIXL_ERROR             (std::cerr << "\nnixl GPUNVME: ")
#define NIXL_ASSERT(condition) assert(condition)

#endif
