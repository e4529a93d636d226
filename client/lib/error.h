/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stores the text of gpunvme_error() for each thread, and the log of
 * gpunvme_set_log().
 */
#ifndef CLIENT_LIB_ERROR_H
#define CLIENT_LIB_ERROR_H

/* Sets the text of gpunvme_error(), and returns err, which is negative. */
int gpunvme_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes to the log, if there is one, why a transfer leaves the GPU path. Returns `why`. */
const char *gpunvme_log_bounce(const char *why);

#endif
