/* SPDX-License-Identifier: BSD-2-Clause */
/* Self-test of the controller at mount, by both kinds of queues (blockdev/data_check.h). */
#ifndef FUSEFS_DAEMON_START_SELFTEST_H
#define FUSEFS_DAEMON_START_SELFTEST_H

#include "fusefs/daemon/start/stack.h"

/*
 * Precondition: controller and block device are open, no file system. -EILSEQ: data came back
 * wrong; -EPROTO: a shape of command is refused; why has a sentence. -ENOMEM. 0 otherwise: other
 * failures are named by those that need the data.
 */
int selftest_run(struct stack *s, char *why, size_t len);

#endif
