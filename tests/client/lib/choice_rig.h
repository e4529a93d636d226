/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's choice of a way, asked without a mount and without a GPU. */
#ifndef TESTS_CLIENT_LIB_CHOICE_RIG_H
#define TESTS_CLIENT_LIB_CHOICE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct choice {
    uint64_t crossover; /* as in gpunvme_options */
    uint32_t path;
    bool on_gpu; /* the buffer's memory */
    bool write;
    int fd;
    size_t len;
};

/* Why a transfer of a buffer that the mount has taken bounces; NULL: it does not. */
const char *choice_why(const struct choice *c);
/* The same for a batch. */
const char *choice_why_batch(const struct choice *c);

#ifdef __cplusplus
}
#endif

#endif
