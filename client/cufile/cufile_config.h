/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parameters of cuFile. Each source overrides the previous one: the defaults,
 * cufile.json ($CUFILE_ENV_PATH_JSON or /etc/cufile.json), the environment, and
 * calls of the program before the driver opens.
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
