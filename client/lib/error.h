/* SPDX-License-Identifier: BSD-2-Clause */
/* What went wrong in words, per thread: behind gpunvme_error() and gpunvme_set_log(). */
#ifndef CLIENT_LIB_ERROR_H
#define CLIENT_LIB_ERROR_H

/* Keeps the sentence for gpunvme_error() and returns err (a -errno). */
int gpunvme_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Tells the log, if there is one, why a transfer leaves the GPU path; returns why. */
const char *gpunvme_log_bounce(const char *why);

#endif
