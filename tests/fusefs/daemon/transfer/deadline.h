/* SPDX-License-Identifier: BSD-2-Clause */
// The deadline of commands in tests that lose some of them.
#ifndef TESTS_FUSEFS_DAEMON_TRANSFER_DEADLINE_H
#define TESTS_FUSEFS_DAEMON_TRANSFER_DEADLINE_H

#include "tests/rounds.h"

// Other commands, also those of the mount, end before it on a busy machine.
constexpr unsigned kDeadlineMs = kSanitized ? 1000 : 300;

#endif
