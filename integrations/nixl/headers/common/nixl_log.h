/* SPDX-License-Identifier: BSD-2-Clause */
// In place of NIXL's header of this name, which needs Abseil: what its public headers use of it.
#ifndef INTEGRATIONS_NIXL_LOG_H
#define INTEGRATIONS_NIXL_LOG_H

#include <cassert>
#include <iostream>

#define NIXL_ERROR             (std::cerr << "\nnixl GPUNVME: ")
#define NIXL_ASSERT(condition) assert(condition)

#endif
