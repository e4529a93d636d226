/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parameters of cuFile: the defaults, then cufile.json ($CUFILE_ENV_PATH_JSON, /etc/cufile.json),
 * then the environment, then what the program sets while the driver is not open.
 */
#ifndef CLIENT_CUFILE_CUFILE_CONFIG_H
#define CLIENT_CUFILE_CUFILE_CONFIG_H

#include "client/cufile/cufile_abi.h"

#define CUFILE_STRING_MAX 256 /* bytes, the zero included */
#define CUFILE_SLABS_MAX  16

struct cufile_slabs {
    int n;
    size_t sizes[CUFILE_SLABS_MAX], counts[CUFILE_SLABS_MAX];
};

struct cufile_config {
    size_t sizes[CUFILE_SIZE_PARAMS];
    bool bools[CUFILE_BOOL_PARAMS];
    char strings[CUFILE_STRING_PARAMS][CUFILE_STRING_MAX];
    struct cufile_slabs posix_pool, gpu_bounce;
};

/*
 * The one of this process, read in by the first call. It changes under cufile_config_lock() alone,
 * and not while the driver is open.
 */
struct cufile_config *cufile_config(void);
void cufile_config_lock(void);
void cufile_config_unlock(void);
/* In a child of fork(): the lock may have been held. */
void cufile_config_forked(void);

#endif
