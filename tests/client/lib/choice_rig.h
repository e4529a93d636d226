/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's choice of a path, asked without a mount and without a GPU. */
#ifndef TESTS_CLIENT_LIB_CHOICE_RIG_H
#define TESTS_CLIENT_LIB_CHOICE_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

struct choice {
    uint64_t crossover; /* as in gpunvme_options */
    uint32_t path;
    bool on_gpu; /* the buffer's memory */
    bool write;
    bool writeback_cache; /* of the mount */
    int fd;
    uint64_t file_offset;
    size_t len;
    size_t pieces; /* of a batch of len bytes together; 0: no batch */
};

/* A handle with options. */
struct choice_handle;
struct choice_handle *choice_handle_new(void);
void choice_handle_free(struct choice_handle *h);
/* bounce_set_options() with those of c: its -errno. */
int choice_set(struct choice_handle *h, const struct choice *c);

/* Why a transfer of a buffer that the mount has taken bounces; NULL: it does not. */
const char *choice_why(struct choice_handle *h, const struct choice *c);

__END_DECLS

#endif
