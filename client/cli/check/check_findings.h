/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Findings of `gpunvme check`. Each is a fact with a level and the next step.
 */
#ifndef CLIENT_CLI_CHECK_CHECK_FINDINGS_H
#define CLIENT_CLI_CHECK_CHECK_FINDINGS_H

#include <stddef.h>

#include "client/cli/common/out.h"

#ifdef __cplusplus
extern "C" {
#endif

enum check_level { CHECK_OK, CHECK_WARN, CHECK_FAIL };

struct check_finding {
    enum check_level level;
    const char *id; /* stable, for scripts */
    char text[320];
    char advice[320]; /* empty if there is nothing to do */
};

struct check {
    struct check_finding *all;
    size_t n;
    enum check_level worst;
};

/*
 * Adds a finding; advice may be NULL. If memory is exhausted, the finding is
 * lost and the check has failed.
 */
void check_add(struct check *c, enum check_level level, const char *id, const char *advice,
               const char *text, ...) __attribute__((format(printf, 5, 6)));
void check_free(struct check *c);
void check_print(const struct check *c, struct cli_out *o);

#ifdef __cplusplus
}
#endif

#endif
