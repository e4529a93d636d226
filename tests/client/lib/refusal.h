/* SPDX-License-Identifier: BSD-2-Clause */
/* Launches that the CUDA driver of the machine refuses, because they ask for too large a block. */
#ifndef TESTS_CLIENT_LIB_REFUSAL_H
#define TESTS_CLIENT_LIB_REFUSAL_H

#include <sys/cdefs.h>

__BEGIN_DECLS

struct connection;

/* The nth launch by this thread from now on, 1: the next one. The handle has used CUDA. */
void refusal_at(struct connection *g, unsigned nth);

__END_DECLS

#endif
