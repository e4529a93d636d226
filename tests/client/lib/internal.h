/* SPDX-License-Identifier: BSD-2-Clause */
// Includes the library's internal headers, which are C11. Their atomic members have the size of
// plain ones, and tests access those that other threads use by __atomic builtins.
#ifndef TESTS_CLIENT_LIB_INTERNAL_H
#define TESTS_CLIENT_LIB_INTERNAL_H

#include <stdbool.h> // defines _Bool, which <stdatomic.h> of GCC uses

#include <atomic> // before the macros of <stdatomic.h>, which clang has in C++, too
#ifdef __clang__
#include <stdatomic.h> // its types need the keyword _Atomic
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // C++ has none for designators
extern "C" {
#define _Atomic
#include "client/lib/client_internal.h"
#include "client/lib/cuda_driver_internal.h"
#include "client/lib/direct.h"
#include "client/lib/handle.h"
#include "client/lib/mount_gpu.h"
#include "client/lib/pipeline.h"
#include "client/lib/shared_list.h"
#undef _Atomic
}
#pragma GCC diagnostic pop

#endif
