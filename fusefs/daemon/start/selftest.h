/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests the controller at mount through both kinds of queues
 * (blockdev/data_check.h).
 */
#ifndef FUSEFS_DAEMON_START_SELFTEST_H
#define FUSEFS_DAEMON_START_SELFTEST_H

#include "fusefs/daemon/start/stack.h"

/*
 * Returns -EILSEQ for wrong data or -EPROTO for a refused shape of command,
 * with a sentence in why, -ENOMEM, or 0. Other failures also return 0: the code
 * that needs the data reports them. Precondition: controller and block device
 * are open, and the file system is not.
 */
int selftest_run(struct stack *s, char *why, size_t len);

#endif
