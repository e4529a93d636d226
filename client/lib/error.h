/* SPDX-License-Identifier: BSD-2-Clause */
/* What went wrong in words, per thread: behind gpunvme_error(). */
#ifndef CLIENT_LIB_ERROR_H
#define CLIENT_LIB_ERROR_H

/* Keeps the sentence for gpunvme_error() and returns err (a -errno). */
int gpunvme_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
