/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the parameters of cuFile. The sources are, in ascending priority, the
 * defaults, cufile.json ($CUFILE_ENV_PATH_JSON or /etc/cufile.json), the
 * environment, and calls of the program before the driver opens.
 */
#ifndef CLIENT_CUFILE_CUFILE_CONFIG_H
#define CLIENT_CUFILE_CUFILE_CONFIG_H

#include "client/cufile/cufile_abi.h"

#define CUFILE_STRING_MAX 256 /* bytes with the terminating zero */

struct cufile_config {
    size_t sizes[CUFILE_SIZE_PARAMS];
    bool bools[CUFILE_BOOL_PARAMS];
    char strings[CUFILE_STRING_PARAMS][CUFILE_STRING_MAX];
};

#define CUFILE_PARAMS (CUFILE_SIZE_PARAMS + CUFILE_BOOL_PARAMS + CUFILE_STRING_PARAMS)

struct cufile_param {
    const char *section, *key; /* place in cufile.json; NULL: none */
    const char *variable;      /* variable of the environment that overrides it; NULL: none */
    size_t initial;            /* of sizes and flags */
    size_t min, max;           /* limits of a size that is set by a call */
};
/* Describes the sizes in the order of their numbers, followed by the flags and the strings. */
extern const struct cufile_param cufile_params[CUFILE_PARAMS];

/*
 * Returns the configuration of this process, which the first call reads. It
 * changes only under cufile_config_lock(), and not while the driver is open.
 */
struct cufile_config *cufile_config(void);
void cufile_config_lock(void);
void cufile_config_unlock(void);
/* Resets the lock in a child of fork(), since the parent may have held it. */
void cufile_config_forked(void);

#endif
